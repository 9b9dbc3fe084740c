//! Matmuls of integer activations with weights in the formats q8, q4, q4_k and mxfp4. The formats q8,
//! q4, q4_k and mxfp4 have groups of integers or four-bit floats, with a scale per group.

use ops::WeightFormat;
use ops::format::{ActivationBits, DOUBLED_FLOATS, GROUP, LARGEST_DOUBLED, LEAST_SCALE, PANEL};

use super::{LINE, Matmul, Panel, Rows, SUMS, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::counts::StepCounts;
use crate::isa::Small;
use crate::quantized::{Row, Sums};

const BYTES: Type = Type::lanes(LINE, Element::I8);

/// The number of weight columns that the kernel multiplies by some activation rows, before it
/// continues with the next activation rows.
const COLUMNS: usize = 512;

/// The largest number of activation rows for which the registers have room for the products of both
/// parts of 16-bit activations.
const FEW: usize = 2;

impl Matmul<'_> {
    /// Computes the outputs of some panels of the weight for a few activation rows.
    pub(super) fn scaled<'k>(
        &self,
        code: &'k Code,
        (x, ready): (Buffer<'k>, Option<Buffer<'k>>),
        weights: &[Panel<'k>],
        rows: Rows<'k>,
    ) -> Vec<Value<'k>> {
        let chunks = self.inputs.div_ceil(self.format.columns());
        let block = COLUMNS / self.format.columns();
        let form = self.form();
        let rows_of = |rows: Rows<'k>| -> Vec<Row<'k>> {
            (0..rows.count).map(|i| Row::new(x, rows.x(i) * form.bytes(), form)).collect()
        };
        let sums_of = |weights: &[Panel<'k>]| {
            let sums = self.in_runs(code, weights, rows, (chunks, block), |weights, rows, chunks, sums| {
                let rows = rows_of(rows);
                code.fold(chunks, 1, sums, |chunk, sums| {
                    self.chunk(code, &rows, (weights, ready), chunk, sums)
                })
            });
            match self.activations {
                ActivationBits::Mixed => self.add_residuals(code, &rows_of(rows), weights, &sums),
                ActivationBits::Eight | ActivationBits::Sixteen => sums,
            }
        };
        // With short vectors, the registers have no room for two panels.
        match self.isa.has_short_vectors() {
            true => weights.iter().flat_map(|panel| sums_of(std::slice::from_ref(panel))).collect(),
            false => sums_of(weights),
        }
    }

    /// Returns the number of scales and minima in a chunk of `panels` panels, for which the kernel
    /// needs memory; `None` if the weight's format has no minima.
    pub(super) fn scales_of(&self, panels: usize) -> Option<usize> {
        let panels = if self.isa.has_short_vectors() { 1 } else { panels };
        let groups = self.format.columns() / GROUP;
        (self.format == WeightFormat::Q4K).then_some(panels * groups * 2 * PANEL)
    }

    /// Multiplies a chunk of the weight, and adds the products to the sums.
    fn chunk<'k>(
        &self,
        code: &'k Code,
        rows: &[Row<'k>],
        (weights, ready): (&[Panel<'k>], Option<Buffer<'k>>),
        chunk: Value<'k>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let (groups, lines) = (self.format.columns() / GROUP, 2 * self.lines_of_group());
        let start = chunk * self.format.packed(PANEL, 1).bytes();
        let before = self.format.scales() / LINE;
        let scales = weights.iter().map(|&weights| self.scales(code, weights, start));
        let Some(ready) = ready else {
            ask(code, weights, start, before + lines);
            let scales: Vec<Scales<'k>> = scales.collect();
            return (0..groups / 2).fold(sums.to_vec(), |sums, pair| {
                if pair > 0 {
                    ask(code, weights, start + (before + pair * lines) * LINE, lines);
                }
                let of = |panel: usize, half: usize| scales[panel].of(2 * pair + half);
                let places = [chunk * groups + 2 * pair, code.index(2 * pair)];
                self.pair(code, rows, (weights, start), places, &of, &sums)
            });
        };
        // The scales of all groups are unpacked first. The code for a group is then short, and registers stay free.
        ask(code, weights, start, before);
        let place = |panel: usize, group: Value<'k>| (group + panel * groups) * (2 * PANEL);
        for (panel, scales) in scales.enumerate() {
            for group in 0..groups {
                let (scales, minima) = scales.of(group);
                for (which, numbers) in [Some(scales), minima].into_iter().flatten().enumerate() {
                    ready.store(place(panel, code.index(group)) + which * PANEL, numbers);
                }
            }
        }
        code.fold(code.index(0)..code.index(groups / 2), 1, sums, |pair, sums| {
            ask(code, weights, start + pair * (lines * LINE) + before * LINE, lines);
            let of = |panel: usize, half: usize| {
                let at = place(panel, pair * 2 + half);
                (ready.load(at, SUMS), Some(ready.load(at + PANEL, SUMS)))
            };
            self.pair(code, rows, (weights, start), [chunk * groups + pair * 2, pair * 2], &of, sums)
        })
    }

    /// Multiplies two groups of the weight, and adds the products to the sums. The arguments are
    /// the index of the first group in the weight row, the same group's index in the chunk, and the
    /// first byte of the chunk in the panel. The closure `scales` returns the scale and the minimum
    /// of one group in a panel.
    fn pair<'k>(
        &self,
        code: &'k Code,
        rows: &[Row<'k>],
        (weights, start): (&[Panel<'k>], Value<'k>),
        [of_row, of_chunk]: [Value<'k>; 2],
        scales: &dyn Fn(usize, usize) -> (Value<'k>, Option<Value<'k>>),
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let add = |rows: &[Row<'k>], half: usize, sums: &[Value<'k>]| {
            let panels = sums.chunks(sums.len() / weights.len()).zip(weights.iter().enumerate());
            let panels = panels.map(|(sums, (panel, &weights))| {
                let places = [of_row + half, of_chunk + half];
                self.group(code, rows, (weights, start), places, scales(panel, half), sums)
            });
            panels.flatten().collect::<Vec<_>>()
        };
        match self.activations {
            ActivationBits::Eight | ActivationBits::Mixed => {
                (0..2).fold(sums.to_vec(), |sums, half| add(rows, half, &sums))
            }
            ActivationBits::Sixteen => {
                let residuals: Vec<Row<'k>> = rows.iter().map(|row| row.residuals()).collect();
                (0..2).fold(sums.to_vec(), |sums, half| match rows.len() {
                    ..=FEW => add(&[rows, &residuals].concat(), half, &sums),
                    _ => add(&residuals, half, &add(rows, half, &sums)),
                })
            }
        }
    }

    /// Multiplies the groups of residuals that are not 0, and adds the products to the sums of the
    /// rounded activations. Each row has a list of these groups.
    fn add_residuals<'k>(
        &self,
        code: &'k Code,
        rows: &[Row<'k>],
        weights: &[Panel<'k>],
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let of_chunk = code.index(self.format.columns() / GROUP);
        let mut sums = sums.to_vec();
        for (i, row) in rows.iter().enumerate() {
            let residuals = [row.residuals()];
            let places = (0..weights.len()).map(|panel| panel * rows.len() + i);
            let own: Vec<Value<'k>> = places.clone().map(|place| sums[place]).collect();
            let new = code.fold(code.index(0)..row.listed(), 1, &own, |position, sums| {
                let group = row.listed_group(position);
                let start = group.divide(of_chunk) * self.format.packed(PANEL, 1).bytes();
                let of_chunk = group.remainder(of_chunk);
                let panels = sums.chunks(1).zip(weights).map(|(sums, &weights)| {
                    let scales = self.scales_at(weights, start, of_chunk);
                    self.group(code, &residuals, (weights, start), [group, of_chunk], scales, sums)
                });
                panels.flatten().collect()
            });
            places.zip(new).for_each(|(place, sum)| sums[place] = sum);
        }
        sums
    }

    /// Multiplies one group of a panel by some rows, and adds the products to the sums. If there are
    /// twice as many rows as sums, the second half of the rows are the residuals of the first half.
    /// The other arguments are the same as of [`pair`](Self::pair).
    fn group<'k>(
        &self,
        code: &'k Code,
        rows: &[Row<'k>],
        (weights, start): (Panel<'k>, Value<'k>),
        [of_row, of_chunk]: [Value<'k>; 2],
        (scales, minima): (Value<'k>, Option<Value<'k>>),
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let columns = self.columns_of(code, weights, start, of_chunk).enumerate();
        let columns = columns.map(|(i, bytes)| {
            (bytes, rows.iter().map(|row| row.four(of_row * GROUP + 4 * i)).collect::<Vec<_>>())
        });
        let begin = |row: &Row<'k>| match minima {
            None => row.sum(of_row).broadcast(PANEL),
            Some(_) => code.constant(Type::lanes(PANEL, Element::I32), 0.0),
        };
        let integers = self.isa.add_bytes(rows.iter().map(begin).collect(), columns, self.small());
        let mut sums = sums.to_vec();
        for (i, (row, integers)) in rows.iter().zip(integers).enumerate() {
            let place = i % sums.len();
            let scale = scales * row.scale(of_row).broadcast(PANEL);
            let sum = integers.convert(Element::F32).multiply_add(scale, sums[place]);
            sums[place] = match minima {
                Some(minima) => minima.multiply_add(row.sum(of_row).broadcast(PANEL), sum),
                None => sum,
            };
        }
        sums
    }

    /// The number that the kernel adds to the bytes of [`columns_of`](Self::columns_of) to get the
    /// integers of the weight.
    pub(super) fn added(&self) -> i32 {
        match self.format {
            WeightFormat::Q8 | WeightFormat::Mxfp4 if self.takes_signs() => 0,
            WeightFormat::Mxfp4 => -i32::from(LARGEST_DOUBLED),
            format => -i32::from(format.offset()),
        }
    }

    fn small(&self) -> Small {
        match self.format {
            WeightFormat::Q8 => Small::No,
            WeightFormat::Mxfp4 => Small::Signed,
            _ => Small::Unsigned,
        }
    }

    /// Whether the kernel converts the bytes of the weight to signed bytes before the
    /// multiplication.
    fn takes_signs(&self) -> bool {
        self.isa.is_signed()
    }

    /// Returns the kind of sum that the layout of quantized activations stores for each group.
    pub(super) fn sums_of_x(&self) -> Sums {
        match self.format {
            WeightFormat::Q4K => Sums::Numbers,
            _ => Sums::Times(self.added()),
        }
    }

    /// Returns the scales of a chunk that begins at the byte `start` of a panel.
    pub(super) fn scales<'k>(&self, code: &'k Code, weights: Panel<'k>, start: Value<'k>) -> Scales<'k> {
        if self.format == WeightFormat::Mxfp4 {
            return Scales::Powers(weights, start);
        }
        let halves = weights.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
        let both = [0, 1].map(|half| halves.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32));
        match self.format {
            WeightFormat::Q4K => {
                let words = [1, 2, 3].map(|line| weights.line(start + line * LINE));
                let words = words.map(|line| line.bits(Type::lanes(PANEL, Element::I32)));
                let minus = code.constant(SUMS, 0.0);
                Scales::InSteps { steps: [both[0], minus - both[1]], counts: StepCounts::unpacked(words) }
            }
            _ => Scales::Each(both),
        }
    }

    /// Returns the scale and, if the weight's format has minima, the minimum of a group whose index
    /// in its chunk is known only at run time. The chunk begins at the byte `start` of the panel.
    pub(super) fn scales_at<'k>(
        &self,
        weights: Panel<'k>,
        start: Value<'k>,
        group: Value<'k>,
    ) -> (Value<'k>, Option<Value<'k>>) {
        match self.format {
            WeightFormat::Q4K => {
                let (scales, minima) = self.scales(group.code(), weights, start).in_steps(group);
                (scales, Some(minima))
            }
            WeightFormat::Mxfp4 => (weights.half_scales(start + group * PANEL), None),
            _ => {
                let at = weights.at + start + group * (LINE / 2);
                let halves = weights.weight.load(at, Type::lanes(LINE / 2, Element::I8));
                (halves.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32), None)
            }
        }
    }

    /// Returns the number of lines of a panel that a group occupies.
    pub(super) fn lines_of_group(&self) -> usize {
        if self.format == WeightFormat::Q8 { 8 } else { 4 }
    }

    /// Returns the columns of one group in a chunk, as bytes, with four columns per vector. The
    /// function reads a line of the panel only when the kernel needs the first column of this line.
    pub(super) fn columns_of<'k>(
        &self,
        code: &'k Code,
        weights: Panel<'k>,
        start: Value<'k>,
        group: Value<'k>,
    ) -> impl Iterator<Item = Value<'k>> + use<'k, '_> {
        let lines = self.lines_of_group();
        let first = start + group * (lines * LINE) + self.format.scales();
        (0..lines).flat_map(move |line| self.columns_of_line(code, weights.line(first + line * LINE)))
    }

    /// Returns the weight columns of a line, as bytes, with four columns per vector.
    fn columns_of_line<'k>(&self, code: &'k Code, bytes: Value<'k>) -> Vec<Value<'k>> {
        match self.format {
            // The archive stores each byte plus 128, and the byte wraps around.
            WeightFormat::Q8 if self.takes_signs() => vec![bytes + code.constant(BYTES, -128.0)],
            WeightFormat::Mxfp4 if self.takes_signs() => self.floats(bytes, 0),
            _ => self.stored_columns(bytes),
        }
    }

    /// Returns the columns of a line, as unsigned bytes, with four columns per vector. Each byte is the
    /// integer of the weight plus a constant of the format.
    pub(super) fn stored_columns<'k>(&self, bytes: Value<'k>) -> Vec<Value<'k>> {
        match self.format {
            WeightFormat::Q4 | WeightFormat::Q4K => nibbles(bytes).to_vec(),
            WeightFormat::Mxfp4 => self.floats(bytes, LARGEST_DOUBLED),
            _ => vec![bytes],
        }
    }

    /// Returns twice the values of a line's four-bit floats, plus the number `plus`.
    fn floats<'k>(&self, bytes: Value<'k>, plus: i8) -> Vec<Value<'k>> {
        let table = DOUBLED_FLOATS.map(|doubled| doubled + plus);
        nibbles(bytes).map(|codes| self.isa.look_up(&table, codes)).to_vec()
    }
}

