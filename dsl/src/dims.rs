//! The extents of axes that a model's `dims` declare.

use crate::axis::{Axis, Dim};
use crate::error::BuildError;

/// The extents that a model's `dims` declare.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Dims(pub Vec<Dim>);

impl Dims {
    /// Returns `axis` with the extent that `dims` declares.
    ///
    /// # Panics
    /// Panics if `dims` does not declare this axis. [`model!`](crate::model) checks at compile time
    /// that `dims` declares the axis.
    pub fn dim(&self, axis: Axis) -> Dim {
        match self.0.iter().find(|d| d.axis == axis) {
            Some(dim) => *dim,
            None => panic!("`dims` does not declare the axis `{axis}`"),
        }
    }

    /// The declared extent of `axis`; see [`Dims::dim`].
    pub fn extent(&self, axis: Axis) -> usize {
        self.dim(axis).extent
    }
}

/// Extents in the order of `dims`, and the first error. Without branches for errors, each network compiles
/// faster.
#[derive(Default)]
pub struct CheckedExtents {
    dims: Vec<Dim>,
    error: Option<BuildError>,
}

impl CheckedExtents {
    /// Adds an axis. `key` is the text of the extent in error messages.
    pub fn add(&mut self, axis: &'static str, key: &str, extent: usize) {
        if extent == 0 {
            self.fail(BuildError::Empty { key: key.into(), axis: axis.into() });
        }
        self.dims.push(Dim { axis: Axis(axis), extent });
    }

    /// The value of a sum or product with the text `key`. The value is `None` after an overflow.
    pub fn counted(&mut self, key: &str, extent: Option<usize>) -> usize {
        extent.unwrap_or_else(|| {
            self.fail(BuildError::Key {
                key: key.into(),
                found: "too large to count".into(),
                expected: "the extent of an axis".into(),
            })
        })
    }

    /// The exact quotient, from texts for errors and numbers. A divisor of 0 and a remainder are errors.
    pub fn divide(&mut self, dividend: (&str, usize), divisor: (&str, usize)) -> usize {
        match dividend.1.checked_rem(divisor.1) {
            Some(0) => dividend.1 / divisor.1,
            _ => self.fail(BuildError::Indivisible {
                dividend: dividend.0.into(),
                dividend_value: dividend.1,
                divisor: divisor.0.into(),
                divisor_value: divisor.1,
            }),
        }
    }

    fn fail(&mut self, error: BuildError) -> usize {
        self.error.get_or_insert(error);
        0
    }

    /// Returns the extents of all axes.
    ///
    /// # Errors
    /// Returns the first error of an extent.
    pub fn finish(self) -> Result<Dims, BuildError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(Dims(self.dims)),
        }
    }
}
