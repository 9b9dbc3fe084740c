//! `tracewright tune`

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use instruments::tune::{Trial, Tuned, TunedNetwork, Weighted, Workbench, tune};
use serde::Serialize;
use serde_json::{Value, json};
use tracewright::Plan;
use tracewright::build::ProgramOptions;
use tracewright::errors::WithPath as _;
use tracewright::runtime::{Device, Runtime};
use tracewright::tuning::{FASTER, Record, TuningCache, Verdict};

use crate::arguments::TuneArguments;
use crate::error::Error;
use crate::{Interrupt, ReadModel, build, fit_weights, warn_of_head};

/// All runs measure with the same numbers.
const SEED: u64 = 0;

pub fn run(arguments: &TuneArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let model = &arguments.model_arguments;
    let mut network = read(&arguments.model, &model.network.allow_config_key)?;
    warn_of_head(fit_weights(&mut *network, &arguments.model)?);
    let plan = model.plan(network, model.context)?;
    let compiler = build::compiler(&arguments.compile, interrupt)?;
    let plan = Plan { target: compiler.resolve(&plan.target)?, ..plan };
    let folder = build::cache_folder(&arguments.compile)?;
    let cache = TuningCache::new(&folder, &plan.target, &compiler.version()?);
    let known = cache.read()?;
    build::report_damage(&known.damaged);
    let mut works = Tuned::all(&plan, &known)?;
    if works.is_empty() {
        say!("no kernel multiplies for this model here, or attends: there is nothing of them to tune");
    }
    let mut network = TunedNetwork::new(&plan, &known)?;
    let result = match arguments.show {
        true => Ok(()),
        false => {
            std::fs::create_dir_all(&folder).with_path("create", &folder)?;
            let checkpoint = build::checkpoint(&arguments.model, &plan, SEED, &folder, interrupt)?;
            let options = || ProgramOptions::new(&compiler, &folder);
            let weights = Weighted { checkpoint: &checkpoint, options: &options };
            let runtime = Runtime::new(Device::LocalTask { workers: 0 })?;
            let bench =
                Workbench { compiler: &compiler, runtime: &runtime, target: &plan.target, seed: SEED };
            let network = Some((&mut network, &weights));
            tune(
                &mut works,
                network,
                &cache,
                &bench,
                arguments.budget,
                &mut |Trial { name, share, tried }| {
                    match tried {
                        None => say!("{:5.1} %  {name}", 100.0 * share),
                        Some((way, verdict)) => say!("         {}", outcome(way, verdict)),
                    }
                    interrupt.go_on()
                },
            )
        }
    };
    let text = match arguments.json {
        true => format!("{}\n", json(&works, &network, &cache)),
        false => table(&works, &network),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(Error::Output)?;
    Ok(result?)
}

fn outcome(way: &dyn Display, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Ratio { median, shortest, .. } => {
            format!("{way}: {median:.3} of the usual time, the shortest {shortest:.3}")
        }
        Verdict::Wrong(how) => format!("{way}: rejected, it is wrong: {how}"),
        Verdict::Refused(why) => format!("{way}: rejected by the compiler: {why}"),
    }
}

fn json(works: &[Tuned], network: &TunedNetwork<'_>, cache: &TuningCache) -> Value {
    fn known<Way: Clone + PartialEq + Serialize>(record: &Record<Way>, left: usize) -> Value {
        let best = record.best();
        json!({
            "name": record.name,
            "usual": record.usual,
            "fastest": best.map(|(way, _)| way),
            "ratio": best.map(|(_, ratio)| ratio),
            "tried": record.tried,
            "left": left,
        })
    }
    let kernels = works.iter().map(|work| {
        let mut json = known(&work.record, work.left().len());
        json["share"] = work.share.into();
        json
    });
    json!({
        "folder": cache.folder().to_string_lossy(),
        "kernels": kernels.collect::<Vec<_>>(),
        "network": known(&network.record, network.left().len()),
    })
}

fn table(works: &[Tuned], network: &TunedNetwork<'_>) -> String {
    fn known<Way: Clone + PartialEq + Display>(record: &Record<Way>, left: usize) -> String {
        let fastest = match record.best() {
            Some((way, ratio)) => format!("{ratio:.3} of the usual time: {way}"),
            None => format!("as usual: {}", record.usual),
        };
        format!("{}\n         {fastest}; {} tried, {left} not", record.name, record.tried.len())
    }
    let mut text = String::new();
    for work in works {
        let share = 100.0 * work.share;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{share:>5.1} %  {}", known(&work.record, work.left().len()));
    }
    let _ = writeln!(text, "{:>5}    {}", "all", known(&network.record, network.left().len()));
    let _ = writeln!(
        text,
        "faster is what takes at most {FASTER} of the usual time; shares are of the time of these kernels, the mean of entry points"
    );
    text
}
