//! `tracewright export --engine xla` writes an export for XLA.

use console::{print, usage};
use tracewright::Plan;
use tracewright::export::manifest::XlaManifest;
use tracewright::export::xla;
use tracewright::footprint::readable;
use tracewright::targets::Target;

use super::{Arguments, BuildArguments};
use crate::checkpoint::open;
use crate::error::Error;
use crate::{Invocation, progress};

pub fn run(arguments: &Arguments, invocation: &Invocation) -> Result<(), Error> {
    let &Invocation { read, ref interrupt, .. } = invocation;
    check(arguments)?;
    let Arguments { model: folder, out, build: BuildArguments { model_arguments: model, lora, .. }, .. } =
        arguments;
    let asked = &arguments.xla;
    // What its blocks ask for is no mistake of the user.
    xla::check_model(folder)?;
    let (network, checkpoint) = open(read, folder, &model.network.allow_config_key, lora)?;
    let plan = model.plan(network, folder, model.context)?;
    let plan = xla::planned(Plan { batch: asked.batch.map_or(1, usize::from), ..plan });
    let bar = progress::bytes("making weights", 0);
    let mut watch = progress::watch(&bar, interrupt);
    let mesh = asked.mesh.rules()?;
    let manifest = xla::export(&plan, folder, &checkpoint, mesh.as_ref(), out, Some(&mut watch))?;
    bar.finish_and_clear();
    report(arguments, &manifest)
}

fn check(arguments: &Arguments) -> Result<(), Error> {
    let numeric = &arguments.build.model_arguments.network.numeric;
    let option = match () {
        () if arguments.target != Target::host() => "--target",
        () if arguments.numerics.numerics.is_some() => "--numerics",
        () if arguments.build.tuning.source.is_some() => "--tuning",
        () if numeric.kernels == Some(true) => "--kernels",
        () if numeric.activations.is_some() => "--activations",
        () if arguments.print_commands => "--print-commands",
        () => return Ok(arguments.xla.mesh.rules().map(drop)?),
    };
    let what = format!(
        "`{option}` is for IREE; XLA compiles for the devices that it finds, without Tracewright's kernels"
    );
    Err(usage(what).into())
}

fn report(arguments: &Arguments, manifest: &XlaManifest) -> Result<(), Error> {
    if arguments.json {
        let json = serde_json::json!({
            "out": arguments.out.to_string_lossy(),
            "mesh": manifest.mesh,
            "device_bytes": manifest.device_bytes,
            "replicated": manifest.replicated,
            "notes": manifest.notes,
        });
        return Ok(print(&format!("{json}\n"))?);
    }
    let entries: Vec<&str> = manifest.entry_points.iter().map(|entry| entry.name.as_str()).collect();
    let (weights, bytes) = (manifest.weights.len(), readable(manifest.device_bytes as u64));
    say!(
        "wrote `{}`: {}; {weights} weights, {bytes} on each device",
        arguments.out.display(),
        entries.join(", ")
    );
    if !manifest.mesh.is_empty() {
        say!("mesh {}: {} weights are whole on each device", manifest.mesh, manifest.replicated.len());
    }
    manifest.notes.iter().for_each(|note| say!("{note}"));
    Ok(())
}
