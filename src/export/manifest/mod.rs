//! Reads and writes the files of an export. The module [`dir`] handles the folder of an export. The
//! types of this crate define the file `manifest.json`. The JSON Schema of `manifest.json` is
//! generated from these types.

#![allow(missing_docs, reason = "the names of fields and variants explain them")]

pub mod dir;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use errors::FileError;
use files::{is_there, limits};
use ops::{Attribute as _, Reader, TensorType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use targets::{DeviceKind, Numerics, Tuning};
use trace::{Argument, Role, Signature};

use dir::names::{COPIED, MANIFEST};

/// The value of the key `engine` in an export for XLA.
pub const ENGINE: &str = "xla";

/// The reason why an export cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not a valid manifest.
    #[error("`{}` is not a manifest: {reason}; export the model again", .path.display())]
    Syntax {
        path: PathBuf,
        /// A text that describes the problem in the manifest.
        reason: String,
    },
    /// The export is for XLA, but the caller can only run exports for IREE.
    #[error("`{}` was exported for XLA; run this export with `python -m tracewright_xla run`", .0.display())]
    Engine(PathBuf),
    /// A file that the manifest of the export lists is missing.
    #[error("the manifest lists the file `{}`, but this file is missing; export the model again", .path.display())]
    Lost { path: PathBuf },
    /// The manifest contains an unknown kind of device.
    #[error(
        "the module was exported for the device `{found}`, expected cpu, vulkan, cuda, hip or metal; use the \
        version that exported the module, or export the model again"
    )]
    Device { found: String },
    /// The content of a module has changed since the export.
    #[error("`{}` is not the module that the manifest names (blake3 {found}, expected {expected}); export the model again", .path.display())]
    Module { path: PathBuf, expected: String, found: String },
}

/// Readers reject another version.
pub const FORMAT: u32 = 2;

/// The manifest of an export. Only exports for XLA have the key `engine`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Manifest {
    Xla(Box<XlaManifest>),
    Iree(Box<IreeManifest>),
}

impl Manifest {
    /// `None` if the folder has no manifest.
    ///
    /// # Errors
    /// Returns an error if the manifest cannot be read or is invalid.
    pub fn read(folder: &Path) -> Result<Option<Self>, ManifestError> {
        fn parsed<T: DeserializeOwned>(text: &str, folder: &Path) -> Result<T, ManifestError> {
            serde_json::from_str(text).map_err(|error| refused(folder, error.to_string()))
        }
        let path = folder.join(MANIFEST);
        if !is_there(&path) {
            return Ok(None);
        }
        let text = files::read_text(&path, limits::CONFIG)?;
        // By the engine and not by what fits, so that an error names the key that is wrong.
        Ok(Some(if is_xla(&text) {
            Self::Xla(parsed(&text, folder)?)
        } else {
            Self::Iree(parsed(&text, folder)?)
        }))
    }
}

/// Whether the text of a manifest selects the engine XLA.
pub fn is_xla(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Engine {
        engine: String,
    }
    serde_json::from_str::<Engine>(text).is_ok_and(|manifest| manifest.engine == ENGINE)
}

/// Creates the error for an invalid manifest in an export folder.
pub fn refused(folder: &Path, reason: String) -> ManifestError {
    ManifestError::Syntax { path: folder.join(MANIFEST), reason }
}

/// Reads a module, and compares the hash of the module with the hash in the manifest.
pub fn read_module(path: PathBuf, expected: &str) -> Result<Vec<u8>, ManifestError> {
    let module = files::read(&path, limits::MODULE)?;
    let found = blake3::hash(&module).to_string();
    if found == expected {
        Ok(module)
    } else {
        Err(ManifestError::Module { path, expected: expected.into(), found })
    }
}

