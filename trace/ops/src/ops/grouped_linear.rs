use super::linear::product;
use super::prelude::*;
use super::quantize::{check_parts, ungrouped};
use crate::format::{ActivationBits, WeightFormat, in_integers};

operation! {
    /// Computes `x · weightᵀ` over the last axis, with a weight that is quantized in groups. The
    /// operands are x `[…, inputs]`, the integers and the scales of the weight, and the counts of
    /// the weight if its format has minima. The result is `[…, outputs]`. The operation rounds the
    /// activations to integers: see [`in_integers`].
    GroupedLinear = "grouped_linear" {
        /// The storage format of the quantized weight.
        format: WeightFormat,
        /// The element type of the result: f32, or the element type of x.
        element: ElementType,
        /// The number of bits of the integers to which the operation rounds activations.
        activations: ActivationBits,
    }
}

impl Operation for GroupedLinear {
    const CLASS: OpClass = OpClass::Matmul;
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "grouped_linear format=q4 element=f32 activations=8",
            &[
                "f32[2,17] 127,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-2,0,127,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1",
                "i8[1,1,16] 19,-13,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
                "f16[1,1] 0.5",
            ],
            "f32[2,1] 189.5,191",
        ),
        good(
            "grouped_linear format=q8 element=f32 activations=8",
            &["f32[2,3,70]", "i8[5,3,32]", "f16[5,3]"],
            "f32[2,3,5]",
        ),
        good(
            "grouped_linear format=q4 element=bf16 activations=8",
            &["bf16[64]", "i8[30,2,16]", "f16[30,2]"],
            "bf16[30]",
        ),
        good(
            "grouped_linear format=q8 element=f32 activations=8",
            &["f16[40,33]", "i8[7,2,32]", "f16[7,2]"],
            "f32[40,7]",
        ),
        good(
            "grouped_linear format=q4 element=f32 activations=8",
            &["f32[40,33]", "i8[7,2,16]", "f16[7,2]"],
            "f32[40,7]",
        ),
        good(
            "grouped_linear format=q4_k element=f32 activations=8",
            &["f32[3,300]", "i8[7,16,16]", "f16[7,2,2]", "i8[7,16,2]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q4_k element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,8,16]", "f16[5,1,2]", "i8[5,8,2]"],
            "bf16[40,5]",
        ),
        good(
            "grouped_linear format=q8 element=f32 activations=16",
            &["f32[2,70]", "i8[5,3,32]", "f16[5,3]"],
            "f32[2,5]",
        ),
        good(
            "grouped_linear format=mxfp4 element=f32 activations=8",
            &[
                "f32[1,17] 127,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-2",
                "i8[2,1,16] 23,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-113,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
                "bf16[2,1] 0.5,2",
            ],
            "f32[1,2] 761,-3044",
        ),
        good(
            "grouped_linear format=mxfp4 element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,2,16]", "bf16[5,2]"],
            "bf16[40,5]",
        ),
        good(
            "grouped_linear format=q6_k element=f32 activations=mixed",
            &["f32[3,300]", "i8[7,16,24]", "f16[7,2,1]", "i8[7,16,2]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q6_k element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,8,24]", "f16[5,1,1]", "i8[5,8,2]"],
            "bf16[40,5]",
        ),
        good(
            "grouped_linear format=q5_0 element=f32 activations=mixed",
            &["f32[3,70]", "i8[7,3,20]", "f16[7,3]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q5_0 element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,2,20]", "f16[5,2]"],
            "bf16[40,5]",
        ),
        good(
            "grouped_linear format=q5_k element=f32 activations=mixed",
            &["f32[3,300]", "i8[7,16,20]", "f16[7,2,2]", "i8[7,16,2]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q3_k element=f32 activations=mixed",
            &["f32[3,300]", "i8[7,16,12]", "f16[7,2,1]", "i8[7,16,2]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q2_k element=f32 activations=16",
            &["f32[3,300]", "i8[7,16,8]", "f16[7,2,2]", "i8[7,16,4]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q2_k element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,8,8]", "f16[5,1,2]", "i8[5,8,4]"],
            "bf16[40,5]",
        ),
        good(
            "grouped_linear format=iq4_nl element=f32 activations=8",
            &["f32[3,70]", "i8[7,3,16]", "f16[7,3]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=iq4_xs element=f32 activations=8",
            &["f32[3,300]", "i8[7,16,16]", "f16[7,2,1]", "i8[7,16,1]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=iq2 element=f32 activations=8",
            &["f32[3,300]", "i8[7,16,16]", "f16[7,2,1]", "i8[7,16,2]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=nvfp4 element=f32 activations=mixed",
            &["f32[3,70]", "i8[7,4,16]", "f16[7,8]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q4_1 element=f32 activations=8",
            &["f32[3,70]", "i8[7,3,16]", "f16[7,3,2]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=q5_1 element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,2,20]", "f16[5,2,2]"],
            "bf16[40,5]",
        ),
        good(
            "grouped_linear format=int4_g128 element=f32 activations=16",
            &["f32[3,130]", "i8[7,8,16]", "f16[7,8]"],
            "f32[3,7]",
        ),
        good(
            "grouped_linear format=uint4_g128 element=bf16 activations=8",
            &["bf16[40,33]", "i8[5,4,16]", "f32[5,4,2]"],
            "bf16[40,5]",
        ),
        bad(
            "grouped_linear format=q8 element=f32 activations=8",
            &["f32[3,70]", "i8[5,3,32]"],
            "takes 3 operands",
        ),
        bad(
            "grouped_linear format=q4_k element=f32 activations=8",
            &["f32[3,256]", "i8[7,8,16]", "f16[7,1,2]"],
            "takes 4 operands",
        ),
        bad(
            "grouped_linear format=q4_k element=f32 activations=8",
            &["f32[3,256]", "i8[7,8,16]", "f16[7,1,2]", "i8[7,8,3]"],
            "the counts",
        ),
        bad(
            "grouped_linear format=bf16 element=f32 activations=8",
            &["f32[3,70]", "i8[5,3,32]", "f16[5,3]"],
            "expected q8, q4",
        ),
        bad(
            "grouped_linear format=q4 element=f32 activations=8",
            &["f32[3,70]", "i8[5,3,32]", "f16[5,3]"],
            "the integers",
        ),
        bad(
            "grouped_linear format=q8 element=f32 activations=8",
            &["f32[3,70]", "i8[5,3,32]", "f16[5,2]"],
            "the scales",
        ),
        bad(
            "grouped_linear format=q8 element=f16 activations=8",
            &["f32[3,70]", "i8[5,3,32]", "f16[5,3]"],
            "f32, or that of x",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let (x, parts) = operands.split_first().ok_or(InferError::Arity {
            op: Self::NAME,
            expected: "at least 3".into(),
            found: 0,
        })?;
        element(Self::NAME, x, "float", ElementType::is_float)?;
        let inputs = axis(Self::NAME, x.rank().saturating_sub(1), x)?;
        let outputs = check_parts(Self::NAME, self.format, parts, inputs, 1)?;
        let known = [ElementType::F32, x.element].contains(&self.element);
        attribute(Self::NAME, "element", self.element, "f32, or that of x", known)?;
        let mut ty = x.with_element(self.element);
        ty.shape[x.rank() - 1] = outputs;
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [x, parts @ ..] = operands else { unreachable!("inferred") };
        let inputs = x.ty.shape[x.ty.rank() - 1];
        product(&rounded(x, self.activations), &ungrouped(self.format, parts, inputs), None, ty)
    }
}

/// Rounds the activations of each row to integers, as a matmul with quantized weights does.
pub(super) fn rounded(x: &Value, bits: ActivationBits) -> Value {
    let inputs = x.ty.shape[x.ty.rank() - 1];
    let mut data: Vec<f32> = x.data.iter().map(|&x| x as f32).collect();
    data.chunks_mut(inputs.max(1)).for_each(|row| in_integers(row, bits));
    Value::new(x.ty.with_element(ElementType::F32), data.into_iter().map(f64::from))
}
