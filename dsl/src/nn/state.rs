//! What layers remember, as a network sees it: it is written here, and so that the promises of
//! [`trace::StateKind`] hold.

use std::panic::Location;

use ops::ops::{Append, Concatenate, Dequantize, DynamicUpdateSlice};

use super::{Attend, Position, RING};
use crate::argument::{TraceArg, trace_arg};
use crate::element::{Element, F32, Float, I8};
use crate::tensor::{axes, permuted};
use crate::tracer::{self, Place, Raw};
use crate::{Axis, Dim, NamedType, Tensor, TraceErrorKind};

/// The keys and values that one layer remembers: `[B, K, N, E]` each, N slots (see [`trace::KvState`]); or
/// `[B, K, ring, E]` (see [`trace::RingState`]).
#[derive(Clone, Copy, Debug)]
pub struct Kv<T: Float> {
    /// The keys.
    pub k: Slots<T>,
    /// The values.
    pub v: Slots<T>,
}

/// The slots of keys or of values (see [`trace::KvFormat`]).
#[derive(Clone, Copy, Debug)]
pub enum Slots<T: Float> {
    /// As the network computes with them.
    Computed(Tensor<T>),
    /// As integers.
    Q8 {
        /// The integers, `[B, K, N, E]`.
        integers: Tensor<I8>,
        /// What one of them stands for, `[B, K, N]`.
        scales: Tensor<F32>,
    },
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
        (self.k.append(k, at), self.v.append(v, at))
    }
}

impl<T: Float> Slots<T> {
    /// Writes new rows into their slots, and returns all of them as the network computes with them.
    #[track_caller]
    fn append(&mut self, new: Tensor<T>, at: &Attend<T>) -> Tensor<T> {
        let place = Location::caller();
        match self {
            Self::Computed(all) => {
                *all = all.appended(new, at.at);
                *all
            }
            Self::Q8 { integers, scales } => {
                let [.., features] = integers.dims(place)[..] else { return Tensor::new(Raw::POISON) };
                let (new_integers, new_scales) = new.quantized(features.axis);
                *integers = integers.appended(new_integers, at.at);
                *scales = scales.appended(new_scales, at.at);
                integers.apply(place, |t, raw, ty| {
                    let op = Dequantize { element: T::TYPE };
                    t.op(None, op, &[raw, scales.raw], &axes(&ty.dims), place)
                })
            }
        }
    }
}

impl<T: Float> TraceArg for Slots<T> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        match self {
            Self::Computed(all) => {
                data.push(0);
                all.flatten(tensors, data);
            }
            Self::Q8 { integers, scales } => {
                data.push(1);
                integers.flatten(tensors, data);
                scales.flatten(tensors, data);
            }
        }
    }

    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        match self {
            Self::Computed(all) => Self::Computed(all.rebuild(tensors)),
            Self::Q8 { integers, scales } => {
                Self::Q8 { integers: integers.rebuild(tensors), scales: scales.rebuild(tensors) }
            }
        }
    }
}

impl<T: Float> Tensor<T> {
    /// Whole numbers of a byte, and what one of them stands for in each row along an axis, whose largest is ±127.
    #[track_caller]
    fn quantized(self, features: Axis) -> (Tensor<I8>, Tensor<F32>) {
        let x = self.to::<F32>();
        // A row of zeros has a scale too.
        let scales = (x.abs().max(features) / 127.0).maximum(f64::from(f32::MIN_POSITIVE));
        ((x / scales).round().to(), scales)
    }
}

impl<T: Element> Tensor<T> {
    /// The real ones of new rows in the slots of their positions. The new rows have one axis that this cache has not (it
    /// counts them), and lack one (its slots).
    #[track_caller]
    fn appended(self, new: Self, at: Position) -> Self {
        let place = Location::caller();
        let Some((new, tokens, slots)) = self.aligned_with(new, place) else {
            return Self::new(Raw::POISON);
        };
        let ring = slots.axis == RING;
        // The one token of a single row is real.
        if tokens.extent == 1 && !at.is_by_row() {
            let start = if ring { at.start.modulo(slots.extent) } else { at.start };
            return self.apply(place, |t, raw, ty| {
                let axis = ty.position(slots.axis).unwrap_or_default();
                t.op(None, DynamicUpdateSlice { axis }, &[raw, new.raw, start.raw], &axes(&ty.dims), place)
            });
        }
        self.apply(place, |t, raw, ty| {
            let op = Append { axis: ty.position(slots.axis).unwrap_or_default(), ring };
            t.op(None, op, &[raw, new.raw, at.start.raw, at.count.raw], &axes(&ty.dims), place)
        })
    }

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
