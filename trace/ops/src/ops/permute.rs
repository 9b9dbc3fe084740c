use super::prelude::*;

operation! {
    /// Reorders the axes: axis i of the result is axis `order[i]` of the operand. The StableHLO operation is
    /// `transpose`.
    Permute = "permute" {
        /// For each axis of the result, the index of the corresponding axis of the operand.
        order: Vec<usize>,
    }
}

impl Operation for Permute {
    const CLASS: OpClass = OpClass::Movement;
    const KEEPS_AXES: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("permute order=[1,0]", &["i32[2,3] 1,2,3,4,5,6"], "i32[3,2] 1,4,2,5,3,6"),
        good("permute order=[0,2,1]", &["f32[2,3,4]"], "f32[2,4,3]"),
        good("permute order=[2,0,1]", &["bf16[2,3,4]"], "bf16[4,2,3]"),
        good("permute order=[]", &["f32[]"], "f32[]"),
        bad("permute order=[0]", &["f32[2,3]"], "order is [0], expected a permutation of 0..2"),
        bad("permute order=[0,0]", &["f32[2,3]"], "expected a permutation of 0..2"),
        bad("permute order=[0,2]", &["f32[2,3]"], "expected a permutation of 0..2"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        let permutes = sorted.into_iter().eq(0..x.rank());
        attribute(
            Self::NAME,
            "order",
            &self.order,
            format_args!("a permutation of 0..{}", x.rank()),
            permutes,
        )?;
        Ok(TensorType::new(x.element, self.order.iter().map(|&a| x.shape[a]).collect::<Vec<_>>()))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let mut source = vec![0; self.order.len()];
        Value::from_fn(ty.clone(), |index| {
            self.order.iter().zip(index).for_each(|(&axis, &i)| source[axis] = i);
            operands[0].at(&source)
        })
    }

    fn iteration_space(&self, _: &[&TensorType], ty: &TensorType) -> IterationSpace {
        let mut axes = vec![None; ty.rank()];
        self.order.iter().enumerate().for_each(|(at, &axis)| axes[axis] = Some(at));
        IterationSpace::of_result(vec![axes], ty)
    }

    fn bakes(&self) -> bool {
        true
    }
}

impl Primitive for Permute {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let x = operands[0];
        format!(
            "stablehlo.transpose {}, dims = {} : ({}) -> {}",
            x.name,
            mlir_list(&self.order),
            x.ty.mlir(),
            ty.mlir()
        )
    }
}
