//! The state that a recurrent layer passes from token to token.

use std::panic::Location;

use ops::ops::Concatenate;
use trace::{RecurrentState, StateKind};

use super::{HasAxes, LayerState, State, StateArguments};
use crate::argument::trace_arg;
use crate::element::{F32, Float};
use crate::nn::Position;
use crate::tensor::axes;
use crate::tracer::Raw;
use crate::{Axis, Dim, Tensor};

/// The tensor `[B, …]` that a recurrent layer passes from token to token; see [`trace::RecurrentState`].
///
/// `cache { L of recurrent [C, D] }` declares a state without a name. `cache { L of delta:
/// Recurrent<F32>[H, K, E] }` declares a state with the name `delta` and the element type `F32`.
#[derive(Clone, Copy, Debug)]
pub struct Recurrent<T: Float> {
    /// The state after the last token. To read the state before the new tokens, call [`Recurrent::before`].
    pub state: Tensor<T>,
}

trace_arg!(Recurrent<T> { state });

impl<T: Float> State for Recurrent<T> {
    fn take(declared: &LayerState, arguments: &mut StateArguments<'_>) -> Self {
        let kind = StateKind::Recurrent(RecurrentState);
        let axes = arguments.axes(kind, declared.dims());
        Self { state: arguments.input(kind, declared.tensor_name("state"), &axes) }
    }

    fn missing() -> Self {
        Self { state: Tensor::new(Raw::POISON) }
    }
}

impl<T: Float, const N: usize> HasAxes<N> for Recurrent<T> {}

impl<T: Float> Recurrent<T> {
    /// The state before the first new token of a call. At the beginning of a sequence, the state is zero.
    #[track_caller]
    pub fn before(&self, at: Position) -> Tensor<T> {
        let begins = at.start.equals(at.start.filled(0.0));
        begins.select(self.state.filled(0.0), self.state)
    }

    /// A causal convolution of each feature over the last positions. The result is the sum of the
    /// products of inputs and taps, computed in f32.
    ///
    /// The state stores the last inputs on the axis `kept`. `x` contains the new inputs on the axis
    /// `tokens`. `taps` has the axes of the features and the axis `tap`. The last element along
    /// `tap` is the factor for the newest input. Any other axes of `taps` must have extent 1. The
    /// call replaces the state by the last inputs that are not padding.
    #[track_caller]
    pub fn convolve(
        &mut self,
        x: Tensor<T>,
        taps: Tensor<T>,
        [kept, tap, tokens]: [Axis; 3],
        at: Position,
    ) -> Tensor<F32> {
        let place = Location::caller();
        let seen = self.append(x, kept, tokens, at).to::<F32>();
        let (length, taps) = (x.extent(tokens), taps.to::<F32>());
        let features: Vec<Dim> = taps
            .dims(place)
            .into_iter()
            .filter(|d| x.dims(place).iter().any(|of| of.axis == d.axis))
            .collect();
        let term = |j| seen.narrow(tokens, j, length) * taps.narrow(tap, j, 1).reshape(&features);
        (1..taps.extent(tap)).fold(term(0), |sum, j| sum + term(j))
    }

    /// Returns the inputs of a causal convolution on the axis `tokens`. The previous inputs, which
    /// the state stores on the axis `kept`, come first, and the new inputs `x` follow. The call
    /// replaces the state by the last inputs that are not padding.
    #[track_caller]
    pub fn append(&mut self, x: Tensor<T>, kept: Axis, tokens: Axis, at: Position) -> Tensor<T> {
        let place = Location::caller();
        let length = self.state.extent(kept);
        let before = self.before(at).rename(kept, tokens).permute(&axes(&x.dims(place)));
        let all = before.apply(place, |t, raw, ty| {
            let axis = ty.position(tokens).unwrap_or_default();
            t.op(None, Concatenate { axis }, &[raw, x.raw], &axes(&ty.dims), place)
        });
        let last = if at.is_by_row() {
            all.take(tokens, Tensor::iota(kept, length).outer(at.count, |i, count| i + count))
        } else {
            all.dynamic_narrow(tokens, at.count, length).rename(tokens, kept)
        };
        self.state = last.permute(&axes(&self.state.dims(place)));
        all
    }
}
