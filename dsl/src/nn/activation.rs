//! Activation functions, and functions along one axis, such as softmax.

use std::panic::Location;

use ops::ops::{Constant, RmsNorm, WeightStyle};
use ops::{InferError, Literal, Real, TensorType};
use trace::{Builder, NodeId, functions};

use crate::element::Float;
use crate::tensor::{Place, axes};
use crate::{Axis, Dim, Tensor, TraceErrorKind};

/// The softmax exp(x − max) / Σ exp(x − max) along an axis.
#[track_caller]
pub fn softmax<T: Float>(x: Tensor<T>, axis: Axis) -> Tensor<T> {
    let place = Location::caller();
    x.apply(place, |t, raw, ty| match ty.position(axis) {
        Some(position) => {
            t.build(&[raw], &axes(&ty.dims), place, |b, x| functions::softmax(b, x[0], position))
        }
        None => t.fail(TraceErrorKind::NoAxis { op: "softmax", axis, ty }, place),
    })
}

/// SiLU: x · logistic(x), also called swish.
#[track_caller]
pub fn silu<T: Float>(x: Tensor<T>) -> Tensor<T> {
    elementwise(x, functions::silu, Location::caller())
}

/// GELU with the exact error function: x/2 · (1 + erf(x/√2)).
#[track_caller]
pub fn gelu<T: Float>(x: Tensor<T>) -> Tensor<T> {
    elementwise(x, functions::gelu, Location::caller())
}

/// GELU in its tanh approximation: x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
#[track_caller]
pub fn gelu_tanh<T: Float>(x: Tensor<T>) -> Tensor<T> {
    elementwise(x, functions::gelu_tanh, Location::caller())
}

/// ReLU: the larger of x and 0. The result is NaN if x is NaN.
#[track_caller]
pub fn relu<T: Float>(x: Tensor<T>) -> Tensor<T> {
    x.maximum(0.0)
}

fn elementwise<T: Float>(
    x: Tensor<T>,
    function: fn(&mut Builder<'_>, NodeId) -> Result<NodeId, InferError>,
    place: Place,
) -> Tensor<T> {
    x.apply(place, |t, raw, ty| t.build(&[raw], &axes(&ty.dims), place, |b, x| function(b, x[0])))
}

/// x / √(mean(x²) + ε), without a weight, over all axes of `over` together.
#[track_caller]
pub fn rms_norm<T: Float>(x: Tensor<T>, over: &[Axis], epsilon: f64) -> Tensor<T> {
    let place = Location::caller();
    let dims = x.dims(place);
    let (together, rest): (Vec<Dim>, Vec<Dim>) = dims.iter().partition(|d| over.contains(&d.axis));
    let Some(first) = together.first().map(|d| d.axis) else { return x.permute(over) };
    let rows = x.permute(&axes(&[rest, together.clone()].concat())).merge(over, first);
    let normed = rows.apply::<T>(place, |t, raw, ty| {
        let features = TensorType::new(T::element(), [ty.dims.last().map_or(0, |d| d.extent)]);
        let ones = Constant { value: Literal::splat(features, 1.0) };
        let weight = t.op(None, ones, &[], &[first], place);
        let op = RmsNorm { epsilon: Real(epsilon), style: WeightStyle::Scale };
        t.op(None, op, &[raw, weight], &axes(&ty.dims), place)
    });
    normed.unmerge(first, &together).permute(&axes(&dims))
}
