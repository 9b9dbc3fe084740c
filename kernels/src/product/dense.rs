//! Weights whose numbers are kept: f32, f16, bf16.

use ops::WeightFormat;
use ops::format::PANEL;

use super::{Dense, LINE, Panel, Product, Rows, SUMS, ask, join};
use crate::code::{Code, Element, Type, Value};
use crate::isa;
use crate::kernel::{self, Kernel};

/// Lines that one round of the loop reads: so many sums of one row do not wait for each other.
const LINES: usize = 4;

/// All rows of x `[rows, inputs]` in f32, so that numbers that many products need are not widened for each.
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

/// What a line's columns are multiplied with.
enum Numbers<'k> {
    /// Two of bf16, by an instruction that takes both.
    Pair(Value<'k>),
    /// Each in all lanes, as f32.
    Each(Vec<Value<'k>>),
}

impl<'k> Numbers<'k> {
    fn of(x: Dense<'k>, column: Value<'k>, columns: usize) -> Self {
        if x.element == Element::Bf16 {
            let pair = x.buffer.load(column, Type::lanes(2, Element::Bf16));
            return Self::Pair(pair.bits(Type::Scalar(Element::I32)));
        }
        let number = |i: usize| x.buffer.load(column + i, Type::Scalar(x.element)).convert(Element::F32);
        Self::Each((0..columns).map(|i| number(i).broadcast(PANEL)).collect())
    }
}

impl Product<'_> {
    /// Whether its activations are widened by a kernel of their own: several rows of numbers that instructions multiply
    /// no faster than f32.
    pub(super) fn widens_apart(&self) -> bool {
        let narrow = match self.format {
            WeightFormat::F16 => true,
            WeightFormat::Bf16 => !self.isa.is_fast_in_bf16(),
            _ => false,
        };
        narrow && self.rows > 1 && !self.is_tiled()
    }

    pub(super) fn dense<'k>(
        &self,
        code: &'k Code,
        x: Dense<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let chains = (LINES / rows.count).max(1);
        let group = rows.count * chains;
        let columns = self.line_columns();
        let add = |first: Value<'k>, count: usize, sums: &[Value<'k>]| {
            let mut sums = sums.to_vec();
            ask(code, weights, first * LINE, count);
            for line in 0..count {
                let bytes: Vec<Value<'k>> = weights.iter().map(|w| w.line((first + line) * LINE)).collect();
                for i in 0..rows.count {
                    let numbers = Numbers::of(x, x.at(rows.x(i), (first + line) * columns), columns);
                    for (panel, &bytes) in bytes.iter().enumerate() {
                        let sum = &mut sums[panel * group + i * chains + line % chains];
                        *sum = self.line(*sum, bytes, &numbers);
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
            let last = lines * LINE;
            for (panel, &weights) in weights.iter().enumerate() {
                for i in 0..rows.count {
                    let sum = &mut sums[panel * group + i * chains];
                    let column = x.at(rows.x(i), code.index(self.inputs - 1));
                    *sum = self.half_line(*sum, weights, last, x, column);
                }
            }
        }
        join(&sums, chains)
    }

    /// Adds the products of a line's columns.
    fn line<'k>(&self, sum: Value<'k>, bytes: Value<'k>, numbers: &Numbers<'k>) -> Value<'k> {
        let numbers = match numbers {
            Numbers::Pair(pair) => {
                return self.isa.add_bf16_pairs(sum, bytes.bits(Type::lanes(PANEL, Element::I32)), *pair);
            }
            Numbers::Each(numbers) => numbers,
        };
        let weights = self.widened(bytes);
        weights.into_iter().zip(numbers).fold(sum, |sum, (weights, &x)| weights.multiply_add(x, sum))
    }

    /// The columns of a line in f32.
    pub(super) fn widened<'k>(&self, bytes: Value<'k>) -> Vec<Value<'k>> {
        match self.format {
            WeightFormat::Bf16 => isa::bf16_pairs(bytes.bits(Type::lanes(PANEL, Element::I32))).to_vec(),
            WeightFormat::F16 => {
                let halves = bytes.bits(Type::lanes(2 * PANEL, Element::F16));
                [0, 1].map(|i| halves.slice(i * PANEL..(i + 1) * PANEL).convert(Element::F32)).to_vec()
            }
            _ => vec![bytes.bits(SUMS)],
        }
    }

    /// Adds the products of the last column, where lines have two and the number of columns is odd.
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
                let [first, _] = isa::bf16_pairs(pairs.bits(Type::lanes(PANEL, Element::I32)));
                first
            }
            _ => {
                let half = weights.weight.load(at, Type::lanes(2 * PANEL, Element::I8));
                half.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32)
            }
        };
        weights.multiply_add(x, sum)
    }
}
