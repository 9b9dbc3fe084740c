//! A matmul with weights in f32, f16 or bf16.

use std::ops::Range;

use ops::WeightFormat;
use ops::format::PANEL;

use super::{Dense, LINE, Matmul, Panel, Rows, SUMS, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa;
use crate::kernel::{self, Kernel};

/// The number of lines of a panel that one iteration of the loop reads.
const LINES: usize = 4;

/// The lines of a weight that are multiplied by some activation rows before the next rows.
const BLOCK: usize = 64;

/// Converts all rows of x `[rows, inputs]` to f32, once for all panels of the weight.
pub(super) fn widening(x: Element, rows: usize, inputs: usize) -> (String, impl FnOnce() -> Kernel) {
    let workgroups = rows.min(8);
    let body = move || {
        kernel::new(2, workgroups, |code| {
            let (x, wide) = (code.binding(0, x, rows * inputs), code.binding(1, Element::F32, rows * inputs));
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                code.chunks(inputs, |column, left| {
                    let at = row * inputs + column;
                    wide.store_lanes(at, x.load_floats(at, left), left);
                });
            });
        })
    };
    (format!("widen_{x}_{rows}x{inputs}"), body)
}

impl Matmul<'_> {
    /// Whether a separate kernel converts activations to f32: for several rows, unless their own type is
    /// faster.
    pub(super) fn widens_apart(&self) -> bool {
        let narrow = match self.format {
            WeightFormat::F16 => true,
            WeightFormat::Bf16 => !self.isa.is_fast_in_bf16(),
            _ => self.format.floats().is_some() && self.x != Element::F32,
        };
        narrow && self.rows > 1 && !self.is_tiled()
    }

    /// Computes the outputs of some panels for some activation rows.
    pub(super) fn dense<'k>(
        &self,
        code: &'k Code,
        x: Dense<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let lines = self.inputs / self.line_columns();
        let rounds = lines / LINES * LINES;
        let sums = self.in_runs(code, weights, rows, (rounds, BLOCK), |weights, rows, lines, sums| {
            self.rounds(x, weights, rows, lines, sums)
        });
        let at = |row: usize, column: Value<'k>| x.at(rows.x(row), column);
        let rest = (code.index(rounds), lines - rounds);
        let mut sums = self.lines((x.buffer, rows.count, &at), weights, rest, &sums);
        if !self.inputs.is_multiple_of(self.line_columns()) {
            let last = lines * LINE;
            for (i, sum) in sums.iter_mut().enumerate() {
                let (panel, row) = (i / rows.count, i % rows.count);
                let column = x.at(rows.x(row), code.index(self.inputs - 1));
                *sum = self.half_line(*sum, weights[panel], last, x, column);
            }
        }
        sums
    }

    /// Multiplies the columns of whole rounds of lines by the activations, and adds the products to the sums.
    fn rounds<'k>(
        &self,
        x: Dense<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
        lines: Range<Value<'k>>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let (code, count) = (lines.start.code(), rows.count);
        if x.tiled {
            let at = |row: usize, column: Value<'k>| x.at(rows.x(row), column);
            return code.fold(lines, LINES, sums, |line, sums| {
                self.lines((x.buffer, count, &at), weights, (line, LINES), sums)
            });
        }
        let starts = (0..count).map(|row| rows.x(row) * x.inputs);
        let operands: Vec<Value<'k>> =
            starts.chain([lines.start, lines.end]).chain(sums.iter().copied()).collect();
        let name = format!("products_of_{count}_{}", x.element);
        self.of_panels(&name, (x.buffer, count), weights, &operands, |x, weights, operands| {
            let (starts, operands) = operands.split_at(count);
            operands[0].code().fold(operands[0]..operands[1], LINES, &operands[2..], |line, sums| {
                let at = |row: usize, column| starts[row] + column;
                self.lines((x, count, &at), weights, (line, LINES), sums)
            })
        })
    }

    /// Multiplies the columns of some lines by the activations, and adds the products to the sums. The closure
    /// `at` returns the index of a row's number.
    fn lines<'k>(
        &self,
        (x, rows, at): (Buffer<'k>, usize, &dyn Fn(usize, Value<'k>) -> Value<'k>),
        weights: &[Panel<'k>],
        (first, count): (Value<'k>, usize),
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let (code, mut sums) = (first.code(), sums.to_vec());
        // If x is bf16 too, the code multiplies two columns of bf16 together.
        let (columns, in_pairs) = (self.line_columns(), x.element() == Element::Bf16);
        ask(code, weights, first * LINE, count);
        for line in 0..count {
            let bytes: Vec<Value<'k>> = weights.iter().map(|w| w.line((first + line) * LINE)).collect();
            // The code uses a column for all rows before it converts the next column, because there are few
            // registers.
            for step in 0..if in_pairs { 1 } else { columns } {
                let weights = bytes.iter().map(|&bytes| {
                    if in_pairs {
                        bytes.bits(Type::lanes(PANEL, Element::I32))
                    } else {
                        self.widened(bytes, step)
                    }
                });
                let weights: Vec<Value<'k>> = weights.collect();
                for row in 0..rows {
                    let at = at(row, (first + line) * columns + step);
                    let x = if in_pairs {
                        x.load(at, Type::lanes(2, Element::Bf16)).bits(Type::Scalar(Element::I32))
                    } else {
                        x.load(at, Type::Scalar(x.element())).convert(Element::F32).broadcast(PANEL)
                    };
                    for (panel, &weights) in weights.iter().enumerate() {
                        let sum = &mut sums[panel * rows + row];
                        *sum = if in_pairs {
                            self.isa.add_bf16_pairs(*sum, weights, x)
                        } else {
                            weights.multiply_add(x, *sum)
                        };
                    }
                }
            }
        }
        sums
    }

    /// Returns a weight column of a line, converted to f32.
    pub(super) fn widened<'k>(&self, bytes: Value<'k>, column: usize) -> Value<'k> {
        match self.format {
            WeightFormat::Bf16 => isa::bf16_of_pairs(bytes.bits(Type::lanes(PANEL, Element::I32)), column),
            WeightFormat::F16 => {
                let halves = bytes.bits(Type::lanes(2 * PANEL, Element::F16));
                halves.slice(column * PANEL..(column + 1) * PANEL).convert(Element::F32)
            }
            _ => bytes.bits(SUMS),
        }
    }

    /// Multiplies the last of an odd number of weight columns, if each line contains two columns.
    fn half_line<'k>(
        &self,
        sum: Value<'k>,
        weights: Panel<'k>,
        at: usize,
        x: Dense<'k>,
        column: Value<'k>,
    ) -> Value<'k> {
        let at = weights.at + at;
        let x = x.buffer.load(column, Type::Scalar(x.element)).convert(Element::F32).broadcast(PANEL);
        let weights = match self.format {
            WeightFormat::Bf16 => {
                let pairs = weights.weight.load(at, Type::lanes(LINE, Element::I8));
                isa::bf16_of_pairs(pairs.bits(Type::lanes(PANEL, Element::I32)), 0)
            }
            _ => {
                let half = weights.weight.load(at, Type::lanes(2 * PANEL, Element::I8));
                half.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32)
            }
        };
        weights.multiply_add(x, sum)
    }
}
