//! Copies the cached state of one sequence to the host and back.

use std::ops::Range;
use std::sync::Arc;

use trace::{Part, StateKind};

use crate::entry::KeptTensor;
use crate::executor::Executor;
use crate::{GenerateError, Network};

/// The state of one sequence after its first `length` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub length: usize,
    /// All positions that the row has written, once it has this state, are below this position.
    pub written: usize,
    /// The bytes of each state tensor that are in use; `None` for a tensor that the snapshot omits.
    pub tensors: Vec<Option<Arc<Vec<u8>>>>,
}

/// Whether a tensor contains all positions, each in its own slot. The state after fewer tokens is then a part
/// of the tensor.
pub(crate) fn keeps_all(part: Part) -> bool {
    matches!(part.kind, StateKind::Kv(_))
}

impl KeptTensor {
    /// The byte ranges of a row that are in use after `length` tokens, if positions below `written` were
    /// written. The batch is the first axis of the tensor.
    pub fn ranges(&self, row: usize, length: usize, written: usize, context: usize) -> Vec<Range<usize>> {
        let bytes = self.ty.bytes() / self.ty.shape[0];
        let first = row * bytes;
        let slots = self.part().and_then(|part| Some((part, part.slots(context, self.ty.rank())?)));
        let Some((part, (slots, axis))) = slots else {
            return std::iter::once(first..first + bytes).collect();
        };
        let lines: usize = self.ty.shape[1..axis].iter().product();
        let line = bytes / lines.max(1);
        let positions = if keeps_all(part) { length } else { written };
        let used = line / slots.max(1) * positions.min(slots);
        (0..lines).map(|i| first + i * line..first + i * line + used).collect()
    }
}

impl<E: Executor> Network<E> {
    /// Copies the state of a row after its first `length` tokens, for the tensors that `wanted` selects.
    /// Positions below `written` have been written.
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

    /// Replaces the state of a row by the state in a snapshot. Tensors that the snapshot omits do not change.
    ///
    /// # Errors
    /// Returns an error if the device fails. After a failure of the device the state is lost.
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
