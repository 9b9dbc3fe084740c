//! What commands that build a network share: the compiler, the cache, and progress while they build.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy;
use tracewright::build::BuildTools;
use tracewright::load::{LoadOptions, Loaded};
use tracewright::runtime::{Compiler, Device};
use tracewright::targets::Target;
use tracewright::tune::{self, Known, TuningCache};

use crate::arguments::{CompileArguments, TuningSource};
use crate::error::Error;
use crate::{Interrupt, progress};

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

/// Loads a network as `load` does with these options, for a target and on a device.
pub fn load(
    arguments: &CompileArguments,
    (device, target): (Device, Target),
    interrupt: &Interrupt,
    load: impl FnOnce(LoadOptions<'_>) -> Result<Loaded, Error>,
) -> Result<Loaded, Error> {
    let loaded =
        with_tools(arguments, interrupt, |tools| load(LoadOptions { device, target, ..tools.into() }))?;
    loaded.baked.iter().for_each(crate::bake::report);
    Ok(loaded)
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

/// A target, with what says how its kernels cut their work: by default what `tune` found for its features and this
/// compiler.
pub fn tuned(
    source: Option<&TuningSource>,
    target: &Target,
    compiler: &Compiler,
    cache: &Path,
) -> Result<Target, Error> {
    let tuning = match source.unwrap_or(&TuningSource::Measured) {
        TuningSource::Usual => return Ok(target.clone()),
        // The compiler takes a while to say who it is.
        TuningSource::Measured if !TuningCache::exists(cache) => return Ok(target.clone()),
        TuningSource::Measured => {
            let target = compiler.resolve(target)?;
            let known = TuningCache::new(cache, &target, &compiler.version()?).read()?;
            report_damage(&known);
            known.tuning()
        }
        TuningSource::File(path) => tune::read(path)?,
    };
    Ok(Target { tuning, ..target.clone() })
}

/// Says which files of a tuning are not used.
pub fn report_damage(known: &Known) {
    for path in &known.damaged {
        say!("`{}` is damaged and not used; `tracewright tune` measures again", path.display());
    }
}

/// The folder for what can be made again.
pub fn cache_folder(arguments: &CompileArguments) -> Result<PathBuf, Error> {
    if let Some(folder) = &arguments.cache {
        return Ok(folder.clone());
    }
    let strategy = etcetera::choose_base_strategy();
    let strategy = strategy
        .map_err(|_| Error::Usage { what: "there is no home folder; name one with `--cache`".into() })?;
    Ok(strategy.cache_dir().join("tracewright"))
}
