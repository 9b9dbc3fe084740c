//! Formats whose codes are floats of a few bits, as in published Hugging Face checkpoints: e4m3 (OCP "8-bit
//! Floating Point Specification", 2023, §5.2), and the tables of bitsandbytes. Kernels multiply these floats
//! with activations that are not rounded.

use super::{BlockFormat, FLOAT_GROUP, PANEL, Quantized, WeightFormat, all_finite};

/// The rows and the columns of a matrix that share a scale in [`FloatScales::OfBlocks`].
pub const FLOAT_BLOCK: usize = 128;

/// The facts of a format of floats. A number is the value of its code, multiplied by a scale in f32.
///
/// A panel begins with its scales. Lines of 64 bytes follow, with a byte for each of 16 rows in four columns.
/// With codes of 4 bits, the lower bits belong to four columns, and the upper bits to the next four.
pub struct Floats {
    /// The codes of some columns of a row, after their scale.
    pub block: BlockFormat,
    pub codes: FloatCodes,
    pub scales: FloatScales,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FloatCodes {
    /// A sign, four bits of exponent and three of fraction. The code is NaN if all bits but the sign are 1.
    E4m3,
    /// Four bits, the place of a number in the table.
    Table(&'static [f32; 16]),
}

/// The numbers that share a scale, and the order of the scales in a panel. All scales are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatScales {
    /// Each row has a scale: `[16]`.
    OfRows,
    /// Each block of 128 × 128 numbers has a scale, so all rows of a panel share it: `[inputs / 128]`.
    OfBlocks,
    /// Each 64 columns of a row have a scale: `[inputs / 64, 16]`.
    OfGroups,
    /// As above, but a scale is a number of [`NESTED_FLOATS`] times a scale of scales, plus an offset. In row order,
    /// 256 scales share a scale. A panel begins with the offset, and with the place of its first scale among the
    /// 256 (i32). The scales of scales follow, and bytes `[inputs / 64, 16]`.
    Nested,
}

/// The scales that share a scale in [`FloatScales::Nested`].
pub const NESTED: usize = 256;

/// The bytes before the scales of scales.
pub const NESTED_START: usize = 8;

pub(super) const F8: Floats =
    Floats { block: BlockFormat::Fp8Blocks, codes: FloatCodes::E4m3, scales: FloatScales::OfBlocks };
pub(super) const F8_ROWS: Floats =
    Floats { block: BlockFormat::Fp8Rows, codes: FloatCodes::E4m3, scales: FloatScales::OfRows };
pub(super) const NF4: Floats = Floats {
    block: BlockFormat::Nf4,
    codes: FloatCodes::Table(&NORMAL_FLOATS),
    scales: FloatScales::OfGroups,
};
pub(super) const NF4_NESTED: Floats =
    Floats { block: BlockFormat::Nf4Nested, scales: FloatScales::Nested, ..NF4 };
pub(super) const FP4_NESTED: Floats =
    Floats { block: BlockFormat::Fp4Nested, scales: FloatScales::Nested, ..FP4 };
pub(super) const FP4: Floats = Floats {
    block: BlockFormat::Fp4,
    codes: FloatCodes::Table(&FOUR_BIT_FLOATS),
    scales: FloatScales::OfGroups,
};

/// The numbers of NF4 (Dettmers et al., "QLoRA", 2023, appendix E), as f32.
#[rustfmt::skip]
pub const NORMAL_FLOATS: [f32; 16] = [
    -1.0, -0.696_192_8, -0.525_073_05, -0.394_917_5, -0.284_441_38, -0.184_773_43, -0.091_050_036, 0.0,
    0.079_580_3, 0.160_930_2, 0.246_112_3, 0.337_915_24, 0.440_709_83, 0.562_617, 0.722_956_84, 1.0,
];

/// The numbers of bitsandbytes' FP4, of which the largest is 1.
#[rustfmt::skip]
pub const FOUR_BIT_FLOATS: [f32; 16] = [
    0.0, 0.062_5 / 12.0, 8.0 / 12.0, 1.0, 4.0 / 12.0, 0.5, 2.0 / 12.0, 0.25,
    -0.0, -0.062_5 / 12.0, -8.0 / 12.0, -1.0, -4.0 / 12.0, -0.5, -2.0 / 12.0, -0.25,
];

/// The numbers of bitsandbytes' scales of eight bits (`create_dynamic_map`), in rising order: means of
/// neighbours in a range from 0.1 to 1, times a power of ten.
pub static NESTED_FLOATS: [f32; NESTED] = nested_floats();

const fn nested_floats() -> [f32; NESTED] {
    const POWERS: [f32; 7] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0];
    let (mut all, mut place, mut exponent) = ([0.0; NESTED], 1, 0);
    while exponent < POWERS.len() {
        let (count, mut index) = (1 << exponent, 0);
        while index < count {
            let mean = (tenth_to_one(index, count) + tenth_to_one(index + 1, count)) / 2.0;
            all[NESTED / 2 - 1 + place] = POWERS[exponent] * mean;
            all[NESTED / 2 - 1 - place] = -(POWERS[exponent] * mean);
            (place, index) = (place + 1, index + 1);
        }
        exponent += 1;
    }
    all[NESTED - 1] = 1.0;
    all
}

