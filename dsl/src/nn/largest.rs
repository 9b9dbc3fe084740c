//! Functions that find the largest elements along an axis and the indices of these elements.

use std::panic::Location;

use ops::{ElementType, Literal, TensorType};

use crate::element::{Bool, Element, Float, I32};
use crate::tensor::{Raw, axes, extents};
use crate::{Axis, Tensor, TraceErrorKind};

/// Removes the axis. As in `torch.argmax`, NaN is largest; of equal elements, the lowest index.
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
/// If the axis is short, the function compares each pair of elements. Otherwise, the function
/// searches `k` times for the largest remaining element. Use this function for a small `k`, such as
/// the number of active experts.
#[track_caller]
pub fn topk<T: Float>(x: Tensor<T>, axis: Axis, k: usize) -> (Tensor<T>, Tensor<I32>) {
    let place = Location::caller();
    let extent = x.extent(axis);
    let dims = x.dims(place);
    if !(1..=extent).contains(&k) {
        let refused = x.apply(place, |t, _, ty| {
            let (found, expected) = (format!("the {k} largest"), format!("at least 1 and at most {extent}"));
            t.fail(TraceErrorKind::Extent { op: "topk", axis, ty, found, expected }, place)
        });
        return (refused, Tensor::new(Raw::POISON));
    }
    let pairs = extents(&dims).iter().product::<usize>() * extent;
    let (values, indices) = if pairs <= MOST_PAIRS { ranked(x, axis, k) } else { searched(x, axis, k) };
    (values.permute(&axes(&dims)), indices.permute(&axes(&dims)))
}

/// One token and 1024 experts. Prefill has more pairs, but its time depends little on the number of
/// functions.
const MOST_PAIRS: usize = 1 << 20;

/// The axes of [`ranked`] for the other element of a pair, and for the `k` largest elements.
const OTHER: Axis = Axis("TopkOther");
const RANK: Axis = Axis("TopkRank");

/// By the number of elements that come before each.
#[track_caller]
fn ranked<T: Float>(x: Tensor<T>, axis: Axis, k: usize) -> (Tensor<T>, Tensor<I32>) {
    let extent = x.extent(axis);
    let index = Tensor::<I32>::iota(axis, extent);
    let (one, other) = of_pairs(x, axis);
    let (at, other_at) = of_pairs(index, axis);
    let is_larger = |a: Tensor<T>, b: Tensor<T>| b.less(a).or(a.is_nan().and(!b.is_nan()));
    let is_earlier = other_at.less(at).broadcast(one);
    let before = is_larger(other, one).or(is_earlier.and(!is_larger(one, other)));
    let rank = before.select(Tensor::<I32>::scalar(1.0), Tensor::scalar(0.0)).sum(OTHER);
    let ranks = Tensor::<I32>::iota(RANK, k);
    let is_here = ranks.broadcast(rank).equals(rank.broadcast(ranks));
    let values = is_here.select(x.broadcast(is_here), f64::NEG_INFINITY).max(axis);
    let indices = is_here.select(index.broadcast(is_here), extent as f64).min(axis);
    (values.rename(RANK, axis), indices.rename(RANK, axis))
}

/// The second elements are on the axis [`OTHER`].
#[track_caller]
fn of_pairs<T: Element>(x: Tensor<T>, axis: Axis) -> (Tensor<T>, Tensor<T>) {
    let other = x.rename(axis, OTHER);
    let one = x.broadcast(other);
    (one, other.broadcast(one))
}

#[track_caller]
fn searched<T: Float>(x: Tensor<T>, axis: Axis, k: usize) -> (Tensor<T>, Tensor<I32>) {
    let extent = x.extent(axis);
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
    (Tensor::stack(&values, axis), Tensor::stack(&indices, axis))
}
