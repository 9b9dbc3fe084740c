//! From a trace and a checkpoint to a program that can be called. [`build_program`] does all of it; [`Build`] is for callers
//! that stop in between, such as an export. The cache keeps compiled modules and archives.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bake::{BakeError, BakeOptions, Baked, Checked, Ignorable};
use dsl::Traced;
use errors::{FileError, WithPath as _};
use irpa::{Archive, Checkpoint, EntryData};
use lower::{LowerError, Module, Weights};
use ops::{ElementType, TensorType};
use runtime::{
    CompileError, CompileOptions, Compiled, Compiler, Device, ModuleCache, ParameterData, Parameters,
    Runtime, VmModule,
};
use simplify::Rules;
use targets::{DeviceKind, Target};
use trace::{Parameter, Trace};

use crate::footprint::TooLarge;
use crate::{Expanded, Footprint, Lowered, Memory, Program};

/// What builds, and who watches.
pub struct BuildTools<'a> {
    /// `iree-compile`.
    pub compiler: &'a Compiler,
    /// The folder for what can be made again, by content: compiled modules and archives.
    pub cache: &'a Path,
    /// Watches, and stops on request.
    pub watch: Option<WatchSteps<'a>>,
}

/// Is told what is being done, and may ask to stop.
pub type WatchSteps<'a> = &'a mut dyn FnMut(BuildStep) -> ControlFlow<()>;

/// What takes long.
#[derive(Clone, Copy, Debug)]
pub enum BuildStep {
    /// The module is compiled.
    Compile,
    /// The archive is written.
    Bake(irpa::Progress),
    /// The network is loaded, which takes no time worth telling.
    Load,
    /// The weights are compared with their hashes.
    Verify(irpa::Progress),
}

/// How [`build_program`] builds.
///
/// ```no_run
/// use std::path::Path;
///
/// use tracewright::irpa::Checkpoint;
/// use tracewright::build::{ProgramOptions, build_program};
/// use tracewright::models::ModelConfig;
/// use tracewright::runtime::{Compiler, Device};
/// use tracewright::Plan;
///
/// let folder = Path::new("demo");
/// let plan = Plan::new(Box::new(ModelConfig::read(folder, &[])?), None, None, None)?;
/// let compiler = Compiler::new("iree-compile"); // the one on PATH
/// let options = ProgramOptions { device: Device::LocalSync, ..ProgramOptions::new(&compiler, Path::new("cache")) };
/// let built = build_program(&plan.trace()?, &plan.named(Checkpoint::open(folder)?), options)?;
/// println!("context {}", built.program.network()?.context());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ProgramOptions<'a> {
    /// What builds, and who watches.
    pub tools: BuildTools<'a>,
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
}

impl<'a> ProgramOptions<'a> {
    /// This compiler and this folder for what can be made again, and for the rest the usual choices.
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
        }
    }
}