impl ManifestValue {
    /// Only exports for XLA have a `sharding`.
    pub fn new(argument: &Argument, sharding: Option<Vec<Vec<String>>>) -> Self {
        Self {
            name: argument.name.clone(),
            role: argument.role.to_string(),
            ty: argument.ty.to_string(),
            axes: argument.axes.iter().map(|axis| axis.to_string()).collect(),
            sharding,
        }
    }
}

/// The manifest of an export for IREE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IreeManifest {
    /// The version of Tracewright that wrote the export.
    pub tracewright: String,
    /// The version of the IREE compiler that compiled the module. An IREE runtime with the same
    /// version can load the module.
    pub iree_compiler: String,
    /// The kind of device that runs the module. The value is `cpu`, `vulkan`, `cuda`, `hip` or `metal`.
    #[serde(default = "cpu")]
    pub device: String,
    /// The architecture of the processor that runs the module, such as `x86_64` or `aarch64`. If
    /// the device is not `cpu`, the value is the architecture of the compiling machine, although
    /// the module runs on hosts of any architecture.
    pub architecture: String,
    /// The target triple in LLVM's notation, if you set a target triple for the export.
    pub target_triple: Option<String>,
    /// The processor in LLVM's notation. If the device is not `cpu`, the value is the compiler's
    /// name for the architecture of the device, such as `sm_80`.
    pub target_cpu: String,
    /// The features that the processor must have, in LLVM's notation. If the device is not `cpu`, the list
    /// contains the number formats in which the device computes, such as `fp16`. For a device other than
    /// `cpu`, the list also contains the widths of numbers that the device can store, such as `b8`.
    pub cpu_features: Vec<String>,
    /// The element type of weights and activations.
    pub dtype: String,
    /// The maximum length of a sequence, in tokens.
    pub context: usize,
    /// The number of tokens per prefill call.
    pub chunk: usize,
    /// The simplification rules that were enabled for the export: off, exact or approximate.
    pub simplify: String,
    /// The quantization format of matmul weights: q8, q4, q4_k or mxfp4. If each weight keeps the
    /// format of the checkpoint, the value is `stored`. If no weight is quantized, the value is null.
    pub quant: Option<String>,
    /// The storage format of the KV cache, which is `computed` or `q8`. With the format `computed`,
    /// the KV cache has the element type `dtype`.
    pub kv: String,
    /// Whether Tracewright's kernels compute matmuls and attention.
    pub kernels: bool,
    /// Which bits are promised: fast, invariant or portable.
    #[serde(default = "fast")]
    pub numerics: String,
    /// The memory layout of the weights. The value `kernels` means that weights are packed for Tracewright's
    /// kernels. The value `plain` means that weights have the same order as in the checkpoint.
    pub layout: String,
    /// The settings that the tuner chose for the exported network. In the tuner's measurements, the
    /// chosen settings were faster than the default settings.
    pub tuning: Tuning,
    /// The blake3 hash of the compiled module.
    pub module_blake3: String,
    /// A blake3 hash of all bytes of the archive before the tensors' data, which
    /// `irpa::Archive::table_blake3` computes. This hash depends on the hash of each tensor.
    pub archive_blake3: String,
    /// The functions of the compiled module that a program can call.
    pub entry_points: Vec<IreeEntry>,
    /// The names of the model's files that the export contains, such as the files of the tokenizer.
    #[serde(default)]
    pub copied: Vec<String>,
    /// Maps the key of each parameter to its type. The module reads the parameters from the scope `model`.
    pub parameters: BTreeMap<String, String>,
}

/// Exports of earlier versions have no key `numerics`.
fn fast() -> String {
    Numerics::Fast.word().to_owned()
}

impl IreeManifest {
    /// Returns the value of a numeric option in the export. The result is `None` if the manifest does
    /// not record the option.
    pub fn numeric(&self, option: &str) -> Option<String> {
        Some(match option {
            "dtype" => self.dtype.clone(),
            "simplify" => self.simplify.clone(),
            "quant" => self.quant.clone().unwrap_or_else(|| "none".into()),
            "kv" => self.kv.clone(),
            "numerics" => self.numerics.clone(),
            "kernels" => if self.kernels { "on" } else { "off" }.into(),
            _ => return None,
        })
    }

