//! Which elements along an axis are the largest.

use std::panic::Location;

use ops::{ElementType, Literal, TensorType};

use crate::element::{Float, I32};
use crate::tensor::{axes, extents};
use crate::{Axis, Tensor};

/// The index of the largest element along an axis, which vanishes; the lowest index where several are equal, as
/// `torch.argmax` gives it.
#[track_caller]
pub fn argmax<T: Float>(x: Tensor<T>, axis: Axis) -> Tensor<I32> {
    let place = Location::caller();
    let extent = x.extent(axis);
    let index = Tensor::<I32>::iota(axis, extent);
    let is_largest = x.equals(x.max(axis));
    let dims = x.dims(place);
    let nowhere = Tensor::<I32>::constant(
        Literal::splat(TensorType::new(ElementType::I32, extents(&dims)), (extent.max(1) - 1) as f64),
        &axes(&dims),
    );
    is_largest.select(index, nowhere).min(axis)
}
