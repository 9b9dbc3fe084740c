//! [`Tensor`] is the handle of a tensor in the body of a function such as `forward`.

use std::marker::PhantomData;
use std::panic::Location;

use ops::ops::{
    Binary, BinaryKind, Concatenate, Constant, Convert, DynamicSlice, Narrow, Permute, Reduce, ReduceKind,
    Reshape,
};
use ops::{ElementType, Literal, TensorType};

use crate::element::{Element, F32, Float, I32};
use crate::tracer::{self, Tracer};
pub(crate) use crate::tracer::{Place, Raw};
use crate::{Axis, Dim, NamedType, TraceErrorKind};

/// A handle of a tensor in a trace whose recording is in progress. The handle is small and
/// implements `Copy`. The axes of the tensor have names.
///
/// Elementwise operators take two tensors of the same element type, and align the tensors' axes by name. The
/// axes of one tensor must include all axes of the other tensor. Weights, constants, integers and booleans are
/// repeated along the axes that they lack, and activations only by [`broadcast`](Self::broadcast). If an
/// operation is invalid, [`trace`](crate::trace) returns an error with the line of your code. The invalid
/// operation returns a handle that causes no further errors.
///
/// A handle cannot leave its thread, because the open trace is thread-local.
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
        write!(f, "Tensor<{}>(%{})", T::element(), self.raw.node)
    }
}

pub(crate) fn axes(dims: &[Dim]) -> Vec<Axis> {
    dims.iter().map(|d| d.axis).collect()
}

pub(crate) fn extents(dims: &[Dim]) -> Vec<usize> {
    dims.iter().map(|d| d.extent).collect()
}

impl<T: Element> Tensor<T> {
    pub(crate) fn new(raw: Raw) -> Self {
        Self { raw, of: PhantomData }
    }

    /// Runs `f` on the open tracer and this tensor's type. The method returns an error handle if no
    /// trace is open or the tensor belongs to another trace.
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

    /// Calls [`Tensor::apply`] with the index of `axis`, which this tensor must have.
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

    /// Creates a constant without axes, rounded to the element type.
    #[track_caller]
    pub fn scalar(value: f64) -> Self {
        let place = Location::caller();
        let value = Literal::splat(TensorType::new(T::element(), []), value);
        Self::new(tracer::with(|t| t.op(None, Constant { value }, &[], &[], place)).unwrap_or(Raw::POISON))
    }

    /// Creates a constant with the axes `dims`. The shape of `literal` must be the list of the axes' extents.
    #[track_caller]
    pub fn constant(literal: Literal, axes: &[Axis]) -> Self {
        let place = Location::caller();
        let raw = tracer::with(|t| t.op(None, Constant { value: literal }, &[], axes, place));
        Self::new(raw.unwrap_or(Raw::POISON))
    }

    /// Creates a constant that contains the given numbers along one axis, rounded to the element type.
    #[track_caller]
    pub fn numbers(values: &[f64], axis: Axis) -> Self {
        let ty = TensorType::new(T::element(), [values.len()]);
        let data = values.iter().map(|&value| T::element().round(value)).collect();
        Self::constant(Literal::from_value(&ops::Value { ty, data }), &[axis])
    }

    /// The number of elements along an axis. After an error, the number is 0.
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

    /// The number of elements along each axis, from the first axis to the last axis. After an error,
    /// the list is empty.
    #[track_caller]
    pub fn shape(self) -> Vec<usize> {
        self.dims(Location::caller()).into_iter().map(|dim| dim.extent).collect()
    }

    /// The axes of the tensor, from the first axis to the last axis. After an error, the list is empty.
    pub(crate) fn dims(self, place: Place) -> Vec<Dim> {
        tracer::with(|t| t.named_type(self.raw, place)).flatten().map_or_else(Vec::new, |ty| ty.dims)
    }

