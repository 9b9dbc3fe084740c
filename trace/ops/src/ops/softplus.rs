use super::prelude::*;

operation! {
    /// Computes ln(1 + eˣ) of each element in f32; for elements x above 20, the result is x itself,
    /// as in `torch.nn.functional.softplus`. Source: Dugas et al., "Incorporating Second-Order
    /// Functional Knowledge for Better Option Pricing" (2000).
    ///
    /// The operation is composite, because StableHLO has no softplus.
    Softplus = "softplus" {}
}

/// Above this threshold, ln(1 + e⁻ˣ) is less than half a unit in the last place of x in f32.
const THRESHOLD: f64 = 20.0;

impl Operation for Softplus {
    const CLASS: OpClass = OpClass::Elementwise;
    // The largest error over all f32 numbers is 5.34 units, at −4.152 (measured by
    // tests/oracle/softplus.py).
    const BOUND: Bound = Bound::Ulps(8.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "softplus",
            &["f32[5] 0,-0,inf,-inf,nan"],
            "f32[5] 0.693147182464599609375,0.693147182464599609375,inf,0,nan",
        ),
        good(
            "softplus",
            &["f32[4] 1,-1,3,-5"],
            "f32[4] 1.31326162815093994140625,0.3132616877555847168,3.0485873222351074219,0.0067153484560549259186",
        ),
        // These numbers are on each side of the threshold, or so small that 1 + eˣ rounds to 1.
        good("softplus", &["f32[6] 19.5,20,20.000002,-15,-17,-80"], "f32[6]"),
        good(
            "softplus",
            &["f32[4] 1e-30,-1e-8,1e30,-1e30"],
            "f32[4] 0.693147182464599609375,0.693147182464599609375,1e30,0",
        ),
        good("softplus", &["f32[2,3]"], "f32[2,3]"),
        // The tests generate numbers between −4 and 4, for which the converter's rounding errors
        // are largest.
        good("softplus", &["f32[32,64]"], "f32[32,64]"),
        good("softplus", &["f16[4] 0.25,-1.5,60000,-9"], "f16[4]"),
        good("softplus", &["bf16[5] 0.25,-1.5,3e38,-0,-60"], "bf16[5]"),
        bad("softplus", &["i32[2]"], "`softplus` needs elements of type float"),
        bad("softplus", &["f32[2]", "f32[2]"], "takes 1 operands, found 2"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "float", ElementType::is_float)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let softplus = |&x: &f64| if x > THRESHOLD { x } else { libm::log1p(libm::exp(x)) };
        Value::new(ty.clone(), operands[0].data.iter().map(softplus))
    }

    fn work(&self, _: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        OpWork::fused(25.0 * ty.count() as f64)
    }
}
