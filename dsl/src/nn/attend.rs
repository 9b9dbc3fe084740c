//! The attention function [`attend`] and its settings [`Attend`].

use std::panic::Location;

use ops::ops::{MaskTerm, Reshape, Rope as RopeOp, RopeLayout, Sdpa};
use ops::{ElementType, Literal, Real, RopePart, RopeTable, TensorType};

use super::{Mask, Position, RING};
use crate::argument::trace_arg;
use crate::element::{Bool, Float};
use crate::tensor::{axes, permuted};
use crate::tracer::{Place, Raw, Tracer};
use crate::{Axis, I32, NamedType, Tensor, TraceErrorKind};

/// Positions of queries, rotary tables, mask, scale and softcap.
#[derive(Clone, Debug)]
pub struct Attend<T: Float> {
    /// The axis of the queries.
    pub queries: Axis,
    /// The positions of the queries in their sequences.
    pub at: Position,
    /// For the queries' positions: `[S, R]`, or `[B, S, R]` per sequence; `None` without a rotary embedding.
    pub cos: Option<Tensor<T>>,
    /// The sines for the queries' positions, with the same axes as `cos`.
    pub sin: Option<Tensor<T>>,
    /// The pairs of features that the rotary embedding rotates together.
    pub layout: RopeLayout,
    /// The mask, which selects the keys that each query may see.
    pub mask: Mask<T>,
    /// For attention scores; `None` for 1/√E with E features of a head.
    pub scale: Option<f64>,
    /// Multiplies queries by position: `[S]`, or `[B, S]` per sequence.
    pub temperature: Option<Tensor<T>>,
    /// A score per query head, as of a key whose value is 0.
    pub sinks: Option<Tensor<T>>,
    /// Scores become `softcap · tanh(score / softcap)`.
    pub softcap: Option<f64>,
}

/// The angular frequencies of a rotary embedding, and a factor for the cosine and sine tables.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// Per pair of features, in radians per position, exact in f32.
    pub inv_freq: Vec<f64>,
    /// For cosine and sine; not 1 only for yarn and longrope.
    pub scaling: f64,
    /// The longest sequence with these frequencies, and those of all positions in longer ones.
    pub beyond: Option<(usize, Box<Self>)>,
}

impl RopeFrequencies {
    /// Creates the frequencies of an embedding that is the same for sequences of any length.
    pub fn new(inv_freq: Vec<f64>, scaling: f64) -> Self {
        Self { inv_freq, scaling, beyond: None }
    }
}

impl<T: Float> Attend<T> {
    /// Causal, without a rotary embedding.
    pub fn causal(at: Position, queries: Axis) -> Self {
        let layout = RopeLayout::HalfSplit;
        Self {
            queries,
            at,
            cos: None,
            sin: None,
            layout,
            mask: Mask::causal(),
            scale: None,
            temperature: None,
            sinks: None,
            softcap: None,
        }
    }

    /// Keys that `mask` allows at any position, without a rotary embedding.
    #[track_caller]
    pub fn bidirectional(queries: Axis, mask: Mask<T>) -> Self {
        let zero = Literal::splat(TensorType::new(ElementType::I32, []), 0.0);
        let zero = Tensor::constant(zero, &[]);
        Self { mask, ..Self::causal(Position { start: zero, count: zero }, queries) }
    }

    /// Causal, for `length` queries at `at`, with tables of `context` positions. [Other
    /// frequencies](RopeFrequencies::beyond) need [`Position::extended`].
    #[track_caller]
    pub fn rotary(
        at: Position,
        queries: Axis,
        length: usize,
        rope: &RopeFrequencies,
        context: usize,
    ) -> Self {
        Self::rotating(at, queries, length, rope, context, |original| at.extended(original))
    }

    /// Like [`rotary`](Self::rotary), for a whole text in one call, whose length selects the frequencies.
    #[track_caller]
    pub fn rotary_of_whole(at: Position, queries: Axis, length: usize, rope: &RopeFrequencies) -> Self {
        let is_extended = |original: usize| at.count.filled(original as f64).less(at.count);
        Self::rotating(at, queries, length, rope, length, is_extended)
    }

    /// Rotated by several coordinates of each position, such as the row and the column of a patch. A coordinate
    /// `[B, S]` is an integer below `extent`, and its frequencies rotate the features behind those of the one before.
    #[track_caller]
    pub fn axial<const N: usize>(
        queries: Axis,
        mask: Mask<T>,
        coordinates: [Tensor<I32>; N],
        frequencies: &[RopeFrequencies; N],
        extent: usize,
    ) -> Self {
        let rows = Axis("POSITIONS");
        let tables = |part| {
            let of = |(at, rope): (&Tensor<I32>, &RopeFrequencies)| {
                Tensor::<T>::constant(table::<T>(rope, part, extent), &[rows, Axis("R")]).rows(*at)
            };
            let picked: Vec<Tensor<T>> = coordinates.iter().zip(frequencies).map(of).collect();
            Tensor::concat(&picked, Axis("R"))
        };
        let (cos, sin) = (Some(tables(RopePart::Cos)), Some(tables(RopePart::Sin)));
        Self { cos, sin, ..Self::bidirectional(queries, mask) }
    }

