//! `tracewright export`

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use tracewright::Plan;
use tracewright::errors::WithPath as _;
use tracewright::export::{Manifest, names, write};
use tracewright::irpa::Checkpoint;
use tracewright::load::compile_options;

use crate::arguments::ExportArguments;
use crate::error::Error;
use crate::{Interrupt, ReadModel, build};

pub fn run(arguments: ExportArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let model = &arguments.model_arguments;
    let checkpoint = Checkpoint::open(&arguments.model)?;
    let plan = model.plan(read(&arguments.model, &model.network.allow_config_key)?, model.context)?;
    let checkpoint = plan.named(checkpoint);
    let compiler = build::compiler(&arguments.compile, interrupt)?;
    let plan = Plan { target: compiler.resolve(&arguments.target)?, ..plan };
    let recorded = plan.trace()?.trace;
    let lowered = plan.lower(&recorded)?;
    let module = &lowered.module;
    // What is wrong with a checkpoint is known before anything slow begins.
    lowered.check(&checkpoint, &recorded)?;
    let options = compile_options(module, &compiler, &plan.target)?;
    let cache = build::cache_folder(&arguments.compile)?;
    let compiled = build::compile(module, &compiler, &options, &cache)?;
    let manifest = Manifest::new(&plan, module, &compiled.vmfb, &compiler, &options)?;
    let start = Instant::now();
    let baked = into_folder(&arguments.out, |out| {
        let baked = build::bake(&lowered, &checkpoint, &out.join(names::ARCHIVE), interrupt)?;
        write(out, &arguments.model, module, &compiled.vmfb, &manifest)?;
        Ok(baked)
    })?;
    let bake = start.elapsed();
    if arguments.json {
        let json = serde_json::json!({
            "out": arguments.out,
            "compile_ms": compiled.wall.as_secs_f64() * 1e3,
            "compiled_before": compiled.from_cache,
            "bake_ms": bake.as_secs_f64() * 1e3,
            "bytes": baked.bytes,
        });
        writeln!(std::io::stdout(), "{json}").map_err(Error::Output)?;
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

/// Fills the export directory `out`. After a failure it is no export any more, and gone if it was new.
fn into_folder<T>(out: &Path, fill: impl FnOnce(&Path) -> Result<T, Error>) -> Result<T, Error> {
    let made = !out.exists();
    fs::create_dir_all(out).with_path("create", out)?;
    // The old manifest would vouch for a mixture of old and new files.
    let manifest = out.join(names::MANIFEST);
    if manifest.exists() {
        fs::remove_file(&manifest).with_path("replace", &manifest)?;
    }
    let filled = fill(out);
    if filled.is_err() && made {
        // The first error matters more than a failure here.
        let _ = fs::remove_dir_all(out);
    }
    filled
}
