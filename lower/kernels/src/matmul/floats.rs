//! A matmul with weights whose codes are floats of a few bits: see [`Floats`].

use ops::format::{FloatCodes, Floats, NESTED, PANEL};

use super::scaled::fields;
use super::{Dense, LINE, Matmul, Panel, Rows, SUMS, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::formats::{E4M3_UNIT, Line, nested_floats};

/// The number of lines of a panel that one iteration of the loop reads.
const LINES: usize = 2;

/// The weight columns that are multiplied by some activation rows before the next rows.
const COLUMNS: usize = 512;

impl Matmul<'_> {
    /// The memory for scales that have scales, if the format has such scales.
    pub(super) fn nested<'k>(&self, code: &'k Code) -> Option<Buffer<'k>> {
        nested_floats(code, self.format.floats()?)
    }

    /// Computes the outputs of some panels for some activation rows. The sum of the columns that share a scale
    /// is multiplied by it once.
    pub(super) fn floats<'k>(
        &self,
        code: &'k Code,
        floats: &Floats,
        x: Dense<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let together = floats.scales.together(self.inputs);
        let (whole, rest) = (self.inputs / together, self.inputs % together);
        let block = (COLUMNS / together).max(1);
        let sums = self.in_runs(code, weights, rows, (whole, block), |weights, rows, blocks, sums| {
            code.fold(blocks, 1, sums, |block, sums| {
                self.float_block(floats, (x, rows), weights, (block, together), sums)
            })
        });
        if rest == 0 {
            return sums;
        }
        self.float_block(floats, (x, rows), weights, (code.index(whole), rest), &sums)
    }

    /// Multiplies `columns` columns that share a scale, and adds the products to the sums.
    fn float_block<'k>(
        &self,
        floats: &Floats,
        x: (Dense<'k>, Rows<'k>),
        weights: &[Panel<'k>],
        (block, columns): (Value<'k>, usize),
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let (code, of_line) = (block.code(), floats.line_columns());
        let first = block * (floats.scales.together(self.inputs) / of_line);
        let rounds = columns / of_line / LINES * LINES;
        let zeros = vec![code.constant(SUMS, 0.0); sums.len()];
        let own = code.fold(first..first + rounds, LINES, &zeros, |line, sums| {
            self.float_lines(floats, x, weights, (line, LINES * of_line), sums)
        });
        let own = self.float_lines(floats, x, weights, (first + rounds, columns - rounds * of_line), &own);
        let scales = weights.iter().map(|&panel| match x.0.nested {
            None => scales_of_block(floats, panel, block),
            Some(map) => {
                for row in 0..PANEL {
                    let line = Line { weight: panel.weight, base: panel.at, lane: code.index(row) };
                    let scale = line.nested_scale(floats, map, (self.inputs, block));
                    map.store(code.index(NESTED + row), scale);
                }
                map.load(code.index(NESTED), SUMS)
            }
        });
        let scales: Vec<Value<'k>> = scales.collect();
        let of_panel = sums.len() / weights.len();
        let all = sums.iter().zip(own).enumerate();
        all.map(|(i, (&sum, own))| own.multiply_add(scales[i / of_panel], sum)).collect()
    }

    /// Multiplies the first `columns` columns from a line on by the activations, without scales.
    fn float_lines<'k>(
        &self,
        floats: &Floats,
        (x, rows): (Dense<'k>, Rows<'k>),
        weights: &[Panel<'k>],
        (first, columns): (Value<'k>, usize),
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let (code, of_line) = (first.code(), floats.line_columns());
        let mut sums = sums.to_vec();
        let start = first * LINE + floats.scale_bytes(self.inputs);
        ask(code, weights, start, columns.div_ceil(of_line));
        for from in (0..columns).step_by(of_line) {
            let at = start + from / of_line * LINE;
            let lines: Vec<_> = weights.iter().map(|panel| self.float_line(floats, panel.line(at))).collect();
            for column in 0..of_line.min(columns - from) {
                let weights: Vec<Value<'k>> = lines.iter().map(|line| line(column)).collect();
                for row in 0..rows.count {
                    let place = x.at(rows.x(row), first * of_line + (from + column));
                    let x = x.buffer.load(place, Type::Scalar(x.element));
                    let x = x.convert(Element::F32).broadcast(PANEL);
                    for (panel, &weights) in weights.iter().enumerate() {
                        let sum = &mut sums[panel * rows.count + row];
                        *sum = weights.multiply_add(x, *sum);
                    }
                }
            }
        }
        sums
    }

    /// Returns a function that computes a column of a line, in units of the scale that
    /// [`scales_of_block`] returns.
    fn float_line<'k>(&self, floats: &Floats, line: Value<'k>) -> Box<dyn Fn(usize) -> Value<'k> + 'k> {
        match floats.codes {
            FloatCodes::E4m3 => Box::new(move |column| {
                let codes = line.slice(column * PANEL..(column + 1) * PANEL);
                let words = codes.convert(Element::I16).shift_left(7);
                // The sign of a code is also in the bit above its exponent.
                let words = words.and(words.code().constant(words.ty(), f64::from(0xbf80u16 as i16)));
                words.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32)
            }),
            FloatCodes::Table(table) => {
                let planes = [0, 1, 2, 3].map(|byte| table.map(|number| number.to_le_bytes()[byte] as i8));
                let fields = fields(line, 4).map(|codes| planes.map(|plane| self.isa.look_up(&plane, codes)));
                let fields: Vec<[Value<'k>; 4]> = fields.collect();
                Box::new(move |column| {
                    let first = column % 4 * PANEL;
                    let bytes = fields[column / 4].map(|plane| plane.slice(first..first + PANEL));
                    let words = |low: Value<'k>, high: Value<'k>| {
                        let order: Vec<usize> = (0..PANEL).flat_map(|lane| [lane, PANEL + lane]).collect();
                        low.pick(high, &order)
                    };
                    let halves = [0, 2].map(|byte| {
                        words(bytes[byte], bytes[byte + 1]).bits(Type::lanes(PANEL, Element::I16))
                    });
                    words(halves[0], halves[1]).bits(SUMS)
                })
            }
        }
    }
}

/// Returns the scales of a block of columns for the 16 rows of a panel.
fn scales_of_block<'k>(floats: &Floats, panel: Panel<'k>, block: Value<'k>) -> Value<'k> {
    let bytes = floats.scales.lanes() * size_of::<f32>();
    let stored = panel.weight.load(panel.at + block * bytes, Type::lanes(bytes, Element::I8));
    let scales = match floats.scales.lanes() {
        1 => stored.bits(Type::Scalar(Element::F32)).broadcast(PANEL),
        _ => stored.bits(SUMS),
    };
    match floats.codes {
        FloatCodes::E4m3 => scales * scales.code().constant(SUMS, E4M3_UNIT),
        FloatCodes::Table(_) => scales,
    }
}
