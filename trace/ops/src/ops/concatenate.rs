use super::prelude::*;

operation! {
    /// Joins the operands one after the other along one axis. The StableHLO operation is `concatenate`.
    Concatenate = "concatenate" {
        /// The axis along which the operation joins the operands.
        axis: usize,
    }
}

impl Operation for Concatenate {
    const CLASS: OpClass = OpClass::Movement;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("concatenate axis=1", &["i32[2,1] 1,2", "i32[2,2] 3,4,5,6"], "i32[2,3] 1,3,4,2,5,6"),
        good("concatenate axis=0", &["f32[2,3]", "f32[1,3]", "f32[4,3]"], "f32[7,3]"),
        good("concatenate axis=0", &["bf16[2]"], "bf16[2]"),
        bad("concatenate axis=0", &[], "takes 1 or more operands, found 0"),
        bad("concatenate axis=0", &["f32[2,3]", "f32[2,4]"], "`f32[2,3]` and `f32[2,4]`"),
        bad("concatenate axis=0", &["f32[2]", "i32[2]"], "must agree"),
        bad("concatenate axis=1", &["f32[2]"], "axis 1 does not exist in `f32[2]`"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [first, rest @ ..] = operands else {
            return Err(InferError::Arity { op: Self::NAME, expected: "1 or more".into(), found: 0 });
        };
        axis(Self::NAME, self.axis, first)?;
        let mut ty = (*first).clone();
        for &x in rest {
            let mut like = x.clone();
            if let Some(extent) = like.shape.get_mut(self.axis) {
                *extent = first.shape[self.axis];
            }
            agree(Self::NAME, "types must agree except along the axis", first, x, like == **first)?;
            ty.shape[self.axis] = ty.shape[self.axis].saturating_add(x.shape[self.axis]);
        }
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let mut source = vec![0; ty.rank()];
        Value::from_fn(ty.clone(), |index| {
            source.copy_from_slice(index);
            let mut part = 0;
            while source[self.axis] >= operands[part].ty.shape[self.axis] {
                source[self.axis] -= operands[part].ty.shape[self.axis];
                part += 1;
            }
            operands[part].at(&source)
        })
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        match operands {
            [_] => IterationSpace::aligned(operands, ty),
            _ => IterationSpace::aligned_but(self.axis, operands, ty),
        }
    }

    fn bakes(&self) -> bool {
        true
    }
}

impl Primitive for Concatenate {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let names: Vec<&str> = operands.iter().map(|x| x.name).collect();
        let types: Vec<String> = operands.iter().map(|x| x.ty.mlir()).collect();
        format!(
            "stablehlo.concatenate {}, dim = {} : ({}) -> {}",
            names.join(", "),
            self.axis,
            types.join(", "),
            ty.mlir()
        )
    }
}
