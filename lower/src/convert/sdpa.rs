//! Converts `sdpa` to primitive operations.

use ops::ops::{
    BinaryKind, BroadcastInDim, Compare, Direction, DotGeneral, Iota, MaskTerm, ReduceKind, Sdpa, Select,
    UnaryKind,
};
use ops::{ElementType, InferError, TensorType};
use trace::{Builder, NodeId, functions};

/// The expanded operations compute the scores, the scaling, the softcap, the mask and the softmax in f32. The
/// expanded operations round the probabilities before they multiply the probabilities by the values.
pub(crate) fn convert(b: &mut Builder<'_>, op: &Sdpa, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let (q, k, v) = (operands[0], operands[1], operands[2]);
    let (offset, terms) = op.operands(operands);
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
    for mask in terms.iter().filter(|(term, _)| *term == MaskTerm::Additive).filter_map(|(_, mask)| *mask) {
        let trailing = (rank - b.ty(mask).rank()..rank).collect();
        let mask = b.convert(mask, ElementType::F32)?;
        let mask = b.op(BroadcastInDim { shape: shape.clone(), axes: trailing }, &[mask])?;
        scores = b.binary(BinaryKind::Add, scores, mask)?;
    }
    if let Some(visible) = visible(b, &terms, &shape, offset)? {
        let axes = match b.ty(visible).rank() {
            3 => vec![0, rank - 2, rank - 1],
            _ => vec![rank - 2, rank - 1],
        };
        let visible = b.op(BroadcastInDim { shape, axes }, &[visible])?;
        let hidden = b.splat(scores, Sdpa::HIDDEN)?;
        scores = b.op(Select {}, &[visible, scores, hidden])?;
    }
    let sinks = terms.iter().find(|(term, _)| *term == MaskTerm::Sinks).and_then(|(_, sinks)| *sinks);
    let probabilities = match sinks {
        Some(sinks) => with_sinks(b, scores, sinks)?,
        None => functions::softmax(b, scores, rank - 1)?,
    };
    let probabilities = b.convert(probabilities, element)?;
    let attended = b.op(product(rank - 1, batch), &[probabilities, v])?;
    b.convert(attended, element)
}

/// Computes the softmax of the attention scores `[…, keys]` together with the score of a sink. The
/// result does not contain the softmax weight of the sink.
fn with_sinks(b: &mut Builder<'_>, scores: NodeId, sinks: NodeId) -> Result<NodeId, InferError> {
    let (shape, last) = (b.ty(scores).shape.clone(), b.ty(scores).rank() - 1);
    let sinks = b.convert(sinks, ElementType::F32)?;
    let axes = (last - 1 - b.ty(sinks).rank()..last - 1).collect();
    let sinks = b.op(BroadcastInDim { shape, axes }, &[sinks])?;
    let largest = b.reduced_along(ReduceKind::Maximum, scores, last)?;
    let largest = b.binary(BinaryKind::Maximum, largest, sinks)?;
    let exponential = |b: &mut Builder<'_>, x| {
        let shifted = b.binary(BinaryKind::Subtract, x, largest)?;
        b.unary(UnaryKind::Exponential, shifted)
    };
    let (weights, sinks) = (exponential(b, scores)?, exponential(b, sinks)?);
    let sum = b.reduced_along(ReduceKind::Add, weights, last)?;
    let sum = b.binary(BinaryKind::Add, sum, sinks)?;
    b.binary(BinaryKind::Divide, weights, sum)
}

