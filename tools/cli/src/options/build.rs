//! Prepares the build of a network for several commands: finds the compiler, the cache folder, the
//! weights and the device.

use std::path::{Path, PathBuf};
use std::time::Duration;

use console::usage;
use tracewright::build::BuildTools;
use tracewright::irpa::{Checkpoint, Gguf};
use tracewright::model::{BuildInfo, choose_target};
use tracewright::random::random_checkpoint;
use tracewright::runtime::{Compiler, Device};
use tracewright::targets::{DeviceKind, DeviceName, Numerics, Target, Tuning};
use tracewright::tuning::{self, Tunings, read_tuning};
use tracewright::{ModelError, Plan, PlanError};

use super::arguments::{CompileArguments, DeviceArguments, TuningArguments, TuningOption};
use super::error::Error;
use super::interrupt::Interrupt;
use super::progress;

/// Builds a network with the compiler and the cache that the arguments set, and shows the progress on stderr.
pub fn with_tools<T>(
    arguments: &CompileArguments,
    interrupt: &Interrupt,
    build: impl FnOnce(BuildTools<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let cache = cache_folder(arguments)?;
    let compiler = compiler(arguments, interrupt)?;
    let mut progress = progress::Steps::new(interrupt);
    let watch = &mut |step| progress.watch(step);
    build(BuildTools { watch: Some(watch), ..BuildTools::new(&compiler, &cache) })
}

pub fn compiler(arguments: &CompileArguments, interrupt: &Interrupt) -> Result<Compiler, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut compiler = Compiler::find(arguments.iree_compile.as_deref(), &folders)?;
    compiler.timeout = Duration::from_secs(arguments.compile_timeout);
    compiler.interrupt = Some(interrupt.asked.clone());
    Ok(compiler)
}

impl TuningOption {
    /// Converts the value of the option `--tuning` to the library's type. If the value names a
    /// tuning file, the function reads this file.
    pub fn resolved(&self) -> Result<tuning::TuningSource, Error> {
        Ok(match self {
            Self::Measured => tuning::TuningSource::Measured,
            Self::Usual => tuning::TuningSource::Given(Tuning::default()),
            Self::File(path) => tuning::TuningSource::Given(read_tuning(path)?),
        })
    }

    /// Reads the tile sizes of kernels for a target, and warns about damaged tuning files.
    pub fn read(&self, target: &Target, tools: (&Compiler, &Path)) -> Result<Tunings, Error> {
        let tunings = self.resolved()?.read(target, tools)?;
        report_damage(tunings.damaged());
        Ok(tunings)
    }
}

impl TuningArguments {
    /// Reads the tile sizes of kernels from the source that `--tuning` selects. Without `--tuning`,
    /// the function reads the measurements of `tracewright tune`.
    pub fn read(&self, target: &Target, tools: (&Compiler, &Path)) -> Result<Tunings, Error> {
        self.source.as_ref().unwrap_or(&TuningOption::Measured).read(target, tools)
    }
}

/// Opens the weights of a model, or creates random weights if `model` is only a configuration.
pub fn checkpoint(
    model: &Path,
    plan: &Plan,
    seed: u64,
    cache: &Path,
    interrupt: &Interrupt,
) -> Result<Checkpoint, Error> {
    if model.is_dir() || Gguf::is_at(model) {
        return Ok(plan.model.weights(&model.into())?);
    }
    let parameters = plan.trace()?.trace.parameters().map_err(PlanError::from)?;
    let total: usize = parameters.iter().map(|p| p.ty.bytes()).sum();
    let bar = progress::bytes("random weights", total as u64);
    let folder = random_checkpoint(model, &parameters, seed, cache, &progress::count(&bar, interrupt))?;
    bar.finish_and_clear();
    Ok(plan.named(Checkpoint::open(folder)?))
}

pub fn report_damage(damaged: &[PathBuf]) {
    for path in damaged {
        say!("`{}` is damaged and not used; `tracewright tune` measures again", path.display());
    }
}

pub fn cache_folder(arguments: &CompileArguments) -> Result<PathBuf, Error> {
    let folder = arguments.cache.clone().or_else(tracewright::model::cache_folder);
    folder.ok_or_else(|| ModelError::NoCache.into())
}

impl DeviceArguments {
    pub fn name(&self) -> DeviceName {
        self.device.unwrap_or(DeviceName::CPU)
    }

    pub fn choose(&self, threads: usize) -> Result<(Device, Target), Error> {
        let (name, target) = self.choose_target()?;
        Ok((Device::of(name, threads), target))
    }

    pub fn choose_target(&self) -> Result<(DeviceName, Target), Error> {
        let name = self.name();
        if let Some(target) = &self.target
            && (target.device != name.kind || name.kind == DeviceKind::Cpu)
        {
            let is_cpu = name.kind == DeviceKind::Cpu;
            let what = format!(
                "`--target` is {target} and `--device` is {name}; `--target` names the model of a {} device, \
                 such as `vulkan:rdna3`",
                if is_cpu { "GPU" } else { name.kind.name() }
            );
            return Err(usage(what).into());
        }
        let numerics = self.numerics.numerics.unwrap_or_default();
        if numerics != Numerics::Fast && name.kind != DeviceKind::Cpu {
            let what = format!(
                "`--numerics` is {} and `--device` is {name}, but only kernels for processors compute the same \
                 bits for any number of tokens per call; leave one of the options out",
                numerics.word()
            );
            return Err(usage(what).into());
        }
        Ok((name, Target { numerics, ..choose_target(name, self.target.as_ref())? }))
    }
}

pub fn build_times(build: Option<&BuildInfo>) -> [f64; 2] {
    build.map_or([0.0; 2], |build| [build.load, build.compile].map(milliseconds))
}

pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
