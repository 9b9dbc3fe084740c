//! Declares the error that a number is not finite.

use std::fmt;
use std::path::PathBuf;

use ops::format::BlockFormat;

#[derive(Clone, Debug, PartialEq)]
pub struct NotFinite {
    pub path: PathBuf,
    pub tensor: String,
    pub place: NumberPlace,
    pub found: f32,
    pub to: &'static str,
}

/// All indexes begin with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberPlace {
    /// In the order of the file.
    Stored {
        /// The index of the row, where all axes but the last one count as one axis.
        row: usize,
        column: usize,
        /// With the block's index in the tensor.
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
        if found.is_finite() {
            write!(f, " is {found}, expected a number in the range of {to}; use a type with a larger range")
        } else {
            write!(f, " is {found}, expected a finite number; download or convert the model again")
        }
    }
}

impl std::error::Error for NotFinite {}
