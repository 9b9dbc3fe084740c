//! Converts `linear_attention` to primitive operations. For a single token, the converter uses the definition
//! of linear attention. For several tokens, the converter divides the tokens into chunks.

use ops::ops::{
    BinaryKind, BroadcastInDim, Compare, Concatenate, Direction, DotGeneral, Iota, LinearAttention,
    LinearAttentionSizes, Narrow, Permute, Reduce, ReduceKind, Reshape, Select, UnaryKind,
};
use ops::{ElementType, InferError, TensorType};
use trace::{Builder, NodeId};

/// The number of tokens in a chunk, as in the function `torch_chunk_gated_delta_rule` of the
/// library HF transformers.
const CHUNK: usize = 64;

/// The leading axes of the state matrices: sequences, key heads, and value heads per key head.
const HEADS: [usize; 3] = [0, 1, 2];

/// Contains the tensors for some of the tokens, with the token axis after the head axes. In this
/// struct, the queries and keys have an additional axis for the value heads per key head.
struct Tokens {
    q: NodeId,
    k: NodeId,
    v: NodeId,
    decay: NodeId,
    rate: NodeId,
}

pub(crate) fn convert(
    b: &mut Builder<'_>,
    op: &LinearAttention,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let [q, k, v, decay, rate, state, start, count] = operands[..] else { unreachable!("inferred") };
    let sizes = LinearAttention::sizes(b.ty(v), b.ty(state));
    let real = real(b, sizes, count)?;
    let mut only_real = |x: NodeId| {
        let shape = b.ty(x).shape.clone();
        let axes = if b.ty(real).rank() == 1 { vec![1] } else { vec![0, 1] };
        let real = b.op(BroadcastInDim { shape, axes }, &[real])?;
        let zero = b.splat(x, 0.0)?;
        b.op(Select {}, &[real, x, zero])
    };
    let [q, k, v, decay, rate] = [q, k, v, decay, rate].map(&mut only_real);
    let (q, k, v, decay, rate) = (q?, k?, v?, decay?, rate?);
    let tokens = Tokens {
        q: by_group(b, sizes, q)?,
        k: by_group(b, sizes, k)?,
        v: b.op(Permute { order: vec![0, 2, 3, 1, 4] }, &[v])?,
        decay: b.op(Permute { order: vec![0, 2, 3, 1] }, &[decay])?,
        rate: b.op(Permute { order: vec![0, 2, 3, 1] }, &[rate])?,
    };
    let mut state = before(b, state, start)?;
    let mut outputs = Vec::new();
    let mut from = 0;
    while from < sizes.tokens {
        let length = CHUNK.min(sizes.tokens - from);
        let part = tokens.part(b, from, length)?;
        let (next, output) = match length {
            1 => step(b, op.delta, &part, state)?,
            _ => chunk(b, op.delta, &part, state)?,
        };
        state = next;
        outputs.push(output);
        from += length;
    }
    b.op(Concatenate { axis: 3 }, &[&[state], &outputs[..]].concat())
}

/// Whether each token is a real token and not padding. The tensor that marks real tokens has the
/// shape `[S]` or `[B, S]`.
fn real(b: &mut Builder<'_>, sizes: LinearAttentionSizes, count: NodeId) -> Result<NodeId, InferError> {
    let mut shape = vec![sizes.tokens];
    if b.ty(count).rank() == 1 {
        shape.insert(0, sizes.sequences);
    }
    let index = TensorType::new(ElementType::I32, shape.clone());
    let token = b.op(Iota { axis: shape.len() - 1, ty: index }, &[])?;
    let axes = (0..b.ty(count).rank()).collect();
    let count = b.op(BroadcastInDim { shape, axes }, &[count])?;
    b.op(Compare { direction: Direction::Lt }, &[token, count])
}

/// Returns the state matrices of linear attention before the first token. At the beginning of a
/// sequence, the state matrices are 0.
fn before(b: &mut Builder<'_>, state: NodeId, start: NodeId) -> Result<NodeId, InferError> {
    let zero = b.splat(start, 0.0)?;
    let begins = b.op(Compare { direction: Direction::Eq }, &[start, zero])?;
    let axes = (0..b.ty(start).rank()).collect();
    let begins = b.op(BroadcastInDim { shape: b.ty(state).shape.clone(), axes }, &[begins])?;
    let zero = b.splat(state, 0.0)?;
    b.op(Select {}, &[begins, zero, state])
}

