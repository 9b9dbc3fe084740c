//! Activation functions, and functions along one axis, such as softmax.

use std::panic::Location;

use ops::InferError;
use trace::{Builder, NodeId, functions};

use crate::element::Float;
use crate::tensor::{Place, axes};
use crate::{Axis, Tensor, TraceErrorKind};

/// exp(x − max) / Σ exp(x − max) along an axis.
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

/// x · logistic(x), also called swish.
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

/// The larger of x and 0; NaN if x is NaN.
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
