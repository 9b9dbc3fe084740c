//! Hashes of all that a model is turned into: `dump MODEL_DIR OUT.irpa`, for the test that they do not change.

use std::error::Error;
use std::path::Path;

use tracewright::bake::BakeOptions;
use tracewright::irpa::Checkpoint;
use tracewright::models::ModelConfig;
use tracewright::{Plan, primitives};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, out] = arguments.as_slice() else { return Err("usage: dump MODEL_DIR OUT.irpa".into()) };
    let (model, out) = (Path::new(model), Path::new(out));
    let plan = Plan::new(ModelConfig::read(model, &[])?, None, Some(32), Some(8))?;
    let trace = plan.trace()?.trace;
    let simplified = primitives(&trace, &plan.simplification(&trace)?)?.0;
    let lowered = plan.lower(&trace)?;
    let checkpoint = plan.named(Checkpoint::open(model)?);
    lowered.bake(&checkpoint, out, BakeOptions::default())?;
    for (name, bytes) in [
        ("traced", trace.to_string().into_bytes()),
        ("simplified", simplified.to_string().into_bytes()),
        ("module", lowered.module.text.into_bytes()),
        ("archive", std::fs::read(out)?),
    ] {
        println!("{name} {}", blake3::hash(&bytes));
    }
    Ok(())
}
