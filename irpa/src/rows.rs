//! Reads quantized matrices in a safetensors file. The metadata of the safetensors file contain a
//! JSON text with the format and the shape of each quantized matrix.

use ops::WeightFormat;
use serde::{Deserialize, Serialize};

use crate::gguf::BlockFormat;

/// The metadata key of the JSON text that lists the quantized matrices.
pub const BLOCKS: &str = "tracewright.blocks";

/// A quantized matrix. Each row of the matrix begins with a new block, and zeros fill the last
/// block of a row. The file stores the blocks as a tensor of the type `U8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRows {
    /// The name of the matrix's format, as defined by [`WeightFormat`].
    pub format: String,
    /// The number of rows in the matrix, and the number of values in each row.
    pub shape: [usize; 2],
    /// Whether the network declares the transpose of the matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
}

impl BlockRows {
    /// Returns the size of the matrix in bytes. The result is `None` if `format` is not the name of
    /// a format, or if the size overflows.
    pub fn bytes(&self) -> Option<usize> {
        let (block, [rows, inputs]) = (self.blocks()?, self.shape);
        rows.checked_mul(inputs.div_ceil(block.numbers()))?.checked_mul(block.bytes())
    }

    pub(crate) fn blocks(&self) -> Option<BlockFormat> {
        let format = WeightFormat::grouped_formats().find(|format| format.word() == self.format)?;
        Some(format.groups()?.block)
    }
}
