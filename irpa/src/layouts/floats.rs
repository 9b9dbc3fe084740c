//! Folders with floats of 8 or 4 bits: `fp8`, compressed-tensors' `float-quantized`, and bitsandbytes' NF4 and FP4.

use ops::format::{FLOAT_BLOCK, FLOAT_GROUP, NESTED, NESTED_FLOATS};
use ops::{ElementType, WeightFormat};
use safetensors::Dtype;
use serde::Deserialize;

use super::{Module, NewTensor};
use crate::checkpoint::CheckpointTensor;
use crate::gguf::StoredNumbers;
use crate::join_problem::{JoinProblem, PartProblem};
use crate::joined::{FolderScales, Joined, JoinedFloats, ScaleType};

/// How a folder stores floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatsLayout {
    /// `weight` of e4m3, and `weight_scale_inv`: `[outputs / 128, inputs / 128]`, or `[]`. Without a scale in the
    /// configuration, its shape decides.
    Fp8(Option<FloatScale>),
    /// compressed-tensors: `weight` of e4m3, and `weight_scale`: `[1]`, `[outputs, 1]` or as above.
    FloatQuantized(FloatScale),
    /// bitsandbytes: two codes of four bits in each byte of `weight`, the first in the upper bits. `absmax` has
    /// the scale of each 64 numbers. If it has bytes, these are places in `nested_quant_map`, whose numbers
    /// have the scales `nested_absmax` for each 256 of them.
    FourBits,
}

/// The numbers of a matrix that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatScale {
    Tensor,
    Row,
    /// Rows and columns.
    Block([usize; 2]),
}

