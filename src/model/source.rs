//! Loads the network at a path. If the path contains an export, Tracewright loads the network directly. If
//! the path contains a checkpoint, Tracewright first converts the weights and compiles the network.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bake::{Baked, format};
use dsl::{EntryPoint, Traced};
use errors::WithPath as _;
use hub::near_path;
use irpa::{Archive, ArchiveError, Checkpoint, ModelFiles};
use lower::{Module, Shards, Weights};
use models::fit::{self, OpenWarning};
use models::{Opened, SentenceConfig, SpeechConfig, Vision};
use program::AdapterRoom;
use program::numeric::NumericOption;
use runtime::{CompileOptions, Device, Runtime, device};
use targets::{DeviceKind, DeviceName, Mesh, MeshRules, Target};
use trace::{Ignorable, Parameter, Signature};

use super::{ModelError, OpenOptions, Speculation};
use crate::build::{BuildStep, BuildTools, LoadError, ProgramOptions, build_program};
use crate::export::xla::{self, RecordedPlan};
use crate::export::{self, IreeManifest};
use crate::tuning::{TuningSource, Tunings};
use crate::xla::{StartedPlugins, XlaBuild, XlaTools};
use crate::{Plan, Program};

/// The default value of [`OpenOptions::context`], in tokens.
pub(super) const CONTEXT: usize = 4096;

#[derive(Clone)]
pub(super) enum Source {
    /// An exported model, and its largest context if the export contains its configuration.
    Export(Box<IreeManifest>, Option<usize>),
    Checkpoint(Box<Opened>),
}

pub(super) struct Ready {
    pub program: Program,
    pub build: BuildInfo,
}

/// Information about building and loading a network.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    /// The time to compile the module or read it from the cache; zero for an exported model.
    pub compile: Duration,
    /// The time that loading the program took.
    pub load: Duration,
    /// The text of the module. The field is `None` for an exported model, and for a network that XLA runs.
    pub module: Option<Module>,
    /// The options for IREE's compiler; `None` for an exported model, or with XLA.
    pub options: Option<CompileOptions>,
    /// The weights that the program reads, in the device's formats; empty for an exported model.
    pub parameters: Vec<Parameter>,
    /// The path of the archive with the weights, or of the model for XLA without computed weights.
    pub archive: PathBuf,
    /// Statistics about writing the archive, or `None` if the archive already existed.
    pub baked: Option<Baked>,
    /// The partitioning of tensors over a mesh of devices, or `None` for a network on one device.
    pub shards: Option<Shards>,
    /// The arguments and results of each entry point.
    pub signatures: Vec<Signature>,
    /// The paths of damaged files with the tuner's measurements; Tracewright ignores these files.
    pub damaged: Vec<PathBuf>,
}

impl BuildInfo {
    /// The formats in which the archive stores weights, such as `q8` and `f32`, with their bytes. The format with the most
    /// bytes comes first. For an exported model, the list is empty.
    pub fn formats(&self) -> Vec<(String, usize)> {
        let mut sums = BTreeMap::<String, usize>::new();
        for parameter in &self.parameters {
            *sums.entry(stored(parameter)).or_default() += parameter.ty.bytes();
        }
        let mut formats: Vec<_> = sums.into_iter().collect();
        formats.sort_by_key(|(_, bytes)| Reverse(*bytes));
        formats
    }
}

/// The format in which the archive stores a weight.
fn stored(parameter: &Parameter) -> String {
    format(parameter)
        .map_or_else(|| parameter.ty.element.name().to_owned(), |format| format.word().to_owned())
}

impl Source {
    /// Determines the kind of a model. The returned list contains warnings about the model's files.
    pub fn read(files: &ModelFiles, options: &OpenOptions) -> Result<(Self, Vec<OpenWarning>), ModelError> {
        let path = files.path();
        if !files.is_gguf() {
            is_folder(path).with_path("open the model directory", path)?;
        }
        if let Some(manifest) = IreeManifest::read(path)? {
            check_as_exported(&manifest, options)?;
            let longest = (options.read)(files.clone(), &[]).ok().map(|model| model.max_context());
            return Ok((Self::Export(Box::new(manifest), longest), Vec::new()));
        }
        let fitted = fit::open(options.read, files, &options.allow_config_keys)?;
        let fitted = fitted.with_adapters(files, &options.lora)?;
        Ok((Self::Checkpoint(Box::new(fitted.network)), fitted.warnings))
    }

