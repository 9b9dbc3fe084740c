//! `tracewright export --engine iree` writes an export for IREE.

use console::{print, usage};
use tracewright::Plan;
use tracewright::export::{commands, export, names};
use tracewright::irpa::ModelFiles;
use tracewright::targets::Target;

use super::{Arguments, BuildArguments};
use crate::Invocation;
use crate::build;
use crate::build::milliseconds;
use crate::checkpoint::{open, report_baked};
use crate::error::Error;

pub fn run(arguments: &Arguments, invocation: &Invocation) -> Result<(), Error> {
    if arguments.xla.mesh.is_said() || arguments.xla.batch.is_some() {
        let what = "`--mesh`, `--shard` and `--batch` are for XLA; add `--engine xla`";
        return Err(usage(what).into());
    }
    let &Invocation { read, ref interrupt, .. } = invocation;
    let Arguments { model: folder, out, target, json, print_commands, .. } = arguments;
    let BuildArguments { model_arguments: model, lora, tuning, compile } = &arguments.build;
    let files = ModelFiles::at(folder);
    let (network, checkpoint) = open(read, &files, &model.network.allow_config_key, lora)?;
    let plan = model.plan(network, folder, model.context)?;
    let (exported, compiler) = build::with_tools(compile, interrupt, |tools| {
        let numerics = arguments.numerics.numerics.unwrap_or_default();
        let plan = Plan { target: Target { numerics, ..target.clone() }, ..plan };
        let compiler = tools.compiler.clone();
        let tuning = tuning.read(&plan.target, (tools.compiler, tools.cache))?.of(&plan)?;
        Ok((export(plan.tuned(tuning, model.chunk), &files, &checkpoint, out, tools)?, compiler))
    })?;
    if *print_commands {
        let [text, vmfb, archive] = [names::TEXT, names::MODULE, names::ARCHIVE].map(|name| out.join(name));
        say!("{}", commands::compile(&compiler, &exported.options, &text, &vmfb));
        let calls = exported.module.signatures.iter();
        calls.for_each(|entry| say!("{}", commands::call(&vmfb, &archive, entry, &[])));
    }
    report_baked(&exported.baked);
    let (compiled, bytes) = (&exported.compiled, exported.baked.bytes);
    if *json {
        let json = serde_json::json!({
            "out": out.to_string_lossy(),
            "compile_ms": milliseconds(compiled.wall),
            "compiled_before": compiled.from_cache,
            "bake_ms": milliseconds(exported.wrote),
            "bytes": bytes,
        });
        print(&format!("{json}\n"))?;
    } else {
        say!(
            "wrote `{}`: {} parameters ({:.1} MB) in {:.1} s, module compiled in {:.1} s",
            out.display(),
            exported.module.parameters.len(),
            bytes as f64 / 1e6,
            exported.wrote.as_secs_f64(),
            compiled.wall.as_secs_f64(),
        );
    }
    Ok(())
}
