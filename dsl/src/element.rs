//! Element types of tensors as Rust types. An operation on tensors with different element types is
//! a compile error.

use ops::ElementType;

/// A Rust type that represents an element type.
pub trait Element: Copy + 'static {
    /// The element type that this Rust type represents.
    const TYPE: ElementType;
}

/// An element type that weights and activations can have.
pub trait Float: Element {}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident = $ty:ident $(: $float:ident)?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Element for $name {
            const TYPE: ElementType = ElementType::$ty;
        }
        $(impl $float for $name {})?
    )*};
}

elements! {
    /// IEEE 754 binary32, with 8 exponent bits and 23 fraction bits.
    F32 = F32: Float;
    /// IEEE 754 binary16, with 5 exponent bits and 10 fraction bits.
    F16 = F16: Float;
    /// bfloat16, with 8 exponent bits and 7 fraction bits.
    Bf16 = Bf16: Float;
    /// A signed integer of 32 bits, for token ids and indices.
    I32 = I32;
    /// A signed integer of 8 bits, for quantized values.
    I8 = I8;
    /// A truth value, `i1` in StableHLO.
    Bool = I1;
}
