//! What `generate` and `export` share: module and archive, from the cache or made now.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy;
use tracewright::Plan;
use tracewright::bake::{BakeOptions, Baked, bake, check};
use tracewright::irpa::{Archive, Checkpoint};
use tracewright::lower::Module;
use tracewright::ops::ElementType;
use tracewright::runtime::{self, Cache, CompileOptions, Compiled, Compiler, Target};

use crate::error::Error;
use crate::{CompileArguments, Interrupt, progress};

/// Finds the compiler: the one named, or the first on PATH.
pub fn compiler(arguments: &CompileArguments, interrupt: &Interrupt) -> Result<Compiler, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut compiler = Compiler::find(arguments.iree_compile.as_deref(), &folders)?;
    compiler.timeout = Duration::from_secs(arguments.compile_timeout);
    compiler.interrupt = Some(interrupt.clone());
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

/// How a module of this element type is compiled for a target.
pub fn options(compiler: &Compiler, target: Target, element: ElementType) -> Result<CompileOptions, Error> {
    let features = match target == Target::default() {
        true => runtime::host_cpu_features(),
        false => compiler.cpu_features(&target)?,
    };
    Ok(CompileOptions::for_products(target, element, &features))
}

pub fn compile(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
    cache: &Path,
) -> Result<Compiled, Error> {
    let spinner = progress::spinner("compiling");
    let module = runtime::Module { text: &module.text, text_without_locs: &module.text_without_locs };
    let compiled = runtime::compile(compiler, &module, options, &Cache::new(cache.join("modules")));
    spinner.finish_and_clear();
    Ok(compiled?)
}

/// Writes the archive of a model directory at `out`.
pub fn bake_model(
    model: &Path,
    plan: &Plan,
    module: &Module,
    out: &Path,
    interrupt: &Interrupt,
) -> Result<Baked, Error> {
    let checkpoint = Checkpoint::open(model)?;
    let bar = progress::bytes("baking", 0);
    let mut watch = progress::watch(&bar, interrupt);
    let options = BakeOptions { metadata: true, watch: Some(&mut watch) };
    let baked = bake(&checkpoint, &module.parameters, &plan.model.ignorable(), out, options)?;
    bar.finish_and_clear();
    crate::bake::report(&baked);
    Ok(baked)
}

/// The archive of a model directory, baked once and kept in the cache. The checkpoint is checked every time.
pub fn archive(
    model: &Path,
    plan: &Plan,
    module: &Module,
    cache: &Path,
    interrupt: &Interrupt,
) -> Result<Archive, Error> {
    let checkpoint = Checkpoint::open(model)?;
    check(&checkpoint, &module.parameters, &plan.model.ignorable())?;
    let folder = cache.join("archives");
    fs::create_dir_all(&folder).map_err(|source| Error::File {
        action: "create",
        path: folder.clone(),
        source,
    })?;
    let path = folder.join(format!("{}.irpa", archive_key(&checkpoint, module)?));
    if let Ok(archive) = Archive::open(&path) {
        return Ok(archive);
    }
    bake_model(model, plan, module, &path, interrupt)?;
    Ok(Archive::open(&path)?)
}

/// Which archive belongs to a checkpoint: its files by path, size and time of change, and what is read from them.
/// Hashing gigabytes of weights at every start would take longer than loading them.
fn archive_key(checkpoint: &Checkpoint, module: &Module) -> Result<String, Error> {
    let mut hasher = blake3::Hasher::new();
    for file in checkpoint.files() {
        let unreadable = |source| Error::File { action: "read", path: file.into(), source };
        let path = file.canonicalize().map_err(unreadable)?;
        let metadata = path.metadata().map_err(unreadable)?;
        let changed = metadata.modified().map_err(unreadable)?;
        let changed = changed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        hasher.update(format!("{}\0{}\0{}\0", path.display(), metadata.len(), changed.as_nanos()).as_bytes());
    }
    for parameter in &module.parameters {
        hasher.update(format!("{}\0{}\0", parameter.key, parameter.ty).as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}
