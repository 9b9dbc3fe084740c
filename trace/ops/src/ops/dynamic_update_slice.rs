use super::dynamic_slice::{clamped, scalar_start, starts};
use super::prelude::*;

operation! {
    /// Replaces a range of the first operand along one axis by the second operand. The third operand is the
    /// start index of the range (`i32[]`). The program computes the start index at run time, and clamps the
    /// start index to make the range fit. The StableHLO operation is `dynamic_update_slice`.
    DynamicUpdateSlice = "dynamic_update_slice" {
        /// The axis along which the operation replaces the range.
        axis: usize,
    }
}

impl Operation for DynamicUpdateSlice {
    const CLASS: OpClass = OpClass::State;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("dynamic_update_slice axis=0", &["i32[4] 1,2,3,4", "i32[2] 8,9", "i32[] 1"], "i32[4] 1,8,9,4"),
        good("dynamic_update_slice axis=0", &["i32[4] 1,2,3,4", "i32[2] 8,9", "i32[] 3"], "i32[4] 1,2,8,9"),
        good("dynamic_update_slice axis=1", &["bf16[2,5,3]", "bf16[2,2,3]", "i32[] 2"], "bf16[2,5,3]"),
        bad("dynamic_update_slice axis=0", &["f32[4]", "f32[5]", "i32[]"], "expected at most 4"),
        bad(
            "dynamic_update_slice axis=0",
            &["f32[4,2]", "f32[1,3]", "i32[]"],
            "must agree except along the axis",
        ),
        bad(
            "dynamic_update_slice axis=0",
            &["f32[4]", "i32[1]", "i32[]"],
            "must agree except along the axis",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x, update, start] = arity(Self::NAME, operands)?;
        let extent = axis(Self::NAME, self.axis, x)?;
        let length = axis(Self::NAME, self.axis, update)?;
        let mut like = update.clone();
        like.shape[self.axis] = extent;
        agree(Self::NAME, "types must agree except along the axis", x, update, like == *x)?;
        attribute(
            Self::NAME,
            "the update's length",
            length,
            format_args!("at most {extent}"),
            length <= extent,
        )?;
        scalar_start(Self::NAME, start)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [x, update, start] = operands else { unreachable!("inferred") };
        let length = update.ty.shape[self.axis];
        let start = clamped(start, ty.shape[self.axis], length);
        let mut source = vec![0; ty.rank()];
        Value::from_fn(ty.clone(), |index| match index[self.axis].checked_sub(start) {
            Some(i) if i < length => {
                source.copy_from_slice(index);
                source[self.axis] = i;
                update.at(&source)
            }
            _ => x.at(index),
        })
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        let mut space = IterationSpace::aligned_but(self.axis, operands, ty);
        // A single row belongs to one device, which writes the row. Several rows can belong to two
        // devices.
        if operands[1].shape[self.axis] == 1 {
            space.operands[0] = same(ty.rank());
        }
        space
    }
}

impl Primitive for DynamicUpdateSlice {
    fn spell(&self, s: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [x, update, start] = operands else { unreachable!("inferred") };
        let (starts, types) = starts(s, self.axis, x.ty.rank(), start.name);
        format!(
            "stablehlo.dynamic_update_slice {}, {}, {starts} : ({}, {}, {types}) -> {}",
            x.name,
            update.name,
            x.ty.mlir(),
            update.ty.mlir(),
            ty.mlir()
        )
    }
}
