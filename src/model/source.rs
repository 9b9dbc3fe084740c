//! From a path to a network that can be called: an export is loaded, a checkpoint is baked and compiled first.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use bake::{Baked, Ignorable};
use dsl::Traced;
use errors::WithPath as _;
use generate::Network;
use irpa::{Archive, ArchiveError, Checkpoint, Gguf, PassedOver};
use lower::{Module, Quantization, Weights};
use models::config::ConfigError;
use models::{Architecture, EmbeddingGemmaConfig, UntiedHead, check_sizes};
use runtime::{CompileOptions, Device, Runtime, device};
use targets::{DeviceKind, DeviceName, Target, Tuning};
use trace::Signature;

use super::{ModelError, OpenOptions, TuningSource};
use crate::build::{BuildStep, BuildTools, ProgramOptions, build_program};
use crate::embed::EmbeddingPlan;
use crate::export::{self, IreeManifest};
use crate::tuning::{fastest, measured};
use crate::{Plan, Program};

/// The longest sequence unless another one is asked for.
pub(super) const CONTEXT: usize = 4096;

/// What a path names.
pub(super) enum Source {
    /// What `export` wrote, and the longest context that its model was made for, if its configuration is there.
    Export(Box<IreeManifest>, Option<usize>),
    /// A checkpoint of a network that continues text.
    Checkpoint(Box<dyn Architecture>),
    /// A checkpoint of a network that makes embeddings.
    Embedding(Box<EmbeddingGemmaConfig>),
}

/// What the user of a model should know, though it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenWarning {
    /// The checkpoint has a head of its own although the configuration ties it to the embedding.
    UntiedHead(UntiedHead),
    /// Shards of other weights lie beside the file that is read.
    PassedOver(PassedOver),
}

impl fmt::Display for OpenWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UntiedHead(head) => head.fmt(f),
            Self::PassedOver(other) => other.fmt(f),
        }
    }
}

/// A network, the device that it runs on, and what was made on the way.
pub(super) struct Ready {
    pub network: Network,
    pub runtime: Runtime,
    pub build: BuildInfo,
}

/// How a network was built and loaded.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    /// The time that compiling took; zero where the module was there.
    pub compile: Duration,
    /// The time that loading took.
    pub load: Duration,
    /// The module, unless it is that of an export.
    pub module: Option<Module>,
    /// How it was compiled, unless it is that of an export.
    pub options: Option<CompileOptions>,
    /// The archive of the weights.
    pub archive: PathBuf,
    /// What was done to the checkpoint, unless its archive was there.
    pub baked: Option<Baked>,
    /// How the entry points are called.
    pub signatures: Vec<Signature>,
    /// Records of the tuner that are damaged, and not used.
    pub damaged: Vec<PathBuf>,
}

impl Source {
    /// What is at a path, and what its user should know.
    pub fn read(path: &Path, options: &OpenOptions) -> Result<(Self, Vec<OpenWarning>), ModelError> {
        if !Gguf::is_at(path) {
            is_folder(path).with_path("open the model directory", path)?;
        }
        if let Some(manifest) = IreeManifest::read(path)? {
            check_as_exported(&manifest, options)?;
            let longest = (options.read)(path, &[]).ok().map(|model| model.max_context());
            return Ok((Self::Export(Box::new(manifest), longest), Vec::new()));
        }
        match (options.read)(path, &options.allow_config_keys) {
            Err(ConfigError::Embeds { .. }) => {
                let config = EmbeddingGemmaConfig::read(path, &options.allow_config_keys)?;
                Ok((Self::Embedding(Box::new(config)), Vec::new()))
            }
            // Weights in another format rarely have a configuration: what is wrong with them is said first.
            Err(ConfigError::File(missing)) if missing.source.kind() == ErrorKind::NotFound => {
                Checkpoint::open(path)?;
                Err(missing.into())
            }
            model => {
                let (mut model, checkpoint) = (model?, Checkpoint::open(path)?);
                let mut warnings: Vec<_> =
                    checkpoint.passed_over().cloned().map(OpenWarning::PassedOver).into_iter().collect();
                let named = model.named(checkpoint);
                // Before a network of these sizes is recorded.
                check_sizes(&model.sizes(), &named)?;
                warnings.extend(model.settle_head(&named).map(OpenWarning::UntiedHead));
                Ok((Self::Checkpoint(model), warnings))
            }
        }
    }
}

