//! Changes that an adapter makes to the tensors of a checkpoint. Readers of a tensor see the changed numbers.

use crate::checkpoint::{TensorUpdate, element};
use crate::low_rank::{LowRank, OutputFactors, PreparedUpdate, Updates};
use crate::{ArchiveError, Checkpoint, CheckpointTensor, StoredNumbers, StoredOrder, TensorNumbers};
use ops::ElementType;

/// An adapter's effect on a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorChange {
    Add(LowRank),
    /// The tensor of the adapter takes its place.
    Replace(String),
}

impl Checkpoint {
    /// Applies changes to tensors of this checkpoint. Later changes see the results of earlier ones. The shapes must
    /// fit; a tensor that one of the two lacks is an error.
    pub fn adapted(
        mut self,
        adapter: &Self,
        changes: Vec<(String, TensorChange)>,
    ) -> Result<Self, ArchiveError> {
        let first = self.files.len();
        self.files.extend(adapter.files.iter().cloned());
        let own = |name: &str| {
            let tensor = adapter.require(name)?.clone();
            Ok::<_, ArchiveError>(CheckpointTensor { file: first + tensor.file, ..tensor })
        };
        for (name, change) in changes {
            let mut tensor = self.require(&name)?.clone();
            match change {
                TensorChange::Replace(source) => {
                    tensor = CheckpointTensor { name: name.clone(), is_adapted: true, ..own(&source)? };
                }
                TensorChange::Add(low_rank) => {
                    let (a, b) = (own(&low_rank.a)?, own(&low_rank.b)?);
                    let magnitude = low_rank.magnitude.as_deref().map(own).transpose()?;
                    tensor.updates.push(TensorUpdate { low_rank, a, b, magnitude });
                    tensor.is_adapted = true;
                }
            }
            self.tensors.insert(name, tensor);
        }
        Ok(self)
    }

    /// The shape of a matrix, and its numbers with the rows in the order of the model.
    pub fn matrix(&self, name: &str) -> Result<([usize; 2], Vec<f32>), ArchiveError> {
        let tensor = self.require(name)?;
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let rows = tensor.shape.iter().product::<usize>() / columns.max(1);
        let stored = self.all(tensor)?;
        let row = |row| &stored[tensor.arranged.place(row, rows) * columns..][..columns];
        Ok(([rows, columns], (0..rows).flat_map(row).copied().collect()))
    }

    /// A description of all changes by adapters, which differs if the changes do; empty without adapters. It does not
    /// contain the numbers of the adapters' files, which are among [`files`](Self::files).
    pub fn changes(&self) -> String {
        let adapted = self.tensors.values().filter(|tensor| tensor.is_adapted);
        let of = |tensor: &CheckpointTensor| (tensor.file, tensor.range.clone(), tensor.arranged);
        let update =
            |update: &TensorUpdate| format!("{:?} {:?} {:?}", update.low_rank, of(&update.a), of(&update.b));
        adapted
            .map(|tensor| {
                let updates: Vec<String> = tensor.updates.iter().map(update).collect();
                format!("{}\0{:?}\0{}\0", tensor.name, of(tensor), updates.join("\0"))
            })
            .collect()
    }

    /// The updates of a tensor, of whose numbers before any update `base` reads all.
    pub(crate) fn updates(
        &self,
        tensor: &CheckpointTensor,
        base: &TensorNumbers<'_>,
    ) -> Result<Updates, ArchiveError> {
        let mut ready: Vec<PreparedUpdate> = Vec::new();
        for update in &tensor.updates {
            let next = self.ready(tensor, update, (base, &ready))?;
            ready.push(next);
        }
        Ok(ready.into())
    }

