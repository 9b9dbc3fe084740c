//! Writes exports for XLA. An export is a folder with a module for each entry point, and a manifest. The
//! manifest describes each argument, how devices partition the argument, and the file and offset of each
//! weight. The Python package in `tools/python/tracewright_xla` runs an export for XLA.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use bake::{BakeError, BakeOptions};
use dsl::{EntryPoint, ExpertsMode, Traced};
use errors::FileError;
use files::limits;
use irpa::{Archive, ArchiveError, Checkpoint, EntryData, Gguf, Verified, Watch};
use lower::{EntryShards, Module, ShardError, ShardNote, Sharding, Shards};
use targets::{DeviceKind, Mesh, MeshRules, ShardRule, Target};
use trace::{Argument, Parameter};

use super::manifest::dir::names::{MADE, MANIFEST};
use super::manifest::dir::{self, ExportFolder, FolderError};
use super::manifest::{
    ENGINE, FORMAT, Manifest, ManifestAxis, ManifestError, ManifestValue, XlaEntry, XlaManifest, XlaWeight,
    is_xla, read_module, refused,
};
use crate::{DevicePartition, Expanded, Plan, PlanError};

/// Contains the text of the modules of a program for XLA, and the partitioning of arguments and results.
pub struct XlaProgram {
    /// The modules of the program, one for each entry point.
    pub modules: Vec<Module>,
    /// The weights of all entry points, sorted by key.
    pub parameters: Vec<Parameter>,
    /// The partitioning of tensors over the mesh, or `None` if there is no mesh.
    pub shards: Option<Shards>,
}

