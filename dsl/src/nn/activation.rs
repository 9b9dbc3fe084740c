//! Functions of each element, and of the elements along one axis, that networks put between their layers.

use std::panic::Location;

use crate::element::Float;
use crate::tensor::axes;
use crate::{Axis, Tensor, TraceErrorKind};

/// exp(x − max) / Σ exp(x − max) along an axis.
#[track_caller]
pub fn softmax<T: Float>(x: Tensor<T>, axis: Axis) -> Tensor<T> {
    let place = Location::caller();
    x.apply(place, |t, raw, ty| match ty.position(axis) {
        Some(position) => {
            t.build(&[raw], &axes(&ty.dims), place, |b, x| trace::functions::softmax(b, x[0], position))
        }
        None => t.fail(TraceErrorKind::NoAxis { op: "softmax", axis, ty }, place),
    })
}

/// x · logistic(x)
#[track_caller]
pub fn silu<T: Float>(x: Tensor<T>) -> Tensor<T> {
    let place = Location::caller();
    x.apply(place, |t, raw, ty| {
        t.build(&[raw], &axes(&ty.dims), place, |b, x| trace::functions::silu(b, x[0]))
    })
}

/// GELU in its tanh form.
#[track_caller]
pub fn gelu_tanh<T: Float>(x: Tensor<T>) -> Tensor<T> {
    let place = Location::caller();
    x.apply(place, |t, raw, ty| {
        t.build(&[raw], &axes(&ty.dims), place, |b, x| trace::functions::gelu_tanh(b, x[0]))
    })
}