/// Converts keys or queries from `[B, S, H, D]` to `[B, H, G, S, D]`.
fn by_group(b: &mut Builder<'_>, sizes: LinearAttentionSizes, x: NodeId) -> Result<NodeId, InferError> {
    let LinearAttentionSizes { sequences, tokens, heads, groups, keys, .. } = sizes;
    let x = b.op(Permute { order: vec![0, 2, 1, 3] }, &[x])?;
    b.op(BroadcastInDim { shape: vec![sequences, heads, groups, tokens, keys], axes: vec![0, 1, 3, 4] }, &[x])
}

impl Tokens {
    fn part(&self, b: &mut Builder<'_>, start: usize, length: usize) -> Result<Self, InferError> {
        let mut part = |x: NodeId| {
            if b.ty(x).shape[3] == length { Ok(x) } else { b.op(Narrow { axis: 3, start, length }, &[x]) }
        };
        let Self { q, k, v, decay, rate } = *self;
        Ok(Self { q: part(q)?, k: part(k)?, v: part(v)?, decay: part(decay)?, rate: part(rate)? })
    }
}

/// Repeats the tensor `x` along the axes that `like` has and `x` lacks; the axes of `x` are the
/// axes `axes` of `like`.
fn over(b: &mut Builder<'_>, x: NodeId, like: NodeId, axes: &[usize]) -> Result<NodeId, InferError> {
    b.op(BroadcastInDim { shape: b.ty(like).shape.clone(), axes: axes.to_vec() }, &[x])
}

/// Multiplies the tensor `x` by `factor`, which has only the axes `axes` of `x`.
fn scaled(b: &mut Builder<'_>, x: NodeId, factor: NodeId, axes: &[usize]) -> Result<NodeId, InferError> {
    let factor = over(b, factor, x, axes)?;
    b.binary(BinaryKind::Multiply, x, factor)
}

/// Appends a matmul for each head, which sums over the given axes.
fn product(
    b: &mut Builder<'_>,
    (left, left_axis): (NodeId, usize),
    (right, right_axis): (NodeId, usize),
) -> Result<NodeId, InferError> {
    let op = DotGeneral {
        left_batch: HEADS.to_vec(),
        right_batch: HEADS.to_vec(),
        left_contract: vec![left_axis],
        right_contract: vec![right_axis],
        element: ElementType::F32,
    };
    b.op(op, &[left, right])
}

/// Computes linear attention for one token, and returns the new state matrices and the output.
fn step(
    b: &mut Builder<'_>,
    delta: bool,
    tokens: &Tokens,
    state: NodeId,
) -> Result<(NodeId, NodeId), InferError> {
    let one = |b: &mut Builder<'_>, x: NodeId| {
        let mut shape = b.ty(x).shape.clone();
        shape.remove(3);
        b.op(Reshape { shape }, &[x])
    };
    let (q, k, v) = (one(b, tokens.q)?, one(b, tokens.k)?, one(b, tokens.v)?);
    let (decay, rate) = (one(b, tokens.decay)?, one(b, tokens.rate)?);
    let read = |b: &mut Builder<'_>, state: NodeId, by: NodeId| {
        let products = scaled(b, state, by, &[0, 1, 2, 3])?;
        b.op(Reduce { kind: ReduceKind::Add, axes: vec![3] }, &[products])
    };
    let factor = b.unary(UnaryKind::Exponential, decay)?;
    let state = scaled(b, state, factor, &HEADS)?;
    let value = if delta {
        let known = read(b, state, k)?;
        b.binary(BinaryKind::Subtract, v, known)?
    } else {
        v
    };
    let value = scaled(b, value, rate, &HEADS)?;
    let (key, value) = (over(b, k, state, &[0, 1, 2, 3])?, over(b, value, state, &[0, 1, 2, 4])?);
    let update = b.binary(BinaryKind::Multiply, key, value)?;
    let state = b.binary(BinaryKind::Add, state, update)?;
    let output = read(b, state, q)?;
    let mut shape = b.ty(output).shape.clone();
    shape.insert(3, 1);
    Ok((state, b.op(Reshape { shape }, &[output])?))
}

