//! Writes and opens exports for IREE. An export is a folder with the module text, the compiled
//! module, the archive of weights, tokenizer files and a manifest. The crate `tracewright` or the
//! tool `iree-run-module` runs the export without Python and without a compiler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bake::Baked;
use errors::FileError;
use files::is_there;
use irpa::{Archive, Checkpoint, ModelFiles, Verified, Watch};
use lower::Module;
use models::ModelKind;
use runtime::{CompileOptions, Compiled, Compiler, Runtime, VmModule};
use targets::{DeviceKind, Tuning};
use trace::{Argument, Parameter, Signature};

use super::manifest::dir::{self, ExportFolder, FolderError, names};
use super::manifest::{IreeEntry, IreeManifest, ManifestError, ManifestValue, read_module};
use crate::build::{Build, BuildTools, LoadError, map_parameters};
use crate::{Plan, PlanError};

/// The reason why an export folder cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The output folder cannot be replaced.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The manifest is damaged, or the hash in the manifest differs from the module's hash.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The archive in the export folder belongs to a different export.
    #[error("`{}` is not the archive that the manifest lists (its table has the blake3 hash {found}, expected \
        {expected}); export the model again", .path.display())]
    Archive {
        /// The path of the archive that belongs to another export.
        path: PathBuf,
        /// The hash that the manifest contains for the archive.
        expected: String,
        /// The hash of the archive in the folder.
        found: String,
    },
    /// The folder is not an export, because the file `manifest.json` is missing.
    #[error("`{}` is not an export directory: the folder has no `{}`", .path.display(), names::MANIFEST)]
    NoManifest {
        /// The path of the folder that is not an export.
        path: PathBuf,
    },
    /// The module was compiled for a processor architecture that this machine does not have.
    #[error(
        "the module was compiled for {expected}, but this machine is {found}; export the model again for \
        this machine"
    )]
    Architecture {
        /// The processor architecture that the manifest of the export contains.
        expected: String,
        /// The processor architecture of this machine.
        found: &'static str,
    },
    /// The processor lacks features that the module uses.
    #[error(
        "the module was compiled for `{cpu}` and needs the processor features {missing:?}, which this \
        machine lacks; export the model again for this machine"
    )]
    Cpu {
        /// The name of the processor for which the module was compiled.
        cpu: String,
        /// The processor features that the module needs, but that this machine lacks.
        missing: Vec<String>,
    },
    /// The network of the plan cannot be recorded or lowered.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The version of the compiler cannot be determined.
    #[error(transparent)]
    Compile(#[from] runtime::CompileError),
    /// The model's `config.json` cannot be read.
    #[error(transparent)]
    Config(#[from] models::config::ConfigError),
    /// The GGUF file's tokenizer is invalid.
    #[error(transparent)]
    Tokenizer(#[from] generate::GenerateError),
    /// The network cannot be built, the module cannot be loaded, or the archive lacks a parameter.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// Without the archive's hash, because the archive is not written yet.
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
        numerics: plan.target.numerics.word().to_owned(),
        layout: if module.parameters.iter().any(Parameter::is_packed) { "kernels" } else { "plain" }.into(),
        tuning: Tuning { kernels: module.tuned.clone(), ..plan.target.tuning.clone() },
        module_blake3: blake3::hash(&compiled.vmfb).to_string(),
        archive_blake3: String::new(),
        entry_points: module.signatures.iter().map(entry).collect(),
        copied: copied.iter().map(|name| (*name).to_owned()).collect(),
        parameters: module.parameters.iter().map(|p| (p.key.clone(), p.ty.to_string())).collect(),
    })
}

/// Checks that this machine's processor can run the module. If the export is for a device that is
/// not a CPU, the function checks nothing.
///
/// # Errors
/// Returns an error if the processor does not have the architecture or the features that the module needs.
pub fn check_cpu(manifest: &IreeManifest) -> Result<(), ExportError> {
    if manifest.device()? != DeviceKind::Cpu {
        return Ok(());
    }
    let found = std::env::consts::ARCH;
    if manifest.architecture != found {
        return Err(ExportError::Architecture { expected: manifest.architecture.clone(), found });
    }
    let missing = runtime::missing_cpu_features(&manifest.cpu_features);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(ExportError::Cpu { cpu: manifest.target_cpu.clone(), missing })
    }
}

