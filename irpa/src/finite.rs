//! Finds the numbers of a checkpoint that a conversion cannot keep: NaN, infinities, and numbers
//! beyond the range of the new type.

use ops::ElementType;

use crate::{ArchiveError, Checkpoint, CheckpointTensor, NotFinite, NumberPlace, StoredNumbers, StoredOrder};

impl Checkpoint {
    /// In the order of the file; `to` is named in the error.
    pub fn first_lost(
        &self,
        name: &str,
        to: &'static str,
        keeps: impl Fn(f32) -> bool,
    ) -> Result<Option<NotFinite>, ArchiveError> {
        const TOGETHER: usize = 4096;
        let numbers = self.numbers(name)?;
        let Some(tensor) = self.get(name) else { return Ok(None) };
        let count: usize = tensor.shape.iter().product();
        let mut piece = vec![0.0; TOGETHER.min(count)];
        for start in (0..count).step_by(TOGETHER) {
            let piece = &mut piece[..TOGETHER.min(count - start)];
            numbers.read(start, piece);
            if let Some(at) = piece.iter().position(|x| !keeps(*x)) {
                let (path, source) = (self.file(tensor).to_owned(), tensor.source.clone());
                let place = self.place(tensor, start + at);
                return Ok(Some(NotFinite { path, tensor: source, place, found: piece[at], to }));
            }
        }
        Ok(None)
    }

    pub(crate) fn not_finite(&self, name: &str, to: ElementType) -> ArchiveError {
        match self.first_lost(name, to.name(), |x| to.round(x.into()).is_finite()) {
            Ok(Some(lost)) => lost.into(),
            Ok(None) => ArchiveError::NoTensor { path: self.path().into(), name: name.into() },
            Err(error) => error,
        }
    }

    fn place(&self, tensor: &CheckpointTensor, index: usize) -> NumberPlace {
        let axis = if tensor.arranged == StoredOrder::Transposed { 2 } else { 1 };
        let last = tensor.shape.len().checked_sub(axis).map_or(1, |axis| tensor.shape[axis]);
        let length = if let StoredNumbers::Rows(_, length) = tensor.stored { length } else { last };
        // The tensor of the file can begin with other parts.
        let parts = self.tensors().filter(|part| (part.file, &part.source) == (tensor.file, &tensor.source));
        let first = parts.map(|part| part.range.start).min().unwrap_or(tensor.range.start);
        let bytes = tensor.range.start - first;
        let before = match (tensor.stored, tensor.element()) {
            (StoredNumbers::Blocks(format), _) => bytes / format.bytes() * format.numbers(),
            (StoredNumbers::Rows(format, _), _) => {
                bytes / (length.div_ceil(format.numbers()) * format.bytes()).max(1) * length
            }
            (StoredNumbers::Mxfp4, _) => 2 * bytes,
            (StoredNumbers::Joined(joined), _) => joined.first_row() * length,
            (StoredNumbers::Each(_), element) => element.map_or(0, |element| bytes * 8 / element.bits()),
        };
        let (row, column) = ((before + index) / length.max(1), (before + index) % length.max(1));
        let block = tensor.blocks().map(|format| {
            let in_row = length.div_ceil(format.numbers());
            (format, row * in_row + column / format.numbers())
        });
        NumberPlace::Stored { row, column, block }
    }
}
