//! An export on disk, for either engine: [`dir`] is the folder, the types here are its `manifest.json`, whose JSON Schema is made
//! from them.

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

/// What an export for XLA names as its engine.
pub const ENGINE: &str = "xla";

/// Why an export does not read.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The manifest is not one.
    #[error("`{}` is not a manifest: {reason}; export the model again", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It was made for another engine.
    #[error("`{}` was exported for XLA; `python -m tracewright_xla run` runs it", .0.display())]
    Engine(PathBuf),
    /// A file that was exported is gone.
    #[error("`{}`, which the manifest names, is missing; export the model again", .path.display())]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// The module is for a kind of device that nobody knows here.
    #[error(
        "the module was exported for the device `{found}`, expected cpu, vulkan, cuda, hip or metal; use the version that \
         exported it, or export again"
    )]
    Device {
        /// What it is for.
        found: String,
    },
    /// A module was changed after it was exported.
    #[error("`{}` is not the module that the manifest names (blake3 {found}, expected {expected}); export the model again", .path.display())]
    Module {
        /// The file.
        path: PathBuf,
        /// The hash in the manifest.
        expected: String,
        /// The hash of the file.
        found: String,
    },
}

/// The form of the manifest of an export for XLA: a reader refuses any other.
pub const FORMAT: u32 = 2;

/// The manifest of an export. Only that of an export for XLA has the key `engine`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Manifest {
    /// An export for XLA.
    Xla(Box<XlaManifest>),
    /// An export for IREE.
    Iree(Box<IreeManifest>),
}

impl Manifest {
    /// Reads the manifest of an export directory; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be read or is not one.
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

/// Whether a manifest names XLA as its engine.
pub fn is_xla(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Engine {
        engine: String,
    }
    serde_json::from_str::<Engine>(text).is_ok_and(|manifest| manifest.engine == ENGINE)
}

/// What is wrong with the manifest of an export directory.
pub fn refused(folder: &Path, reason: String) -> ManifestError {
    ManifestError::Syntax { path: folder.join(MANIFEST), reason }
}

/// A module with the hash that the manifest has of it.
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
    /// The entry of an argument or a result; `sharding` is for XLA.
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
    /// The version of this program.
    pub tracewright: String,
    /// The version of the compiler that made the module; a runtime of the same version loads it.
    pub iree_compiler: String,
    /// The kind of device that runs it: `cpu`, `vulkan`, `cuda`, `hip`, `metal`.
    #[serde(default = "cpu")]
    pub device: String,
    /// The architecture of the processor: `x86_64`, `aarch64`. Of other devices that of the machine that compiled; they run
    /// with any.
    pub architecture: String,
    /// LLVM's name of the platform, if one was asked for.
    pub target_triple: Option<String>,
    /// LLVM's name of the processor; of other devices the compiler's, `sm_80`.
    pub target_cpu: String,
    /// Features that the processor must have; of other devices the types that programs may compute with and the widths
    /// that they may store, as `fp16`, `b8`.
    pub cpu_features: Vec<String>,
    /// Type of weights and activations.
    pub dtype: String,
    /// The longest sequence.
    pub context: usize,
    /// Tokens that one prefill takes.
    pub chunk: usize,
    /// The rules that simplified the trace: off, exact or approximate.
    pub simplify: String,
    /// The format that weights of products were rounded to: q8, q4 or q4_k; `stored` if each has that of the checkpoint; null if
    /// they are of type `dtype`.
    pub quant: Option<String>,
    /// How keys and values are remembered: `computed`, `q8`.
    pub kv: String,
    /// Whether kernels of ours compute products and attention.
    pub kernels: bool,
    /// How weights are stored: `kernels`, as these read them, or `plain`, in the order of the checkpoint.
    pub layout: String,
    /// How kernels cut their work, where another way than usual was measured to be faster.
    pub tuning: Tuning,
    /// blake3 of the compiled module.
    pub module_blake3: String,
    /// blake3 of the archive's table, which has the hash of each tensor: `irpa::Archive::table_blake3`.
    pub archive_blake3: String,
    /// What can be called.
    pub entry_points: Vec<IreeEntry>,
    /// The files of the model that went along, by which text becomes tokens and ends.
    #[serde(default)]
    pub copied: Vec<String>,
    /// The parameters and their types, in the scope `model`.
    pub parameters: BTreeMap<String, String>,
}

