//! Reads quantized matrices in a safetensors file. The metadata of such a file contain an additional text
//! that lists the formats and shapes of the quantized matrices.

use ops::WeightFormat;
use serde::{Deserialize, Serialize};

use crate::gguf::BlockFormat;

/// The key of the additional text in the metadata.
pub const BLOCKS: &str = "tracewright.blocks";

/// A quantized matrix. Each row begins with a new block, and zeros fill the last block of a row. The file
/// stores the bytes of the blocks as `U8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRows {
    /// The name of the format in [`WeightFormat`].
    pub format: String,
    /// The number of rows, and the number of values in a row.
    pub shape: [usize; 2],
    /// Whether the network declares the transpose of the matrix.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
}

impl BlockRows {
    /// The number of bytes of the matrix. `None` if no format of Tracewright has the name `format`, or if the
    /// number is too large.
    pub fn bytes(&self) -> Option<usize> {
        let (block, [rows, inputs]) = (self.blocks()?, self.shape);
        rows.checked_mul(inputs.div_ceil(block.numbers()))?.checked_mul(block.bytes())
    }

    pub(crate) fn blocks(&self) -> Option<BlockFormat> {
        let format = WeightFormat::ALL.iter().find(|format| format.word() == self.format)?;
        BlockFormat::of_ours(*format)
    }
}
