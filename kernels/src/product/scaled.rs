//! Weights in groups with scales: q8 and q4, times activations in bytes.

use ops::WeightFormat;
use ops::format::{COLUMNS, GROUP, PANEL, SCALES};

use super::{LINE, Panel, Product, Rows, ask, join};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::quantized::Row;

/// The bytes of a line.
const BYTES: Type = Type::lanes(LINE, Element::I8);

/// Chunks that are multiplied with some rows before others.
const BLOCK: usize = 8;

impl Product<'_> {
    /// The sums of the panels' outputs for some rows.
    pub(super) fn scaled<'k>(
        &self,
        code: &'k Code,
        x: Buffer<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let chains = (2 / rows.count).max(1);
        let chunks = self.inputs.div_ceil(COLUMNS);
        let sums =
            self.in_runs(code, weights, (rows, chains), (chunks, BLOCK), |weights, rows, chunks, sums| {
                let form = self.form();
                let rows = (0..rows.count).map(|i| Row { buffer: x, at: rows.x(i) * form.bytes(), form });
                let rows: Vec<Row<'k>> = rows.collect();
                code.fold(chunks, 1, sums, |chunk, sums| self.chunk(code, &rows, weights, chunk, sums))
            });
        join(&sums, chains)
    }

    /// Adds the products of a chunk, in as many chains of sums for each row as there are.
    fn chunk<'k>(
        &self,
        code: &'k Code,
        rows: &[Row<'k>],
        weights: &[Panel<'k>],
        chunk: Value<'k>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let mut sums = sums.to_vec();
        let of_panel = sums.len() / weights.len();
        let chains = of_panel / rows.len();
        let bytes = self.format.packed(PANEL, 1).bytes();
        let start = chunk * bytes;
        ask(code, weights, start, bytes / LINE);
        for (panel, &weights) in weights.iter().enumerate() {
            let scales = weights.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
            for half in 0..2 {
                let group = chunk * 2 + half;
                let scales = scales.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32);
                let columns = self.columns_of(code, weights, start + SCALES, half).enumerate();
                let columns = columns.map(|(i, bytes)| {
                    (bytes, rows.iter().map(|row| row.four(group * GROUP + 4 * i)).collect())
                });
                let surplus = rows.iter().map(|row| row.surplus(group).broadcast(PANEL)).collect();
                let integers = self.isa.add_bytes(surplus, columns, self.format == WeightFormat::Q4);
                for (i, (row, integers)) in rows.iter().zip(integers).enumerate() {
                    let scale = scales * row.scale(group).broadcast(PANEL);
                    let sum = &mut sums[panel * of_panel + i * chains + half % chains];
                    *sum = integers.convert(Element::F32).multiply_add(scale, *sum);
                }
            }
        }
        sums
    }

    /// What makes numbers of the bytes that [`columns_of`](Self::columns_of) gives.
    pub(super) fn added(&self) -> i32 {
        match self.format {
            WeightFormat::Q4 => -8,
            _ if self.isa.is_signed() => 0,
            _ => -128,
        }
    }

    /// The lines of a panel that a group takes.
    pub(super) fn lines_of_group(&self) -> usize {
        if self.format == WeightFormat::Q4 { 4 } else { 8 }
    }

    /// A group's columns four by four, as bytes: a line is read when its first columns are asked for.
    pub(super) fn columns_of<'k>(
        &self,
        code: &'k Code,
        weights: Panel<'k>,
        start: Value<'k>,
        half: usize,
    ) -> impl Iterator<Item = Value<'k>> + use<'k, '_> {
        let lines = self.lines_of_group();
        (0..lines).flat_map(move |line| {
            self.columns_of_line(code, weights.line(start + (lines * half + line) * LINE))
        })
    }

    /// The columns of a line four by four, as bytes.
    pub(super) fn columns_of_line<'k>(&self, code: &'k Code, bytes: Value<'k>) -> Vec<Value<'k>> {
        match self.format {
            WeightFormat::Q4 => {
                let low = code.constant(BYTES, 15.0);
                let words = bytes.bits(Type::lanes(32, Element::I16));
                vec![bytes.and(low), words.shift_right(4).bits(BYTES).and(low)]
            }
            // 128 was added when they were stored; a byte wraps around.
            _ if self.isa.is_signed() => vec![bytes + code.constant(BYTES, -128.0)],
            _ => vec![bytes],
        }
    }
}