impl IreeManifest {
    /// Reads the manifest of an export directory; `None` if it has none.
    ///
    /// # Errors
    /// If it cannot be read or is not one.
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

    /// How the entry points are called.
    ///
    /// # Errors
    /// If a type does not read.
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

    /// The kind of device that runs it.
    ///
    /// # Errors
    /// If there is no such kind.
    pub fn device(&self) -> Result<DeviceKind, ManifestError> {
        DeviceKind::of_name(&self.device).ok_or_else(|| ManifestError::Device { found: self.device.clone() })
    }
}

/// A function of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct IreeEntry {
    /// Its name.
    pub name: String,
    /// Its arguments in order.
    pub arguments: Vec<ManifestValue>,
    /// Its results in order.
    pub results: Vec<ManifestValue>,
}

/// A named value: an argument or a result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ManifestValue {
    /// Its name.
    pub name: String,
    /// What it is: `tokens`, `start(context 512)`, `state(kv.keys, layer 3)`. For IREE an argument that is an `i32[]` start or
    /// count is a host scalar.
    pub role: String,
    /// Its type: `bf16[1,8,512,64]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// The names of its axes.
    pub axes: Vec<String>,
    /// For XLA: the mesh's axes along which each axis is divided. For IREE it is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<Vec<Vec<String>>>,
}

/// The manifest of an export for XLA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaManifest {
    /// `xla`.
    #[cfg_attr(feature = "schema", schemars(extend("const" = ENGINE)))]
    pub engine: String,
    /// The version of these fields: a reader refuses any other.
    #[cfg_attr(feature = "schema", schemars(extend("const" = FORMAT)))]
    pub format: u32,
    /// The version of this program.
    pub tracewright: String,
    /// Type of weights and activations.
    pub dtype: String,
    /// The longest sequence.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::POSITIONS)))]
    pub context: usize,
    /// Tokens of each sequence that one prefill takes.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::POSITIONS)))]
    pub chunk: usize,
    /// Sequences at once.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::BATCH)))]
    pub batch: usize,
    /// Token ids.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = limits::EXTENT)))]
    pub vocabulary: usize,
    /// The rules that simplified the trace: off, exact or approximate.
    pub simplify: String,
    /// The mesh as it was asked for: `model=4,data=2`; empty for one device.
    pub mesh: String,
    /// The axes of the mesh in the modules, which may be parts of those asked for.
    pub axes: Vec<ManifestAxis>,
    /// What is not divided along all of the mesh that a rule names.
    pub notes: Vec<String>,
    /// Bytes of weights on each device.
    pub device_bytes: usize,
    /// Weights that each device holds whole.
    pub replicated: Vec<String>,
    /// The folder of the checkpoint.
    pub checkpoint: PathBuf,
    /// What can be called.
    pub entry_points: Vec<XlaEntry>,
    /// The weights, sorted by key.
    pub weights: Vec<XlaWeight>,
    /// The files of the model that went along.
    pub copied: Vec<String>,
}

/// An axis of the mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ManifestAxis {
    /// Its name.
    pub name: String,
    /// Devices along it.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub size: usize,
}

/// A module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaEntry {
    /// Its name.
    pub name: String,
    /// The file of its text.
    pub module: String,
    /// The hash of that text.
    pub module_blake3: String,
    /// The arguments before the weights, in order.
    pub arguments: Vec<ManifestValue>,
    /// The keys of the weights that follow, in order.
    pub weights: Vec<String>,
    /// The results, in order.
    pub results: Vec<ManifestValue>,
}

/// A weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct XlaWeight {
    /// Its key.
    pub key: String,
    /// Its type in the module.
    #[serde(rename = "type")]
    pub ty: String,
    /// Of each axis the mesh's axes along which it is divided.
    pub sharding: Vec<Vec<String>>,
    /// The file in the checkpoint's folder; in the export's if `made`.
    pub file: String,
    /// What the file calls the tensor that it is, or is a part of.
    pub tensor: String,
    /// Whether the export has it, made of tensors of the checkpoint by a recipe.
    pub made: bool,
    /// The type of its elements there.
    pub stored: String,
    /// Where its first byte is.
    pub offset: usize,
}

fn cpu() -> String {
    DeviceKind::Cpu.name().into()
}
