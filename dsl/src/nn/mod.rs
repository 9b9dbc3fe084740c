//! The functions that networks are written with.

mod activation;
mod largest;
mod mask;
mod positions;

use std::panic::Location;

use ops::ops::{
    DotGeneral, DynamicUpdateSlice, Gather, Iota, MaskTerm, Reshape, Rope as RopeOp, RopeLayout, Sdpa,
};
use ops::{ElementType, Literal, Real, RopePart, RopeTable, TensorType};

use crate::element::{Element, Float, I32};
use crate::tensor::{Place, Raw, axes, extents, fail_extents, permuted};
use crate::tracer;
use crate::{Axis, Dim, NamedType, Tensor, TraceArg, TraceErrorKind};

pub use activation::{gelu, gelu_tanh, relu, silu, softmax};
pub use largest::{argmax, topk};
pub use mask::Mask;
pub use positions::positions_within;

/// Which positions an entry point computes: `count` real tokens from position `start` on.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The position of the first token.
    pub start: Tensor<I32>,
    /// How many of the tokens are real; the rest pad the chunk.
    pub count: Tensor<I32>,
    /// In a batch, `[B]`: how many positions before each sequence's first token are padding. They count as slots of
    /// the cache, and not as positions of the rotary embedding.
    pub pad: Option<Tensor<I32>>,
}

/// The axis of a cache that counts the slots of a ring: slot t holds the last position ≡ t (mod slots). A layer that
/// looks through a window needs no more slots than the window and the longest chunk fill.
pub const RING: Axis = Axis("ring");

/// The keys and values that one layer remembers: `[B, K, N, E]` each, N slots; or `[B, K, ring, E]`, see [`RING`].
#[derive(Clone, Copy, Debug)]
pub struct Kv<T: Float> {
    /// The keys.
    pub k: Tensor<T>,
    /// The values.
    pub v: Tensor<T>,
}

/// The keys and values of all layers.
#[derive(Clone, Debug)]
pub struct KvCache<T: Float> {
    /// A cache for each layer.
    pub layers: Vec<Kv<T>>,
    /// The number of slots: the longest sequence that fits.
    pub context: usize,
}

/// How attention looks: rotary tables for the queries' positions, mask, scale, softcap.
#[derive(Clone, Debug)]
pub struct Attend<T: Float> {
    /// The axis that counts the queries.
    pub queries: Axis,
    /// The position of the first query.
    pub start: Tensor<I32>,
    /// Cosines of the queries' positions, `[S, R]`, in a batch `[B, S, R]`; no rotation if there are none.
    pub cos: Option<Tensor<T>>,
    /// Sines of the queries' positions.
    pub sin: Option<Tensor<T>>,
    /// Which features are rotated together.
    pub layout: RopeLayout,
    /// Which keys a query may see.
    pub mask: Mask<T>,
    /// The factor on the scores; 1/√E if there is none.
    pub scale: Option<f64>,
    /// The bound on the scores.
    pub softcap: Option<f64>,
}

macro_rules! trace_arg {
    ($name:ident<$t:ident> { $($field:ident),* }) => {
        impl<$t: Float> TraceArg for $name<$t> {
            fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
                $(self.$field.flatten(tensors, data);)*
            }
            fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
                Self { $($field: self.$field.rebuild(tensors)),* }
            }
        }
    };
}

impl TraceArg for Position {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        (self.start, self.count, self.pad).flatten(tensors, data);
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        let (start, count, pad) = (self.start, self.count, self.pad).rebuild(tensors);
        Self { start, count, pad }
    }
}

impl TraceArg for RopeLayout {
    fn flatten(&self, _: &mut Vec<Raw>, data: &mut Vec<u8>) {
        data.push(*self as u8);
    }
    fn rebuild(&self, _: &mut dyn Iterator<Item = Raw>) -> Self {
        *self
    }
}

trace_arg!(Kv<T> { k, v });
trace_arg!(KvCache<T> { layers, context });
trace_arg!(Mask<T> { terms, lengths, added });
trace_arg!(Attend<T> { queries, start, cos, sin, layout, mask, scale, softcap });

/// The angular frequencies of a rotary embedding and the factor on its tables.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// One for each pair of features, exactly representable in f32.
    pub inv_freq: Vec<f64>,
    /// The factor on cosine and sine (1 but for yarn and longrope).
    pub scaling: f64,
}

impl<T: Float> Attend<T> {
    /// Causal attention without rotary embedding, for queries on axis `queries` from `at.start` on. In a batch the
    /// padding is hidden.
    pub fn causal(at: Position, queries: Axis) -> Self {
        let mut mask = Mask::causal();
        if let Some(pad) = at.pad {
            mask &= Mask::padding(pad);
        }
        let (start, layout) = (at.start, RopeLayout::HalfSplit);
        Self { queries, start, cos: None, sin: None, layout, mask, scale: None, softcap: None }
    }

