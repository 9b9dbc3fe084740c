//! The handle that forward bodies compute with.

use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::panic::Location;

use ops::ops::{
    Binary, BinaryKind, BroadcastInDim, Compare, Constant, Convert, Direction, DynamicSlice, Narrow, Permute,
    Reduce, ReduceKind, Reshape, Select, Unary, UnaryKind,
};
use ops::{Literal, TensorType};

use crate::element::{Bool, Element, Float, I32};
use crate::tracer::{self, Tracer};
pub(crate) use crate::tracer::{Place, Raw};
use crate::{Axis, Dim, NamedType, TraceErrorKind};

/// A tensor of a trace that is being recorded: a small handle, free to copy. Its axes have names.
///
/// Elementwise operators take two tensors of one element type and align them by name: the axes of one must
/// include those of the other, which is repeated along the rest. An operation that cannot be makes
/// [`trace`](crate::trace) fail with its place; the handle it returns is silent from then on.
///
/// It cannot leave its thread: the open trace belongs to one.
pub struct Tensor<T: Element> {
    pub(crate) raw: Raw,
    of: PhantomData<(T, *const ())>,
}

impl<T: Element> Clone for Tensor<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: Element> Copy for Tensor<T> {}

impl<T: Element> std::fmt::Debug for Tensor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor<{}>(%{})", T::TYPE, self.raw.node)
    }
}

pub(crate) fn axes(dims: &[Dim]) -> Vec<Axis> {
    dims.iter().map(|d| d.axis).collect()
}

pub(crate) fn extents(dims: &[Dim]) -> Vec<usize> {
    dims.iter().map(|d| d.extent).collect()
}

/// Repeats and reorders `raw` so that it has exactly the axes `to`, which include its own.
pub(crate) fn broadcast(t: &mut Tracer, raw: Raw, from: &NamedType, to: &[Dim], place: Place) -> Raw {
    if from.dims == to {
        return raw;
    }
    let position = |d: &Dim| to.iter().position(|to| to.axis == d.axis).unwrap_or(usize::MAX);
    let op = BroadcastInDim { shape: extents(to), axes: from.dims.iter().map(position).collect() };
    t.op(None, op, &[raw], &axes(to), place)
}

/// Brings two tensors to the axes of the one that has more. Returns both and those axes.
fn align(t: &mut Tracer, name: &'static str, a: Raw, b: Raw, place: Place) -> Option<(Raw, Raw, Vec<Dim>)> {
    let (left, right) = (t.named_type(a, place)?, t.named_type(b, place)?);
    for d in &left.dims {
        if right.dims.iter().any(|e| e.axis == d.axis && e.extent != d.extent) {
            t.fail(TraceErrorKind::Extents { op: name, axis: d.axis, left, right }, place);
            return None;
        }
    }
    let includes = |a: &NamedType, b: &NamedType| b.dims.iter().all(|d| a.dims.contains(d));
    let dims = if includes(&left, &right) {
        left.dims.clone()
    } else if includes(&right, &left) {
        right.dims.clone()
    } else {
        t.fail(TraceErrorKind::Axes { op: name, left, right }, place);
        return None;
    };
    Some((broadcast(t, a, &left, &dims, place), broadcast(t, b, &right, &dims, place), dims))
}

impl<T: Element> Tensor<T> {
    pub(crate) fn new(raw: Raw) -> Self {
        Self { raw, of: PhantomData }
    }

    /// Runs `f` on the open tracer and this tensor's type; poisoned if there is none or the handle means nothing.
    pub(crate) fn apply<U: Element>(
        self,
        place: Place,
        f: impl FnOnce(&mut Tracer, Raw, NamedType) -> Raw,
    ) -> Tensor<U> {
        let raw = tracer::with(|t| match t.named_type(self.raw, place) {
            Some(ty) => f(t, self.raw, ty),
            None => Raw::POISON,
        });
        Tensor::new(raw.unwrap_or(Raw::POISON))
    }

