//! The cached state of one sequence, copied to the host and back.

use std::ops::Range;
use std::sync::Arc;

use trace::{Part, StateKind};

use crate::entry::KeptTensor;
use crate::executor::Executor;
use crate::saved::Header;
use crate::{GenerateError, Network, SavedFault, SavedSequence};

/// The state of one sequence after its first `length` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub length: usize,
    /// Below which position the row has written something, once its state is this one.
    pub written: usize,
    /// The bytes of each tensor of state that hold something; `None` of a tensor that is left out.
    pub tensors: Vec<Option<Arc<Vec<u8>>>>,
}

/// Whether a tensor has all positions, each in its own slot: then the state after fewer tokens is a part of it.
pub(crate) fn keeps_all(part: Part) -> bool {
    matches!(part.kind, StateKind::Kv(_))
}

impl KeptTensor {
    /// The byte ranges of a row that are in use, after `length` tokens, if positions below `written` were written. The batch is
    /// the first axis.
    fn ranges(&self, row: usize, length: usize, written: usize, context: usize) -> Vec<Range<usize>> {
        let bytes = self.ty.bytes() / self.ty.shape[0];
        let first = row * bytes;
        let slots = self.part().and_then(|part| Some((part, part.slots(context, self.ty.rank())?)));
        let Some((part, (slots, axis))) = slots else { return vec![first..first + bytes] };
        let lines: usize = self.ty.shape[1..axis].iter().product();
        let line = bytes / lines.max(1);
        let positions = if keeps_all(part) { length } else { written };
        let used = line / slots.max(1) * positions.min(slots);
        (0..lines).map(|i| first + i * line..first + i * line + used).collect()
    }
}

impl KeptTensor {
    /// The tensor as a saved sequence names it: without the batch, and without the context where every position has a slot.
    fn saved_name(&self, context: usize) -> String {
        let slots = self.part().filter(|&part| keeps_all(part));
        let axis = slots.and_then(|part| Some(part.slots(context, self.ty.rank())?.1));
        let extents = self.ty.shape.iter().enumerate().skip(1).map(|(i, extent)| match Some(i) == axis {
            true => "positions".to_owned(),
            false => extent.to_string(),
        });
        format!("{} {}[{}]", self.role, self.ty.element, extents.collect::<Vec<_>>().join(","))
    }

    /// The bytes of the tensor in a saved sequence.
    fn saved_size(&self, state: &Snapshot, context: usize) -> usize {
        self.ranges(0, state.length, state.written, context).iter().map(Range::len).sum()
    }
}

impl<E: Executor> Network<E> {
    /// The sequence with these tokens and this state.
    pub(crate) fn saved(&self, model: &str, tokens: &[u32], state: Snapshot) -> SavedSequence {
        let names = self.state().iter().map(|tensor| tensor.saved_name(self.context()));
        let sizes = state.tensors.iter().map(|tensor| tensor.as_ref().map_or(0, |tensor| tensor.len()));
        let header = Header {
            model: model.to_owned(),
            tokens: tokens.to_vec(),
            written: state.written,
            tensors: names.zip(sizes).collect(),
            notes: serde_json::Value::Null,
        };
        SavedSequence::new(header, state)
    }

    /// Whether a saved sequence belongs to this network with the weights that `model` names.
    ///
    /// # Errors
    /// The first difference.
    pub(crate) fn check_saved(&self, model: &str, saved: &SavedSequence) -> Result<(), GenerateError> {
        let (header, context) = (&saved.header, self.context());
        let refuse = |fault| Err(saved.refuse(fault));
        if header.model != model {
            return refuse(SavedFault::Model { found: header.model.clone(), expected: model.to_owned() });
        }
        if header.tokens.len() > context {
            return refuse(SavedFault::Length { found: header.tokens.len(), expected: context });
        }
        let none = || "nothing".to_owned();
        let own =
            |tensor: &KeptTensor| (tensor.saved_name(context), tensor.saved_size(&saved.state, context));
        let own: Vec<_> = self.state().iter().map(own).collect();
        for i in 0..own.len().max(header.tensors.len()) {
            let (found, expected) = (header.tensors.get(i), own.get(i));
            if found != expected {
                let named = |tensor: &(String, usize)| format!("{} of {} bytes", tensor.0, tensor.1);
                let [found, expected] = [found, expected].map(|tensor| tensor.map_or_else(none, named));
                return refuse(SavedFault::State { found, expected });
            }
        }
        self.check(&header.tokens, 0)
    }

    /// Copies the state of a row after its first `length` tokens, of those tensors that `wanted` selects. Positions below `written`
    /// were written.
    pub(crate) fn save(
        &self,
        state: &[E::Buffer],
        row: usize,
        (length, written): (usize, usize),
        wanted: impl Fn(Part) -> bool,
    ) -> Result<Snapshot, GenerateError> {
        let mut tensors = Vec::with_capacity(state.len());
        for (tensor, buffer) in self.state().iter().zip(state) {
            if !tensor.part().is_some_and(&wanted) {
                tensors.push(None);
                continue;
            }
            let mut bytes = Vec::new();
            for range in tensor.ranges(row, length, written, self.context()) {
                bytes.extend(self.executor.read_range(buffer, range)?);
            }
            tensors.push(Some(Arc::new(bytes)));
        }
        Ok(Snapshot { length, written, tensors })
    }

    /// Makes the state of a row what a snapshot holds. Tensors that it leaves out stay.
    ///
    /// # Errors
    /// If the device fails. Then the state is gone.
    pub(crate) fn restore(
        &self,
        state: &mut Vec<E::Buffer>,
        row: usize,
        snapshot: &Snapshot,
    ) -> Result<(), GenerateError> {
        let buffers = std::mem::take(state);
        for ((tensor, mut buffer), saved) in self.state().iter().zip(buffers).zip(&snapshot.tensors) {
            let mut rest = saved.as_ref().map_or(&[][..], |bytes| bytes);
            if saved.is_some() {
                for range in tensor.ranges(row, snapshot.length, snapshot.written, self.context()) {
                    let (bytes, others) = rest.split_at(range.len());
                    buffer = self.executor.write_range(&tensor.ty, buffer, range.start, bytes)?;
                    rest = others;
                }
            }
            state.push(buffer);
        }
        Ok(())
    }
}
