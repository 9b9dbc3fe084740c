//! Builds a callable program from a trace and a checkpoint. [`build_program`] runs all stages of a
//! build. [`Build`] runs the stages of a build one by one, for callers that need only some stages,
//! for example to export a model. A cache folder keeps compiled modules and archives of weights.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use bake::{BakeError, BakeOptions, Baked, Checked};
use dsl::Traced;
use errors::{FileError, WithPath as _};
use generate::Iree;
use irpa::{Archive, Checkpoint, EntryData};
use lower::{LowerError, Module, Weights};
use ops::format::ROUNDING;
use ops::{ElementType, TensorType};
use runtime::{
    CompileError, CompileOptions, Compiled, Compiler, Device, ModuleCache, ModuleText, ParameterData,
    Parameters, Runtime, VmModule,
};
use simplify::Rules;
use targets::{DeviceKind, Target};
use trace::{Ignorable, Parameter, Trace};

use crate::footprint::TooLarge;
use crate::later::{Compiling, load_later};
use crate::{Expanded, Footprint, Lowered, Memory, Program};

/// The compiler and the cache folder of a build, and a function that receives each step of the build.
pub struct BuildTools<'a> {
    pub compiler: &'a Compiler,
    /// For modules and archives, each named by a hash of what it is created from. You can delete it at any
    /// time.
    pub cache: &'a Path,
    pub watch: Option<WatchSteps<'a>>,
}

/// [`ControlFlow::Break`] stops the build.
pub type WatchSteps<'a> = &'a mut dyn FnMut(BuildStep) -> ControlFlow<()>;

#[derive(Clone, Copy, Debug)]
pub enum BuildStep {
    /// Tracewright downloads a model from the Hugging Face hub.
    Download(irpa::Progress),
    Compile,
    Bake(irpa::Progress),
    /// IREE loads the module. Loading a module takes little time.
    Load,
    /// Tracewright compares the weights with the hashes in the archive.
    Verify(irpa::Progress),
}

pub struct ProgramOptions<'a> {
    /// The compiler and the cache folder of the build, and the function that receives each step of the build.
    pub tools: BuildTools<'a>,
    /// By default, this machine.
    pub target: Target,
    /// By default, only rules that keep every bit of the results.
    pub rules: Rules,
    /// By default, kernels compute matmuls, and weights have the network's element type.
    pub weights: Weights,
    /// By default, all threads of this machine's processor.
    pub device: Device,
    /// A limit for the network; by default, the memory that this process may use.
    pub memory: Option<Memory>,
    /// Tensors that the checkpoint may contain beside the network's parameters; by default none.
    pub ignorable: Vec<Ignorable>,
    /// Whether the program starts as soon as it can compute one token per call, if this changes no bit of its
    /// results. A thread compiles the other entry points. By default, the program starts with all of them.
    pub starts_early: bool,
}

impl<'a> ProgramOptions<'a> {
    pub fn new(compiler: &'a Compiler, cache: &'a Path) -> Self {
        BuildTools::new(compiler, cache).into()
    }
}

impl<'a> From<BuildTools<'a>> for ProgramOptions<'a> {
    fn from(tools: BuildTools<'a>) -> Self {
        Self {
            tools,
            target: Target::host(),
            rules: Rules::default(),
            weights: Weights::default(),
            device: Device::LocalTask { workers: 0 },
            memory: Memory::of_machine(),
            ignorable: Vec::new(),
            starts_early: false,
        }
    }
}

pub struct BuiltProgram {
    pub program: Program,
    pub runtime: Runtime,
    /// The lowered module, whose StableHLO text the compiler has compiled.
    pub module: Module,
    pub options: CompileOptions,
    pub archive: Archive,
    /// Statistics about writing the archive, or `None` if the archive was already in the cache.
    pub baked: Option<Baked>,
    /// Or for reading the module from the cache.
    pub compile: Duration,
    pub load: Duration,
}

