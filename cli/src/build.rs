//! What commands that build a network share: the compiler, the cache, and progress while they build.

use std::path::{Path, PathBuf};
use std::time::Duration;

use console::usage;
use etcetera::BaseStrategy;
use tracewright::build::BuildTools;
use tracewright::irpa::{Checkpoint, Gguf};
use tracewright::random::random_checkpoint;
use tracewright::runtime::{Compiler, Device, device};
use tracewright::targets::{DeviceKind, DeviceName, Target, Tuning};
use tracewright::tuning::{self, TuningDb, read_tuning};
use tracewright::{Plan, PlanError};

use crate::arguments::{CompileArguments, DeviceArguments, TuningSource};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress;

/// Builds with the compiler and the cache that the arguments name, and with progress on stderr.
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

/// Finds the compiler: the one named, or the first on PATH.
pub fn compiler(arguments: &CompileArguments, interrupt: &Interrupt) -> Result<Compiler, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut compiler = Compiler::find(arguments.iree_compile.as_deref(), &folders)?;
    compiler.timeout = Duration::from_secs(arguments.compile_timeout);
    compiler.interrupt = Some(interrupt.asked.clone());
    Ok(compiler)
}

/// How programs for a target are made.
pub enum Tunings {
    /// All in this way.
    All(Tuning),
    /// As `tune` found it to be fastest.
    Measured(TuningDb),
}

impl Tunings {
    /// Those of a source, by default what `tune` found with the target's features and this compiler.
    pub fn read(
        source: Option<&TuningSource>,
        target: &Target,
        (compiler, cache): (&Compiler, &Path),
    ) -> Result<Self, Error> {
        Ok(match source.unwrap_or(&TuningSource::Measured) {
            TuningSource::Usual => Self::All(Tuning::default()),
            TuningSource::Measured => {
                let known = tuning::measured(cache, target, compiler)?;
                report_damage(&known.damaged);
                Self::Measured(known)
            }
            TuningSource::File(path) => Self::All(read_tuning(path)?),
        })
    }

    /// That of a plan's network, or of one that is no language model.
    pub fn of(&self, plan: Option<&Plan>) -> Result<Tuning, Error> {
        Ok(match self {
            Self::All(tuning) => tuning.clone(),
            Self::Measured(known) => tuning::fastest(known, plan)?,
        })
    }
}

/// The weights of a plan: those of a model directory, or random ones for a configuration.
pub fn checkpoint(
    model: &Path,
    plan: &Plan,
    seed: u64,
    cache: &Path,
    interrupt: &Interrupt,
) -> Result<Checkpoint, Error> {
    if model.is_dir() || Gguf::is_at(model) {
        return Ok(plan.named(Checkpoint::open(model)?));
    }
    let parameters = plan.trace()?.trace.parameters().map_err(PlanError::from)?;
    let total: usize = parameters.iter().map(|p| p.ty.bytes()).sum();
    let bar = progress::bytes("random weights", total as u64);
    let watch = |bytes| {
        bar.inc(bytes as u64);
        interrupt.go_on()
    };
    let folder = random_checkpoint(model, &parameters, seed, cache, &watch)?;
    bar.finish_and_clear();
    Ok(plan.named(Checkpoint::open(folder)?))
}

/// Says which files of a tuning are not used.
pub fn report_damage(damaged: &[PathBuf]) {
    for path in damaged {
        say!("`{}` is damaged and not used; `tracewright tune` measures again", path.display());
    }
}

/// The folder for what can be made again.
pub fn cache_folder(arguments: &CompileArguments) -> Result<PathBuf, Error> {
    if let Some(folder) = &arguments.cache {
        return Ok(folder.clone());
    }
    let strategy = etcetera::choose_base_strategy();
    let strategy = strategy.map_err(|_| {
        usage(
            "there is no home folder for the cache; name a folder with \
        `--cache`",
        )
    })?;
    Ok(strategy.cache_dir().join("tracewright"))
}

impl DeviceArguments {
    /// The device that is named, or the processor.
    pub fn name(&self) -> DeviceName {
        self.device.unwrap_or(DeviceName::CPU)
    }

    /// Where a network runs, and what is compiled for it.
    pub fn choose(&self, threads: usize) -> Result<(Device, Target), Error> {
        let (name, target) = self.choose_target()?;
        Ok((Device::of(name, threads), target))
    }

    /// The device, and what is compiled for it.
    pub fn choose_target(&self) -> Result<(DeviceName, Target), Error> {
        let name = self.name();
        let target = match (&self.target, name.kind) {
            (None, DeviceKind::Cpu) => Target::host(),
            (Some(target), kind) if target.device != kind || kind == DeviceKind::Cpu => {
                let what = format!(
                    "`--target` is {target} and `--device` is {name}; `--target` names the model of a {} device, \
                     such as `vulkan:rdna3`",
                    if kind == DeviceKind::Cpu { "GPU" } else { kind.name() }
                );
                return Err(usage(what).into());
            }
            (Some(target), _) => target.clone(),
            (None, _) => device(name)?.target(),
        };
        Ok((name, target))
    }
}

/// A time as reports show it.
pub fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
