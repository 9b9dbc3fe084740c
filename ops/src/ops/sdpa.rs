use super::prelude::*;
use crate::{Attribute, ParseError, Reader, Real};

/// One condition on which key j a query i may see. A mask is a list of terms that must all hold.
/// i counts from the query offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskTerm {
    /// j ≤ i
    Causal,
    /// i − W < j: the window includes the query's own position
    /// (HF `masking_utils.py`, `sliding_window_overlay`).
    Window(usize),
    /// An operand is added to the scores, broadcast from the trailing side.
    Additive,
}

impl Attribute for MaskTerm {
    fn print(&self, out: &mut String) {
        match self {
            Self::Causal => out.push_str("causal"),
            Self::Window(w) => *out += &format!("window({w})"),
            Self::Additive => out.push_str("additive"),
        }
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if reader.eat("causal") {
            return Ok(Self::Causal);
        }
        if reader.eat("additive") {
            return Ok(Self::Additive);
        }
        if !reader.eat("window(") {
            return reader.error("`causal`, `window(…)` or `additive`");
        }
        let width = usize::parse(reader)?;
        reader.expect(")")?;
        Ok(Self::Window(width))
    }
}

operation! {
    /// Scaled dot-product attention: `softmax(cap(q · kᵀ · scale) + mask) · v`.
    /// Vaswani et al., "Attention Is All You Need" (2017), §3.2.1.
    ///
    /// q `[batch…, S, E]`, k `[batch…, T, E]`, v `[batch…, T, F]` → `[batch…, S, F]`; or grouped heads
    /// (Ainslie et al., "GQA", 2023): q `[batch…, G, S, E]` → `[batch…, G, S, F]`, each group of G query heads
    /// reading one k and v. Then, if the offset is an operand, `i32[]`: the position of query 0; then, if the mask
    /// has an additive term, its tensor.
    ///
    /// Scores, softcap (`cap · tanh(score / cap)`, Gemma 2 report, §2) and softmax are f32; the probabilities are
    /// rounded to the element type before they meet v, as HF's `eager_attention_forward` does. A hidden key's
    /// score is the lowest finite f32, so that a row that sees nothing is a mean and not NaN.
    Sdpa = "sdpa" {
        /// The conditions that all must hold for a query to see a key.
        mask: Vec<MaskTerm>,
        /// The factor on the scores; `none` is 1/√E.
        scale: Option<Real>,
        /// The bound on the scores.
        softcap: Option<Real>,
        /// Whether the position of query 0 is an operand; else it is 0.
        offset: bool,
    }
}

/// The score of a key that a query may not see.
pub(crate) const HIDDEN: f64 = f32::MIN as f64;

impl Sdpa {
    /// The factor on the scores.
    pub fn scale_for(&self, features: usize) -> f64 {
        self.scale.map_or_else(|| 1.0 / libm::sqrt(features as f64), |s| s.0)
    }

    /// The score of a hidden key.
    pub const HIDDEN: f64 = HIDDEN;

    /// Whether the query heads are grouped: q has one axis more than k.
    pub fn grouped(q: &TensorType, k: &TensorType) -> bool {
        q.rank() == k.rank() + 1
    }

    fn sees(&self, query: f64, key: f64) -> bool {
        self.mask.iter().all(|term| match term {
            MaskTerm::Causal => key <= query,
            MaskTerm::Window(w) => query - (*w as f64) < key,
            MaskTerm::Additive => true,
        })
    }
}

