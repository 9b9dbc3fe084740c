//! Rounds a matrix so that the product of the matrix and the layer's inputs changes little.
//!
//! The function rounds the columns of the matrix one after another. After rounding a column, the function
//! adjusts the remaining columns to compensate the rounding error as far as possible. The method is GPTQ
//! (Frantar et al., "Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2023).

use ops::WeightFormat;
use ops::format::{Codes, GROUP, GROUPS, Groups};
use rayon::prelude::*;

/// Times the mean of the diagonal, this is added to the diagonal; `percdamp` in GPTQ's implementation.
const DAMPING: f64 = 0.01;

/// The rows that one thread rounds together, for which it reads each row of U in [`Moments`] once.
const TOGETHER: usize = 16;

/// Describes which statistics of a matmul's inputs are known.
pub enum Importance {
    /// No statistics of the matmul's inputs are known, so the rounding treats all inputs equally.
    Equal,
    Squares(Vec<f32>),
    /// The second moments of all pairs of matmul inputs are known.
    Moments(Moments),
}

/// The second moments H of a matmul's inputs, as the upper triangular U with `UᵀU = H⁻¹`.
pub struct Moments {
    /// The upper triangular matrix U, with the type f32 `[inputs, inputs]`.
    factor: Vec<f32>,
    /// For each column, the cost of a rounding error that later columns compensate: `1 / U[i][i]²`.
    weights: Vec<f32>,
}

impl Moments {
    /// From the sums of products of all pairs of inputs, `[inputs, inputs]`. The column of an input that is
    /// always zero doesn't affect the others.
    pub fn new(sums: &[f32], inputs: usize) -> Self {
        let mut factor: Vec<f64> = sums.iter().map(|&sum| f64::from(sum)).collect();
        let diagonal = |i: usize| i * inputs + i;
        let mean = (0..inputs).map(|i| factor[diagonal(i)]).sum::<f64>() / inputs.max(1) as f64;
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };
        (0..inputs).for_each(|i| factor[diagonal(i)] += damping);
        upper_root(&mut factor, inputs);
        let factor = inverse(&factor, inputs);
        let weights = (0..inputs).map(|i| 1.0 / factor[diagonal(i)].powi(2)).collect();
        Self { factor, weights }
    }
}

/// The upper triangular R with `R Rᵀ = H`, in the upper half of H.
fn upper_root(h: &mut [f64], n: usize) {
    for i in (0..n).rev() {
        let (above, rest) = h.split_at_mut(i * n);
        let row = &mut rest[..n];
        let square = row[i] - dot(&row[i + 1..], &row[i + 1..]);
        // Damped moments are positive definite, but rounding can make a tiny value negative.
        row[i] = square.max(f64::MIN_POSITIVE).sqrt();
        let row = &*row;
        above.par_chunks_mut(n).with_min_len(64).for_each(|above| {
            above[i] = (above[i] - dot(&above[i + 1..], &row[i + 1..])) / row[i];
        });
    }
}

/// The inverse of an upper triangular matrix; zeros below the diagonal.
fn inverse(r: &[f64], n: usize) -> Vec<f32> {
    let mut inverse = vec![0.0f32; n * n];
    inverse.par_chunks_mut(n.max(1)).enumerate().for_each(|(i, row)| {
        let mut sums = vec![0.0f64; n];
        for k in i..n {
            let one = if k == i { 1.0 } else { 0.0 };
            let found = (one - sums[k]) / r[k * n + k];
            row[k] = found as f32;
            let known = &r[k * n + k + 1..(k + 1) * n];
            sums[k + 1..].iter_mut().zip(known).for_each(|(sum, r)| *sum += found * r);
        }
    });
    inverse
}

/// Eight partial sums, always added in the same order.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        (0..8).for_each(|lane| lanes[lane] += a[lane] * b[lane]);
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f64>() + rest
}

