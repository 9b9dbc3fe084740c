//! Named axes and their extents.

use std::fmt;

use trace::AxisName;

use crate::BuildError;

/// The name of an axis. In a `forward` body of [`model!`](crate::model) each axis name is a constant of this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Axis(pub &'static str);

impl Axis {
    /// The axis with this extent.
    pub const fn of(self, extent: usize) -> Dim {
        Dim { axis: self, extent }
    }

    /// The axis of a node. Names come from constants of the program, but a trace owns its text.
    pub(crate) fn named(name: &AxisName) -> Self {
        match name {
            AxisName::Borrowed(name) => Self(name),
            AxisName::Owned(_) => Self("?"),
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An axis with its extent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Dim {
    /// The name.
    pub axis: Axis,
    /// The extent.
    pub extent: usize,
}

/// `("B", 8)`
impl From<(&'static str, usize)> for Dim {
    fn from((name, extent): (&'static str, usize)) -> Self {
        Axis(name).of(extent)
    }
}

/// The extents that a model's `dims` declare.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Dims(pub Vec<Dim>);

impl Dims {
    /// The axis `axis` with its declared extent.
    ///
    /// # Panics
    /// If `dims` does not declare it: [`model!`](crate::model) has checked that it does.
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

/// `dividend / divisor`, which must be exact; both come with the text that names them.
///
/// # Errors
/// If the divisor is 0 or there is a remainder.
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