    /// [`Tensor::apply`] at the position of `axis`, which must be one of this tensor's.
    pub(crate) fn apply_axis<U: Element>(
        self,
        place: Place,
        op: &'static str,
        axis: Axis,
        f: impl FnOnce(&mut Tracer, Raw, NamedType, usize) -> Raw,
    ) -> Tensor<U> {
        self.apply(place, |t, raw, ty| match ty.position(axis) {
            Some(position) => f(t, raw, ty, position),
            None => t.fail(TraceErrorKind::NoAxis { op, axis, ty }, place),
        })
    }

    fn aligned<U: Element>(
        self,
        name: &'static str,
        other: Self,
        op: impl Into<ops::Op>,
        place: Place,
    ) -> Tensor<U> {
        let raw = tracer::with(|t| match align(t, name, self.raw, other.raw, place) {
            Some((a, b, dims)) => t.op(None, op, &[a, b], &axes(&dims), place),
            None => Raw::POISON,
        });
        Tensor::new(raw.unwrap_or(Raw::POISON))
    }

    fn with_number(self, kind: BinaryKind, value: f64, reversed: bool, place: Place) -> Self {
        self.apply(place, |t, raw, ty| {
            let axes = axes(&ty.dims);
            let value = Literal::splat(TensorType::new(ty.element, extents(&ty.dims)), value);
            let number = t.op(None, Constant { value }, &[], &axes, place);
            let operands = if reversed { [number, raw] } else { [raw, number] };
            t.op(None, Binary { kind }, &operands, &axes, place)
        })
    }

    /// A tensor without axes.
    #[track_caller]
    pub fn scalar(value: f64) -> Self {
        let place = Location::caller();
        let value = Literal::splat(TensorType::new(T::TYPE, []), value);
        Self::new(tracer::with(|t| t.op(None, Constant { value }, &[], &[], place)).unwrap_or(Raw::POISON))
    }

    /// A constant with these axes; `literal` must have their extents.
    #[track_caller]
    pub fn constant(literal: Literal, axes: &[Axis]) -> Self {
        let place = Location::caller();
        let raw = tracer::with(|t| t.op(None, Constant { value: literal }, &[], axes, place));
        Self::new(raw.unwrap_or(Raw::POISON))
    }

    /// The extent of an axis; 0 after an error.
    #[track_caller]
    pub fn extent(self, axis: Axis) -> usize {
        let place = Location::caller();
        self.dims(place).iter().find(|d| d.axis == axis).map_or_else(
            || {
                self.apply_axis::<T>(place, "extent", axis, |_, raw, _, _| raw);
                0
            },
            |d| d.extent,
        )
    }

    /// The axes in their order; none after an error.
    pub(crate) fn dims(self, place: Place) -> Vec<Dim> {
        tracer::with(|t| t.named_type(self.raw, place)).flatten().map_or_else(Vec::new, |ty| ty.dims)
    }