/// Rounds a matrix to quantized blocks, a new one for each row as in GGUF, and overwrites `matrix`. Returns
/// `None` if the scale of a block is not finite.
///
/// # Panics
/// Panics if `format` has no quantized blocks, or if the size of the moments differs from `inputs`.
pub fn round(
    format: WeightFormat,
    matrix: &mut [f32],
    inputs: usize,
    importance: &Importance,
) -> Option<Vec<u8>> {
    let groups = format.facts();
    let row = inputs.div_ceil(groups.block.numbers()) * groups.block.bytes();
    let mut bytes = vec![0; matrix.len() / inputs.max(1) * row];
    let rows = matrix.par_chunks_mut(TOGETHER * inputs).zip(bytes.par_chunks_mut(TOGETHER * row));
    let finite = rows.all(|(rows, bytes)| round_rows((format, groups), rows, inputs, importance, bytes));
    finite.then_some(bytes)
}

/// Rounds some rows of the matrix. Returns whether the scales of all blocks are finite.
fn round_rows(
    (format, groups): (WeightFormat, &Groups),
    rows: &mut [f32],
    inputs: usize,
    importance: &Importance,
    bytes: &mut [u8],
) -> bool {
    let mut finite = true;
    let together = groups.block.numbers();
    let each = bytes.len() / (rows.len() / inputs);
    let weights: &[f32] = match importance {
        Importance::Equal => &[],
        Importance::Squares(squares) => squares,
        Importance::Moments(moments) => &moments.weights,
    };
    for start in (0..inputs).step_by(together) {
        let end = inputs.min(start + together);
        let weights = weights.get(start..end).unwrap_or_default();
        let scaled = rows
            .chunks(inputs)
            .map(|row| Block::new(groups, format.quantize_weighted(&row[start..end], weights).bytes));
        let mut blocks: Vec<Block<'_>> = scaled.collect();
        if let Importance::Moments(moments) = importance {
            for column in start..end {
                let factor = &moments.factor[column * inputs + column..(column + 1) * inputs];
                for (row, block) in rows.chunks_mut(inputs).zip(&mut blocks) {
                    if (column - start) % GROUP == 0 && column > start {
                        let group = column..end.min(column + GROUP);
                        block.refit((column - start) / GROUP, &row[group.clone()], &moments.weights[group]);
                    }
                    let rounded = block.set(column - start, row[column]);
                    let error = (row[column] - rounded) / factor[0];
                    let rest = row[column + 1..].iter_mut().zip(&factor[1..]);
                    rest.for_each(|(x, factor)| *x -= error * factor);
                }
            }
        }
        for (block, bytes) in blocks.into_iter().zip(bytes.chunks_mut(each)) {
            finite &= groups.is_finite(&block.bytes);
            let block = block.written();
            bytes[start / together * block.len()..][..block.len()].copy_from_slice(&block);
        }
    }
    finite
}

/// A quantized block whose codes change one by one.
struct Block<'f> {
    groups: &'f Groups,
    bytes: Vec<u8>,
    codes: Codes,
    scales: [[f32; 2]; 2 * GROUPS],
}

impl<'f> Block<'f> {
    fn new(groups: &'f Groups, bytes: Vec<u8>) -> Self {
        let (codes, scales) = (groups.codes(&bytes), groups.scales_of(&bytes));
        Self { groups, bytes, codes, scales }
    }

    /// Recomputes the scale and the minimum of a group of numbers. The old scale and minimum no
    /// longer fit the group's numbers, because rounding earlier columns has changed these numbers.
    fn refit(&mut self, group: usize, numbers: &[f32], weights: &[f32]) {
        if let Some(refit) = self.groups.refit {
            refit(&mut self.bytes, group, numbers, weights);
            self.scales = self.groups.scales_of(&self.bytes);
        }
    }

    /// Rounds the number `x`, and stores its code at the index `place` of the block. Returns the
    /// value that the code represents.
    fn set(&mut self, place: usize, x: f32) -> f32 {
        let Self { groups, codes, scales, .. } = self;
        let [scale, minimum] = scales[place / groups.group];
        codes[place] = if scale == 0.0 { groups.zero() } else { (groups.round)((x + minimum) / scale) };
        f32::from(groups.integer(codes[place])) * scale - minimum
    }

    fn written(mut self) -> Vec<u8> {
        (self.groups.write)(&self.codes, &mut self.bytes);
        self.bytes
    }
}
