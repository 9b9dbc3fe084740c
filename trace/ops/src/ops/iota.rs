use super::prelude::*;

operation! {
    /// Creates a tensor in which each element is its index along one axis. The StableHLO operation is `iota`.
    Iota = "iota" {
        /// The result's type: an integer or float type of rank 1 or more.
        ty: TensorType,
        /// The axis whose indices become the elements of the result.
        axis: usize,
    }
}

impl Operation for Iota {
    const CLASS: OpClass = OpClass::Constant;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("iota ty=i32[2,3] axis=1", &[], "i32[2,3] 0,1,2,0,1,2"),
        good("iota ty=i32[2,3] axis=0", &[], "i32[2,3] 0,0,0,1,1,1"),
        good("iota ty=f32[4] axis=0", &[], "f32[4] 0,1,2,3"),
        good("iota ty=bf16[4] axis=0", &[], "bf16[4] 0,1,2,3"),
        good("iota ty=f16[3,1] axis=0", &[], "f16[3,1] 0,1,2"),
        good("iota ty=i8[3] axis=0", &[], "i8[3] 0,1,2"),
        bad("iota ty=i32[2,3] axis=2", &[], "axis 2 does not exist in `i32[2,3]`"),
        bad("iota ty=i1[2] axis=0", &[], "needs elements of type integer or float"),
        bad("iota ty=i32[] axis=0", &[], "axis 0 does not exist in `i32[]`"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [] = arity(Self::NAME, operands)?;
        element(Self::NAME, &self.ty, "integer or float", |e| e != ElementType::I1)?;
        axis(Self::NAME, self.axis, &self.ty)?;
        Ok(self.ty.clone())
    }

    fn eval(&self, _: &[&Value], ty: &TensorType) -> Value {
        Value::from_fn(ty.clone(), |index| index[self.axis] as f64)
    }
}

impl Primitive for Iota {
    fn spell(&self, _: &mut dyn Statements, _: &[Operand<'_>], ty: &TensorType) -> String {
        format!("stablehlo.iota dim = {} : {}", self.axis, ty.mlir())
    }
}
