//! The reasons why a configuration is rejected.

use std::path::PathBuf;

use errors::{FileError, Listed};

/// The reason why Tracewright rejects a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The GGUF file cannot be read.
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
    /// The configuration file is not a JSON object.
    #[error("`{}` is not a JSON object: {reason}", .path.display())]
    Syntax {
        /// Path of the configuration file.
        path: PathBuf,
        /// Position and reason.
        reason: String,
    },
    /// Configuration keys are missing, are unknown, or have invalid values.
    #[error("`{}`: {} problem(s){}", .path.display(), .problems.len(), Listed(.problems))]
    Keys {
        /// Path of the configuration file.
        path: PathBuf,
        /// All problems with the keys in the configuration file.
        problems: Vec<KeyProblem>,
    },
    /// A model of sentence-transformers lists a module that Tracewright does not know at this place.
    #[error("`{}`: module {index} is {found}, expected {expected}", .path.display())]
    Modules {
        /// Path of the list of modules.
        path: PathBuf,
        /// In the list, from 0.
        index: usize,
        /// The type and the folder of the module.
        found: String,
        /// The modules that can be there.
        expected: String,
    },
    /// Tracewright does not support the architecture that the configuration file declares.
    #[error("`{}`: the architecture `{found}` is not supported, expected one of {known:?}", .path.display())]
    Architecture {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
        /// The architectures that Tracewright supports.
        known: Vec<&'static str>,
    },
    /// Read only in the format of sentence-transformers.
    #[error(
        "`{}`: the architecture `{found}` computes embeddings, expected a language model; for embeddings, name a model \
        folder with the files of sentence-transformers", .path.display()
    )]
    GgufEmbeds {
        /// Path of the GGUF file.
        path: PathBuf,
        /// The value of `general.architecture`.
        found: String,
    },
    /// The model computes embeddings, but the caller expects a language model.
    #[error("`{}`: the architecture `{found}` computes embeddings and does not generate text", .path.display())]
    Embeds {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
    },
    /// The model is a language model, but the caller expects a model that computes embeddings.
    #[error("`{}`: the architecture `{found}` generates text and does not compute embeddings", .path.display())]
    Generates {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
    },
    /// The model scores pairs of texts, but the caller expects embeddings or generated text.
    #[error("`{}`: the architecture `{found}` scores pairs of texts, and does nothing else", .path.display())]
    Scores {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
    },
    /// The model transcribes speech, but the caller expects a model of texts.
    #[error("`{}`: the architecture `{found}` transcribes speech, and does nothing else", .path.display())]
    Transcribes {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
    },
    /// The caller expects a model that transcribes speech.
    #[error("`{}`: the architecture `{found}` does not transcribe speech", .path.display())]
    NoSpeech {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
    },
    /// The caller expects a model that scores pairs of texts.
    #[error("`{}`: the architecture `{found}` does not score pairs of texts", .path.display())]
    Unranked {
        /// Path of the configuration file.
        path: PathBuf,
        /// The architecture that the configuration file declares.
        found: String,
    },
    /// The weights are quantized by a method that Tracewright does not support.
    #[error(
        "`{}`: the checkpoint is quantized (`{key}`, method `{method}`), expected one of {expected:?}; use a GGUF file or the unquantized checkpoint of the model, or save one with `model.dequantize()` of transformers",
        .path.display()
    )]
    Quantized {
        /// Path of the configuration file.
        path: PathBuf,
        /// The configuration key that declares the quantization.
        key: String,
        /// The value of `quant_method`, or the name of the tool to which the key belongs.
        method: String,
        /// The methods that every family reads.
        expected: Vec<&'static str>,
    },
}

impl ConfigError {
    /// For a file such as GGUF, whose keys `name` computes from those of `config.json`.
    pub(crate) fn named(mut self, name: impl Fn(&str) -> String) -> Self {
        if let Self::Keys { problems, .. } = &mut self {
            for problem in problems {
                let key = match problem {
                    KeyProblem::Missing { key, .. }
                    | KeyProblem::Value { key, .. }
                    | KeyProblem::Unknown { key, .. } => key,
                };
                *key = name(key);
            }
        }
        self
    }
}

/// A problem with a key of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// A required configuration key is missing.
    #[error("`{key}` is missing, expected {expected}")]
    Missing {
        /// Path of the configuration key, with dots between the components.
        key: String,
        /// The values that the configuration key may have.
        expected: &'static str,
    },
    /// A configuration key has an invalid value.
    #[error("`{key}` is {found}, expected {expected}")]
    Value {
        /// Path of the configuration key, with dots between the components.
        key: String,
        /// The invalid value of the configuration key, shortened if the value is long.
        found: String,
        /// The values that the configuration key may have.
        expected: String,
    },
    /// No code reads the configuration key, and no list of ignored keys contains the key.
    #[error("`{key}` is not a known key{}", nearest_text(.nearest))]
    Unknown {
        /// Path of the configuration key, with dots between the components.
        key: String,
        /// The most similar known key, if a similar key exists.
        nearest: Option<String>,
    },
}

fn nearest_text(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |key| format!(", the nearest is `{key}`"))
}
