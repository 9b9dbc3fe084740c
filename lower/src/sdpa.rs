//! `sdpa` in primitives.

use ops::ops::{
    BinaryKind, BroadcastInDim, Compare, Direction, DotGeneral, Iota, MaskTerm, Sdpa, Select, UnaryKind,
};
use ops::{ElementType, InferError, TensorType};
use trace::{Builder, NodeId, functions};

/// Scores, scale, softcap, mask and softmax in f32; the probabilities are rounded before they meet the values.
pub(crate) fn convert(b: &mut Builder<'_>, op: &Sdpa, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let (q, k, v) = (operands[0], operands[1], operands[2]);
    let offset = op.offset.then(|| operands[3]);
    let element = b.ty(q).element;
    let (rank, batch) = (b.ty(q).rank(), b.ty(k).rank() - 2);
    let batch_axes: Vec<usize> = (0..batch).collect();
    let product = |left: usize, right: usize| DotGeneral {
        left_batch: batch_axes.clone(),
        right_batch: batch_axes.clone(),
        left_contract: vec![left],
        right_contract: vec![right],
        element: ElementType::F32,
    };

    let features = b.ty(q).shape[rank - 1];
    let scores = b.op(product(rank - 1, batch + 1), &[q, k])?;
    let mut scores = b.with_scalar(BinaryKind::Multiply, scores, op.scale_for(features))?;
    if let Some(cap) = op.softcap {
        let ratio = b.with_scalar(BinaryKind::Divide, scores, cap.0)?;
        let bounded = b.unary(UnaryKind::Tanh, ratio)?;
        scores = b.with_scalar(BinaryKind::Multiply, bounded, cap.0)?;
    }
    let shape = b.ty(scores).shape.clone();
    if op.mask.contains(&MaskTerm::Additive) {
        let mask = operands[operands.len() - 1];
        let trailing = (rank - b.ty(mask).rank()..rank).collect();
        let mask = b.convert(mask, ElementType::F32)?;
        let mask = b.op(BroadcastInDim { shape: shape.clone(), axes: trailing }, &[mask])?;
        scores = b.binary(BinaryKind::Add, scores, mask)?;
    }
    if let Some(visible) = visible(b, op, shape[rank - 2], shape[rank - 1], offset)? {
        let visible = b.op(BroadcastInDim { shape, axes: vec![rank - 2, rank - 1] }, &[visible])?;
        let hidden = b.splat(scores, Sdpa::HIDDEN)?;
        scores = b.op(Select {}, &[visible, scores, hidden])?;
    }
    let probabilities = functions::softmax(b, scores, rank - 1)?;
    let probabilities = b.convert(probabilities, element)?;
    let attended = b.op(product(rank - 1, batch), &[probabilities, v])?;
    b.convert(attended, element)
}

/// `[queries, keys]`: where the positional terms of the mask all hold; `None` if there are none.
fn visible(
    b: &mut Builder<'_>,
    op: &Sdpa,
    queries: usize,
    keys: usize,
    offset: Option<NodeId>,
) -> Result<Option<NodeId>, InferError> {
    let index = TensorType::new(ElementType::I32, [queries, keys]);
    let mut visible = None;
    for term in &op.mask {
        if *term == MaskTerm::Additive {
            continue;
        }
        let mut query = b.op(Iota { ty: index.clone(), axis: 0 }, &[])?;
        if let Some(offset) = offset {
            let offset = b.op(BroadcastInDim { shape: index.shape.clone(), axes: vec![] }, &[offset])?;
            query = b.binary(BinaryKind::Add, query, offset)?;
        }
        let key = b.op(Iota { ty: index.clone(), axis: 1 }, &[])?;
        let holds = match term {
            MaskTerm::Causal => b.op(Compare { direction: Direction::Le }, &[key, query])?,
            MaskTerm::Window(width) => {
                let first_hidden = b.with_scalar(BinaryKind::Subtract, query, *width as f64)?;
                b.op(Compare { direction: Direction::Lt }, &[first_hidden, key])?
            }
            MaskTerm::Additive => continue,
        };
        visible = Some(match visible {
            None => holds,
            Some(others) => b.binary(BinaryKind::And, others, holds)?,
        });
    }
    Ok(visible)
}
