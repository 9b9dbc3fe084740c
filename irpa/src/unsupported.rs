//! Recognizes files in formats that Tracewright does not support. If you pass a file in an
//! unsupported format instead of a checkpoint, the error explains how to fix the problem.

use crate::GgufPart;
use errors::{FileError, WithPath as _};
use files::{StandIn, is_there, limits};
use std::{collections::BTreeSet, fmt, fs, io::Read as _, path::Path};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Recognized, so that the error can explain what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnsupportedFormat {
    PyTorch,
    /// Several files, so the model is ambiguous.
    Gguf(Vec<String>),
    /// Under the name of a safetensors file.
    GgufFile,
    GgufPart(GgufPart),
    /// Left by an incomplete download.
    StandIn(StandIn),
    /// In PEFT's format.
    Adapter {
        /// Such as `LORA`.
        kind: String,
        base: Option<String>,
    },
    /// Several models in diffusers' format.
    Pipeline,
    /// A zip, tar or compressed file, named if it is in the folder.
    Packed(Option<String>),
    /// An IREE parameter archive, which does not contain the configuration of a model.
    Archive,
    Other(&'static str),
    /// A folder whose only content is another folder with a model.
    Inside(String),
    /// The whole cache of the Hugging Face hub, with a folder for each model.
    HubCache(Vec<String>),
}

impl fmt::Display for UnsupportedFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PyTorch => f.write_str(
                "a pickled PyTorch checkpoint, expected safetensors; convert the checkpoint with \
                 transformers: `AutoModelForCausalLM.from_pretrained(…).save_pretrained(…, safe_serialization=True)`",
            ),
            Self::Gguf(names) => {
                f.write_str("a folder with GGUF files, expected the path of one file; name the file itself")?;
                if names.is_empty() { Ok(()) } else { write!(f, ", {}", one_of(names)) }
            }
            Self::GgufFile => f.write_str(
                "a GGUF file, expected safetensors; name the file itself instead of the folder",
            ),
            Self::GgufPart(part) => part.fmt(f),
            Self::StandIn(found) => f.write_str(found.what()),
            Self::Adapter { kind, base } => {
                write!(f, "a PEFT adapter ({kind}), not a whole model; ")?;
                let base = base.as_ref().map_or_else(|| "its base model".to_owned(), |base| format!("`{base}`"));
                if kind == "LORA" {
                    return write!(f, "open {base}, and add the adapter to it");
                }
                write!(f, "load the adapter on {base} with PEFT")?;
                f.write_str(", and save the result: `model.merge_and_unload().save_pretrained(…)`")
            }
            Self::Pipeline => f.write_str(
                "a diffusers pipeline of several models, expected one language model; name the folder of a language model",
            ),
            Self::Packed(name) => {
                match name {
                    Some(name) => write!(f, "a folder with `{name}`, a packed archive")?,
                    None => f.write_str("a packed archive")?,
                }
                f.write_str("; unpack the archive, and name the unpacked folder")
            }
            Self::Archive => f.write_str(
                "a parameter archive without a configuration; name the folder of the model, or the folder of an export",
            ),
            Self::Other(what) => write!(
                f,
                "{what}, expected safetensors or GGUF; download the model in one of these formats"
            ),
            Self::HubCache(names) => {
                write!(f, "the cache of the Hugging Face hub; name the folder of a model in the cache: {}", one_of(names))
            }
            Self::Inside(folder) => write!(f, "a folder that contains the model in another folder; name the inner folder `{folder}`"),
        }
    }
}

fn one_of(names: &[String]) -> String {
    let names: Vec<_> = names.iter().take(errors::LISTED).map(|name| format!("`{name}`")).collect();
    names.join(" or ")
}

impl UnsupportedFormat {
    /// By first bytes or name; `None` for what can be a safetensors, GGUF or JSON file.
    pub fn of_file(path: &Path, head: &[u8]) -> Option<Self> {
        of_file(path, head).filter(|format| !matches!(format, Self::Gguf(_) | Self::GgufFile))
    }

    /// Like [`of_file`](Self::of_file), where safetensors is expected.
    pub(crate) fn of_safetensors(path: &Path, bytes: &[u8]) -> Option<Self> {
        of_file(path, bytes).filter(|format| !matches!(format, Self::Gguf(_)))
    }