/// A program, what it is made of, and how long that took.
pub struct BuiltProgram {
    /// The program.
    pub program: Program,
    /// The device that it runs on.
    pub runtime: Runtime,
    /// The module it was compiled from.
    pub module: Module,
    /// How it was compiled.
    pub options: CompileOptions,
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
    Archive(#[from] irpa::ArchiveError),
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
    Runtime(#[from] runtime::RuntimeError),
}

/// Lowers the trace of a network's entry points, compiles and bakes what the cache lacks, and loads it.
///
/// # Errors
/// Everything in which the checkpoint differs from what the trace asks for, before anything slow begins; or the
/// first stage that fails.
pub fn build_program(
    traced: &Traced,
    checkpoint: &Checkpoint,
    options: ProgramOptions<'_>,
) -> Result<BuiltProgram, LoadError> {
    let ProgramOptions { tools, target, rules, weights, device, memory, ignorable } = options;
    let target = tools.compiler.resolve(&target)?;
    // What another device holds is not held here.
    let memory = memory.filter(|_| target.device == DeviceKind::Cpu);
    let expanded = Expanded::new(&traced.trace, rules, target, weights)?;
    // Before the text is written: the tables of a context that cannot fit would not fit either.
    let footprint = Footprint::of(&expanded).map_err(LowerError::from)?;
    memory.map_or(Ok(()), |memory| footprint.check(memory))?;
    let lowered = expanded.lower(ignorable)?;
    let mut build = Build::new(lowered, &traced.trace, checkpoint, tools)?;
    let (archive, baked) = build.cached_archive()?;
    let start = Instant::now();
    let runtime = Runtime::new(device)?;
    let program = build.instantiate(&runtime, &archive)?;
    let module = build.lowered.module;
    let program = Program::new(&runtime, program, module.signatures.clone());
    Ok(BuiltProgram {
        program,
        runtime,
        module,
        options: build.options,
        archive,
        baked,
        compile: build.compiled.wall,
        load: start.elapsed(),
    })
}

/// A network whose checkpoint fits and whose module is compiled.
pub struct Build<'a, 't> {
    /// What is compiled.
    pub lowered: Lowered,
    /// How it was compiled.
    pub options: CompileOptions,
    /// What became of it.
    pub compiled: Compiled,
    checkpoint: &'a Checkpoint,
    /// What the checkpoint holds beside exactly what the network reads.
    checked: Checked,
    tools: BuildTools<'t>,
}

impl<'a, 't> Build<'a, 't> {
    /// Compares the checkpoint with what the network reads, and compiles the module or takes it from the cache.
    /// `recorded` is the trace that was lowered.
    ///
    /// # Errors
    /// Everything in which the checkpoint differs, before anything slow begins; or why the module does not compile.
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

    /// Writes the archive at `path`.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn bake(&mut self, path: &Path) -> Result<(Archive, Baked), LoadError> {
        let tools = &mut self.tools;
        let mut watch = |progress| tools.watch(BuildStep::Bake(progress));
        let options = BakeOptions { watch: Some(&mut watch), ..BakeOptions::default() };
        let parameters = &self.lowered.module.parameters;
        let baked = bake::write(self.checkpoint, parameters, self.checked.clone(), path, options)?;
        Ok((Archive::open(path)?, baked))
    }

    /// The archive, baked once and kept in the cache; and what the bake did, if there was one.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn cached_archive(&mut self) -> Result<(Archive, Option<Baked>), LoadError> {
        let folder = self.tools.cache.join("archives");
        fs::create_dir_all(&folder).with_path("create", &folder)?;
        let key = archive_key(self.checkpoint, &self.lowered.module.parameters)?;
        let path = folder.join(format!("{key}.irpa"));
        if let Ok(archive) = Archive::open(&path) {
            return Ok((archive, None));
        }
        if path.is_file() {
            // Damaged, and so of no kind that would be replaced. What cannot be removed is said where it is written.
            let _ = fs::remove_file(&path);
        }
        self.bake(&path).map(|(archive, baked)| (archive, Some(baked)))
    }

    /// Loads the module with its archive.
    ///
    /// # Errors
    /// If they do not fit each other, or IREE refuses the module.
    pub fn instantiate(&mut self, runtime: &Runtime, archive: &Archive) -> Result<VmModule, LoadError> {
        self.tools.tell(BuildStep::Load)?;
        instantiate(&self.lowered.module, runtime, &self.compiled.vmfb, archive)
    }
}

/// How a lowered network is best compiled.
///
/// # Errors
/// If the compiler does not know the target.
pub fn compile_options(lowered: &Lowered, compiler: &Compiler) -> Result<CompileOptions, CompileError> {
    // Most of the time goes into matmuls with the largest weights.
    let largest = lowered.module.parameters.iter().max_by_key(|p| p.ty.bytes());
    let element = largest.map_or(ElementType::F32, |p| p.ty.element);
    compiler.options(&lowered.target, element, largest.is_some_and(Parameter::is_packed))
}

/// Loads a compiled module with its archive.
///
/// # Errors
/// If they do not fit each other, or IREE refuses the module.
pub fn instantiate(
    module: &Module,
    runtime: &Runtime,
    vmfb: &[u8],
    archive: &Archive,
) -> Result<VmModule, LoadError> {
    let expected = module.parameters.iter().map(|p| (p.key.as_str(), p.ty.to_string()));
    Ok(VmModule::load(runtime, vmfb, &[map_parameters(archive, expected)?])?)
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
    let text = runtime::ModuleText { text: &module.text, text_without_locs: &module.text_without_locs };
    runtime::compile(compiler, &text, options, &ModuleCache::new(cache.join("modules")))
}

impl<'a> BuildTools<'a> {
    /// A compiler and a cache, and nobody who watches.
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

/// Which archive belongs to a checkpoint: its files, and what is read from them. A file is known by its path, its size
/// and the time of its change, and on Unix by what no rewriting keeps: its number and the time at which the system saw it
/// change. Hashing gigabytes of weights at every start would take longer than loading them.
fn archive_key(checkpoint: &Checkpoint, parameters: &[Parameter]) -> Result<String, LoadError> {
    let mut hasher = blake3::Hasher::new();
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
