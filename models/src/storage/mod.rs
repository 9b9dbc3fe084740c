//! How quantized Hugging Face folders store their weights: `quantization_config` in `config.json`. Each method has
//! a file, which reads the keys of the method and says which tensors are together a weight. Every family reads
//! every method, because [`Storage::joined`] gives each weight its usual name.

mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod fp8;
mod gptq;

use fancy_regex::Regex;
use irpa::{Checkpoint, JoinProblem, JoinedLayout};

use crate::config::Keys;

/// Reads the keys of a method.
type Read = fn(&Keys) -> Storage;

/// By `quant_method`.
pub(crate) const METHODS: &[(&str, Read)] = &[
    ("awq", awq::read),
    ("bitsandbytes", bitsandbytes::read),
    ("compressed-tensors", compressed_tensors::read),
    ("fp8", fp8::read),
    ("gptq", gptq::read),
];

/// The layouts of a folder's quantized weights; none if the folder is not quantized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Storage(Vec<Stored>);

/// Modules with one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    targets: Vec<QuantizedModules>,
    layout: JoinedLayout,
}

/// Modules, by their name in the checkpoint, such as `model.layers.3.mlp.up_proj`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QuantizedModules {
    All,
    Named(String),
    /// A regular expression in Python's syntax, which matches from the beginning of the name.
    Pattern(String),
}

impl QuantizedModules {
    fn matches(&self, module: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(name) => name == module,
            Self::Pattern(pattern) => {
                pattern_of(pattern).is_some_and(|pattern| pattern.is_match(module).unwrap_or(false))
            }
        }
    }
}

/// `None` if it is not valid.
fn pattern_of(pattern: &str) -> Option<Regex> {
    Regex::new(&format!("^(?:{pattern})")).ok()
}

impl Storage {
    /// All quantized modules have one layout.
    pub(crate) fn all(layout: JoinedLayout) -> Self {
        Self(vec![Stored { targets: vec![QuantizedModules::All], layout }])
    }

    /// The weights of quantized modules under their usual names, and the problems of the others.
    pub(crate) fn joined(&self, checkpoint: Checkpoint) -> (Checkpoint, Vec<JoinProblem>) {
        if self.0.is_empty() {
            return (checkpoint, Vec::new());
        }
        checkpoint.joined(|module| {
            let fits = |stored: &&Stored| stored.targets.iter().any(|target| target.matches(module));
            self.0.iter().find(fits).map(|stored| stored.layout.clone())
        })
    }
}

/// The numbers of a row that share a scale; −1 stands for the whole row, and is `None`.
fn group_size(keys: &Keys, default: usize) -> Option<usize> {
    const EXPECTED: &str = "a multiple of 32, or -1 for whole rows";
    let Some(value) = keys.get("group_size") else { return Some(default) };
    let size = value.as_i64();
    match size.and_then(|size| usize::try_from(size).ok()) {
        Some(size) if size > 0 && size.is_multiple_of(32) => Some(size),
        _ if size == Some(-1) => None,
        _ => {
            keys.refuse("group_size", value, EXPECTED);
            None
        }
    }
}