/// Computes linear attention for several tokens with matmuls. Returns the new state matrices and
/// the outputs. Sources: The algorithm is from Yang et al., "Gated Delta Networks" (2024), §3.3;
/// without the delta rule, the algorithm is from Dao and Gu, "Transformers are SSMs" (2024), §6.
fn chunk(
    b: &mut Builder<'_>,
    delta: bool,
    tokens: &Tokens,
    state: NodeId,
) -> Result<(NodeId, NodeId), InferError> {
    const ROWS: [usize; 4] = [0, 1, 2, 3];
    let Tokens { q, k, v, .. } = *tokens;
    let between = Between::of(b, tokens.decay)?;
    let mut written = scaled(b, v, tokens.rate, &ROWS)?;
    if delta {
        // The values u solve (I + A) · u = β · (v − exp(G) · k · S), where A contains the products
        // of each token's key and the earlier keys.
        let similar = product(b, (k, 4), (k, 4))?;
        let similar = b.binary(BinaryKind::Multiply, similar, between.factors)?;
        let reads = scaled(b, similar, tokens.rate, &ROWS)?;
        let solve = inverse(b, reads)?;
        let values = product(b, (solve, 4), (written, 3))?;
        let keys = scaled(b, k, tokens.rate, &ROWS)?;
        let keys = scaled(b, keys, between.from_start, &ROWS)?;
        let keys = product(b, (solve, 4), (keys, 3))?;
        let known = product(b, (keys, 4), (state, 3))?;
        written = b.binary(BinaryKind::Subtract, values, known)?;
    }
    let queries = scaled(b, q, between.from_start, &ROWS)?;
    let earlier = product(b, (queries, 4), (state, 3))?;
    let scores = product(b, (q, 4), (k, 4))?;
    let scores = b.binary(BinaryKind::Multiply, scores, between.factors)?;
    let own = product(b, (scores, 4), (written, 3))?;
    let outputs = b.binary(BinaryKind::Add, earlier, own)?;
    let keys = scaled(b, k, between.to_end, &ROWS)?;
    let update = product(b, (keys, 3), (written, 3))?;
    let kept = scaled(b, state, between.whole, &HEADS)?;
    Ok((b.binary(BinaryKind::Add, kept, update)?, outputs))
}

/// The decay factors between the tokens in a chunk of C tokens of linear attention.
struct Between {
    /// The decay factor from each earlier token to each token of the chunk, `[…, C, C]`; the
    /// factors from later tokens are 0.
    factors: NodeId,
    /// The decay factor from the state before the chunk to each token of the chunk, `[…, C]`.
    from_start: NodeId,
    /// The decay factor from each token to the end of the chunk, `[…, C]`.
    to_end: NodeId,
    /// The decay factor over the whole chunk, `[…]`.
    whole: NodeId,
}

