//! Builds programs that XLA runs. A PJRT plugin contains XLA.

mod executables;
mod plugin;

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bake::BakeOptions;
use files::ModuleCache;
use generate::{Xla, XlaFunction};
use irpa::{Archive, Checkpoint};
use lower::{Sharding, Shards};
use pjrt::{Client, PjrtBuffer, Placement, XlaOptions};
use targets::{DeviceKind, DeviceName};
use trace::{Ignorable, Parameter, Signature, Trace};

use crate::build::{BuildStep, LoadError, WatchSteps, cached_archive};
use crate::export::xla::{XlaError, XlaProgram};
use crate::model::ModelError;
use crate::{DevicePartition, Expanded, Footprint, Memory, PlanError, Program};
use executables::Executables;

pub(crate) use plugin::StartedPlugins;
pub use plugin::XlaPlugin;

/// The CPU backend converts bf16 weights to f32 before a matmul. Its default scheduler converts those of all
/// layers first, which takes twice their memory; this one converts each shortly before.
const CPU_SETTINGS: [(&str, &str); 1] = [("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED")];

/// The devices and the cache folder of a build for XLA, and a function that receives each step of the build.
pub struct XlaTools<'a> {
    /// The plugin, which the caller must start with enough devices for the network.
    pub plugin: &'a XlaPlugin,
    /// By default, the first one. A mesh begins with it.
    pub device: Option<DeviceName>,
    /// The cache folder for executables, and for archives of computed weights.
    pub cache: &'a Path,
    /// Can stop the build.
    pub watch: Option<WatchSteps<'a>>,
}

/// A program that XLA has compiled, and statistics about the build.
pub struct BuiltXla {
    /// The compiled program, ready for calls.
    pub program: Program,
    /// The time for compiling the modules, or for reading the executables from the cache.
    pub compile: Duration,
    /// The time for copying the weights to the devices.
    pub load: Duration,
    /// The weights of all entry points, in the formats in which the devices store the weights.
    pub parameters: Vec<Parameter>,
    /// Computed weights; `None` if the checkpoint has all in the right format.
    pub archive: Option<Archive>,
    /// The partitioning of tensors over the mesh, or `None` if there is no mesh.
    pub shards: Option<Shards>,
}

/// Checkpoint checked, modules lowered to text; needs no plugin.
pub struct XlaBuild<'a> {
    program: XlaProgram,
    expanded: &'a Expanded,
    checkpoint: &'a Checkpoint,
    ignorable: Vec<Ignorable>,
}

impl<'a> XlaBuild<'a> {
    /// `expanded` is [for XLA](crate::export::xla::planned), and `shards` partitions it over a mesh. Tensors
    /// of `checkpoint` have the network's names; `ignorable` may be there, too.
    ///
    /// # Errors
    /// If the checkpoint does not match the trace, the error lists all differences.
    pub fn new(
        expanded: &'a Expanded,
        recorded: &Trace,
        shards: Option<Shards>,
        checkpoint: &'a Checkpoint,
        mut ignorable: Vec<Ignorable>,
    ) -> Result<Self, ModelError> {
        let program = XlaProgram::new(expanded, shards)?;
        let declared = recorded.parameters().map_err(PlanError::from)?;
        ignorable.extend(bake::unread(&declared, &program.parameters));
        bake::check(checkpoint, &program.parameters, &ignorable)
            .map_err(|refused| XlaError::from(refused.declared_in(recorded)))?;
        Ok(Self { program, expanded, checkpoint, ignorable })
    }

    /// Copies the weights to the devices. Executables come from the cache if possible.
    ///
    /// # Errors
    /// Returns the error of the first stage that fails.
    pub fn build(self, tools: XlaTools<'_>) -> Result<BuiltXla, ModelError> {
        let Self { program, expanded, checkpoint, ignorable } = self;
        let XlaTools { plugin, device, cache, mut watch } = tools;
        let client = &plugin.client;
        let places = Places::new(client, device, program.shards.as_ref())?;
        if client.platform() == "cpu"
            && let Some(memory) = Memory::of_machine()
        {
            check_memory(expanded, program.shards.as_ref(), memory)?;
        }
        let start = Instant::now();
        let mut watch = |step| watch.as_mut().map_or(ControlFlow::Continue(()), |watch| watch(step));
        if watch(BuildStep::Compile).is_break() {
            return Err(LoadError::Stopped.into());
        }
        let settings = if client.platform() == "cpu" { &CPU_SETTINGS[..] } else { &[] };
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        let settings = XlaOptions { settings: settings.collect() };
        let stored = ModuleCache::new(cache.join("executables"));
        let executables = Executables::new(plugin, places.devices.clone(), &settings, stored)?;
        let mut compiled = Vec::new();
        for module in &program.modules {
            compiled.push(executables.get(module)?.returning(places.results(&module.signatures[0]))?);
        }
        let compile = start.elapsed();
        let start = Instant::now();
        let uploads = Uploads { client, places: &places, checkpoint, cache };
        let (weights, archive) = uploads.all(&program.parameters, ignorable, &mut watch)?;
        let mut functions = HashMap::new();
        for (module, executable) in program.modules.iter().zip(compiled) {
            let signature = &module.signatures[0];
            let weights =
                module.parameters.iter().filter_map(|p| weights.get(p.key.as_str()).cloned()).collect();
            let arguments = places.arguments(signature);
            let function = XlaFunction::new(executable, signature, arguments, weights);
            functions.insert(signature.name.clone(), function);
        }
        let signatures = program.modules.iter().flat_map(|module| module.signatures.clone()).collect();
        let loaded = Program::on_xla(Xla::new(client, functions), signatures);
        let XlaProgram { parameters, shards, .. } = program;
        Ok(BuiltXla { program: loaded, compile, load: start.elapsed(), parameters, archive, shards })
    }
}

