use super::prelude::*;

crate::words! {
    /// The relation that a comparison tests for two elements.
    pub enum Direction {
        /// a = b
        Eq = "EQ",
        /// a ≠ b
        Ne = "NE",
        /// a < b
        Lt = "LT",
        /// a ≤ b
        Le = "LE",
        /// a > b
        Gt = "GT",
        /// a ≥ b
        Ge = "GE",
    }
}

operation! {
    /// An elementwise comparison. The StableHLO operation is `compare`.
    Compare = "compare" {
        /// The relation that the operation tests for each pair of elements.
        direction: Direction,
    }
}

impl Operation for Compare {
    const CLASS: OpClass = OpClass::Elementwise;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("compare direction=LT", &["i32[3] 1,2,3", "i32[3] 2,2,2"], "i1[3] 1,0,0"),
        good("compare direction=LE", &["i32[3] 1,2,3", "i32[3] 2,2,2"], "i1[3] 1,1,0"),
        good("compare direction=GT", &["i8[3] 1,2,-3", "i8[3] 2,1,2"], "i1[3] 0,1,0"),
        good("compare direction=GE", &["f32[3] 1,nan,0", "f32[3] 0,1,-0"], "i1[3] 1,0,1"),
        good("compare direction=EQ", &["f32[2] nan,0", "f32[2] nan,-0"], "i1[2] 0,1"),
        good("compare direction=NE", &["f32[2] nan,1", "f32[2] nan,1"], "i1[2] 1,0"),
        good("compare direction=EQ", &["bf16[2,3]", "bf16[2,3]"], "i1[2,3]"),
        bad("compare direction=LT", &["i32[3]", "f32[3]"], "operands must have one type"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [a, b] = arity(Self::NAME, operands)?;
        agree(Self::NAME, "operands must have one type", a, b, a == b)?;
        element(Self::NAME, a, "float or integer", |e| e != ElementType::I1)?;
        Ok(a.with_element(ElementType::I1))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let f = |a: f64, b: f64| match self.direction {
            Direction::Eq => a == b,
            Direction::Ne => a != b,
            Direction::Lt => a < b,
            Direction::Le => a <= b,
            Direction::Gt => a > b,
            Direction::Ge => a >= b,
        };
        Value::new(ty.clone(), operands[0].data.iter().zip(&operands[1].data).map(|(&a, &b)| f(a, b).into()))
    }

    fn label(&self) -> String {
        format!("compare {}", self.direction.word())
    }
}

impl Primitive for Compare {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [a, b] = operands else { unreachable!("inferred") };
        let kind = if a.ty.element.is_float() { "FLOAT" } else { "SIGNED" };
        format!(
            "stablehlo.compare {}, {}, {}, {kind} : ({t}, {t}) -> {}",
            self.direction.word(),
            a.name,
            b.name,
            ty.mlir(),
            t = a.ty.mlir(),
        )
    }
}
