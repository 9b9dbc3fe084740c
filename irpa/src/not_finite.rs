//! Declares the error that a number is not finite.

use std::fmt;
use std::path::PathBuf;

use ops::format::BlockFormat;

/// A number that is not finite, or that is not finite after a conversion.
#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    pub path: PathBuf,
    /// The name of the tensor in the file.
    pub tensor: String,
    pub place: NumberPlace,
    /// The number before the conversion.
    pub found: f32,
    /// The name of the type or format to which the number should be converted.
    pub to: &'static str,
}

/// The place of a number. All indexes begin with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberPlace {
    /// The file stores the number, in the order of the file.
    Stored {
        /// The index of the row, where all axes but the last one count as one axis.
        row: usize,
        column: usize,
        /// The format of the number's block, and the index of the block in the tensor.
        block: Option<(BlockFormat, usize)>,
    },
    /// The number with this index in the network's tensor is computed from finite numbers of the file.
    Computed(usize),
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, found, to, .. } = self;
        write!(f, "`{}`: the number ", self.path.display())?;
        match self.place {
            NumberPlace::Stored { row, column, block } => {
                write!(f, "[{row}, {column}] of the tensor `{tensor}`")?;
                block.iter().try_for_each(|(format, index)| write!(f, " in block {index} of {format}"))?;
            }
            NumberPlace::Computed(index) => {
                write!(f, "{index} that Tracewright computes from the tensor `{tensor}`")?
            }
        }
        match found.is_finite() {
            true => write!(
                f,
                " is {found}, expected a number in the range of {to}; use a type with a larger range"
            ),
            false => write!(f, " is {found}, expected a finite number; download or convert the model again"),
        }
    }
}

impl std::error::Error for NotFinite {}
