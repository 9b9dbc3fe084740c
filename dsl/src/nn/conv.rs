//! Convolutions as matmuls.

use std::panic::Location;

use ops::ops::{Concatenate, Constant};
use ops::{Literal, TensorType};

use super::dot;
use crate::element::{Element, Float};
use crate::tensor::axes;
use crate::{Axis, Tensor, TraceErrorKind};

/// `x` with `before` zeros in front of it along an axis, and `after` zeros behind it.
#[track_caller]
pub fn pad<T: Element>(x: Tensor<T>, axis: Axis, before: usize, after: usize) -> Tensor<T> {
    let place = Location::caller();
    x.apply_axis(place, "pad", axis, |t, raw, ty, position| {
        let names = axes(&ty.dims);
        let mut zeros = |count: usize| {
            let mut shape: Vec<usize> = ty.dims.iter().map(|d| d.extent).collect();
            shape[position] = count;
            let value = Literal::splat(TensorType::new(T::element(), shape), 0.0);
            (count > 0).then(|| t.op(None, Constant { value }, &[], &names, place))
        };
        let parts: Vec<_> = [zeros(before), Some(raw), zeros(after)].into_iter().flatten().collect();
        match parts[..] {
            [only] => only,
            _ => t.op(None, Concatenate { axis: position }, &parts, &names, place),
        }
    })
}

const PHASE: Axis = Axis("phase of the stride");
const PATCH: Axis = Axis("channels and taps");

/// A convolution of `x` `[…, axis, channels]` with `taps` `[…, channels, tap]`, as `conv1d` of PyTorch: result i
/// reads n taps from position `stride · i − padding` on, and zeros outside of `x`. The axes of the taps except
/// `channels` and `tap` follow those of `x`. One matmul computes all results.
#[track_caller]
pub fn conv1d<T: Float>(
    x: Tensor<T>,
    axis: Axis,
    taps: Tensor<T>,
    [channels, tap]: [Axis; 2],
    stride: usize,
    padding: usize,
) -> Tensor<T> {
    let (place, width, extent) = (Location::caller(), taps.extent(tap), x.extent(axis));
    let room = (extent + 2 * padding).checked_sub(width).filter(|_| stride > 0 && width > 0);
    let Some(count) = room.map(|room| room / stride + 1) else {
        return x.apply_axis(place, "conv1d", axis, |t, _, ty, _| {
            let found =
                format!("{extent} positions, {width} taps, the stride {stride} and the padding {padding}");
            let expected = "at least one result".to_owned();
            t.fail(TraceErrorKind::Extent { op: "conv1d", axis, ty, found, expected }, place)
        });
    };
    // In a table with a column for each phase, tap i of all results is a range of one column.
    let rows = count + (width - 1) / stride;
    let after = (rows * stride).saturating_sub(extent + padding);
    let table = pad(x, axis, padding, after).narrow(axis, 0, rows * stride);
    let table = if stride == 1 { table } else { table.unmerge(axis, &[axis.of(rows), PHASE.of(stride)]) };
    let read = |i: usize| {
        let range = table.narrow(axis, i / stride, count);
        if stride == 1 { range } else { range.narrow(PHASE, i % stride, 1).merge(&[axis, PHASE], axis) }
    };
    let read: Vec<Tensor<T>> = (0..width).map(read).collect();
    let read = Tensor::stack(&read, tap).merge(&[channels, tap], PATCH);
    dot(read, taps.merge(&[channels, tap], PATCH), PATCH)
}
