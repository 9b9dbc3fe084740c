use super::prelude::*;
use crate::{Attribute, ParseError, Reader, Real};

/// A term of an attention mask: a condition under which a query with position i may see the key with position
/// j. An attention mask is a list of terms whose conditions must all be true. The position i of the first
/// query is the offset of the attention operation. Some terms of the mask have an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MaskTerm {
    /// The condition is j ≤ i: a query does not see later keys.
    Causal,
    /// The condition is i − W < j: a query sees the last W keys with its own (HF `sliding_window_overlay`).
    Window(usize),
    /// The condition is ⌊i / C⌋ = ⌊j / C⌋: a query sees only its chunk of C positions (Llama 4; HF
    /// `chunked_overlay`). The first chunk begins after a padding term's padding.
    Chunk(usize),
    /// The condition is j ≥ p, where p is the operand, `i32[]` or `i32[B]`: the first p keys of a
    /// sequence are padding. B is the extent of the first batch axis.
    Padding,
    /// The condition is j ≤ i or j < p, where p is the operand, `i32[]` or `i32[B]`. The mask is causal, but
    /// the first p positions also see each other (T5 report, §3.2.1, "prefix LM"; PaliGemma).
    Prefix,
    /// Adds the operand to the scores, broadcast along the leading axes that it lacks.
    Additive,
    /// An additional score for each query head, `[…, G]`, with the axes of the queries before S. The softmax
    /// includes it, but it has no value vector (Xiao et al., "Efficient Streaming Language Models with
    /// Attention Sinks", 2023; HF `modeling_gpt_oss.py`).
    Sinks,
    /// The keys are in a ring buffer of T slots. Slot t contains the key of the last position j ≡ t (mod T)
    /// that is not after the last query. A slot of the ring buffer is empty if no key was stored in the slot.
    /// The other terms of the mask compare the position of the query with this position j. The ring buffer
    /// must contain all positions that the queries may see in their window.
    Ring,
}

type Sized = fn(usize) -> MaskTerm;

impl MaskTerm {
    pub fn has_operand(self) -> bool {
        matches!(self, Self::Padding | Self::Prefix | Self::Additive | Self::Sinks)
    }

    const PLAIN: [(&str, Self); 6] = [
        ("causal", Self::Causal),
        ("padding", Self::Padding),
        ("prefix", Self::Prefix),
        ("additive", Self::Additive),
        ("sinks", Self::Sinks),
        ("ring", Self::Ring),
    ];
    const SIZED: [(&str, Sized); 2] = [("window(", Self::Window), ("chunk(", Self::Chunk)];
}

impl Attribute for MaskTerm {
    fn print(&self, out: &mut String) {
        match self {
            Self::Window(width) => *out += &format!("window({width})"),
            Self::Chunk(length) => *out += &format!("chunk({length})"),
            _ => Self::PLAIN.iter().filter(|(_, term)| term == self).for_each(|(name, _)| out.push_str(name)),
        }
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if let Some((_, term)) = Self::PLAIN.into_iter().find(|(name, _)| reader.eat(name)) {
            return Ok(term);
        }
        let Some((_, term)) = Self::SIZED.into_iter().find(|(name, _)| reader.eat(name)) else {
            return reader.error(
                "`causal`, `window(…)`, `chunk(…)`, `padding`, `prefix`, `additive`, `sinks` or `ring`",
            );
        };
        let size = usize::parse(reader)?;
        reader.expect(")")?;
        Ok(term(size))
    }
}

