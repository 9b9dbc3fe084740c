//! An export directory: module text, compiled module, archive, tokenizer files and a manifest. It runs with no
//! Python and no compiler present, here or through `iree-run-module`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};
use irpa::Archive;
use lower::Module;
use ops::{Attribute, Reader, TensorType};
use runtime::{CompileOptions, Compiler, Program, Runtime};
use serde::{Deserialize, Serialize};
use trace::{Argument, Parameter, Role, Signature};

use crate::files::NewFile;
use crate::load::{LoadError, map_parameters};

/// The file names in an export directory.
pub mod names {
    /// What the directory is.
    pub const MANIFEST: &str = "manifest.json";
    /// The StableHLO text.
    pub const TEXT: &str = "model.mlir";
    /// The compiled module.
    pub const MODULE: &str = "model.vmfb";
    /// The weights.
    pub const ARCHIVE: &str = "model.irpa";
    /// What a tokenizer is read from; copied if it is there.
    pub const COPIED: &[&str] = &[
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
    ];
}

/// `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this program.
    pub tracewright: String,
    /// The version of the compiler that made the module; a runtime of the same version loads it.
    pub iree_compiler: String,
    /// The architecture of the processor: `x86_64`, `aarch64`.
    pub architecture: String,
    /// LLVM's name of the platform, if one was asked for.
    pub target_triple: Option<String>,
    /// LLVM's name of the processor.
    pub target_cpu: String,
    /// Features that the processor must have.
    pub cpu_features: Vec<String>,
    /// Type of weights and activations.
    pub dtype: String,
    /// The longest sequence.
    pub context: usize,
    /// Tokens that one prefill takes.
    pub chunk: usize,
    /// The rules that simplified the trace: off, exact or approximate.
    pub simplify: String,
    /// The format that weights of products were rounded to: q8 or q4; null if they are of type `dtype`.
    pub quant: Option<String>,
    /// Whether kernels of ours compute products and attention.
    pub kernels: bool,
    /// How weights are stored: `kernels`, as these read them, or `plain`, in the order of the checkpoint.
    pub layout: String,
    /// blake3 of the compiled module.
    pub module_blake3: String,
    /// What can be called.
    pub entry_points: Vec<EntryPoint>,
    /// The parameters and their types, in the scope `model`.
    pub parameters: BTreeMap<String, String>,
}

/// A function of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryPoint {
    /// Its name.
    pub name: String,
    /// Its arguments in order.
    pub arguments: Vec<Typed>,
    /// Its results in order.
    pub results: Vec<Typed>,
}

/// A named value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Typed {
    /// Its name.
    pub name: String,
    /// What it is: `tokens`, `start(context 512)`, `state(kv.keys, layer 3)`. An argument that is an `i32[]` start or
    /// count is a host scalar.
    pub role: String,
    /// Its type: `bf16[1,8,512,64]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// The names of its axes.
    pub axes: Vec<String>,
}

