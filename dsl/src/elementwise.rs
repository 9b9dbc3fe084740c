//! Elementwise functions, and the alignment of tensors with different axes.

use std::ops::{Add, Div, Mul, Neg, Not, Sub};
use std::panic::Location;

use ops::ops::{Binary, BinaryKind, BroadcastInDim, Compare, Constant, Direction, Select, Unary, UnaryKind};
use ops::{ElementType, Literal, TensorType};

use crate::element::{Bool, Element, Float};
use crate::tensor::{Place, Raw, axes, extents, extents_agree};
use crate::tracer::{self, Tracer};
use crate::{Dim, NamedType, Tensor, TraceErrorKind};

/// The second operand of an elementwise function: a tensor, or a number that applies to all elements.
#[derive(Clone, Copy)]
pub enum TensorOrNumber<T: Element> {
    /// A tensor, whose axes Tracewright aligns by name with the axes of the first operand.
    Elements(Tensor<T>),
    /// A number that applies to every element.
    Number(f64),
}

impl<T: Element> From<Tensor<T>> for TensorOrNumber<T> {
    fn from(tensor: Tensor<T>) -> Self {
        Self::Elements(tensor)
    }
}

impl<T: Element> From<f64> for TensorOrNumber<T> {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl<T: Element> From<i32> for TensorOrNumber<T> {
    fn from(number: i32) -> Self {
        Self::Number(number.into())
    }
}

/// To exactly the axes `to`, which include all of `raw`.
pub(crate) fn broadcast(t: &mut Tracer, raw: Raw, from: &NamedType, to: &[Dim], place: Place) -> Raw {
    if from.dims == to {
        return raw;
    }
    let position = |d: &Dim| to.iter().position(|to| to.axis == d.axis).unwrap_or(usize::MAX);
    let op = BroadcastInDim { shape: extents(to), axes: from.dims.iter().map(position).collect() };
    t.op(None, op, &[raw], &axes(to), place)
}

/// The smaller is broadcast to the axes of the larger.
fn align(t: &mut Tracer, op: &'static str, a: Raw, b: Raw, place: Place) -> Option<(Raw, Raw, Vec<Dim>)> {
    let (left, right) = (t.named_type(a, place)?, t.named_type(b, place)?);
    if !extents_agree(t, op, (a, &left), (b, &right), place) {
        return None;
    }
    let includes = |a: &NamedType, b: &NamedType| b.dims.iter().all(|d| a.dims.contains(d));
    let (large, small, dims) = match (includes(&left, &right), includes(&right, &left)) {
        (true, _) => ((a, &left), (b, &right), &left.dims),
        (_, true) => ((b, &right), (a, &left), &right.dims),
        _ => {
            t.fail(TraceErrorKind::Axes { op, left, right }, place);
            return None;
        }
    };
    if let Some(missing) = dims.iter().find(|d| !small.1.dims.contains(d))
        && let Some(origin) = t.origin()
        && !origin.may_be_repeated(small.0.id(), large.0.id())
    {
        let lost = origin.lost_at(small.0.id(), missing.axis).cloned().map(Box::new);
        let (small, large) = (small.1.clone(), large.1.clone());
        t.fail(TraceErrorKind::Repeats { op, axis: missing.axis, small, large, lost }, place);
        return None;
    }
    Some((broadcast(t, a, &left, dims, place), broadcast(t, b, &right, dims, place), dims.clone()))
}

fn splat(t: &mut Tracer, element: ElementType, dims: &[Dim], value: f64, place: Place) -> Raw {
    let value = Literal::splat(TensorType::new(element, extents(dims)), value);
    t.op(None, Constant { value }, &[], &axes(dims), place)
}

/// Two numbers become tensors with the axes `dims`.
fn meet<T: Element>(
    t: &mut Tracer,
    op: &'static str,
    (a, b): (TensorOrNumber<T>, TensorOrNumber<T>),
    dims: &[Dim],
    place: Place,
) -> Option<(Raw, Raw, Vec<Dim>)> {
    let mut number = |dims: &[Dim], value| splat(t, T::element(), dims, value, place);
    match (a, b) {
        (TensorOrNumber::Elements(a), TensorOrNumber::Elements(b)) => align(t, op, a.raw, b.raw, place),
        (TensorOrNumber::Number(a), TensorOrNumber::Number(b)) => {
            Some((number(dims, a), number(dims, b), dims.to_vec()))
        }
        (TensorOrNumber::Elements(a), TensorOrNumber::Number(b)) => {
            let dims = t.named_type(a.raw, place)?.dims;
            Some((a.raw, splat(t, T::element(), &dims, b, place), dims))
        }
        (TensorOrNumber::Number(a), TensorOrNumber::Elements(b)) => {
            let dims = t.named_type(b.raw, place)?.dims;
            Some((splat(t, T::element(), &dims, a, place), b.raw, dims))
        }
    }
}

/// Applies an operation to two operands after aligning their axes.
fn elementwise<T: Element, U: Element>(
    name: &'static str,
    operands: (TensorOrNumber<T>, TensorOrNumber<T>),
    op: impl Into<ops::Op>,
    place: Place,
) -> Tensor<U> {
    let raw = tracer::with(|t| match meet(t, name, operands, &[], place) {
        Some((a, b, dims)) => t.op(None, op, &[a, b], &axes(&dims), place),
        None => Raw::POISON,
    });
    Tensor::new(raw.unwrap_or(Raw::POISON))
}

impl<T: Element> Tensor<T> {
    pub(crate) fn unary(self, op: impl Into<ops::Op>, place: Place) -> Self {
        self.apply(place, |t, raw, ty| t.op(None, op, &[raw], &axes(&ty.dims), place))
    }

