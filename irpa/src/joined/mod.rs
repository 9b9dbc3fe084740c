//! Weights that several tensors of a file describe together, as in quantized Hugging Face folders. The other
//! crates see one tensor, whose name ends in `.weight`, in quantized blocks.

mod floats;
mod integers;

use ops::format::{BlockFormat, Quantized};

pub use floats::JoinedFloats;
pub(crate) use floats::{FolderScales, ScaleType};
pub use integers::{CodeOrder, JoinedIntegers};
pub(crate) use integers::{word, words};

/// The data of the further tensors, such as scales, in the order of the layout.
pub(crate) type Parts<'a> = [&'a [u8]; 4];

/// How the numbers of a weight follow from the data of its tensors. Rows are the outputs of a matmul, whatever
/// the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    Floats(JoinedFloats),
    Integers(JoinedIntegers),
}

impl Joined {
    /// The blocks that have the numbers without loss.
    pub fn blocks(self) -> BlockFormat {
        match self {
            Self::Floats(floats) => floats.blocks(),
            Self::Integers(integers) => integers.blocks(),
        }
    }

    /// As f32, row by row from the number `start` on.
    pub(crate) fn read(self, main: &[u8], parts: Parts<'_>, start: usize, out: &mut [f32]) {
        match self {
            Self::Floats(floats) => floats.read(main, parts, start, out),
            Self::Integers(integers) => integers.read(main, parts, start, out),
        }
    }

    /// The block of the `count` numbers from `start` on; `None` if these are no whole block.
    pub(crate) fn quantized(
        self,
        main: &[u8],
        parts: Parts<'_>,
        start: usize,
        count: usize,
    ) -> Option<Quantized> {
        match self {
            Self::Floats(floats) => floats.quantized(main, parts, start, count),
            Self::Integers(integers) => integers.quantized(main, parts, start, count),
        }
    }

    /// The row of the file's matrix that is this tensor's first row.
    pub(crate) fn first_row(self) -> usize {
        match self {
            Self::Floats(floats) => floats.first,
            Self::Integers(integers) => integers.first,
        }
    }

    pub(crate) fn starting_at(self, first: usize) -> Self {
        match self {
            Self::Floats(floats) => Self::Floats(floats.starting_at(first)),
            Self::Integers(integers) => Self::Integers(integers.starting_at(first)),
        }
    }
}
