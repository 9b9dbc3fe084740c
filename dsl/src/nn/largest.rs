//! Functions that find the largest elements along an axis and the indices of these elements.

use std::panic::Location;

use ops::{ElementType, Literal, TensorType};

use crate::element::{Bool, Float, I32};
use crate::tensor::{Raw, axes, extents};
use crate::{Axis, Tensor, TraceErrorKind};

/// Returns the index of the largest element along an axis, and removes this axis. As in
/// `torch.argmax`, a NaN is the largest element. If several elements are equal to the largest, the
/// function returns the lowest index.
#[track_caller]
pub fn argmax<T: Float>(x: Tensor<T>, axis: Axis) -> Tensor<I32> {
    let place = Location::caller();
    let extent = x.extent(axis);
    let index = Tensor::<I32>::iota(axis, extent);
    // If an element is NaN, the maximum is NaN too, and NaN equals no element.
    let is_largest = x.equals(x.max(axis)).or(x.is_nan());
    let dims = x.dims(place);
    let nowhere = Tensor::<I32>::constant(
        Literal::splat(TensorType::new(ElementType::I32, extents(&dims)), (extent.max(1) - 1) as f64),
        &axes(&dims),
    );
    is_largest.select(index, nowhere).min(axis)
}

/// The `k` largest elements along an axis in descending order, and the indices of these elements.
/// In the two returned tensors, the axis `axis` has the extent `k`. Among equal elements, the
/// element with the lowest index comes first. NaN is larger than any number, as in `torch.topk`.
///
/// The function searches `k` times for the largest remaining element. Use this function for a small `k`, such
/// as the number of active experts.
#[track_caller]
pub fn topk<T: Float>(x: Tensor<T>, axis: Axis, k: usize) -> (Tensor<T>, Tensor<I32>) {
    let place = Location::caller();
    let extent = x.extent(axis);
    let order = axes(&x.dims(place));
    if !(1..=extent).contains(&k) {
        let refused = x.apply(place, |t, _, ty| {
            let (found, expected) = (format!("the {k} largest"), format!("at least 1 and at most {extent}"));
            t.fail(TraceErrorKind::Extent { op: "topk", axis, ty, found, expected }, place)
        });
        return (refused, Tensor::new(Raw::POISON));
    }
    let index = Tensor::<I32>::iota(axis, extent).broadcast(x);
    let mut taken: Option<Tensor<Bool>> = None;
    let (mut values, mut indices) = (Vec::with_capacity(k), Vec::with_capacity(k));
    for _ in 0..k {
        let left = match taken {
            Some(taken) => taken.select(f64::NEG_INFINITY, x),
            None => x,
        };
        let largest = left.max(axis);
        // NaN is the largest element, as in `argmax`.
        let is_largest = left.equals(largest).or(left.is_nan());
        // An element that was already taken counts as −∞, and can therefore equal a remaining −∞.
        let is_largest = match taken {
            Some(taken) => is_largest.and(!taken),
            None => is_largest,
        };
        let first = is_largest.select(index, extent as f64).min(axis);
        let now = index.equals(first);
        taken = Some(taken.map_or(now, |taken| taken.or(now)));
        values.push(largest);
        indices.push(first);
    }
    (Tensor::stack(&values, axis).permute(&order), Tensor::stack(&indices, axis).permute(&order))
}