operation! {
    /// Computes scaled dot-product attention: `softmax(cap(q · kᵀ · scale) + mask) · v`. Source:
    /// Vaswani et al., "Attention Is All You Need" (2017), §3.2.1.
    ///
    /// From q `[batch…, S, E]`, k `[batch…, T, E]` and v `[batch…, T, F]`, the operation computes
    /// `[batch…, S, F]`. With grouped heads (Ainslie et al., "GQA", 2023), q is `[batch…, G, S, E]`
    /// and the result is `[batch…, G, S, F]`; each group of G query heads reads the same k and v.
    /// After v, the operands are the offset, if the operation has an offset, and the operands of
    /// the mask's terms in order. The offset is the position of query 0. The offset is `i32[]`, or
    /// `i32[B]` with one position for each index of the first batch axis.
    ///
    /// The operation computes scores, softcap (`cap · tanh(score / cap)`, Gemma 2 report, §2) and softmax in
    /// f32. The operation rounds the probabilities to the element type before it multiplies the probabilities
    /// by v, as HF's `eager_attention_forward` does. The score of a hidden key is the lowest finite f32.
    /// Therefore a query that sees no key gets the mean of the values and not NaN.
    Sdpa = "sdpa" {
        /// The terms of the attention mask: a query may see a key only if the conditions of all
        /// terms are true.
        mask: Vec<MaskTerm>,
        /// The factor for the attention scores; `none` selects 1/√E, where E is the number of features.
        scale: Option<Real>,
        /// The soft bound on the attention scores; with `none`, the scores have no bound.
        softcap: Option<Real>,
        /// Whether an operand contains the position of query 0. Without the offset, query 0 has the
        /// position 0.
        offset: bool,
    }
}

/// The score of a key that a query may not see.
pub(crate) const HIDDEN: f64 = f32::MIN as f64;

impl Sdpa {
    pub fn scale_for(&self, features: usize) -> f64 {
        self.scale.map_or_else(|| 1.0 / libm::sqrt(features as f64), |s| s.0)
    }

    /// The ring must have slots for a window and the other queries.
    fn check_ring(&self, queries: usize, slots: usize) -> Result<(), InferError> {
        let needed = self.mask.iter().filter_map(|term| match term {
            MaskTerm::Window(width) => Some(width + queries.max(1) - 1),
            _ => None,
        });
        let needed = needed.min();
        attribute(Self::NAME, "mask", &self.mask, "a window beside the ring", needed.is_some())?;
        let needed = needed.unwrap_or_default();
        let rule = format!("at least {needed}, the window and the other queries");
        attribute(Self::NAME, "slots of the ring", slots, &rule, slots >= needed)
    }

    /// The score of a key that a query may not see.
    pub const HIDDEN: f64 = HIDDEN;

    /// Whether q has one axis more than k.
    pub fn grouped(q: &TensorType, k: &TensorType) -> bool {
        q.rank() == k.rank() + 1
    }

    /// Splits the operands after v into the offset and the mask terms with their operands.
    pub fn operands<T: Copy>(&self, operands: &[T]) -> (Option<T>, Vec<(MaskTerm, Option<T>)>) {
        let mut rest = operands.iter().skip(3).copied();
        let offset = self.offset.then(|| rest.next()).flatten();
        let terms = self.mask.iter().map(|&term| (term, term.has_operand().then(|| rest.next()).flatten()));
        (offset, terms.collect())
    }
}