    /// Reads the manifest of an export folder. The result is `None` if the folder contains no manifest.
    ///
    /// # Errors
    /// Returns an error if the manifest cannot be read or is invalid.
    pub fn read(folder: &Path) -> Result<Option<Self>, ManifestError> {
        let manifest = match Manifest::read(folder)? {
            None => return Ok(None),
            Some(Manifest::Xla(_)) => return Err(ManifestError::Engine(folder.to_owned())),
            Some(Manifest::Iree(manifest)) => *manifest,
        };
        // Only the names that an export may have: a manifest does not say where else something is.
        let copied = COPIED.iter().filter(|name| manifest.copied.iter().any(|copied| copied == *name));
        match copied.map(|name| folder.join(name)).find(|path| !path.exists()) {
            Some(path) => Err(ManifestError::Lost { path }),
            None => Ok(Some(manifest)),
        }
    }

    /// Returns the arguments and results of all entry points.
    ///
    /// # Errors
    /// Returns an error if a type or a role in the manifest cannot be parsed.
    pub fn signatures(&self, folder: &Path) -> Result<Vec<Signature>, ManifestError> {
        let argument = |t: &ManifestValue| -> Result<Argument, ManifestError> {
            let wrong = |what: &str, error: ops::ParseError| {
                refused(folder, format!("{what} of `{}`: {error}", t.name))
            };
            let mut text = Reader::new(&t.ty);
            let ty = TensorType::parse(&mut text).and_then(|ty| text.end().map(|()| ty));
            let ty = ty.map_err(|error| wrong("type", error))?;
            let mut text = Reader::new(&t.role);
            let role = Role::parse(&mut text).and_then(|role| text.end().map(|()| role));
            let role = role.map_err(|error| wrong("role", error))?;
            if let Role::Start { context } = role
                && context != self.context
            {
                let reason = format!("the context of `{}` is {context}, expected {}", t.name, self.context);
                return Err(refused(folder, reason));
            }
            let axes = t.axes.iter().map(|axis| axis.clone().into()).collect();
            Ok(Argument { name: t.name.clone(), role, ty, axes })
        };
        let arguments = |list: &[ManifestValue]| list.iter().map(argument).collect::<Result<_, _>>();
        let signature = |e: &IreeEntry| {
            let (arguments, results) = (arguments(&e.arguments)?, arguments(&e.results)?);
            Ok(Signature { name: e.name.clone(), arguments, results })
        };
        self.entry_points.iter().map(signature).collect()
    }

