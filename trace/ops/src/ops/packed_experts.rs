use super::grouped_linear::rounded;
use super::linear::product;
use super::pack::unpacked;
use super::prelude::*;
use crate::format::{ActivationBits, PANEL, WeightFormat};

operation! {
    /// Computes `x · weightᵀ` over the last axis, where each row of x is multiplied with one matrix
    /// of a packed stack `[experts, outputs, inputs]`. The matrices are the experts in a mixture of
    /// experts (Shazeer et al., "Outrageously Large Neural Networks", 2017).
    ///
    /// Without indices, x is `[…, experts, inputs]` with one row for each expert, and the result is
    /// `[…, experts, outputs]`. With the indices `[…, C]` of C experts, x is `[…, C, inputs]` or
    /// `[…, inputs]`, and the result is `[…, C, outputs]`. If an index is out of range, the
    /// operation uses the nearest valid index. The operation rounds activations in the same way as
    /// [`PackedLinear`](super::PackedLinear). Each matrix consists of whole panels of 16 rows. The
    /// stack is packed like a single matrix `[experts · outputs, inputs]`.
    ///
    /// StableHLO has no operation for a packed stack; a kernel computes this operation.
    PackedExperts = "packed_experts" {
        /// The storage format of the matrices in the stack.
        format: WeightFormat,
        /// The number of matrices in the stack.
        experts: usize,
        /// The number of rows of each matrix.
        outputs: usize,
        /// The element type of the result: f32, or the element type of x.
        element: ElementType,
        /// The number of bits of the integers to which the operation rounds activations, if the
        /// weight is quantized.
        activations: ActivationBits,
    }
}

impl PackedExperts {
    /// The largest share of the stack that a result reads: each row reads another matrix, until all are read.
    pub fn share(&self, ty: &TensorType) -> f64 {
        let rows = ty.count() / self.outputs.max(1);
        rows.min(self.experts) as f64 / self.experts as f64
    }
}

impl Operation for PackedExperts {
    const CLASS: OpClass = OpClass::Matmul;
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "packed_experts format=f32 experts=2 outputs=16 element=f32 activations=8",
            &[
                "f32[2,1] 3,5",
                "f32[2,1,16,1] 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,-1,-2,-3,-4,-5,-6,-7,-8,-9,-10,-11,-12,-13,-14,-15,-16",
            ],
            "f32[2,16] 3,6,9,12,15,18,21,24,27,30,33,36,39,42,45,48,-5,-10,-15,-20,-25,-30,-35,-40,-45,-50,-55,-60,-65,-70,-75,-80",
        ),
        good(
            "packed_experts format=bf16 experts=3 outputs=32 element=bf16 activations=8",
            &["bf16[2,5,3,6]", "bf16[6,3,16,2]"],
            "bf16[2,5,3,32]",
        ),
        good(
            "packed_experts format=f16 experts=3 outputs=16 element=f32 activations=8",
            &["f16[2,5]", "f16[3,5,16,1]", "i32[2,2] 2,0,7,-1"],
            "f32[2,2,16]",
        ),
        good(
            "packed_experts format=f32 experts=3 outputs=16 element=f32 activations=8",
            &["f32[2,2,5]", "f32[3,5,16,1]", "i32[2,2] 2,0,1,1"],
            "f32[2,2,16]",
        ),
        bad(
            "packed_experts format=q4 experts=3 outputs=16 element=f32 activations=8",
            &["f32[2,4]"],
            "takes 2 or 3 operands",
        ),
        bad(
            "packed_experts format=f32 experts=3 outputs=8 element=f32 activations=8",
            &["f32[3,4]", "f32[3,4,16,1]"],
            "outputs is 8, expected whole panels of 16",
        ),
        bad(
            "packed_experts format=f32 experts=3 outputs=16 element=f32 activations=8",
            &["f32[2,4]", "f32[3,4,16,1]"],
            "x must have a row for each expert",
        ),
        bad(
            "packed_experts format=f32 experts=3 outputs=16 element=f32 activations=8",
            &["f32[2,3,4]", "f32[3,4,16,1]", "i32[2,2]"],
            "x must have a row for each index, or for all indices of one place",
        ),
        bad(
            "packed_experts format=f32 experts=3 outputs=16 element=f32 activations=8",
            &["f32[3,4]", "f32[3,5,16,1]"],
            "the packed weight",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let (x, packed, indices) = match *operands {
            [x, packed] => (x, packed, None),
            [x, packed, indices] => (x, packed, Some(indices)),
            _ => {
                let (expected, found) = ("2 or 3".into(), operands.len());
                return Err(InferError::Arity { op: Self::NAME, expected, found });
            }
        };
        element(Self::NAME, x, "float", ElementType::is_float)?;
        let inputs = axis(Self::NAME, x.rank().saturating_sub(1), x)?;
        let whole = self.outputs.is_multiple_of(PANEL) && self.outputs > 0 && self.experts > 0;
        attribute(Self::NAME, "outputs", self.outputs, "whole panels of 16", whole)?;
        let expected = self.format.packed(self.experts * self.outputs, inputs);
        agree(Self::NAME, "the packed weight must have x's last extent", x, packed, *packed == expected)?;
        let known = [ElementType::F32, x.element].contains(&self.element);
        attribute(Self::NAME, "element", self.element, "f32, or that of x", known)?;
        let places = &x.shape[..x.rank() - 1];
        let rows = match indices {
            None => {
                let each = places.last() == Some(&self.experts);
                agree(Self::NAME, "x must have a row for each expert", x, packed, each)?;
                places
            }
            Some(indices) => {
                element(Self::NAME, indices, "i32", |element| element == ElementType::I32)?;
                let of_place = indices.shape.split_last().is_some_and(|(_, before)| before == places);
                let what = "x must have a row for each index, or for all indices of one place";
                agree(Self::NAME, what, x, indices, indices.shape == places || of_place)?;
                &indices.shape[..]
            }
        };
        Ok(TensorType::new(self.element, [rows, &[self.outputs]].concat()))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let (x, packed) = (operands[0], operands[1]);
        let inputs = x.ty.shape[x.ty.rank() - 1];
        let weight = unpacked(self.format, packed, self.experts * self.outputs, inputs);
        let x = match self.format.groups() {
            None => x.clone(),
            Some(_) => rounded(x, self.activations),
        };
        let rows = ty.count() / self.outputs;
        // The number of result rows that are computed from the same row of x.
        let shared = rows / x.ty.shape[..x.ty.rank() - 1].iter().product::<usize>().max(1);
        let matrix = TensorType::new(weight.ty.element, [self.outputs, inputs]);
        let sums = (0..rows).flat_map(|row| {
            let expert = match operands.get(2) {
                Some(indices) => (indices.data[row].max(0.0) as usize).min(self.experts - 1),
                None => row % self.experts,
            };
            let part =
                |value: &Value, index: usize, count: usize| value.data[index * count..][..count].to_vec();
            let x = Value::new(TensorType::new(x.ty.element, [inputs]), part(&x, row / shared, inputs));
            let weight = Value::new(matrix.clone(), part(&weight, expert, self.outputs * inputs));
            product(&x, &weight, None, &TensorType::new(ty.element, [self.outputs])).data
        });
        Value::new(ty.clone(), sums.collect::<Vec<_>>())
    }

    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        let contracted = operands[0].ty.shape.last().copied().unwrap_or(0);
        let matrices = operands[1].ty.bytes() as f64 * self.share(ty);
        let bytes = matrices + operands[0].ty.bytes() as f64 + ty.bytes() as f64;
        OpWork { bytes, ..OpWork::matmul(operands, ty, contracted) }
    }
}
