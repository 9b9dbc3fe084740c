//! From a trace and a checkpoint to a network that can be called. What was made before is taken from a folder.

use std::path::Path;
use std::time::{Duration, Instant};

use bake::{Baked, Ignorable};
use dsl::Traced;
use irpa::{Archive, Checkpoint};
use lower::{LowerError, Module, Weights};
use runtime::{CompileOptions, Compiler, Device, Runtime};
use simplify::Rules;
use targets::{DeviceKind, Target};

use crate::build::{Build, BuildTools};
use crate::footprint::{Footprint, Memory};
use crate::{Expanded, Program};

pub use crate::build::LoadError;

/// How [`load`] builds.
///
/// ```no_run
/// use std::path::Path;
///
/// use tracewright::irpa::Checkpoint;
/// use tracewright::load::{LoadOptions, load};
/// use tracewright::models::ModelConfig;
/// use tracewright::runtime::{Compiler, Device};
/// use tracewright::Plan;
///
/// let folder = Path::new("demo");
/// let plan = Plan::new(Box::new(ModelConfig::read(folder, &[])?), None, None, None)?;
/// let compiler = Compiler::new("iree-compile"); // the one on PATH
/// let options = LoadOptions { device: Device::LocalSync, ..LoadOptions::new(&compiler, Path::new("cache")) };
/// let loaded = load(&plan.trace()?, &plan.named(Checkpoint::open(folder)?), options)?;
/// println!("context {}", loaded.program.network()?.context());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LoadOptions<'a> {
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

impl<'a> LoadOptions<'a> {
    /// This compiler and this folder for what can be made again, and for the rest the usual choices.
    pub fn new(compiler: &'a Compiler, cache: &'a Path) -> Self {
        BuildTools::new(compiler, cache).into()
    }
}

impl<'a> From<BuildTools<'a>> for LoadOptions<'a> {
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
pub struct Loaded {
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

/// Lowers the trace of a network's entry points, compiles and bakes what the cache lacks, and loads it.
///
/// # Errors
/// Everything in which the checkpoint differs from what the trace asks for, before anything slow begins; or the
/// first stage that fails.
pub fn load(traced: &Traced, checkpoint: &Checkpoint, options: LoadOptions<'_>) -> Result<Loaded, LoadError> {
    let LoadOptions { tools, target, rules, weights, device, memory, ignorable } = options;
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
    let program = build.load(&runtime, &archive)?;
    let module = build.lowered.module;
    let program = Program::new(&runtime, program, module.signatures.clone());
    Ok(Loaded {
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