/// Returns the mask for the positional terms of attention, such as the causal term and the window term. The
/// mask has the shape `[queries, keys]`, or `[sequences, queries, keys]` if a condition of the mask differs
/// between sequences. The function returns `None` if the operation has no positional terms.
fn visible(
    b: &mut Builder<'_>,
    terms: &[(MaskTerm, Option<NodeId>)],
    scores: &[usize],
    offset: Option<NodeId>,
) -> Result<Option<NodeId>, InferError> {
    let mut shape = scores[scores.len() - 2..].to_vec();
    let (queries, keys) = (shape[0], shape[1]);
    let lengths = terms.iter().filter(|(term, _)| matches!(term, MaskTerm::Padding | MaskTerm::Prefix));
    let mut numbers = lengths.filter_map(|(_, lengths)| *lengths).chain(offset);
    if numbers.any(|of_each| b.ty(of_each).rank() == 1) {
        shape.insert(0, scores[0]);
    }
    let axis = shape.len() - 2;
    let index = TensorType::new(ElementType::I32, shape.clone());
    let everywhere = |b: &mut Builder<'_>, of: NodeId| {
        let axes = (0..b.ty(of).rank()).collect();
        b.op(BroadcastInDim { shape: shape.clone(), axes }, &[of])
    };
    let compare = |b: &mut Builder<'_>, left: NodeId, direction, right: NodeId| {
        b.op(Compare { direction }, &[left, right])
    };

    let mut query = b.op(Iota { ty: index.clone(), axis }, &[])?;
    if let Some(offset) = offset {
        let offset = everywhere(b, offset)?;
        query = b.binary(BinaryKind::Add, query, offset)?;
    }
    let mut key = b.op(Iota { ty: index.clone(), axis: axis + 1 }, &[])?;
    let mut visible = None;
    let mut require = |b: &mut Builder<'_>, holds: NodeId| -> Result<(), InferError> {
        visible = Some(match visible {
            None => holds,
            Some(others) => b.binary(BinaryKind::And, others, holds)?,
        });
        Ok(())
    };
    if terms.iter().any(|(term, _)| *term == MaskTerm::Ring) {
        let first = b.op(Iota { ty: index.clone(), axis }, &[])?;
        let first = b.binary(BinaryKind::Subtract, query, first)?;
        let last = b.with_scalar(BinaryKind::Add, first, queries as f64 - 1.0)?;
        key = in_ring(b, key, last, keys as f64)?;
        let zero = b.splat(key, 0.0)?;
        let written = compare(b, zero, Direction::Le, key)?;
        require(b, written)?;
    }
    let padding = terms.iter().find(|(term, _)| *term == MaskTerm::Padding).and_then(|(_, lengths)| *lengths);
    for (term, operand) in terms {
        let holds = match (term, operand) {
            (MaskTerm::Causal, _) => compare(b, key, Direction::Le, query)?,
            (MaskTerm::Window(width), _) => {
                let first_hidden = b.with_scalar(BinaryKind::Subtract, query, *width as f64)?;
                compare(b, first_hidden, Direction::Lt, key)?
            }
            (MaskTerm::Chunk(length), _) => {
                let mut chunk = |mut at: NodeId| {
                    if let Some(first) = padding {
                        let first = everywhere(b, first)?;
                        at = b.binary(BinaryKind::Subtract, at, first)?;
                    }
                    b.with_scalar(BinaryKind::Divide, at, *length as f64)
                };
                let (of_query, of_key) = (chunk(query)?, chunk(key)?);
                compare(b, of_query, Direction::Eq, of_key)?
            }
            (MaskTerm::Padding, Some(lengths)) => {
                let lengths = everywhere(b, *lengths)?;
                compare(b, lengths, Direction::Le, key)?
            }
            (MaskTerm::Prefix, Some(lengths)) => {
                let lengths = everywhere(b, *lengths)?;
                let within = compare(b, key, Direction::Lt, lengths)?;
                let before = compare(b, key, Direction::Le, query)?;
                b.binary(BinaryKind::Or, before, within)?
            }
            _ => continue,
        };
        require(b, holds)?;
    }
    Ok(visible)
}

/// The position in each slot, which is last − (last − slot) mod keys. A multiple of keys makes the dividend
/// positive.
fn in_ring(b: &mut Builder<'_>, slot: NodeId, last: NodeId, keys: f64) -> Result<NodeId, InferError> {
    let back = b.binary(BinaryKind::Subtract, last, slot)?;
    let back = b.with_scalar(BinaryKind::Add, back, keys)?;
    let turns = b.with_scalar(BinaryKind::Divide, back, keys)?;
    let turns = b.with_scalar(BinaryKind::Multiply, turns, keys)?;
    let back = b.binary(BinaryKind::Subtract, back, turns)?;
    b.binary(BinaryKind::Subtract, last, back)
}