    /// `None` for a model in safetensors, or if no format is recognized.
    pub fn of_folder(path: &Path) -> Result<Option<Self>, FileError> {
        let named = |name: &str| path.join(name);
        if [SINGLE, INDEX].into_iter().any(|name| is_there(&named(name))) {
            return Ok(None);
        }
        if let Some(adapter) = adapter(&named("adapter_config.json")) {
            return Ok(Some(adapter));
        }
        if is_there(&named("model_index.json")) {
            return Ok(Some(Self::Pipeline));
        }
        let mut names: Vec<String> = list(path)?.into_iter().collect();
        if names.iter().any(|name| name.ends_with(".safetensors")) {
            // The folder contains safetensors under another name, so files in other formats are not the reason.
            return Ok(None);
        }
        names.retain(|name| !name.starts_with('.'));
        let models: Vec<_> = names.iter().filter(|name| name.starts_with("models--")).cloned().collect();
        if !models.is_empty() {
            return Ok(Some(Self::HubCache(models)));
        }
        let known = |name: &String| {
            by_extension(Path::new(name)).map(|format| match format {
                Self::Packed(_) => Self::Packed(Some(name.clone())),
                format => format,
            })
        };
        // Some programs name a GGUF file `ggml-model.bin`.
        let gguf = |name: &String| name.ends_with(".gguf") || is_gguf(&path.join(name));
        let mut formats: Vec<_> = names.iter().filter(|name| !gguf(name)).filter_map(known).collect();
        // An IREE archive in this folder can belong to an export that lost its manifest.
        formats.retain(|format| *format != Self::Archive);
        Ok(match () {
            () if formats.contains(&Self::PyTorch) => Some(Self::PyTorch),
            () if names.iter().any(gguf) => Some(Self::Gguf(names.into_iter().filter(gguf).collect())),
            () if !formats.is_empty() => formats.into_iter().next(),
            () if list(&named("onnx"))
                .is_ok_and(|names| names.iter().any(|name| name.ends_with(".onnx"))) =>
            {
                Some(Self::Other(ONNX))
            }
            () => inside(path, &names),
        })
    }
}

const ONNX: &str = "a model in ONNX";
const BEFORE_GGUF: UnsupportedFormat =
    UnsupportedFormat::Other("a file in a format that llama.cpp had before GGUF");

const EXTENSIONS: &[(&str, UnsupportedFormat)] = &[
    ("bin", UnsupportedFormat::PyTorch),
    ("pt", UnsupportedFormat::PyTorch),
    ("pth", UnsupportedFormat::PyTorch),
    ("ckpt", UnsupportedFormat::PyTorch),
    ("gguf", UnsupportedFormat::Gguf(Vec::new())),
    ("onnx", UnsupportedFormat::Other(ONNX)),
    ("h5", UnsupportedFormat::Other("a model of TensorFlow or Keras")),
    ("keras", UnsupportedFormat::Other("a model of TensorFlow or Keras")),
    ("pb", UnsupportedFormat::Other("a model of TensorFlow")),
    ("tflite", UnsupportedFormat::Other("a model of TensorFlow Lite")),
    ("msgpack", UnsupportedFormat::Other("a model of Flax")),
    ("npz", UnsupportedFormat::Other("arrays of NumPy")),
    ("pte", UnsupportedFormat::Other("a program of ExecuTorch")),
    ("mlpackage", UnsupportedFormat::Other("a model of Core ML")),
    ("ggml", BEFORE_GGUF),
    ("irpa", UnsupportedFormat::Archive),
    ("zip", UnsupportedFormat::Packed(None)),
    ("tar", UnsupportedFormat::Packed(None)),
    ("gz", UnsupportedFormat::Packed(None)),
    ("tgz", UnsupportedFormat::Packed(None)),
    ("xz", UnsupportedFormat::Packed(None)),
    ("zst", UnsupportedFormat::Packed(None)),
    ("7z", UnsupportedFormat::Packed(None)),
];