    /// Converts the elements to another element type.
    #[track_caller]
    pub fn to<U: Element>(self) -> Tensor<U> {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| {
            if ty.element == U::element() {
                raw
            } else {
                t.op(None, Convert { to: U::element() }, &[raw], &axes(&ty.dims), place)
            }
        })
    }

    /// Renames the axis `from` to `to`.
    #[track_caller]
    pub fn rename(self, from: Axis, to: Axis) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "rename", from, |t, raw, ty, position| {
            if from != to && ty.dims.iter().any(|d| d.axis == to) {
                return t.fail(TraceErrorKind::Repeated { op: "rename", axis: to, ty }, place);
            }
            let mut names = axes(&ty.dims);
            names[position] = to;
            // A node stores the names of its axes, so a new name needs a new node. The new node is
            // a reshape to the same shape.
            t.op(None, Reshape { shape: extents(&ty.dims) }, &[raw], &names, place)
        })
    }

    /// Permutes the axes of this tensor to the given order. The order must contain each axis exactly once.
    #[track_caller]
    pub fn permute(self, order: &[Axis]) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| permuted(t, raw, ty, order, place))
    }

    /// Selects the indices `start..start + length` along an axis.
    #[track_caller]
    pub fn narrow(self, axis: Axis, start: usize, length: usize) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "narrow", axis, |t, raw, ty, position| {
            t.op(None, Narrow { axis: position, start, length }, &[raw], &axes(&ty.dims), place)
        })
    }

    /// Splits an axis into pieces of the given lengths. The sum of the lengths must be the extent
    /// of the axis.
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

    /// Selects `length` indices along an axis from the index `start` on. The compiled program
    /// computes `start` at run time, and clamps `start`, so all selected indices exist.
    #[track_caller]
    pub fn dynamic_narrow(self, axis: Axis, start: Tensor<I32>, length: usize) -> Self {
        let place = Location::caller();
        self.apply_axis(place, "dynamic_narrow", axis, |t, raw, ty, position| {
            let slice = DynamicSlice { axis: position, length };
            t.op(None, slice, &[raw, start.raw], &axes(&ty.dims), place)
        })
    }

    /// Merges several axes into one axis. Along the merged axis, the index of the first axis in
    /// `axes` varies slowest. The merged axis has the position of the foremost axis in `axes`.
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

    /// Splits an axis into several axes. The index of the first new axis varies slowest. The
    /// product of the new extents must be the extent of the axis.
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

    /// Adds the elements along an axis, and removes this axis.
    #[track_caller]
    pub fn sum(self, axis: Axis) -> Self {
        self.reduce("sum", ReduceKind::Add, axis, Location::caller())
    }

    /// Returns the largest element along an axis, and removes this axis.
    #[track_caller]
    pub fn max(self, axis: Axis) -> Self {
        self.reduce("max", ReduceKind::Maximum, axis, Location::caller())
    }

    /// Returns the smallest element along an axis, and removes this axis.
    #[track_caller]
    pub fn min(self, axis: Axis) -> Self {
        self.reduce("min", ReduceKind::Minimum, axis, Location::caller())
    }

    /// Computes the mean along an axis, and removes this axis.
    #[track_caller]
    pub fn mean(self, axis: Axis) -> Self
    where
        T: Float,
    {
        let place = Location::caller();
        let extent = self.dims(place).iter().find(|d| d.axis == axis).map_or(1, |d| d.extent);
        self.reduce("mean", ReduceKind::Add, axis, place) / extent as f64
    }

    fn reduce(self, name: &'static str, kind: ReduceKind, axis: Axis, place: Place) -> Self {
        self.apply_axis(place, name, axis, |t, raw, mut ty, position| {
            ty.dims.remove(position);
            t.op(None, Reduce { kind, axes: vec![position] }, &[raw], &axes(&ty.dims), place)
        })
    }

    /// The cumulative sum along an axis: element i becomes the sum of the elements 0 to i.
    ///
    /// The function needs ⌈log₂ n⌉ additions per element (Hillis and Steele, "Data Parallel
    /// Algorithms", 1986). Each addition of f32 numbers rounds once. The function computes sums of
    /// f16 and bf16 in f32, and rounds the results at the end. Sums of integers wrap around.
    #[track_caller]
    pub fn cumsum(self, axis: Axis) -> Self {
        let place = Location::caller();
        match T::element() {
            ElementType::F16 | ElementType::Bf16 => self.to::<F32>().summed_up(axis, place).to(),
            _ => self.summed_up(axis, place),
        }
    }

    fn summed_up(self, axis: Axis, place: Place) -> Self {
        self.apply_axis(place, "cumsum", axis, |t, raw, ty, position| {
            let (names, extent) = (axes(&ty.dims), ty.dims[position].extent);
            let distances = std::iter::successors(Some(1), |distance| Some(distance * 2));
            // Each step adds the sum of the previous `distance` elements, and so doubles the number
            // of elements in each sum.
            distances.take_while(|distance| *distance < extent).fold(raw, |sums, distance| {
                let mut shape = extents(&ty.dims);
                shape[position] = distance;
                let nothing = Constant { value: Literal::splat(TensorType::new(T::element(), shape), 0.0) };
                let nothing = t.op(None, nothing, &[], &names, place);
                let narrow = Narrow { axis: position, start: 0, length: extent - distance };
                let before = t.op(None, narrow, &[sums], &names, place);
                let concatenate = Concatenate { axis: position };
                let before = t.op(None, concatenate, &[nothing, before], &names, place);
                t.op(None, Binary { kind: BinaryKind::Add }, &[sums, before], &names, place)
            })
        })
    }

    /// Concatenates tensors along an axis that all tensors have. The tensors must have equal axes,
    /// except for the axis of the concatenation.
    #[track_caller]
    pub fn concat(tensors: &[Self], axis: Axis) -> Self {
        let place = Location::caller();
        Self::joined("concat", tensors, Some(axis), place, |t, raws, ty| match ty.position(axis) {
            Some(position) => t.op(None, Concatenate { axis: position }, raws, &axes(&ty.dims), place),
            None => t.fail(TraceErrorKind::NoAxis { op: "concat", axis, ty: ty.clone() }, place),
        })
    }

    /// Stacks tensors with the same axes along a new axis, which becomes the first axis of the result.
    #[track_caller]
    pub fn stack(tensors: &[Self], axis: Axis) -> Self {
        let place = Location::caller();
        Self::joined("stack", tensors, None, place, |t, raws, ty| {
            if ty.position(axis).is_some() {
                return t.fail(TraceErrorKind::Repeated { op: "stack", axis, ty: ty.clone() }, place);
            }
            let names = [&[axis], &axes(&ty.dims)[..]].concat();
            let shape = [&[1], &extents(&ty.dims)[..]].concat();
            let layers: Vec<Raw> = raws
                .iter()
                .map(|raw| t.op(None, Reshape { shape: shape.clone() }, &[*raw], &names, place))
                .collect();
            t.op(None, Concatenate { axis: 0 }, &layers, &names, place)
        })
    }

    /// Reorders the axes of all tensors like the axes of the first tensor, and runs `join` on the
    /// result. The extents of the tensors must be equal, except along the axis `along`.
    fn joined(
        op: &'static str,
        tensors: &[Self],
        along: Option<Axis>,
        place: Place,
        join: impl FnOnce(&mut Tracer, &[Raw], &NamedType) -> Raw,
    ) -> Self {
        let raw = tracer::with(|t| {
            let types: Option<Vec<NamedType>> =
                tensors.iter().map(|tensor| t.named_type(tensor.raw, place)).collect();
            let types = types?;
            let Some(first) = types.first().cloned() else {
                return Some(t.op(None, Concatenate { axis: 0 }, &[], &[], place));
            };
            let order = axes(&first.dims);
            let mut raws = Vec::with_capacity(types.len());
            for (tensor, ty) in tensors.iter().zip(types) {
                let lacks = |of: &NamedType, other: &NamedType| {
                    other.dims.iter().map(|d| d.axis).find(|axis| of.position(*axis).is_none())
                };
                let missing = lacks(&ty, &first).map(|axis| (axis, ty.clone()));
                let missing = missing.or_else(|| lacks(&first, &ty).map(|axis| (axis, first.clone())));
                if let Some((axis, ty)) = missing {
                    return Some(t.fail(TraceErrorKind::NoAxis { op, axis, ty }, place));
                }
                let differs = |d: &&Dim| Some(d.axis) != along && !first.dims.contains(d);
                if let Some(axis) = ty.dims.iter().find(differs).map(|d| d.axis) {
                    let both = [tensors[0].raw, tensor.raw];
                    return Some(fail_extents(t, op, axis, &both, (first, ty), place));
                }
                raws.push(permuted(t, tensor.raw, ty, &order, place));
            }
            Some(join(t, &raws, &first))
        });
        Tensor::new(raw.flatten().unwrap_or(Raw::POISON))
    }
}