impl Between {
    /// Computes, with a matmul, the sum of the decays in each range of tokens. The function does not subtract
    /// two sums that begin at the first token, because the difference would lose precision.
    fn of(b: &mut Builder<'_>, decay: NodeId) -> Result<Self, InferError> {
        let mut shape = b.ty(decay).shape.clone();
        let length = shape[3];
        shape.push(length);
        let place = |b: &mut Builder<'_>, axis| {
            let ty = TensorType::new(ElementType::I32, [length, length]);
            b.op(Iota { ty, axis }, &[])
        };
        let (row, column) = (place(b, 0)?, place(b, 1)?);
        let after = b.op(Compare { direction: Direction::Lt }, &[row, column])?;
        let until = b.op(Compare { direction: Direction::Le }, &[column, row])?;
        // The element [from, l] is the decay of token l if token l is after the token `from`, and
        // otherwise 0.
        let each = b.op(BroadcastInDim { shape: shape.clone(), axes: vec![0, 1, 2, 4] }, &[decay])?;
        let after = b.op(BroadcastInDim { shape: shape.clone(), axes: vec![3, 4] }, &[after])?;
        let none = b.splat(each, 0.0)?;
        let later = b.op(Select {}, &[after, each, none])?;
        let ones = b.convert(until, ElementType::F32)?;
        let sum = |b: &mut Builder<'_>, x: NodeId, axis: usize| {
            let op = DotGeneral {
                left_batch: vec![],
                right_batch: vec![],
                left_contract: vec![axis],
                right_contract: vec![1],
                element: ElementType::F32,
            };
            b.op(op, &[x, ones])
        };
        // The axes of the sums are [from, to].
        let sums = sum(b, later, 4)?;
        let sums = b.op(Permute { order: vec![0, 1, 2, 4, 3] }, &[sums])?;
        let factors = b.unary(UnaryKind::Exponential, sums)?;
        let until = b.op(BroadcastInDim { shape, axes: vec![3, 4] }, &[until])?;
        let none = b.splat(factors, 0.0)?;
        let factors = b.op(Select {}, &[until, factors, none])?;
        let from_start = sum(b, decay, 3)?;
        let from_start = b.unary(UnaryKind::Exponential, from_start)?;
        let last = |b: &mut Builder<'_>, x: NodeId| {
            let mut shape = b.ty(x).shape.clone();
            let last = b.op(Narrow { axis: 3, start: length - 1, length: 1 }, &[x])?;
            shape.remove(3);
            b.op(Reshape { shape }, &[last])
        };
        Ok(Self { to_end: last(b, factors)?, whole: last(b, from_start)?, factors, from_start })
    }
}

/// Computes the inverse of the matrix I + A, for each matrix `[C, C]` of `x`. A is the part of `x`
/// `[…, C, C]` that is below the diagonal.
///
/// The computation starts with blocks of one token, for which the inverse is 1. For two neighbouring blocks
/// with the inverses X and Y, let P be the part of A that is left of Y and below X. The inverse of the joint
/// block of X and Y is [[X, 0], [−Y · P · X, Y]]. The function does not use a power series of A, because the
/// terms of the series cancel for repeated keys and make the result inexact.
fn inverse(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let shape = b.ty(x).shape.clone();
    let length = shape[4];
    let ty = TensorType::new(ElementType::I32, [length, length]);
    let (row, column) = (b.op(Iota { ty: ty.clone(), axis: 0 }, &[])?, b.op(Iota { ty, axis: 1 }, &[])?);
    let same_block = |b: &mut Builder<'_>, size: usize, direction| {
        let row = b.with_scalar(BinaryKind::Divide, row, size as f64)?;
        let column = b.with_scalar(BinaryKind::Divide, column, size as f64)?;
        b.op(Compare { direction }, &[row, column])
    };
    let everywhere = |b: &mut Builder<'_>, mask: NodeId| {
        b.op(BroadcastInDim { shape: shape.clone(), axes: vec![3, 4] }, &[mask])
    };
    let below = b.op(Compare { direction: Direction::Lt }, &[column, row])?;
    let zero = b.splat(x, 0.0)?;
    let diagonal = b.op(Compare { direction: Direction::Eq }, &[row, column])?;
    let diagonal = b.convert(diagonal, ElementType::F32)?;
    let mut solved = everywhere(b, diagonal)?;
    let mut size = 1;
    while size < length {
        // The pairs of tokens below the diagonal that are in the same block of 2 · `size` tokens,
        // but in different blocks of `size` tokens.
        let (within, apart) = (same_block(b, 2 * size, Direction::Eq)?, same_block(b, size, Direction::Ne)?);
        let part = b.binary(BinaryKind::And, within, apart)?;
        let part = b.binary(BinaryKind::And, part, below)?;
        let part = everywhere(b, part)?;
        let mut left = b.op(Select {}, &[part, x, zero])?;
        if size > 1 {
            left = product(b, (solved, 4), (left, 3))?;
            left = product(b, (left, 4), (solved, 3))?;
        }
        solved = b.binary(BinaryKind::Subtract, solved, left)?;
        size *= 2;
    }
    Ok(solved)
}
