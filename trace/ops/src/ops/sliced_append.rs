use super::append::Append;
use super::prelude::*;

operation! {
    /// Appends to the cache of a single sequence like [`Append`], but not in a ring buffer; start
    /// and count are `i32[]`. The program computes the length of the updated slice at run time, and
    /// can therefore update the cache in place.
    ///
    /// StableHLO cannot express slices of variable length, because all extents in StableHLO are
    /// static. The crate `lower` emits the operation as code in IREE's own dialects.
    SlicedAppend = "sliced_append" {
        /// The axis with this index contains the slots in the cache, and the tokens in the new vectors.
        axis: usize,
    }
}

impl SlicedAppend {
    pub fn append(&self) -> Append {
        Append { axis: self.axis, ring: false }
    }
}

impl Operation for SlicedAppend {
    const CLASS: OpClass = OpClass::State;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Append::BOUND;
    const EXAMPLES: &'static [Example] = &[
        good(
            "sliced_append axis=0",
            &["i32[4] 1,2,3,4", "i32[3] 7,8,9", "i32[] 3", "i32[] 2"],
            "i32[4] 1,2,3,7",
        ),
        good(
            "sliced_append axis=2",
            &["bf16[1,3,9,4]", "bf16[1,3,5,4]", "i32[] 2", "i32[] 4"],
            "bf16[1,3,9,4]",
        ),
        bad(
            "sliced_append axis=1",
            &["f32[2,4]", "f32[2,1]", "i32[2]", "i32[2]"],
            "start and count must be one number",
        ),
        bad(
            "sliced_append axis=0",
            &["f32[4]", "f32[5]", "i32[]", "i32[]"],
            "the number of tokens is 5, expected at most 4",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let ty = self.append().infer(operands)?;
        let start = operands[2];
        agree(Self::NAME, "start and count must be one number", start, &ty, !Append::by_row(start))?;
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        self.append().eval(operands, ty)
    }
}