    /// The same numbers in another element type.
    #[track_caller]
    pub fn to<U: Element>(self) -> Tensor<U> {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| match ty.element == U::TYPE {
            true => raw,
            false => t.op(None, Convert { to: U::TYPE }, &[raw], &axes(&ty.dims), place),
        })
    }

    /// The axis `from` under the name `to`.
    #[track_caller]
    pub fn rename(self, from: Axis, to: Axis) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "rename", from, |t, raw, ty, position| {
            if from != to && ty.dims.iter().any(|d| d.axis == to) {
                return t.fail(TraceErrorKind::Repeated { op: "rename", axis: to, ty }, place);
            }
            let mut names = axes(&ty.dims);
            names[position] = to;
            // Names belong to nodes, so another name is another node: a reshape to the same shape.
            t.op(None, Reshape { shape: extents(&ty.dims) }, &[raw], &names, place)
        })
    }

    /// The same tensor with its axes in this order.
    #[track_caller]
    pub fn permute(self, order: &[Axis]) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| permuted(t, raw, ty, order, place))
    }

    /// The indices `start..start + length` of an axis.
    #[track_caller]
    pub fn narrow(self, axis: Axis, start: usize, length: usize) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "narrow", axis, |t, raw, ty, position| {
            t.op(None, Narrow { axis: position, start, length }, &[raw], &axes(&ty.dims), place)
        })
    }

    /// An axis cut into pieces of these lengths, which must add up to its extent.
    #[track_caller]
    pub fn split<const N: usize>(self, axis: Axis, lengths: [usize; N]) -> [Self; N] {
        let place = Location::caller();
        let checked = self.apply_axis::<T>(place, "split", axis, |t, raw, ty, position| {
            let (sum, extent) = (lengths.iter().sum::<usize>(), ty.dims[position].extent);
            if sum == extent {
                return raw;
            }
            let (found, expected) = (format!("pieces of {lengths:?}"), format!("a sum of {extent}"));
            t.fail(TraceErrorKind::Extent { op: "split", axis, ty, found, expected }, place)
        });
        let mut start = 0;
        lengths.map(|length| {
            start += length;
            checked.apply_axis(place, "split", axis, |t, raw, ty, position| {
                let op = Narrow { axis: position, start: start - length, length };
                t.op(None, op, &[raw], &axes(&ty.dims), place)
            })
        })
    }

    /// `length` indices of an axis from `start` (known at run time, clamped so that they fit) on.
    #[track_caller]
    pub fn dynamic_narrow(self, axis: Axis, start: Tensor<I32>, length: usize) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "dynamic_narrow", axis, |t, raw, ty, position| {
            let slice = DynamicSlice { axis: position, length };
            t.op(None, slice, &[raw, start.raw], &axes(&ty.dims), place)
        })
    }

    /// Neighbouring axes as one, the first varying slowest. They are brought together at the place of the first.
    #[track_caller]
    pub fn merge(self, merged: &[Axis], into: Axis) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| {
            let (order, at) = match together(&ty, merged) {
                Ok(order) => order,
                Err(axis) => return t.fail(TraceErrorKind::NoAxis { op: "merge", axis, ty }, place),
            };
            let raw = permuted(t, raw, ty.clone(), &order, place);
            let extent = ty.dims.iter().filter(|d| merged.contains(&d.axis)).map(|d| d.extent).product();
            let find = |axis: &Axis| ty.dims.iter().find(|d| d.axis == *axis).copied();
            let mut dims: Vec<Dim> = order.iter().filter_map(find).collect();
            dims.splice(at..at + merged.len(), [Dim { axis: into, extent }]);
            t.op(None, Reshape { shape: extents(&dims) }, &[raw], &axes(&dims), place)
        })
    }

    /// One axis as several, the first varying slowest; their extents must multiply to its own.
    #[track_caller]
    pub fn unmerge(self, axis: Axis, parts: &[Dim]) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "unmerge", axis, |t, raw, ty, position| {
            let (product, extent) =
                (parts.iter().map(|d| d.extent).product::<usize>(), ty.dims[position].extent);
            if product != extent {
                let (found, expected) =
                    (format!("parts of {:?}", extents(parts)), format!("a product of {extent}"));
                return t.fail(TraceErrorKind::Extent { op: "unmerge", axis, ty, found, expected }, place);
            }
            let mut dims = ty.dims.clone();
            dims.splice(position..=position, parts.iter().copied());
            let repeated = |(i, d): (usize, &Dim)| dims[..i].iter().any(|e| e.axis == d.axis);
            if let Some((_, d)) = dims.iter().enumerate().find(|&(i, d)| repeated((i, d))) {
                return t.fail(TraceErrorKind::Repeated { op: "unmerge", axis: d.axis, ty }, place);
            }
            t.op(None, Reshape { shape: extents(&dims) }, &[raw], &axes(&dims), place)
        })
    }

    /// The sum along an axis, which vanishes.
    #[track_caller]
    pub fn sum(self, axis: Axis) -> Self {
        self.reduce("sum", ReduceKind::Add, axis, Location::caller())
    }

    /// The largest element along an axis, which vanishes.
    #[track_caller]
    pub fn max(self, axis: Axis) -> Self {
        self.reduce("max", ReduceKind::Maximum, axis, Location::caller())
    }

    /// The smallest element along an axis, which vanishes.
    #[track_caller]
    pub fn min(self, axis: Axis) -> Self {
        self.reduce("min", ReduceKind::Minimum, axis, Location::caller())
    }

    /// The mean along an axis, which vanishes.
    #[track_caller]
    pub fn mean(self, axis: Axis) -> Self
    where
        T: Float,
    {
        let place = Location::caller();
        let extent = self.dims(place).iter().find(|d| d.axis == axis).map_or(1, |d| d.extent);
        self.reduce("mean", ReduceKind::Add, axis, place).with_number(
            BinaryKind::Divide,
            extent as f64,
            false,
            place,
        )
    }

    fn reduce(self, name: &'static str, kind: ReduceKind, axis: Axis, place: Place) -> Self {
        self.apply_axis(place, name, axis, |t, raw, mut ty, position| {
            ty.dims.remove(position);
            t.op(None, Reduce { kind, axes: vec![position] }, &[raw], &axes(&ty.dims), place)
        })
    }

    /// The larger of two, elementwise.
    #[track_caller]
    pub fn maximum(self, other: Self) -> Self {
        self.aligned("maximum", other, Binary { kind: BinaryKind::Maximum }, Location::caller())
    }

    /// The smaller of two, elementwise.
    #[track_caller]
    pub fn minimum(self, other: Self) -> Self {
        self.aligned("minimum", other, Binary { kind: BinaryKind::Minimum }, Location::caller())
    }

    fn compared(self, other: Self, direction: Direction, place: Place) -> Tensor<Bool> {
        self.aligned("compare", other, Compare { direction }, place)
    }

    /// self = other, elementwise.
    #[track_caller]
    pub fn equals(self, other: Self) -> Tensor<Bool> {
        self.compared(other, Direction::Eq, Location::caller())
    }

    /// self < other, elementwise.
    #[track_caller]
    pub fn less(self, other: Self) -> Tensor<Bool> {
        self.compared(other, Direction::Lt, Location::caller())
    }

    /// self ≤ other, elementwise.
    #[track_caller]
    pub fn less_equal(self, other: Self) -> Tensor<Bool> {
        self.compared(other, Direction::Le, Location::caller())
    }

    /// −∞ for a maximum and so on: a tensor like this one, every element `value`.
    #[track_caller]
    pub fn filled(self, value: f64) -> Self {
        let place = Location::caller();
        self.apply(place, |t, _, ty| {
            let value = Literal::splat(TensorType::new(ty.element, extents(&ty.dims)), value);
            t.op(None, Constant { value }, &[], &axes(&ty.dims), place)
        })
    }

    pub(crate) fn unary(self, kind: UnaryKind, place: Place) -> Self {
        self.apply(place, |t, raw, ty| t.op(None, Unary { kind }, &[raw], &axes(&ty.dims), place))
    }
}

