//! Floats of 8 or 4 bits with scales: `fp8`, compressed-tensors' `float-quantized`, and bitsandbytes' NF4 and FP4.

use ops::format::{BlockFormat, FLOAT_BLOCK, FloatCodes, FloatScales, Floats, NestedScale, Quantized};
use ops::{ElementType, WeightFormat};

use super::Parts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedFloats {
    pub(crate) format: WeightFormat,
    /// Rows and columns of the file's matrix.
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    /// The row that is the tensor's first one.
    pub(crate) first: usize,
    pub(crate) scales: FolderScales,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderScales {
    Tensor(ScaleType),
    Row(ScaleType),
    Block(ScaleType),
    /// With the numbers for each scale.
    Groups(usize),
    /// With the numbers for each scale, the scales for each scale of scales, and the bits of the f32 offset.
    Nested(usize, usize, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleType {
    Float(ElementType),
    /// The exponent of a power of two, plus 127.
    E8m0,
}

impl JoinedFloats {
    pub(crate) fn blocks(self) -> BlockFormat {
        self.facts().block
    }

    pub(crate) fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    fn facts(self) -> &'static Floats {
        self.format.floats().unwrap_or_else(|| unreachable!("{} has no floats", self.format.word()))
    }

    fn code(self, main: &[u8], row: usize, column: usize) -> u8 {
        let place = row * self.inputs + column;
        match self.facts().codes {
            FloatCodes::E4m3 => main[place],
            FloatCodes::Table(_) => main[place / 2] >> (4 - place % 2 * 4) & 15,
        }
    }

    fn scale(self, [scales, nested, map, ..]: Parts<'_>, row: usize, column: usize) -> f32 {
        let place = row * self.inputs + column;
        match self.scales {
            FolderScales::Tensor(ty) => ty.number(scales, 0),
            FolderScales::Row(ty) => ty.number(scales, row),
            FolderScales::Block(ty) => {
                let of_row = self.inputs.div_ceil(FLOAT_BLOCK);
                ty.number(scales, row / FLOAT_BLOCK * of_row + column / FLOAT_BLOCK)
            }
            FolderScales::Groups(together) => single(scales, place / together),
            // As `dequantize_blockwise` of bitsandbytes, which then adds the offset.
            FolderScales::Nested(together, of_nested, offset) => {
                let index = place / together;
                single(map, scales[index].into()) * single(nested, index / of_nested) + f32::from_bits(offset)
            }
        }
    }

    pub(crate) fn read(self, main: &[u8], parts: Parts<'_>, start: usize, out: &mut [f32]) {
        let (codes, together) = (self.facts().codes, self.blocks().numbers());
        let mut done = 0;
        while done < out.len() {
            let (row, column) = (self.first + (start + done) / self.inputs, (start + done) % self.inputs);
            let count = self.inputs.min((column / together + 1) * together) - column;
            let count = count.min(out.len() - done);
            let scale = self.scale(parts, row, column);
            for (place, number) in out[done..done + count].iter_mut().enumerate() {
                *number = codes.number(self.code(main, row, column + place)) * scale;
            }
            done += count;
        }
    }

    pub(crate) fn quantized(
        self,
        main: &[u8],
        parts: Parts<'_>,
        start: usize,
        count: usize,
    ) -> Option<Quantized> {
        let (row, column) = (self.first + start / self.inputs, start % self.inputs);
        let together = self.blocks().numbers();
        if !column.is_multiple_of(together) || count != together.min(self.inputs - column) {
            return None;
        }
        let codes: Vec<u8> = (column..column + count).map(|column| self.code(main, row, column)).collect();
        let (FolderScales::Nested(together, of_nested, offset), FloatScales::Nested) =
            (self.scales, self.facts().scales)
        else {
            return Some(self.facts().of_codes(self.scale(parts, row, column), &codes));
        };
        let [scales, nested, ..] = parts;
        let index = (row * self.inputs + column) / together;
        let scale = NestedScale {
            offset: f32::from_bits(offset),
            scale: single(nested, index / of_nested),
            code: scales[index],
            place: (index % of_nested) as u8,
        };
        Some(self.facts().of_scale(&scale.bytes(), &codes))
    }
}

impl ScaleType {
    fn number(self, scales: &[u8], index: usize) -> f32 {
        match self {
            Self::Float(element) => element.decode(element.load(scales, index)) as f32,
            // The exponent 255 is NaN, and 0 is below the normal f32 numbers.
            Self::E8m0 => match scales[index] {
                u8::MAX => f32::NAN,
                0 => f32::from_bits(1 << 22),
                exponent => f32::from_bits(u32::from(exponent) << 23),
            },
        }
    }
}

fn single(bytes: &[u8], index: usize) -> f32 {
    bytes[4 * index..].first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
}