/// The reason why an export for XLA cannot be planned, written or used.
#[derive(Debug, thiserror::Error)]
pub enum XlaError {
    /// The model is a GGUF file, whose weights are in quantized blocks that XLA cannot read.
    #[error("`{}` is a GGUF file, but XLA reads only safetensors; name a model directory", .0.display())]
    Gguf(PathBuf),
    /// The folder's path is not UTF-8, so the manifest cannot contain this path.
    #[error("the path `{}` is not valid UTF-8, but the manifest contains the checkpoint's path; rename the \
        checkpoint", .0.display())]
    Unnamed(PathBuf),
    /// The network of the plan cannot be recorded or lowered.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The sharding rules cannot partition a tensor.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The output folder cannot be replaced.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The checkpoint differs from the network's parameters.
    #[error(transparent)]
    Bake(#[from] BakeError),
    /// A checkpoint or an archive is damaged.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The archive lacks a weight that Tracewright computes from the checkpoint.
    #[error("the archive `{}` lacks the weight `{key}`", .path.display())]
    Lost {
        /// The key of the weight that the archive lacks.
        key: String,
        /// The path of the archive that lacks the weight.
        path: PathBuf,
    },
    /// The manifest is damaged, or a hash in the manifest differs from the hash of a module.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The offset of a computed weight in the archive differs from the offset in the manifest.
    #[error("the checkpoint `{}` has `{key}` at byte {found}, but the manifest expects byte {expected}; \
        export the model again", .path.display())]
    Moved {
        /// The path of the archive whose table contains the offset.
        path: PathBuf,
        /// The key of the weight whose offsets differ.
        key: String,
        /// The offset of the weight in bytes, as the manifest declares.
        expected: usize,
        /// The offset of the weight in bytes, as the archive's table declares.
        found: usize,
    },
}

/// By the kind in the manifest, and nothing else.
pub fn is_export(folder: &Path) -> bool {
    files::read_text(&folder.join(MANIFEST), limits::CONFIG).is_ok_and(|text| is_xla(&text))
}

/// Quantized weights are integers with scales, activations are never rounded, and kernels exist only [for
/// CUDA](for_cuda).
pub fn planned(plan: Plan) -> Plan {
    Plan { target: Target::xla(), ..plan }
}

/// For one CUDA device, where kernels compute calls of few tokens in bf16, if the plan uses kernels
/// ([`planned`]).
pub fn for_cuda(plan: Plan) -> Plan {
    Plan { target: Target { device: DeviceKind::Cuda, ..plan.target }, ..plan }
}

/// Checks that XLA can read the weights of the model at the path `model`.
///
/// # Errors
/// Returns an error if the model is a GGUF file.
pub fn check_model(model: &Path) -> Result<(), XlaError> {
    if Gguf::is_at(model) { Err(XlaError::Gguf(model.to_owned())) } else { Ok(()) }
}

/// Rules for a mesh: `asked` before those that the network declares. Experts whose weights would stay whole
/// on each device along `model` are divided among the devices.
pub fn shard_rules(recorded: &Traced, mesh: &Mesh, asked: &[ShardRule]) -> Vec<ShardRule> {
    let known = lower::divisible_axes(&recorded.trace);
    let declared = recorded.shards.iter().map(|(axes, over)| {
        let axes = axes.iter().filter(|axis| known.contains(**axis)).map(|axis| (*axis).to_owned());
        ShardRule { axes: axes.collect(), over: (*over).to_owned(), if_even: false }
    });
    let declared: Vec<ShardRule> = declared.filter(|rule| !rule.axes.is_empty()).collect();
    let experts = declared.iter().find(|rule| rule.over == Mesh::EXPERT).map(|rule| &rule.axes);
    let experts_over = |over: &str| -> Option<ShardRule> {
        Some(ShardRule { axes: experts?.clone(), over: over.to_owned(), if_even: true })
    };
    let mut rules = Vec::new();
    for rule in asked {
        let (word, axes): (Vec<_>, Vec<_>) =
            rule.axes.iter().cloned().partition(|axis| axis == ShardRule::EXPERTS && experts.is_some());
        rules.extend(experts_over(&rule.over).filter(|_| !word.is_empty()));
        rules.extend((!axes.is_empty()).then(|| ShardRule { axes, ..rule.clone() }));
    }
    let is_asked = |axis: &String| rules.iter().any(|rule| rule.axes.contains(axis));
    let of_mesh = declared.iter().filter(|rule| mesh.axis(&rule.over).is_some()).map(|rule| {
        let axes = rule.axes.iter().filter(|axis| !is_asked(axis)).cloned().collect();
        ShardRule { axes, ..rule.clone() }
    });
    let mut rules: Vec<_> = of_mesh.filter(|rule| !rule.axes.is_empty()).chain(rules.clone()).collect();
    let is_free =
        |axes: &Vec<String>| axes.iter().all(|axis| !rules.iter().any(|rule| rule.axes.contains(axis)));
    if mesh.axis(Mesh::MODEL).is_some()
        && experts.is_some_and(is_free)
        && lower::leaves_experts_whole(&recorded.trace, &rules)
    {
        rules.extend(experts_over(Mesh::MODEL));
    }
    rules
}

/// The recorded entry points of a plan, and their partitioning over a mesh.
pub struct RecordedPlan {
    /// The recorded entry points.
    pub traced: Traced,
    /// With the [rules](shard_rules) of options and network; `None` for one device.
    pub mesh: Option<MeshRules>,
    /// The partitioning of tensors over the mesh, or `None` for one device.
    pub shards: Option<Shards>,
}

/// For a plan of XLA ([`planned`]). If the [rules](shard_rules) divide experts, each device computes all
/// of its own in every entry point.
///
/// # Errors
/// Returns an error if the entry points cannot be recorded, or if the rules cannot partition the trace.
pub fn record(
    plan: &Plan,
    entries: &[EntryPoint],
    mesh: Option<&MeshRules>,
) -> Result<RecordedPlan, XlaError> {
    let traced = plan.record(entries)?;
    let Some(MeshRules { mesh, rules: asked }) = mesh else {
        return Ok(RecordedPlan { traced, mesh: None, shards: None });
    };
    let rules = shard_rules(&traced, mesh, asked);
    // The experts that a device computes change no argument, result or weight.
    let shards = Shards::new(&traced.trace, mesh, &rules)?;
    let traced = if shards.divides_experts && traced.asked_experts_mode {
        let entries = entries.iter().map(|entry| EntryPoint { experts: ExpertsMode::All, ..entry.clone() });
        plan.record(&entries.collect::<Vec<_>>())?
    } else {
        traced
    };
    Ok(RecordedPlan { traced, mesh: Some(MeshRules { mesh: mesh.clone(), rules }), shards: Some(shards) })
}

/// Returns the memory and the number of operations of each device for a plan for XLA ([`planned`]).
/// If no mesh is given, the plan uses one device.
///
/// ```
/// use tracewright::Plan;
/// use tracewright::export::xla::{partition, planned};
/// use tracewright::models::presets::Preset;
/// use tracewright::ops::ElementType;
/// use tracewright::targets::MeshRules;
///
/// let model = Preset::named("llama-3.1-405b").ok_or("it has this name")?.read()?;
/// let plan = planned(Plan::new(model, Some(ElementType::Bf16), Some(512), None)?);
/// let mesh = MeshRules { mesh: "model=8".parse()?, rules: Vec::new() };
/// let share = partition(&plan, Some(&mesh))?;
/// println!("{} bytes of weights on each of {} devices", share.weights, share.devices);
/// assert_eq!(share.devices, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Returns an error if the trace cannot be lowered, or if the [rules](shard_rules) cannot partition
/// the trace.
pub fn partition(plan: &Plan, mesh: Option<&MeshRules>) -> Result<DevicePartition, XlaError> {
    let RecordedPlan { traced, shards, .. } = record(plan, &plan.steps(), mesh)?;
    let expanded = plan.expand(&traced.trace)?;
    let shards = match shards {
        Some(shards) => shards.with_groups(&expanded.trace.parameters().map_err(PlanError::from)?),
        None => Shards::whole(),
    };
    Ok(DevicePartition::of(&expanded, shards).map_err(PlanError::from)?)
}

impl XlaProgram {
    /// `expanded` is for the target of [`planned`]; `shards` partitions it over a mesh ([`record`]). Reads no
    /// weights.
    ///
    /// # Errors
    /// Returns an error if the trace cannot be lowered.
    pub fn new(expanded: &Expanded, shards: Option<Shards>) -> Result<Self, XlaError> {
        let Expanded { trace: expanded, target, .. } = expanded;
        let parameters = expanded.parameters().map_err(PlanError::from)?;
        let shards = shards.map(|shards| shards.with_groups(&parameters));
        let entries = expanded.entries.iter().map(|&id| &expanded.function(id).name);
        let module =
            |entry: &String| lower::xla(expanded, entry, target, shards.as_ref()).map_err(PlanError::from);
        let modules = entries.map(module).collect::<Result<_, _>>()?;
        Ok(Self { modules, parameters, shards })
    }

