use super::prelude::*;

operation! {
    /// Repeats the operand along new axes, or along axes with extent 1. Axis i of the operand becomes axis
    /// `axes[i]` of the result. If an axis of the operand has the extent 1, the operation repeats the element
    /// along this axis. The StableHLO operation is `broadcast_in_dim` (constraints C4 and C5: the axes are
    /// unique, and each extent is 1 or equal to the extent of the result).
    BroadcastInDim = "broadcast_in_dim" {
        /// The shape of the broadcast result.
        shape: Vec<usize>,
        /// For each axis of the operand, the index of the corresponding axis of the result.
        axes: Vec<usize>,
    }
}

impl Operation for BroadcastInDim {
    const CLASS: OpClass = OpClass::Movement;
    const KEEPS_AXES: bool = true;
    const IS_VIEW: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("broadcast_in_dim shape=[2,3] axes=[1]", &["i32[3] 1,2,3"], "i32[2,3] 1,2,3,1,2,3"),
        good("broadcast_in_dim shape=[2,3] axes=[0]", &["i32[2] 1,2"], "i32[2,3] 1,1,1,2,2,2"),
        good("broadcast_in_dim shape=[2,3] axes=[0,1]", &["f32[2,1]"], "f32[2,3]"),
        good("broadcast_in_dim shape=[2,3] axes=[]", &["bf16[]"], "bf16[2,3]"),
        good("broadcast_in_dim shape=[3,2] axes=[1,0]", &["f32[2,3]"], "f32[3,2]"),
        good("broadcast_in_dim shape=[2,3,3] axes=[1,2,0]", &["i32[3,3,2]"], "i32[2,3,3]"),
        good("broadcast_in_dim shape=[3,3,3] axes=[1,2,0]", &["f32[3,3,3]"], "f32[3,3,3]"),
        bad("broadcast_in_dim shape=[2,3] axes=[0]", &["f32[3]"], "`f32[3]` and `f32[2,3]`"),
        bad(
            "broadcast_in_dim shape=[2,3] axes=[0,0]",
            &["f32[2,2]"],
            "axes is [0, 0], expected distinct axes",
        ),
        bad("broadcast_in_dim shape=[2,3] axes=[2]", &["f32[3]"], "axis 2 does not exist in `f32[2,3]`"),
        bad("broadcast_in_dim shape=[2,3] axes=[]", &["f32[3]"], "expected one axis for each of `f32[3]`"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        let ty = TensorType::new(x.element, self.shape.clone());
        let expected = format_args!("one axis for each of `{x}`");
        attribute(Self::NAME, "axes", &self.axes, expected, self.axes.len() == x.rank())?;
        let distinct = self.axes.iter().enumerate().all(|(i, a)| !self.axes[..i].contains(a));
        attribute(Self::NAME, "axes", &self.axes, "distinct axes", distinct)?;
        for (&a, &extent) in self.axes.iter().zip(&x.shape) {
            let to = axis(Self::NAME, a, &ty)?;
            agree(Self::NAME, "an extent must be 1 or stay", x, &ty, extent == 1 || extent == to)?;
        }
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let x = operands[0];
        let mut source = vec![0; x.ty.rank()];
        Value::from_fn(ty.clone(), |index| {
            for (i, &a) in self.axes.iter().enumerate() {
                source[i] = if x.ty.shape[i] == 1 { 0 } else { index[a] };
            }
            x.at(&source)
        })
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        let stretched = self.axes.iter().zip(&operands[0].shape);
        let axes = stretched.map(|(&axis, &extent)| (extent == ty.shape[axis]).then_some(axis)).collect();
        IterationSpace::of_result(vec![axes], ty)
    }

    fn bakes(&self) -> bool {
        true
    }

    fn label(&self) -> String {
        "broadcast".into()
    }
}

impl Primitive for BroadcastInDim {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let (x, axes) = (operands[0], mlir_list(&self.axes));
        let (from, to) = (x.ty.mlir(), ty.mlir());
        format!("stablehlo.broadcast_in_dim {}, dims = {axes} : ({from}) -> {to}", x.name)
    }
}