/// Puts the axes `merged` next to each other at the place of the first. Returns the order and that place.
fn together(ty: &NamedType, merged: &[Axis]) -> Result<(Vec<Axis>, usize), Axis> {
    if let Some(missing) = merged.iter().find(|axis| ty.position(**axis).is_none()) {
        return Err(*missing);
    }
    let first = merged.iter().filter_map(|axis| ty.position(*axis)).min().unwrap_or(0);
    let rest = |d: &&Dim| !merged.contains(&d.axis);
    let before: Vec<Axis> = ty.dims[..first].iter().filter(rest).map(|d| d.axis).collect();
    let after = ty.dims[first..].iter().filter(rest).map(|d| d.axis);
    let at = before.len();
    Ok((before.into_iter().chain(merged.iter().copied()).chain(after).collect(), at))
}

pub(crate) fn permuted(t: &mut Tracer, raw: Raw, ty: NamedType, order: &[Axis], place: Place) -> Raw {
    let indices: Vec<usize> = order.iter().filter_map(|axis| ty.position(*axis)).collect();
    let mut sorted = indices.clone();
    sorted.sort_unstable();
    if order.len() != ty.dims.len() || !sorted.into_iter().eq(0..ty.dims.len()) {
        return t.fail(TraceErrorKind::Order { op: "permute", ty, axes: order.to_vec() }, place);
    }
    if indices.is_sorted() {
        return raw;
    }
    t.op(None, Permute { order: indices }, &[raw], order, place)
}