    fn binary(
        self,
        name: &'static str,
        kind: BinaryKind,
        other: impl Into<TensorOrNumber<T>>,
        place: Place,
    ) -> Self {
        elementwise(name, (self.into(), other.into()), Binary { kind }, place)
    }

    fn compared(
        self,
        other: impl Into<TensorOrNumber<T>>,
        direction: Direction,
        place: Place,
    ) -> Tensor<Bool> {
        elementwise("compare", (self.into(), other.into()), Compare { direction }, place)
    }

    /// Repeats along axes that only `like` has; its own come first, then those of `like`. The outer sum of
    /// `a` and `b` is `a.broadcast(b) + b.broadcast(a)`.
    #[track_caller]
    pub fn broadcast<U: Element>(self, like: Tensor<U>) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| {
            let Some(to) = t.named_type(like.raw, place) else { return Raw::POISON };
            if !extents_agree(t, "broadcast", (raw, &ty), (like.raw, &to), place) {
                return Raw::POISON;
            }
            let own = ty.dims.iter().filter(|d| !to.dims.contains(d));
            let dims: Vec<Dim> = own.chain(&to.dims).copied().collect();
            broadcast(t, raw, &ty, &dims, place)
        })
    }

    /// Creates a tensor with the axes of this tensor. Every element of the new tensor is `value`.
    #[track_caller]
    pub fn filled(self, value: f64) -> Self {
        let place = Location::caller();
        self.apply(place, |t, _, ty| splat(t, ty.element, &ty.dims, value, place))
    }

    /// Computes the larger element of each pair of elements. The result is NaN if either element is NaN.
    #[track_caller]
    pub fn maximum(self, other: impl Into<TensorOrNumber<T>>) -> Self {
        self.binary("maximum", BinaryKind::Maximum, other, Location::caller())
    }

    /// Computes the smaller element of each pair of elements. The result is NaN if either element is NaN.
    #[track_caller]
    pub fn minimum(self, other: impl Into<TensorOrNumber<T>>) -> Self {
        self.binary("minimum", BinaryKind::Minimum, other, Location::caller())
    }

    /// Whether `self` = `other`, for each pair of elements. The result is false if either element is NaN.
    #[track_caller]
    pub fn equals(self, other: impl Into<TensorOrNumber<T>>) -> Tensor<Bool> {
        self.compared(other, Direction::Eq, Location::caller())
    }

    /// Whether `self` < `other`, for each pair of elements. The result is false if either element is NaN.
    #[track_caller]
    pub fn less(self, other: impl Into<TensorOrNumber<T>>) -> Tensor<Bool> {
        self.compared(other, Direction::Lt, Location::caller())
    }

    /// Whether `self` ≤ `other`, for each pair of elements. The result is false if either element is NaN.
    #[track_caller]
    pub fn less_equal(self, other: impl Into<TensorOrNumber<T>>) -> Tensor<Bool> {
        self.compared(other, Direction::Le, Location::caller())
    }

    /// The smallest integer of a type stays negative.
    #[track_caller]
    pub fn abs(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Abs }, Location::caller())
    }
}