impl Operation for Sdpa {
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        // One key that counts: its value.
        good(
            "sdpa mask=[causal] scale=none softcap=none offset=false",
            &["f32[2,2] 1,2,3,4", "f32[2,2] 1,1,100,100", "f32[2,2] 5,6,7,8"],
            "f32[2,2] 5,6,7,8",
        ),
        good(
            "sdpa mask=[] scale=none softcap=none offset=false",
            &["f32[1,1,2,4]", "f32[1,1,2,4]", "f32[1,1,2,4]"],
            "f32[1,1,2,4]",
        ),
        good(
            "sdpa mask=[causal] scale=0.5 softcap=none offset=false",
            &["f32[2,3,5,4]", "f32[2,3,5,4]", "f32[2,3,5,6]"],
            "f32[2,3,5,6]",
        ),
        good(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["f32[2,3,2,4]", "f32[2,3,7,4]", "f32[2,3,7,4]", "i32[] 4"],
            "f32[2,3,2,4]",
        ),
        good(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["f32[2,3,2,5,4]", "f32[2,3,7,4]", "f32[2,3,7,4]", "i32[] 1"],
            "f32[2,3,2,5,4]",
        ),
        good(
            "sdpa mask=[causal,window(3)] scale=none softcap=none offset=false",
            &["f32[2,11,4]", "f32[2,11,4]", "f32[2,11,4]"],
            "f32[2,11,4]",
        ),
        good(
            "sdpa mask=[causal,window(3)] scale=none softcap=none offset=true",
            &["f32[2,4]", "f32[11,4]", "f32[11,4]", "i32[] 8"],
            "f32[2,4]",
        ),
        good(
            "sdpa mask=[window(2)] scale=none softcap=none offset=false",
            &["f32[5,4]", "f32[7,4]", "f32[7,4]"],
            "f32[5,4]",
        ),
        good(
            "sdpa mask=[] scale=2.0 softcap=1.5 offset=false",
            &["f32[2,3,5,4]", "f32[2,3,5,4]", "f32[2,3,5,4]"],
            "f32[2,3,5,4]",
        ),
        good(
            "sdpa mask=[additive] scale=none softcap=none offset=false",
            &["f32[2,3,5,4]", "f32[2,3,6,4]", "f32[2,3,6,4]", "f32[5,6]"],
            "f32[2,3,5,4]",
        ),
        good(
            "sdpa mask=[additive] scale=none softcap=none offset=false",
            &["f32[2,3,5,4]", "f32[2,3,6,4]", "f32[2,3,6,4]", "f32[3,1,6]"],
            "f32[2,3,5,4]",
        ),
        good(
            "sdpa mask=[causal,additive] scale=none softcap=none offset=true",
            &["f32[2,3,5,4]", "f32[2,3,6,4]", "f32[2,3,6,4]", "i32[] 1", "f32[2,1,5,6]"],
            "f32[2,3,5,4]",
        ),
        good(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["bf16[2,3,2,4]", "bf16[2,7,4]", "bf16[2,7,4]", "i32[] 4"],
            "bf16[2,3,2,4]",
        ),
        bad(
            "sdpa mask=[] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,5]", "f32[3,5]"],
            "q and k must agree but along queries and keys",
        ),
        bad(
            "sdpa mask=[] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,4]", "f32[5,4]"],
            "k and v must agree but along features",
        ),
        bad(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["f32[2,4]", "f32[3,4]", "f32[3,4]"],
            "takes q, k, v, offset operands, found 3",
        ),
        bad(
            "sdpa mask=[additive] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,4]", "f32[3,4]", "f32[2,2]"],
            "the mask must broadcast to the scores",
        ),
        bad(
            "sdpa mask=[window(0)] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,4]", "f32[3,4]"],
            "window is 0, expected at least 1",
        ),
        bad(
            "sdpa mask=[causal] scale=none softcap=-1.0 offset=false",
            &["f32[2,4]", "f32[3,4]", "f32[3,4]"],
            "softcap is -1.0, expected a positive number",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let additive = self.mask.contains(&MaskTerm::Additive);
        let expected = match (self.offset, additive) {
            (false, false) => "q, k, v",
            (true, false) => "q, k, v, offset",
            (false, true) => "q, k, v, mask",
            (true, true) => "q, k, v, offset, mask",
        };
        if operands.len() != 3 + usize::from(self.offset) + usize::from(additive) {
            return Err(InferError::Arity { op: Self::NAME, expected, found: operands.len() });
        }
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        element(Self::NAME, q, "float", ElementType::is_float)?;
        for &term in &self.mask {
            attribute(Self::NAME, "window", 0, "at least 1", term != MaskTerm::Window(0))?;
        }
        for (what, value) in [("scale", self.scale), ("softcap", self.softcap)] {
            let value = value.map_or(1.0, |v| v.0);
            attribute(Self::NAME, what, value, "a positive number", value > 0.0 && value.is_finite())?;
        }
        attribute(Self::NAME, "the rank of k", k.rank(), "at least 2", k.rank() >= 2)?;
        let batch = k.rank() - 2;
        let matches = q.element == k.element
            && (q.rank() == k.rank() || Self::grouped(q, k))
            && q.shape[..batch] == k.shape[..batch]
            && q.shape.last() == k.shape.last();
        agree(Self::NAME, "q and k must agree but along queries and keys", q, k, matches)?;
        let matches =
            v.element == k.element && v.rank() == k.rank() && v.shape[..=batch] == k.shape[..=batch];
        agree(Self::NAME, "k and v must agree but along features", k, v, matches)?;
        if self.offset {
            super::dynamic_slice::scalar_start(Self::NAME, operands[3])?;
        }
        let mut ty = q.clone();
        if additive {
            let mask = operands[operands.len() - 1];
            let mut scores = q.clone();
            scores.shape[q.rank() - 1] = k.shape[batch];
            let trailing = mask.shape.iter().rev().zip(scores.shape.iter().rev());
            let fits = mask.rank() <= scores.rank()
                && mask.element == q.element
                && trailing.into_iter().all(|(&m, &s)| m == 1 || m == s);
            agree(Self::NAME, "the mask must broadcast to the scores", mask, &scores, fits)?;
        }
        ty.shape[q.rank() - 1] = v.shape[v.rank() - 1];
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        let offset = if self.offset { operands[3].data[0] } else { 0.0 };
        let additive = self.mask.contains(&MaskTerm::Additive).then(|| operands[operands.len() - 1]);
        let (rank, batch) = (q.ty.rank(), k.ty.rank() - 2);
        let (keys, features) = (k.ty.shape[batch], k.ty.shape[batch + 1]);
        let f32 = ElementType::F32;
        let scale = f32.round(self.scale_for(features));
        let mut scores_shape = q.ty.shape.clone();
        scores_shape[rank - 1] = keys;

        let score = |index: &[usize]| {
            let key = index[rank - 1];
            let query_at = |e| q.at(&[&index[..rank - 1], &[e]].concat());
            let key_at = |e| k.at(&[&index[..batch], &[key, e]].concat());
            let dot = exact_sum((0..features).map(|e| query_at(e) * key_at(e)));
            let mut score = f32.round(f32.round(dot) * scale);
            if let Some(Real(cap)) = self.softcap {
                score = f32.round(f32.round(libm::tanh(f32.round(score / f32.round(cap)))) * f32.round(cap));
            }
            if let Some(mask) = additive {
                let skip = rank - mask.ty.rank();
                let at: Vec<usize> = mask
                    .ty
                    .shape
                    .iter()
                    .zip(&index[skip..])
                    .map(|(&n, &i)| if n == 1 { 0 } else { i })
                    .collect();
                score = f32.round(score + mask.at(&at));
            }
            if self.sees(index[rank - 2] as f64 + offset, key as f64) { score } else { HIDDEN }
        };
        let scores = Value::from_fn(TensorType::new(f32, scores_shape), score);

        let probabilities: Vec<f64> = scores
            .data
            .chunks(keys.max(1))
            .flat_map(|row| {
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, super::binary::larger);
                let exponentials: Vec<f64> =
                    row.iter().map(|s| f32.round(libm::exp(f32.round(s - largest)))).collect();
                let sum = f32.round(exact_sum(exponentials.iter().copied()));
                exponentials.into_iter().map(move |e| ty.element.round(f32.round(e / sum)))
            })
            .collect();

        let mut row = usize::MAX;
        let mut last: Vec<usize> = Vec::new();
        Value::from_fn(ty.clone(), |index| {
            if last != index[..rank - 1] {
                last = index[..rank - 1].to_vec();
                row = row.wrapping_add(1);
            }
            let weights = &probabilities[row * keys..][..keys];
            let value_at = |key| v.at(&[&index[..batch], &[key, index[rank - 1]]].concat());
            exact_sum(weights.iter().enumerate().map(|(key, w)| w * value_at(key)))
        })
    }

    fn spell(&self, _: &mut dyn Statements, _: &[Operand<'_>], _: &TensorType) -> Spelling {
        Spelling::Composite
    }
}
