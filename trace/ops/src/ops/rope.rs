use super::prelude::*;

crate::words! {
    /// The pairs of elements that a rotary embedding rotates together.
    pub enum RopeLayout {
        /// The embedding rotates element i together with element i + R/2 (HF `modeling_llama.py`,
        /// `rotate_half`).
        HalfSplit = "half_split",
        /// The embedding rotates element 2i together with element 2i + 1 (Su et al., "RoFormer", §3.4.2).
        Interleaved = "interleaved",
    }
}

operation! {
    /// Applies rotary position embedding. The operands are x `[…, P, …, E]` and the tables of cosines and
    /// sines `[P, R/2]`. If each sequence has its own positions, x is `[B, …, P, …, E]` and the tables are
    /// `[B, P, R/2]`. The result has the same type as x. The operation rotates the first R of the E features:
    /// each pair (a, b) becomes (a·cos − b·sin, b·cos + a·sin). The other E − R features do not change. The
    /// operation rounds each product and each sum to the element type, as HF's `apply_rotary_pos_emb` does.
    Rope = "rope" {
        /// The axis of x along which the token positions vary.
        axis: usize,
        /// The pairs of elements that the operation rotates together.
        layout: RopeLayout,
    }
}

impl Rope {
    /// Returns the indices of the two elements in the pair with the index `i`, if there are `half` pairs.
    fn pair(&self, i: usize, half: usize) -> (usize, usize) {
        match self.layout {
            RopeLayout::HalfSplit => (i, i + half),
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
        }
    }
}

impl Operation for Rope {
    const CLASS: OpClass = OpClass::Elementwise;
    const IS_MAP: bool = false;
    const BOUND: Bound = Bound::UlpsOfLargest(2.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "rope axis=0 layout=half_split",
            &["f32[1,4] 1,2,3,4", "f32[1,2] 0,1", "f32[1,2] 1,0"],
            "f32[1,4] -3,2,1,4",
        ),
        good(
            "rope axis=0 layout=interleaved",
            &["f32[1,4] 1,2,3,4", "f32[1,2] 0,1", "f32[1,2] 1,0"],
            "f32[1,4] -2,1,3,4",
        ),
        good("rope axis=1 layout=half_split", &["f32[2,3,5,6]", "f32[3,3]", "f32[3,3]"], "f32[2,3,5,6]"),
        good("rope axis=0 layout=half_split", &["f32[3,8]", "f32[3,2]", "f32[3,2]"], "f32[3,8]"),
        good("rope axis=1 layout=interleaved", &["f32[2,3,5,6]", "f32[3,3]", "f32[3,3]"], "f32[2,3,5,6]"),
        good("rope axis=0 layout=interleaved", &["f32[3,8]", "f32[3,2]", "f32[3,2]"], "f32[3,8]"),
        good("rope axis=2 layout=half_split", &["f32[2,5,3,6]", "f32[2,3,2]", "f32[2,3,2]"], "f32[2,5,3,6]"),
        good("rope axis=1 layout=interleaved", &["f32[2,3,5,4]", "f32[2,3,2]", "f32[2,3,2]"], "f32[2,3,5,4]"),
        good("rope axis=1 layout=half_split", &["bf16[2,3,4]", "bf16[3,2]", "bf16[3,2]"], "bf16[2,3,4]"),
        bad(
            "rope axis=1 layout=half_split",
            &["f32[2,3,4]", "f32[2,2]", "f32[2,2]"],
            "the tables must have a row for each position, found `f32[2,3,4]` and `f32[2,2]`",
        ),
        bad(
            "rope axis=1 layout=half_split",
            &["f32[3,4]", "f32[4,2]", "f32[4,2]"],
            "the last axis holds features",
        ),
        bad(
            "rope axis=0 layout=half_split",
            &["f32[3,4]", "f32[3,3]", "f32[3,3]"],
            "more columns than pairs",
        ),
        bad("rope axis=0 layout=half_split", &["f32[3,4]", "f32[3,2]", "f32[3,1]"], "must have one type"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x, cos, sin] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "float", ElementType::is_float)?;
        agree(Self::NAME, "the two tables must have one type", cos, sin, cos == sin)?;
        let positions = axis(Self::NAME, self.axis, x)?;
        attribute(
            Self::NAME,
            "axis",
            self.axis,
            "another: the last axis holds features",
            self.axis + 1 < x.rank(),
        )?;
        agree(Self::NAME, "x and tables must have one element type", x, cos, x.element == cos.element)?;
        let rows = match cos.shape[..] {
            [rows, _] => rows == positions,
            [sequences, rows, _] => self.axis > 0 && sequences == x.shape[0] && rows == positions,
            _ => false,
        };
        agree(Self::NAME, "the tables must have a row for each position", x, cos, rows)?;
        let fits = 2 * cos.shape[cos.rank() - 1] <= x.shape[x.rank() - 1];
        agree(Self::NAME, "the tables have more columns than pairs of features", x, cos, fits)?;
        Ok(x.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [x, cos, sin] = operands else { unreachable!("inferred") };
        let (features, half) = (ty.shape[ty.rank() - 1], cos.ty.shape[cos.ty.rank() - 1]);
        let after: usize = ty.shape[self.axis + 1..ty.rank() - 1].iter().product();
        let positions = ty.shape[self.axis];
        let rows_of_a_sequence: usize = ty.shape[1..ty.rank() - 1].iter().product();
        let round = |x| ty.element.round(x);
        let mut data = x.data.clone();
        for (row, out) in data.chunks_mut(features.max(1)).enumerate() {
            let mut position = row / after % positions;
            if cos.ty.rank() == 3 {
                position += row / rows_of_a_sequence * positions;
            }
            for i in 0..half {
                let (first, second) = self.pair(i, half);
                let (a, b) = (out[first], out[second]);
                let (c, s) = (cos.data[position * half + i], sin.data[position * half + i]);
                out[first] = round(round(a * c) + round(-b * s));
                out[second] = round(round(b * c) + round(a * s));
            }
        }
        Value { ty: ty.clone(), data }
    }

    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        OpWork { dispatches: 0.2, ..OpWork::kernel(operands, ty, 3.0 * ty.count() as f64) }
    }
}
