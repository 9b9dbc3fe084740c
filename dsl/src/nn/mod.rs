//! The functions of neural networks.

mod activation;
mod attend;
mod conv;
mod index;
mod largest;
mod mask;
mod position;
mod positions;
mod state;

use std::panic::Location;

use ops::ElementType;
use ops::ops::DotGeneral;

use crate::element::Float;
use crate::tensor::{axes, fail_extents};
use crate::tracer::Raw;
use crate::{Axis, Dim, NamedType, Tensor, TraceErrorKind};

pub use activation::{gelu, gelu_tanh, relu, rms_norm, silu, softmax};
pub use attend::{Attend, RopeFrequencies, attend};
pub use conv::{conv1d, pad};
pub use largest::{argmax, topk};
pub use mask::{Mask, RING};
pub use position::Position;
pub use positions::positions_within;
pub(crate) use state::StateTensor;
pub use state::states::{self, *};
pub use state::{Cache, HasAxes, LayerState, MatrixTokens, State, StateArguments, Windowed};

/// Other shared axes are batch axes: they come first, then those of `a`, then of `b`. For f16 and bf16, sums
/// are f32, rounded once.
#[track_caller]
pub fn dot<T: Float>(a: Tensor<T>, b: Tensor<T>, contracted: Axis) -> Tensor<T> {
    let place = Location::caller();
    a.apply(place, |t, a, left| {
        let Some(right) = t.named_type(b.raw, place) else { return Raw::POISON };
        for ty in [&left, &right] {
            if ty.position(contracted).is_none() {
                let kind = TraceErrorKind::NoAxis { op: "dot", axis: contracted, ty: ty.clone() };
                return t.fail(kind, place);
            }
        }
        let shared = left.dims.iter().filter(|d| right.position(d.axis).is_some());
        let shared: Vec<Dim> = shared.copied().collect();
        if let Some(d) = shared.iter().find(|d| !right.dims.contains(d)) {
            return fail_extents(t, "dot", d.axis, &[a, b.raw], (left, right), place);
        }
        let batch: Vec<Axis> = axes(&shared).into_iter().filter(|axis| *axis != contracted).collect();
        let at = |ty: &NamedType, list: &[Axis]| -> Vec<usize> {
            list.iter().filter_map(|axis| ty.position(*axis)).collect()
        };
        let op = DotGeneral {
            left_batch: at(&left, &batch),
            right_batch: at(&right, &batch),
            left_contract: at(&left, &[contracted]),
            right_contract: at(&right, &[contracted]),
            element: ElementType::F32,
        };
        let free = |ty: &NamedType| -> Vec<Axis> {
            axes(&ty.dims).into_iter().filter(|axis| *axis != contracted && !batch.contains(axis)).collect()
        };
        let result = [batch.clone(), free(&left), free(&right)].concat();
        let product = t.op(None, op, &[a, b.raw], &result, place);
        if T::element() == ElementType::F32 {
            product
        } else {
            t.op(None, ops::ops::Convert { to: T::element() }, &[product], &result, place)
        }
    })
}
