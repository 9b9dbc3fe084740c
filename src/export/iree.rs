//! An export directory: module text, compiled module, archive, tokenizer files and a manifest. It runs with no
//! Python and no compiler present, here or through `iree-run-module`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bake::Baked;
use errors::FileError;
use irpa::{Archive, Checkpoint, Gguf, Verified, Watch};
use lower::Module;
use manifest::dir::{self, ExportFolder, FolderError, names};
use manifest::{IreeEntry, IreeManifest, ManifestError, ManifestValue, read_module};
use runtime::{CompileOptions, Compiled, Compiler, Runtime, VmModule};
use targets::{DeviceKind, Tuning};
use trace::{Argument, Parameter, Signature};

use crate::build::{Build, BuildTools, LoadError, map_parameters};
use crate::{Plan, PlanError};

/// Why an export directory cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Nothing is written into that folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The manifest is not one, or the module is not that of the manifest.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The archive is that of another export.
    #[error("`{}` is not the archive that the manifest names (its table has blake3 {found}, expected {expected}); export the model again", .path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// What the manifest says.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The folder is no export.
    #[error("`{}` is no export directory: it has no `{}`", .path.display(), names::MANIFEST)]
    NoManifest {
        /// The folder.
        path: PathBuf,
    },
    /// The module is for another kind of processor.
    #[error(
        "the module was compiled for {expected} and this machine is {found}; export again for this machine"
    )]
    Architecture {
        /// What it was compiled for.
        expected: String,
        /// What is here.
        found: &'static str,
    },
    /// The module needs another processor.
    #[error(
        "the module was compiled for `{cpu}` and needs the processor features {missing:?}, which this machine lacks; \
         export again for this machine"
    )]
    Cpu {
        /// What it was compiled for.
        cpu: String,
        /// What is missing.
        missing: Vec<String>,
    },
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The compiler does not say what it is.
    #[error(transparent)]
    Compile(#[from] runtime::CompileError),
    /// The model's configuration does not read.
    #[error(transparent)]
    Config(#[from] models::config::ConfigError),
    /// The tokenizer of a GGUF file is not one.
    #[error(transparent)]
    Tokenizer(#[from] generate::GenerateError),
    /// It cannot be built; or the module does not load, or its archive does not fit.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The manifest of what was built; its archive is not written yet.
fn manifest_of(
    plan: &Plan,
    build: &Build<'_, '_>,
    copied: &[&str],
    compiler: &Compiler,
) -> Result<IreeManifest, ExportError> {
    let Build { lowered, options, compiled, .. } = build;
    let module = &lowered.module;
    let typed = |list: &[Argument]| list.iter().map(|a| ManifestValue::new(a, None)).collect();
    let entry = |s: &Signature| IreeEntry {
        name: s.name.clone(),
        arguments: typed(&s.arguments),
        results: typed(&s.results),
    };
    Ok(IreeManifest {
        tracewright: env!("CARGO_PKG_VERSION").into(),
        iree_compiler: compiler.version()?,
        device: options.target.device.name().into(),
        architecture: options.target.architecture().into(),
        target_triple: options.target.triple.clone(),
        target_cpu: options.target.processor.clone(),
        cpu_features: compiler.features(&options.target)?,
        dtype: plan.element.to_string(),
        context: plan.context,
        chunk: plan.chunk,
        simplify: plan.rules.to_string(),
        quant: plan.weights.quantize.rounds().then(|| plan.weights.quantize.to_string()),
        kv: plan.kv.word().to_owned(),
        kernels: plan.weights.kernels,
        layout: if module.parameters.iter().any(Parameter::is_packed) { "kernels" } else { "plain" }.into(),
        tuning: Tuning { kernels: module.tuned.clone(), ..plan.target.tuning.clone() },
        module_blake3: blake3::hash(&compiled.vmfb).to_string(),
        archive_blake3: String::new(),
        entry_points: module.signatures.iter().map(entry).collect(),
        copied: copied.iter().map(|name| (*name).to_owned()).collect(),
        parameters: module.parameters.iter().map(|p| (p.key.clone(), p.ty.to_string())).collect(),
    })
}

/// Whether the module runs on this machine's processor, or on another device than that.
///
/// # Errors
/// The features it needs and this processor lacks.
pub fn check_cpu(manifest: &IreeManifest) -> Result<(), ExportError> {
    if manifest.device()? != DeviceKind::Cpu {
        return Ok(());
    }
    let found = std::env::consts::ARCH;
    if manifest.architecture != found {
        return Err(ExportError::Architecture { expected: manifest.architecture.clone(), found });
    }
    let missing = runtime::missing_cpu_features(&manifest.cpu_features);
    match missing.is_empty() {
        true => Ok(()),
        false => Err(ExportError::Cpu { cpu: manifest.target_cpu.clone(), missing }),
    }
}

/// What an export made, and how long that took.
pub struct Exported {
    /// The module.
    pub module: Module,
    /// How it was compiled.
    pub options: CompileOptions,
    /// What the compiler made of it.
    pub compiled: Compiled,
    /// What was done to the checkpoint.
    pub baked: Baked,
    /// The time that writing took.
    pub wrote: Duration,
}

/// Lowers what `plan` says, compiles and bakes it, and writes the export directory `out`, with the tokenizer files of
/// `model`, a directory or a GGUF file. `checkpoint` names its tensors [as the model does](Plan::named).
///
/// Until the module is compiled, `out` stays as it was. If it fails after that, `out` is no export any more, and gone
/// if it was new. Of an export that was there before nothing stays; other files do.
///
/// # Errors
/// Everything in which the checkpoint differs from what the model reads, before anything slow begins; or the first
/// stage that fails.
pub fn export(
    plan: Plan,
    model: &Path,
    checkpoint: &Checkpoint,
    out: &Path,
    tools: BuildTools<'_>,
) -> Result<Exported, ExportError> {
    let folder = ExportFolder::new(model, out, [names::TEXT, names::MODULE, names::ARCHIVE])?;
    let compiler = tools.compiler;
    let plan = Plan { target: compiler.resolve(&plan.target)?, ..plan };
    let recorded = plan.trace()?.trace;
    let mut build = Build::new(plan.lower(&recorded)?, &recorded, checkpoint, tools)?;
    let made = made_of(model)?;
    let copied: Vec<&str> = match &made {
        Some(made) => made.keys().copied().collect(),
        None => dir::copied(model).collect(),
    };
    let manifest = manifest_of(&plan, &build, &copied, compiler)?;
    let start = Instant::now();
    let baked = folder.fill(|out| {
        let (archive, baked) = build.bake(&out.join(names::ARCHIVE))?;
        for (name, text) in made.iter().flatten() {
            dir::put(out, name, text.as_bytes())?;
        }
        if made.is_none() {
            dir::copy(model, out)?;
        }
        dir::put(out, names::TEXT, build.lowered.module.text.as_bytes())?;
        dir::put(out, names::MODULE, &build.compiled.vmfb)?;
        dir::put_manifest(out, &IreeManifest { archive_blake3: archive.table_blake3(), ..manifest })?;
        Ok::<_, ExportError>(baked)
    })?;
    let Build { lowered, options, compiled, .. } = build;
    Ok(Exported { module: lowered.module, options, compiled, baked, wrote: start.elapsed() })
}

/// The files that go along made of a GGUF file, if the model is one.
fn made_of(model: &Path) -> Result<Option<BTreeMap<&'static str, String>>, ExportError> {
    if !Gguf::is_at(model) {
        return Ok(None);
    }
    let mut made = BTreeMap::from([("config.json", models::GgufModel::config_json(model)?)]);
    for name in names::COPIED {
        if let Some(text) = generate::gguf_text(model, name)? {
            made.insert(name, text);
        }
    }
    Ok(Some(made))
}

/// Puts the configuration, the tokenizer and the chat template of a model into a folder; those of a GGUF file are made from its
/// metadata.
///
/// # Errors
/// If one cannot be read or written.
pub fn put_model_files(model: &Path, out: &Path) -> Result<(), ExportError> {
    match made_of(model)? {
        Some(made) => made.iter().try_for_each(|(name, text)| dir::put(out, name, text.as_bytes()))?,
        None => dir::copy(model, out)?,
    }
    Ok(())
}

/// Opens an export directory: checks the processor, the module's hash, and the archive against the module. The archive is
/// that of the module, for whoever wants to know more of it.
///
/// # Errors
/// What does not fit.
pub fn open(
    folder: &Path,
    manifest: &IreeManifest,
    runtime: &Runtime,
) -> Result<(VmModule, Archive), ExportError> {
    check_cpu(manifest)?;
    let vmfb = read_module(folder.join(names::MODULE), &manifest.module_blake3)?;
    let archive = archive(folder, manifest)?;
    let expected = manifest.parameters.iter().map(|(key, ty)| (key.as_str(), ty.clone()));
    let parameters = map_parameters(&archive, expected)?;
    let program = VmModule::load(runtime, vmfb, &[parameters]).map_err(LoadError::from)?;
    Ok((program, archive))
}

/// Compares everything in an export directory that has a hash with it: the module, the archive's table, each tensor.
///
/// # Errors
/// If it is no export, or what is not as it was written.
pub fn verify(folder: &Path, watch: Option<Watch<'_>>) -> Result<Verified, ExportError> {
    let manifest =
        IreeManifest::read(folder)?.ok_or_else(|| ExportError::NoManifest { path: folder.into() })?;
    read_module(folder.join(names::MODULE), &manifest.module_blake3)?;
    Ok(archive(folder, &manifest)?.verify_content(watch).map_err(LoadError::from)?)
}

/// The archive that the manifest names. Its data are not read.
fn archive(folder: &Path, manifest: &IreeManifest) -> Result<Archive, ExportError> {
    let path = folder.join(names::ARCHIVE);
    let archive = Archive::open(&path).map_err(LoadError::from)?;
    let (expected, found) = (manifest.archive_blake3.clone(), archive.table_blake3());
    if found == expected { Ok(archive) } else { Err(ExportError::Archive { path, expected, found }) }
}
