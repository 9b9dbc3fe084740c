//! The reasons why an adapter cannot be added to a model.

use std::fmt;
use std::path::PathBuf;

use errors::{FileError, Listed};
use irpa::ArchiveError;

/// The reason why Tracewright cannot add an adapter to a model.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// A file of the adapter cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tensors of the adapter cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The path is neither a folder of PEFT nor a GGUF file.
    #[error(
        "`{}` is no adapter, expected a folder with `adapter_config.json` and `adapter_model.safetensors`, or a GGUF \
         file", .path.display()
    )]
    NoAdapter {
        /// The path of the adapter.
        path: PathBuf,
    },
    /// The configuration is not JSON of the expected form.
    #[error("`{}` is no configuration of an adapter", .path.display())]
    Syntax {
        /// The path of `adapter_config.json`.
        path: PathBuf,
        /// The position, and the reason.
        source: serde_json::Error,
    },
    /// Keys of the configuration have values that Tracewright cannot apply.
    #[error("the adapter `{}`: {} problem(s){}", .path.display(), .problems.len(), Listed(.problems))]
    Fields {
        /// The path of `adapter_config.json`, or of the GGUF file.
        path: PathBuf,
        /// All such keys.
        problems: Vec<LoraProblem>,
    },
    /// Tensors of the adapter do not fit its configuration or the network.
    #[error("the adapter `{}` does not fit: {} problem(s){}", .path.display(), .problems.len(), Listed(.problems))]
    Tensors {
        /// The path of the adapter.
        path: PathBuf,
        /// All such tensors.
        problems: Vec<LoraProblem>,
    },
}

/// A key or a tensor of an adapter that Tracewright cannot apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoraProblem {
    /// A key of the configuration has another value than expected.
    Field {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The values that Tracewright applies.
        expected: &'static str,
        /// How to get an adapter that Tracewright applies.
        help: &'static str,
    },
    /// Tracewright does not know the key, which could change the meaning of the adapter.
    Unknown {
        /// The key.
        key: String,
        /// Its value.
        found: String,
    },
    /// The name of a tensor has an unknown form.
    Name {
        /// The tensor.
        tensor: String,
    },
    /// The network has no weight for a tensor.
    NoModule {
        /// The tensor.
        tensor: String,
        /// The module that the name of the tensor contains.
        module: String,
        /// The most similar module of the network.
        nearest: Option<String>,
    },
    /// The configuration excludes the module of a tensor.
    NotTargeted {
        /// The tensor.
        tensor: String,
        /// The key of the configuration.
        key: &'static str,
    },
    /// A module has only some of its tensors.
    Incomplete {
        /// The tensor that is there.
        tensor: String,
        /// The tensor that is missing.
        missing: String,
    },
    /// A tensor has the wrong shape.
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that configuration and network require.
        expected: Vec<usize>,
        /// The reason for the expected shape.
        because: String,
    },
    /// The network uses the weight both as embedding and as head.
    Tied {
        /// The tensor.
        tensor: String,
    },
    /// Two adapters replace the weight.
    Twice {
        /// The tensor.
        tensor: String,
        /// The weight of the network.
        weight: String,
    },
    /// The user's factor has no meaning for a part of the adapter.
    Scale {
        /// The factor.
        found: String,
        /// The tensor.
        tensor: String,
        /// The effect of the tensor.
        does: &'static str,
    },
    /// A part of an adapter that sequences choose does more than add to a linear layer.
    Merged {
        /// The tensor.
        tensor: String,
        /// The effect of the tensor.
        does: &'static str,
    },
    /// The adapter has no tensor.
    Nothing,
}

impl fmt::Display for LoraProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { key, found, expected, help } => {
                write!(f, "`{key}` is {found}, expected {expected}; {help}")
            }
            Self::Unknown { key, found } => write!(
                f,
                "`{key}` is {found}, but Tracewright does not know this key; merge the adapter with \
                 `merge_and_unload` of PEFT, and open the merged model"
            ),
            Self::Name { tensor } => write!(
                f,
                "the tensor `{tensor}` is no part of an adapter, expected names such as \
                 `base_model.model.….q_proj.lora_A.weight`"
            ),
            Self::NoModule { tensor, module, nearest } => {
                write!(f, "the network has no weight `{module}` for the tensor `{tensor}`")?;
                match nearest {
                    Some(nearest) => write!(f, "; the most similar weight is `{nearest}`"),
                    None => write!(f, "; open the model for which the adapter was trained"),
                }
            }
            Self::NotTargeted { tensor, key } => {
                write!(
                    f,
                    "the tensor `{tensor}` is of a module that `{key}` does not select; save the adapter again with PEFT"
                )
            }
            Self::Incomplete { tensor, missing } => {
                write!(
                    f,
                    "the tensor `{missing}` is missing, which belongs to `{tensor}`; download or save the adapter again"
                )
            }
            Self::Shape { tensor, found, expected, because } => {
                write!(
                    f,
                    "the tensor `{tensor}` has the shape {found:?}, expected {expected:?} because {because}"
                )
            }
            Self::Tied { tensor } => write!(
                f,
                "the tensor `{tensor}` changes the embedding or the head, but the model uses one weight for both; \
                 merge the adapter with `merge_and_unload` of PEFT, and open the merged model"
            ),
            Self::Twice { tensor, weight } => write!(
                f,
                "the tensor `{tensor}` replaces `{weight}`, which another adapter changes; use only one of the two"
            ),
            Self::Scale { found, tensor, does } => write!(
                f,
                "the scale is {found}, expected 1, because the tensor `{tensor}` {does}; leave out the scale"
            ),
            Self::Merged { tensor, does } => write!(
                f,
                "the tensor `{tensor}` {does}, expected only changes of linear layers in an adapter that requests \
                 choose; add the adapter to the weights instead"
            ),
            Self::Nothing => {
                write!(f, "the adapter has no tensors, so it changes nothing; save the adapter again")
            }
        }
    }
}