/// Why an export directory cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest is not one.
    #[error("`{}` is not a manifest: {reason}; export the model again", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The module was changed after it was exported.
    #[error("`{}` is not the module that the manifest names (blake3 {found}, expected {expected}); export the model again", .path.display())]
    Module {
        /// The file.
        path: PathBuf,
        /// What the manifest says.
        expected: String,
        /// What the file has.
        found: String,
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
    /// The compiler does not say what it is.
    #[error(transparent)]
    Compile(#[from] runtime::CompileError),
    /// The module does not load, or its archive does not fit.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl Manifest {
    /// The manifest of a module that is compiled.
    ///
    /// # Errors
    /// If the compiler cannot be asked for its version.
    pub fn new(
        plan: &crate::Plan,
        module: &Module,
        vmfb: &[u8],
        compiler: &Compiler,
        options: &CompileOptions,
    ) -> Result<Self, ExportError> {
        let typed = |list: &[Argument]| -> Vec<Typed> {
            let typed = |a: &Argument| Typed {
                name: a.name.clone(),
                role: a.role.to_string(),
                ty: a.ty.to_string(),
                axes: a.axes.iter().map(|axis| axis.to_string()).collect(),
            };
            list.iter().map(typed).collect()
        };
        let entry = |s: &Signature| EntryPoint {
            name: s.name.clone(),
            arguments: typed(&s.arguments),
            results: typed(&s.results),
        };
        Ok(Self {
            tracewright: env!("CARGO_PKG_VERSION").into(),
            iree_compiler: compiler.version()?,
            architecture: options.target.architecture().into(),
            target_triple: options.target.triple.clone(),
            target_cpu: options.target.processor.clone(),
            cpu_features: compiler.cpu_features(&options.target)?,
            dtype: plan.element.to_string(),
            context: plan.context,
            chunk: plan.chunk,
            simplify: plan.rules.to_string(),
            quant: plan.weights.quantize.map(|format| format.word().to_owned()),
            kernels: plan.weights.kernels,
            layout: if module.parameters.iter().any(Parameter::is_packed) { "kernels" } else { "plain" }
                .into(),
            module_blake3: blake3::hash(vmfb).to_string(),
            entry_points: module.signatures.iter().map(entry).collect(),
            parameters: module.parameters.iter().map(|p| (p.key.clone(), p.ty.to_string())).collect(),
        })
    }

    /// Reads the manifest of an export directory; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be read or is not one.
    pub fn read(folder: &Path) -> Result<Option<Self>, ExportError> {
        let path = folder.join(names::MANIFEST);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_path("read", &path)?;
        let manifest = serde_json::from_str(&text);
        manifest.map(Some).map_err(|e| ExportError::Manifest { path, reason: e.to_string() })
    }

    /// How the entry points are called.
    ///
    /// # Errors
    /// If a type does not read.
    pub fn signatures(&self, folder: &Path) -> Result<Vec<Signature>, ExportError> {
        let arguments = |list: &[Typed]| -> Result<Vec<Argument>, ExportError> {
            let argument = |t: &Typed| {
                let wrong = |what: &'static str| {
                    move |e: ops::ParseError| ExportError::Manifest {
                        path: folder.join(names::MANIFEST),
                        reason: format!("{what} of `{}`: {e}", t.name),
                    }
                };
                let ty = TensorType::parse(&mut Reader::new(&t.ty)).map_err(wrong("type"))?;
                let role = Role::parse(&mut Reader::new(&t.role)).map_err(wrong("role"))?;
                let axes = t.axes.iter().map(|axis| axis.clone().into()).collect();
                Ok(Argument { name: t.name.clone(), role, ty, axes })
            };
            list.iter().map(argument).collect()
        };
        let signature = |e: &EntryPoint| {
            let (arguments, results) = (arguments(&e.arguments)?, arguments(&e.results)?);
            Ok(Signature { name: e.name.clone(), arguments, results })
        };
        self.entry_points.iter().map(signature).collect()
    }

    /// Whether the module runs on this machine's processor.
    ///
    /// # Errors
    /// The features it needs and this processor lacks.
    pub fn check_cpu(&self) -> Result<(), ExportError> {
        let found = std::env::consts::ARCH;
        if self.architecture != found {
            return Err(ExportError::Architecture { expected: self.architecture.clone(), found });
        }
        let missing = runtime::missing_cpu_features(&self.cpu_features);
        match missing.is_empty() {
            true => Ok(()),
            false => Err(ExportError::Cpu { cpu: self.target_cpu.clone(), missing }),
        }
    }
}

/// Writes text, compiled module, manifest and the tokenizer files of `model` into `folder`. The archive is written
/// by [`bake`](bake::bake), under [`names::ARCHIVE`].
///
/// # Errors
/// If a file cannot be written.
pub fn write(
    folder: &Path,
    model: &Path,
    module: &Module,
    vmfb: &[u8],
    manifest: &Manifest,
) -> Result<(), ExportError> {
    let put = |name: &str, bytes: &[u8]| NewFile::write(&folder.join(name), bytes);
    for name in names::COPIED {
        let source = model.join(name);
        if source.exists() {
            put(name, &fs::read(&source).with_path("read", &source)?)?;
        }
    }
    put(names::TEXT, module.text.as_bytes())?;
    put(names::MODULE, vmfb)?;
    // Last: a directory without a manifest is no export.
    let json = serde_json::to_string_pretty(manifest).unwrap_or_default();
    Ok(put(names::MANIFEST, (json + "\n").as_bytes())?)
}

/// Opens an export directory: checks the processor, the module's hash, and the archive against the module.
///
/// # Errors
/// What does not fit.
pub fn open(folder: &Path, manifest: &Manifest, runtime: &Runtime) -> Result<Program, ExportError> {
    manifest.check_cpu()?;
    let path = folder.join(names::MODULE);
    let vmfb = fs::read(&path).with_path("read", &path)?;
    let found = blake3::hash(&vmfb).to_string();
    if found != manifest.module_blake3 {
        let expected = manifest.module_blake3.clone();
        return Err(ExportError::Module { path, expected, found });
    }
    let archive = Archive::open(folder.join(names::ARCHIVE)).map_err(LoadError::from)?;
    let expected = manifest.parameters.iter().map(|(key, ty)| (key.as_str(), ty.clone()));
    let parameters = map_parameters(&archive, expected)?;
    Ok(Program::load(runtime, vmfb, &[parameters]).map_err(LoadError::from)?)
}