    fn ready(
        &self,
        tensor: &CheckpointTensor,
        update: &TensorUpdate,
        before: (&TensorNumbers<'_>, &[PreparedUpdate]),
    ) -> Result<PreparedUpdate, ArchiveError> {
        let LowRank { a_transposed, scale, ref outputs, first, inputs_first, .. } = update.low_rank;
        let (a, b) = (self.all(&update.a)?, self.all(&update.b)?);
        let rank = update.b.shape.get(1).copied().unwrap_or(0);
        let [rows, columns] = tensor.matrix();
        // In the order of the file, rows are outputs, or else columns are.
        let by_rows = inputs_first == (tensor.arranged == StoredOrder::Transposed);
        let (count, inputs) = if by_rows { (rows, columns) } else { (columns, rows) };
        // The row of B for each output in the order of the file.
        let row_of = |output: usize| {
            let output = tensor.arranged.row(output, count);
            let row = output.checked_sub(outputs.start).filter(|_| output < outputs.end)?;
            Some(update.b.arranged.place(row + first, update.b.shape[0]))
        };
        let b_at = |output: usize, k: usize| row_of(output).map_or(0.0, |row| b[row * rank + k]);
        let a_at =
            |k: usize, input: usize| if a_transposed { a[input * rank + k] } else { a[k * inputs + input] };
        let (mut left, mut right) = (vec![0.0; rows * rank], vec![0.0; rank * columns]);
        for k in 0..rank {
            for row in 0..rows {
                left[row * rank + k] = if by_rows { b_at(row, k) } else { a_at(k, row) };
            }
            for column in 0..columns {
                right[k * columns + column] = if by_rows { a_at(k, column) } else { b_at(column, k) };
            }
        }
        let mut ready = PreparedUpdate { columns, rank, scale, left, right, factors: None };
        if let Some(magnitude) = &update.magnitude {
            let magnitude = self.all(magnitude)?;
            let norms = norms(by_rows, [rows, columns], before, &ready);
            let factor = |(output, norm): (usize, f64)| {
                row_of(output).map_or(1.0, |row| (f64::from(magnitude[row]) / norm) as f32)
            };
            let factors = norms.into_iter().enumerate().map(factor).collect();
            ready.factors =
                Some(if by_rows { OutputFactors::Rows(factors) } else { OutputFactors::Columns(factors) });
        }
        Ok(ready)
    }

    /// As f32.
    fn all(&self, tensor: &CheckpointTensor) -> Result<Vec<f32>, ArchiveError> {
        if tensor.stored_element().is_none() && tensor.blocks().is_none() {
            let (path, name) = (self.file(tensor).to_owned(), tensor.name.clone());
            let StoredNumbers::Each(dtype) = tensor.stored else { return Ok(Vec::new()) };
            return Err(ArchiveError::Dtype { path, name, dtype });
        }
        let mut out = vec![0.0; tensor.shape.iter().product()];
        self.stored_numbers(tensor).read(0, &mut out);
        Ok(out)
    }
}

/// The Euclidean norm of each output after the update, without factors.
fn norms(
    by_rows: bool,
    [rows, columns]: [usize; 2],
    (base, earlier): (&TensorNumbers<'_>, &[PreparedUpdate]),
    update: &PreparedUpdate,
) -> Vec<f64> {
    let mut sums = vec![0.0f64; if by_rows { rows } else { columns }];
    let mut numbers = vec![0.0f32; columns];
    for row in 0..rows {
        base.read(row * columns, &mut numbers);
        earlier.iter().chain([update]).for_each(|update| update.apply(row * columns, &mut numbers));
        for (column, x) in numbers.iter().enumerate() {
            sums[if by_rows { row } else { column }] += f64::from(*x).powi(2);
        }
    }
    sums.into_iter().map(f64::sqrt).collect()
}

impl CheckpointTensor {
    /// Rows and columns in the order of the file.
    fn matrix(&self) -> [usize; 2] {
        let columns = self.shape.last().copied().unwrap_or(1).max(1);
        let rows = self.shape.iter().product::<usize>() / columns;
        if self.arranged == StoredOrder::Transposed { [columns, rows] } else { [rows, columns] }
    }

    /// The type of plain numbers in the file, before any update.
    pub(crate) fn stored_element(&self) -> Option<ElementType> {
        let StoredNumbers::Each(dtype) = self.stored else { return None };
        element(dtype)
    }
}

impl StoredOrder {
    /// The model's row that is the row `place` of `count` rows in the file.
    fn row(self, place: usize, count: usize) -> usize {
        let Self::PermutedRope { heads } = self else { return place };
        let length = count / heads;
        let (head, inside) = (place / length, place % length);
        head * length + (inside % 2) * (length / 2) + inside / 2
    }

    /// The row in the file that is the model's row `row` of `count` rows.
    fn place(self, row: usize, count: usize) -> usize {
        let Self::PermutedRope { heads } = self else { return row };
        let length = count / heads;
        let (head, inside) = (row / length, row % length);
        head * length + (inside % (length / 2)) * 2 + inside / (length / 2)
    }
}
