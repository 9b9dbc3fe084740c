use super::prelude::*;
use crate::format::{GroupPart, WeightFormat};

operation! {
    /// A part of a matrix `[outputs, inputs]` in groups of 32: [`WeightFormat::grouped`] says how it is stored.
    ///
    /// Happens when the archive is written: no program contains it.
    Quantize = "quantize" {
        /// How the numbers of a group are stored.
        format: WeightFormat,
        /// Which of the two parts.
        part: GroupPart,
    }
}

impl Operation for Quantize {
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("quantize format=q8 part=scales", &["f32[2,2] 127,-3,0,-254"], "f16[2,1] 1,2"),
        good("quantize format=q4 part=scales", &["bf16[1,33]"], "f16[1,2]"),
        good(
            "quantize format=q8 part=integers",
            &["f32[1,3] 127,-3,5"],
            "i8[1,1,32] 127,-3,5,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
        ),
        good(
            "quantize format=q4 part=integers",
            &["f32[1,18] -8,3,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-8,-2"],
            "i8[1,1,16] 120,-29,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
        ),
        bad("quantize format=f32 part=scales", &["f32[4,4]"], "format is f32, expected q8 or q4"),
        bad("quantize format=q4 part=scales", &["f32[4]"], "must be a matrix"),
        bad("quantize format=q4 part=scales", &["i8[4,4]"], "needs float elements"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [w] = arity(Self::NAME, operands)?;
        element(Self::NAME, w, "float", ElementType::is_float)?;
        agree(Self::NAME, "the weight must be a matrix", w, w, w.rank() == 2)?;
        grouped(Self::NAME, self.format, self.part, w.shape[0], w.shape[1])
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let inputs = operands[0].ty.shape[1];
        let rows: Vec<f32> = operands[0].data.iter().map(|&x| x as f32).collect();
        let mut bytes = vec![0; ty.bytes()];
        if inputs > 0 && !bytes.is_empty() {
            let row = bytes.len() / ty.shape[0];
            for (row, bytes) in rows.chunks(inputs).zip(bytes.chunks_exact_mut(row)) {
                self.format.group_row(self.part, row, bytes);
            }
        }
        Value::from_bytes(ty.clone(), &bytes)
    }

    fn spell(&self, _: &mut dyn Statements, _: &[Operand<'_>], _: &TensorType) -> Spelling {
        Spelling::Composite
    }
}

/// The type of a part of a matrix in groups.
pub(super) fn grouped(
    op: &'static str,
    format: WeightFormat,
    part: GroupPart,
    outputs: usize,
    inputs: usize,
) -> Result<TensorType, InferError> {
    let (what, found, expected) = ("format", format.word().to_owned(), "q8 or q4".to_owned());
    let refused = InferError::Attribute { op, what, found, expected };
    format.grouped(part, outputs, inputs).ok_or(refused)
}

/// The matrix `[outputs, inputs]` that its parts are multiplied as.
pub(super) fn ungrouped(format: WeightFormat, integers: &Value, scales: &Value, inputs: usize) -> Value {
    let [outputs, groups, bytes] = integers.ty.shape[..] else { unreachable!("inferred") };
    let mut rows = Vec::with_capacity(outputs * inputs);
    for row in 0..outputs {
        let group = |group: usize| {
            let at = row * groups + group;
            let bytes: Vec<i8> = integers.data[at * bytes..][..bytes].iter().map(|&x| x as i8).collect();
            let scale = scales.data[at];
            format.integers(&bytes).into_iter().map(move |integer| f64::from(integer) * scale)
        };
        rows.extend((0..groups).flat_map(group).take(inputs));
    }
    Value::new(TensorType::new(ElementType::F32, [outputs, inputs]), rows)
}
