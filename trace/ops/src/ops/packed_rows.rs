use super::pack::unpacked;
use super::prelude::*;
use crate::format::WeightFormat;

operation! {
    /// Selects rows of a packed matrix: `result[i…, :] = weight[indices[i…], :]`. If an index is
    /// out of range, the operation uses the nearest valid index.
    ///
    /// StableHLO has no operation for a packed matrix; a kernel computes this operation.
    PackedRows = "packed_rows" {
        /// The storage format of the packed matrix.
        format: WeightFormat,
        /// The number of rows of the packed matrix.
        outputs: usize,
        /// The number of columns of the packed matrix.
        inputs: usize,
        /// The element type of the selected rows.
        element: ElementType,
    }
}

impl Operation for PackedRows {
    const CLASS: OpClass = OpClass::Movement;
    const PICKS_ROWS: bool = true;
    const BOUND: Bound = Bound::Ulps(1.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "packed_rows format=f32 outputs=2 inputs=1 element=f32",
            &["f32[1,1,16,1] 5,-7,0,0,0,0,0,0,0,0,0,0,0,0,0,0", "i32[2,2] 1,0,9,-3"],
            "f32[2,2,1] -7,5,-7,5",
        ),
        good(
            "packed_rows format=bf16 outputs=20 inputs=3 element=f32",
            &["bf16[2,2,16,2]", "i32[] 18"],
            "f32[3]",
        ),
        bad("packed_rows format=q4 outputs=3 inputs=4 element=f32", &["i8[1,1,576]"], "takes 2 operands"),
        bad(
            "packed_rows format=q4 outputs=3 inputs=4 element=f32",
            &["i8[1,1,576]", "f32[2]"],
            "needs elements of type i32",
        ),
        bad(
            "packed_rows format=f32 outputs=3 inputs=4 element=f32",
            &["f32[1,5,16,1]", "i32[2]"],
            "the packed",
        ),
        bad("packed_rows format=q4 outputs=3 inputs=4 element=i32", &["i8[1,1,576]", "i32[2]"], "a float"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [packed, indices] = arity(Self::NAME, operands)?;
        element(Self::NAME, indices, "i32", |e| e == ElementType::I32)?;
        let expected = self.format.packed(self.outputs, self.inputs);
        agree(
            Self::NAME,
            "the packed weight must have these extents",
            packed,
            &expected,
            *packed == expected,
        )?;
        attribute(Self::NAME, "outputs", self.outputs, "at least one row", self.outputs > 0)?;
        attribute(Self::NAME, "element", self.element, "a float", self.element.is_float())?;
        Ok(TensorType::new(self.element, [&indices.shape[..], &[self.inputs]].concat()))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [packed, indices] = operands else { unreachable!("inferred") };
        let matrix = unpacked(self.format, packed, self.outputs, self.inputs);
        let last = self.outputs - 1;
        let rows = indices.data.iter().map(|&i| (i.max(0.0) as usize).min(last));
        Value::new(
            ty.clone(),
            rows.flat_map(|r| matrix.data[r * self.inputs..][..self.inputs].iter().copied()),
        )
    }
}
