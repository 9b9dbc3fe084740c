use super::prelude::*;

operation! {
    /// Rounds each element to a number that a narrower float type can represent, and keeps the
    /// element type. A compiler may not remove this rounding. The StableHLO operation for this
    /// rounding is `reduce_precision`.
    ReducePrecision = "reduce_precision" {
        /// The narrower float type, to which the operation rounds the elements.
        to: ElementType,
    }
}

impl Operation for ReducePrecision {
    const CLASS: OpClass = OpClass::Elementwise;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("reduce_precision to=bf16", &["f32[3] 1,1.001953125,1.005859375"], "f32[3] 1,1,1.0078125"),
        good("reduce_precision to=f16", &["f32[2] 1.0004,3"], "f32[2] 1,3"),
        good("reduce_precision to=bf16", &["f32[2,3]"], "f32[2,3]"),
        bad("reduce_precision to=i8", &["f32[2]"], "expected f16 or bf16"),
        bad("reduce_precision to=bf16", &["i32[2]"], "needs elements of type f32"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "f32", |e| e == ElementType::F32)?;
        let narrow = matches!(self.to, ElementType::F16 | ElementType::Bf16);
        attribute(Self::NAME, "`to`", self.to, "f16 or bf16", narrow)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        Value::new(ty.clone(), operands[0].data.iter().map(|&x| self.to.round(x)))
    }
}

impl Primitive for ReducePrecision {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let format = if self.to == ElementType::F16 { "e5m10" } else { "e8m7" };
        let x = operands[0].name;
        format!("stablehlo.reduce_precision {x}, format = {format} : {}", ty.mlir())
    }
}
