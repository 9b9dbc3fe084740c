//! Prints hashes of the module text of every preset for every kind of target, without the Rust lines in locations.
//! Equal hashes before and after a change prove that compiled programs do not change.

use std::error::Error;

use tracewright::Plan;
use tracewright::export::xla::{XlaError, XlaProgram, planned, shard_rules};
use tracewright::lower::Shards;
use tracewright::models::presets::Preset;
use tracewright::targets::Target;

const CONTEXT: usize = 64;
const CHUNK: usize = 8;

/// A processor with these features.
fn processor(features: &[&str]) -> Target {
    let features = features.iter().map(|&feature| feature.to_owned()).collect();
    Target { features: Some(features), ..Target::processor("generic") }
}

/// The text without what says where an operation is declared.
fn without_lines(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("#loc"));
    lines
        .map(|line| line.split(" loc(").next().unwrap_or_default())
        .fold(String::new(), |all, line| all + line + "\n")
}

fn main() -> Result<(), Box<dyn Error>> {
    let targets = [
        ("none", processor(&[])),
        ("avx2", processor(&["avx2", "fma", "f16c"])),
        (
            "avx512",
            processor(&[
                "avx2",
                "fma",
                "f16c",
                "avx512f",
                "avx512bw",
                "avx512vl",
                "avx512dq",
                "avx512bf16",
                "avx512vnni",
            ]),
        ),
        ("cuda", "cuda:sm_86".parse()?),
    ];
    for preset in Preset::all() {
        let plan =
            || Plan::new(preset.read()?, None, Some(CONTEXT), Some(CHUNK)).map_err(Box::<dyn Error>::from);
        for (name, target) in &targets {
            let plan = Plan { target: target.clone(), ..plan()? };
            let trace = plan.trace()?.trace;
            let lowered = plan.lower(&trace).map(|lowered| without_lines(&lowered.module.text));
            let text = lowered.unwrap_or_else(|error| error.to_string());
            println!("{} {name} {}", preset.name, blake3::hash(text.as_bytes()));
        }
        let (plan, mesh) = (planned(plan()?), "model=2".parse()?);
        let recorded = plan.trace()?;
        let shards = Shards::new(&recorded.trace, &mesh, &shard_rules(&recorded, &mesh, &[]));
        let program = shards.map_err(XlaError::from);
        match program.and_then(|shards| XlaProgram::new(&plan.expand(&recorded.trace)?, Some(shards))) {
            Ok(program) => {
                for module in &program.modules {
                    let text = without_lines(&module.text);
                    println!(
                        "{} xla {} {}",
                        preset.name,
                        module.signatures[0].name,
                        blake3::hash(text.as_bytes())
                    );
                }
            }
            Err(error) => println!("{} xla {error}", preset.name),
        }
    }
    Ok(())
}
