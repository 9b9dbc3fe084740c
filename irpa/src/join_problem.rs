//! The reasons why the tensors of a quantized module are no weight.

use std::fmt;
use std::path::PathBuf;

use safetensors::Dtype;

/// The reason why tensors of a file together are no weight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}`: the tensor `{name}` {problem}", .file.display())]
pub struct JoinProblem {
    pub file: PathBuf,
    pub name: String,
    pub problem: PartProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartProblem {
    #[error("has no tensor `{0}` beside it, expected one; download the model again")]
    Missing(String),
    #[error("has the shape {found:?}, expected {expected:?}; download the model again")]
    Shape { found: Vec<usize>, expected: Vec<usize> },
    #[error("has the type {found:?}, expected {}; download the model again", OneOf(.expected))]
    Dtype { found: Dtype, expected: &'static [Dtype] },
    #[error("has the value {found} at the index {index}, expected {expected}; {help}")]
    Value { found: String, index: usize, expected: String, help: &'static str },
    /// The description in `quantization_config` does not fit the tensor.
    #[error("is quantized with {found}, expected {expected}; {help}")]
    Layout { found: String, expected: &'static str, help: &'static str },
}

struct OneOf<'a>(&'a [Dtype]);

impl fmt::Display for OneOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, dtype) in self.0.iter().enumerate() {
            write!(f, "{}{dtype:?}", if place == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}