/// Describes the files of a written export, and the duration of each step of the export.
pub struct Exported {
    /// The StableHLO text of the module that the compiler compiled.
    pub module: Module,
    /// The options with which Tracewright called the compiler.
    pub options: CompileOptions,
    /// The compiled module, and the time that the compilation took.
    pub compiled: Compiled,
    /// Statistics about writing the archive of weights to the export folder.
    pub baked: Baked,
    /// The time that Tracewright took to write the export folder.
    pub wrote: Duration,
}

/// Lowers `plan`, compiles the module, converts the weights, and writes the export folder `out`.
/// The function copies the tokenizer files of the model, which is a folder or a GGUF file. The
/// tensors of `checkpoint` must have [the model's names](Plan::named).
///
/// The function does not change the folder `out` before the module is compiled. If a step after the
/// compilation fails, `out` is no longer an export. If a step fails and the function has created
/// the folder, the function removes the folder again. If `out` contains a previous export, the
/// function removes all files of the previous export, and keeps all other files.
///
/// # Errors
/// Returns the error of the first export stage that fails. If the checkpoint does not match the
/// network's parameters, the function returns an error before the slow compilation begins. The
/// error lists all differences between the checkpoint and the parameters.
pub fn export(
    plan: Plan,
    files: impl Into<ModelFiles>,
    checkpoint: &Checkpoint,
    out: &Path,
    tools: BuildTools<'_>,
) -> Result<Exported, ExportError> {
    let files = files.into();
    let model = files.path();
    let folder = ExportFolder::new(model, out, [names::TEXT, names::MODULE, names::ARCHIVE])?;
    let compiler = tools.compiler;
    let plan = Plan { target: compiler.resolve(&plan.target)?, ..plan };
    let recorded = plan.record(&plan.exported())?.trace;
    let mut build = Build::new(plan.lower(&recorded)?, &recorded, checkpoint, tools)?;
    let made = made_of(&files)?;
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

/// From the metadata of a GGUF file: names and texts. `None` for a folder.
fn made_of(model: &ModelFiles) -> Result<Option<BTreeMap<&'static str, String>>, ExportError> {
    if !model.is_gguf() {
        return Ok(None);
    }
    let mut made = BTreeMap::from([("config.json", models::gguf::config_json(model)?)]);
    for name in names::COPIED {
        if let Some(text) = generate::gguf_text(model, name)? {
            made.insert(name, text);
        }
    }
    Ok(Some(made))
}

/// Copies configuration, tokenizer and chat template, and the [files that its kind needs](ModelKind::files).
/// From a GGUF file, tokenizer files are made from the metadata.
///
/// # Errors
/// Returns an error if a file of the model cannot be read, or a copy cannot be written.
pub fn put_model_files(files: &ModelFiles, kind: &ModelKind, out: &Path) -> Result<(), ExportError> {
    let model = files.path();
    match made_of(files)? {
        Some(made) => made.iter().try_for_each(|(name, text)| dir::put(out, name, text.as_bytes()))?,
        None => {
            dir::copy(model, out)?;
            let files = kind.files();
            let mut more = files.iter().filter(|name| is_there(&model.join(name)));
            more.try_for_each(|name| dir::copy_file(model, out, name))?;
        }
    }
    Ok(())
}

/// Checks the processor, the module's hash, and the archive's parameters. Returns the archive for information
/// about weights.
///
/// # Errors
/// Returns an error about the first check that fails.
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

/// Verifies the hashes of the module, of the archive's table and of each tensor in an export folder.
///
/// # Errors
/// Returns an error if the folder is not an export, or a computed hash differs from the stored hash.
pub fn verify(folder: &Path, watch: Option<Watch<'_>>) -> Result<Verified, ExportError> {
    let manifest =
        IreeManifest::read(folder)?.ok_or_else(|| ExportError::NoManifest { path: folder.into() })?;
    read_module(folder.join(names::MODULE), &manifest.module_blake3)?;
    Ok(archive(folder, &manifest)?.verify_content(watch).map_err(LoadError::from)?)
}

/// Compares the hash of its table with the manifest, and reads no weights.
fn archive(folder: &Path, manifest: &IreeManifest) -> Result<Archive, ExportError> {
    let path = folder.join(names::ARCHIVE);
    let archive = Archive::open(&path).map_err(LoadError::from)?;
    let (expected, found) = (manifest.archive_blake3.clone(), archive.table_blake3());
    if found == expected { Ok(archive) } else { Err(ExportError::Archive { path, expected, found }) }
}
