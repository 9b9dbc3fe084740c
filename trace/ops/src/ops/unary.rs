use super::prelude::*;

crate::words! {
    pub enum UnaryKind {
        /// −x
        Negate = "negate",
        /// |x|
        Abs = "abs",
        /// eˣ
        Exponential = "exponential",
        /// ln x
        Log = "log",
        /// tanh x
        Tanh = "tanh",
        /// The logistic function 1 / (1 + e⁻ˣ).
        Logistic = "logistic",
        /// √x
        Sqrt = "sqrt",
        /// 1 / √x
        Rsqrt = "rsqrt",
        /// The function returns the largest whole number that is at most x.
        Floor = "floor",
        /// The function returns the nearest whole number, or the even number if x is halfway
        /// between two whole numbers.
        Round = "round_nearest_even",
        /// Logical negation (`i1`).
        Not = "not",
    }
}

operation! {
    /// Computes an elementwise function of one operand. StableHLO has an operation with the same
    /// name for each function.
    Unary = "unary" {
        /// The function that the operation applies to each element.
        kind: UnaryKind,
    }
}

impl Operation for Unary {
    const CLASS: OpClass = OpClass::Elementwise;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Bound::Ulps(4.0);
    const EXAMPLES: &'static [Example] = &[
        good("unary kind=negate", &["f32[4] 0,-1,2.5,inf"], "f32[4] -0,1,-2.5,-inf"),
        good("unary kind=negate", &["i32[2] 3,-2147483648"], "i32[2] -3,-2147483648"),
        good("unary kind=abs", &["f32[3] -2,3,-inf"], "f32[3] 2,3,inf"),
        good("unary kind=exponential", &["f32[3] 0,1,-inf"], "f32[3] 1,2.71828174591064453125,0"),
        good("unary kind=log", &["f32[3] 1,0,-1"], "f32[3] 0,-inf,nan"),
        good("unary kind=tanh", &["f32[5] 0,20,-20,0.5,-0.5"], "f32[5]"),
        good("unary kind=tanh", &["f32[2,3]"], "f32[2,3]"),
        good("unary kind=logistic", &["f32[7]"], "f32[7]"),
        good("unary kind=sqrt", &["f32[3] 4,0,2"], "f32[3] 2,0,1.41421353816986083984375"),
        good("unary kind=rsqrt", &["f32[2] 4,0.25"], "f32[2] 0.5,2"),
        good("unary kind=floor", &["f32[6] 1.5,-1.5,-0.25,3,-inf,-0"], "f32[6] 1,-2,-1,3,-inf,-0"),
        good(
            "unary kind=round_nearest_even",
            &["f32[7] 0.5,1.5,-2.5,-0.25,2.75,inf,-3.5"],
            "f32[7] 0,2,-2,-0,3,inf,-4",
        ),
        good("unary kind=exponential", &["bf16[5]"], "bf16[5]"),
        good("unary kind=negate", &["f16[5]"], "f16[5]"),
        good("unary kind=not", &["i1[2] 1,0"], "i1[2] 0,1"),
        bad("unary kind=not", &["f32[2]"], "needs elements of type i1"),
        bad("unary kind=tanh", &["i32[2]"], "needs elements of type float, found `i32[2]`"),
        bad("unary kind=tanh", &["f32[2]", "f32[2]"], "takes 1 operands, found 2"),
    ];

    fn bound(&self) -> Bound {
        match self.kind {
            UnaryKind::Exponential
            | UnaryKind::Log
            | UnaryKind::Tanh
            | UnaryKind::Logistic
            | UnaryKind::Rsqrt => Self::BOUND,
            _ => Bound::Exact,
        }
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        let name = self.kind.word();
        match self.kind {
            UnaryKind::Not => element(name, x, "i1", |e| e == ElementType::I1)?,
            UnaryKind::Negate | UnaryKind::Abs => {
                element(name, x, "float or integer", |e| e != ElementType::I1)?;
            }
            _ => element(name, x, "float", ElementType::is_float)?,
        }
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        // In two's complement, the negation and the magnitude of the smallest integer are the
        // smallest integer itself.
        let wrap = |x: f64| if ty.element.is_integer() { ty.element.wrap(x as i64) } else { x };
        let f = |x: f64| match self.kind {
            UnaryKind::Negate => wrap(-x),
            UnaryKind::Abs => wrap(x.abs()),
            UnaryKind::Exponential => libm::exp(x),
            UnaryKind::Log => libm::log(x),
            UnaryKind::Tanh => libm::tanh(x),
            UnaryKind::Logistic => 1.0 / (1.0 + libm::exp(-x)),
            UnaryKind::Sqrt => libm::sqrt(x),
            UnaryKind::Rsqrt => 1.0 / libm::sqrt(x),
            UnaryKind::Floor => x.floor(),
            UnaryKind::Round => x.round_ties_even(),
            UnaryKind::Not => f64::from(x == 0.0),
        };
        Value::new(ty.clone(), operands[0].data.iter().map(|&x| f(x)))
    }

    fn label(&self) -> String {
        self.kind.word().into()
    }
}

impl Primitive for Unary {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        format!("stablehlo.{} {} : {}", self.kind.word(), operands[0].name, ty.mlir())
    }
}
