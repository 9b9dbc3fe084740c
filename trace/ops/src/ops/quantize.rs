use super::prelude::*;
use crate::format::{GroupPart, WeightFormat};

operation! {
    /// Quantizes a matrix `[outputs, inputs]` in groups of 32, and returns one of the resulting tensors: see
    /// [`WeightFormat::grouped`].
    ///
    /// The crate `bake` computes `quantize` when it writes an archive. No compiled program contains
    /// `quantize`.
    Quantize = "quantize" {
        /// The storage format for the quantized values.
        format: WeightFormat,
        /// The tensor that the operation returns: integers, scales or counts.
        part: GroupPart,
    }
}

impl Operation for Quantize {
    const CLASS: OpClass = OpClass::Movement;
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
        good("quantize format=q4_k part=scales", &["f32[3,257]"], "f16[3,2,2]"),
        good(
            "quantize format=q4_k part=counts",
            &["f32[1,4] 0,15,30,225"],
            "i8[1,8,2] 63,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
        ),
        good("quantize format=q4_k part=integers", &["bf16[2,40]"], "i8[2,8,16]"),
        good(
            "quantize format=mxfp4 part=scales",
            &[
                "f32[2,33] 0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,6,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-24,3",
            ],
            "bf16[2,2] 0.5,0.125,2,0.25",
        ),
        good(
            "quantize format=mxfp4 part=integers",
            &["f32[1,18] -6,3,0,0,0,0,0,0,0,0,0,0,0,0,0,0,4,-0.5"],
            "i8[1,1,16] 95,-107,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
        ),
        bad("quantize format=f32 part=scales", &["f32[4,4]"], "format is f32, expected q8, q4"),
        bad("quantize format=q4 part=counts", &["f32[4,4]"], "part is counts, expected a part of q4"),
        bad("quantize format=q4 part=scales", &["f32[4]"], "must be a matrix"),
        bad("quantize format=q4 part=scales", &["i8[4,4]"], "needs elements of type float"),
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
                self.format.group_row(self.part, row, bytes, |_| None);
            }
        }
        Value::from_bytes(ty.clone(), &bytes)
    }

    fn work(&self, _: &[CostOperand<'_>], _: &TensorType) -> OpWork {
        // The operation has no cost at run time, because `bake` computes it when it writes the
        // archive.
        OpWork::FREE
    }

    fn bakes(&self) -> bool {
        true
    }
}

fn grouped(
    op: &'static str,
    format: WeightFormat,
    part: GroupPart,
    outputs: usize,
    inputs: usize,
) -> Result<TensorType, InferError> {
    let (what, found, expected) = match format.parts() {
        [] => ("format", format.word(), WeightFormat::list(WeightFormat::grouped_formats())),
        _ => ("part", part.word(), format!("a part of {}", format.word())),
    };
    let refused = InferError::Attribute { op, what, found: found.to_owned(), expected };
    format.grouped(part, outputs, inputs).ok_or(refused)
}

/// Checks a matrix in a format with groups, beside unrelated `others`, and returns its rows.
pub(super) fn check_parts(
    op: &'static str,
    format: WeightFormat,
    parts: &[&TensorType],
    inputs: usize,
    others: usize,
) -> Result<usize, InferError> {
    let outputs = parts.first().map_or(0, |integers| integers.shape.first().copied().unwrap_or_default());
    grouped(op, format, GroupPart::Integers, outputs, inputs)?;
    if parts.len() != format.parts().len() {
        let (expected, found) = (format.parts().len() + others, parts.len() + others);
        return Err(InferError::Arity { op, expected: expected.to_string(), found });
    }
    for (&part, &ty) in format.parts().iter().zip(parts) {
        let expected = grouped(op, format, part, outputs, inputs)?;
        let what = match part {
            GroupPart::Integers => "the integers must have these columns",
            GroupPart::Scales => "the scales must be those of the integers",
            GroupPart::Counts => "the counts must be those of the integers",
        };
        agree(op, what, ty, &expected, *ty == expected)?;
    }
    Ok(outputs)
}

/// The matrix `[outputs, inputs]`; quantized numbers are multiplied by their scales.
pub(super) fn ungrouped(format: WeightFormat, parts: &[&Value], inputs: usize) -> Value {
    let integers = parts[0];
    let [outputs, groups, bytes] = integers.ty.shape[..] else { unreachable!("inferred") };
    let mut rows = Vec::with_capacity(outputs * inputs);
    let unit = f64::from(format.facts().unit);
    for row in 0..outputs {
        let group = |group: usize| {
            let at = row * groups + group;
            let bytes: Vec<i8> = integers.data[at * bytes..][..bytes].iter().map(|&x| x as i8).collect();
            let number = move |(place, integer): (usize, i8)| {
                let places = format.scale_places(at, place);
                let of = |&(scale, count): &(usize, Option<usize>)| {
                    parts[1].data[scale] * count.map_or(1.0, |count| parts[2].data[count] * unit)
                };
                let minimum = places.get(1).map_or(0.0, of);
                f64::from((f64::from(integer) * of(&places[0]) - minimum) as f32)
            };
            format.integers(&bytes).into_iter().enumerate().map(number)
        };
        rows.extend((0..groups).flat_map(group).take(inputs));
    }
    Value::new(TensorType::new(ElementType::F32, [outputs, inputs]), rows)
}
