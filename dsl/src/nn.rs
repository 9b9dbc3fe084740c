//! The functions that networks are written with.

use std::panic::Location;

use ops::ops::{DotGeneral, DynamicUpdateSlice, Iota, MaskTerm, Reshape, Rope as RopeOp, RopeLayout, Sdpa};
use ops::{ElementType, Literal, Real, RopePart, RopeTable, TensorType};

use crate::element::{Element, Float, I32};
use crate::tensor::{Raw, axes, extents, permuted};
use crate::tracer;
use crate::{Axis, Dim, NamedType, Tensor, TraceArg, TraceErrorKind};

/// Which positions an entry point computes: `count` real tokens from position `start` on.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The position of the first token.
    pub start: Tensor<I32>,
    /// How many of the tokens are real; the rest pad the chunk.
    pub count: Tensor<I32>,
}

/// The keys and values that one layer remembers: `[B, K, N, E]` each, N slots.
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
    /// The position of the first query.
    pub start: Tensor<I32>,
    /// Cosines of the queries' positions, `[S, R]`; no rotation if there are none.
    pub cos: Option<Tensor<T>>,
    /// Sines of the queries' positions, `[S, R]`.
    pub sin: Option<Tensor<T>>,
    /// Which features are rotated together.
    pub layout: RopeLayout,
    /// The conditions for a query to see a key.
    pub mask: Vec<MaskTerm>,
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
        (self.start, self.count).flatten(tensors, data);
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        let (start, count) = (self.start, self.count).rebuild(tensors);
        Self { start, count }
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
trace_arg!(Attend<T> { start, cos, sin, layout, mask, scale, softcap });

/// The angular frequencies of a rotary embedding and the factor on its tables.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeFrequencies {
    /// One for each pair of features, exactly representable in f32.
    pub inv_freq: Vec<f64>,
    /// The factor on cosine and sine (1 but for yarn and longrope).
    pub scaling: f64,
}

impl<T: Float> Attend<T> {
    /// Causal attention with rotary embedding, for `length` queries on axis `queries` from `at.start` on, within
    /// `context` positions.
    #[track_caller]
    pub fn causal(
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
        let cos =
            Tensor::<T>::constant(table(RopePart::Cos), &axes).dynamic_narrow(queries, at.start, length);
        let sin =
            Tensor::<T>::constant(table(RopePart::Sin), &axes).dynamic_narrow(queries, at.start, length);
        Self {
            start: at.start,
            cos: Some(cos),
            sin: Some(sin),
            layout: RopeLayout::HalfSplit,
            mask: vec![MaskTerm::Causal],
            scale: None,
            softcap: None,
        }
    }

    /// `x` rotated by its positions: the queries' axis counts them, the last axis holds the features.
    #[track_caller]
    pub fn rope(&self, x: Tensor<T>) -> Tensor<T> {
        let place = Location::caller();
        let (Some(cos), Some(sin)) = (self.cos, self.sin) else { return x };
        x.apply(place, |t, raw, ty| {
            let Some(table) = t.named_type(cos.raw, place) else { return Raw::POISON };
            let queries = table.dims[0].axis;
            match ty.position(queries) {
                Some(axis) => {
                    let op = RopeOp { axis, layout: self.layout };
                    t.op(None, op, &[raw, cos.raw, sin.raw], &axes(&ty.dims), place)
                }
                None => t.fail(TraceErrorKind::NoAxis { op: "rope", axis: queries, ty }, place),
            }
        })
    }
}

impl<T: Float> Kv<T> {
    /// Writes keys and values of new positions into their slots, and returns all of them.
    ///
    /// `k` and `v` have one axis that the cache has not (it counts the new positions); the cache has one that they
    /// have not (its slots). The slots are those from `at.start` on.
    #[track_caller]
    pub fn append(&mut self, k: Tensor<T>, v: Tensor<T>, at: &Attend<T>) -> (Tensor<T>, Tensor<T>) {
        let place = Location::caller();
        for (cache, new) in [(&mut self.k, k), (&mut self.v, v)] {
            *cache = cache.apply(place, |t, raw, slots| {
                let Some(ty) = t.named_type(new.raw, place) else { return Raw::POISON };
                let lacks = |a: &NamedType, b: &NamedType| -> Vec<Dim> {
                    a.dims.iter().filter(|d| b.position(d.axis).is_none()).copied().collect()
                };
                let (added, replaced) = (lacks(&ty, &slots), lacks(&slots, &ty));
                let ([added], [replaced]) = (&added[..], &replaced[..]) else {
                    let op = "append to a KV cache";
                    return t.fail(TraceErrorKind::Axes { op, left: slots, right: ty }, place);
                };
                let order: Vec<Axis> = slots
                    .dims
                    .iter()
                    .map(|d| if d.axis == replaced.axis { added.axis } else { d.axis })
                    .collect();
                let new = permuted(t, new.raw, ty, &order, place);
                let axis = slots.position(replaced.axis).unwrap_or_default();
                t.op(None, DynamicUpdateSlice { axis }, &[raw, new, at.start.raw], &axes(&slots.dims), place)
            });
        }
        (self.k, self.v)
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
            return t.fail(TraceErrorKind::Extents { op: "dot", axis: d.axis, left, right }, place);
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

/// Attention of queries `[…, S, …, E]` over keys and values `[…, N, E]`, with the mask, scale and softcap of `at`.
///
/// Axes that q and k share, but the last one of k (the features), are batch axes. k's other axis counts the keys.
/// q's other axes are the queries (the first axis of `at`'s tables, or the only one) and at most one that groups
/// query heads. The result has the axes of q.
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
        let tables = at.cos.and_then(|cos| t.named_type(cos.raw, place));
        let own: Vec<Axis> = axes(&query.dims).into_iter().filter(|a| key.position(*a).is_none()).collect();
        let keys: Vec<Axis> = axes(&key.dims).into_iter().filter(|a| query.position(*a).is_none()).collect();
        let queries = tables.and_then(|ty| ty.dims.first().map(|d| d.axis)).or(own.first().copied());
        let groups: Vec<Axis> = own.iter().copied().filter(|a| Some(*a) != queries).collect();
        let (Some(queries), [keys], true) =
            (queries.filter(|a| own.contains(a)), &keys[..], groups.len() <= 1)
        else {
            return t.fail(mismatch(&query, &key), place);
        };
        let shared = axes(&query.dims).into_iter().filter(|a| *a != feature.axis && !own.contains(a));
        let batch: Vec<Axis> = shared.collect();

        let q_order = [&batch[..], &groups, &[queries, feature.axis]].concat();
        let k_order = [&batch[..], &[*keys, feature.axis]].concat();
        let back = axes(&query.dims);
        let q = permuted(t, raw, query, &q_order, place);
        let k = permuted(t, k.raw, key, &k_order, place);
        let v = permuted(t, v.raw, value, &k_order, place);
        let op = Sdpa {
            mask: at.mask.clone(),
            scale: at.scale.map(Real),
            softcap: at.softcap.map(Real),
            offset: true,
        };
        let attended = t.op(None, op, &[q, k, v, at.start.raw], &q_order, place);
        match t.named_type(attended, place) {
            Some(ty) => permuted(t, attended, ty, &back, place),
            None => attended,
        }
    })
}

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