/// The JSON in `quant_state.bitsandbytes__nf4`.
#[derive(Deserialize)]
struct QuantState {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

const E4M3: &[Dtype] = &[Dtype::F8_E4M3];
const SCALES: &[Dtype] = &[Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F8_E8M0];
const BYTES: &[Dtype] = &[Dtype::U8];
const F32: &[Dtype] = &[Dtype::F32];
const ABSMAX: &[Dtype] = &[Dtype::F32, Dtype::U8];
const OTHER: &str = "use another quantized file of the model, such as a GGUF file";
const AGAIN: &str = "download the model again";

impl FloatsLayout {
    pub(super) fn join(self, module: &Module<'_>) -> Result<Option<NewTensor>, JoinProblem> {
        let Some(main) = module.get(".weight") else { return Ok(None) };
        match self {
            // AutoFP8 writes the name without the ending.
            Self::Fp8(scale) if module.get(".weight_scale").is_some() => {
                eight_bits(module, main, (scale, ".weight_scale"))
            }
            Self::Fp8(scale) => eight_bits(module, main, (scale, ".weight_scale_inv")),
            Self::FloatQuantized(scale) => eight_bits(module, main, (Some(scale), ".weight_scale")),
            Self::FourBits => four_bits(module, main),
        }
    }
}

fn eight_bits(
    module: &Module<'_>,
    main: &CheckpointTensor,
    (scale, end): (Option<FloatScale>, &'static str),
) -> Result<Option<NewTensor>, JoinProblem> {
    let stored = module.get(end);
    if stored.is_none() && main.stored != StoredNumbers::Each(Dtype::F8_E4M3) {
        return Ok(None);
    }
    module.dtype(main, E4M3)?;
    let &[outputs, inputs] = &main.shape[..] else {
        let (found, expected) = (main.shape.clone(), vec![0, 0]);
        return Err(module.problem(main, PartProblem::Shape { found, expected }));
    };
    let missing = || PartProblem::Missing(format!("{}{end}", module.name));
    let stored = stored.ok_or_else(|| module.problem(main, missing()))?;
    let ty = match module.dtype(stored, SCALES)? {
        Dtype::BF16 => ScaleType::Float(ElementType::Bf16),
        Dtype::F16 => ScaleType::Float(ElementType::F16),
        Dtype::F8_E8M0 => ScaleType::E8m0,
        _ => ScaleType::Float(ElementType::F32),
    };
    let by_shape =
        if stored.shape.len() < 2 { FloatScale::Tensor } else { FloatScale::Block([FLOAT_BLOCK; 2]) };
    let (format, scales) = match scale.unwrap_or(by_shape) {
        FloatScale::Tensor => {
            // A scalar has no axis, and some tools write it with one.
            if !stored.shape.is_empty() {
                module.shape(stored, &vec![1; stored.shape.len()])?;
            }
            (WeightFormat::F8Rows, FolderScales::Tensor(ty))
        }
        FloatScale::Row => {
            module.shape(stored, &[outputs, 1])?;
            (WeightFormat::F8Rows, FolderScales::Row(ty))
        }
        FloatScale::Block([FLOAT_BLOCK, FLOAT_BLOCK]) => {
            module.shape(stored, &[outputs, inputs].map(|extent| extent.div_ceil(FLOAT_BLOCK)))?;
            (WeightFormat::F8, FolderScales::Block(ty))
        }
        FloatScale::Block([rows, columns]) => {
            let found = format!("blocks of {rows} × {columns}");
            let expected = "blocks of 128 × 128";
            return Err(module.problem(main, PartProblem::Layout { found, expected, help: OTHER }));
        }
    };
    let joined = Joined::Floats(JoinedFloats { format, outputs, inputs, first: 0, scales });
    // Scales of activations, which Tracewright does not round to 8 bits.
    let unused = vec![".activation_scale", ".input_scale"];
    let (shape, parts) = (vec![outputs, inputs], vec![end]);
    Ok(Some(NewTensor { joined, shape, main: ".weight", parts, unused }))
}

fn four_bits(module: &Module<'_>, main: &CheckpointTensor) -> Result<Option<NewTensor>, JoinProblem> {
    const STATES: [(&str, WeightFormat); 2] = [
        (".weight.quant_state.bitsandbytes__nf4", WeightFormat::Nf4),
        (".weight.quant_state.bitsandbytes__fp4", WeightFormat::Fp4),
    ];
    if module.get(".weight.absmax").is_none() && main.stored != StoredNumbers::Each(Dtype::U8) {
        return Ok(None);
    }
    module.dtype(main, BYTES)?;
    let state = STATES.into_iter().find_map(|(end, format)| Some((end, module.get(end)?, format)));
    let Some((state_end, state_tensor, format)) = state else {
        let missing = PartProblem::Missing(format!("{}{}", module.name, STATES[0].0));
        return Err(module.problem(main, missing));
    };
    module.dtype(state_tensor, BYTES)?;
    let wrong = |tensor: &CheckpointTensor, found: String, expected: String, help| {
        module.problem(tensor, PartProblem::Value { found, index: 0, expected, help })
    };
    let state: QuantState = serde_json::from_slice(module.data(state_tensor)).map_err(|error| {
        wrong(state_tensor, format!("`{error}`"), "the JSON of a quantized weight".into(), AGAIN)
    })?;
    let &[outputs, inputs] = &state.shape[..] else {
        return Err(wrong(state_tensor, format!("{:?}", state.shape), "the shape of a matrix".into(), AGAIN));
    };
    if state.quant_type != format.word() {
        return Err(wrong(state_tensor, state.quant_type, format!("`{}`", format.word()), AGAIN));
    }
    let count = outputs.checked_mul(inputs).filter(|count| count.div_ceil(2) == module.data(main).len());
    let Some(count) = count.filter(|count| *count > 0) else {
        let (found, expected) = (main.shape.clone(), vec![outputs.saturating_mul(inputs).div_ceil(2), 1]);
        return Err(module.problem(main, PartProblem::Shape { found, expected }));
    };
    let together = state.blocksize;
    if !inputs.is_multiple_of(FLOAT_GROUP) || !together.is_multiple_of(FLOAT_GROUP) || together == 0 {
        let found = format!("groups of {together} in rows of {inputs} numbers");
        let expected = "groups and rows of a multiple of 64 numbers";
        return Err(module.problem(main, PartProblem::Layout { found, expected, help: OTHER }));
    }
    check_table(module, main, format)?;
    let groups = count.div_ceil(together);
    let absmax = module.part(main, ".weight.absmax", ABSMAX, &[groups])?;
    let mut parts = vec![".weight.absmax"];
    let (mut own, mut scales) = (format, FolderScales::Groups(together));
    match (module.dtype(absmax, ABSMAX)?, state.nested_blocksize, state.nested_offset) {
        (Dtype::U8, Some(nested), Some(offset)) if nested > 0 => {
            module.part(main, ".weight.nested_absmax", F32, &[groups.div_ceil(nested)])?;
            let map = module.part(main, ".weight.nested_quant_map", F32, &[NESTED])?;
            parts.extend([".weight.nested_absmax", ".weight.nested_quant_map"]);
            scales = FolderScales::Nested(together, nested, offset.to_bits());
            // The archive keeps scales of 8 bits in the layout that bitsandbytes usually writes.
            let numbers = module.data(map).as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
            let is_usual = numbers.eq(NESTED_FLOATS.iter().map(|number| number.to_bits()));
            own = match format {
                _ if (together, nested, is_usual) != (FLOAT_GROUP, NESTED, true) => format,
                WeightFormat::Nf4 => WeightFormat::Nf4Nested,
                _ => WeightFormat::Fp4Nested,
            };
        }
        (Dtype::U8, ..) => {
            let expected = "`nested_blocksize` and `nested_offset`, because the scales have 8 bits".into();
            return Err(wrong(state_tensor, "no scale of scales".into(), expected, AGAIN));
        }
        _ => {}
    }
    let joined = Joined::Floats(JoinedFloats { format: own, outputs, inputs, first: 0, scales });
    let unused = vec![state_end, ".weight.quant_map"];
    Ok(Some(NewTensor { joined, shape: vec![outputs, inputs], main: ".weight", parts, unused }))
}

/// Checks that the folder has the usual numbers for the codes of a format.
fn check_table(
    module: &Module<'_>,
    main: &CheckpointTensor,
    format: WeightFormat,
) -> Result<(), JoinProblem> {
    let map = module.part(main, ".weight.quant_map", F32, &[16])?;
    let codes = format.floats().map(|floats| floats.codes);
    for (index, bytes) in module.data(map).as_chunks::<4>().0.iter().enumerate() {
        let (found, own) = (f32::from_le_bytes(*bytes), codes.map(|codes| codes.number(index as u8)));
        if own != Some(found) {
            let expected = format!("{}, the number of {}", own.unwrap_or_default(), format.word());
            let problem = PartProblem::Value { found: found.to_string(), index, expected, help: OTHER };
            return Err(module.problem(map, problem));
        }
    }
    Ok(())
}
