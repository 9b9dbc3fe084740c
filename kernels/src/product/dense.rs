//! Weights whose numbers are kept: f32, f16, bf16.

use ops::WeightFormat;
use ops::format::PANEL;

use super::{Panel, Product, Rows, SUMS, join};
use crate::code::{Buffer, Code, Element, Type, Value};

/// Lines that one round of the loop reads: so many sums of one row do not wait for each other.
const LINES: usize = 4;

impl Product<'_> {
    pub(super) fn dense<'k>(
        &self,
        code: &'k Code,
        x: Buffer<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let starts: Vec<Value<'k>> = (0..rows.count).map(|i| rows.x(i) * self.inputs).collect();
        let chains = (LINES / rows.count).max(1);
        let group = rows.count * chains;
        // Columns of a line: as many of sixteen rows as 64 bytes hold.
        let columns = match self.format {
            WeightFormat::F32 => 1,
            _ => 2,
        };
        let add = |first: Value<'k>, count: usize, sums: &[Value<'k>]| {
            let mut sums = sums.to_vec();
            for line in 0..count {
                let bytes: Vec<Value<'k>> = weights.iter().map(|w| w.line((first + line) * 64)).collect();
                for (i, &start) in starts.iter().enumerate() {
                    let column = start + (first + line) * columns;
                    for (panel, &bytes) in bytes.iter().enumerate() {
                        let sum = &mut sums[panel * group + i * chains + line % chains];
                        *sum = self.line(*sum, bytes, x, column);
                    }
                }
            }
            sums
        };
        let lines = self.inputs / columns;
        let rounds = lines / LINES * LINES;
        let zeros = vec![code.constant(SUMS, 0.0); weights.len() * group];
        let sums = code
            .fold(code.index(0)..code.index(rounds), LINES, &zeros, |first, sums| add(first, LINES, sums));
        let mut sums = add(code.index(rounds), lines - rounds, &sums);
        if !self.inputs.is_multiple_of(columns) {
            let last = lines * 64;
            for (panel, &weights) in weights.iter().enumerate() {
                for (i, &start) in starts.iter().enumerate() {
                    let sum = &mut sums[panel * group + i * chains];
                    *sum = self.half_line(*sum, weights, last, x, start + (self.inputs - 1));
                }
            }
        }
        join(&sums, chains)
    }

    /// Adds the products of a line's columns.
    fn line<'k>(&self, sum: Value<'k>, bytes: Value<'k>, x: Buffer<'k>, column: Value<'k>) -> Value<'k> {
        match self.format {
            WeightFormat::Bf16 => {
                let pair = x.load(column, Type::lanes(2, Element::Bf16)).bits(Type::Scalar(Element::I32));
                self.isa.add_bf16_pairs(sum, bytes.bits(Type::lanes(PANEL, Element::I32)), pair)
            }
            WeightFormat::F16 => {
                let halves = bytes.bits(Type::lanes(2 * PANEL, Element::F16));
                [0, 1].into_iter().fold(sum, |sum, i| {
                    let weights = halves.slice(i * PANEL..(i + 1) * PANEL).convert(Element::F32);
                    let x = x.load(column + i, Type::Scalar(Element::F16)).convert(Element::F32);
                    weights.multiply_add(x.broadcast(PANEL), sum)
                })
            }
            _ => {
                let x = x.load(column, Type::Scalar(Element::F32)).broadcast(PANEL);
                bytes.bits(SUMS).multiply_add(x, sum)
            }
        }
    }

    /// Adds the products of the last column, where lines have two and the number of columns is odd.
    fn half_line<'k>(
        &self,
        sum: Value<'k>,
        weights: Panel<'k>,
        at: usize,
        x: Buffer<'k>,
        column: Value<'k>,
    ) -> Value<'k> {
        let at = weights.at + at;
        let x = x.load(column, Type::Scalar(self.x)).convert(Element::F32).broadcast(PANEL);
        let weights = match self.format {
            WeightFormat::Bf16 => {
                let pairs = weights.weight.load(at, Type::lanes(64, Element::I8));
                pairs.bits(Type::lanes(PANEL, Element::I32)).shift_left(16).bits(SUMS)
            }
            _ => {
                let half = weights.weight.load(at, Type::lanes(2 * PANEL, Element::I8));
                half.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32)
            }
        };
        weights.multiply_add(x, sum)
    }
}