/// `torch.linspace(0.1, 1, count + 1)`, which rounds once and counts from the nearer end.
const fn tenth_to_one(index: usize, count: usize) -> f32 {
    let step = ((1.0 - 0.1f32) / count as f32) as f64;
    if index < count.div_ceil(2) {
        (0.1f32 as f64 + step * index as f64) as f32
    } else {
        (1.0 - step * (count - index) as f64) as f32
    }
}

impl FloatCodes {
    pub fn bits(self) -> usize {
        match self {
            Self::E4m3 => 8,
            Self::Table(_) => 4,
        }
    }

    pub fn number(self, code: u8) -> f32 {
        match self {
            Self::E4m3 => {
                let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
                let magnitude = match (exponent, code & 7) {
                    (15, 7) => f32::NAN,
                    (0, _) => fraction * 2f32.powi(-9),
                    _ => (8.0 + fraction) * 2f32.powi(exponent - 10),
                };
                if code < 128 { magnitude } else { -magnitude }
            }
            Self::Table(table) => table[usize::from(code & 15)],
        }
    }

    /// The largest number of a code.
    fn largest(self) -> f32 {
        match self {
            Self::E4m3 => 448.0,
            Self::Table(_) => 1.0,
        }
    }

    /// The code of the nearest number.
    fn nearest(self, number: f32) -> u8 {
        match self {
            Self::E4m3 => {
                let magnitude = number.abs().min(448.0);
                // The bits of a positive f32 above its fraction are its exponent plus 127.
                let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
                let steps = (magnitude * 2f32.powi(3 - exponent)).round_ties_even() as u8;
                ((exponent + 6) as u8 * 8 + steps) | u8::from(number < 0.0) << 7
            }
            Self::Table(table) => {
                let distance = |&code: &u8| (table[usize::from(code)] - number).abs();
                (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or_default()
            }
        }
    }
}

impl FloatScales {
    /// The columns that share a scale, in rows of `inputs` numbers.
    pub fn together(self, inputs: usize) -> usize {
        match self {
            Self::OfRows => inputs.max(1),
            Self::OfBlocks => FLOAT_BLOCK,
            Self::OfGroups | Self::Nested => FLOAT_GROUP,
        }
    }

    /// The scales of a panel that belong to the same columns.
    pub fn lanes(self) -> usize {
        if self == Self::OfBlocks { 1 } else { PANEL }
    }

    /// Whether rows of a panel share scales, so that they must be neighbours in the file.
    pub fn are_shared(self) -> bool {
        matches!(self, Self::OfBlocks | Self::Nested)
    }

    /// The most scales of scales that a panel needs.
    pub fn nested(self, inputs: usize) -> usize {
        (NESTED - 1 + inputs.div_ceil(FLOAT_GROUP) * PANEL).div_ceil(NESTED)
    }
}

impl Floats {
    /// The bytes of a panel before its codes.
    pub fn scale_bytes(&self, inputs: usize) -> usize {
        if self.scales == FloatScales::Nested {
            return self.nested_at(inputs, 0, 0) + inputs.div_ceil(FLOAT_GROUP) * PANEL;
        }
        inputs.div_ceil(self.scales.together(inputs)) * self.scales.lanes() * size_of::<f32>()
    }