/// Whether a model can be in there.
fn is_folder(path: &Path) -> io::Result<()> {
    if path.is_file() {
        let what = "it is a file; name the folder of the model, or a GGUF file";
        return Err(io::Error::new(ErrorKind::NotADirectory, what));
    }
    fs::read_dir(path).map(drop)
}

/// Loads what `export` wrote.
pub(super) fn open_export(
    folder: &Path,
    manifest: &IreeManifest,
    options: &OpenOptions,
) -> Result<Ready, ModelError> {
    let start = Instant::now();
    let made_for = manifest.device()?;
    let name = options.device.unwrap_or(DeviceName { kind: made_for, ordinal: 0 });
    if name.kind != made_for {
        let (asked, exported) = (name.to_string(), made_for.to_string());
        return Err(ModelError::AsExported { option: "device", asked, exported });
    }
    let runtime = Runtime::new(Device::of(name, options.threads))?;
    let (program, archive) = export::open(folder, manifest, &runtime)?;
    if options.verify {
        verify(&archive, options)?;
    }
    let signatures = manifest.signatures(folder)?;
    let network = Network::new(&runtime, &program, &signatures)?;
    let build = BuildInfo {
        compile: Duration::ZERO,
        load: start.elapsed(),
        module: None,
        options: None,
        archive: archive.path().into(),
        baked: None,
        signatures,
        damaged: Vec::new(),
    };
    Ok(Ready { network, runtime, build })
}

/// Bakes, compiles and loads a checkpoint, with the entry point that scores where that is asked for.
pub(super) fn build_checkpoint(
    path: &Path,
    model: Box<dyn Architecture>,
    options: &OpenOptions,
    score: bool,
) -> Result<Ready, ModelError> {
    let target = chosen_target(options)?;
    let context = options.context.unwrap_or_else(|| model.max_context().min(CONTEXT));
    let plan = Plan::new(model, options.dtype, Some(context), options.chunk)?;
    let quantize = options.quantize.clone().unwrap_or(plan.weights.quantize);
    let plan = Plan {
        batch: options.slots.max(1),
        kv: options.kv.unwrap_or_default(),
        rules: options.rules.unwrap_or_default(),
        weights: Weights {
            quantize,
            kernels: options.kernels.unwrap_or(true),
            activations: options.activations.unwrap_or_default(),
        },
        target,
        ..plan
    };
    let (tuning, damaged) = tuning(options, &plan.target, Some(&plan))?;
    let plan = plan.tuned(tuning, options.chunk);
    let traced = plan.record(&if score { plan.entry_points() } else { plan.steps() })?;
    let checkpoint = plan.named(Checkpoint::open(path)?);
    let ignorable = plan.model.ignorable();
    let (program, runtime, build) =
        build(options, &traced, &checkpoint, plan.target, plan.weights, ignorable)?;
    Ok(Ready { network: program.network()?, runtime, build: BuildInfo { damaged, ..build } })
}

/// Bakes, compiles and loads an embedding, for texts of up to `length` tokens.
pub(super) fn build_embedding(
    path: &Path,
    config: &EmbeddingGemmaConfig,
    options: &OpenOptions,
    length: usize,
) -> Result<(Program, BuildInfo), ModelError> {
    let target = chosen_target(options)?;
    let plan = EmbeddingPlan::new(config.clone(), options.dtype, length, options.slots.max(1))?;
    let checkpoint = plan.checkpoint(path)?;
    check_sizes(&plan.config.tower.sizes(), &checkpoint)?;
    let (tuning, damaged) = tuning(options, &target, None)?;
    let target = Target { tuning, ..target };
    let traced = plan.trace()?;
    let weights = Weights {
        quantize: options.quantize.clone().unwrap_or(Quantization::Computed),
        kernels: options.kernels.unwrap_or(true),
        activations: options.activations.unwrap_or_default(),
    };
    let (program, _, build) = build(options, &traced, &checkpoint, target, weights, plan.config.ignorable())?;
    Ok((program, BuildInfo { damaged, ..build }))
}

