//! Named axes and their extents.

use std::fmt;

use trace::AxisName;

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
