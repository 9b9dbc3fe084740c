//! State that an encoder fills and a decoder reads.

use trace::Role;

use super::{HasAxes, LayerState, State, StateArguments};
use crate::Tensor;
use crate::argument::TraceArg;
use crate::element::Element;
use crate::tracer::Raw;

/// The output of an encoder for one layer, `[B, …]`. The function `encode` fills this state, and
/// the function `forward` reads the state.
///
/// `cache { L of cross: Encoded[N, D] }` declares a state with the axes N and D. The extents of N
/// and D are fixed. If the encoder's output can be shorter than N, store the length of the output
/// as another state, such as an `Encoded<I32>[]`.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<T: Element> {
    tensor: Tensor<T>,
}

impl<T: Element> Encoded<T> {
    /// The tensor that `encode` stored.
    pub fn read(&self) -> Tensor<T> {
        self.tensor
    }

    /// Stores the output of the encoder. Call this method in the function `encode`.
    pub fn fill(&mut self, tensor: Tensor<T>) {
        self.tensor = tensor;
    }
}

impl<T: Element> TraceArg for Encoded<T> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        self.tensor.flatten(tensors, data);
    }

    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        Self { tensor: self.tensor.rebuild(tensors) }
    }
}

impl<T: Element> State for Encoded<T> {
    const IS_MEMORY: bool = true;

    fn take(declared: &LayerState, arguments: &mut StateArguments<'_>) -> Self {
        let layer = arguments.layer;
        let own = declared.dims.iter().map(|d| (d.axis.0.into(), d.extent));
        let batch = std::iter::once(("B".into(), arguments.sizes.batch));
        let axes: Vec<trace::StateAxis> = batch.chain(own).collect();
        let name = declared.tensor_name("state");
        Self { tensor: arguments.tensor(name, |name| Role::Memory { layer, name }, &axes) }
    }

    fn missing() -> Self {
        Self { tensor: Tensor::new(Raw::POISON) }
    }
}

impl<T: Element, const N: usize> HasAxes<N> for Encoded<T> {}
