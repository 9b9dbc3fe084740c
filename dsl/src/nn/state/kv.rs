//! The state that contains the keys and values of an attention layer.

use super::{HasAxes, LayerState, Slots, State, StateArguments, Windowed};
use crate::Tensor;
use crate::argument::trace_arg;
use crate::element::Float;
use crate::nn::Attend;

/// The keys and values of one layer. Each tensor has the shape `[B, K, N, E]` with N slots (see
/// [`trace::KvState`]), or the shape `[B, K, ring, E]` with a ring buffer (see [`trace::RingState`]).
///
/// `cache { L of [K, E] }` declares the keys and values of L layers. With a third axis, as in `[K,
/// E, W]`, the values have W features.
#[derive(Clone, Copy, Debug)]
pub struct Kv<T: Float> {
    /// The attention keys of the layer, with a slot for each position.
    pub k: Slots<T>,
    /// The attention values of the layer, with a slot for each position.
    pub v: Slots<T>,
}

trace_arg!(Kv<T> { k, v });

impl<T: Float> Kv<T> {
    /// Writes keys and values of new positions into their slots, and returns the keys and values of all
    /// slots.
    ///
    /// `k` and `v` have an axis of new positions instead of the cache's axis of slots. The method
    /// writes the token at position p to slot p. In a ring buffer of R slots, the method writes the
    /// token at position p to slot p mod R. The method skips tokens that are padding.
    #[track_caller]
    pub fn append(&mut self, k: Tensor<T>, v: Tensor<T>, at: &Attend<T>) -> (Tensor<T>, Tensor<T>) {
        (self.k.append(k, at), self.v.append(v, at))
    }

    /// For a layer that attends to another one's.
    #[track_caller]
    pub fn read(&self) -> (Tensor<T>, Tensor<T>) {
        (self.k.read(), self.v.read())
    }
}

impl<T: Float> State for Kv<T> {
    fn take(declared: &LayerState, arguments: &mut StateArguments<'_>) -> Self {
        let dims = declared.dims();
        // The axes are the key heads, the features of a key and the features of a value.
        let values = [&dims[..1], &dims[dims.len() - 1..]].concat();
        let k = Slots::of("keys", "key", &dims[..2], declared, arguments);
        Self { k, v: Slots::of("values", "value", &values, declared, arguments) }
    }

    fn missing() -> Self {
        Self { k: Slots::missing(), v: Slots::missing() }
    }
}

impl<T: Float> HasAxes<2> for Kv<T> {}
impl<T: Float> HasAxes<3> for Kv<T> {}
impl<T: Float> Windowed for Kv<T> {}
