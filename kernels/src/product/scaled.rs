//! Weights in groups with scales: q8 and q4, times activations in bytes.

use ops::WeightFormat;
use ops::format::{COLUMNS, GROUP, PANEL, SCALES};

use super::{LINE, Panel, Product, Rows, SUMS, ask, join};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::quantized::{Form, Row};

/// The bytes of a line.
const BYTES: Type = Type::lanes(LINE, Element::I8);

impl Product<'_> {
    pub(super) fn scaled<'k>(
        &self,
        code: &'k Code,
        x: Buffer<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let form = Form { inputs: self.inputs };
        let rows: Vec<Row<'k>> =
            (0..rows.count).map(|i| Row { buffer: x, at: rows.x(i) * form.bytes(), form }).collect();
        let chains = (2 / rows.len()).max(1);
        let in_registers = self.isa.rows();
        let chunk = self.format.packed(PANEL, 1).bytes();
        let group = rows.len() * chains;
        let zeros = vec![code.constant(SUMS, 0.0); weights.len() * group];
        let chunks = code.index(0)..code.index(self.inputs.div_ceil(COLUMNS));
        let sums = code.fold(chunks, 1, &zeros, |at, sums| {
            let mut sums = sums.to_vec();
            let start = at * chunk;
            ask(code, weights, start, chunk / LINE);
            for (panel, &weights) in weights.iter().enumerate() {
                for (run, rows) in rows.chunks(in_registers).enumerate() {
                    // Columns that were read for other rows are read again, from what is nearest: LLVM would keep what it
                    // made of them in memory.
                    if run > 0 {
                        code.in_order();
                    }
                    let scales = weights.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
                    for half in 0..2 {
                        let place = at * 2 + half;
                        let scales = scales.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32);
                        let integers = self.integers(code, rows, weights, (start, at, half));
                        for (i, (row, integers)) in rows.iter().zip(integers).enumerate() {
                            let scale = scales * row.scale(place).broadcast(PANEL);
                            let i = (run * in_registers + i) * chains + half % chains;
                            let sum = &mut sums[panel * group + i];
                            *sum = integers.convert(Element::F32).multiply_add(scale, *sum);
                        }
                    }
                }
            }
            sums
        });
        join(&sums, chains)
    }

    /// The sums of a group's products for some rows: of the first or the second of a chunk.
    fn integers<'k>(
        &self,
        code: &'k Code,
        rows: &[Row<'k>],
        weights: Panel<'k>,
        (start, chunk, half): (Value<'k>, Value<'k>, usize),
    ) -> Vec<Value<'k>> {
        let group = chunk * 2 + half;
        let surplus = rows.iter().map(|&row| self.surplus(code, row, group)).collect();
        let columns = self.columns_of(code, weights, start + SCALES, half).enumerate();
        let columns = columns
            .map(|(i, bytes)| (bytes, rows.iter().map(|row| row.four(group * GROUP + 4 * i)).collect()));
        self.isa.add_bytes(surplus, columns, self.format == WeightFormat::Q4)
    }

    /// What is wrong in the sums of a group's products, since something was added to the weights so that the processor can
    /// multiply bytes.
    pub(super) fn surplus<'k>(&self, code: &'k Code, row: Row<'k>, group: Value<'k>) -> Value<'k> {
        let added = match self.format {
            WeightFormat::Q4 => -8.0,
            _ if self.isa.is_signed() => 0.0,
            _ => -128.0,
        };
        let sum = row.sum(group) * code.constant(Type::Scalar(Element::I32), added);
        sum.broadcast(PANEL)
    }

    /// A group's columns four by four, as bytes: a line is read when its first columns are asked for.
    pub(super) fn columns_of<'k>(
        &self,
        code: &'k Code,
        weights: Panel<'k>,
        start: Value<'k>,
        half: usize,
    ) -> impl Iterator<Item = Value<'k>> {
        let (format, is_signed) = (self.format, self.isa.is_signed());
        let lines = if format == WeightFormat::Q4 { 4 } else { 8 };
        (0..lines).flat_map(move |line| {
            let bytes = weights.line(start + (lines * half + line) * LINE);
            let low = code.constant(BYTES, 15.0);
            match format {
                WeightFormat::Q4 => {
                    let words = bytes.bits(Type::lanes(32, Element::I16));
                    vec![bytes.and(low), words.shift_right(4).bits(BYTES).and(low)]
                }
                // 128 was added when they were stored; a byte wraps around.
                _ if is_signed => vec![bytes + code.constant(BYTES, -128.0)],
                _ => vec![bytes],
            }
        })
    }
}
