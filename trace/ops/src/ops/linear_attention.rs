use super::prelude::*;

operation! {
    /// Computes linear attention, in which a matrix of fixed size replaces the KV cache. For each
    /// token, the operation decays the matrix, adds the token's value under the token's key, and
    /// reads the matrix with the token's query:
    ///
    /// - `Sₜ = exp(gₜ) · Sₜ₋₁ + kₜ · uₜᵀ`
    /// - `oₜ = Sₜᵀ · qₜ`
    ///
    /// Without the delta rule, the update is `uₜ = βₜ · vₜ` (Dao and Gu, "Transformers are SSMs", 2024, §3).
    /// With the delta rule, a token adds only the difference between its value and the matrix's current value
    /// for the key: `uₜ = βₜ · (vₜ − exp(gₜ) · Sₜ₋₁ᵀ · kₜ)` (Yang et al., "Gated Delta Networks", 2024, §3).
    ///
    /// The operands are q and k `[B, S, H, D]`, v `[B, S, H, G, E]`, g and β `[B, S, H, G]`, the matrices
    /// `[B, H, G, D, E]`, `start` and `count`. All floating-point operands are f32. Each of the H key heads
    /// is shared by G value heads. In the result `[B, H, G, D + S, E]`, the first D rows are the new
    /// matrices, and the other S rows are the outputs of the tokens. `start` and `count` are `i32[]`, or
    /// `i32[B]`. Tokens from the index `count` on are padding: these tokens do not change the matrices, and
    /// the outputs for these tokens are 0. If `start` is 0, the sequence begins with a matrix of zeros, and
    /// the operation ignores the content of the operand with the matrices.
    LinearAttention = "linear_attention" {
        /// Whether the operation uses the delta rule, in which a token adds only the difference
        /// between its value and the value that the matrix already has for the key.
        delta: bool,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearAttentionSizes {
    pub sequences: usize,
    pub tokens: usize,
    pub heads: usize,
    pub groups: usize,
    pub keys: usize,
    pub values: usize,
}

impl LinearAttention {
    /// Determines the extents of linear attention's axes from the types of `v` and the matrices.
    pub fn sizes(v: &TensorType, state: &TensorType) -> LinearAttentionSizes {
        LinearAttentionSizes {
            sequences: v.shape[0],
            tokens: v.shape[1],
            heads: v.shape[2],
            groups: v.shape[3],
            keys: state.shape[3],
            values: v.shape[4],
        }
    }
}

impl Operation for LinearAttention {
    const CLASS: OpClass = OpClass::Attention;
    const BOUND: Bound = Bound::UlpsOfLargest(16.0);
    const EXAMPLES: &'static [Example] = &[
        // The example has two tokens with one feature. After the first token, the matrix is 2·3;
        // after the second, it is half of this plus 5·7.
        good(
            "linear_attention delta=false",
            &[
                "f32[1,2,1,1] 1,1",
                "f32[1,2,1,1] 2,5",
                "f32[1,2,1,1,1] 3,7",
                "f32[1,2,1,1] 0,-0.6931472",
                "f32[1,2,1,1] 1,1",
                "f32[1,1,1,1,1] 9",
                "i32[] 0",
                "i32[] 2",
            ],
            "f32[1,1,1,3,1] 38,6,38",
        ),
        // The second token replaces the value for its key by 7, and the third token is padding.
        good(
            "linear_attention delta=true",
            &[
                "f32[1,3,1,1] 1,2,1",
                "f32[1,3,1,1] 1,1,1",
                "f32[1,3,1,1,1] 3,7,8",
                "f32[1,3,1,1] 0,0,1",
                "f32[1,3,1,1] 1,1,1",
                "f32[1,1,1,1,1] 9",
                "i32[] 4",
                "i32[] 2",
            ],
            "f32[1,1,1,4,1] 7,3,14,0",
        ),
        good("linear_attention delta=true", &STEP, "f32[1,2,3,5,20]"),
        good("linear_attention delta=false", &STEP, "f32[1,2,3,5,20]"),
        good("linear_attention delta=true", &ROWS, "f32[3,2,1,9,2]"),
        good("linear_attention delta=false", &ROWS, "f32[3,2,1,9,2]"),
        // These examples have more tokens than a chunk of the converter.
        good("linear_attention delta=true", &CHUNKS, "f32[1,1,1,73,5]"),
        good("linear_attention delta=false", &CHUNKS, "f32[1,1,1,73,5]"),
        bad(
            "linear_attention delta=true",
            &["f32[1,1,1,4]", "f32[1,1,1,4]", "f32[1,1,1,1,2]"],
            "takes q, k, v, g, β, the matrices, start and count operands, found 3",
        ),
        bad(
            "linear_attention delta=true",
            &with("f32[1,1,2,4]", "f32[1,1,2,3]"),
            "q and k must have one type",
        ),
        bad(
            "linear_attention delta=true",
            &with("bf16[1,1,2,4]", "bf16[1,1,2,4]"),
            "needs elements of type f32, found `bf16[1,1,2,4]`",
        ),
        bad(
            "linear_attention delta=true",
            &with("f32[1,1,2,5]", "f32[1,1,2,5]"),
            "the matrices must have an axis for each of B, H, G, D and E",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let &[q, k, v, decay, rate, state, start, count] = operands else {
            let expected = "q, k, v, g, β, the matrices, start and count".into();
            return Err(InferError::Arity { op: Self::NAME, expected, found: operands.len() });
        };
        for ty in &operands[..6] {
            element(Self::NAME, ty, "f32", |e| e == ElementType::F32)?;
        }
        element(Self::NAME, start, "i32", |e| e == ElementType::I32)?;
        agree(Self::NAME, "q and k must have one type", q, k, q == k)?;
        attribute(Self::NAME, "the rank of q", q.rank(), "4", q.rank() == 4)?;
        attribute(Self::NAME, "the rank of v", v.rank(), "5", v.rank() == 5)?;
        let rule = "v must have the sequences, tokens and heads of k";
        agree(Self::NAME, rule, k, v, k.shape[..3] == v.shape[..3])?;
        let rule = "g and β must have the axes of v except its features";
        let fits = |ty: &TensorType| ty.shape == v.shape[..4];
        agree(Self::NAME, rule, v, decay, fits(decay))?;
        agree(Self::NAME, rule, v, rate, fits(rate))?;
        let (b, h, d) = (q.shape[0], q.shape[2], q.shape[3]);
        let matrices = [b, h, v.shape[3], d, v.shape[4]];
        let rule = "the matrices must have an axis for each of B, H, G, D and E";
        agree(Self::NAME, rule, v, state, state.shape == matrices)?;
        let rule = "start must be `i32[]` or have a number for each sequence";
        agree(Self::NAME, rule, start, q, start.rank() == 0 || start.shape == [b])?;
        agree(Self::NAME, "start and count must be alike", start, count, start == count)?;
        Ok(TensorType::new(ElementType::F32, [b, h, v.shape[3], d + q.shape[1], v.shape[4]]))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [q, k, v, decay, rate, state, start, count] = operands else { unreachable!("inferred") };
        let LinearAttentionSizes { tokens, heads, groups, keys, values, .. } = Self::sizes(&v.ty, &state.ty);
        let round = |x: f64| ElementType::F32.round(x);
        let mut data = Vec::with_capacity(ty.count());
        for head in 0..state.ty.shape[..3].iter().product() {
            let (b, h, g) = (head / (heads * groups), head / groups % heads, head % groups);
            let of_sequence = |numbers: &Value| numbers.data[if numbers.ty.rank() == 0 { 0 } else { b }];
            let old = &state.data[head * keys * values..][..keys * values];
            let mut matrix = if of_sequence(start) == 0.0 { vec![0.0; old.len()] } else { old.to_vec() };
            let mut outputs = vec![0.0; tokens * values];
            for (token, output) in
                outputs.chunks_mut(values.max(1)).enumerate().take(count_of(of_sequence(count)))
            {
                let at = (b * tokens + token) * heads + h;
                let (q, k) = (&q.data[at * keys..][..keys], &k.data[at * keys..][..keys]);
                let at = at * groups + g;
                let factor = round(libm::exp(decay.data[at]));
                matrix.iter_mut().for_each(|x| *x = round(*x * factor));
                let read = |matrix: &[f64], by: &[f64], e: usize| {
                    round(exact_sum((0..keys).map(|d| matrix[d * values + e] * by[d])))
                };
                for (e, output) in output.iter_mut().enumerate() {
                    let value = v.data[at * values + e];
                    let value = if self.delta { round(value - read(&matrix, k, e)) } else { value };
                    let written = round(value * rate.data[at]);
                    for (d, key) in k.iter().enumerate() {
                        let x = &mut matrix[d * values + e];
                        *x = round(*x + round(key * written));
                    }
                    *output = read(&matrix, q, e);
                }
            }
            data.extend(matrix);
            data.extend(outputs);
        }
        Value::new(ty.clone(), data)
    }

    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        let LinearAttentionSizes { sequences, tokens, heads, groups, keys, values } =
            Self::sizes(operands[2].ty, operands[5].ty);
        let matrices = (sequences * heads * groups * keys * values) as f64;
        // Each token decays, updates and reads each number of the matrix; with the delta rule, each
        // token reads the matrix twice.
        let steps = if self.delta { 7.0 } else { 5.0 };
        OpWork::kernel(operands, ty, steps * matrices * tokens as f64)
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        let key = vec![Some(0), None, Some(1), None];
        let gate = vec![Some(0), None, Some(1), Some(2)];
        let value = [&gate[..], &[Some(4)]].concat();
        let number = |ty: &TensorType| if ty.rank() == 0 { vec![] } else { vec![Some(0)] };
        let matrices = vec![Some(0), Some(1), Some(2), None, Some(4)];
        let (start, count) = (number(operands[6]), number(operands[7]));
        let loops = vec![key.clone(), key, value, gate.clone(), gate, matrices, start, count];
        IterationSpace::of_result(loops, ty)
    }
}

/// Converts a token count to an unsigned number; a negative count becomes 0.
fn count_of(count: f64) -> usize {
    count.max(0.0) as usize
}

/// Returns operands of linear attention for a single token, in which three value heads share each key.
const STEP: [&str; 8] = [
    "f32[1,1,2,4]",
    "f32[1,1,2,4]",
    "f32[1,1,2,3,20]",
    "f32[1,1,2,3] -1,-2,0,-0.5,-0.1,-0.7",
    "f32[1,1,2,3]",
    "f32[1,2,3,4,20]",
    "i32[] 3",
    "i32[] 1",
];

/// Sequences that begin, that continue, and that have no new tokens.
const ROWS: [&str; 8] = [
    "f32[3,4,2,5]",
    "f32[3,4,2,5]",
    "f32[3,4,2,1,2]",
    "f32[3,4,2,1] -1,-2,0,-0.5,-0.1,-0.7,-1,-3,-1,-2,0,-0.5,-0.1,-0.7,-1,-3,-1,-2,0,-0.5,-0.1,-0.7,-1,-3",
    "f32[3,4,2,1]",
    "f32[3,2,1,5,2]",
    "i32[3] 0,7,9",
    "i32[3] 4,3,0",
];

macro_rules! ten_decays {
    () => {
        "-4,-3,-4,-5,-4,-3,-6,-5,-4,-4"
    };
}

/// The decays of the 70 test tokens limit the growth of the matrix.
const DECAYS: &str = concat!(
    "f32[1,70,1,1] ",
    ten_decays!(),
    ",",
    ten_decays!(),
    ",",
    ten_decays!(),
    ",",
    ten_decays!(),
    ",",
    ten_decays!(),
    ",",
    ten_decays!(),
    ",",
    ten_decays!(),
);

const CHUNKS: [&str; 8] = [
    "f32[1,70,1,3]",
    "f32[1,70,1,3]",
    "f32[1,70,1,1,5]",
    DECAYS,
    "f32[1,70,1,1]",
    "f32[1,1,1,3,5]",
    "i32[] 1",
    "i32[] 69",
];

const fn with(q: &'static str, k: &'static str) -> [&'static str; 8] {
    [q, k, "f32[1,1,2,3,20]", "f32[1,1,2,3]", "f32[1,1,2,3]", "f32[1,2,3,4,20]", "i32[]", "i32[]"]
}
