//! Matmuls of integer activations with weights in the formats that have groups, with a scale per group.

use std::ops::Range;

use ops::format::{ActivationBits, GROUP, Groups, Integers, PANEL};

use super::{LINE, Matmul, Panel, Rows, SUMS, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::formats::{GroupScales, ReadScales, added, largest, scales_of, small, sums};
use crate::quantized::{Row, Sums, bits_suffix};

const BYTES: Type = Type::lanes(LINE, Element::I8);

/// The weight columns that are multiplied by some activation rows before the next rows.
const COLUMNS: usize = 512;

/// The most rows for which registers hold the products of both parts of 16-bit activations.
const FEW: usize = 2;

/// A group of weight columns, the same in all panels.
#[derive(Clone, Copy)]
struct GroupPlace<'k> {
    /// The byte of a panel at which the chunk of the group begins.
    start: Value<'k>,
    /// The index of the group in its weight row.
    of_row: Value<'k>,
    /// The index of the group in its chunk.
    of_chunk: Value<'k>,
}

impl Matmul<'_> {
    /// Computes the outputs of some panels of the weight for a few activation rows.
    pub(super) fn scaled<'k>(
        &self,
        code: &'k Code,
        x: Buffer<'k>,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let chunks = self.inputs.div_ceil(self.format.columns());
        let block = COLUMNS / self.format.columns();
        let form = self.form();
        let sums_of = |weights: &[Panel<'k>]| {
            let sums = self.in_runs(code, weights, rows, (chunks, block), |weights, rows, chunks, sums| {
                let rows: Vec<_> =
                    (0..rows.count).map(|i| Row::new(x, rows.x(i) * form.bytes(), form)).collect();
                self.products(&rows, weights, chunks, sums)
            });
            match (self.activations, rows.count) {
                (ActivationBits::Eight | ActivationBits::Sixteen, _) => sums,
                (ActivationBits::Mixed, 1) => {
                    self.add_residuals(Row::new(x, rows.x(0) * form.bytes(), form), weights, &sums)
                }
                (ActivationBits::Mixed, count) => {
                    let row_at = |i: Value<'k>| Row::new(x, rows.x_at(i) * form.bytes(), form);
                    self.add_residuals_of_rows(code, (count, &row_at), weights, &sums)
                }
            }
        };
        let &[first, second] = weights else { return sums_of(weights) };
        if !self.takes_panels_in_turn() {
            return sums_of(weights);
        }
        let kept = code.scratch(Element::F32, 2 * rows.count * PANEL);
        code.repeat(code.index(0)..code.index(2), 1, |half| {
            let panel = Panel { at: first.at + half * (second.at - first.at), ..first };
            for (i, sum) in sums_of(&[panel]).into_iter().enumerate() {
                kept.store((half * rows.count + i) * PANEL, sum);
            }
        });
        (0..2 * rows.count).map(|i| kept.load(code.index(i * PANEL), SUMS)).collect()
    }

    /// With short vectors, the registers have no room for the integers of two panels.
    pub(super) fn takes_panels_in_turn(&self) -> bool {
        self.format.groups().is_some() && self.isa.has_short_vectors()
    }

    /// The scales and minima in a chunk of `panels` panels, for memory; `None` without minima.
    pub(super) fn scales_of(&self, panels: usize) -> Option<usize> {
        let panels = if self.takes_panels_in_turn() { 1 } else { panels };
        let (facts, groups) = (self.format.groups()?, self.format.columns() / GROUP);
        facts.in_steps.then(|| panels * groups * scales_of_32(facts) * PANEL)
    }

    /// Multiplies some chunks of the weight, and adds the products to the sums. Matmuls of all sizes share the function.
    fn products<'k>(
        &self,
        rows: &[Row<'k>],
        weights: &[Panel<'k>],
        chunks: Range<Value<'k>>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let operands = [&[chunks.start, chunks.end], sums].concat();
        self.of_rows("products", rows, weights, &operands, |rows, weights, operands| {
            let code = operands[0].code();
            let ready = self.scales_of(weights.len()).map(|count| code.scratch(Element::F32, count));
            code.fold(operands[0]..operands[1], 1, &operands[2..], |chunk, sums| {
                self.chunk(rows, (weights, ready), chunk, sums)
            })
        })
    }

    /// Calls a function of some activation rows and weight panels, which returns a sum for each pair of these.
    fn of_rows<'k>(
        &self,
        name: &str,
        rows: &[Row<'k>],
        weights: &[Panel<'k>],
        operands: &[Value<'k>],
        body: impl for<'f> FnOnce(&[Row<'f>], &[Panel<'f>], &[Value<'f>]) -> Vec<Value<'f>>,
    ) -> Vec<Value<'k>> {
        let (count, Row { form, values, buffer, .. }) = (rows.len(), rows[0]);
        let all: Vec<Value<'k>> =
            [values].into_iter().chain(rows.iter().map(|row| row.at)).chain(operands.to_vec()).collect();
        let name = format!("{name}_of_{count}{}", bits_suffix(self.activations));
        self.of_panels(&name, (buffer, count), weights, &all, |buffer, weights, operands| {
            let (values, (places, operands)) = (operands[0], operands[1..].split_at(count));
            let rows: Vec<_> = places.iter().map(|&at| Row::sized(buffer, at, form, values)).collect();
            body(&rows, weights, operands)
        })
    }

    /// Multiplies a chunk of the weight, and adds the products to the sums. The code for a group is long, so all
    /// groups share it in a loop.
    fn chunk<'k>(
        &self,
        rows: &[Row<'k>],
        (weights, ready): (&[Panel<'k>], Option<Buffer<'k>>),
        chunk: Value<'k>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let (code, groups) = (chunk.code(), self.format.columns() / GROUP);
        let lines = self.lines_of_group();
        let start = chunk * self.format.packed(PANEL, 1).bytes();
        let before = self.format.scales() / LINE;
        ask(code, weights, start, before);
        let each = scales_of_32(self.groups());
        let place = |panel: usize, group: Value<'k>| (group + panel * groups) * (each * PANEL);
        // Scales that share work are unpacked for all groups at once. Registers then stay free.
        if let Some(ready) = ready {
            for (panel, &weights) in weights.iter().enumerate() {
                let scales = self.scales().of_chunk(code, weights, start);
                for group in 0..groups {
                    for (which, numbers) in scales(group).all().enumerate() {
                        ready.store(place(panel, code.index(group)) + which * PANEL, numbers);
                    }
                }
            }
        }
        code.fold(code.index(0)..code.index(groups), 1, sums, |group, sums| {
            ask(code, weights, start + group * (lines * LINE) + before * LINE, lines);
            let of = |panel: usize| match ready {
                Some(ready) => {
                    let mut all =
                        (0..each).map(|which| ready.load(place(panel, group) + which * PANEL, SUMS));
                    let scales = all.by_ref().take(self.groups().parts()).collect();
                    GroupScales { scales, minima: all.collect() }
                }
                None => self.scales().at(weights[panel], start, group),
            };
            let place = GroupPlace { start, of_row: chunk * groups + group, of_chunk: group };
            self.group_of_panels(rows, weights, place, &of, sums)
        })
    }

    /// Multiplies a group of each panel, and adds the products to the sums. The closure `scales` returns the
    /// scale and the minimum of the group in a panel.
    fn group_of_panels<'k>(
        &self,
        rows: &[Row<'k>],
        weights: &[Panel<'k>],
        place: GroupPlace<'k>,
        scales: &dyn Fn(usize) -> GroupScales<'k>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let add = |rows: &[Row<'k>], sums: &[Value<'k>]| {
            let panels = sums.chunks(sums.len() / weights.len()).zip(weights.iter().enumerate());
            let panels =
                panels.map(|(sums, (panel, &weights))| self.group(rows, weights, place, scales(panel), sums));
            panels.flatten().collect::<Vec<_>>()
        };
        if self.activations != ActivationBits::Sixteen {
            return add(rows, sums);
        }
        let residuals: Vec<Row<'k>> = rows.iter().map(|row| row.residuals()).collect();
        match rows.len() {
            ..=FEW => add(&[rows, &residuals].concat(), sums),
            _ => add(&residuals, &add(rows, sums)),
        }
    }

    /// Adds the residuals of several rows, in a loop over the rows, because the code for each row is long.
    fn add_residuals_of_rows<'k>(
        &self,
        code: &'k Code,
        (count, row_at): (usize, &dyn Fn(Value<'k>) -> Row<'k>),
        weights: &[Panel<'k>],
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let kept = code.scratch(Element::F32, sums.len() * PANEL);
        let places: Vec<Value<'k>> = (0..sums.len()).map(|i| code.index(i * PANEL)).collect();
        places.iter().zip(sums).for_each(|(&place, &sum)| kept.store(place, sum));
        code.repeat(code.index(0)..code.index(count), 1, |i| {
            let places: Vec<Value<'k>> =
                (0..weights.len()).map(|panel| (i + panel * count) * PANEL).collect();
            let own: Vec<Value<'k>> = places.iter().map(|&place| kept.load(place, SUMS)).collect();
            let new = self.add_residuals(row_at(i), weights, &own);
            places.iter().zip(new).for_each(|(&place, sum)| kept.store(place, sum));
        });
        places.iter().map(|&place| kept.load(place, SUMS)).collect()
    }

    /// Multiplies a row's listed groups of nonzero residuals, and adds them to the rounded sums of each panel.
    fn add_residuals<'k>(&self, row: Row<'k>, weights: &[Panel<'k>], sums: &[Value<'k>]) -> Vec<Value<'k>> {
        self.of_rows("residuals", &[row], weights, sums, |rows, weights, sums| {
            let (row, code) = (rows[0], sums[0].code());
            let of_chunk = code.index(self.format.columns() / GROUP);
            let residuals = [row.residuals()];
            code.fold(code.index(0)..row.listed(), 1, sums, |position, sums| {
                let group = row.listed_group(position);
                let start = group.divide(of_chunk) * self.format.packed(PANEL, 1).bytes();
                let place = GroupPlace { start, of_row: group, of_chunk: group.remainder(of_chunk) };
                let panels = sums.chunks(1).zip(weights).map(|(sums, &weights)| {
                    let scales = self.scales().at(weights, start, place.of_chunk);
                    self.group(&residuals, weights, place, scales, sums)
                });
                panels.flatten().collect()
            })
        })
    }

    /// Multiplies one group of a panel by some rows, and adds to the sums. With twice as many rows as sums,
    /// the second half are residuals. If the halves of the group have a scale each, each half is one part.
    fn group<'k>(
        &self,
        rows: &[Row<'k>],
        weights: Panel<'k>,
        GroupPlace { start, of_row, of_chunk }: GroupPlace<'k>,
        GroupScales { scales, minima }: GroupScales<'k>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let code = start.code();
        let sum_of = |row: &Row<'k>, part: usize| match scales.len() {
            1 => row.sum(of_row).broadcast(PANEL),
            _ => row.half_sum(of_row, part).broadcast(PANEL),
        };
        let mut columns = self.columns_of(code, weights, start, of_chunk).enumerate();
        let multiplied = |part: usize| {
            let columns = columns.by_ref().take(GROUP / 4 / scales.len()).map(|(i, bytes)| {
                (bytes, rows.iter().map(|row| row.four(of_row * GROUP + 4 * i)).collect::<Vec<_>>())
            });
            let begin = |row: &Row<'k>| {
                if minima.is_empty() {
                    sum_of(row, part)
                } else {
                    code.constant(Type::lanes(PANEL, Element::I32), 0.0)
                }
            };
            self.isa.add_bytes(rows.iter().map(begin).collect(), columns, small(self.groups()))
        };
        let integers: Vec<Vec<Value<'k>>> = (0..scales.len()).map(multiplied).collect();
        let mut sums = sums.to_vec();
        // Residuals are added after both halves, as where they are multiplied in a second pass.
        for (i, row) in rows.iter().enumerate() {
            let at = i % sums.len();
            for (&scales, integers) in scales.iter().zip(&integers) {
                let scale = scales * row.scale(of_row).broadcast(PANEL);
                sums[at] = integers[i].convert(Element::F32).multiply_add(scale, sums[at]);
            }
            for (part, minima) in minima.iter().enumerate() {
                sums[at] = minima.multiply_add(sum_of(row, part), sums[at]);
            }
        }
        sums
    }

    /// The facts of the weight's format, which has groups.
    pub(super) fn groups(&self) -> &'static Groups {
        self.format.facts()
    }

    /// The number to add to the bytes of [`columns_of`](Self::columns_of) to get the weight's integers.
    pub(super) fn added(&self) -> i32 {
        added(self.groups(), self.isa.is_signed())
    }

    /// Returns the kind of sum that the layout of quantized activations stores for each group.
    pub(super) fn sums_of_x(&self) -> Sums {
        self.format.groups().map_or(Sums::Times(0), |groups| sums(groups, self.isa.is_signed()))
    }

    pub(super) fn scales(&self) -> &'static dyn ReadScales {
        scales_of(self.format)
    }

    /// Returns the number of lines of a panel that a group occupies.
    pub(super) fn lines_of_group(&self) -> usize {
        self.groups().bits()
    }

    /// The columns of a chunk's group as bytes, four per vector, which read a line only when needed.
    pub(super) fn columns_of<'k>(
        &self,
        code: &'k Code,
        weights: Panel<'k>,
        start: Value<'k>,
        group: Value<'k>,
    ) -> impl Iterator<Item = Value<'k>> + use<'k, '_> {
        let (lines, groups) = (self.lines_of_group(), self.groups());
        let first = start + group * (lines * LINE) + self.format.scales();
        let lower = groups.planes[0];
        let mut held: Vec<Option<Value<'k>>> = vec![None; groups.planes.len()];
        (0..lower).flat_map(move |line| {
            let mut columns = self.columns_of_line(code, weights.line(first + (lines - lower + line) * LINE));
            // The lines of upper planes come before the lines of lower planes.
            let mut before = lines - lower;
            for ((shift, width), held) in groups.planes().zip(&mut held).skip(1) {
                before -= width;
                let fields = 8 / width;
                for (i, column) in columns.iter_mut().enumerate() {
                    let four = line * (8 / lower) + i;
                    if four % fields == 0 {
                        *held = Some(weights.line(first + (before + four / fields) * LINE));
                    }
                    if let Some(bytes) = *held {
                        *column = column.or(upper_bits(bytes, (width, four % fields), shift));
                    }
                }
            }
            columns
        })
    }

    /// Returns the weight columns of a line, as bytes, with four columns per vector.
    fn columns_of_line<'k>(&self, code: &'k Code, bytes: Value<'k>) -> Vec<Value<'k>> {
        let groups = self.groups();
        match groups.integers {
            // The archive stores each byte plus 128, and the byte wraps around.
            Integers::Minus(less) if self.isa.is_signed() && groups.planes == [8] => {
                vec![bytes + code.constant(BYTES, -f64::from(less))]
            }
            Integers::Table(table) if self.isa.is_signed() => self.looked_up(table, 0, bytes),
            _ => self.stored_columns(bytes),
        }
    }

    /// The columns of a line as unsigned bytes, four per vector: the weight's integer plus a constant.
    pub(super) fn stored_columns<'k>(&self, bytes: Value<'k>) -> Vec<Value<'k>> {
        let groups = self.groups();
        match groups.integers {
            Integers::Table(table) => self.looked_up(table, largest(table), bytes),
            Integers::Minus(_) if groups.planes == [8] => vec![bytes],
            Integers::Minus(_) => fields(bytes, groups.planes[0]).collect(),
        }
    }

    /// Returns the integers of a table for the codes in a line, plus the number `plus`.
    fn looked_up<'k>(&self, table: &[i8; 16], plus: i8, bytes: Value<'k>) -> Vec<Value<'k>> {
        let table = table.map(|integer| integer.wrapping_add(plus));
        let codes: Vec<Value<'k>> = fields(bytes, 4).collect();
        codes.into_iter().map(|codes| self.isa.look_up(&table, codes)).collect()
    }
}

/// Returns a field of each byte, moved to the bit `shift`.
fn upper_bits(bytes: Value<'_>, (width, field): (usize, usize), shift: usize) -> Value<'_> {
    let words = bytes.bits(Type::lanes(32, Element::I16));
    let moved = match width * field {
        from if from > shift => words.shift_right(from - shift),
        from if from < shift => words.shift_left(shift - from),
        _ => words,
    };
    let mask = f64::from((1u32 << width) - 1) * f64::from(1u32 << shift);
    moved.bits(BYTES).and(bytes.code().constant(BYTES, mask))
}

/// Returns the fields of each byte, from the lowest bits on.
pub(super) fn fields(bytes: Value<'_>, width: usize) -> impl Iterator<Item = Value<'_>> {
    let mask = bytes.code().constant(BYTES, f64::from((1u32 << width) - 1));
    let words = bytes.bits(Type::lanes(32, Element::I16));
    (0..8 / width).map(move |field| match field {
        0 => bytes.and(mask),
        _ => words.shift_right(field * width).bits(BYTES).and(mask),
    })
}

/// The vectors of scales and minima for 32 columns.
fn scales_of_32(groups: &Groups) -> usize {
    groups.parts() * groups.scales_of_group()
}
