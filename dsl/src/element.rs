//! Element types of tensors as Rust types. An operation on tensors with different element types is
//! a compile error.

use std::cell::Cell;

use ops::ElementType;

/// A Rust type that represents an element type.
pub trait Element: Copy + 'static {
    /// Returns the element type that this Rust type represents.
    fn element() -> ElementType;
}

/// An element type that weights and activations can have.
pub trait Float: Element {}

macro_rules! elements {
    ($($(#[$doc:meta])* $name:ident = $ty:ident $(: $float:ident)?;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl Element for $name {
            fn element() -> ElementType {
                ElementType::$ty
            }
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

/// An element type that the program chooses when it records a network, with [`in_element`]. A program that
/// supports several element types contains the code of a network once, and not once for each element type.
///
/// ```
/// use ops::ElementType;
/// use tracewright_dsl::{AnyFloat, Element as _, in_element};
///
/// assert_eq!(in_element(ElementType::Bf16, AnyFloat::element), ElementType::Bf16);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AnyFloat;

thread_local! {
    static CHOSEN: Cell<ElementType> = const { Cell::new(ElementType::F32) };
}

impl Element for AnyFloat {
    /// For the running [`in_element`], or else f32.
    fn element() -> ElementType {
        CHOSEN.get()
    }
}

impl Float for AnyFloat {}

/// [`AnyFloat`] is `element` on this thread meanwhile, or f32 if that is no float.
pub fn in_element<R>(element: ElementType, record: impl FnOnce() -> R) -> R {
    /// Also when `record` panics.
    struct Restored(ElementType);

    impl Drop for Restored {
        fn drop(&mut self) {
            CHOSEN.set(self.0);
        }
    }

    let _restored = Restored(CHOSEN.replace(if element.is_float() { element } else { ElementType::F32 }));
    record()
}
