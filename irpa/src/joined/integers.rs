//! Integers of 2 to 8 bits with a scale and perhaps a zero point for each group of a row's numbers: AWQ, GPTQ
//! and compressed-tensors. A number is (code − zero point) × scale.

use half::{bf16, f16};
use ops::ElementType;
use ops::format::{BlockFormat, Quantized, SUPER_BLOCK};
use safetensors::Dtype;

use super::{JoinProblem, Joined, Module, NewTensor, PartProblem, Parts};
use crate::{CheckpointTensor, StoredNumbers};

/// How a folder stores integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntegersLayout {
    pub packing: CodeOrder,
    pub bits: usize,
    /// The numbers of a row that share a scale; `None` for the whole row.
    pub group: Option<usize>,
    /// Whether the file has zero points. Otherwise the zero point is half of the range.
    pub zeros: bool,
}

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
    packing: CodeOrder,
    bits: usize,
    /// The numbers of a row that share a scale.
    group: usize,
    /// Rows and columns of the file's matrix.
    outputs: usize,
    inputs: usize,
    /// The row that is the tensor's first one.
    pub(super) first: usize,
    scale: ElementType,
    /// Whether all numbers have one scale.
    one: bool,
    /// Whether the zero points differ from the middle of the range.
    zeros: bool,
    /// Whether the blocks have zero points.
    shifted: bool,
    blocks: BlockFormat,
}

const I32: &[Dtype] = &[Dtype::I32];
const I8: &[Dtype] = &[Dtype::I8];
const SCALES: &[Dtype] = &[Dtype::F16, Dtype::BF16, Dtype::F32];
/// For each input, the index of its group.
const INDEXES: [&str; 2] = [".g_idx", ".weight_g_idx"];
const SHAPE: &str = ".weight_shape";
const OTHER: &str = "use another quantized file of the model, such as a GGUF file";

impl IntegersLayout {
    pub(super) fn join(&self, module: &Module<'_>) -> Result<Option<NewTensor>, JoinProblem> {
        let (main_end, scale_end) = match self.packing {
            CodeOrder::Awq | CodeOrder::Gptq { .. } => (".qweight", ".scales"),
            CodeOrder::Rows => (".weight_packed", ".weight_scale"),
            CodeOrder::Bytes => (".weight", ".weight_scale"),
        };
        let Some(main) = module.get(main_end) else { return Ok(None) };
        if self.packing != CodeOrder::Bytes {
            module.dtype(main, I32)?;
        } else if main.stored != StoredNumbers::Each(Dtype::I8) {
            return Ok(None);
        }
        let (mut parts, mut unused) = (vec![scale_end], Vec::new());
        let [outputs, inputs] = self.shape(module, main, &mut unused)?;
        let group = self.group.unwrap_or(inputs).min(inputs);
        let groups = inputs.div_ceil(group);
        let one =
            self.packing == CodeOrder::Bytes && module.get(scale_end).is_some_and(|scale| scale.shape == [1]);
        let scale_shape = match self.packing {
            _ if one => vec![1],
            CodeOrder::Rows | CodeOrder::Bytes => vec![outputs, groups],
            CodeOrder::Awq | CodeOrder::Gptq { .. } => vec![groups, outputs],
        };
        let scales = module.part(main, scale_end, SCALES, &scale_shape)?;
        let scale = scales.element().unwrap_or(ElementType::F32);
        let (packing, bits, blocks) = (self.packing, self.bits, BlockFormat::Q8_0);
        let (zeros, shifted) = (self.zeros, false);
        let mut integers = JoinedIntegers {
            packing,
            bits,
            group,
            outputs,
            inputs,
            first: 0,
            scale,
            one,
            zeros,
            shifted,
            blocks,
        };
        if let Some((index, found)) = integers.inexact(module.data(scales)) {
            let (found, expected) = (found.to_string(), "a number that f16 keeps".to_owned());
            return Err(module.problem(scales, PartProblem::Value { found, index, expected, help: OTHER }));
        }
        if self.zeros {
            let (end, shape, dtype) = match self.packing {
                CodeOrder::Awq | CodeOrder::Gptq { .. } => (".qzeros", [groups, words(outputs, bits)], I32),
                CodeOrder::Rows => (".weight_zero_point", [words(outputs, bits), groups], I32),
                CodeOrder::Bytes => (".weight_zero_point", [outputs, groups], I8),
            };
            let zeros = module.data(module.part(main, end, dtype, &shape)?);
            // GPTQ also stores the zero points of a symmetric range.
            let half = |row, group| integers.zero(zeros, row, group) == integers.half();
            integers.zeros = !(0..outputs).all(|row| (0..groups).all(|group| half(row, group)));
            if integers.zeros { &mut parts } else { &mut unused }.push(end);
        }
        if let Some(index) = INDEXES.iter().find(|end| module.get(end).is_some()) {
            let order = module.part(main, index, I32, &[inputs])?;
            check_order(module, order, group, groups)?;
            unused.push(index);
        }
        let own = if integers.zeros { None } else { self.blocks(group, inputs, false) };
        // Without a symmetric format, the zero points of the middle are stored.
        integers.shifted = own.is_none();
        let Some(blocks) = own.or_else(|| self.blocks(group, inputs, true)) else {
            let found = format!("{bits} bits in groups of {group}");
            let expected = "2, 3, 4 or 8 bits in groups of a multiple of 32, 8 bits without zero points";
            return Err(module.problem(main, PartProblem::Layout { found, expected, help: OTHER }));
        };
        integers.blocks = blocks;
        // Engines that round activations to integers read the scales that the quantization chose for them.
        unused.extend(
            [".input_scale", ".input_zero_point"].into_iter().filter(|end| module.get(end).is_some()),
        );
        let (joined, shape) = (Joined::Integers(integers), vec![outputs, inputs]);
        Ok(Some(NewTensor { joined, shape, main: main_end, parts, unused }))
    }