impl<T: Float> Tensor<T> {
    /// eˣ for each element.
    #[track_caller]
    pub fn exp(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Exponential }, Location::caller())
    }

    /// ln x for each element. The result is −∞ for x = 0, and NaN for negative x.
    #[track_caller]
    pub fn ln(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Log }, Location::caller())
    }

    /// tanh x for each element.
    #[track_caller]
    pub fn tanh(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Tanh }, Location::caller())
    }

    /// The sigmoid 1 / (1 + e⁻ˣ) for each element.
    #[track_caller]
    pub fn logistic(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Logistic }, Location::caller())
    }

    /// √x for each element. The result is NaN for negative x.
    #[track_caller]
    pub fn sqrt(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Sqrt }, Location::caller())
    }

    /// 1 / √x for each element. The result is ∞ for x = 0.
    #[track_caller]
    pub fn rsqrt(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Rsqrt }, Location::caller())
    }

    /// Halves go to the even integer.
    #[track_caller]
    pub fn round(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Round }, Location::caller())
    }

    /// xʸ for each element, like `pow` of IEEE 754.
    #[track_caller]
    pub fn pow(self, exponent: impl Into<TensorOrNumber<T>>) -> Self {
        self.binary("power", BinaryKind::Power, exponent, Location::caller())
    }

    /// Computes for each element whether the element is NaN.
    #[track_caller]
    pub fn is_nan(self) -> Tensor<Bool> {
        self.compared(self, Direction::Ne, Location::caller())
    }
}

macro_rules! functions {
    ($($method:ident::$op:ident,)*) => {
        impl<T: Float> Tensor<T> {$(
            #[doc = concat!("[`", stringify!($op), "`](ops::ops::", stringify!($op), ") of each element.")]
            #[track_caller]
            pub fn $method(self) -> Self {
                self.unary(ops::ops::$op {}, Location::caller())
            }
        )*}
    };
}

ops::float_functions!(functions);

impl Tensor<Bool> {
    /// `yes` where this mask is true, else `no`; each a tensor or a number.
    #[doc(alias = "where")]
    #[track_caller]
    pub fn select<T: Element>(
        self,
        yes: impl Into<TensorOrNumber<T>>,
        no: impl Into<TensorOrNumber<T>>,
    ) -> Tensor<T> {
        let place = Location::caller();
        let operands = (yes.into(), no.into());
        self.apply(place, |t, raw, from| {
            let Some((mut yes, mut no, mut dims)) = meet(t, "select", operands, &from.dims, place) else {
                return Raw::POISON;
            };
            if dims.is_empty() {
                let one = NamedType { element: T::element(), dims };
                [yes, no] = [yes, no].map(|raw| broadcast(t, raw, &one, &from.dims, place));
                dims = from.dims.clone();
            }
            if let Some(d) = from.dims.iter().find(|d| !dims.contains(d)) {
                let ty = NamedType { element: T::element(), dims };
                return t.fail(TraceErrorKind::NoAxis { op: "select", axis: d.axis, ty }, place);
            }
            let predicate = broadcast(t, raw, &from, &dims, place);
            t.op(None, Select {}, &[predicate, yes, no], &axes(&dims), place)
        })
    }

    /// Whether both elements are true, for each pair of elements.
    #[track_caller]
    pub fn and(self, other: Self) -> Self {
        self.binary("and", BinaryKind::And, other, Location::caller())
    }

    /// Whether at least one of two elements is true, for each pair of elements.
    #[track_caller]
    pub fn or(self, other: Self) -> Self {
        self.binary("or", BinaryKind::Or, other, Location::caller())
    }
}

impl Not for Tensor<Bool> {
    type Output = Self;
    #[track_caller]
    fn not(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Not }, Location::caller())
    }
}

impl<T: Element> Neg for Tensor<T> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        self.unary(Unary { kind: UnaryKind::Negate }, Location::caller())
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $kind:ident $name:literal;)*) => {$(
        impl<T: Element> $trait for Tensor<T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, other: Self) -> Self {
                self.binary($name, BinaryKind::$kind, other, Location::caller())
            }
        }
        impl<T: Element> $trait<f64> for Tensor<T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, number: f64) -> Self {
                self.binary($name, BinaryKind::$kind, number, Location::caller())
            }
        }
        impl<T: Element> $trait<i32> for Tensor<T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, number: i32) -> Self {
                self.binary($name, BinaryKind::$kind, number, Location::caller())
            }
        }
        impl<T: Element> $trait<Tensor<T>> for f64 {
            type Output = Tensor<T>;
            #[track_caller]
            fn $method(self, tensor: Tensor<T>) -> Tensor<T> {
                let operands = (self.into(), tensor.into());
                elementwise($name, operands, Binary { kind: BinaryKind::$kind }, Location::caller())
            }
        }
    )*};
}

operators! {
    Add add Add "add";
    Sub sub Subtract "subtract";
    Mul mul Multiply "multiply";
    Div div Divide "divide";
}
