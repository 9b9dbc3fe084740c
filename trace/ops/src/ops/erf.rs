use super::prelude::*;

operation! {
    /// The error function of each element, 2/√π · ∫₀ˣ e^(−t²) dt, computed in f32.
    ///
    /// The operation is composite, because StableHLO has no error function.
    Erf = "erf" {}
}

impl Operation for Erf {
    const CLASS: OpClass = OpClass::Elementwise;
    const BOUND: Bound = Bound::Ulps(4.0);
    const EXAMPLES: &'static [Example] = &[
        good("erf", &["f32[5] 0,-0,inf,-inf,nan"], "f32[5] 0,-0,1,-1,nan"),
        good(
            "erf",
            &["f32[4] 0.5,-1,2,-3.5"],
            "f32[4] 0.520499885082244873046875,-0.842700779438018798828125,\
             0.99532228708267211914062500,-0.999999284744262695312500",
        ),
        // These numbers are on each side of the points at which the converter changes its formula,
        // and at which the result becomes 1.
        good("erf", &["f32[6] 0.99999994,1,1.0000001,3.83,3.84,4.1"], "f32[6]"),
        good("erf", &["f32[4] 1e-30,-1e-8,1e30,-5"], "f32[4]"),
        good("erf", &["f32[2,3]"], "f32[2,3]"),
        good("erf", &["f16[4] 0.25,-1.5,60000,-0"], "f16[4]"),
        good("erf", &["bf16[5] 0.25,-1.5,3e38,-0,0.99"], "bf16[5]"),
        bad("erf", &["i32[2]"], "`erf` needs elements of type float"),
        bad("erf", &["f32[2]", "f32[2]"], "takes 1 operands, found 2"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "float", ElementType::is_float)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        Value::new(ty.clone(), operands[0].data.iter().map(|&x| libm::erf(x)))
    }

    fn work(&self, _: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        OpWork::fused(40.0 * ty.count() as f64)
    }
}