impl<T: Float> Tensor<T> {
    /// eˣ
    #[track_caller]
    pub fn exp(self) -> Self {
        self.unary(UnaryKind::Exponential, Location::caller())
    }

    /// tanh x
    #[track_caller]
    pub fn tanh(self) -> Self {
        self.unary(UnaryKind::Tanh, Location::caller())
    }

    /// 1 / (1 + e⁻ˣ)
    #[track_caller]
    pub fn logistic(self) -> Self {
        self.unary(UnaryKind::Logistic, Location::caller())
    }

    /// √x
    #[track_caller]
    pub fn sqrt(self) -> Self {
        self.unary(UnaryKind::Sqrt, Location::caller())
    }

    /// 1 / √x
    #[track_caller]
    pub fn rsqrt(self) -> Self {
        self.unary(UnaryKind::Rsqrt, Location::caller())
    }
}

impl Tensor<Bool> {
    /// Elementwise: `yes` where this is true, else `no`.
    #[track_caller]
    pub fn select<T: Element>(self, yes: Tensor<T>, no: Tensor<T>) -> Tensor<T> {
        let place = Location::caller();
        let raw = tracer::with(|t| {
            let (yes, no, dims) = align(t, "select", yes.raw, no.raw, place)?;
            let from = t.named_type(self.raw, place)?;
            if let Some(d) = from.dims.iter().find(|d| !dims.contains(d)) {
                let ty = NamedType { element: T::TYPE, dims };
                return Some(t.fail(TraceErrorKind::NoAxis { op: "select", axis: d.axis, ty }, place));
            }
            let predicate = broadcast(t, self.raw, &from, &dims, place);
            Some(t.op(None, Select {}, &[predicate, yes, no], &axes(&dims), place))
        });
        Tensor::new(raw.flatten().unwrap_or(Raw::POISON))
    }

    /// Both, elementwise.
    #[track_caller]
    pub fn and(self, other: Self) -> Self {
        self.aligned("and", other, Binary { kind: BinaryKind::And }, Location::caller())
    }

    /// Either, elementwise.
    #[track_caller]
    pub fn or(self, other: Self) -> Self {
        self.aligned("or", other, Binary { kind: BinaryKind::Or }, Location::caller())
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $kind:ident $name:literal;)*) => {$(
        impl<T: Element> $trait for Tensor<T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, other: Self) -> Self {
                self.aligned($name, other, Binary { kind: BinaryKind::$kind }, Location::caller())
            }
        }
        impl<T: Element> $trait<f64> for Tensor<T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, number: f64) -> Self {
                self.with_number(BinaryKind::$kind, number, false, Location::caller())
            }
        }
        impl<T: Element> $trait<i32> for Tensor<T> {
            type Output = Self;
            #[track_caller]
            fn $method(self, number: i32) -> Self {
                self.with_number(BinaryKind::$kind, number.into(), false, Location::caller())
            }
        }
        impl<T: Element> $trait<Tensor<T>> for f64 {
            type Output = Tensor<T>;
            #[track_caller]
            fn $method(self, tensor: Tensor<T>) -> Tensor<T> {
                tensor.with_number(BinaryKind::$kind, self, true, Location::caller())
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

impl<T: Element> Neg for Tensor<T> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        self.unary(UnaryKind::Negate, Location::caller())
    }
}
