//! From a trace and a checkpoint to a network that can be called. What was made before is taken from a folder.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bake::{BakeError, BakeOptions, Baked, Ignorable};
use dsl::Traced;
use errors::{FileError, WithPath as _};
use irpa::{Archive, Checkpoint, Storage};
use lower::{LowerError, Module, Weights};
use ops::{ElementType, TensorType};
use runtime::Runtime;
use runtime::{Cache, CompileError, CompileOptions, Compiled, Compiler, Device, Entry, Parameters};
use simplify::Rules;
use targets::Target;
use trace::Parameter;

use crate::footprint::{Footprint, Memory, TooLarge};
use crate::{Expanded, Lowered, Program};

/// How [`load`] builds.
pub struct LoadOptions<'a> {
    /// `iree-compile`.
    pub compiler: &'a Compiler,
    /// The folder for what can be made again, by content: compiled modules and archives.
    pub cache: &'a Path,
    /// What it is built for; this machine unless changed.
    pub target: Target,
    /// The rules that simplify the trace; exact ones unless changed.
    pub rules: Rules,
    /// How weights are stored, and who multiplies with them; by kernels, as the network computes, unless changed.
    pub weights: Weights,
    /// Where the network runs; on all threads of this machine unless changed.
    pub device: Device,
    /// The memory that it must fit into; what this process may use unless changed.
    pub memory: Option<Memory>,
    /// Tensors that the checkpoint may have beside the parameters; none unless changed.
    pub ignorable: Vec<Ignorable>,
    /// Watches, and stops on request.
    pub watch: Option<WatchSteps<'a>>,
}

impl<'a> LoadOptions<'a> {
    /// These, and for the rest the usual choices.
    pub fn new(compiler: &'a Compiler, cache: &'a Path) -> Self {
        Self {
            compiler,
            cache,
            target: Target::host(),
            rules: Rules::default(),
            weights: Weights::default(),
            device: Device::LocalTask { workers: 0 },
            memory: Memory::of_machine(),
            ignorable: Vec::new(),
            watch: None,
        }
    }
}

/// Is told what is being done, and may ask to stop.
pub type WatchSteps<'a> = &'a mut dyn FnMut(Step) -> ControlFlow<()>;

/// What takes long.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The archive is written.
    Bake(irpa::Progress),
    /// The module is compiled.
    Compile,
    /// Nothing does any more.
    Load,
}

