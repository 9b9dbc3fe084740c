//! What layers remember, as a network sees it: it is written here, and so that the promises of
//! [`trace::StateKind`] hold.

use std::panic::Location;

use ops::ops::{Append, Concatenate, DynamicUpdateSlice};

use super::{Attend, Position, RING};
use crate::argument::trace_arg;
use crate::element::{Float, I32};
use crate::tensor::{axes, permuted};
use crate::tracer::{self, Place, Raw};
use crate::{Axis, Dim, NamedType, Tensor, TraceErrorKind};

/// The keys and values that one layer remembers: `[B, K, N, E]` each, N slots (see [`trace::KvState`]); or
/// `[B, K, ring, E]` (see [`trace::RingState`]).
#[derive(Clone, Copy, Debug)]
pub struct Kv<T: Float> {
    /// The keys.
    pub k: Tensor<T>,
    /// The values.
    pub v: Tensor<T>,
}

/// What one layer carries from token to token, `[B, …]`: see [`trace::RecurrentState`].
#[derive(Clone, Copy, Debug)]
pub struct Recurrent<T: Float> {
    /// The state. What is read of it is [`Recurrent::before`].
    pub state: Tensor<T>,
}

/// What all layers remember.
#[derive(Clone, Debug)]
pub struct Cache<T: Float> {
    /// The keys and values of each layer that keeps them.
    pub layers: Vec<Kv<T>>,
    /// The state of each layer that carries one.
    pub recurrent: Vec<Recurrent<T>>,
    /// The longest sequence that fits.
    pub context: usize,
}

trace_arg!(Kv<T> { k, v });
trace_arg!(Recurrent<T> { state });
trace_arg!(Cache<T> { layers, recurrent, context });

impl<T: Float> Kv<T> {
    /// Writes keys and values of new positions into their slots, and returns all of them.
    ///
    /// `k` and `v` have one axis that the cache has not (it counts the new positions); the cache has one that they
    /// have not (its slots). The slots are those of the positions of `at`, in a ring modulo their number. Tokens that
    /// pad a chunk write nothing.
    #[track_caller]
    pub fn append(&mut self, k: Tensor<T>, v: Tensor<T>, at: &Attend<T>) -> (Tensor<T>, Tensor<T>) {
        let place = Location::caller();
        for (cache, new) in [(&mut self.k, k), (&mut self.v, v)] {
            let Some((new, tokens, slots)) = cache.aligned_with(new, place) else {
                *cache = Tensor::new(Raw::POISON);
                continue;
            };
            let ring = slots.axis == RING;
            *cache = match (at.at.is_by_row(), tokens.extent) {
                // The one token of a single row is real.
                (false, 1) if ring => cache.written(new, slots.axis, at.at.start.modulo(slots.extent), place),
                (false, 1) => cache.written(new, slots.axis, at.at.start, place),
                _ => cache.appended(new, slots.axis, at.at, place),
            };
        }
        (self.k, self.v)
    }
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

    /// `new` written over the slots from `start` on, which is clamped so that they fit.
    fn written(self, new: Self, slots: Axis, start: Tensor<I32>, place: Place) -> Self {
        self.apply(place, |t, raw, ty| {
            let axis = ty.position(slots).unwrap_or_default();
            t.op(None, DynamicUpdateSlice { axis }, &[raw, new.raw, start.raw], &axes(&ty.dims), place)
        })
    }

    /// The real tokens of `new` in the slots of their positions.
    fn appended(self, new: Self, slots: Axis, at: Position, place: Place) -> Self {
        self.apply(place, |t, raw, ty| {
            let op = Append { axis: ty.position(slots).unwrap_or_default(), ring: slots == RING };
            t.op(None, op, &[raw, new.raw, at.start.raw, at.count.raw], &axes(&ty.dims), place)
        })
    }
}

impl<T: Float> Recurrent<T> {
    /// The state before the first new token: zeros where a row begins.
    #[track_caller]
    pub fn before(&self, at: Position) -> Tensor<T> {
        let begins = at.start.equals(at.start.filled(0.0));
        begins.select(self.state.filled(0.0), self.state)
    }

    /// What a causal convolution sees, where the state is its last inputs on the axis `kept`: those, then the new
    /// inputs `x` on its axis `tokens`. The last real ones are kept.
    #[track_caller]
    pub fn append(&mut self, x: Tensor<T>, kept: Axis, tokens: Axis, at: Position) -> Tensor<T> {
        let place = Location::caller();
        let length = self.state.extent(kept);
        let before = self.before(at).rename(kept, tokens).permute(&axes(&x.dims(place)));
        let all = before.apply(place, |t, raw, ty| {
            let axis = ty.position(tokens).unwrap_or_default();
            t.op(None, Concatenate { axis }, &[raw, x.raw], &axes(&ty.dims), place)
        });
        let last = match at.is_by_row() {
            false => all.dynamic_narrow(tokens, at.count, length).rename(tokens, kept),
            true => all.take(tokens, Tensor::iota(kept, length).outer(at.count, |i, count| i + count)),
        };
        self.state = last.permute(&axes(&self.state.dims(place)));
        all
    }
}
