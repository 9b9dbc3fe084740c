//! `tracewright export`

use std::fs;
use std::time::Instant;

use tracewright::Plan;
use tracewright::export::{Manifest, names, write};
use tracewright::models::ModelConfig;
use tracewright::runtime::Target;

use crate::error::Error;
use crate::{ExportArguments, Interrupt, build};

pub fn run(arguments: ExportArguments, interrupt: &Interrupt) -> Result<(), Error> {
    let model = &arguments.model_arguments;
    let config = ModelConfig::read(&arguments.model, &model.allow_config_key)?;
    let plan = Plan::new(config, model.dtype, model.context, model.chunk)?;
    let module = plan.module()?;
    let compiler = build::compiler(&arguments.compile, interrupt)?;
    let options = build::options(&compiler, target(&arguments.target), plan.element)?;
    let cache = build::cache_folder(&arguments.compile)?;
    fs::create_dir_all(&arguments.out)
        .map_err(|source| Error::File { action: "create", path: arguments.out.clone(), source })?;
    let compiled = build::compile(&module, &compiler, &options, &cache)?;
    let start = Instant::now();
    let baked = build::bake_model(&arguments.model, &plan, &module, &arguments.out.join(names::ARCHIVE), interrupt)?;
    let bake = start.elapsed();
    let manifest = Manifest::new(&plan, &module, &compiled.vmfb, &compiler, &options)?;
    write(&arguments.out, &arguments.model, &module, &compiled.vmfb, &manifest)?;
    if arguments.json {
        let json = serde_json::json!({
            "out": arguments.out,
            "compile_ms": compiled.wall.as_secs_f64() * 1e3,
            "compiled_before": compiled.from_cache,
            "bake_ms": bake.as_secs_f64() * 1e3,
            "bytes": baked.bytes,
        });
        println!("{json}");
    } else {
        eprintln!(
            "wrote `{}`: {} parameters ({:.1} MB) in {:.1} s, module compiled in {:.1} s",
            arguments.out.display(),
            module.parameters.len(),
            baked.bytes as f64 / 1e6,
            bake.as_secs_f64(),
            compiled.wall.as_secs_f64(),
        );
    }
    Ok(())
}

/// `host`, `PROCESSOR`, or `PLATFORM:PROCESSOR[:FEATURES]`.
fn target(text: &str) -> Target {
    let mut parts = text.splitn(3, ':').map(str::to_owned);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(triple), Some(cpu), cpu_features) => Target { triple: Some(triple), cpu, cpu_features },
        (Some(cpu), ..) => Target { cpu, ..Target::default() },
        (None, ..) => Target::default(),
    }
}
