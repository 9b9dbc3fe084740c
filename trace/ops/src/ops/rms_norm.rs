use super::prelude::*;
use crate::Real;

crate::words! {
    /// How an RMS norm multiplies its result by the norm's weight.
    pub enum WeightStyle {
        /// The norm rounds the normalized value to the element type, and then multiplies the value
        /// by the weight (HF `modeling_llama.py`, `LlamaRMSNorm.forward`).
        Scale = "scale",
        /// The norm multiplies the normalized value by the weight in f32, and then rounds the
        /// product (HF `modeling_olmo2.py`, `Olmo2RMSNorm.forward`).
        Wide = "wide",
        /// The norm multiplies the normalized value by `1 + weight` in f32, and then rounds the
        /// product (HF `modeling_gemma3.py`, `Gemma3RMSNorm.forward`).
        OnePlus = "one_plus",
    }
}

operation! {
    /// Computes `x / √(mean(x²) + epsilon) · weight` over the last axis, in f32: x `[…, D]`, weight
    /// `[D]`. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    RmsNorm = "rms_norm" {
        /// The small number that the norm adds to the mean of the squares.
        epsilon: Real,
        /// How the norm multiplies by its weight, and when the norm rounds the result.
        style: WeightStyle,
    }
}

impl Operation for RmsNorm {
    const CLASS: OpClass = OpClass::Reduction;
    const BOUND: Bound = Bound::Ulps(8.0);
    const EXAMPLES: &'static [Example] = &[
        good("rms_norm epsilon=0.0 style=scale", &["f32[2] 3,-3", "f32[2] 2,4"], "f32[2] 2,-4"),
        good("rms_norm epsilon=0.0 style=wide", &["f32[2] 3,-3", "f32[2] 2,4"], "f32[2] 2,-4"),
        good("rms_norm epsilon=0.0 style=one_plus", &["f32[2] 3,-3", "f32[2] 2,4"], "f32[2] 3,-5"),
        good("rms_norm epsilon=1e-5 style=scale", &["f32[2,3,8]", "f32[8]"], "f32[2,3,8]"),
        good("rms_norm epsilon=1e-6 style=one_plus", &["f32[2,3,8]", "f32[8]"], "f32[2,3,8]"),
        good("rms_norm epsilon=1e-5 style=scale", &["bf16[3,8]", "bf16[8]"], "bf16[3,8]"),
        good("rms_norm epsilon=1e-6 style=wide", &["bf16[3,8]", "bf16[8]"], "bf16[3,8]"),
        good("rms_norm epsilon=1e-6 style=one_plus", &["bf16[3,8]", "bf16[8]"], "bf16[3,8]"),
        good("rms_norm epsilon=1e-5 style=scale", &["f32[2] 0,0", "f32[2] 1,1"], "f32[2] 0,0"),
        bad(
            "rms_norm epsilon=1e-5 style=scale",
            &["f32[3,8]", "f32[3]"],
            "the weight must match the last axis",
        ),
        bad("rms_norm epsilon=1e-5 style=scale", &["i32[8]", "i32[8]"], "needs elements of type float"),
        bad(
            "rms_norm epsilon=-1.0 style=scale",
            &["f32[8]", "f32[8]"],
            "epsilon is -1.0, expected a finite number ≥ 0",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x, w] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "float", ElementType::is_float)?;
        let valid = self.epsilon.0.is_finite() && self.epsilon.0 >= 0.0;
        attribute(Self::NAME, "epsilon", self.epsilon.0, "a finite number ≥ 0", valid)?;
        let matches = w.element == x.element && w.rank() == 1 && x.shape.last() == w.shape.last();
        agree(Self::NAME, "the weight must match the last axis", x, w, matches)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [x, w] = operands else { unreachable!("inferred") };
        let f32 = ElementType::F32;
        let epsilon = f32.round(self.epsilon.0);
        let rows = x.data.chunks(w.data.len().max(1)).flat_map(|row| {
            let squares = exact_sum(row.iter().map(|x| f32.round(x * x)));
            let mean = f32.round(f32.round(squares) / row.len() as f64);
            let factor = f32.round(1.0 / libm::sqrt(f32.round(mean + epsilon)));
            row.iter().zip(&w.data).map(move |(x, w)| {
                let normalised = f32.round(x * factor);
                match self.style {
                    WeightStyle::Scale => ty.element.round(normalised) * w,
                    WeightStyle::Wide => f32.round(normalised * w),
                    WeightStyle::OnePlus => f32.round(normalised * f32.round(1.0 + w)),
                }
            })
        });
        Value::new(ty.clone(), rows)
    }

    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        OpWork::kernel(operands, ty, 4.0 * ty.count() as f64)
    }
}
