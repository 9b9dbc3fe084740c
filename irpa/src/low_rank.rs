//! Computes the sums of a matrix and the product of two narrow ones.

use std::ops::Range;
use std::sync::Arc;

/// W + scale · B · A, with the names of A `[rank, inputs]` and B `[outputs, rank]` in the adapter (Hu et al., "LoRA:
/// Low-Rank Adaptation of Large Language Models", 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    pub a: String,
    pub b: String,
    /// The adapter stores A as `[inputs, rank]`.
    pub a_transposed: bool,
    pub scale: f32,
    /// The changed outputs of W, and the first row of B for them. Both count rows of the model, not of the file.
    pub outputs: Range<usize>,
    pub first: usize,
    /// W is `[inputs, outputs]`, as in embeddings and in GPT-2.
    pub inputs_first: bool,
    /// The norms `[outputs]` that the rows of the result get (Liu et al., "DoRA: Weight-Decomposed Low-Rank
    /// Adaptation", 2024).
    pub magnitude: Option<String>,
}

/// For a matrix `[rows, columns]` in the order of the file: W + scale · left · right, times `factors`.
#[derive(Debug)]
pub(crate) struct PreparedUpdate {
    pub columns: usize,
    pub rank: usize,
    pub scale: f32,
    /// `[rows, rank]` and `[rank, columns]`; zeros outside of the changed outputs.
    pub left: Vec<f32>,
    pub right: Vec<f32>,
    /// For each row or column, with DoRA.
    pub factors: Option<OutputFactors>,
}

#[derive(Debug)]
pub(crate) enum OutputFactors {
    Rows(Vec<f32>),
    Columns(Vec<f32>),
}

/// The updates of a tensor, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Updates(Option<Arc<[PreparedUpdate]>>);

impl From<Vec<PreparedUpdate>> for Updates {
    fn from(ready: Vec<PreparedUpdate>) -> Self {
        Self((!ready.is_empty()).then(|| ready.into()))
    }
}

impl Updates {
    /// Adds the changes to the numbers from `start` on. Each number is the same wherever the piece begins.
    pub(crate) fn apply(&self, start: usize, out: &mut [f32]) {
        self.0.iter().flat_map(|updates| updates.iter()).for_each(|update| update.apply(start, out));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl PreparedUpdate {
    pub(crate) fn apply(&self, start: usize, out: &mut [f32]) {
        let mut done = 0;
        let mut sums = Vec::new();
        while done < out.len() {
            let (row, column) = ((start + done) / self.columns, (start + done) % self.columns);
            let count = (self.columns - column).min(out.len() - done);
            let numbers = &mut out[done..done + count];
            sums.clear();
            sums.resize(count, 0.0f32);
            for k in 0..self.rank {
                let factor = self.left[row * self.rank + k];
                let right = &self.right[k * self.columns + column..][..count];
                sums.iter_mut().zip(right).for_each(|(sum, x)| *sum += factor * x);
            }
            numbers.iter_mut().zip(&sums).for_each(|(x, sum)| *x += self.scale * sum);
            match &self.factors {
                None => {}
                Some(OutputFactors::Rows(factors)) => numbers.iter_mut().for_each(|x| *x *= factors[row]),
                Some(OutputFactors::Columns(factors)) => {
                    numbers.iter_mut().zip(&factors[column..]).for_each(|(x, factor)| *x *= factor);
                }
            }
            done += count;
        }
    }
}
