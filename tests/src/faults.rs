//! Faults that a transformer may have and still speak: what each puts in the place of an operation, for
//! [`rewrite`](crate::rewrite::rewrite).

use tracewright::ops::ops::{Binary, BinaryKind, Constant, Permute, Reshape, Sdpa};
use tracewright::ops::{ElementType, InferError, Literal, Op, Real, RopeTable, TensorType};
use tracewright::trace::{Builder, NodeId};

/// The replacement of an operation; `None` keeps it.
pub type Replaced = Result<Option<NodeId>, InferError>;

/// Each query sees one key of the future.
///
/// # Errors
/// None: the types fit.
pub fn causal_mask_off_by_one(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Replaced {
    let (Op::Sdpa(sdpa), &[q, k, v, offset]) = (op, operands) else { return Ok(None) };
    let value = Literal::splat(TensorType::new(ElementType::I32, []), 1.0);
    let one = b.op(Constant { value }, &[])?;
    let later = b.op(Binary { kind: BinaryKind::Add }, &[offset, one])?;
    b.op(Sdpa::clone(sdpa), &[q, k, v, later]).map(Some)
}

/// 10,000 becomes about 10,093.
///
/// # Errors
/// None: the types fit.
pub fn another_rope_base(b: &mut Builder<'_>, op: &Op, _: &[NodeId]) -> Replaced {
    let Op::Constant(constant) = op else { return Ok(None) };
    let Some(table) = constant.value.as_rope_table() else { return Ok(None) };
    let slower = |f: &Real| Real(f64::from(f.0.powf(1.001) as f32));
    let table = RopeTable { inv_freq: table.inv_freq.iter().map(slower).collect(), ..table.clone() };
    let value = Literal::rope_table(constant.value.ty().element, table);
    b.op(Constant { value }, &[]).map(Some)
}

/// The features of q are read as `[G, K, E]` where they are `[K, G, E]`.
///
/// # Errors
/// If heads are not grouped.
pub fn order_of_heads(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Replaced {
    let (Op::Sdpa(sdpa), &[q, k, v, offset]) = (op, operands) else { return Ok(None) };
    let mut shape = b.ty(q).shape.clone();
    shape.swap(1, 2);
    let q = b.op(Reshape { shape }, &[q])?;
    let q = b.op(Permute { order: vec![0, 2, 1, 3, 4] }, &[q])?;
    b.op(Sdpa::clone(sdpa), &[q, k, v, offset]).map(Some)
}
