use super::grouped_linear::rounded;
use super::linear::product;
use super::pack::unpacked;
use super::prelude::*;
use crate::format::{ActivationBits, WeightFormat};

operation! {
    /// Computes `x · weightᵀ` over the last axis with a packed weight: x `[…, inputs]`, packed →
    /// `[…, outputs]`. If the weight is quantized, the operation rounds the activations to
    /// integers: see [`in_integers`](crate::format::in_integers).
    ///
    /// StableHLO has no operation for a packed weight; a kernel computes this operation.
    PackedLinear = "packed_linear" {
        /// The storage format of the packed weight.
        format: WeightFormat,
        /// The number of rows of the packed weight.
        outputs: usize,
        /// The element type of the result: f32, or the element type of x.
        element: ElementType,
        /// The number of bits of the integers to which the operation rounds activations, if the
        /// weight is quantized.
        activations: ActivationBits,
    }
}

impl Operation for PackedLinear {
    const CLASS: OpClass = OpClass::Matmul;
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "packed_linear format=f32 outputs=2 element=f32 activations=8",
            &["f32[3,1] 2,3,-1", "f32[1,1,16,1] 5,-7,0,0,0,0,0,0,0,0,0,0,0,0,0,0"],
            "f32[3,2] 10,-14,15,-21,-5,7",
        ),
        good(
            "packed_linear format=f32 outputs=3 element=f32 activations=8",
            &["f32[2,3,4]", "f32[1,4,16,1]"],
            "f32[2,3,3]",
        ),
        good(
            "packed_linear format=bf16 outputs=30 element=bf16 activations=8",
            &["bf16[4]", "bf16[2,2,16,2]"],
            "bf16[30]",
        ),
        good(
            "packed_linear format=f16 outputs=3 element=f32 activations=8",
            &["f16[2,5]", "f16[1,5,16,1]"],
            "f32[2,3]",
        ),
        bad("packed_linear format=q4 outputs=3 element=f32 activations=8", &["f32[2,4]"], "takes 2 operands"),
        bad(
            "packed_linear format=f32 outputs=3 element=f32 activations=8",
            &["f32[2,4]", "f32[1,5,16,1]"],
            "the packed weight",
        ),
        bad(
            "packed_linear format=f32 outputs=3 element=f16 activations=8",
            &["f32[2,4]", "f32[1,4,16,1]"],
            "f32, or that of x",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x, packed] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "float", ElementType::is_float)?;
        let inputs = axis(Self::NAME, x.rank().saturating_sub(1), x)?;
        let expected = self.format.packed(self.outputs, inputs);
        agree(Self::NAME, "the packed weight must have x's last extent", x, packed, *packed == expected)?;
        let known = [ElementType::F32, x.element].contains(&self.element);
        attribute(Self::NAME, "element", self.element, "f32, or that of x", known)?;
        let mut ty = x.with_element(self.element);
        ty.shape[x.rank() - 1] = self.outputs;
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let (x, packed) = (operands[0], operands[1]);
        let inputs = x.ty.shape[x.ty.rank() - 1];
        let weight = unpacked(self.format, packed, self.outputs, inputs);
        match self.format.groups() {
            None => product(x, &weight, None, ty),
            Some(_) => product(&rounded(x, self.activations), &weight, None, ty),
        }
    }
}