    /// The blocks with the fewest bytes that hold the integers and scales.
    fn blocks(&self, group: usize, inputs: usize, zeros: bool) -> Option<BlockFormat> {
        let fits = |block: &&BlockFormat| group == inputs || group.is_multiple_of(block.numbers());
        let bytes = |block: &&BlockFormat| inputs.div_ceil(block.numbers()) * block.bytes();
        BlockFormat::of_integers(self.bits, zeros).iter().filter(fits).min_by_key(bytes).copied()
    }

    /// Outputs and inputs.
    fn shape(
        &self,
        module: &Module<'_>,
        main: &CheckpointTensor,
        unused: &mut Vec<&'static str>,
    ) -> Result<[usize; 2], JoinProblem> {
        let other = |expected: Vec<usize>| {
            let found = main.shape.clone();
            Err(module.problem(main, PartProblem::Shape { found, expected }))
        };
        let &[rows @ (1..=usize::MAX), columns @ (1..=usize::MAX)] = &main.shape[..] else {
            return other(vec![1, 1]);
        };
        match self.packing {
            CodeOrder::Bytes => Ok([rows, columns]),
            CodeOrder::Awq => Ok([columns * 8, rows]),
            CodeOrder::Gptq { .. } => {
                let inputs = rows * 32 / self.bits;
                let whole = rows * 32 % self.bits == 0;
                if whole {
                    Ok([columns, inputs])
                } else {
                    other(vec![rows.next_multiple_of(self.bits), columns])
                }
            }
            CodeOrder::Rows => {
                let shape = module.part(main, SHAPE, &[Dtype::I64, Dtype::I32], &[2])?;
                unused.push(SHAPE);
                let data = module.data(shape);
                let extents = data.chunks_exact((data.len() / 2).max(1)).map(|bytes| {
                    bytes.iter().rev().fold(0, |all: usize, byte| all.wrapping_shl(8) | usize::from(*byte))
                });
                let extents: Vec<usize> = extents.collect();
                let most = columns * 32 / self.bits;
                match extents[..] {
                    [outputs, inputs]
                        if outputs == rows
                            && inputs > 0
                            && inputs <= most
                            && words(inputs, self.bits) == columns =>
                    {
                        Ok([outputs, inputs])
                    }
                    _ => {
                        let expected =
                            format!("the shape of the matrix in `{}`, [{rows}, {most}]", main.source);
                        let (found, help) = (format!("{extents:?}"), "download the model again");
                        Err(module.problem(shape, PartProblem::Value { found, index: 0, expected, help }))
                    }
                }
            }
        }
    }
}

/// The words of so many codes.
fn words(count: usize, bits: usize) -> usize {
    (count * bits).div_ceil(32)
}

/// Checks that the groups of the inputs follow each other.
fn check_order(
    module: &Module<'_>,
    index: &CheckpointTensor,
    group: usize,
    groups: usize,
) -> Result<(), JoinProblem> {
    let data = module.data(index);
    let found = || (0..data.len() / 4).map(|input| (input, word(data, input)));
    let beyond = found().find(|(_, own)| *own as usize >= groups);
    let Some((input, own)) = beyond.or_else(|| found().find(|(input, own)| *own as usize != input / group))
    else {
        return Ok(());
    };
    let (expected, help) = if beyond.is_some() {
        (format!("a group from 0 to {}", groups - 1), "download the model again")
    } else {
        let expected =
            format!("{}, because inputs in another order (`desc_act`) are not supported", input / group);
        (expected, "use a file of the model without `desc_act`, or a GGUF file")
    };
    let found = own.cast_signed().to_string();
    Err(module.problem(index, PartProblem::Value { found, index: input, expected, help }))
}

impl JoinedIntegers {
    pub(super) fn blocks(self) -> BlockFormat {
        self.blocks
    }

    pub(super) fn from_row(self, first: usize) -> Self {
        Self { first, ..self }
    }

    /// The first scale that f16 cannot represent, with its index. NaN and infinities are left to the bake.
    fn inexact(self, scales: &[u8]) -> Option<(usize, f32)> {
        if self.scale == ElementType::F16 {
            return None;
        }
        let count = scales.len() / self.scale.bytes(1);
        let kept = |scale: f32| f16::from_f32(scale).to_f32() == scale || !scale.is_finite();
        (0..count).map(|index| (index, self.number(scales, index))).find(|(_, scale)| !kept(*scale))
    }

    fn number(self, scales: &[u8], index: usize) -> f32 {
        match self.scale {
            ElementType::F16 => f16::from_le_bytes([scales[2 * index], scales[2 * index + 1]]).to_f32(),
            ElementType::Bf16 => bf16::from_le_bytes([scales[2 * index], scales[2 * index + 1]]).to_f32(),
            _ => f32::from_bits(word(scales, index)),
        }
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
    fn half(self) -> u8 {
        1 << (self.bits - 1)
    }

    fn zero(self, zeros: &[u8], row: usize, group: usize) -> u8 {
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

    pub(super) fn read(self, main: &[u8], [scales, zeros, ..]: Parts<'_>, start: usize, out: &mut [f32]) {
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

    pub(super) fn quantized(
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

fn word(bytes: &[u8], index: usize) -> u32 {
    bytes[4 * index..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