    /// Causal attention with rotary embedding, for `length` queries on axis `queries` from `at.start` on, within
    /// `context` positions.
    #[track_caller]
    pub fn rotary(
        at: Position,
        queries: Axis,
        length: usize,
        rope: &RopeFrequencies,
        context: usize,
    ) -> Self {
        let table = |part| {
            let inv_freq = rope.inv_freq.iter().copied().map(Real).collect();
            let table = RopeTable { part, positions: context, scaling: Real(rope.scaling), inv_freq };
            Literal::rope_table(T::TYPE, table)
        };
        // Outside of the closure: a closure would be the place that the nodes come from.
        let axes = [queries, Axis("R")];
        let cos = Tensor::<T>::constant(table(RopePart::Cos), &axes);
        let sin = Tensor::<T>::constant(table(RopePart::Sin), &axes);
        let (cos, sin) = match at.pad {
            None => {
                (cos.dynamic_narrow(queries, at.start, length), sin.dynamic_narrow(queries, at.start, length))
            }
            Some(pad) => {
                // Positions count from each sequence's first token; what stands before it is never seen.
                let slots = Tensor::<I32>::iota(queries, length) + at.start;
                let positions = slots.minus_each(pad).maximum(Tensor::scalar(0.0));
                (cos.rows(positions), sin.rows(positions))
            }
        };
        Self { cos: Some(cos), sin: Some(sin), ..Self::causal(at, queries) }
    }

    /// The same, seeing less: only keys that `mask` shows too.
    pub fn within(mut self, mask: Mask<T>) -> Self {
        self.mask &= mask;
        self
    }

    /// The same, seeing at most the query's own position and the `width` − 1 before it, if there is a bound.
    pub fn windowed(self, width: Option<usize>) -> Self {
        match width {
            Some(width) => self.within(Mask::window(width)),
            None => self,
        }
    }

    /// The same with this factor on the scores instead of 1/√E.
    pub fn scaled(self, scale: f64) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// The same with scores softly bounded: `softcap · tanh(score / softcap)`, if there is a bound.
    pub fn capped(self, softcap: Option<f64>) -> Self {
        Self { softcap, ..self }
    }

    /// `x` rotated by its positions: the queries' axis counts them, the last axis holds the features.
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

impl Tensor<I32> {
    /// `[S]` − `[B]` → `[B, S]`
    #[track_caller]
    fn minus_each(self, other: Self) -> Self {
        let place = Location::caller();
        let dims = [other.dims(place), self.dims(place)].concat();
        let zeros = Literal::splat(TensorType::new(ElementType::I32, extents(&dims)), 0.0);
        (Self::constant(zeros, &axes(&dims)) + self) - other
    }
}

impl<T: Float> Kv<T> {
    /// Writes keys and values of new positions into their slots, and returns all of them.
    ///
    /// `k` and `v` have one axis that the cache has not (it counts the new positions); the cache has one that they
    /// have not (its slots). The slots are those from `at.start` on, in a ring modulo their number.
    #[track_caller]
    pub fn append(&mut self, k: Tensor<T>, v: Tensor<T>, at: &Attend<T>) -> (Tensor<T>, Tensor<T>) {
        let place = Location::caller();
        for (cache, new) in [(&mut self.k, k), (&mut self.v, v)] {
            let Some((new, added, slots)) = cache.aligned_with(new, place) else {
                *cache = Tensor::new(Raw::POISON);
                continue;
            };
            *cache = match (slots.axis == RING, added.extent) {
                (false, _) => cache.written(new, slots.axis, at.start, place),
                (true, 1) => cache.written(new, RING, modulo(at.start, slots.extent), place),
                (true, length) => {
                    // A chunk may run over the ring's end: every slot takes the new row that falls on it, if one does.
                    let slot = Tensor::<I32>::iota(RING, slots.extent) - at.start;
                    // Both are below 2³⁰, so the dividend stays positive and in range.
                    let row = modulo(
                        slot + (i32::MAX as usize / 2 / slots.extent * slots.extent) as f64,
                        slots.extent,
                    );
                    let is_new = row.less(row.filled(length as f64));
                    let rows = new.picked(added.axis, row.minimum(row.filled(length as f64 - 1.0)), place);
                    is_new.select(rows, *cache)
                }
            };
        }
        (self.k, self.v)
    }
}

/// x mod `divisor` of numbers that are not negative.
#[track_caller]
fn modulo(x: Tensor<I32>, divisor: usize) -> Tensor<I32> {
    x - x / divisor as f64 * divisor as f64
}

impl<T: Float> Tensor<T> {
    /// New rows with the axes of this cache but for one: in their order, with the axis they add and the one they
    /// replace.
    fn aligned_with(self, new: Self, place: Place) -> Option<(Self, Dim, Dim)> {
        let (slots, rows) = (self.dims(place), new.dims(place));
        let lacks = |a: &[Dim], b: &[Dim]| -> Vec<Dim> {
            a.iter().filter(|d| b.iter().all(|e| e.axis != d.axis)).copied().collect()
        };
        let (added, replaced) = (lacks(&rows, &slots), lacks(&slots, &rows));
        let ([added], [replaced]) = (&added[..], &replaced[..]) else {
            let named = |dims| NamedType { element: T::TYPE, dims };
            let op = "append to a KV cache";
            tracer::with(|t| {
                t.fail(TraceErrorKind::Axes { op, left: named(slots), right: named(rows) }, place)
            });
            return None;
        };
        let order = slots.iter().map(|d| if d.axis == replaced.axis { added.axis } else { d.axis });
        let order: Vec<Axis> = order.collect();
        Some((new.apply(place, |t, raw, ty| permuted(t, raw, ty, &order, place)), *added, *replaced))
    }

