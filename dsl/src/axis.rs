//! [`Axis`] is the name of an axis. [`Dim`] is an axis with an extent.

use std::fmt;

use trace::AxisName;

/// The name of an axis. In the body of each function of [`model!`](crate::model), every axis name
/// is a constant of this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Axis(pub &'static str);

impl Axis {
    /// Creates a [`Dim`] with `extent` elements along this axis.
    pub const fn of(self, extent: usize) -> Dim {
        Dim { axis: self, extent }
    }

    /// An `Axis` borrows a constant of the program, whereas a node owns its names.
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

/// An axis with its extent. The extent is the number of elements along the axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Dim {
    /// The name of the axis.
    pub axis: Axis,
    /// The number of elements along the axis.
    pub extent: usize,
}

/// Converts `("B", 8)` to the axis B with extent 8.
impl From<(&'static str, usize)> for Dim {
    fn from((name, extent): (&'static str, usize)) -> Self {
        Axis(name).of(extent)
    }
}