/// Computes an order in which the axes `merged` are next to each other, at the position of the
/// foremost of these axes. Returns the order of the axes, and the position of the merged axes.
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

/// Whether two tensors have equal extents along all common axes. If the extents differ, the trace fails.
pub(crate) fn extents_agree(
    t: &mut Tracer,
    op: &'static str,
    (a, left): (Raw, &NamedType),
    (b, right): (Raw, &NamedType),
    place: Place,
) -> bool {
    let differs = |d: &&Dim| right.dims.iter().any(|e| e.axis == d.axis && e.extent != d.extent);
    match left.dims.iter().find(differs) {
        None => true,
        Some(d) => {
            fail_extents(t, op, d.axis, &[a, b], (left.clone(), right.clone()), place);
            false
        }
    }
}

/// Fails the trace, because two tensors have different extents along `axis`. If a `rename` gave the
/// axis its name, the error mentions this `rename`.
pub(crate) fn fail_extents(
    t: &mut Tracer,
    op: &'static str,
    axis: Axis,
    tensors: &[Raw],
    (left, right): (NamedType, NamedType),
    place: Place,
) -> Raw {
    let mut kind = TraceErrorKind::Extents { op, axis, left, right };
    let origin = t.origin();
    if let Some((from, at)) = tensors.iter().find_map(|raw| origin?.renamed_at(raw.id(), axis)) {
        kind = TraceErrorKind::Renamed { kind: Box::new(kind), from: from.into(), axis, at: at.clone() };
    }
    t.fail(kind, place)
}
