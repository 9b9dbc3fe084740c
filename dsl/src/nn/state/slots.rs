//! The state that has a slot for each position, such as the keys and values of attention.

use std::panic::Location;

use ops::ops::{Append, Dequantize, DynamicUpdateSlice};
use trace::{KvFormat, KvState, RingState, StateKind};

use super::{HasAxes, LayerState, State, StateArguments, Windowed};
use crate::argument::TraceArg;
use crate::element::{Element, F32, Float, I8};
use crate::nn::{Attend, Position, RING};
use crate::tensor::{axes, permuted};
use crate::tracer::{self, Place, Raw};
use crate::{Axis, Dim, NamedType, Tensor, TraceErrorKind};

/// A tensor with a slot for each position, such as the keys or the values of a layer.
/// [`trace::KvFormat`] defines the storage formats.
///
/// `cache { L of latent: Slots[R] }` declares a tensor `[B, N, R]`. If you declare axes in
/// addition, your axes come before the axis of cache slots.
#[derive(Clone, Copy, Debug)]
pub enum Slots<T: Float> {
    /// The slots have the element type of the network.
    Computed(Tensor<T>),
    /// The slots contain 8-bit integers, with a scale for each slot and head.
    Q8 {
        /// The quantized integers, `[B, K, N, E]`.
        integers: Tensor<I8>,
        /// The scales of the integers, `[B, K, N]`. The product of an integer and its scale is the
        /// stored value.
        scales: Tensor<F32>,
    },
}

impl<T: Float> State for Slots<T> {
    fn take(declared: &LayerState, arguments: &mut StateArguments<'_>) -> Self {
        Self::of("slots", "slot", declared.dims(), declared, arguments)
    }

    fn missing() -> Self {
        Self::Computed(Tensor::new(Raw::POISON))
    }
}

impl<T: Float> HasAxes<1> for Slots<T> {}
impl<T: Float> HasAxes<2> for Slots<T> {}
impl<T: Float> HasAxes<3> for Slots<T> {}
impl<T: Float> Windowed for Slots<T> {}

impl<T: Float> Slots<T> {
    /// Creates the slots of a layer with the axes `dims`. The parameter `all` is the default name
    /// of the slots tensor. If the slots are quantized, the default name of the scales tensor is
    /// `one` with a suffix.
    pub(super) fn of(
        all: &str,
        one: &str,
        dims: &[Dim],
        declared: &LayerState,
        arguments: &mut StateArguments<'_>,
    ) -> Self {
        let (format, sizes) = (arguments.format, arguments.sizes);
        let ring = declared.window().and_then(|window| RingState::of(window, format, sizes));
        let kind = ring.map_or(StateKind::Kv(KvState { format }), StateKind::Ring);
        let axes = arguments.axes(kind, dims);
        let name = declared.tensor_name(all);
        match format {
            KvFormat::Computed => Self::Computed(arguments.input(kind, name, &axes)),
            KvFormat::Q8 => {
                let scales = format!("{}{}", declared.tensor_name(one), KvFormat::SCALES);
                let integers = arguments.input(kind, name, &axes);
                let axes = &axes[..axes.len() - 1];
                Self::Q8 { integers, scales: arguments.input(kind, scales, axes) }
            }
        }
    }

    /// Writes the vectors of new positions into the slots of these positions. Returns all slots in
    /// the element type of the network.
    ///
    /// `new` has an axis of new positions instead of the state's axis of slots. The method skips
    /// tokens that are padding.
    #[track_caller]
    pub fn append(&mut self, new: Tensor<T>, at: &Attend<T>) -> Tensor<T> {
        let place = Location::caller();
        match self {
            Self::Computed(all) => *all = all.appended(new, at.at),
            Self::Q8 { integers, scales } => {
                let [.., features] = integers.dims(place)[..] else { return Tensor::new(Raw::POISON) };
                let (new_integers, new_scales) = new.quantized(features.axis);
                *integers = integers.appended(new_integers, at.at);
                *scales = scales.appended(new_scales, at.at);
            }
        }
        self.read()
    }

    /// Returns all slots in the element type of the network.
    #[track_caller]
    pub fn read(&self) -> Tensor<T> {
        let place = Location::caller();
        match self {
            Self::Computed(all) => *all,
            Self::Q8 { integers, scales } => integers.apply(place, |t, raw, ty| {
                let op = Dequantize { element: T::element() };
                t.op(None, op, &[raw, scales.raw], &axes(&ty.dims), place)
            }),
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
    /// Quantizes each vector along the axis `features` to integers from −127 to 127 and a scale.
    #[track_caller]
    fn quantized(self, features: Axis) -> (Tensor<I8>, Tensor<F32>) {
        let x = self.to::<F32>();
        // The scale of a vector of zeros must not be zero.
        let scales = (x.abs().max(features) / 127.0).maximum(f64::from(f32::MIN_POSITIVE));
        ((x / scales).round().to(), scales)
    }
}

impl<T: Element> Tensor<T> {
    /// Writes the real vectors of `new`, without padding, into the slots of their positions. `new` has an
    /// axis of new positions instead of the axis of slots.
    #[track_caller]
    fn appended(self, new: Self, at: Position) -> Self {
        let place = Location::caller();
        let Some((new, tokens, slots)) = self.aligned_with(new, place) else {
            return Self::new(Raw::POISON);
        };
        let ring = slots.axis == RING;
        // If a call has a single token for its only sequence, the token is not padding.
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

    /// Reorders the axes of `new` like the axes of this state. Returns the reordered tensor, the
    /// axis of new positions in `new`, and the state's axis of slots.
    fn aligned_with(self, new: Self, place: Place) -> Option<(Self, Dim, Dim)> {
        let (slots, rows) = (self.dims(place), new.dims(place));
        let lacks = |a: &[Dim], b: &[Dim]| -> Vec<Dim> {
            a.iter().filter(|d| b.iter().all(|e| e.axis != d.axis)).copied().collect()
        };
        let (added, replaced) = (lacks(&rows, &slots), lacks(&slots, &rows));
        let ([added], [replaced]) = (&added[..], &replaced[..]) else {
            let named = |dims| NamedType { element: T::element(), dims };
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