    /// Returns the kind of device that runs the module.
    ///
    /// # Errors
    /// Returns an error if the manifest contains an unknown kind of device.
    pub fn device(&self) -> Result<DeviceKind, ManifestError> {
        DeviceKind::of_name(&self.device).ok_or_else(|| ManifestError::Device { found: self.device.clone() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IreeEntry {
    /// The name of the entry point, which is a function in the module.
    pub name: String,
    /// The arguments of the entry point in order, with their roles.
    pub arguments: Vec<ManifestValue>,
    /// The results of the entry point in order, with their roles.
    pub results: Vec<ManifestValue>,
}

/// An argument or a result of an entry point, with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ManifestValue {
    /// The name of the argument or result.
    pub name: String,
    /// The role of the argument or result, such as `tokens`, `start(context 512)` or
    /// `state(kv.keys, layer 3)`. In an export for IREE, the caller passes an argument of the type
    /// `i32[]` with the role `start`, `count` or `extended` as an integer and not as a tensor.
    pub role: String,
    /// The type of the argument or result, such as `bf16[1,8,512,64]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// The names of the axes of the argument or result.
    pub axes: Vec<String>,
    /// The sharding of the argument or result in an export for XLA. For each tensor axis, the list contains
    /// the mesh axes that partition this tensor axis. An export for IREE does not contain this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Vec<Vec<String>>>,
}

/// The manifest of an export for XLA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaManifest {
    /// The engine of the export, which is always `xla`.
    #[cfg_attr(feature = "schema", schemars(extend("const" = ENGINE)))]
    pub engine: String,
    /// The version of the manifest format. A program that reads manifests rejects a manifest with
    /// another version.
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// The version of Tracewright that wrote the export.
    pub tracewright: String,
    /// The element type of weights and activations.
    pub dtype: String,
    /// The maximum length of a sequence, in tokens.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::POSITIONS)))]
    pub context: usize,
    /// The number of tokens that one prefill call reads from each sequence.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::POSITIONS)))]
    pub chunk: usize,
    /// The number of sequences that one call processes in parallel.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::BATCH)))]
    pub batch: usize,
    /// The number of token ids in the vocabulary.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::EXTENT)))]
    pub vocabulary: usize,
    /// The simplification rules that were enabled for the export: off, exact or approximate.
    pub simplify: String,
    /// The mesh that you requested for the export, such as `model=4,data=2`. The text is empty if
    /// you did not request a mesh.
    pub mesh: String,
    /// The mesh axes that the modules use. The exporter can split an axis of the requested mesh
    /// into several mesh axes of the modules.
    pub axes: Vec<ManifestAxis>,
    /// Notes about each tensor axis that is shorter than its mesh axis, so several devices have a copy of the
    /// same part of the tensor. The length of a mesh axis is the number of devices along this axis.
    pub notes: Vec<String>,
    /// The size of the weights on each device, in bytes.
    pub device_bytes: usize,
    /// The keys of the weights that every device stores completely.
    pub replicated: Vec<String>,
    /// The folder of the checkpoint that contains the weights.
    pub checkpoint: PathBuf,
    /// The functions of the modules that a program can call.
    pub entry_points: Vec<XlaEntry>,
    /// All weights of the network, sorted by key.
    pub weights: Vec<XlaWeight>,
    /// The names of the model's files that the export contains, such as the files of the tokenizer.
    pub copied: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ManifestAxis {
    /// The name of the mesh axis.
    pub name: String,
    /// The number of devices along the mesh axis.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub size: usize,
}

/// An entry point of the export, which has a separate module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaEntry {
    /// The name of the entry point.
    pub name: String,
    /// The name of the file that contains the text of the module.
    pub module: String,
    /// The blake3 hash of the module's text.
    pub module_blake3: String,
    /// The arguments that come before the weights, in the order of the function's parameters.
    pub arguments: Vec<ManifestValue>,
    /// The keys of the weights that you pass after the other arguments, in the order of the
    /// function's parameters.
    pub weights: Vec<String>,
    /// The results of the function, in the order in which the function returns them.
    pub results: Vec<ManifestValue>,
}

/// A weight of the network, and the location of its data on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaWeight {
    /// The key of the weight in the network.
    pub key: String,
    /// The type of the weight in the module.
    #[serde(rename = "type")]
    pub ty: String,
    /// The sharding of the weight. For each axis of the weight, the list contains the mesh axes
    /// that partition this tensor axis.
    pub sharding: Vec<Vec<String>>,
    /// The name of the file that contains the weight. If `made` is true, the file is in the folder
    /// of the export. If `made` is false, the file is in the folder of the checkpoint.
    pub file: String,
    /// The name of the tensor in the file. The weight can be only a part of the tensor.
    pub tensor: String,
    /// Whether the exporter computed the weight from checkpoint tensors. The export contains only
    /// computed weights, and the checkpoint contains all other weights.
    pub made: bool,
    /// The element type in which the file stores the tensor.
    pub stored: String,
    /// The position of the weight's first byte in the file.
    pub offset: usize,
}

fn cpu() -> String {
    DeviceKind::Cpu.name().into()
}
