//! Reads quantized matrices in a safetensors file. The metadata of the safetensors file contain a
//! JSON text with the format and the shape of each quantized matrix.

use ops::WeightFormat;
use serde::{Deserialize, Serialize};

use crate::gguf::BlockFormat;

/// The metadata key of the JSON text that lists the quantized matrices.
pub const BLOCKS: &str = "tracewright.blocks";

/// A matrix whose rows each begin a quantized block, and end in zeros; stored as `U8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRows {
    /// A name of a [`WeightFormat`].
    pub format: String,
    /// Rows, and values per row.
    pub shape: [usize; 2],
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
}

impl BlockRows {
    /// `None` if the format is unknown or the size overflows.
    pub fn bytes(&self) -> Option<usize> {
        let (block, [rows, inputs]) = (self.blocks()?, self.shape);
        rows.checked_mul(inputs.div_ceil(block.numbers()))?.checked_mul(block.bytes())
    }

    pub(crate) fn blocks(&self) -> Option<BlockFormat> {
        let format = WeightFormat::grouped_formats().find(|format| format.word() == self.format)?;
        Some(format.groups()?.block)
    }
}
