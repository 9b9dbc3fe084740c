//! A loaded program seen as a network: which entry points it has and what they take.

use lower::Signature;
use ops::{ElementType, TensorType};
use runtime::{Function, Program, Runtime};

use crate::Error;

/// A program with the entry points `prefill` and `decode`, and `score` if it has one.
pub struct Network {
    pub(crate) runtime: Runtime,
    pub(crate) prefill: Function,
    pub(crate) decode: Function,
    pub(crate) score: Option<Function>,
    /// Tokens that one `prefill` takes.
    pub(crate) chunk: usize,
    context: usize,
    vocabulary: usize,
    /// The state: keys and values of each layer.
    pub(crate) state: Vec<TensorType>,
}

/// Arguments before the state: tokens, start, count.
const BEFORE_STATE: usize = 3;

impl Network {
    /// The network in `program`, whose entry points have these signatures.
    ///
    /// # Errors
    /// If an entry point is missing or is not called as `dsl::trace_entry_points` declares it.
    pub fn new(runtime: &Runtime, program: &Program, signatures: &[Signature]) -> Result<Self, Error> {
        let find = |name: &'static str| signatures.iter().find(|s| s.name == name);
        let signature =
            |name: &'static str| find(name).ok_or(Error::EntryPoint { name, why: "is missing".into() });
        let refuse = |name: &'static str, why: String| Error::EntryPoint { name, why };
        let (prefill, decode) = (signature("prefill")?, signature("decode")?);
        let state_of = |s: &Signature| -> Vec<TensorType> {
            s.arguments.iter().skip(BEFORE_STATE).map(|a| a.ty.clone()).collect()
        };
        let state = state_of(prefill);
        for (name, s) in [("prefill", Some(prefill)), ("decode", Some(decode)), ("score", find("score"))] {
            let Some(s) = s else { continue };
            let results = if name == "score" { 1 } else { 2 };
            let kept: Vec<TensorType> = s.results.iter().skip(results).map(|r| r.ty.clone()).collect();
            if state_of(s) != state || kept != state {
                return Err(refuse(name, "does not take and return the same state as `prefill`".into()));
            }
            let tokens = s.arguments.first().map(|a| &a.ty);
            let fits =
                tokens.is_some_and(|ty| ty.element == ElementType::I32 && ty.rank() == 2 && ty.shape[0] == 1);
            if !fits || s.arguments[1..BEFORE_STATE].iter().any(|a| !a.is_host_scalar()) {
                return Err(refuse(
                    name,
                    "does not take (tokens: i32[1,S], start: i32, count: i32, state…)".into(),
                ));
            }
        }
        let (Some(slots), Some(logits)) = (state.first(), prefill.results.first()) else {
            return Err(refuse("prefill", "has no logits or no state".into()));
        };
        let (&[_, _, context, _], Some(&vocabulary)) = (&slots.shape[..], logits.ty.shape.last()) else {
            return Err(refuse("prefill", format!("has a state of type {slots}, expected `[B,K,N,E]`")));
        };
        Ok(Self {
            runtime: runtime.clone(),
            prefill: program.function("prefill")?,
            decode: program.function("decode")?,
            score: find("score").map(|_| program.function("score")).transpose()?,
            chunk: prefill.arguments[0].ty.shape[1],
            context,
            vocabulary,
            state,
        })
    }

    /// The longest sequence, prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Tokens that one prefill takes.
    pub fn chunk(&self) -> usize {
        self.chunk
    }
}
