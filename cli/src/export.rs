//! `tracewright export`

use std::io::Write as _;

use tracewright::Plan;
use tracewright::export::{export, names};

use crate::arguments::ExportArguments;
use crate::build::Tunings;
use crate::error::Error;
use crate::measure::milliseconds;
use crate::{Interrupt, ReadModel, build, commands, open};

pub fn run(arguments: ExportArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    if arguments.xla.mesh.is_said() || arguments.xla.batch.is_some() {
        let what = "`--mesh`, `--shard` and `--batch` are for XLA; add `--engine xla`";
        return Err(Error::Usage { what: what.into() });
    }
    let ExportArguments {
        model: folder,
        out,
        target,
        model_arguments: model,
        tuning,
        compile,
        json,
        print_commands,
        ..
    } = arguments;
    let (network, checkpoint) = open(read, &folder, &model.network.allow_config_key)?;
    let plan = model.plan(network, model.context)?;
    let checkpoint = plan.named(checkpoint);
    let (exported, compiler) = build::with_tools(&compile, interrupt, |tools| {
        let plan = Plan { target, ..plan };
        let (asked, compiler) = (tuning.source.as_ref(), tools.compiler.clone());
        let tuning = Tunings::read(asked, &plan.target, (tools.compiler, tools.cache))?.of(Some(&plan))?;
        Ok((export(plan.tuned(tuning, model.chunk), &folder, &checkpoint, &out, tools)?, compiler))
    })?;
    if print_commands {
        let [text, vmfb, archive] = [names::TEXT, names::MODULE, names::ARCHIVE].map(|name| out.join(name));
        say!("{}", commands::compile(&compiler, &exported.options, &text, &vmfb));
        let calls = exported.module.signatures.iter();
        calls.for_each(|entry| say!("{}", commands::call(&vmfb, &archive, entry, &[])));
    }
    crate::bake::report(&exported.baked);
    let (compiled, bytes) = (&exported.compiled, exported.baked.bytes);
    if json {
        let json = serde_json::json!({
            "out": out.to_string_lossy(),
            "compile_ms": milliseconds(compiled.wall),
            "compiled_before": compiled.from_cache,
            "bake_ms": milliseconds(exported.wrote),
            "bytes": bytes,
        });
        writeln!(std::io::stdout(), "{json}").map_err(Error::Output)?;
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
