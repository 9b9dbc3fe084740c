//! Functions that create indices, and functions that select elements by index.

use std::panic::Location;

use ops::TensorType;
use ops::ops::{DynamicSlice, Gather, Iota, Reshape};

use crate::element::{Element, I32};
use crate::elementwise::broadcast;
use crate::tensor::{axes, extents};
use crate::tracer::{self, Raw};
use crate::{Axis, Dim, Tensor, TraceErrorKind};

impl<T: Element> Tensor<T> {
    /// Creates the integers 0, 1, 2, … along a new axis.
    #[track_caller]
    pub fn iota(axis: Axis, extent: usize) -> Self {
        let place = Location::caller();
        let ty = TensorType::new(T::element(), [extent]);
        Self::new(
            tracer::with(|t| t.op(None, Iota { ty, axis: 0 }, &[], &[axis], place)).unwrap_or(Raw::POISON),
        )
    }

    /// Returns a tensor with the same elements in row-major order and the axes `dims`.
    #[track_caller]
    pub fn reshape(self, dims: &[Dim]) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, _| {
            t.op(None, Reshape { shape: extents(dims) }, &[raw], &axes(dims), place)
        })
    }

    /// `indices`' axes replace the first one.
    #[track_caller]
    pub fn rows(self, indices: Tensor<I32>) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| {
            let Some(of) = t.named_type(indices.raw, place) else { return Raw::POISON };
            let names = [axes(&of.dims), axes(ty.dims.get(1..).unwrap_or_default())].concat();
            t.op(None, Gather {}, &[raw, indices.raw], &names, place)
        })
    }

    /// Removes the axis. `index` is computed at run time; a shared axis such as B has its own index each.
    #[track_caller]
    pub fn at(self, axis: Axis, index: Tensor<I32>) -> Self {
        let place = Location::caller();
        if !index.dims(place).is_empty() {
            return self.take(axis, index);
        }
        self.apply_axis(place, "at", axis, |t, raw, ty, position| {
            let slice = DynamicSlice { axis: position, length: 1 };
            let one = t.op(None, slice, &[raw, index.raw], &axes(&ty.dims), place);
            let mut dims = ty.dims;
            dims.remove(position);
            t.op(None, Reshape { shape: extents(&dims) }, &[one], &axes(&dims), place)
        })
    }

    /// Clamps indices; a shared axis such as B has its own ones each. The other axes of `indices` replace
    /// `axis`.
    #[track_caller]
    pub fn take(self, axis: Axis, indices: Tensor<I32>) -> Self {
        let place = Location::caller();
        let (dims, by) = (self.dims(place), indices.dims(place));
        let Some(extent) = dims.iter().find(|d| d.axis == axis).map(|d| d.extent) else {
            return self
                .apply(place, |t, _, ty| t.fail(TraceErrorKind::NoAxis { op: "take", axis, ty }, place));
        };
        let shares = |d: &&Dim| d.axis != axis && dims.contains(d);
        let shared: Vec<Dim> = by.iter().filter(shares).copied().collect();
        let own: Vec<Dim> = by.iter().filter(|d| !shared.contains(d)).copied().collect();
        let rest: Vec<Dim> = dims.iter().filter(|d| d.axis != axis && !shared.contains(d)).copied().collect();
        let order = |dims: &[&[Dim]]| axes(&dims.concat());

        let table = self.permute(&order(&[&shared, &[axis.of(extent)], &rest]));
        let indices = indices.permute(&order(&[&shared, &own]));
        let (table, indices) = if shared.is_empty() {
            (table, indices)
        } else {
            // All tables are merged into one table, and each index is shifted to the rows of its own table.
            let tables: usize = shared.iter().map(|d| d.extent).product();
            let table = table.reshape(&[&[axis.of(tables * extent)], &rest[..]].concat());
            let first = Tensor::<I32>::iota(Axis("_"), tables) * extent as f64;
            let last = indices.filled(extent.max(1) as f64 - 1.0);
            let indices = indices.minimum(last).maximum(indices.filled(0.0));
            (table, indices + first.reshape(&shared).over(&[&shared[..], &own].concat()))
        };
        let picked = table.rows(indices);
        let place_of_axis = dims.iter().flat_map(|d| if d.axis == axis { own.clone() } else { vec![*d] });
        picked.permute(&axes(&place_of_axis.collect::<Vec<_>>()))
    }

    /// To exactly the axes `dims`.
    #[track_caller]
    pub(crate) fn over(self, dims: &[Dim]) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| broadcast(t, raw, &ty, dims, place))
    }

    /// All pairs, with the axes of `other` first.
    #[track_caller]
    pub(super) fn outer<U: Element>(
        self,
        other: Self,
        join: impl FnOnce(Self, Self) -> Tensor<U>,
    ) -> Tensor<U> {
        let place = Location::caller();
        let dims = [other.dims(place), self.dims(place)].concat();
        join(self.over(&dims), other.over(&dims))
    }
}

impl Tensor<I32> {
    /// The remainder x mod `divisor` for each element x. The elements must be larger than −2³⁰.
    #[track_caller]
    pub(super) fn modulo(self, divisor: usize) -> Self {
        // Adding a multiple of the divisor makes the dividend positive without overflow.
        let x = self + (i32::MAX as usize / 2 / divisor * divisor) as f64;
        x - x / divisor as f64 * divisor as f64
    }
}
