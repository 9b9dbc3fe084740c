//! Multiplies many activation rows by dense weights, on processors with few registers. A block of the weight
//! becomes f32 in the first-level cache, and meets all rows before the next one. The order of loops follows
//! Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

use ops::WeightFormat;
use ops::format::PANEL;

use super::{Dense, LINE, Matmul, Panel, SUMS, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::fused_op::End;

/// The largest number of weight columns in a block.
const COLUMNS: usize = 128;

/// The activation rows whose sums fit into a worker's memory; half as many for blocks of two panels.
const ROWS: usize = 256;

/// The number of weight columns that one iteration of the innermost loop multiplies.
const ROUND: usize = 4;

/// The number of activation rows whose sums stay in registers.
pub(super) const TILE: usize = 6;

/// Memory of a worker that contains a block of the weight, and the sums of some activation rows.
#[derive(Clone, Copy)]
pub(super) struct Partials<'k> {
    block: Buffer<'k>,
    sums: Buffer<'k>,
}

impl Partials<'_> {
    pub(super) fn new(code: &Code) -> Partials<'_> {
        let floats = |count: usize| code.scratch(Element::F32, count * PANEL);
        Partials { block: floats(COLUMNS), sums: floats(ROWS) }
    }
}

impl Matmul<'_> {
    /// Whether blocks stay in the first-level cache. With short vectors, they save time for many rows.
    pub(super) fn is_blocked(&self) -> bool {
        let whole = self.inputs.is_multiple_of(self.line_columns());
        self.format.element().is_some()
            && self.isa.has_short_vectors()
            && self.stack.is_none()
            && self.rows >= 2 * TILE
            && whole
    }

    /// The weight columns in a block. Blocks have equal size, because a shorter last one needs more code.
    fn block_columns(&self) -> usize {
        let fits = |columns: &usize| columns.is_multiple_of(ROUND) && self.inputs.is_multiple_of(*columns);
        (COLUMNS / 2..=COLUMNS).rev().find(fits).unwrap_or(COLUMNS)
    }

    /// Computes a panel's outputs for all activation rows, or two panels' if the epilogue combines them.
    pub(super) fn blocks<'k>(
        &self,
        code: &'k Code,
        x: Dense<'k>,
        weights: &[Panel<'k>],
        (panel, tile): (Value<'k>, usize),
        end: &End<'k>,
        scratch: Partials<'k>,
    ) {
        let panels = weights.len();
        code.runs(self.rows, ROWS / panels, |first, rows| {
            let all = code.index(0)..code.index(rows * panels);
            code.repeat(all, 1, |at| scratch.sums.store(at * PANEL, code.constant(SUMS, 0.0)));
            for (i, &weights) in weights.iter().enumerate() {
                code.runs(self.inputs, self.block_columns(), |from, count| {
                    self.widen(code, weights, (from, count), scratch.block);
                    code.runs(rows, tile, |row, tile| {
                        let place = |of_tile: usize| ((row + of_tile) * panels + i) * PANEL;
                        let places: Vec<Value<'k>> = (0..tile).map(place).collect();
                        let sums = places.iter().map(|&at| scratch.sums.load(at, SUMS)).collect::<Vec<_>>();
                        let sums = multiplied(code, x, (first + row, from, count), scratch.block, &sums);
                        places.iter().zip(sums).for_each(|(&at, sum)| scratch.sums.store(at, sum));
                    });
                });
            }
            code.repeat(code.index(0)..code.index(rows), 1, |row| {
                // If the epilogue combines halves, the sum of the first half comes first.
                let sums = (0..panels).map(|i| scratch.sums.load((row * panels + i) * PANEL, SUMS));
                let (sums, mask) = (sums.collect::<Vec<_>>(), self.mask(code, panel));
                end.write(code, &sums, (first + row, panel * PANEL), mask);
            });
        });
    }

    /// Converts some columns of a panel to f32, and stores the columns in memory.
    fn widen<'k>(
        &self,
        code: &'k Code,
        weights: Panel<'k>,
        (from, count): (Value<'k>, usize),
        block: Buffer<'k>,
    ) {
        let of_line = self.line_columns();
        code.repeat(code.index(0)..code.index(count), of_line, |column| {
            let line = (from + column).divide(code.index(of_line));
            ask(code, &[weights], line * LINE, 1);
            let bytes = weights.line(line * LINE);
            for i in 0..of_line {
                block.store((column + i) * PANEL, self.widened(bytes, i));
            }
        });
    }

    /// The columns in a line of a panel, which has 64 bytes with the same columns of 16 rows.
    pub(super) fn line_columns(&self) -> usize {
        match self.format {
            WeightFormat::F32 => 1,
            _ => 2,
        }
    }
}

/// Multiplies the columns of a block by some activation rows, and adds the products to their sums.
fn multiplied<'k>(
    code: &'k Code,
    x: Dense<'k>,
    (row, from, count): (Value<'k>, Value<'k>, usize),
    block: Buffer<'k>,
    sums: &[Value<'k>],
) -> Vec<Value<'k>> {
    let add = |column: Value<'k>, count: usize, sums: &[Value<'k>]| {
        let mut sums = sums.to_vec();
        for column in (0..count).map(|i| column + i) {
            let weights = block.load(column * PANEL, SUMS);
            for (i, sum) in sums.iter_mut().enumerate() {
                let x = x.buffer.load(x.at(row + i, from + column), Type::Scalar(x.element));
                *sum = weights.multiply_add(x.convert(Element::F32).broadcast(PANEL), *sum);
            }
        }
        sums
    };
    let whole = count / ROUND * ROUND;
    let sums =
        code.fold(code.index(0)..code.index(whole), ROUND, sums, |column, sums| add(column, ROUND, sums));
    add(code.index(whole), count - whole, &sums)
}
