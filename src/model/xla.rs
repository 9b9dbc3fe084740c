//! A checkpoint as a network that XLA runs, through a PJRT plugin.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use bake::{BakeOptions, Ignorable};
use generate::{AnyExecutor, Network, Xla, XlaFunction};
use irpa::{Archive, Checkpoint, StoredOrder};
use lower::{Module, Quantization, Sharding, Shards};
use models::Architecture;
use pjrt::{Client, Executable, PjrtBuffer, Placement, Plugin, XlaOptions};
use targets::{DeviceKind, DeviceName, Mesh};
use trace::{Parameter, Signature};

use super::source::{BuildInfo, entries, planned};
use super::{ModelError, OpenOptions};
use crate::build::{BuildStep, LoadError, cached_archive};
use crate::export::xla::{self, XlaError, XlaProgram};
use crate::{DevicePartition, Expanded, Footprint, Memory, Plan, PlanError};

/// XLA's CPU backend converts bf16 weights to f32 before it multiplies them. Its scheduler for many idle
/// cores converts the weights of all layers before the first matmul, which needs twice the memory of the
/// weights. The scheduler that this setting selects converts a weight shortly before its use.
const CPU_SETTINGS: [(&str, &str); 1] = [("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED")];

/// Compiles a checkpoint's network with a plugin, and copies the weights to its devices.
pub(super) fn build_xla(
    path: &Path,
    model: Box<dyn Architecture>,
    options: &OpenOptions,
    score: bool,
    plugin: &Path,
) -> Result<(Network<AnyExecutor>, BuildInfo), ModelError> {
    let quantize = options.quantize.clone().unwrap_or(Quantization::Computed);
    let plan = planned(model, options, Some(quantize))?;
    let plan = xla::planned(plan)?;
    let traced = plan.record(&entries(&plan, options, score))?;
    let checkpoint = plan.model.weights(Checkpoint::open(path)?)?;
    let mesh = options.mesh.as_ref();
    let rules = mesh.map_or(Vec::new(), |mesh| xla::shard_rules(&traced, mesh, &options.shard));
    let program = XlaProgram::new(&plan, &traced.trace, mesh, &rules)?;
    let ignorable = ignorable(&plan, &traced.trace, &program)?;
    bake::check(&checkpoint, &program.parameters, &ignorable)
        .map_err(|refused| XlaError::from(refused.declared_in(&traced.trace)))?;

    let client = Plugin::load(plugin)?.client_with(mesh.map_or(1, Mesh::devices))?;
    let places = Places::new(&client, options, program.shards.as_ref())?;
    if client.platform() == "cpu"
        && let Some(memory) = Memory::of_machine()
    {
        check_memory(&plan.expand(&traced.trace)?, program.shards.as_ref(), memory)?;
    }
    let start = Instant::now();
    let mut watch = options.watch_steps();
    if watch(BuildStep::Compile).is_break() {
        return Err(LoadError::Stopped.into());
    }
    let mut compiled = Vec::new();
    for module in &program.modules {
        compiled.push(compiled_for(&client, module, &places)?);
    }
    let compile = start.elapsed();
    let start = Instant::now();
    let (weights, archive) =
        upload(&client, &places, &checkpoint, &program.parameters, ignorable, options, &mut watch)?;
    let mut functions = HashMap::new();
    for (module, executable) in program.modules.iter().zip(compiled) {
        let signature = &module.signatures[0];
        let weights = module.parameters.iter().filter_map(|p| weights.get(p.key.as_str()).cloned()).collect();
        let arguments = places.arguments(signature);
        functions.insert(signature.name.clone(), XlaFunction { executable, arguments, weights });
    }
    let signatures: Vec<_> = program.modules.iter().flat_map(|module| module.signatures.clone()).collect();
    let executor = AnyExecutor::Xla(Xla::new(&client, functions));
    let build = BuildInfo {
        compile,
        load: start.elapsed(),
        module: None,
        options: None,
        archive: archive.map_or_else(|| path.to_owned(), |archive| archive.path().to_owned()),
        baked: None,
        shards: program.shards,
        signatures: signatures.clone(),
        damaged: Vec::new(),
    };
    Ok((Network::on(executor, &signatures)?, build))
}

/// Compiles a module for the devices of its tensors.
fn compiled_for(client: &Client, module: &Module, places: &Places<'_>) -> Result<Executable, ModelError> {
    let settings = if client.platform() == "cpu" { &CPU_SETTINGS[..] } else { &[] };
    let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    let options = XlaOptions { settings: settings.collect() };
    let executable = client.compile(&module.text, places.devices.clone(), &options)?;
    Ok(executable.returning(places.results(&module.signatures[0]))?)
}

