//! Copies the state of one sequence out of the batch, and restores it in the batch.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use trace::{Part, StateKind};

use crate::entry::KeptTensor;
use crate::executor::Executor;
use crate::{GenerateError, Network};

/// The used bytes in one row of a state tensor, without positions that have no tokens.
pub(crate) type UsedBytes = Arc<Vec<u8>>;

/// The state of one sequence after its first `length` tokens. `T` stores one row of a state tensor.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot<T = UsedBytes> {
    pub length: usize,
    /// The first position that no network call had written at the time of the snapshot.
    pub written: usize,
    /// One row of each state tensor, or `None` for a tensor that the snapshot omits.
    pub tensors: Vec<Option<T>>,
}

/// A copy of one row of a state tensor.
pub(crate) enum KeptRow<B> {
    Host(UsedBytes),
    /// The whole row, as a tensor on the device.
    Device(Rc<B>),
}

impl<B> Clone for KeptRow<B> {
    fn clone(&self) -> Self {
        match self {
            Self::Host(bytes) => Self::Host(bytes.clone()),
            Self::Device(buffer) => Self::Device(buffer.clone()),
        }
    }
}

/// Whether the tensor stores each position separately, so its state contains those of fewer tokens.
pub(crate) fn keeps_all(part: Part) -> bool {
    matches!(part.kind, StateKind::Kv(_))
}

impl KeptTensor {
    /// The byte ranges of a sequence's state after `length` tokens, of which calls have written all positions
    /// below `written`. The first axis is the batch axis.
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

    /// Shortens a saved row. `from` and `to` are pairs: a number of tokens, and the first unwritten position.
    pub fn shortened<B>(
        &self,
        saved: &KeptRow<B>,
        from: (usize, usize),
        to: (usize, usize),
        context: usize,
    ) -> KeptRow<B> {
        match saved {
            KeptRow::Host(bytes) => KeptRow::Host(self.shortened_bytes(bytes, from, to, context).into()),
            // A copy on the device also contains the state after fewer tokens.
            KeptRow::Device(_) => saved.clone(),
        }
    }

    fn shortened_bytes(
        &self,
        bytes: &[u8],
        from: (usize, usize),
        to: (usize, usize),
        context: usize,
    ) -> Vec<u8> {
        let ranges = |(length, written)| self.ranges(0, length, written, context);
        let (mut rest, mut shorter) = (bytes, Vec::new());
        for (old, new) in ranges(from).into_iter().zip(ranges(to)) {
            let (line, others) = rest.split_at(old.len());
            shorter.extend(&line[..new.len().min(line.len())]);
            rest = others;
        }
        shorter
    }
}

impl KeptTensor {
    /// Extracts the bytes that are in use from the bytes of one whole row of a state tensor.
    fn used(&self, row: &[u8], length: usize, written: usize, context: usize) -> Vec<u8> {
        self.ranges(0, length, written, context).into_iter().flat_map(|range| &row[range]).copied().collect()
    }

    /// Restores one whole row from its used bytes; all others are zero.
    fn whole(&self, used: &[u8], length: usize, written: usize, context: usize) -> Vec<u8> {
        let mut row = vec![0; self.ty.with_rows(1).bytes()];
        let mut rest = used;
        for range in self.ranges(0, length, written, context) {
            let (bytes, others) = rest.split_at(range.len());
            row[range].copy_from_slice(bytes);
            rest = others;
        }
        row
    }
}

impl<E: Executor> Network<E> {
    /// Copies the state after a sequence's first `length` tokens, in tensors that are `wanted`. Calls have
    /// written all positions below `written`. Copies stay on the device if the host cannot read it directly.
    pub(crate) fn save(
        &self,
        state: &[E::Buffer],
        row: usize,
        (length, written): (usize, usize),
        wanted: impl Fn(Part) -> bool,
    ) -> Result<Snapshot<KeptRow<E::Buffer>>, GenerateError> {
        let mut tensors = Vec::with_capacity(state.len());
        for (tensor, buffer) in self.state().iter().zip(state) {
            if !tensor.part().is_some_and(&wanted) {
                tensors.push(None);
                continue;
            }
            if !self.executor.is_in_host_memory() {
                let copied = self.executor.copied_rows(buffer, &tensor.ty.with_rows(1), row)?;
                tensors.push(Some(KeptRow::Device(copied.into())));
                continue;
            }
            let mut bytes = Vec::new();
            for range in tensor.ranges(row, length, written, self.context()) {
                bytes.extend(self.executor.read_range(buffer, range)?);
            }
            tensors.push(Some(KeptRow::Host(bytes.into())));
        }
        Ok(Snapshot { length, written, tensors })
    }

    /// Replaces a sequence's state by a snapshot. Omitted tensors do not change. A failure loses the batch's
    /// state.
    pub(crate) fn restore(
        &self,
        state: &mut Vec<E::Buffer>,
        row: usize,
        snapshot: Snapshot<KeptRow<E::Buffer>>,
    ) -> Result<(), GenerateError> {
        let Snapshot { length, written, tensors } = snapshot;
        let (context, in_host) = (self.context(), self.executor.is_in_host_memory());
        let buffers = std::mem::take(state);
        for ((tensor, mut buffer), saved) in self.state().iter().zip(buffers).zip(tensors) {
            let row_type = tensor.ty.with_rows(1);
            let whole = match saved {
                None => None,
                Some(KeptRow::Device(kept)) => Some(match Rc::try_unwrap(kept) {
                    Ok(kept) => kept,
                    Err(shared) => self.executor.copy(&row_type, &shared)?,
                }),
                Some(KeptRow::Host(bytes)) if in_host => {
                    let mut rest = &bytes[..];
                    for range in tensor.ranges(row, length, written, context) {
                        let (bytes, others) = rest.split_at(range.len());
                        buffer = self.executor.write_range(&tensor.ty, buffer, range.start, bytes)?;
                        rest = others;
                    }
                    None
                }
                Some(KeptRow::Host(bytes)) => {
                    let whole = tensor.whole(&bytes, length, written, context);
                    Some(self.executor.upload(&row_type, &whole)?)
                }
            };
            if let Some(whole) = whole {
                buffer = self.executor.put_rows(&tensor.ty, buffer, row, whole)?;
            }
            state.push(buffer);
        }
        Ok(())
    }

    /// Copies a snapshot to host memory.
    pub(crate) fn downloaded(
        &self,
        snapshot: Snapshot<KeptRow<E::Buffer>>,
    ) -> Result<Snapshot, GenerateError> {
        let Snapshot { length, written, tensors } = snapshot;
        let bytes = |(tensor, saved): (&KeptTensor, Option<KeptRow<E::Buffer>>)| {
            saved
                .map(|saved| match saved {
                    KeptRow::Host(bytes) => Ok(bytes),
                    KeptRow::Device(kept) => {
                        let row = self.executor.read(&kept)?;
                        Ok(tensor.used(&row, length, written, self.context()).into())
                    }
                })
                .transpose()
        };
        let tensors =
            self.state().iter().zip(tensors).map(bytes).collect::<Result<Vec<_>, GenerateError>>()?;
        Ok(Snapshot { length, written, tensors })
    }
}

impl<B> From<Snapshot> for Snapshot<KeptRow<B>> {
    fn from(saved: Snapshot) -> Self {
        let Snapshot { length, written, tensors } = saved;
        Self { length, written, tensors: tensors.into_iter().map(|row| row.map(KeptRow::Host)).collect() }
    }
}