    pub fn speech(&self) -> Option<&SpeechConfig> {
        match self {
            Self::Export(..) => None,
            Self::Checkpoint(model) => model.kind.speech(),
        }
    }

    pub fn vision(&self) -> Option<&Vision> {
        match self {
            Self::Export(..) => None,
            Self::Checkpoint(model) => model.vision.as_ref(),
        }
    }

    pub fn sentence(&self) -> Option<&SentenceConfig> {
        match self {
            Self::Export(..) => None,
            Self::Checkpoint(model) => model.sentence(),
        }
    }
}

fn is_folder(path: &Path) -> io::Result<()> {
    if path.is_file() {
        let what = "it is a file; name the folder of the model, or a GGUF file";
        return Err(io::Error::new(ErrorKind::NotADirectory, what));
    }
    fs::read_dir(path).map(drop).map_err(|error| match (error.kind(), near_path(path)) {
        (ErrorKind::NotFound, Some(near)) => io::Error::new(ErrorKind::NotFound, Misspelled(near)),
        _ => error,
    })
}

/// The model's path does not exist, but resembles an existing path.
#[derive(Debug, thiserror::Error)]
#[error("it does not exist; did you mean `{}`?", .0.display())]
struct Misspelled(PathBuf);

pub(super) fn open_export(
    folder: &Path,
    manifest: &IreeManifest,
    options: &OpenOptions,
) -> Result<Ready, ModelError> {
    let start = Instant::now();
    let made_for = manifest.device()?;
    let name = options.device.unwrap_or(DeviceName { kind: made_for, ordinal: 0 });
    let runtime = Runtime::new(Device::of(name, options.threads))?;
    let (program, archive) = export::open(folder, manifest, &runtime)?;
    if options.verify {
        verify(&archive, options)?;
    }
    let signatures = manifest.signatures(folder)?;
    let program = Program::new(&runtime, &program, signatures.clone())?;
    if options.speculate != Speculation::Off && !program.network()?.has_verifier() {
        let (option, asked) = ("speculate", options.speculate.to_string());
        let exported = "no entry point `verify`".into();
        return Err(ModelError::AsExported { option, asked, exported });
    }
    if options.speculate == Speculation::Mtp && program.network()?.mtp().is_err() {
        let (option, asked) = ("speculate", options.speculate.to_string());
        let exported = "no entry point `draft_1`".into();
        return Err(ModelError::AsExported { option, asked, exported });
    }
    let build = BuildInfo {
        compile: Duration::ZERO,
        load: start.elapsed(),
        module: None,
        options: None,
        parameters: Vec::new(),
        archive: archive.path().into(),
        baked: None,
        shards: None,
        signatures,
        damaged: Vec::new(),
    };
    Ok(Ready { program, build })
}

/// Converts a checkpoint's weights, and compiles and loads its network, with scores if requested.
pub(super) fn build_checkpoint(
    files: &ModelFiles,
    model: &Opened,
    options: &OpenOptions,
    score: bool,
    plugins: &StartedPlugins,
    room: Option<&AdapterRoom>,
) -> Result<Ready, ModelError> {
    if let Some(plugin) = &options.plugin {
        return build_in_xla(files, model, options, score, (plugin, plugins));
    }
    let target = options.chosen_target()?;
    let plan = Plan { target, adapters: room.cloned(), ..planned(model.clone(), options)? };
    let tunings = options.tunings(&plan.target)?;
    let (tuning, damaged) = (tunings.of(&plan)?, tunings.damaged().to_vec());
    let plan = plan.tuned(tuning, options.chunk);
    // The features of the target decide which operations are recorded.
    let target = options.compiler().resolve(&plan.target).map_err(LoadError::from)?;
    let plan = Plan { target, ..plan };
    let entries = entries(&plan, options, score).into_iter().flat_map(EntryPoint::in_parts);
    let traced = plan.record(&entries.collect::<Vec<_>>())?;
    let checkpoint = plan.model.weights(files)?;
    let ignorable = plan.model.ignorable.clone();
    let mut ready = build(options, (&traced, score), &checkpoint, plan.target, plan.weights, ignorable)?;
    if let Some(baked) = &mut ready.build.baked {
        // The tower or the text network reads these, as soon as it is built.
        baked.ignored.retain(|name| !model.is_of_other(name));
    }
    Ok(Ready { build: BuildInfo { damaged, ..ready.build }, ..ready })
}

