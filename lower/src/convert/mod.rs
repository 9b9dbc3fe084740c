//! The converters, which expand each composite operation to primitive operations.

mod append;
mod dequantize;
mod erf;
pub(crate) mod grouped;
mod linear;
mod linear_attention;
mod rms_norm;
mod rope;
mod sdpa;
mod softplus;

use ops::{Composite, Form, Idiom, InferError, Op};
use trace::{Builder, NodeId};

pub(crate) fn convert(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let composite = match op.form() {
        Form::Composite(composite) => composite,
        Form::Idiom(Idiom::BoundedSdpa(op)) => return sdpa::convert(b, &op.unbounded(), operands),
        Form::Idiom(Idiom::SlicedAppend(op)) => return append::convert(b, &op.append(), operands),
        Form::Primitive | Form::Archive(_) | Form::Kernel => return b.op(op.clone(), operands),
    };
    match composite {
        Composite::Append(op) => append::convert(b, op, operands),
        Composite::Dequantize(op) => dequantize::convert(b, op, operands),
        Composite::Erf(op) => erf::convert(b, op, operands),
        Composite::GroupedLinear(op) => grouped::linear(b, op, operands),
        Composite::GroupedRows(op) => grouped::rows(b, op, operands),
        Composite::Linear(op) => linear::convert(b, op, operands),
        Composite::LinearAttention(op) => linear_attention::convert(b, op, operands),
        Composite::RmsNorm(op) => rms_norm::convert(b, op, operands),
        Composite::Rope(op) => rope::convert(b, op, operands),
        Composite::Sdpa(op) => sdpa::convert(b, op, operands),
        Composite::Softplus(op) => softplus::convert(b, op, operands),
    }
}
