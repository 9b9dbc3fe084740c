//! Matrices in blocks within a safetensors file. Its metadata have one text more, which names their formats and shapes.

use ops::WeightFormat;
use serde::{Deserialize, Serialize};

use crate::gguf::BlockFormat;

/// The key of that text.
pub const BLOCKS: &str = "tracewright.blocks";

/// A matrix in blocks. Each row begins with a block, and zeros fill its last one. The file has its bytes as `U8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRows {
    /// As [`WeightFormat`] names it.
    pub format: String,
    /// Rows, and numbers of a row.
    pub shape: [usize; 2],
    /// Whether the network declares the matrix with its axes exchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
}

impl BlockRows {
    /// The bytes of the matrix; `None` if it has no blocks of ours, or more bytes than there can be.
    pub fn bytes(&self) -> Option<usize> {
        let (block, [rows, inputs]) = (self.blocks()?, self.shape);
        rows.checked_mul(inputs.div_ceil(block.numbers()))?.checked_mul(block.bytes())
    }

    pub(crate) fn blocks(&self) -> Option<BlockFormat> {
        let format = WeightFormat::ALL.iter().find(|format| format.word() == self.format)?;
        BlockFormat::of_ours(*format)
    }
}