/// The reason why a network cannot be built or loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The network needs more memory than the machine has.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The tensors of the checkpoint differ from the parameters that the trace declares.
    #[error(transparent)]
    Bake(#[from] BakeError),
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
    #[error("`{}` does not fit the module: the parameter `{key}` is {found}, expected `{expected}`", .path.display())]
    Parameter {
        path: PathBuf,
        key: String,
        /// The parameter's element type and shape that the module declares.
        expected: String,
        found: String,
    },
    #[error(transparent)]
    File(#[from] FileError),
    /// By the function that receives the steps.
    #[error("the build was stopped on request")]
    Stopped,
    /// The operating system cannot start a thread for the compilation.
    #[error("the system cannot start a thread")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// IREE rejects the module, or a device fails.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
}

/// Lowers a trace and loads the program, from the cache as far as it can. Fails before the slow compilation
/// if checkpoint and parameters differ, with all differences.
pub fn build_program(
    traced: &Traced,
    checkpoint: &Checkpoint,
    options: ProgramOptions<'_>,
) -> Result<BuiltProgram, LoadError> {
    let ProgramOptions { tools, target, rules, weights, device, memory, ignorable, starts_early } = options;
    let target = tools.compiler.resolve(&target)?;
    // The memory check considers only host memory, and a device with its own memory does not use
    // host memory.
    let memory = memory.filter(|_| target.device == DeviceKind::Cpu);
    let expanded = Expanded::new(&traced.trace, rules, target, weights)?;
    // The memory check runs before the module's text is written, because the text contains tables
    // that would not fit into memory for a very long context.
    let footprint = Footprint::of(&expanded).map_err(LowerError::from)?;
    memory.map_or(Ok(()), |memory| footprint.check(memory))?;
    let lowered = expanded.lower(ignorable)?;
    let (compiler, cache) = (tools.compiler, tools.cache);
    let options = compile_options(&lowered, compiler)?;
    // A program that packs its weights when it starts would keep a copy of them for each module.
    let apart = if starts_early && !options.tiled { expanded.apart()? } else { None };
    let mut apart = apart.unwrap_or_default().into_iter();
    let first = apart.next();
    let (mut build, (archive, baked)) =
        Build::with_cached_archive(lowered, first.as_ref(), &traced.trace, checkpoint, tools)?;
    let start = Instant::now();
    let runtime = Runtime::new(device)?;
    let program = build.instantiate(&runtime, &archive)?;
    let mut executor = Iree::new(&runtime, &program)?;
    if first.is_some() {
        let parameters = parameters_of(&build.lowered.module, &archive)?;
        let (ready, compiling) = compile_later(apart, compiler, &options, cache)?;
        executor = executor.with_later(load_later(ready, compiling, runtime.clone(), parameters));
    }
    let module = build.lowered.module;
    Ok(BuiltProgram {
        program: Program::on_iree(executor, module.signatures.clone()),
        runtime,
        module,
        options: build.options,
        archive,
        baked,
        compile: build.compiled.wall,
        load: start.elapsed(),
    })
}

/// A network after two stages of a build: the checkpoint is checked, and the module is compiled.
pub struct Build<'a, 't> {
    /// The StableHLO text of the module, and the list of the module's weights.
    pub lowered: Lowered,
    pub options: CompileOptions,
    pub compiled: Compiled,
    checkpoint: &'a Checkpoint,
    /// The tensors of the checkpoint, matched with the parameters of the network.
    checked: Checked,
    tools: BuildTools<'t>,
}

impl<'a, 't> Build<'a, 't> {
    /// `recorded` is the trace before lowering. Fails before the slow compilation if checkpoint and
    /// parameters differ, with all differences.
    pub fn new(
        lowered: Lowered,
        recorded: &Trace,
        checkpoint: &'a Checkpoint,
        mut tools: BuildTools<'t>,
    ) -> Result<Self, LoadError> {
        let checked = lowered.check(checkpoint, recorded)?;
        tools.tell(BuildStep::Compile)?;
        let options = compile_options(&lowered, tools.compiler)?;
        let compiled = compile(&lowered.module, tools.compiler, &options, tools.cache)?;
        Ok(Self { lowered, options, compiled, checkpoint, checked, tools })
    }

    /// Converts the checkpoint's weights.
    pub fn bake(&mut self, path: &Path) -> Result<(Archive, Baked), LoadError> {
        let tools = &mut self.tools;
        let mut watch = |progress| tools.watch(BuildStep::Bake(progress));
        let parameters = &self.lowered.module.parameters;
        let baked = write_archive(self.checkpoint, parameters, self.checked.clone(), path, &mut watch)?;
        Ok((Archive::open(path)?, baked))
    }

    /// Like [`new`](Self::new), but bakes into the cache at the same time. Instead of the whole module, compiles
    /// `first`, which has some of its entry points. No statistics if the archive was there.
    pub fn with_cached_archive(
        lowered: Lowered,
        first: Option<&Module>,
        recorded: &Trace,
        checkpoint: &'a Checkpoint,
        mut tools: BuildTools<'t>,
    ) -> Result<(Self, (Archive, Option<Baked>)), LoadError> {
        let checked = lowered.check(checkpoint, recorded)?;
        tools.tell(BuildStep::Compile)?;
        let (stop, has_failed) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
        let (compiler, cache) = (tools.compiler.stopped_by(stop.clone()), tools.cache);
        let options = compile_options(&lowered, &compiler)?;
        let parameters = &lowered.module.parameters;
        let (compiled, archive) = thread::scope(|scope| {
            let compiling = thread::Builder::new().name("compile".into()).spawn_scoped(scope, || {
                let compiled = compile(first.unwrap_or(&lowered.module), &compiler, &options, cache);
                has_failed.store(compiled.is_err(), Ordering::Relaxed);
                compiled
            });
            let compiling = compiling.map_err(LoadError::Thread)?;
            let archive = cached_archive(checkpoint, parameters, cache, |path| {
                let mut watch = |progress| {
                    if has_failed.load(Ordering::Relaxed) {
                        ControlFlow::Break(())
                    } else {
                        tools.watch(BuildStep::Bake(progress))
                    }
                };
                write_archive(checkpoint, parameters, checked.clone(), path, &mut watch)
            });
            // The progress of writing has replaced the message that the compilation runs.
            let is_baked = matches!(archive, Ok((_, Some(_))));
            let told =
                if is_baked && !compiling.is_finished() { tools.tell(BuildStep::Compile) } else { Ok(()) };
            let archive = told.and(archive);
            stop.store(archive.is_err(), Ordering::Relaxed);
            let compiled = compiling.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok::<_, LoadError>((compiled, archive))
        })?;
        let (compiled, archive) = match (compiled, archive) {
            // An error of the archive has stopped the compilation.
            (Err(CompileError::Interrupted), Err(error)) => return Err(error),
            (Err(error), _) => return Err(error.into()),
            (Ok(compiled), archive) => (compiled, archive?),
        };
        Ok((Self { lowered, options, compiled, checkpoint, checked, tools }, archive))
    }

    pub fn instantiate(&mut self, runtime: &Runtime, archive: &Archive) -> Result<VmModule, LoadError> {
        self.tools.tell(BuildStep::Load)?;
        instantiate(&self.lowered.module, runtime, &self.compiled.vmfb, archive)
    }
}

fn write_archive(
    checkpoint: &Checkpoint,
    parameters: &[Parameter],
    checked: Checked,
    path: &Path,
    watch: irpa::Watch<'_>,
) -> Result<Baked, LoadError> {
    let options = BakeOptions { watch: Some(watch), ..BakeOptions::default() };
    Ok(bake::write(checkpoint, parameters, checked, path, options)?)
}

pub fn compile_options(lowered: &Lowered, compiler: &Compiler) -> Result<CompileOptions, CompileError> {
    // The options fit the largest weight, because matmuls with the largest weights take most of the
    // time.
    let largest = lowered.module.parameters.iter().max_by_key(|p| p.ty.bytes());
    let element = largest.map_or(ElementType::F32, |p| p.ty.element);
    compiler.options(&lowered.target, element, largest.is_some_and(Parameter::is_packed))
}

/// Loads a compiled module together with the archive of the module's weights.
pub fn instantiate(
    module: &Module,
    runtime: &Runtime,
    vmfb: &[u8],
    archive: &Archive,
) -> Result<VmModule, LoadError> {
    Ok(VmModule::load(runtime, vmfb, &[parameters_of(module, archive)?])?)
}

fn parameters_of(module: &Module, archive: &Archive) -> Result<Parameters, LoadError> {
    map_parameters(archive, module.parameters.iter().map(|p| (p.key.as_str(), p.ty.to_string())))
}

pub fn compile(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
    cache: &Path,
) -> Result<Compiled, CompileError> {
    runtime::compile(compiler, &text(module), options, &ModuleCache::new(cache.join("modules")))
}

/// Returns the modules that the cache has, and a thread that compiles the others.
fn compile_later(
    modules: impl Iterator<Item = Module>,
    compiler: &Compiler,
    options: &CompileOptions,
    cache: &Path,
) -> Result<(VecDeque<Compiled>, Option<Compiling>), LoadError> {
    let folder = ModuleCache::new(cache.join("modules"));
    let (mut ready, mut missing) = (VecDeque::new(), Vec::new());
    for module in modules {
        match runtime::compiled_before(compiler, &text(&module), options, &folder)? {
            Some(compiled) => ready.push_back(compiled),
            None => missing.push(module),
        }
    }
    if missing.is_empty() {
        return Ok((ready, None));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let (compiler, options, cache) = (compiler.stopped_by(stop.clone()), options.clone(), cache.to_owned());
    let compiling =
        Compiling::start(missing, stop, move |module| compile(module, &compiler, &options, &cache));
    Ok((ready, Some(compiling.map_err(LoadError::Thread)?)))
}

fn text(module: &Module) -> ModuleText<'_> {
    ModuleText { text: &module.text, text_without_locs: &module.text_without_locs }
}

impl<'a> BuildTools<'a> {
    pub fn new(compiler: &'a Compiler, cache: &'a Path) -> Self {
        Self { compiler, cache, watch: None }
    }

    fn watch(&mut self, step: BuildStep) -> ControlFlow<()> {
        self.watch.as_mut().map_or(ControlFlow::Continue(()), |watch| watch(step))
    }

    fn tell(&mut self, step: BuildStep) -> Result<(), LoadError> {
        match self.watch(step) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LoadError::Stopped),
        }
    }
}

