//! Named axes, and axes with their extents.

use std::fmt;

use trace::AxisName;

/// The name of an axis. In a `forward` body of [`model!`](crate::model) each axis name is a constant of this type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Axis(pub &'static str);

impl Axis {
    /// Creates a [`Dim`] from this axis and an extent, the number of its elements.
    pub const fn of(self, extent: usize) -> Dim {
        Dim { axis: self, extent }
    }

    /// Converts a node's axis name to an `Axis`. An `Axis` borrows constants of the program, whereas a trace
    /// owns its strings.
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

/// An axis with its extent, the number of its elements.
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