    /// `is_extended`: whether each sequence has more tokens than a number.
    #[track_caller]
    fn rotating(
        at: Position,
        queries: Axis,
        length: usize,
        rope: &RopeFrequencies,
        context: usize,
        is_extended: impl Fn(usize) -> Tensor<Bool>,
    ) -> Self {
        let (mut cos, mut sin) = pick(at, queries, length, rope, context);
        let mut next = &rope.beyond;
        while let Some((original, longer)) = next {
            let is_extended = is_extended(*original);
            let (longer_cos, longer_sin) = pick(at, queries, length, longer, context);
            (cos, sin) = (is_extended.select(longer_cos, cos), is_extended.select(longer_sin, sin));
            next = &longer.beyond;
        }
        Self { cos: Some(cos), sin: Some(sin), ..Self::causal(at, queries) }
    }

    /// Also requires the conditions of `mask`.
    pub fn within(mut self, mask: Mask<T>) -> Self {
        self.mask &= mask;
        self
    }

    /// Each query sees its own position and `width` − 1 before it.
    pub fn windowed(self, width: Option<usize>) -> Self {
        match width {
            Some(width) => self.within(Mask::window(width)),
            None => self,
        }
    }

    /// Rotates features 2i and 2i + 1, and not i and i + R/2 of R rotated ones.
    pub fn interleaved(self) -> Self {
        Self { layout: RopeLayout::Interleaved, ..self }
    }