    /// The columns whose codes are in a line of a panel.
    pub fn line_columns(&self) -> usize {
        32 / self.codes.bits()
    }

    /// The byte of a panel with the scale of a group, for [`FloatScales::Nested`].
    pub fn nested_at(&self, inputs: usize, group: usize, row: usize) -> usize {
        NESTED_START + self.scales.nested(inputs) * size_of::<f32>() + group * PANEL + row
    }

    /// A block of codes, one per byte, with their scale. Missing codes are 0.
    ///
    /// # Panics
    /// Panics if scales have scales.
    pub fn of_codes(&self, scale: f32, codes: &[u8]) -> Quantized {
        self.of_scale(&scale.to_le_bytes(), codes)
    }

    /// A block with the bytes of its scale, as in [`NestedScale::bytes`].
    pub fn of_scale(&self, scale: &[u8], codes: &[u8]) -> Quantized {
        let mut bytes = vec![0; self.block.bytes()];
        let (before, after) = bytes.split_at_mut(self.before());
        before.copy_from_slice(scale);
        let of_byte = 8 / self.codes.bits();
        for (place, code) in codes.iter().enumerate() {
            after[place / of_byte] |= code << (place % of_byte * self.codes.bits());
        }
        Quantized { block: self.block, bytes }
    }

    /// The bytes of a block before its codes.
    fn before(&self) -> usize {
        if self.scales == FloatScales::Nested { NestedScale::BYTES } else { size_of::<f32>() }
    }

    fn code(&self, block: &[u8], place: usize) -> u8 {
        let (of_byte, bits) = (8 / self.codes.bits(), self.codes.bits());
        block[self.before() + place / of_byte] >> (place % of_byte * bits) & u8::MAX >> (8 - bits)
    }

    pub(super) fn panel_bytes(&self, inputs: usize) -> usize {
        let lines = inputs.div_ceil(self.line_columns());
        self.scale_bytes(inputs) + lines * 4 * PANEL
    }

    /// The byte of a code after the scales, and its lowest bit.
    fn place(&self, row: usize, column: usize) -> (usize, usize) {
        let (line, column) = (column / self.line_columns(), column % self.line_columns());
        ((line * 4 + column % 4) * PANEL + row, column / 4 * 4)
    }
}

impl WeightFormat {
    /// Packs at most 16 rows into a panel, as [`pack_groups`](Self::pack_groups) does. The function rounds blocks
    /// for which `known` returns `None`. Returns whether all numbers are finite, and numbers with one scale in the
    /// panel also have one scale in the blocks.
    ///
    /// # Panics
    /// Panics if the codes of the format are no floats, or if `packed` is no panel.
    pub fn pack_floats(
        self,
        rows: &[f32],
        inputs: usize,
        packed: &mut [u8],
        known: impl Fn(usize, usize) -> Option<Quantized>,
    ) -> bool {
        let Some(floats) = self.floats() else { unreachable!("{} has no floats", self.word()) };
        packed.fill(0);
        let (scales, lines) = packed.split_at_mut(floats.scale_bytes(inputs));
        let mut finite = all_finite(rows);
        let mut written = vec![false; scales.len()];
        for row in 0..rows.len() / inputs.max(1) {
            for first in (0..inputs).step_by(floats.block.numbers()) {
                let block = known(row, first).unwrap_or_else(|| floats.rounded(rows, inputs, (row, first)));
                for (at, bytes) in floats.scale_pieces(&block.bytes, inputs, (row, first)) {
                    let place = at..at + bytes.len();
                    finite &= !written[at] || scales[place.clone()] == *bytes;
                    written[at] = true;
                    scales[place].copy_from_slice(&bytes);
                }
                let group = first / floats.scales.together(inputs);
                finite &= floats.scale(scales, inputs, (row, group)).is_finite();
                for column in first..inputs.min(first + floats.block.numbers()) {
                    let (at, shift) = floats.place(row, column);
                    lines[at] |= floats.code(&block.bytes, column - first) << shift;
                }
            }
        }
        finite
    }
}

impl Floats {
    /// Rounds the numbers of a block. The largest of the numbers that share a scale becomes the largest float.
    fn rounded(&self, rows: &[f32], inputs: usize, (row, first): (usize, usize)) -> Quantized {
        let together = if self.scales == FloatScales::Nested { inputs } else { self.scales.together(inputs) };
        let start = first / together * together;
        let shares = |own: usize| self.scales.are_shared() || own == row;
        let largest = rows.chunks_exact(inputs).enumerate().filter(|(own, _)| shares(*own));
        let largest = largest.flat_map(|(_, row)| &row[start..inputs.min(start + together)]);
        let scale = largest.fold(0.0f32, |largest, x| largest.max(x.abs())) / self.codes.largest();
        let numbers = &rows[row * inputs..][first..inputs.min(first + self.block.numbers())];
        let codes = |scale: f32| {
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            numbers.iter().map(|x| self.codes.nearest(x * inverse)).collect::<Vec<_>>()
        };
        if self.scales != FloatScales::Nested {
            return self.of_codes(scale, &codes(scale));
        }
        let own = numbers.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let above = (0..=u8::MAX).find(|&code| NESTED_FLOATS[usize::from(code)] * scale >= own);
        let index = row * inputs.div_ceil(FLOAT_GROUP) + first / FLOAT_GROUP;
        let nested =
            NestedScale { offset: 0.0, scale, code: above.unwrap_or(u8::MAX), place: (index % NESTED) as u8 };
        self.of_scale(&nested.bytes(), &codes(nested.number()))
    }

