//! Element types as Rust types: mixing two of them is a compile error.

use ops::ElementType;

/// A Rust type that stands for an element type.
pub trait Element: Copy + 'static {
    /// The element type.
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
    /// IEEE 754 binary32.
    F32 = F32: Float;
    /// IEEE 754 binary16.
    F16 = F16: Float;
    /// bfloat16.
    Bf16 = Bf16: Float;
    /// 32-bit integer.
    I32 = I32;
    /// 8-bit integer.
    I8 = I8;
    /// Truth value.
    Bool = I1;
}