    /// Sets the factor by which the attention scores are multiplied.
    pub fn scaled(self, scale: f64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Multiplies the queries of each position by a factor `[S]` or `[B, S]`.
    pub fn tempered(self, factors: Tensor<T>) -> Self {
        Self { temperature: Some(factors), ..self }
    }

    /// Adds a score per query head, as of a key whose value is 0. Axes as in [`attend`]: key heads, then
    /// query heads of a group.
    pub fn with_sinks(self, sinks: Tensor<T>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// Scores become `softcap · tanh(score / softcap)`.
    pub fn capped(self, softcap: Option<f64>) -> Self {
        Self { softcap, ..self }
    }

    /// The last axis has the features.
    #[track_caller]
    pub fn rope(&self, x: Tensor<T>) -> Tensor<T> {
        let place = Location::caller();
        let (Some(cos), Some(sin)) = (self.cos, self.sin) else { return x };
        x.apply(place, |t, raw, ty| match ty.position(self.queries) {
            Some(axis) => {
                let op = RopeOp { axis, layout: self.layout };
                t.op(None, op, &[raw, cos.raw, sin.raw], &axes(&ty.dims), place)
            }
            None => t.fail(TraceErrorKind::NoAxis { op: "rope", axis: self.queries, ty }, place),
        })
    }
}

/// Tables need no rows for positions of longer sequences.
#[track_caller]
fn pick<T: Float>(
    at: Position,
    queries: Axis,
    length: usize,
    rope: &RopeFrequencies,
    context: usize,
) -> (Tensor<T>, Tensor<T>) {
    let positions = rope.beyond.as_ref().map_or(context, |(original, _)| context.min(*original));
    // These nodes are created outside the closure. In the closure, they would record a line of
    // this file as their source.
    let axes = [queries, Axis("R")];
    let cos = Tensor::<T>::constant(table::<T>(rope, RopePart::Cos, positions), &axes);
    let sin = Tensor::<T>::constant(table::<T>(rope, RopePart::Sin, positions), &axes);
    (at.pick(cos, queries, length), at.pick(sin, queries, length))
}

/// The cosines or sines of the angles at `positions` positions.
fn table<T: Float>(rope: &RopeFrequencies, part: RopePart, positions: usize) -> Literal {
    let inv_freq = rope.inv_freq.iter().copied().map(Real).collect();
    Literal::rope_table(T::element(), RopeTable { part, positions, scaling: Real(rope.scaling), inv_freq })
}

/// Computes attention of queries `[…, S, …, E]` over keys `[…, N, E]` and values `[…, N, E]` or
/// `[…, N, W]`. The settings `at` contain the mask, the scale and the softcap.
///
/// The last axis of k is the axis of features. Except for the axis of features, all axes that q and
/// k share are batch axes. The one axis of k that q lacks is the axis of keys. If the axis of keys
/// is [`RING`], the keys are in a ring buffer. The axes of q that k lacks are the axis of queries
/// and, optionally, an axis for the query heads that share a key head. The result has the axes of
/// q, except that the last axis has the features of v.
#[track_caller]
pub fn attend<T: Float>(q: Tensor<T>, k: Tensor<T>, v: Tensor<T>, at: &Attend<T>) -> Tensor<T> {
    let place = Location::caller();
    let q = match at.temperature {
        Some(factors) => q * factors.broadcast(q),
        None => q,
    };
    q.apply(place, |t, raw, query| {
        let (Some(key), Some(value)) = (t.named_type(k.raw, place), t.named_type(v.raw, place)) else {
            return Raw::POISON;
        };
        let mismatch = |left: &NamedType, right: &NamedType| TraceErrorKind::Axes {
            op: "attend",
            left: left.clone(),
            right: right.clone(),
        };
        let Some(feature) = key.dims.last().copied().filter(|d| query.dims.contains(d)) else {
            return t.fail(mismatch(&query, &key), place);
        };
        let own: Vec<Axis> = axes(&query.dims).into_iter().filter(|a| key.position(*a).is_none()).collect();
        let keys: Vec<Axis> = axes(&key.dims).into_iter().filter(|a| query.position(*a).is_none()).collect();
        let queries = at.queries;
        let groups: Vec<Axis> = own.iter().copied().filter(|a| *a != queries).collect();
        let (true, [keys], true) = (own.contains(&queries), &keys[..], groups.len() <= 1) else {
            return t.fail(mismatch(&query, &key), place);
        };
        let shared = axes(&query.dims).into_iter().filter(|a| *a != feature.axis && !own.contains(a));
        let batch: Vec<Axis> = shared.collect();

        let q_order = [&batch[..], &groups, &[queries, feature.axis]].concat();
        let k_order = [&batch[..], &[*keys, feature.axis]].concat();
        // A value may have a different number of features than a key.
        let own = value.dims.iter().find(|d| key.position(d.axis).is_none());
        let features = own.map_or(feature.axis, |d| d.axis);
        let v_order = [&batch[..], &[*keys, features]].concat();
        let with_features = |order: Vec<Axis>| -> Vec<Axis> {
            order.into_iter().map(|axis| if axis == feature.axis { features } else { axis }).collect()
        };
        let back = with_features(axes(&query.dims));
        let mut operands = vec![
            permuted(t, raw, query, &q_order, place),
            permuted(t, k.raw, key, &k_order, place),
            permuted(t, v.raw, value, &v_order, place),
            at.at.start.raw,
        ];
        let scores = [&batch[..], &groups, &[queries, *keys]].concat();
        let (mut lengths, mut added) = (at.mask.lengths.iter(), at.mask.added.iter());
        for term in &at.mask.terms {
            match term {
                MaskTerm::Additive => {
                    operands.extend(added.next().map(|mask| placed(t, mask.raw, &scores, place)))
                }
                term if term.has_operand() => operands.extend(lengths.next().map(|lengths| lengths.raw)),
                _ => {}
            }
        }
        let mut mask = at.mask.terms.clone();
        if let Some(sinks) = at.sinks {
            mask.push(MaskTerm::Sinks);
            let heads = [&batch[..], &groups].concat();
            operands.push(of_heads(t, sinks.raw, &heads, place));
        }
        mask.extend((*keys == RING).then_some(MaskTerm::Ring));
        let op = Sdpa { mask, scale: at.scale.map(Real), softcap: at.softcap.map(Real), offset: true };
        let attended = t.op(None, op, &operands, &with_features(q_order), place);
        match t.named_type(attended, place) {
            Some(ty) => permuted(t, attended, ty, &back, place),
            None => attended,
        }
    })
}

/// The sinks have all axes of `heads`, or the last ones.
fn of_heads(t: &mut Tracer, raw: Raw, heads: &[Axis], place: Place) -> Raw {
    let Some(ty) = t.named_type(raw, place) else { return Raw::POISON };
    let own = heads.iter().copied().filter(|axis| ty.position(*axis).is_some());
    let own: Vec<Axis> = own.collect();
    if own.len() == ty.dims.len() && heads.ends_with(&own) {
        permuted(t, raw, ty, &own, place)
    } else {
        t.fail(TraceErrorKind::Order { op: "sinks", ty, axes: heads.to_vec() }, place)
    }
}

/// Missing axes get the extent 1, so that they broadcast.
fn placed(t: &mut Tracer, raw: Raw, order: &[Axis], place: Place) -> Raw {
    let Some(ty) = t.named_type(raw, place) else { return Raw::POISON };
    if let Some(d) = ty.dims.iter().find(|d| !order.contains(&d.axis)) {
        let ty = NamedType { element: ty.element, dims: ty.dims.clone() };
        return t.fail(TraceErrorKind::Order { op: "mask", ty, axes: vec![d.axis] }, place);
    }
    let own: Vec<Axis> = order.iter().copied().filter(|axis| ty.position(*axis).is_some()).collect();
    let from = order.iter().position(|axis| own.contains(axis)).unwrap_or(order.len());
    let extent = |axis: &Axis| ty.dims.iter().find(|d| d.axis == *axis).map_or(1, |d| d.extent);
    let shape: Vec<usize> = order[from..].iter().map(extent).collect();
    let raw = permuted(t, raw, ty, &own, place);
    if shape.len() == own.len() { raw } else { t.op(None, Reshape { shape }, &[raw], &order[from..], place) }
}

trace_arg!(Attend<T> { queries, at, cos, sin, layout, mask, scale, temperature, sinks, softcap });
