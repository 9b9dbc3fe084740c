use super::prelude::*;

operation! {
    /// Selects rows of a table: `result[i…, …] = table[indices[i…], …]`. If an index is out of
    /// range, the operation uses the nearest valid index. The StableHLO operation is `gather`, with
    /// axis 0 as the only collapsed slice axis.
    Gather = "gather" {}
}

impl Operation for Gather {
    const CLASS: OpClass = OpClass::Movement;
    const PICKS_ROWS: bool = true;
    const WEIGHT_USE: Option<WeightUse> = Some(WeightUse::Rows);
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("gather", &["i32[3,2] 1,2,3,4,5,6", "i32[2] 2,0"], "i32[2,2] 5,6,1,2"),
        good("gather", &["f32[5,4]", "i32[2,3] 0,4,1,3,2,2"], "f32[2,3,4]"),
        good("gather", &["f32[5,4]", "i32[] 3"], "f32[4]"),
        good("gather", &["f32[5,4]", "i32[2,1,3] 0,4,1,3,2,2"], "f32[2,1,3,4]"),
        good("gather", &["bf16[5]", "i32[2] 1,4"], "bf16[2]"),
        good("gather", &["i32[3,1] 7,8,9", "i32[2] 9,-1"], "i32[2,1] 9,7"),
        good("gather", &["i32[3,1] 7,8,9", "i32[] -1000000"], "i32[1] 7"),
        good("gather", &["i32[3] 7,8,9", "i32[] 3"], "i32[] 9"),
        bad("gather", &["f32[5,4]", "f32[2]"], "needs elements of type i32"),
        bad("gather", &["f32[]", "i32[2]"], "axis 0 does not exist in `f32[]`"),
        bad("gather", &["f32[0,4]", "i32[2]"], "expected at least one row"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [table, indices] = arity(Self::NAME, operands)?;
        element(Self::NAME, indices, "i32", |e| e == ElementType::I32)?;
        let rows = axis(Self::NAME, 0, table)?;
        attribute(Self::NAME, "the table's first extent", rows, "at least one row", rows > 0)?;
        Ok(TensorType::new(table.element, [&indices.shape[..], &table.shape[1..]].concat()))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [table, indices] = operands else { unreachable!("inferred") };
        let row: usize = table.ty.shape[1..].iter().product();
        let last = table.ty.shape[0] - 1;
        let rows = indices.data.iter().map(|&i| (i.max(0.0) as usize).min(last));
        Value::new(ty.clone(), rows.flat_map(|r| table.data[r * row..][..row].iter().copied()))
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        // If the table is partitioned by rows, the result is a sum over devices. A device that does
        // not store the row of an index adds 0.
        let (rank, lead) = (ty.rank(), operands[1].rank());
        let table = std::iter::once(Some(rank)).chain((lead..rank).map(Some)).collect();
        IterationSpace { operands: vec![table, same(lead)], result: same(rank), count: rank + 1 }
    }
}

impl Primitive for Gather {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [table, indices] = operands else { unreachable!("inferred") };
        let batch = indices.ty.rank();
        let offsets: Vec<usize> = (batch..ty.rank()).collect();
        let row = table.ty.shape[1..].iter().copied();
        let sizes: Vec<String> = std::iter::once(1).chain(row).map(|n| n.to_string()).collect();
        format!(
            "\"stablehlo.gather\"({}, {}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {}, \
             collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {batch}>, \
             slice_sizes = array<i64: {}>, indices_are_sorted = false}}> : ({}, {}) -> {}",
            table.name,
            indices.name,
            mlir_list(&offsets),
            sizes.join(", "),
            table.ty.mlir(),
            indices.ty.mlir(),
            ty.mlir()
        )
    }
}