    /// `new` written over the slots from `start` on.
    fn written(self, new: Self, slots: Axis, start: Tensor<I32>, place: Place) -> Self {
        self.apply(place, |t, raw, ty| {
            let axis = ty.position(slots).unwrap_or_default();
            t.op(None, DynamicUpdateSlice { axis }, &[raw, new.raw, start.raw], &axes(&ty.dims), place)
        })
    }

    /// The rows that `indices` name: their axes take the place of this tensor's first one.
    #[track_caller]
    pub fn rows(self, indices: Tensor<I32>) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, ty| {
            let Some(of) = t.named_type(indices.raw, place) else { return Raw::POISON };
            let names = [axes(&of.dims), axes(ty.dims.get(1..).unwrap_or_default())].concat();
            t.op(None, Gather {}, &[raw, indices.raw], &names, place)
        })
    }

    /// The indices of `axis` that `indices`, of one axis, name: that one takes its place.
    fn picked(self, axis: Axis, indices: Tensor<I32>, place: Place) -> Self {
        let order = axes(&self.dims(place));
        let first: Vec<Axis> =
            [axis].into_iter().chain(order.iter().copied().filter(|other| *other != axis)).collect();
        let by = indices.dims(place).first().map_or(axis, |d| d.axis);
        let back: Vec<Axis> = order.iter().map(|other| if *other == axis { by } else { *other }).collect();
        let front = self.apply::<T>(place, |t, raw, ty| permuted(t, raw, ty, &first, place));
        front.rows(indices).apply(place, |t, raw, ty| permuted(t, raw, ty, &back, place))
    }
}

/// The product of two tensors summed over the axis `contracted`. Axes that both have are batch axes; the rest of
/// `a`, then the rest of `b`, follow. f16 and bf16 products are summed in f32 and rounded once.
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
            return fail_extents(t, "dot", d.axis, (a, &left), (b.raw, &right), place);
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
        match T::TYPE == ElementType::F32 {
            true => product,
            false => t.op(None, ops::ops::Convert { to: T::TYPE }, &[product], &result, place),
        }
    })
}

/// Attention of queries `[…, S, …, E]` over keys and values `[…, N, E]`, with the mask, scale and softcap of `at`.
///
/// Axes that q and k share, but the last one of k (the features), are batch axes. k's other axis counts the keys; if
/// it is [`RING`], they are a ring. q's other axes are the queries and at most one that groups query heads. The
/// result has the axes of q.
#[track_caller]
pub fn attend<T: Float>(q: Tensor<T>, k: Tensor<T>, v: Tensor<T>, at: &Attend<T>) -> Tensor<T> {
    let place = Location::caller();
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
        let back = axes(&query.dims);
        let mut operands = vec![
            permuted(t, raw, query, &q_order, place),
            permuted(t, k.raw, key, &k_order, place),
            permuted(t, v.raw, value, &k_order, place),
            at.start.raw,
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
        mask.extend((*keys == RING).then_some(MaskTerm::Ring));
        let op = Sdpa { mask, scale: at.scale.map(Real), softcap: at.softcap.map(Real), offset: true };
        let attended = t.op(None, op, &operands, &q_order, place);
        match t.named_type(attended, place) {
            Some(ty) => permuted(t, attended, ty, &back, place),
            None => attended,
        }
    })
}

/// A tensor whose axes are some of `order`, as one that broadcasts to them from the trailing side.
fn placed(t: &mut tracer::Tracer, raw: Raw, order: &[Axis], place: Place) -> Raw {
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
    match shape.len() == own.len() {
        true => raw,
        false => t.op(None, Reshape { shape }, &[raw], &order[from..], place),
    }
}

impl<T: Element> Tensor<T> {
    /// 0, 1, 2, … along a new axis.
    #[track_caller]
    pub fn iota(axis: Axis, extent: usize) -> Self {
        let place = Location::caller();
        let ty = TensorType::new(T::TYPE, [extent]);
        Self::new(
            tracer::with(|t| t.op(None, Iota { ty, axis: 0 }, &[], &[axis], place)).unwrap_or(Raw::POISON),
        )
    }

    /// The same elements in row-major order with other axes.
    #[track_caller]
    pub fn reshape(self, dims: &[Dim]) -> Self {
        let place = Location::caller();
        self.apply(place, |t, raw, _| {
            t.op(None, Reshape { shape: extents(dims) }, &[raw], &axes(dims), place)
        })
    }
}
