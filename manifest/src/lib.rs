//! An export on disk, for both engines. The module [`dir`] handles the folder of an export. The types here
//! define the file `manifest.json`, and its JSON Schema is generated from these types.

pub mod dir;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use errors::FileError;
use files::{is_there, limits};
use ops::{Attribute as _, Reader, TensorType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use targets::{DeviceKind, Tuning};
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
        /// The problem in the file.
        reason: String,
    },
    /// The export is for another engine.
    #[error("`{}` was exported for XLA; run this export with `python -m tracewright_xla run`", .0.display())]
    Engine(PathBuf),
    /// A file of the export is missing.
    #[error("the manifest lists the file `{}`, but this file is missing; export the model again", .path.display())]
    Lost { path: PathBuf },
    /// The module was exported for an unknown kind of device.
    #[error(
        "the module was exported for the device `{found}`, expected cpu, vulkan, cuda, hip or metal; use the \
        version that exported the module, or export the model again"
    )]
    Device { found: String },
    /// A module was changed after the export.
    #[error("`{}` is not the module that the manifest names (blake3 {found}, expected {expected}); export the model again", .path.display())]
    Module { path: PathBuf, expected: String, found: String },
}

/// The version of the manifest format for XLA. Readers reject other versions.
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
    /// Reads the manifest of an export folder; `None` if the folder contains no manifest.
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
        Ok(Some(match is_xla(&text) {
            true => Self::Xla(parsed(&text, folder)?),
            false => Self::Iree(parsed(&text, folder)?),
        }))
    }
}

/// Whether a manifest's engine is XLA.
pub fn is_xla(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Engine {
        engine: String,
    }
    serde_json::from_str::<Engine>(text).is_ok_and(|manifest| manifest.engine == ENGINE)
}

/// The error for an invalid manifest in an export folder.
pub fn refused(folder: &Path, reason: String) -> ManifestError {
    ManifestError::Syntax { path: folder.join(MANIFEST), reason }
}

/// Reads a module, and compares it with the hash in the manifest.
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
    /// Creates the entry for an argument or a result; only exports for XLA have a `sharding`.
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
    /// The version of the compiler that compiled the module. A runtime with the same version can load the
    /// module.
    pub iree_compiler: String,
    /// The kind of device that runs the module: `cpu`, `vulkan`, `cuda`, `hip`, `metal`.
    #[serde(default = "cpu")]
    pub device: String,
    /// The architecture of the processor that runs the module: `x86_64`, `aarch64`. For other devices, this
    /// is the architecture of the compiling machine, and the module runs with any architecture.
    pub architecture: String,
    /// The platform in LLVM's notation, if you set a platform.
    pub target_triple: Option<String>,
    /// The processor in LLVM's notation; for other devices the name that the compiler uses, such as `sm_80`.
    pub target_cpu: String,
    /// The features that the processor must have. For other devices, this list contains the types of
    /// computations and the widths of storage, such as `fp16` and `b8`.
    pub cpu_features: Vec<String>,
    /// The type of weights and activations.
    pub dtype: String,
    /// The maximum length of a sequence, in tokens.
    pub context: usize,
    /// The number of tokens per prefill call.
    pub chunk: usize,
    /// The rules that simplified the trace: off, exact or approximate.
    pub simplify: String,
    /// The format of matmul weights: q8, q4, q4_k or mxfp4. The value is `stored` if each weight has the
    /// checkpoint's format, and null if weights have the type `dtype`.
    pub quant: Option<String>,
    /// The storage format of the KV cache: `computed`, `q8`.
    pub kv: String,
    /// Whether Tracewright's kernels compute matmuls and attention.
    pub kernels: bool,
    /// The memory layout of weights: `kernels` is the layout that kernels read, and `plain` is the
    /// checkpoint's order.
    pub layout: String,
    /// The settings of kernels that were faster than the defaults in measurements.
    pub tuning: Tuning,
    /// The blake3 hash of the compiled module.
    pub module_blake3: String,
    /// The blake3 hash of the archive's table, which contains the hash of each tensor:
    /// `irpa::Archive::table_blake3`.
    pub archive_blake3: String,
    /// The functions of the module that a program can call.
    pub entry_points: Vec<IreeEntry>,
    /// The copied files of the model, for its tokenizer and stop tokens.
    #[serde(default)]
    pub copied: Vec<String>,
    /// The parameters in the scope `model`, with their types.
    pub parameters: BTreeMap<String, String>,
}

