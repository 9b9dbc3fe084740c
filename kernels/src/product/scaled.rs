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
        let chunk = self.format.packed(PANEL, 1).bytes();
        let group = rows.len() * chains;
        let zeros = vec![code.constant(SUMS, 0.0); weights.len() * group];
        let chunks = code.index(0)..code.index(self.inputs.div_ceil(COLUMNS));
        let sums = code.fold(chunks, 1, &zeros, |at, sums| {
            let mut sums = sums.to_vec();
            let start = at * chunk;
            ask(code, weights, start, chunk / LINE);
            for (panel, &weights) in weights.iter().enumerate() {
                let scales = weights.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
                for half in 0..2 {
                    let place = at * 2 + half;
                    let scales = scales.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32);
                    let columns = self.columns_of(code, weights, start + SCALES, half);
                    for (i, row) in rows.iter().enumerate() {
                        let integers = self.group(code, &columns, *row, place);
                        let scale = scales * row.scale(place).broadcast(PANEL);
                        let sum = &mut sums[panel * group + i * chains + half % chains];
                        *sum = integers.convert(Element::F32).multiply_add(scale, *sum);
                    }
                }
            }
            sums
        });
        join(&sums, chains)
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

    /// A group's columns four by four, as bytes.
    pub(super) fn columns_of<'k>(
        &self,
        code: &'k Code,
        weights: Panel<'k>,
        start: Value<'k>,
        half: usize,
    ) -> Vec<Value<'k>> {
        match self.format {
            WeightFormat::Q4 => (0..4)
                .flat_map(|line| {
                    let bytes = weights.line(start + (4 * half + line) * LINE);
                    let low = code.constant(BYTES, 15.0);
                    let words = bytes.bits(Type::lanes(32, Element::I16));
                    [bytes.and(low), words.shift_right(4).bits(BYTES).and(low)]
                })
                .collect(),
            _ => (0..8)
                .map(|line| {
                    let bytes = weights.line(start + (8 * half + line) * LINE);
                    // 128 was added when they were stored; a byte wraps around.
                    if self.isa.is_signed() { bytes + code.constant(BYTES, -128.0) } else { bytes }
                })
                .collect(),
        }
    }

    /// The sums of a group's products for sixteen outputs.
    fn group<'k>(&self, code: &'k Code, columns: &[Value<'k>], row: Row<'k>, group: Value<'k>) -> Value<'k> {
        let small = self.format == WeightFormat::Q4;
        let first = group * GROUP;
        let four = |(i, &bytes): (usize, &Value<'k>)| [bytes, row.four(first + 4 * i)];
        let products: Vec<[Value<'k>; 2]> = columns.iter().enumerate().map(four).collect();
        self.isa.add_bytes(self.surplus(code, row, group), &products, small)
    }
}
