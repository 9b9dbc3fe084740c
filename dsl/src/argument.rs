//! [`TraceArg`] is the trait of the types that a block's functions take and return.

use ops::ops::{MaskTerm, RopeLayout};

use crate::element::Element;
use crate::tracer::Raw;
use crate::{Axis, Tensor};

/// Tensors, and plain data on which a function's body may depend. Derive it for your own types.
pub trait TraceArg: Clone + 'static {
    /// Tensors in a fixed order, and plain data as bytes.
    #[doc(hidden)]
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>);
    /// A copy with other tensors, in the order of `flatten`.
    #[doc(hidden)]
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self;
}

impl<T: Element> TraceArg for Tensor<T> {
    fn flatten(&self, tensors: &mut Vec<Raw>, _: &mut Vec<u8>) {
        tensors.push(self.raw);
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        Self::new(tensors.next().unwrap_or(Raw::POISON))
    }
}

macro_rules! plain {
    ($($ty:ty => |$x:ident| $bytes:expr;)*) => {$(
        impl TraceArg for $ty {
            fn flatten(&self, _: &mut Vec<Raw>, data: &mut Vec<u8>) {
                let $x = self;
                data.extend_from_slice(&$bytes);
            }
            fn rebuild(&self, _: &mut dyn Iterator<Item = Raw>) -> Self {
                self.clone()
            }
        }
    )*};
}

plain! {
    bool => |x| [*x as u8];
    usize => |x| x.to_le_bytes();
    u32 => |x| x.to_le_bytes();
    i32 => |x| x.to_le_bytes();
    f32 => |x| x.to_bits().to_le_bytes();
    f64 => |x| x.to_bits().to_le_bytes();
    String => |x| [&x.len().to_le_bytes()[..], x.as_bytes()].concat();
    &'static str => |x| [&x.len().to_le_bytes()[..], x.as_bytes()].concat();
    Axis => |x| [&x.0.len().to_le_bytes()[..], x.0.as_bytes()].concat();
    ops::Real => |x| x.0.to_bits().to_le_bytes();
    MaskTerm => |x| {
        let mut text = String::new();
        ops::Attribute::print(x, &mut text);
        [text.as_bytes(), b";"].concat()
    };
    RopeLayout => |x| [*x as u8];
    () => |_x| [];
}

impl<A: TraceArg> TraceArg for Option<A> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        data.push(self.is_some().into());
        self.iter().for_each(|item| item.flatten(tensors, data));
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        self.as_ref().map(|item| item.rebuild(tensors))
    }
}

impl<A: TraceArg> TraceArg for Vec<A> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        data.extend_from_slice(&self.len().to_le_bytes());
        self.iter().for_each(|item| item.flatten(tensors, data));
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        self.iter().map(|item| item.rebuild(tensors)).collect()
    }
}

impl<A: TraceArg, const N: usize> TraceArg for [A; N] {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        self.iter().for_each(|item| item.flatten(tensors, data));
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        self.each_ref().map(|item| item.rebuild(tensors))
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: TraceArg),+> TraceArg for ($($name,)+) {
            fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
                $(self.$index.flatten(tensors, data);)+
            }
            fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
                ($(self.$index.rebuild(tensors),)+)
            }
        }
    )*};
}

tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

macro_rules! trace_arg {
    ($name:ident $(<$t:ident>)? { $($field:ident),* }) => {
        impl $(<$t: crate::Float>)? crate::TraceArg for $name $(<$t>)? {
            fn flatten(&self, tensors: &mut Vec<crate::tracer::Raw>, data: &mut Vec<u8>) {
                $(self.$field.flatten(tensors, data);)*
            }
            fn rebuild(&self, tensors: &mut dyn Iterator<Item = crate::tracer::Raw>) -> Self {
                Self { $($field: self.$field.rebuild(tensors)),* }
            }
        }
    };
}
pub(crate) use trace_arg;