impl IreeManifest {
    /// Reads the manifest of an export folder; `None` if the folder contains no manifest.
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

    /// The arguments and results of the entry points.
    ///
    /// # Errors
    /// Returns an error if a type cannot be parsed.
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

    /// The kind of device that runs the module.
    ///
    /// # Errors
    /// Returns an error if the kind of device is unknown.
    pub fn device(&self) -> Result<DeviceKind, ManifestError> {
        DeviceKind::of_name(&self.device).ok_or_else(|| ManifestError::Device { found: self.device.clone() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IreeEntry {
    /// The name of the function in the module.
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
    /// The role of the argument or result, such as `tokens`, `start(context 512)`, `state(kv.keys, layer 3)`.
    /// For IREE, an `i32[]` argument with the role start or count is an integer on the host.
    pub role: String,
    /// The type of the argument or result, such as `bf16[1,8,512,64]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// The names of the axes of the argument or result.
    pub axes: Vec<String>,
    /// For each axis, the mesh axes that partition it, in an export for XLA. The key is absent in an export
    /// for IREE.
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
    /// The version of this manifest format. Readers reject other versions.
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// The version of Tracewright that wrote the export.
    pub tracewright: String,
    /// The type of weights and activations.
    pub dtype: String,
    /// The maximum length of a sequence, in tokens.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::POSITIONS)))]
    pub context: usize,
    /// The number of tokens of each sequence per prefill call.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::POSITIONS)))]
    pub chunk: usize,
    /// The number of sequences per call.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::BATCH)))]
    pub batch: usize,
    /// The number of token ids.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::EXTENT)))]
    pub vocabulary: usize,
    /// The rules that simplified the trace: off, exact or approximate.
    pub simplify: String,
    /// The mesh that you requested: `model=4,data=2`, for example; the text is empty for one device.
    pub mesh: String,
    /// The axes of the mesh that the modules use. These axes can be parts of the axes that you requested.
    pub axes: Vec<ManifestAxis>,
    /// Tensors that are partitioned along only a part of the mesh axis that a rule names.
    pub notes: Vec<String>,
    /// The number of bytes of weights on each device.
    pub device_bytes: usize,
    /// The weights of which each device stores a whole copy.
    pub replicated: Vec<String>,
    /// The folder of the checkpoint.
    pub checkpoint: PathBuf,
    /// The functions of the modules that a program can call.
    pub entry_points: Vec<XlaEntry>,
    /// The weights, sorted by key.
    pub weights: Vec<XlaWeight>,
    /// The copied files of the model.
    pub copied: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ManifestAxis {
    /// The name of the mesh axis.
    pub name: String,
    /// The number of devices along the axis.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub size: usize,
}

/// A function that can be called, with its module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaEntry {
    /// The name of the function.
    pub name: String,
    /// The file with the module's text.
    pub module: String,
    /// The blake3 hash of the module's text.
    pub module_blake3: String,
    /// The arguments before the weights, in order, with their roles.
    pub arguments: Vec<ManifestValue>,
    /// The keys of the weights, which are the arguments after the other arguments, in order.
    pub weights: Vec<String>,
    /// The results in order, with their roles.
    pub results: Vec<ManifestValue>,
}

/// A weight of the network, and its place on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaWeight {
    /// The key of the weight.
    pub key: String,
    /// The type of the weight in the module.
    #[serde(rename = "type")]
    pub ty: String,
    /// For each axis of the weight, the mesh axes that partition it.
    pub sharding: Vec<Vec<String>>,
    /// The file that contains the weight: in the checkpoint's folder, or in the export's folder if `made` is
    /// true.
    pub file: String,
    /// The name of the tensor in the file. The weight can be a part of this tensor.
    pub tensor: String,
    /// Whether a recipe computed the weight, so that the export contains it.
    pub made: bool,
    /// The element type of the tensor in the file.
    pub stored: String,
    /// The offset of the weight's first byte in the file.
    pub offset: usize,
}

fn cpu() -> String {
    DeviceKind::Cpu.name().into()
}