/// Returns the lower four bits and the upper four bits of each byte.
fn nibbles(bytes: Value<'_>) -> [Value<'_>; 2] {
    let low = bytes.code().constant(BYTES, 15.0);
    let words = bytes.bits(Type::lanes(32, Element::I16));
    [bytes.and(low), words.shift_right(4).bits(BYTES).and(low)]
}

/// Returns half of the scale of each group of four-bit floats. The exponents are integers of 32
/// bits: see [`ops::format::FloatGroup::half_scale`].
pub(crate) fn half_scales(exponents: Value<'_>) -> Value<'_> {
    let code = exponents.code();
    let scales = exponents.shift_left(23).max(code.constant(exponents.ty(), f64::from(LEAST_SCALE)));
    let scales = scales.bits(exponents.ty().with_element(Element::F32));
    scales * code.constant(scales.ty(), 0.5)
}

/// The scales of a chunk's groups, for the 16 weight rows of a panel.
pub(super) enum Scales<'k> {
    Each([Value<'k>; 2]),
    /// The panel, and the position of the exponents of four groups, which are bytes `[4, 16]`.
    Powers(Panel<'k>, Value<'k>),
    /// The step of the scales, the step of the negated minima, and the counts by which the kernel
    /// multiplies the steps for each group.
    InSteps {
        steps: [Value<'k>; 2],
        counts: StepCounts<'k>,
    },
}

impl<'k> Scales<'k> {
    /// Returns the scale of a group and, if the weight's format has minima, the minimum of the
    /// group.
    pub(super) fn of(&self, group: usize) -> (Value<'k>, Option<Value<'k>>) {
        match self {
            Self::Each(scales) => (scales[group], None),
            Self::Powers(panel, start) => (panel.half_scales(*start + group * PANEL), None),
            Self::InSteps { steps, counts } => {
                let [scales, minima] = counts.of(group).map(|count| count.convert(Element::F32));
                (scales * steps[0], Some(minima * steps[1]))
            }
        }
    }

    /// Returns the scale and the minimum of a group whose index is known only at run time, for
    /// weight formats with minima.
    pub(super) fn in_steps(&self, group: Value<'k>) -> (Value<'k>, Value<'k>) {
        let Self::InSteps { steps, counts } = self else { unreachable!("a format with minima") };
        let [scales, minima] = counts.at(group).map(|count| count.convert(Element::F32));
        (scales * steps[0], minima * steps[1])
    }
}
