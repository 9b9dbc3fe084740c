use super::prelude::*;

operation! {
    /// Returns the same elements in row-major order, with another shape. The StableHLO operation is
    /// `reshape`.
    Reshape = "reshape" {
        /// The shape of the reshaped result.
        shape: Vec<usize>,
    }
}

impl Operation for Reshape {
    const CLASS: OpClass = OpClass::Movement;
    const IS_VIEW: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("reshape shape=[3,2]", &["i32[2,3] 1,2,3,4,5,6"], "i32[3,2] 1,2,3,4,5,6"),
        good("reshape shape=[]", &["f32[1,1]"], "f32[]"),
        good("reshape shape=[2,1,3]", &["bf16[2,3]"], "bf16[2,1,3]"),
        bad("reshape shape=[4]", &["f32[2,3]"], "shape is [4], expected 6 elements"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        let ty = TensorType::new(x.element, self.shape.clone());
        let expected = format!("{} elements, as in `{x}`", x.count());
        attribute(Self::NAME, "shape", &self.shape, expected, ty.count() == x.count())?;
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        Value { ty: ty.clone(), data: operands[0].data.clone() }
    }

    fn bakes(&self) -> bool {
        true
    }
}

impl Primitive for Reshape {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let x = operands[0];
        format!("stablehlo.reshape {} : ({}) -> {}", x.name, x.ty.mlir(), ty.mlir())
    }
}