/// A program, what it is made of, and how long that took.
pub struct Loaded {
    /// The program.
    pub program: Program,
    /// The device that it runs on.
    pub runtime: Runtime,
    /// The module it was compiled from.
    pub module: Module,
    /// Its weights.
    pub archive: Archive,
    /// What was done to the checkpoint; nothing if its archive was there.
    pub baked: Option<Baked>,
    /// The time that compiling took.
    pub compile: Duration,
    /// The time that loading took.
    pub load: Duration,
}

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The trace is not one that lowers.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// It would not fit into memory.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The checkpoint does not fit.
    #[error(transparent)]
    Bake(#[from] BakeError),
    /// A checkpoint or an archive is damaged.
    #[error(transparent)]
    Archive(#[from] irpa::Error),
    /// The archive is not what the module reads.
    #[error("`{}` does not fit the module: parameter `{key}` is {found}, expected `{expected}`", .path.display())]
    Parameter {
        /// The archive.
        path: PathBuf,
        /// The key.
        key: String,
        /// What the module declares.
        expected: String,
        /// What the archive has.
        found: String,
    },
    /// A file or folder cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// The watcher asked to stop.
    #[error("stopped on request")]
    Stopped,
    /// The compiler failed.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// IREE refuses the module.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
}

/// Lowers the trace of a network's entry points, bakes and compiles what the cache lacks, and loads it.
///
/// # Errors
/// Everything in which the checkpoint differs from what the trace asks for, before anything slow begins; or the
/// first stage that fails.
pub fn load(traced: &Traced, checkpoint: &Checkpoint, options: LoadOptions<'_>) -> Result<Loaded, LoadError> {
    let LoadOptions { compiler, cache, target, rules, weights, device, memory, ignorable, watch } = options;
    let mut silent = |_| ControlFlow::Continue(());
    let watch: WatchSteps<'_> = watch.unwrap_or(&mut silent);
    let target = compiler.resolve(&target)?;
    let expanded = Expanded::new(&traced.trace, rules, &target, weights)?;
    // Before the text is written: the tables of a context that cannot fit would not fit either.
    let footprint = Footprint::of(&expanded, &target).map_err(LowerError::from)?;
    memory.map_or(Ok(()), |memory| footprint.check(memory))?;
    let lowered = expanded.lower(&target, ignorable)?;
    lowered.check(checkpoint, &traced.trace)?;
    let (archive, baked) = archive(checkpoint, &lowered, cache, watch)?;
    let module = lowered.module;
    tell(watch, Step::Compile)?;
    let compiled = compile(&module, compiler, &compile_options(&module, compiler, &target)?, cache)?;
    tell(watch, Step::Load)?;
    let start = Instant::now();
    let runtime = Runtime::new(device)?;
    let program = program(&runtime, &compiled.vmfb, &archive, &module.parameters)?;
    let program = Program::new(&runtime, program, module.signatures.clone());
    Ok(Loaded { program, runtime, module, archive, baked, compile: compiled.wall, load: start.elapsed() })
}

fn tell(watch: WatchSteps<'_>, step: Step) -> Result<(), LoadError> {
    match watch(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(LoadError::Stopped),
    }
}

/// How a module is best compiled for a target.
///
/// # Errors
/// If the compiler does not know the target.
pub fn compile_options(
    module: &Module,
    compiler: &Compiler,
    target: &Target,
) -> Result<CompileOptions, CompileError> {
    // Most of the time goes into products with the largest weights.
    let largest = module.parameters.iter().max_by_key(|p| p.ty.bytes());
    compiler.options(
        target,
        largest.map_or(ElementType::F32, |p| p.ty.element),
        largest.is_some_and(Parameter::is_packed),
    )
}

/// Compiles a module, or takes it from the cache.
///
/// # Errors
/// If the compiler fails.
pub fn compile(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
    cache: &Path,
) -> Result<Compiled, CompileError> {
    let module = runtime::Module { text: &module.text, text_without_locs: &module.text_without_locs };
    runtime::compile(compiler, &module, options, &Cache::new(cache.join("modules")))
}

/// The archive of a checkpoint that has been checked, baked once and kept in the cache.
fn archive(
    checkpoint: &Checkpoint,
    lowered: &Lowered,
    cache: &Path,
    watch: WatchSteps<'_>,
) -> Result<(Archive, Option<Baked>), LoadError> {
    let folder = cache.join("archives");
    fs::create_dir_all(&folder).with_path("create", &folder)?;
    let path = folder.join(format!("{}.irpa", archive_key(checkpoint, &lowered.module.parameters)?));
    if let Ok(archive) = Archive::open(&path) {
        return Ok((archive, None));
    }
    let mut watch = |progress| watch(Step::Bake(progress));
    let options = BakeOptions { watch: Some(&mut watch), ..BakeOptions::default() };
    let baked = lowered.bake(checkpoint, &path, options)?;
    Ok((Archive::open(&path)?, Some(baked)))
}

/// Which archive belongs to a checkpoint: its files by path, size and time of change, and what is read from them.
/// Hashing gigabytes of weights at every start would take longer than loading them.
fn archive_key(checkpoint: &Checkpoint, parameters: &[Parameter]) -> Result<String, LoadError> {
    let mut hasher = blake3::Hasher::new();
    for file in checkpoint.files() {
        let path = file.canonicalize().with_path("read", file)?;
        let metadata = path.metadata().with_path("read", file)?;
        let changed = metadata.modified().with_path("read", file)?;
        let changed = changed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        hasher.update(format!("{}\0{}\0{}\0", path.display(), metadata.len(), changed.as_nanos()).as_bytes());
    }
    for parameter in parameters {
        let mut recipe = String::new();
        parameter.recipe.iter().for_each(|made| made.print(&mut recipe));
        hasher.update(format!("{}\0{}\0{recipe}\0", parameter.key, parameter.ty).as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// The parameters of an archive, mapped: nothing is copied.
///
/// # Errors
/// If the archive lacks a parameter, or has it with another type: IREE would not notice.
pub fn map_parameters<'a>(
    archive: &Archive,
    expected: impl Iterator<Item = (&'a str, String)>,
) -> Result<Parameters, LoadError> {
    for (key, expected) in expected {
        let found = archive.get(key).map(|entry| entry.ty.as_ref().map(TensorType::to_string));
        let found = match found {
            Some(Some(found)) if found == expected => continue,
            Some(Some(found)) => format!("`{found}`"),
            Some(None) => "of no known type".into(),
            None => "missing".into(),
        };
        return Err(LoadError::Parameter { path: archive.path().into(), key: key.into(), expected, found });
    }
    let entry = |entry: &irpa::Entry| {
        let storage = match &entry.storage {
            Storage::Data(range) => Entry::Range(range.clone()),
            Storage::Splat { pattern, length } => Entry::Splat { pattern: pattern.clone(), length: *length },
        };
        (entry.name.clone(), storage)
    };
    Ok(Parameters {
        scope: "model".into(),
        bytes: archive.bytes(),
        entries: archive.entries().iter().map(entry).collect(),
    })
}

/// Loads a compiled module with its archive.
///
/// # Errors
/// If they do not fit each other, or IREE refuses the module.
pub fn program(
    runtime: &Runtime,
    vmfb: &[u8],
    archive: &Archive,
    parameters: &[trace::Parameter],
) -> Result<runtime::Program, LoadError> {
    let expected = parameters.iter().map(|p| (p.key.as_str(), p.ty.to_string()));
    Ok(runtime::Program::load(runtime, vmfb, &[map_parameters(archive, expected)?])?)
}
