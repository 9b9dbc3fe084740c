//! Element types as Rust types, so that mixing two of them is a compile error.

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
    /// IEEE 754 binary32: 8 bits of exponent, 23 of fraction.
    F32 = F32: Float;
    /// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
    F16 = F16: Float;
    /// bfloat16: 8 bits of exponent, 7 of fraction.
    Bf16 = Bf16: Float;
    /// A signed integer of 32 bits, for token ids and indices.
    I32 = I32;
    /// A signed integer of 8 bits, for quantized values.
    I8 = I8;
    /// A truth value, `i1` in StableHLO.
    Bool = I1;
}