/// Compiles a checkpoint's network with a PJRT plugin, and copies the weights to the plugin's devices.
fn build_in_xla(
    files: &ModelFiles,
    model: &Opened,
    options: &OpenOptions,
    score: bool,
    (plugin, plugins): (&Path, &StartedPlugins),
) -> Result<Ready, ModelError> {
    let plan = xla::planned(planned(model.clone(), options)?);
    let mut entries = entries(&plan, options, score);
    // The devices of a mesh can store different sequences of the batch. So every call on a mesh
    // must compute all sequences.
    let mesh = options.mesh.clone().map(|mesh| MeshRules { mesh, rules: options.shard.clone() });
    if mesh.is_none() {
        entries = entries.into_iter().flat_map(EntryPoint::in_parts).collect();
    }
    // Tracewright checks the mesh before the plugin starts.
    let RecordedPlan { traced, shards, .. } = xla::record(&plan, &entries, mesh.as_ref())?;
    let checkpoint = plan.model.weights(files)?;
    let (cache, mut watch) = (options.cache_folder()?, options.watch_steps());
    let mesh = options.mesh.as_ref();
    let plugin = plugins.get(plugin, mesh.map_or(1, Mesh::devices), &options.xla_flags)?;
    let plan = plugin.plan(plan, mesh);
    let expanded = plan.expand(&traced.trace)?;
    let build = XlaBuild::new(&expanded, &traced.trace, shards, &checkpoint, plan.model.ignorable.clone())?;
    let tools = XlaTools { plugin: &plugin, device: options.device, cache: &cache, watch: Some(&mut watch) };
    let built = build.build(tools)?;
    let build = BuildInfo {
        compile: built.compile,
        load: built.load,
        module: None,
        options: None,
        parameters: built.parameters,
        archive: built.archive.map_or_else(|| files.path().to_owned(), |archive| archive.path().to_owned()),
        baked: None,
        shards: built.shards,
        signatures: built.program.signatures().to_vec(),
        damaged: Vec::new(),
    };
    Ok(Ready { program: built.program, build })
}

pub(super) fn planned(model: Opened, options: &OpenOptions) -> Result<Plan, ModelError> {
    let context = options.context.unwrap_or_else(|| model.max_context().min(CONTEXT));
    let plan = Plan::new(model, options.numeric.dtype, Some(context), options.chunk)?;
    Ok(options.numeric.plan(Plan { batch: options.slots.max(1), ..plan }))
}

pub(super) fn entries(plan: &Plan, options: &OpenOptions, score: bool) -> Vec<EntryPoint> {
    let mut entries = if score { plan.entry_points() } else { plan.steps() };
    if let Some(vision) = plan.model.vision.as_ref().filter(|_| options.images) {
        entries.extend(plan.features(vision.vectors_together()));
    }
    if options.speculate != Speculation::Off {
        entries.extend(plan.verifier());
    }
    match options.speculate {
        Speculation::Mtp => plan.with_mtp(entries),
        _ => entries,
    }
}

