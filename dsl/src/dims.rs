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

/// Computes the exact quotient `dividend / divisor`. Each argument is a pair: a text for error
/// messages, and the number.
///
/// # Errors
/// Returns an error if the divisor is 0, or if the division has a remainder.
pub fn divide(dividend: (&str, usize), divisor: (&str, usize)) -> Result<usize, BuildError> {
    let indivisible = || BuildError::Indivisible {
        dividend: dividend.0.into(),
        dividend_value: dividend.1,
        divisor: divisor.0.into(),
        divisor_value: divisor.1,
    };
    match dividend.1.checked_rem(divisor.1) {
        Some(0) => Ok(dividend.1 / divisor.1),
        _ => Err(indivisible()),
    }
}