    /// The bytes of a panel's scales that a block determines, each with its place.
    fn scale_pieces(
        &self,
        block: &[u8],
        inputs: usize,
        (row, first): (usize, usize),
    ) -> Vec<(usize, Vec<u8>)> {
        let group = first / self.scales.together(inputs);
        if self.scales != FloatScales::Nested {
            let at = (group * self.scales.lanes() + row % self.scales.lanes()) * size_of::<f32>();
            return vec![(at, block[..size_of::<f32>()].to_vec())];
        }
        let NestedScale { offset, scale, code, place } = NestedScale::read(block);
        let index = row * inputs.div_ceil(FLOAT_GROUP) + group;
        // The place of the panel's first scale among the 256 that share a scale.
        let start = (usize::from(place) + NESTED - index % NESTED) % NESTED;
        let nested = NESTED_START + (start + index) / NESTED * size_of::<f32>();
        vec![
            (0, offset.to_le_bytes().to_vec()),
            (size_of::<f32>(), (start as u32).to_le_bytes().to_vec()),
            (nested, scale.to_le_bytes().to_vec()),
            (self.nested_at(inputs, group, row), vec![code]),
        ]
    }

    /// The scale of a group of columns in a panel that begins with `scales`.
    fn scale(&self, scales: &[u8], inputs: usize, (row, group): (usize, usize)) -> f32 {
        let single =
            |at: usize| scales[at..].first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
        if self.scales != FloatScales::Nested {
            let lanes = self.scales.lanes();
            return single((group * lanes + row % lanes) * size_of::<f32>());
        }
        let start = single(size_of::<f32>()).to_bits() as usize;
        let index = start + row * inputs.div_ceil(FLOAT_GROUP) + group;
        let scale = single(NESTED_START + index / NESTED * size_of::<f32>());
        let code = scales[self.nested_at(inputs, group, row)];
        NestedScale { offset: single(0), scale, code, place: 0 }.number()
    }
}

/// The scale of a group, as a number in units of another scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NestedScale {
    pub offset: f32,
    pub scale: f32,
    /// The place of the number in [`NESTED_FLOATS`].
    pub code: u8,
    /// The place among the 256 groups that share `scale`.
    pub place: u8,
}

impl NestedScale {
    const BYTES: usize = 10;

    pub fn bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.offset.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.scale.to_le_bytes());
        (bytes[8], bytes[9]) = (self.code, self.place);
        bytes
    }

    fn read(block: &[u8]) -> Self {
        let single =
            |at: usize| block[at..].first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
        Self { offset: single(0), scale: single(4), code: block[8], place: block[9] }
    }

    /// Rounded after the product and after the sum, as in bitsandbytes.
    fn number(self) -> f32 {
        NESTED_FLOATS[usize::from(self.code)] * self.scale + self.offset
    }
}

