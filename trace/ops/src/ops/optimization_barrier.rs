use super::prelude::*;

operation! {
    /// Returns the operand without any change. A compiler may not optimize across this operation.
    /// The StableHLO operation is `optimization_barrier`.
    OptimizationBarrier = "optimization_barrier" {}
}

impl Operation for OptimizationBarrier {
    const CLASS: OpClass = OpClass::Elementwise;
    const IS_MAP: bool = false;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("optimization_barrier", &["f32[3] 1,nan,-0"], "f32[3] 1,nan,-0"),
        good("optimization_barrier", &["bf16[2,3]"], "bf16[2,3]"),
        good("optimization_barrier", &["i32[]"], "i32[]"),
        bad("optimization_barrier", &["f32[2]", "f32[2]"], "takes 1 operands, found 2"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], _: &TensorType) -> Value {
        operands[0].clone()
    }

    fn work(&self, _: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        // The compiler does not fuse operations before the barrier with operations after the
        // barrier.
        OpWork::copy(ty)
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        IterationSpace::aligned(operands, ty)
    }
}

impl Primitive for OptimizationBarrier {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        format!("stablehlo.optimization_barrier {} : {}", operands[0].name, ty.mlir())
    }
}
