//! What a value is (element type, shape, literal, parameter) and what one operation means.

mod types;

pub use types::{ElementType, TensorType, UnknownElementType};
