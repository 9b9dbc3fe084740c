use super::prelude::*;

operation! {
    /// Selects a contiguous range of indices along one axis. The StableHLO operation is `slice`.
    Narrow = "narrow" {
        /// The axis along which the operation selects the range.
        axis: usize,
        /// The first index of the selected range.
        start: usize,
        /// The number of indices in the selected range.
        length: usize,
    }
}

impl Operation for Narrow {
    const CLASS: OpClass = OpClass::Movement;
    const IS_VIEW: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("narrow axis=1 start=1 length=2", &["i32[2,3] 1,2,3,4,5,6"], "i32[2,2] 2,3,5,6"),
        good("narrow axis=1 start=2 length=4", &["f32[2,8]"], "f32[2,4]"),
        good("narrow axis=0 start=3 length=1", &["bf16[4]"], "bf16[1]"),
        bad("narrow axis=2 start=0 length=1", &["f32[2,3]"], "axis 2 does not exist in `f32[2,3]`"),
        bad("narrow axis=1 start=2 length=2", &["f32[2,3]"], "range is 2..4, expected within 0..3"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        let extent = axis(Self::NAME, self.axis, x)?;
        let end = self.start.saturating_add(self.length);
        attribute(Self::NAME, "range", self.start..end, format_args!("within 0..{extent}"), end <= extent)?;
        let mut ty = x.clone();
        ty.shape[self.axis] = self.length;
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let mut source = vec![0; ty.rank()];
        Value::from_fn(ty.clone(), |index| {
            source.copy_from_slice(index);
            source[self.axis] += self.start;
            operands[0].at(&source)
        })
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        if operands[0].shape == ty.shape {
            IterationSpace::aligned(operands, ty)
        } else {
            IterationSpace::aligned_but(self.axis, operands, ty)
        }
    }
}

impl Primitive for Narrow {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let x = operands[0];
        let range = |(axis, &extent): (usize, &usize)| {
            if axis == self.axis {
                format!("{}:{}", self.start, self.start + self.length)
            } else {
                format!("0:{extent}")
            }
        };
        let ranges: Vec<String> = x.ty.shape.iter().enumerate().map(range).collect();
        format!("stablehlo.slice {} [{}] : ({}) -> {}", x.name, ranges.join(", "), x.ty.mlir(), ty.mlir())
    }
}
