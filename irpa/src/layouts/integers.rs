//! Folders with integers of 2 to 8 bits: AWQ, GPTQ and compressed-tensors.

use ops::ElementType;
use ops::format::BlockFormat;
use safetensors::Dtype;

use super::{Module, NewTensor};
use crate::checkpoint::CheckpointTensor;
use crate::gguf::StoredNumbers;
use crate::join_problem::{JoinProblem, PartProblem};
use crate::joined::{CodeOrder, Joined, JoinedIntegers, word, words};

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