/// Devices of the CPU platform share the machine's memory.
fn check_memory(expanded: &Expanded, shards: Option<&Shards>, memory: Memory) -> Result<(), ModelError> {
    let checked = match shards {
        Some(shards) => {
            let partition = DevicePartition::of(expanded, shards.clone()).map_err(PlanError::from)?;
            partition.check_together(memory)
        }
        None => Footprint::of(expanded).map_err(PlanError::from)?.check(memory),
    };
    Ok(checked.map_err(LoadError::from)?)
}

struct Places<'a> {
    devices: Range<usize>,
    /// The partitioning of tensors over a mesh, or `None` for a program on one device.
    shards: Option<&'a Shards>,
}

impl<'a> Places<'a> {
    /// Selects the devices of the mesh, or the single device that the options select.
    fn new(
        client: &Client,
        device: Option<DeviceName>,
        shards: Option<&'a Shards>,
    ) -> Result<Self, ModelError> {
        let first = ordinal(client, device)?;
        let count = shards.map_or(1, |shards| shards.mesh.devices());
        Ok(Self { devices: first..first + count, shards })
    }

    fn weight(&self, key: &str) -> Placement {
        self.place(self.shards.and_then(|shards| shards.weights.get(key)))
    }

    fn arguments(&self, entry: &Signature) -> Vec<Placement> {
        let shardings = self.shards.and_then(|shards| shards.entries.get(&entry.name));
        let argument = |at: usize| self.place(shardings.and_then(|entry| entry.arguments.get(at)));
        (0..entry.arguments.len()).map(argument).collect()
    }

    fn results(&self, entry: &Signature) -> Vec<Placement> {
        let shardings = self.shards.and_then(|shards| shards.entries.get(&entry.name));
        let result = |at: usize| self.place(shardings.and_then(|entry| entry.results.get(at)));
        (0..entry.results.len()).map(result).collect()
    }

    fn place(&self, sharding: Option<&Sharding>) -> Placement {
        match self.shards.zip(sharding) {
            Some((shards, Sharding(axes))) => Placement::new(&shards.mesh, axes),
            None => Placement::copies(self.devices.clone()),
        }
    }
}

/// The first one without a name.
fn ordinal(client: &Client, device: Option<DeviceName>) -> Result<usize, ModelError> {
    let Some(DeviceName { kind, ordinal }) = device else { return Ok(0) };
    let platform = match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Cuda => "cuda",
        DeviceKind::Hip => "rocm",
        DeviceKind::Vulkan | DeviceKind::Metal => "",
    };
    if client.platform() == platform {
        Ok(ordinal)
    } else {
        Err(ModelError::Platform { device: kind, platform: client.platform().to_owned() })
    }
}

type Weights<'a> = HashMap<&'a str, Rc<PjrtBuffer>>;

struct Uploads<'a> {
    client: &'a Client,
    places: &'a Places<'a>,
    checkpoint: &'a Checkpoint,
    cache: &'a Path,
}

impl Uploads<'_> {
    /// From the mapped file, or computed once into an archive in the cache, which is returned.
    fn all<'p>(
        &self,
        parameters: &'p [Parameter],
        mut ignorable: Vec<Ignorable>,
        watch: &mut dyn FnMut(BuildStep) -> ControlFlow<()>,
    ) -> Result<(Weights<'p>, Option<Archive>), ModelError> {
        let Self { client, places, checkpoint, cache } = *self;
        let (stored, made): (Vec<&Parameter>, Vec<_>) =
            parameters.iter().partition(|p| is_stored(checkpoint, p));
        let mut weights = HashMap::new();
        let mut put = |parameter: &'p Parameter, bytes: &[u8]| -> Result<(), ModelError> {
            let uploaded = client.upload(&places.weight(&parameter.key), &parameter.ty, bytes)?;
            weights.insert(parameter.key.as_str(), Rc::new(uploaded));
            Ok(())
        };
        for parameter in stored {
            checkpoint.read_once(&parameter.key, |bytes| put(parameter, bytes))??;
        }
        if made.is_empty() {
            return Ok((weights, None));
        }
        let computed: Vec<Parameter> = made.iter().copied().cloned().collect();
        ignorable.extend(bake::unread(parameters, &computed));
        let (archive, _) = cached_archive(checkpoint, &computed, cache, |path| {
            let mut watch = |progress| watch(BuildStep::Bake(progress));
            let options = BakeOptions { watch: Some(&mut watch), ..BakeOptions::default() };
            Ok(bake::bake(checkpoint, &computed, &ignorable, path, options)?)
        })?;
        for parameter in made {
            let missing = || LoadError::Parameter {
                path: archive.path().to_owned(),
                key: parameter.key.clone(),
                expected: parameter.ty.to_string(),
                found: "missing".into(),
            };
            archive.read_once(&parameter.key, |bytes| put(parameter, bytes))?.ok_or_else(missing)??;
        }
        Ok((weights, Some(archive)))
    }
}

fn is_stored(checkpoint: &Checkpoint, parameter: &Parameter) -> bool {
    let tensor = checkpoint.get(&parameter.key);
    parameter.recipe.is_none()
        && tensor.is_some_and(|tensor| {
            tensor.is_plain()
                && tensor.element() == Some(parameter.ty.element)
                && tensor.shape == parameter.ty.shape
        })
}