impl Floats {
    /// Unpacks the numbers of one row of a panel.
    pub(super) fn unpack(&self, row: usize, packed: &[u8], inputs: usize, numbers: &mut [f32]) {
        let (scales, lines) = packed.split_at(self.scale_bytes(inputs));
        for (column, number) in numbers.iter_mut().enumerate() {
            let scale = self.scale(scales, inputs, (row, column / self.scales.together(inputs)));
            let (at, shift) = self.place(row, column);
            *number = self.codes.number(lines[at] >> shift) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4m3_is_an_f16_with_fewer_bits() {
        for code in 0..=u8::MAX {
            let bits = u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7;
            let number = FloatCodes::E4m3.number(code);
            match code & 0x7f {
                0x7f => assert!(number.is_nan()),
                _ => assert_eq!(number.to_bits(), (half::f16::from_bits(bits).to_f32() * 256.0).to_bits()),
            }
        }
    }

    #[test]
    fn each_number_becomes_the_nearest_code() {
        for codes in [F8.codes, NF4.codes, FP4.codes] {
            for code in (0..=u8::MAX >> (8 - codes.bits())).filter(|&code| !codes.number(code).is_nan()) {
                let number = codes.number(code);
                for moved in [number, number * 1.01, number * 0.99] {
                    let found = codes.number(codes.nearest(moved));
                    assert_eq!(found, number, "{code}");
                }
            }
        }
    }

    #[test]
    fn known_codes_come_back_with_their_scales() {
        for format in WeightFormat::ALL.iter().copied().filter(|format| format.floats().is_some()) {
            let floats = format.floats().unwrap();
            for inputs in [1, 8, 64, 130, 200] {
                let (rows, together) = (11, floats.scales.together(inputs));
                let most = if floats.codes.bits() == 8 { 0x7f } else { 16 };
                let code = |row: usize, column: usize| ((row * 31 + column * 7) % most) as u8;
                let nested = |row: usize, first: usize| {
                    let index = 200 + row * inputs.div_ceil(FLOAT_GROUP) + first / FLOAT_GROUP;
                    let scale = 0.37 + (index / NESTED) as f32;
                    NestedScale { offset: 0.1, scale, code: (index * 7) as u8, place: index as u8 }
                };
                let scale = |row: usize, first: usize| match floats.scales {
                    FloatScales::Nested => nested(row, first).number(),
                    _ => ((row % floats.scales.lanes() + first) as f32 + 1.0) * 0.37,
                };
                let numbers: Vec<f32> = (0..rows * inputs)
                    .map(|i| {
                        let (row, column) = (i / inputs, i % inputs);
                        floats.codes.number(code(row, column)) * scale(row, column / together * together)
                    })
                    .collect();
                let known = |row: usize, first: usize| {
                    let columns = first..inputs.min(first + floats.block.numbers());
                    let codes: Vec<u8> = columns.map(|column| code(row, column)).collect();
                    Some(match floats.scales {
                        FloatScales::Nested => floats.of_scale(&nested(row, first).bytes(), &codes),
                        _ => floats.of_codes(scale(row, first / together * together), &codes),
                    })
                };
                let mut packed = vec![0; format.packed(PANEL, inputs).bytes()];
                assert!(format.pack_floats(&numbers, inputs, &mut packed, known));
                let mut found = vec![0.0; numbers.len()];
                format.unpack_panel(&packed, inputs, &mut found);
                assert_eq!(found, numbers, "{format:?} {inputs}");
            }
        }
    }

    #[test]
    fn rows_with_other_scales_do_not_share_a_panel() {
        for format in [WeightFormat::F8, WeightFormat::F8Rows] {
            let floats = format.floats().unwrap();
            let known = |row: usize, _: usize| Some(floats.of_codes(row as f32, &[1; 4]));
            let mut packed = vec![0; format.packed(PANEL, 4).bytes()];
            let finite = format.pack_floats(&[0.0; 8], 4, &mut packed, known);
            assert_eq!(finite, format == WeightFormat::F8Rows);
        }
    }
}
