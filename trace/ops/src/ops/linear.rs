use super::prelude::*;

operation! {
    /// Computes `x · weightᵀ + bias` over the last axis: x `[…, I]`, weight `[O, I]`, bias `[O]`
    /// (optional) → `[…, O]`. The operation rounds the sum of the products and the bias only once,
    /// as in `torch.nn.functional.linear`.
    ///
    /// The operation is composite, because its StableHLO code depends on the storage format of the weight.
    Linear = "linear" {}
}

impl Operation for Linear {
    const CLASS: OpClass = OpClass::Matmul;
    const WEIGHT_USE: Option<WeightUse> = Some(WeightUse::Matmul);
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        good("linear", &["f32[1,2] 1,2", "f32[3,2] 1,0,0,1,1,1"], "f32[1,3] 1,2,3"),
        good("linear", &["f32[1,2] 1,2", "f32[3,2] 1,0,0,1,1,1", "f32[3] 10,20,30"], "f32[1,3] 11,22,33"),
        good("linear", &["f32[2,3,4]", "f32[5,4]"], "f32[2,3,5]"),
        good("linear", &["f32[4]", "f32[5,4]"], "f32[5]"),
        good("linear", &["bf16[2,3,4]", "bf16[5,4]", "bf16[5]"], "bf16[2,3,5]"),
        good("linear", &["f16[3,4]", "f16[5,4]"], "f16[3,5]"),
        bad("linear", &["f32[2,3]", "f32[5,4]"], "the last axes must have one extent"),
        bad("linear", &["f32[2,4]", "bf16[5,4]"], "x and weight must have one element type"),
        bad("linear", &["f32[2,4]", "f32[5,4]", "f32[4]"], "the bias must have the weight's first extent"),
        bad("linear", &["f32[2,4]", "f32[4]"], "the weight must be a matrix"),
        bad("linear", &["f32[2,4]"], "takes 2 or 3 operands, found 1"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let (x, w, bias) = match *operands {
            [x, w] => (x, w, None),
            [x, w, bias] => (x, w, Some(bias)),
            _ => {
                return Err(InferError::Arity {
                    op: Self::NAME,
                    expected: "2 or 3".into(),
                    found: operands.len(),
                });
            }
        };
        element(Self::NAME, x, "float", ElementType::is_float)?;
        agree(Self::NAME, "x and weight must have one element type", x, w, x.element == w.element)?;
        agree(Self::NAME, "the weight must be a matrix", x, w, w.rank() == 2)?;
        let meets = x.shape.last() == w.shape.last();
        agree(Self::NAME, "the last axes must have one extent", x, w, meets)?;
        if let Some(bias) = bias {
            let expected = TensorType::new(x.element, [w.shape[0]]);
            let what = "the bias must have the weight's first extent";
            agree(Self::NAME, what, bias, w, *bias == expected)?;
        }
        let mut ty = x.clone();
        ty.shape[x.rank() - 1] = w.shape[0];
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        product(operands[0], operands[1], operands.get(2).copied(), ty)
    }
}

/// All rows of x with all rows of w, plus the bias, each sum rounded once.
pub(super) fn product(x: &Value, w: &Value, bias: Option<&Value>, ty: &TensorType) -> Value {
    let [outputs, inputs] = w.ty.shape[..] else { unreachable!("inferred") };
    let rows = ty.count().checked_div(outputs).unwrap_or(0);
    let mut data = Vec::with_capacity(ty.count());
    for row in 0..rows {
        let x = &x.data[row * inputs..][..inputs];
        for output in 0..outputs {
            let w = &w.data[output * inputs..][..inputs];
            let bias = bias.map(|bias| bias.data[output]);
            data.push(exact_sum(x.iter().zip(w).map(|(a, b)| a * b).chain(bias)));
        }
    }
    Value::new(ty.clone(), data)
}
