//! What commands that build a network share: the compiler, the cache, and what they make with them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy;
use tracewright::bake::{BakeOptions, Baked};
use tracewright::irpa::Checkpoint;
use tracewright::load::{LoadError, LoadOptions, Loaded};
use tracewright::lower::Module;
use tracewright::runtime::{CompileOptions, Compiled, Compiler, Device};
use tracewright::{Lowered, load};

use crate::arguments::CompileArguments;
use crate::error::Error;
use crate::{Interrupt, progress};

/// Finds the compiler: the one named, or the first on PATH.
pub fn compiler(arguments: &CompileArguments, interrupt: &Interrupt) -> Result<Compiler, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut compiler = Compiler::find(arguments.iree_compile.as_deref(), &folders)?;
    compiler.timeout = Duration::from_secs(arguments.compile_timeout);
    compiler.interrupt = Some(interrupt.0.clone());
    Ok(compiler)
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

/// Loads a network as `load` does with these options: with the compiler and the cache that the arguments name, on so
/// many threads, and with progress on stderr.
pub fn load(
    arguments: &CompileArguments,
    threads: usize,
    interrupt: &Interrupt,
    load: impl FnOnce(LoadOptions<'_>) -> Result<Loaded, LoadError>,
) -> Result<Loaded, Error> {
    let cache = cache_folder(arguments)?;
    let compiler = compiler(arguments, interrupt)?;
    let mut progress = progress::Steps::new(interrupt);
    let loaded = load(LoadOptions {
        device: Device::LocalTask { workers: threads },
        watch: Some(&mut |step| progress.watch(step)),
        ..LoadOptions::new(&compiler, &cache)
    })?;
    loaded.baked.iter().for_each(crate::bake::report);
    Ok(loaded)
}

/// Compiles a module for a target, or takes it from the cache.
pub fn compile(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
    cache: &Path,
) -> Result<Compiled, Error> {
    let spinner = progress::spinner("compiling");
    let compiled = load::compile(module, compiler, options, cache);
    spinner.finish_and_clear();
    Ok(compiled?)
}

/// Writes the archive of a checkpoint at `out`.
pub fn bake(
    lowered: &Lowered,
    checkpoint: &Checkpoint,
    out: &Path,
    interrupt: &Interrupt,
) -> Result<Baked, Error> {
    let bar = progress::bytes("baking", 0);
    let mut watch = progress::watch(&bar, interrupt);
    let options = BakeOptions { metadata: true, watch: Some(&mut watch) };
    let baked = lowered.bake(checkpoint, out, options)?;
    bar.finish_and_clear();
    crate::bake::report(&baked);
    Ok(baked)
}
