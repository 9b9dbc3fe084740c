//! Integers of 2 to 8 bits with a scale and perhaps a zero point for each group of a row's numbers: AWQ, GPTQ
//! and compressed-tensors. A number is (code − zero point) × scale.

use half::f16;
use ops::ElementType;
use ops::format::{BlockFormat, Quantized, SUPER_BLOCK};

use super::Parts;

/// The order of the codes and scales. Words have 32 bits, and their bits form a stream from the lowest bit on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeOrder {
    /// AutoAWQ's `gemm`: a word of `qweight` `[inputs, outputs / 8]` has eight outputs, in the order of
    /// `AWQ_ORDER`. `qzeros` is `[groups, outputs / 8]`, and `scales` `[groups, outputs]`.
    Awq,
    /// GPTQ: the words of a column of `qweight` `[inputs × bits / 32, outputs]` have the codes of an output.
    /// `qzeros` is `[groups, outputs × bits / 32]`, and `scales` `[groups, outputs]`. In the first version, the
    /// zero point is one more than the file's.
    Gptq { one_less: bool },
    /// compressed-tensors: `weight` `[outputs, inputs]` has a signed byte for each number, and `weight_scale` is
    /// `[outputs, groups]`, or `[1]` for all numbers.
    Bytes,
    /// compressed-tensors: the words of a row of `weight_packed` `[outputs, inputs × bits / 32]` have the codes
    /// of an output. `weight_zero_point` is `[outputs × bits / 32, groups]`, and `weight_scale` `[outputs,
    /// groups]`.
    Rows,
}

/// For each output of a word, the place of its four bits (`reverse_awq_order` in AutoAWQ's
/// `awq/utils/packing_utils.py`).
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedIntegers {
    pub(crate) packing: CodeOrder,
    pub(crate) bits: usize,
    /// The numbers of a row that share a scale.
    pub(crate) group: usize,
    /// Rows and columns of the file's matrix.
    pub(crate) outputs: usize,
    pub(crate) inputs: usize,
    /// The row that is the tensor's first one.
    pub(crate) first: usize,
    pub(crate) scale: ElementType,
    /// Whether all numbers have one scale.
    pub(crate) one: bool,
    /// Whether the zero points differ from the middle of the range.
    pub(crate) zeros: bool,
    /// Whether the blocks have zero points.
    pub(crate) shifted: bool,
    pub(crate) blocks: BlockFormat,
}

/// The words of so many codes.
pub(crate) fn words(count: usize, bits: usize) -> usize {
    (count * bits).div_ceil(32)
}

impl JoinedIntegers {
    pub(crate) fn blocks(self) -> BlockFormat {
        self.blocks
    }

    pub(crate) fn starting_at(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The first scale that f16 cannot represent, with its index. NaN and infinities are left to the bake.
    pub(crate) fn inexact(self, scales: &[u8]) -> Option<(usize, f32)> {
        if self.scale == ElementType::F16 {
            return None;
        }
        let count = scales.len() / self.scale.bytes(1);
        let kept = |scale: f32| f16::from_f32(scale).to_f32() == scale || !scale.is_finite();
        (0..count).map(|index| (index, self.number(scales, index))).find(|(_, scale)| !kept(*scale))
    }

    fn number(self, scales: &[u8], index: usize) -> f32 {
        self.scale.decode(self.scale.load(scales, index)) as f32
    }

    fn groups(self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    fn code(self, main: &[u8], row: usize, column: usize) -> u8 {
        match self.packing {
            CodeOrder::Awq => bits(main, column * (self.outputs / 8) + row / 8, 0, 4 * AWQ_ORDER[row % 8], 4),
            CodeOrder::Gptq { .. } => bits(main, row, self.outputs, column * self.bits, self.bits),
            CodeOrder::Rows => {
                bits(main, row * words(self.inputs, self.bits), 1, column * self.bits, self.bits)
            }
            CodeOrder::Bytes => main[row * self.inputs + column].wrapping_add(self.half()),
        }
    }

    /// The zero point of a symmetric range.
    pub(crate) fn half(self) -> u8 {
        1 << (self.bits - 1)
    }

    pub(crate) fn zero(self, zeros: &[u8], row: usize, group: usize) -> u8 {
        if !self.zeros {
            return self.half();
        }
        match self.packing {
            CodeOrder::Awq => bits(zeros, group * (self.outputs / 8) + row / 8, 0, 4 * AWQ_ORDER[row % 8], 4),
            CodeOrder::Gptq { one_less } => {
                let zero = bits(zeros, group * words(self.outputs, self.bits), 1, row * self.bits, self.bits);
                // The sum keeps its bits, as in the kernels of AutoGPTQ and GPTQModel.
                zero.wrapping_add(u8::from(one_less)) & u8::MAX >> (8 - self.bits)
            }
            CodeOrder::Rows => bits(zeros, group, self.groups(), row * self.bits, self.bits),
            CodeOrder::Bytes => zeros[row * self.groups() + group].wrapping_add(self.half()),
        }
    }

    fn scale(self, scales: &[u8], row: usize, group: usize) -> f32 {
        self.number(
            scales,
            match self.packing {
                CodeOrder::Awq | CodeOrder::Gptq { .. } => group * self.outputs + row,
                CodeOrder::Rows | CodeOrder::Bytes if self.one => 0,
                CodeOrder::Rows | CodeOrder::Bytes => row * self.groups() + group,
            },
        )
    }

    pub(crate) fn read(self, main: &[u8], [scales, zeros, ..]: Parts<'_>, start: usize, out: &mut [f32]) {
        let mut done = 0;
        while done < out.len() {
            let (row, column) = (self.first + (start + done) / self.inputs, (start + done) % self.inputs);
            let group = column / self.group;
            let count = self.inputs.min((group + 1) * self.group) - column;
            let count = count.min(out.len() - done);
            let (scale, zero) = (self.scale(scales, row, group), self.zero(zeros, row, group));
            for (place, number) in out[done..done + count].iter_mut().enumerate() {
                let code = self.code(main, row, column + place);
                *number = f32::from(i16::from(code) - i16::from(zero)) * scale;
            }
            done += count;
        }
    }

    pub(crate) fn quantized(
        self,
        main: &[u8],
        [scales, zeros, ..]: Parts<'_>,
        start: usize,
        count: usize,
    ) -> Option<Quantized> {
        let (row, column) = (self.first + start / self.inputs, start % self.inputs);
        let (block, group) = (self.blocks, column / self.group);
        let own = block.numbers().min(self.inputs - column);
        if !column.is_multiple_of(block.numbers()) || count != own {
            return None;
        }
        let zero = self.zero(zeros, row, group);
        let scale = f16::from_f32(self.scale(scales, row, group));
        // Numbers behind the end of the row are 0.
        let mut codes = [zero; SUPER_BLOCK];
        codes[..count].iter_mut().enumerate().for_each(|(i, code)| *code = self.code(main, row, column + i));
        Some(block.of_codes(scale, self.shifted.then_some(zero), &codes))
    }
}

/// A number of at most 8 bits, whose lowest bit is bit `bit` of the stream of words at `base`, `base + stride`, ….
fn bits(words: &[u8], base: usize, stride: usize, bit: usize, count: usize) -> u8 {
    let (index, shift) = (base + bit / 32 * stride, bit % 32);
    let mut found = word(words, index) >> shift;
    if shift + count > 32 {
        found |= word(words, index + stride) << (32 - shift);
    }
    found as u8 & u8::MAX >> (8 - count)
}

pub(crate) fn word(bytes: &[u8], index: usize) -> u32 {
    bytes[4 * index..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