/// Converts the weights of a network, and compiles and loads the network. If the options request
/// verification, the function compares the weights with the hashes in the archive.
fn build(
    options: &OpenOptions,
    (traced, score): (&Traced, bool),
    checkpoint: &Checkpoint,
    target: Target,
    weights: Weights,
    ignorable: Vec<Ignorable>,
) -> Result<Ready, ModelError> {
    let (cache, compiler) = (options.cache_folder()?, options.compiler());
    let mut watch = options.watch_steps();
    let asked = ProgramOptions {
        tools: BuildTools { watch: Some(&mut watch), ..BuildTools::new(&compiler, &cache) },
        target,
        rules: options.numeric.rules.unwrap_or_default(),
        weights,
        device: Device::of(options.device.unwrap_or(DeviceName::CPU), options.threads),
        ignorable,
        // Drafts and scores would wait for the entry points that a program compiles later.
        starts_early: options.speculate == Speculation::Off && !score,
        ..ProgramOptions::new(&compiler, &cache)
    };
    let built = build_program(traced, checkpoint, asked)?;
    if options.verify {
        verify(&built.archive, options).map_err(ModelError::Cached)?;
    }
    let build = BuildInfo {
        compile: built.compile,
        load: built.load,
        signatures: built.module.signatures.clone(),
        parameters: built.module.parameters.clone(),
        module: Some(built.module),
        options: Some(built.options),
        archive: built.archive.path().into(),
        baked: built.baked,
        shards: None,
        damaged: Vec::new(),
    };
    Ok(Ready { program: built.program, build })
}

fn verify(archive: &Archive, options: &OpenOptions) -> Result<(), ArchiveError> {
    let mut steps = options.watch_steps();
    let mut watch = |progress| steps(BuildStep::Verify(progress));
    archive.verify_content(Some(&mut watch)).map(drop)
}

/// Returns the compiler's target: the given target, or a description of the device on this machine.
pub fn choose_target(name: DeviceName, target: Option<&Target>) -> Result<Target, ModelError> {
    match (target, name.kind) {
        (Some(target), device) if target.device != device => {
            Err(ModelError::Target { target: target.device, device })
        }
        (Some(target), _) => Ok(target.clone()),
        (None, DeviceKind::Cpu) => Ok(Target::host()),
        (None, _) => Ok(device(name)?.target()),
    }
}

impl OpenOptions {
    fn chosen_target(&self) -> Result<Target, ModelError> {
        let target = choose_target(self.device.unwrap_or(DeviceName::CPU), self.target.as_ref())?;
        Ok(Target { numerics: self.numeric.numerics.unwrap_or(target.numerics), ..target })
    }

    fn tunings(&self, target: &Target) -> Result<Tunings, ModelError> {
        let source = self.tuning.as_ref().unwrap_or(&TuningSource::Measured);
        Ok(source.read(target, (&self.compiler(), &self.cache_folder()?))?)
    }
}

fn check_as_exported(manifest: &IreeManifest, asked: &OpenOptions) -> Result<(), ModelError> {
    let given = [
        ("target", asked.target.is_some()),
        ("tuning", asked.tuning.is_some()),
        ("plugin", asked.plugin.is_some()),
        ("mesh", asked.mesh.is_some()),
        ("lora", !asked.lora.is_empty()),
    ];
    for (option, given) in given {
        if given {
            return Err(ModelError::Compiled { option });
        }
    }
    for option in NumericOption::ALL {
        let Some(asked) = option.word(&asked.numeric) else { continue };
        let option = option.name;
        match manifest.numeric(option) {
            None => return Err(ModelError::Compiled { option }),
            Some(exported) if exported != asked => {
                return Err(ModelError::AsExported { option, asked, exported });
            }
            Some(_) => {}
        }
    }
    let options = [
        ("context", asked.context.map(|n| n.to_string()), manifest.context.to_string()),
        ("chunk", asked.chunk.map(|n| n.to_string()), manifest.chunk.to_string()),
    ];
    for (option, asked, exported) in options {
        if let Some(asked) = asked.filter(|asked| *asked != exported) {
            return Err(ModelError::AsExported { option, asked, exported });
        }
    }
    let made_for = manifest.device()?;
    match asked.device.filter(|name| name.kind != made_for) {
        Some(name) => {
            let (asked, exported) = (name.to_string(), made_for.to_string());
            Err(ModelError::AsExported { option: "device", asked, exported })
        }
        None => Ok(()),
    }
}