const MAGIC: &[(&[u8], UnsupportedFormat)] = &[
    (b"GGUF", UnsupportedFormat::GgufFile),
    // `ggml`, `ggmf`, `ggjt` and `ggla`, as little-endian numbers.
    (b"lmgg", BEFORE_GGUF),
    (b"fmgg", BEFORE_GGUF),
    (b"tjgg", BEFORE_GGUF),
    (b"algg", BEFORE_GGUF),
    (b"IRPA", UnsupportedFormat::Archive),
    (b"\x1f\x8b", UnsupportedFormat::Packed(None)),
    (b"\xfd7zXZ\0", UnsupportedFormat::Packed(None)),
    (b"\x28\xb5\x2f\xfd", UnsupportedFormat::Packed(None)),
    (b"7z\xbc\xaf\x27\x1c", UnsupportedFormat::Packed(None)),
    (b"BZh", UnsupportedFormat::Packed(None)),
    (b"\x89HDF", UnsupportedFormat::Other("a file in HDF5")),
];

fn by_extension(path: &Path) -> Option<UnsupportedFormat> {
    let end = path.extension()?.to_str()?;
    EXTENSIONS.iter().find(|(known, _)| *known == end).map(|(_, format)| format.clone())
}

/// Including GGUF.
fn of_file(path: &Path, bytes: &[u8]) -> Option<UnsupportedFormat> {
    match StandIn::of(bytes) {
        // The file is empty. Its name may show that the file has another format.
        None | Some(StandIn::Empty) => {}
        Some(found) => return Some(UnsupportedFormat::StandIn(found)),
    }
    let known = by_extension(path);
    // In safetensors, the first 8 bytes are the header's length and can have any value.
    if bytes.get(8) == Some(&b'{') {
        // The name `.bin` also occurs for files in safetensors.
        return known.filter(|format| *format != UnsupportedFormat::PyTorch);
    }
    if bytes.starts_with(b"PK\x03\x04") {
        return Some(match known {
            Some(UnsupportedFormat::Other(what)) => UnsupportedFormat::Other(what),
            Some(UnsupportedFormat::PyTorch) => UnsupportedFormat::PyTorch,
            // PyTorch's own zip files contain a pickle among the first names.
            _ if bytes.get(..512).unwrap_or(bytes).windows(9).any(|name| name == b"/data.pkl") => {
                UnsupportedFormat::PyTorch
            }
            _ => UnsupportedFormat::Packed(None),
        });
    }
    let begins = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, format)| format.clone());
    begins
        .or_else(|| (bytes.get(257..262) == Some(b"ustar")).then_some(UnsupportedFormat::Packed(None)))
        .or(known)
}

fn is_gguf(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = |file: fs::File| file.take(4).read_to_end(&mut head);
    path.is_file() && fs::File::open(path).and_then(read).is_ok() && head == b"GGUF"
}

/// Reads the configuration file of an adapter. Returns `None` if the file does not exist.
fn adapter(config: &Path) -> Option<UnsupportedFormat> {
    if !is_there(config) {
        return None;
    }
    let text = files::read(config, limits::CONFIG).ok()?;
    let keys: serde_json::Value = serde_json::from_slice(files::unmarked(&text)).unwrap_or_default();
    let text = |key: &str| keys.get(key).and_then(|value| value.as_str()).map(str::to_owned);
    let kind = text("peft_type").unwrap_or_else(|| "of an unknown type".into());
    Some(UnsupportedFormat::Adapter { kind, base: text("base_model_name_or_path") })
}

/// Recognizes a folder whose only content is another folder with a model.
fn inside(path: &Path, names: &[String]) -> Option<UnsupportedFormat> {
    if names.iter().any(|name| name == "config.json") {
        return None;
    }
    let mut folders = names.iter().filter(|name| path.join(name).is_dir());
    let (only, more) = (folders.next()?, folders.next());
    let is_model = is_there(&path.join(only).join("config.json")) && more.is_none();
    is_model.then(|| UnsupportedFormat::Inside(only.clone()))
}

pub(crate) fn list(folder: &Path) -> Result<BTreeSet<String>, FileError> {
    let mut names = BTreeSet::new();
    for item in fs::read_dir(folder).with_path("list", folder)? {
        names.insert(item.with_path("list", folder)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}
