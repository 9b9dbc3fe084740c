//! An [`Array`] is a tensor in host memory, which a program takes as an argument or returns as a result.

use crate::{ElementType, TensorType, Value};
use half::{bf16, f16};

pub trait Number: Copy {
    const TYPE: ElementType;
    /// Appends the bytes of the number in little-endian order to a buffer.
    #[doc(hidden)]
    fn write(self, bytes: &mut Vec<u8>);
    #[doc(hidden)]
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($number:ty = $ty:ident;)*) => {$(
        impl Number for $number {
            const TYPE: ElementType = ElementType::$ty;
            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )*};
}

numbers! {
    f32 = F32;
    i32 = I32;
    bf16 = Bf16;
    f16 = F16;
}

/// A tensor in host memory, with its element type, its shape, its numbers, and optional names of its axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    ty: TensorType,
    axes: Vec<String>,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayError {
    #[error("the array has {found} numbers, expected {expected} for the shape {shape:?}")]
    Count { shape: Vec<usize>, expected: usize, found: usize },
    #[error(
        "the array has the type {ty}, but your code reads its numbers as {asked}; call `to_vec` with the \
        array's own element type"
    )]
    Element { ty: TensorType, asked: ElementType },
    #[error("the names of the axes are {names:?}, expected one name for each axis of {ty}")]
    Axes { ty: TensorType, names: Vec<String> },
}

impl Array {
    pub fn from_slice<T: Number>(numbers: &[T], shape: impl Into<Vec<usize>>) -> Result<Self, ArrayError> {
        let ty = TensorType::new(T::TYPE, shape.into());
        if ty.count() != numbers.len() {
            let (expected, found) = (ty.count(), numbers.len());
            return Err(ArrayError::Count { shape: ty.shape, expected, found });
        }
        let mut bytes = Vec::with_capacity(ty.bytes());
        numbers.iter().for_each(|number| number.write(&mut bytes));
        Ok(Self { ty, axes: Vec::new(), bytes })
    }

    /// Calls compare the names with those that the network declares.
    pub fn with_axes(mut self, names: &[&str]) -> Result<Self, ArrayError> {
        self.axes = names.iter().map(|name| (*name).to_owned()).collect();
        if self.axes.len() == self.ty.rank() {
            Ok(self)
        } else {
            Err(ArrayError::Axes { ty: self.ty, names: self.axes })
        }
    }

    pub fn from_bytes(ty: TensorType, axes: Vec<String>, bytes: Vec<u8>) -> Self {
        assert_eq!(bytes.len(), ty.bytes(), "storage of {ty}");
        Self { ty, axes, bytes }
    }

    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    pub fn axes(&self) -> &[String] {
        &self.axes
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn to_vec<T: Number>(&self) -> Result<Vec<T>, ArrayError> {
        if T::TYPE == self.ty.element {
            Ok(self.bytes.chunks_exact(size_of::<T>()).map(T::read).collect())
        } else {
            Err(ArrayError::Element { ty: self.ty.clone(), asked: T::TYPE })
        }
    }
}

impl From<&Value> for Array {
    fn from(value: &Value) -> Self {
        Self { ty: value.ty.clone(), axes: Vec::new(), bytes: value.to_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_others_are_refused() {
        let array = Array::from_slice(&[1.5f32, -2.0, 0.25, 4.0, 5.0, 6.0], [2, 3]).unwrap();
        assert_eq!(array.ty().to_string(), "f32[2,3]");
        assert_eq!(array.to_vec::<f32>().unwrap(), [1.5, -2.0, 0.25, 4.0, 5.0, 6.0]);
        let half = [bf16::from_f32(1.5), bf16::from_f32(-0.1)];
        assert_eq!(Array::from_slice(&half, [2]).unwrap().to_vec::<bf16>().unwrap(), half);
        let said = array.to_vec::<i32>().unwrap_err().to_string();
        assert!(
            said.starts_with("the array has the type f32[2,3], but your code reads its numbers as i32"),
            "{said}"
        );
        let said = Array::from_slice(&[1, 2, 3], [2, 2]).unwrap_err().to_string();
        assert_eq!(said, "the array has 3 numbers, expected 4 for the shape [2, 2]");
        let said = array.with_axes(&["B"]).unwrap_err().to_string();
        assert_eq!(said, "the names of the axes are [\"B\"], expected one name for each axis of f32[2,3]");
    }
}