/// Bakes, compiles and loads a network. Where the options ask for that, its weights are compared with their hashes.
fn build(
    options: &OpenOptions,
    traced: &Traced,
    checkpoint: &Checkpoint,
    target: Target,
    weights: Weights,
    ignorable: Vec<Ignorable>,
) -> Result<(Program, Runtime, BuildInfo), ModelError> {
    let (cache, compiler) = (options.cache_folder()?, options.compiler());
    let mut watch = options.watch_steps();
    let asked = ProgramOptions {
        tools: BuildTools { watch: Some(&mut watch), ..BuildTools::new(&compiler, &cache) },
        target,
        rules: options.rules.unwrap_or_default(),
        weights,
        device: Device::of(options.device.unwrap_or(DeviceName::CPU), options.threads),
        ignorable,
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
        module: Some(built.module),
        options: Some(built.options),
        archive: built.archive.path().into(),
        baked: built.baked,
        damaged: Vec::new(),
    };
    Ok((built.program, built.runtime, build))
}

/// Compares the weights with the hashes in their archive.
fn verify(archive: &Archive, options: &OpenOptions) -> Result<(), ArchiveError> {
    let mut steps = options.watch_steps();
    let mut watch = |progress| steps(BuildStep::Verify(progress));
    archive.verify_content(Some(&mut watch)).map(drop)
}

/// What is compiled for.
fn chosen_target(options: &OpenOptions) -> Result<Target, ModelError> {
    let name = options.device.unwrap_or(DeviceName::CPU);
    match (&options.target, name.kind) {
        (Some(target), device) if target.device != device => {
            Err(ModelError::Target { target: target.device, device })
        }
        (Some(target), _) => Ok(target.clone()),
        (None, DeviceKind::Cpu) => Ok(Target::host()),
        (None, _) => Ok(device(name)?.target()),
    }
}

/// How kernels are cut for a plan, or for a network that is no language model; and which records of the tuner are damaged.
fn tuning(
    options: &OpenOptions,
    target: &Target,
    plan: Option<&Plan>,
) -> Result<(Tuning, Vec<PathBuf>), ModelError> {
    if let Some(TuningSource::Given(tuning)) = &options.tuning {
        return Ok((tuning.clone(), Vec::new()));
    }
    let cache = options.cache_folder()?;
    let measured = measured(&cache, target, &options.compiler())?;
    Ok((fastest(&measured, plan)?, measured.damaged))
}

/// An export is what it is: an option that asks for something else is a mistake.
fn check_as_exported(manifest: &IreeManifest, asked: &OpenOptions) -> Result<(), ModelError> {
    let compiled = [
        ("target", asked.target.is_some()),
        ("tuning", asked.tuning.is_some()),
        ("activations", asked.activations.is_some()),
    ];
    for (option, given) in compiled {
        if given {
            return Err(ModelError::Compiled { option });
        }
    }
    let quantize = |exported: &Option<String>| exported.clone().unwrap_or_else(|| "no rounding".into());
    let word = |quantize: Quantization| match quantize.rounds() {
        true => quantize.to_string(),
        false => "no rounding".to_owned(),
    };
    let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
    let options = [
        ("dtype", asked.dtype.map(|dtype| dtype.to_string()), manifest.dtype.clone()),
        ("context", asked.context.map(|n| n.to_string()), manifest.context.to_string()),
        ("chunk", asked.chunk.map(|n| n.to_string()), manifest.chunk.to_string()),
        ("simplify", asked.rules.map(|rules| rules.to_string()), manifest.simplify.clone()),
        ("quant", asked.quantize.clone().map(word), quantize(&manifest.quant)),
        ("kernels", asked.kernels.map(switch), switch(manifest.kernels)),
        ("kv", asked.kv.map(|kv| kv.word().to_owned()), manifest.kv.clone()),
    ];
    for (option, asked, exported) in options {
        if let Some(asked) = asked.filter(|asked| *asked != exported) {
            return Err(ModelError::AsExported { option, asked, exported });
        }
    }
    Ok(())
}
