use super::prelude::*;

operation! {
    /// Selects each element from the second operand if the corresponding element of the first
    /// operand is true, and otherwise from the third operand. The StableHLO operation is `select`.
    Select = "select" {}
}

impl Operation for Select {
    const CLASS: OpClass = OpClass::Elementwise;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("select", &["i1[3] 1,0,1", "f32[3] 1,2,3", "f32[3] 4,5,6"], "f32[3] 1,5,3"),
        good("select", &["i1[2]", "i32[2]", "i32[2]"], "i32[2]"),
        good("select", &["i1[2,3]", "bf16[2,3]", "bf16[2,3]"], "bf16[2,3]"),
        bad("select", &["i32[3]", "f32[3]", "f32[3]"], "needs elements of type i1"),
        bad("select", &["i1[3]", "f32[3]", "f32[4]"], "both choices must have one type"),
        bad("select", &["i1[4]", "f32[3]", "f32[3]"], "predicate and choices must have one shape"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [p, a, b] = arity(Self::NAME, operands)?;
        element(Self::NAME, p, "i1", |e| e == ElementType::I1)?;
        agree(Self::NAME, "both choices must have one type", a, b, a == b)?;
        agree(Self::NAME, "predicate and choices must have one shape", p, a, p.shape == a.shape)?;
        Ok(a.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [p, a, b] = operands else { unreachable!("inferred") };
        let pick = |i: usize| if p.data[i] != 0.0 { a.data[i] } else { b.data[i] };
        Value::new(ty.clone(), (0..ty.count()).map(pick))
    }
}

impl Primitive for Select {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [p, a, b] = operands else { unreachable!("inferred") };
        format!("stablehlo.select {}, {}, {} : {}, {}", p.name, a.name, b.name, p.ty.mlir(), ty.mlir())
    }
}
