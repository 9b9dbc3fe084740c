//! `tracewright tune` measures which settings of kernels are fastest on this machine.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use console::ModelArguments;
use jiff::SignedDuration;

use crate::arguments::CompileArguments;

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, its config.json, or a GGUF file
    pub model: PathBuf,
    /// Stop tuning after this time; the next run of `tune` continues with the remaining candidates
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub budget: Duration,
    /// Print the measurements of earlier runs, and measure nothing
    #[arg(long)]
    pub show: bool,
    /// Print one JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.ok_or_else(|| "expected a time, as 90s or 5m".into())
}

#[cfg(feature = "iree")]
mod run {
    use console::{print, warn};
    use instruments::tune::{Trial, TuneReport, Tuned, TunedNetwork, Weighted, Workbench, tune};
    use tracewright::Plan;
    use tracewright::build::ProgramOptions;
    use tracewright::errors::WithPath as _;
    use tracewright::irpa::ModelFiles;
    use tracewright::models::fit::fit_beside;
    use tracewright::runtime::{Device, Runtime};
    use tracewright::tuning::TuningCache;

    use super::Arguments;
    use crate::Invocation;
    use crate::build;
    use crate::error::Error;

    const SEED: u64 = 0;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let &Invocation { read, ref interrupt, .. } = invocation;
            let model = &self.model_arguments;
            let files = ModelFiles::at(&self.model);
            let network = read(files.clone(), &model.network.allow_config_key)?;
            warn(&fit_beside(&network, files)?);
            let plan = model.plan(network, &self.model, model.context)?;
            let compiler = build::compiler(&self.compile, interrupt)?;
            let plan = Plan { target: compiler.resolve(&plan.target)?, ..plan };
            let folder = build::cache_folder(&self.compile)?;
            let cache = TuningCache::new(&folder, &plan.target, &compiler.version()?);
            let known = cache.read()?;
            build::report_damage(&known.damaged);
            let mut works = Tuned::all(&plan, &known)?;
            if works.is_empty() {
                say!(
                    "no kernel computes a matmul or attention of this model on this machine: there is nothing to tune"
                );
            }
            let mut network = TunedNetwork::new(&plan, &known)?;
            let result = if self.show {
                Ok(())
            } else {
                std::fs::create_dir_all(&folder).with_path("create", &folder)?;
                let checkpoint = build::checkpoint(&self.model, &plan, SEED, &folder, interrupt)?;
                let options = || ProgramOptions::new(&compiler, &folder);
                let weights = Weighted { checkpoint: &checkpoint, options: &options };
                let runtime = Runtime::new(Device::LocalTask { workers: 0 })?;
                let bench =
                    Workbench { compiler: &compiler, runtime: &runtime, target: &plan.target, seed: SEED };
                let network = Some((&mut network, &weights));
                tune(&mut works, network, &cache, &bench, self.budget, &mut |trial: Trial<'_>| {
                    say!("{trial}");
                    interrupt.go_on()
                })
            };
            let report = TuneReport { works: &works, network: &network, cache: &cache };
            let text = if self.json { format!("{}\n", report.json()) } else { report.table() };
            print(&text)?;
            Ok(result?)
        }
    }
}