/// Calls `bake` if the archive is missing, and returns its statistics.
pub fn cached_archive(
    checkpoint: &Checkpoint,
    parameters: &[Parameter],
    cache: &Path,
    bake: impl FnOnce(&Path) -> Result<Baked, LoadError>,
) -> Result<(Archive, Option<Baked>), LoadError> {
    let folder = cache.join("archives");
    fs::create_dir_all(&folder).with_path("create", &folder)?;
    let path = folder.join(format!("{}.irpa", archive_key(checkpoint, parameters)?));
    if let Ok(archive) = Archive::open(&path) {
        return Ok((archive, None));
    }
    if path.is_file() {
        // A damaged archive is replaced. If the damaged file cannot be removed, writing the new file reports
        // the error.
        let _ = fs::remove_file(&path);
    }
    let baked = bake(&path)?;
    Ok((Archive::open(&path)?, Some(baked)))
}

/// A hash of parameters, of adapters' changes, and of files: by path, size, modification time, and on Unix inode and
/// change time. One of them changes when a file is rewritten. Hashing gigabytes at every start would take longer than
/// loading them.
fn archive_key(checkpoint: &Checkpoint, parameters: &[Parameter]) -> Result<String, LoadError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&ROUNDING.to_le_bytes());
    for file in checkpoint.files() {
        let path = file.canonicalize().with_path("read", file)?;
        let metadata = path.metadata().with_path("read", file)?;
        let changed = metadata.modified().with_path("read", file)?;
        let changed = changed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        hasher.update(format!("{}\0{}\0{}\0", path.display(), metadata.len(), changed.as_nanos()).as_bytes());
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            let seen =
                [metadata.dev(), metadata.ino(), metadata.ctime() as u64, metadata.ctime_nsec() as u64];
            for number in seen {
                hasher.update(&number.to_le_bytes());
            }
        }
    }
    hasher.update(checkpoint.changes().as_bytes());
    for parameter in parameters {
        let mut recipe = String::new();
        parameter.recipe.iter().for_each(|made| made.print(&mut recipe));
        hasher.update(format!("{}\0{}\0{recipe}\0", parameter.key, parameter.ty).as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Without a copy. Names and types are compared, because IREE would not detect a missing parameter or a wrong
/// type.
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
        let storage = match &entry.data {
            EntryData::Range(range) => ParameterData::Range(range.clone()),
            EntryData::Splat { pattern, length } => {
                ParameterData::Splat { pattern: pattern.clone(), length: *length }
            }
        };
        (entry.name.clone(), storage)
    };
    Ok(Parameters {
        scope: "model".into(),
        bytes: archive.bytes(),
        entries: archive.entries().iter().map(entry).collect(),
    })
}