/// Checks that the network fits into the memory of the machine, which all devices of the CPU share.
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

/// The devices of the tensors of a program.
struct Places<'a> {
    devices: Range<usize>,
    /// How tensors are partitioned. `None` for a program on one device.
    shards: Option<&'a Shards>,
}

impl<'a> Places<'a> {
    /// All devices of the mesh, or the device that the options select.
    fn new(client: &Client, options: &OpenOptions, shards: Option<&'a Shards>) -> Result<Self, ModelError> {
        let first = ordinal(client, options.device)?;
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

/// The tensors that the checkpoint may contain in addition to the program's weights.
fn ignorable(
    plan: &Plan,
    recorded: &trace::Trace,
    program: &XlaProgram,
) -> Result<Vec<Ignorable>, PlanError> {
    let mut ignorable = plan.model.ignorable();
    ignorable.extend(bake::unread(&recorded.parameters()?, &program.parameters));
    Ok(ignorable)
}

/// The number of the device with this name. Without a name, the function returns the first device of the
/// plugin.
fn ordinal(client: &Client, device: Option<DeviceName>) -> Result<usize, ModelError> {
    let Some(DeviceName { kind, ordinal }) = device else { return Ok(0) };
    let platform = match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Cuda => "cuda",
        DeviceKind::Hip => "rocm",
        DeviceKind::Vulkan | DeviceKind::Metal => "",
    };
    match client.platform() == platform {
        true => Ok(ordinal),
        false => Err(ModelError::Platform { device: kind, platform: client.platform().to_owned() }),
    }
}

/// The weights on the devices, keyed by name.
type Weights<'a> = HashMap<&'a str, Rc<PjrtBuffer>>;

/// Copies all weights to the devices, and returns the archive with the computed weights. A weight that the
/// checkpoint stores in the network's type is copied directly from the memory-mapped file. All other weights
/// are in an archive in the cache.
fn upload<'a>(
    client: &Client,
    places: &Places<'_>,
    checkpoint: &Checkpoint,
    parameters: &'a [Parameter],
    mut ignorable: Vec<Ignorable>,
    options: &OpenOptions,
    watch: &mut dyn FnMut(BuildStep) -> ControlFlow<()>,
) -> Result<(Weights<'a>, Option<Archive>), ModelError> {
    let (stored, made): (Vec<&Parameter>, Vec<_>) = parameters.iter().partition(|p| is_stored(checkpoint, p));
    let mut weights = HashMap::new();
    let mut put = |parameter: &'a Parameter, bytes: &[u8]| -> Result<(), ModelError> {
        let uploaded = client.upload(&places.weight(&parameter.key), &parameter.ty, bytes)?;
        weights.insert(parameter.key.as_str(), Rc::new(uploaded));
        Ok(())
    };
    for parameter in stored {
        put(parameter, checkpoint.data(&parameter.key)?)?;
    }
    let mut archive = None;
    if !made.is_empty() {
        let computed: Vec<Parameter> = made.iter().copied().cloned().collect();
        ignorable.extend(bake::unread(parameters, &computed));
        let cache = options.cache_folder()?;
        let (made_archive, _) = cached_archive(checkpoint, &computed, &cache, |path| {
            let mut watch = |progress| watch(BuildStep::Bake(progress));
            let options = BakeOptions { watch: Some(&mut watch), ..BakeOptions::default() };
            Ok(bake::bake(checkpoint, &computed, &ignorable, path, options)?)
        })?;
        for parameter in made {
            let missing = || LoadError::Parameter {
                path: made_archive.path().to_owned(),
                key: parameter.key.clone(),
                expected: parameter.ty.to_string(),
                found: "missing".into(),
            };
            put(parameter, made_archive.data(&parameter.key).ok_or_else(missing)?)?;
        }
        archive = Some(made_archive);
    }
    Ok((weights, archive))
}

/// Whether the checkpoint contains the bytes of the parameter unchanged.
fn is_stored(checkpoint: &Checkpoint, parameter: &Parameter) -> bool {
    let tensor = checkpoint.get(&parameter.key);
    parameter.recipe.is_none()
        && tensor.is_some_and(|tensor| {
            tensor.element() == Some(parameter.ty.element)
                && tensor.shape == parameter.ty.shape
                && tensor.arranged == StoredOrder::Same
        })
}
