use super::prelude::*;

crate::words! {
    pub enum BinaryKind {
        /// a + b
        Add = "add",
        /// a − b
        Subtract = "subtract",
        /// a · b
        Multiply = "multiply",
        /// The quotient a / b; the quotient of integers is truncated towards zero.
        Divide = "divide",
        /// The function returns the larger operand, or NaN if either operand is NaN.
        Maximum = "maximum",
        /// The function returns the smaller operand, or NaN if either operand is NaN.
        Minimum = "minimum",
        /// The power aᵇ, as IEEE 754-2019 defines `pow`.
        Power = "power",
        /// Logical conjunction (`i1`).
        And = "and",
        /// Logical disjunction (`i1`).
        Or = "or",
    }
}

operation! {
    /// Computes an elementwise function of two operands that have the same type. StableHLO has an
    /// operation with the same name for each function.
    Binary = "binary" {
        /// The function that the operation applies to each pair of elements.
        kind: BinaryKind,
    }
}

impl Operation for Binary {
    const CLASS: OpClass = OpClass::Elementwise;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Bound::Ulps(4.0);
    const EXAMPLES: &'static [Example] = &[
        good("binary kind=add", &["f32[3] 1,-0,inf", "f32[3] 2,-0,-inf"], "f32[3] 3,-0,nan"),
        good("binary kind=add", &["i32[2] 2147483647,1", "i32[2] 1,1"], "i32[2] -2147483648,2"),
        good("binary kind=add", &["bf16[2,3]", "bf16[2,3]"], "bf16[2,3]"),
        good("binary kind=subtract", &["f32[2,3]", "f32[2,3]"], "f32[2,3]"),
        good("binary kind=subtract", &["f16[5]", "f16[5]"], "f16[5]"),
        good("binary kind=multiply", &["f32[2] 3,-2", "f32[2] 5,0"], "f32[2] 15,-0"),
        good("binary kind=multiply", &["i8[2] 100,3", "i8[2] 2,3"], "i8[2] -56,9"),
        good("binary kind=divide", &["f32[3] 1,1,0", "f32[3] 4,0,0"], "f32[3] 0.25,inf,nan"),
        good("binary kind=divide", &["i32[2] 7,-7", "i32[2] 2,2"], "i32[2] 3,-3"),
        good("binary kind=maximum", &["f32[3] 1,nan,-0", "f32[3] 2,1,-1"], "f32[3] 2,nan,-0"),
        good("binary kind=maximum", &["i32[3]", "i32[3]"], "i32[3]"),
        good("binary kind=minimum", &["f32[3] 1,nan,4", "f32[3] 2,1,3"], "f32[3] 1,nan,3"),
        good("binary kind=power", &["f32[3] 2,3,9", "f32[3] 10,2,0.5"], "f32[3] 1024,9,3"),
        good(
            "binary kind=power",
            &["f32[8] -2,-2,-2,0,0,-0,-0,-0", "f32[8] 2,-3,0.5,0,-2,3,-1,0.5"],
            "f32[8] 4,-0.125,nan,1,inf,-0,-inf,0",
        ),
        good(
            "binary kind=power",
            &["f32[9] 1,-1,nan,inf,-inf,-inf,-1,0.5,2", "f32[9] nan,inf,0,0,3,0.5,nan,inf,-inf"],
            "f32[9] 1,1,1,1,-inf,inf,nan,0,0",
        ),
        good("binary kind=power", &["bf16[4] 3,-3,1.5,100", "bf16[4] 3,3,-2,0.5"], "bf16[4]"),
        good("binary kind=power", &["f16[4] 3,-3,1.5,100", "f16[4] 3,3,-2,0.5"], "f16[4]"),
        good("binary kind=and", &["i1[4] 0,0,1,1", "i1[4] 0,1,0,1"], "i1[4] 0,0,0,1"),
        good("binary kind=or", &["i1[4] 0,0,1,1", "i1[4] 0,1,0,1"], "i1[4] 0,1,1,1"),
        bad(
            "binary kind=add",
            &["f32[2]", "f32[3]"],
            "`add`: operands must have one type, found `f32[2]` and `f32[3]`",
        ),
        bad("binary kind=add", &["f32[2]", "bf16[2]"], "operands must have one type"),
        bad("binary kind=and", &["i32[2]", "i32[2]"], "`and` needs elements of type i1"),
        bad("binary kind=power", &["i32[2]", "i32[2]"], "`power` needs elements of type float"),
        bad("binary kind=add", &["f32[2]"], "takes 2 operands, found 1"),
    ];

    fn bound(&self) -> Bound {
        match self.kind {
            BinaryKind::Power => Self::BOUND,
            _ => Bound::Exact,
        }
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [a, b] = arity(Self::NAME, operands)?;
        let name = self.kind.word();
        match self.kind {
            BinaryKind::And | BinaryKind::Or => element(name, a, "i1", |e| e == ElementType::I1)?,
            BinaryKind::Power => element(name, a, "float", ElementType::is_float)?,
            _ => element(name, a, "float or integer", |e| e != ElementType::I1)?,
        }
        agree(name, "operands must have one type", a, b, a == b)?;
        Ok(a.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let float = ty.element.is_float();
        let wrap = |x| ty.element.wrap(x);
        let f = |a: f64, b: f64| {
            let (m, n) = (a as i64, b as i64);
            match self.kind {
                BinaryKind::Add if !float => wrap(m + n),
                BinaryKind::Subtract if !float => wrap(m - n),
                BinaryKind::Multiply if !float => wrap(m * n),
                // StableHLO leaves division by zero to the implementation.
                BinaryKind::Divide if !float => wrap(m.checked_div(n).unwrap_or(-1)),
                BinaryKind::Add => a + b,
                BinaryKind::Subtract => a - b,
                BinaryKind::Multiply => a * b,
                BinaryKind::Divide => a / b,
                BinaryKind::Maximum | BinaryKind::Minimum if a.is_nan() || b.is_nan() => f64::NAN,
                BinaryKind::Maximum => larger(a, b),
                BinaryKind::Minimum => -larger(-a, -b),
                BinaryKind::Power => libm::pow(a, b),
                BinaryKind::And => f64::from(a != 0.0 && b != 0.0),
                BinaryKind::Or => f64::from(a != 0.0 || b != 0.0),
            }
        };
        Value::new(ty.clone(), operands[0].data.iter().zip(&operands[1].data).map(|(&a, &b)| f(a, b)))
    }

    fn bakes(&self) -> bool {
        matches!(self.kind, BinaryKind::Add | BinaryKind::Multiply)
    }

    fn label(&self) -> String {
        self.kind.word().into()
    }
}

impl Primitive for Binary {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [a, b] = operands else { unreachable!("inferred") };
        format!("stablehlo.{} {}, {} : {}", self.kind.word(), a.name, b.name, ty.mlir())
    }
}

/// Returns the larger of two numbers, as the operation `maximum` of IEEE 754-2019 does: +0 is larger than −0.
pub(super) fn larger(a: f64, b: f64) -> f64 {
    if a.total_cmp(&b).is_ge() { a } else { b }
}
