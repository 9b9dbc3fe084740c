use super::prelude::*;
use super::quantize::{check_parts, ungrouped};
use crate::format::WeightFormat;

operation! {
    /// Selects rows of a matrix that is quantized in groups: `result[i…, :] = weight[indices[i…], :]`. The
    /// operands are the integers and the scales of the matrix, the counts of the matrix if its format has
    /// minima, and the indices. If an index is out of range, the operation uses the nearest valid index.
    GroupedRows = "grouped_rows" {
        /// The storage format of the quantized matrix.
        format: WeightFormat,
        /// The number of columns of the quantized matrix.
        inputs: usize,
        /// The element type of the selected rows.
        element: ElementType,
    }
}

impl Operation for GroupedRows {
    const CLASS: OpClass = OpClass::Movement;
    const PICKS_ROWS: bool = true;
    const BOUND: Bound = Bound::Ulps(1.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "grouped_rows format=q4 inputs=17 element=f32",
            &["i8[1,1,16] 35,-13,0,0,0,0,0,0,0,0,0,0,0,0,0,0", "f16[1,1] 0.5", "i32[2] 0,9"],
            "f32[2,17] 1.5,1.5,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,1.5,1.5,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1",
        ),
        good(
            "grouped_rows format=q8 inputs=70 element=f32",
            &["i8[5,3,32]", "f16[5,3]", "i32[] 3"],
            "f32[70]",
        ),
        good(
            "grouped_rows format=q4 inputs=64 element=bf16",
            &["i8[5,2,16]", "f16[5,2]", "i32[2,3] 3,4,0,-7,2,5"],
            "bf16[2,3,64]",
        ),
        good(
            "grouped_rows format=q4_k inputs=257 element=f32",
            &["i8[5,16,16]", "f16[5,2,2]", "i8[5,16,2]", "i32[3]"],
            "f32[3,257]",
        ),
        good(
            "grouped_rows format=mxfp4 inputs=40 element=bf16",
            &["i8[5,2,16]", "bf16[5,2]", "i32[3]"],
            "bf16[3,40]",
        ),
        good(
            "grouped_rows format=q6_k inputs=257 element=f32",
            &["i8[5,16,24]", "f16[5,2,1]", "i8[5,16,2]", "i32[3]"],
            "f32[3,257]",
        ),
        good(
            "grouped_rows format=q5_0 inputs=70 element=f32",
            &["i8[5,3,20]", "f16[5,3]", "i32[3]"],
            "f32[3,70]",
        ),
        good(
            "grouped_rows format=q2_k inputs=257 element=f32",
            &["i8[5,16,8]", "f16[5,2,2]", "i8[5,16,4]", "i32[3]"],
            "f32[3,257]",
        ),
        good(
            "grouped_rows format=iq4_xs inputs=257 element=f32",
            &["i8[5,16,16]", "f16[5,2,1]", "i8[5,16,1]", "i32[3]"],
            "f32[3,257]",
        ),
        good(
            "grouped_rows format=q5_1 inputs=70 element=f32",
            &["i8[5,3,20]", "f16[5,3,2]", "i32[3]"],
            "f32[3,70]",
        ),
        bad("grouped_rows format=q8 inputs=70 element=f32", &["i8[5,3,32]", "f16[5,3]"], "takes 3 operands"),
        bad(
            "grouped_rows format=q8 inputs=99 element=f32",
            &["i8[5,3,32]", "f16[5,3]", "i32[2]"],
            "the integers",
        ),
        bad(
            "grouped_rows format=q8 inputs=70 element=f32",
            &["i8[5,3,32]", "f16[4,3]", "i32[2]"],
            "the scales",
        ),
        bad(
            "grouped_rows format=q8 inputs=70 element=f32",
            &["i8[5,3,32]", "f16[5,3]", "f32[2]"],
            "needs elements of type i32",
        ),
        bad("grouped_rows format=q8 inputs=70 element=i8", &["i8[5,3,32]", "f16[5,3]", "i32[2]"], "a float"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let (indices, parts) = operands.split_last().ok_or(InferError::Arity {
            op: Self::NAME,
            expected: "at least 3".into(),
            found: 0,
        })?;
        let outputs = check_parts(Self::NAME, self.format, parts, self.inputs, 1)?;
        element(Self::NAME, indices, "i32", |e| e == ElementType::I32)?;
        attribute(Self::NAME, "the rows of the matrix", outputs, "at least one", outputs > 0)?;
        attribute(Self::NAME, "element", self.element, "a float", self.element.is_float())?;
        Ok(TensorType::new(self.element, [&indices.shape[..], &[self.inputs]].concat()))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [parts @ .., indices] = operands else { unreachable!("inferred") };
        let matrix = ungrouped(self.format, parts, self.inputs);
        let last = parts[0].ty.shape[0] - 1;
        let rows = indices.data.iter().map(|&i| (i.max(0.0) as usize).min(last));
        Value::new(
            ty.clone(),
            rows.flat_map(|r| matrix.data[r * self.inputs..][..self.inputs].iter().copied()),
        )
    }
}
