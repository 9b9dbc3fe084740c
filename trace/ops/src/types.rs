//! Element types and shapes of tensors.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// The type of each element in a tensor, with the same name as in StableHLO.
///
/// ```
/// use tracewright_ops::ElementType;
///
/// assert_eq!("bf16".parse(), Ok(ElementType::Bf16));
/// // Three numbers of 4 bits take two bytes.
/// assert_eq!(ElementType::I4.bytes(3), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    F32,
    F16,
    /// A 16-bit float, which is the upper half of an IEEE binary32 number.
    Bf16,
    I32,
    I8,
    /// Two's complement, two to a byte, the first in the low four bits. Only weights in archives have it.
    I4,
    /// A boolean in one byte.
    I1,
}

impl ElementType {
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::Bf16, Self::I32, Self::I8, Self::I4, Self::I1];

    /// Returns the name of the type in StableHLO, in the text form of traces and in archives.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I8 => "i8",
            Self::I4 => "i4",
            Self::I1 => "i1",
        }
    }

    pub fn bits(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::I8 | Self::I1 => 8,
            Self::I4 => 4,
        }
    }

    pub fn bytes(self, count: usize) -> usize {
        count.saturating_mul(self.bits()).div_ceil(8)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Not for `i1`.
    pub fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::I8 | Self::I4)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an element type; expected one of f32, f16, bf16, i32, i8, i4, i1")]
pub struct UnknownElementType(pub String);

impl FromStr for ElementType {
    type Err = UnknownElementType;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|e| e.name() == text).ok_or_else(|| UnknownElementType(text.into()))
    }
}

/// The type of a tensor: an element type and a static shape. The text form of a tensor type is, for
/// example, `bf16[2,3]`.
///
/// ```
/// use tracewright_ops::{ElementType, TensorType};
///
/// let ty = TensorType::new(ElementType::Bf16, [2, 3]);
/// assert_eq!((ty.to_string(), ty.mlir()), ("bf16[2,3]".into(), "tensor<2x3xbf16>".into()));
/// assert_eq!((ty.rank(), ty.count(), ty.bytes()), (2, 6, 12));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    pub element: ElementType,
    /// The extents of the axes, outermost axis first; the list is empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorType {
    pub fn new(element: ElementType, shape: impl Into<Vec<usize>>) -> Self {
        Self { element, shape: shape.into() }
    }

    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// `usize::MAX`, which exceeds any memory, if the number does not fit.
    pub fn count(&self) -> usize {
        self.shape.iter().fold(1, |count, &extent| count.saturating_mul(extent))
    }

    /// Returns the size of the tensor in bytes, if it is stored without gaps between the elements.
    pub fn bytes(&self) -> usize {
        self.element.bytes(self.count())
    }

    pub fn with_element(&self, element: ElementType) -> Self {
        Self { element, shape: self.shape.clone() }
    }

    /// Returns the same type with the extent `rows` of the first axis. The type of a scalar does not change.
    pub fn with_rows(&self, rows: usize) -> Self {
        let mut ty = self.clone();
        ty.shape.iter_mut().take(1).for_each(|extent| *extent = rows);
        ty
    }

    /// `tensor<2x3xbf16>`.
    pub fn mlir(&self) -> String {
        let mut text = String::with_capacity(32);
        text.push_str("tensor<");
        for extent in &self.shape {
            // Writing to a string cannot fail.
            let _ = write!(text, "{extent}x");
        }
        text.push_str(self.element.name());
        text.push('>');
        text
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        for (i, extent) in self.shape.iter().enumerate() {
            write!(f, "{}{extent}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}