    fn manifest(&self, plan: &Plan, mesh: Option<&Mesh>, model: &Path) -> XlaManifest {
        let shards = self.shards.as_ref();
        let entry = |module: &Module| {
            let signature = &module.signatures[0];
            let shards = shards.and_then(|shards| shards.entries.get(&signature.name));
            let (arguments, results) = match shards {
                Some(EntryShards { arguments, results }) => (&arguments[..], &results[..]),
                None => (&[][..], &[][..]),
            };
            XlaEntry {
                name: signature.name.clone(),
                module: format!("{}.mlir", signature.name),
                module_blake3: blake3::hash(module.text.as_bytes()).to_string(),
                arguments: values(&signature.arguments, arguments),
                weights: module.parameters.iter().map(|p| p.key.clone()).collect(),
                results: values(&signature.results, results),
            }
        };
        let bytes = |parameters: &[Parameter]| parameters.iter().map(|p| p.ty.bytes()).sum::<usize>();
        let replicated = shards.map_or(Vec::new(), |shards| shards.replicated(&self.parameters));
        XlaManifest {
            engine: ENGINE.into(),
            format: FORMAT,
            tracewright: env!("CARGO_PKG_VERSION").into(),
            dtype: plan.element.to_string(),
            context: plan.context,
            chunk: plan.chunk,
            batch: plan.batch,
            vocabulary: plan.model.vocabulary(),
            simplify: plan.rules.to_string(),
            mesh: mesh.map(Mesh::to_string).unwrap_or_default(),
            axes: shards.map_or(Vec::new(), |shards| {
                let axis =
                    |axis: &targets::MeshAxis| ManifestAxis { name: axis.name.clone(), size: axis.size };
                shards.mesh.axes.iter().map(axis).collect()
            }),
            notes: shards
                .map_or(Vec::new(), |shards| shards.notes.iter().map(ShardNote::to_string).collect()),
            device_bytes: shards
                .map_or_else(|| bytes(&self.parameters), |shards| shards.device_bytes(&self.parameters)),
            replicated: replicated.into_iter().map(|parameter| parameter.key.clone()).collect(),
            checkpoint: model.canonicalize().unwrap_or_else(|_| model.to_owned()),
            entry_points: self.modules.iter().map(entry).collect(),
            weights: Vec::new(),
            copied: dir::copied(model).map(str::to_owned).collect(),
        }
    }
}

/// For each axis, the mesh axes that partition it.
fn names(sharding: Option<&Sharding>, rank: usize) -> Vec<Vec<String>> {
    let of_axis = |axes: &Vec<targets::MeshAxis>| axes.iter().map(|axis| axis.name.clone()).collect();
    sharding.map_or(vec![Vec::new(); rank], |sharding| sharding.0.iter().map(of_axis).collect())
}

fn values(arguments: &[Argument], shardings: &[Sharding]) -> Vec<ManifestValue> {
    let sharding = |at: usize, argument: &Argument| names(shardings.get(at), argument.ty.rank());
    let values = arguments.iter().enumerate();
    values.map(|(at, argument)| ManifestValue::new(argument, Some(sharding(at, argument)))).collect()
}

/// Writes the export folder `out` of a plan for XLA ([`planned`]), with the tokenizer files of
/// `model`. The [rules](shard_rules) decide how a mesh partitions tensors. Weights stay in the
/// checkpoint; the checkpoint's tensors must have [the model's names](Plan::named). The export
/// contains only weights that Tracewright computes from the checkpoint.
///
/// # Errors
/// Returns an error if the mesh cannot partition the network, or if a file cannot be written. If the
/// checkpoint does not match the network's parameters, the error lists all differences and no file is
/// written. If an error occurs while the function writes files, `out` is not a usable export. If writing
/// fails and the function has created the folder, the function removes the folder again.
pub fn export(
    plan: &Plan,
    model: &Path,
    checkpoint: &Checkpoint,
    mesh: Option<&MeshRules>,
    out: &Path,
    watch: Option<Watch<'_>>,
) -> Result<XlaManifest, XlaError> {
    // Checks the output folder before the slow stages. The names of the module files are not known
    // yet.
    ExportFolder::new(model, out, [])?;
    check_model(model)?;
    if model.canonicalize().is_ok_and(|path| path.to_str().is_none()) {
        return Err(XlaError::Unnamed(model.to_owned()));
    }
    let RecordedPlan { traced: Traced { trace: recorded, .. }, shards, .. } =
        record(plan, &plan.entry_points(), mesh)?;
    let program = XlaProgram::new(&plan.expand(&recorded)?, shards)?;
    let parameters = &program.parameters;
    let mut ignorable = plan.model.ignorable.clone();
    ignorable.extend(bake::unread(&recorded.parameters().map_err(PlanError::from)?, parameters));
    bake::check(checkpoint, parameters, &ignorable).map_err(|refused| refused.declared_in(&recorded))?;
    let mut manifest = program.manifest(plan, mesh.map(|mesh| &mesh.mesh), model);
    let modules: Vec<String> = manifest.entry_points.iter().map(|entry| entry.module.clone()).collect();
    let folder = ExportFolder::new(model, out, modules.iter().map(String::as_str).chain([MADE]))?;
    let (made, plain): (Vec<&Parameter>, Vec<_>) = parameters.iter().partition(|p| is_made(checkpoint, p));
    folder.fill(|out| {
        let mut weights = Vec::new();
        if !made.is_empty() {
            let made: Vec<Parameter> = made.into_iter().cloned().collect();
            ignorable.extend(bake::unread(parameters, &made));
            let path = out.join(MADE);
            let options = BakeOptions { watch, ..BakeOptions::default() };
            bake::bake(checkpoint, &made, &ignorable, &path, options)?;
            let archive = Archive::open(&path)?;
            for parameter in &made {
                weights.push(made_weight(&archive, parameter, program.shards.as_ref())?);
            }
        }
        for parameter in plain {
            weights.extend(stored_weight(checkpoint, parameter, program.shards.as_ref()));
        }
        weights.sort_by(|a, b| a.key.cmp(&b.key));
        manifest.weights = weights;
        dir::copy(model, out)?;
        for (entry, module) in manifest.entry_points.iter().zip(&program.modules) {
            dir::put(out, &entry.module, module.text.as_bytes())?;
        }
        dir::put_manifest(out, &manifest)?;
        Ok(manifest)
    })
}

/// Whether the model's own files do not have the weight.
fn is_made(checkpoint: &Checkpoint, parameter: &Parameter) -> bool {
    parameter.recipe.is_some() || checkpoint.get(&parameter.key).is_some_and(|tensor| tensor.is_adapted)
}

fn stored_weight(
    checkpoint: &Checkpoint,
    parameter: &Parameter,
    shards: Option<&Shards>,
) -> Option<XlaWeight> {
    let tensor = checkpoint.get(&parameter.key)?;
    let file = checkpoint.file(tensor);
    // The manifest stores the file's path relative to the checkpoint's folder.
    let file =
        file.strip_prefix(checkpoint.path()).unwrap_or_else(|_| file.file_name().map_or(file, Path::new));
    Some(XlaWeight {
        key: parameter.key.clone(),
        ty: parameter.ty.to_string(),
        sharding: sharding(parameter, shards),
        file: file.to_string_lossy().into_owned(),
        tensor: tensor.source.clone(),
        made: false,
        stored: tensor.element()?.to_string(),
        offset: tensor.range.start,
    })
}

/// Verifies all hashes in an export for XLA. The modules and the computed weights have hashes, but
/// the weights in the checkpoint have no hashes.
///
/// # Errors
/// Returns an error if the folder is not an export for XLA, or a computed hash differs from the stored hash.
pub fn verify(folder: &Path, watch: Option<Watch<'_>>) -> Result<Verified, XlaError> {
    let refused = |reason: String| XlaError::from(refused(folder, reason));
    let Some(Manifest::Xla(manifest)) = Manifest::read(folder)? else {
        return Err(refused("it is of no export for XLA".into()));
    };
    if manifest.format != FORMAT {
        return Err(refused(format!("its format is {}, expected {FORMAT}", manifest.format)));
    }
    if manifest.entry_points.is_empty() {
        return Err(refused("it has no entry point".into()));
    }
    let keys: BTreeSet<&str> = manifest.weights.iter().map(|weight| weight.key.as_str()).collect();
    for entry in &manifest.entry_points {
        if let Some(key) = entry.weights.iter().find(|key| !keys.contains(key.as_str())) {
            return Err(refused(format!("`{}` takes the weight `{key}`, which is not listed", entry.name)));
        }
        // A manifest must not refer to files outside the export folder.
        if Path::new(&entry.module).file_name() != Some(OsStr::new(&entry.module)) {
            return Err(refused(format!("`{}` is no plain file name", entry.module)));
        }
        read_module(folder.join(&entry.module), &entry.module_blake3)?;
    }
    let (made, stored): (Vec<XlaWeight>, Vec<_>) =
        manifest.weights.into_iter().partition(|weight| weight.made);
    let mut verified = Verified::default();
    if !made.is_empty() {
        let archive = Archive::open(folder.join(MADE))?;
        for XlaWeight { key, offset: expected, .. } in made {
            let found = offset(&archive, &key)?;
            if found != expected {
                return Err(XlaError::Moved { path: archive.path().to_owned(), key, expected, found });
            }
        }
        verified = archive.verify_content(watch)?;
    }
    verified.without_hash.extend(stored.into_iter().map(|weight| weight.key));
    Ok(verified)
}

fn made_weight(
    archive: &Archive,
    parameter: &Parameter,
    shards: Option<&Shards>,
) -> Result<XlaWeight, XlaError> {
    Ok(XlaWeight {
        key: parameter.key.clone(),
        ty: parameter.ty.to_string(),
        sharding: sharding(parameter, shards),
        file: MADE.into(),
        tensor: parameter.key.clone(),
        made: true,
        stored: parameter.ty.element.to_string(),
        offset: offset(archive, &parameter.key)?,
    })
}

/// In bytes.
fn offset(archive: &Archive, key: &str) -> Result<usize, XlaError> {
    match archive.get(key).map(|entry| &entry.data) {
        Some(EntryData::Range(range)) => Ok(range.start),
        _ => Err(XlaError::Lost { key: key.to_owned(), path: archive.path().to_owned() }),
    }
}

fn sharding(parameter: &Parameter, shards: Option<&Shards>) -> Vec<Vec<String>> {
    names(shards.and_then(|shards| shards.weights.get(&parameter.key)), parameter.ty.rank())
}