impl Operation for Sdpa {
    const CLASS: OpClass = OpClass::Attention;
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        // The softmax gives all weight to the second key, so the result is the value of this key.
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
            "sdpa mask=[causal,chunk(3)] scale=none softcap=none offset=true",
            &["f32[5,4]", "f32[11,4]", "f32[11,4]", "i32[] 5"],
            "f32[5,4]",
        ),
        good(
            "sdpa mask=[causal,padding,chunk(3)] scale=none softcap=none offset=true",
            &["f32[3,5,4]", "f32[3,9,4]", "f32[3,9,4]", "i32[] 4", "i32[3] 0,2,4"],
            "f32[3,5,4]",
        ),
        good(
            "sdpa mask=[causal,padding] scale=none softcap=none offset=true",
            &["f32[3,2,5,4]", "f32[3,2,9,4]", "f32[3,2,9,4]", "i32[] 4", "i32[3] 0,2,4"],
            "f32[3,2,5,4]",
        ),
        good(
            "sdpa mask=[prefix,padding] scale=none softcap=none offset=false",
            &["f32[3,2,6,7,4]", "f32[3,2,7,4]", "f32[3,2,7,4]", "i32[3] 4,1,6", "i32[3] 0,2,3"],
            "f32[3,2,6,7,4]",
        ),
        good(
            "sdpa mask=[prefix,window(5),additive,additive] scale=none softcap=none offset=true",
            &["f32[2,4]", "f32[11,4]", "f32[11,4]", "i32[] 3", "i32[] 6", "f32[2,11]", "f32[11]"],
            "f32[2,4]",
        ),
        // In these examples, each sequence has its own position.
        good(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["f32[3,2,5,4]", "f32[3,2,9,4]", "f32[3,2,9,4]", "i32[3] 4,0,2"],
            "f32[3,2,5,4]",
        ),
        good(
            "sdpa mask=[causal,window(3),chunk(4)] scale=none softcap=none offset=true",
            &["f32[3,2,6,1,4]", "f32[3,2,9,4]", "f32[3,2,9,4]", "i32[3] 8,0,5"],
            "f32[3,2,6,1,4]",
        ),
        good(
            "sdpa mask=[causal,window(4),ring] scale=none softcap=none offset=true",
            &["f32[3,3,4]", "f32[3,6,4]", "f32[3,6,4]", "i32[3] 0,5,31"],
            "f32[3,3,4]",
        ),
        // In these examples, the ring buffer is not full yet, wraps around for the first time, or
        // has wrapped around several times.
        good(
            "sdpa mask=[causal,window(4),ring] scale=none softcap=none offset=true",
            &["f32[2,3,4]", "f32[2,6,4]", "f32[2,6,4]", "i32[] 1"],
            "f32[2,3,4]",
        ),
        good(
            "sdpa mask=[causal,window(4),ring] scale=none softcap=none offset=true",
            &["f32[2,3,4]", "f32[2,6,4]", "f32[2,6,4]", "i32[] 5"],
            "f32[2,3,4]",
        ),
        good(
            "sdpa mask=[causal,window(4),padding,ring] scale=none softcap=none offset=true",
            &["f32[2,3,4]", "f32[2,7,4]", "f32[2,7,4]", "i32[] 31", "i32[2] 0,30"],
            "f32[2,3,4]",
        ),
        good(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["bf16[2,3,2,4]", "bf16[2,7,4]", "bf16[2,7,4]", "i32[] 4"],
            "bf16[2,3,2,4]",
        ),
        // The sink and the only key have equal scores, so the result is half of the key's value.
        good(
            "sdpa mask=[sinks] scale=1.0 softcap=none offset=false",
            &["f32[1,1,2] 1,1", "f32[1,1,2] 1,2", "f32[1,1,2] 6,8", "f32[1] 3"],
            "f32[1,1,2] 3,4",
        ),
        good(
            "sdpa mask=[causal,sinks] scale=none softcap=none offset=true",
            &["f32[3,2,2,5,4]", "f32[3,2,9,4]", "f32[3,2,9,4]", "i32[3] 4,0,2", "f32[2,2] 1,-1,2,0"],
            "f32[3,2,2,5,4]",
        ),
        good(
            "sdpa mask=[causal,window(4),sinks,ring] scale=none softcap=1.5 offset=true",
            &["f32[2,3,4]", "f32[2,7,4]", "f32[2,7,4]", "i32[] 31", "f32[2] 0.5,-0.5"],
            "f32[2,3,4]",
        ),
        good(
            "sdpa mask=[causal,sinks] scale=none softcap=none offset=true",
            &["bf16[1,3,2,2,4]", "bf16[1,3,7,4]", "bf16[1,3,7,4]", "i32[] 4", "bf16[3,2] 1,2,3,0,-1,-2"],
            "bf16[1,3,2,2,4]",
        ),
        bad(
            "sdpa mask=[sinks] scale=none softcap=none offset=false",
            &["f32[2,3,5,4]", "f32[2,3,6,4]", "f32[2,3,6,4]", "f32[2]"],
            "the sinks must be the last axes of q before its queries",
        ),
        bad(
            "sdpa mask=[] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,5]", "f32[3,5]"],
            "q and k must agree except along queries and keys",
        ),
        bad(
            "sdpa mask=[] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,4]", "f32[5,4]"],
            "k and v must agree except along features",
        ),
        bad(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["f32[2,4]", "f32[3,4]", "f32[3,4]"],
            "takes q, k, v, offset operands, found 3",
        ),
        bad(
            "sdpa mask=[causal] scale=none softcap=none offset=true",
            &["f32[2,3,4]", "f32[2,3,4]", "f32[2,3,4]", "i32[3]"],
            "the offset must be `i32[]` or have a number for each of the first batch axis",
        ),
        bad(
            "sdpa mask=[causal,padding] scale=none softcap=none offset=false",
            &["f32[2,3,4]", "f32[2,3,4]", "f32[2,3,4]", "i32[3]"],
            "padding or prefix must be `i32[]` or have a number for each of the first batch axis",
        ),
        bad(
            "sdpa mask=[causal,ring,window(4)] scale=none softcap=none offset=true",
            &["f32[3,4]", "f32[5,4]", "f32[5,4]", "i32[]"],
            "slots of the ring is 5, expected at least 6, the window and the other queries",
        ),
        bad(
            "sdpa mask=[causal,ring] scale=none softcap=none offset=false",
            &["f32[3,4]", "f32[5,4]", "f32[5,4]"],
            "mask is [Causal, Ring], expected a window beside the ring",
        ),
        bad(
            "sdpa mask=[chunk(0)] scale=none softcap=none offset=false",
            &["f32[2,4]", "f32[3,4]", "f32[3,4]"],
            "chunk is 0, expected at least 1",
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
        let named = |term: &MaskTerm| {
            let mut name = String::new();
            term.print(&mut name);
            name
        };
        let expected = ["q", "k", "v"].map(str::to_owned).into_iter();
        let expected = expected.chain(self.offset.then(|| "offset".to_owned()));
        let expected: Vec<String> =
            expected.chain(self.mask.iter().filter(|term| term.has_operand()).map(named)).collect();
        if operands.len() != expected.len() {
            let expected = expected.join(", ");
            return Err(InferError::Arity { op: Self::NAME, expected, found: operands.len() });
        }
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        element(Self::NAME, q, "float", ElementType::is_float)?;
        for &term in &self.mask {
            attribute(Self::NAME, "window", 0, "at least 1", term != MaskTerm::Window(0))?;
            attribute(Self::NAME, "chunk", 0, "at least 1", term != MaskTerm::Chunk(0))?;
        }
        let sinks = self.mask.iter().filter(|term| **term == MaskTerm::Sinks).count();
        attribute(Self::NAME, "sinks", sinks, "at most one operand", sinks <= 1)?;
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
        agree(Self::NAME, "q and k must agree except along queries and keys", q, k, matches)?;
        let matches =
            v.element == k.element && v.rank() == k.rank() && v.shape[..=batch] == k.shape[..=batch];
        agree(Self::NAME, "k and v must agree except along features", k, v, matches)?;
        let (offset, terms) = self.operands(operands);
        let by_row = |of: &TensorType| {
            of.element == ElementType::I32 && (of.rank() == 0 || batch > 0 && of.shape == [k.shape[0]])
        };
        if let Some(offset) = offset {
            let rule = "the offset must be `i32[]` or have a number for each of the first batch axis";
            agree(Self::NAME, rule, offset, k, by_row(offset))?;
        }
        let mut scores = q.clone();
        scores.shape[q.rank() - 1] = k.shape[batch];
        for (term, operand) in &terms {
            match (term, operand) {
                (MaskTerm::Additive, Some(mask)) => {
                    let mut trailing = mask.shape.iter().rev().zip(scores.shape.iter().rev());
                    let fits = mask.rank() <= scores.rank()
                        && mask.element == q.element
                        && trailing.all(|(&m, &s)| m == 1 || m == s);
                    agree(Self::NAME, "the mask must broadcast to the scores", mask, &scores, fits)?;
                }
                (MaskTerm::Padding | MaskTerm::Prefix, Some(lengths)) => {
                    let rule =
                        "padding or prefix must be `i32[]` or have a number for each of the first batch axis";
                    agree(Self::NAME, rule, lengths, k, by_row(lengths))?;
                }
                (MaskTerm::Sinks, Some(sinks)) => {
                    let rule = "the sinks must be the last axes of q before its queries";
                    let fits = q.shape[..q.rank() - 2].ends_with(&sinks.shape) && sinks.element == q.element;
                    agree(Self::NAME, rule, sinks, q, fits)?;
                }
                (MaskTerm::Ring, _) => {
                    self.check_ring(q.shape[q.rank() - 2], k.shape[batch])?;
                }
                _ => {}
            }
        }
        let mut ty = q.clone();
        ty.shape[q.rank() - 1] = v.shape[v.rank() - 1];
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let (q, k, v) = (operands[0], operands[1], operands[2]);
        let (offset, terms) = self.operands(operands);
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
            let sequence =
                |of_each: &Value| of_each.data[if of_each.ty.rank() == 0 { 0 } else { index[0] }] as i64;
            let offset = offset.map_or(0, sequence);
            let query = index[rank - 2] as i64 + offset;
            let mut position = key as i64;
            if self.mask.contains(&MaskTerm::Ring) {
                let last = offset + q.ty.shape[rank - 2] as i64 - 1;
                position = last - (last - position).rem_euclid(keys as i64);
            }
            let mut seen = position >= 0;
            let padding = terms.iter().find(|(term, _)| *term == MaskTerm::Padding);
            let first = padding.and_then(|(_, lengths)| *lengths).map_or(0, sequence);
            for (term, operand) in &terms {
                seen &= match (term, operand) {
                    (MaskTerm::Causal, _) => position <= query,
                    (MaskTerm::Window(width), _) => query - (*width as i64) < position,
                    (MaskTerm::Chunk(length), _) => {
                        let chunk = |at: i64| (at - first) / *length as i64;
                        chunk(query) == chunk(position)
                    }
                    (MaskTerm::Padding, Some(lengths)) => position >= sequence(lengths),
                    (MaskTerm::Prefix, Some(lengths)) => position <= query || position < sequence(lengths),
                    (MaskTerm::Additive, Some(mask)) => {
                        let skip = rank - mask.ty.rank();
                        let at = mask.ty.shape.iter().zip(&index[skip..]);
                        let at: Vec<usize> = at.map(|(&n, &i)| if n == 1 { 0 } else { i }).collect();
                        score = f32.round(score + mask.at(&at));
                        true
                    }
                    _ => true,
                };
            }
            if seen { score } else { HIDDEN }
        };
        let scores = Value::from_fn(TensorType::new(f32, scores_shape), score);

        let sinks = terms.iter().find(|(term, _)| *term == MaskTerm::Sinks).and_then(|(_, sinks)| *sinks);
        let probabilities: Vec<f64> = scores
            .data
            .chunks(keys.max(1))
            .enumerate()
            .flat_map(|(row, scores)| {
                let head = row / q.ty.shape[rank - 2].max(1);
                let sink = sinks.map(|sinks| sinks.data[head % sinks.data.len()]);
                softmax(scores, sink).into_iter().map(|weight| ty.element.round(weight))
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
}

/// The weights of a query's keys, whose sum also contains a sink's.
fn softmax(scores: &[f64], sink: Option<f64>) -> Vec<f64> {
    let f32 = ElementType::F32;
    let largest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, super::binary::larger);
    let exponential = |score: f64| f32.round(libm::exp(f32.round(score - largest)));
    let exponentials: Vec<f64> = scores.iter().copied().map(exponential).collect();
    let sum = f32.round(exact_sum(exponentials.iter().copied().chain(sink.map(exponential))));
    exponentials.into_iter().map(|e| f32.round(e / sum)).collect()
}
