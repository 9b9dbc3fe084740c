//! Compares two variants of a language model while the model reads a sequence of tokens.

use std::collections::HashMap;
use std::fmt;

use ops::{TensorType, Value};
use serde::Serialize;
use trace::{Role, Signature, Trace};

use super::{BisectError, Bisected, Bisection};

/// One call of an entry point that reads tokens, such as `decode`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TokenCall {
    pub entry: String,
    pub start: usize,
    pub tokens: Vec<u32>,
    /// The number of tokens of all calls together.
    #[serde(skip)]
    pub length: usize,
}

/// Formats a call as text, for example `decode of 1 token from position 4`.
impl fmt::Display for TokenCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, start, tokens, .. } = self;
        let noun = if tokens.len() == 1 { "token" } else { "tokens" };
        write!(f, "{entry} of {} {noun} from position {start}", tokens.len())
    }
}

impl TokenCall {
    /// `prefill` reads all tokens but the last in chunks, and `decode` the last.
    pub fn of(tokens: &[u32], chunk: usize) -> Vec<Self> {
        let Some((last, first)) = tokens.split_last() else { return Vec::new() };
        let length = tokens.len();
        let call = |entry: &str, start, tokens: &[u32]| Self {
            entry: entry.into(),
            start,
            tokens: tokens.into(),
            length,
        };
        let chunks = first.chunks(chunk.max(1)).enumerate();
        let mut calls: Vec<Self> = chunks.map(|(i, tokens)| call("prefill", i * chunk, tokens)).collect();
        calls.push(call("decode", first.len(), &[*last]));
        calls
    }

    /// The logits of all tokens together.
    pub fn score(tokens: &[u32]) -> Self {
        Self { entry: "score".into(), start: 0, tokens: tokens.into(), length: tokens.len() }
    }

    /// State that is missing in `state` is zeros.
    pub(crate) fn arguments(&self, signature: &Signature, state: &HashMap<Role, Value>) -> Vec<Value> {
        let argument = |argument: &trace::Argument| {
            let ty: TensorType = argument.ty.clone();
            let count = ty.count();
            let all = |number: usize| Value::new(ty.clone(), vec![number as f64; count]);
            match argument.role {
                Role::Tokens => {
                    let tokens = self.tokens.iter().map(|&token| f64::from(token));
                    Value::new(ty.clone(), tokens.chain(std::iter::repeat(0.0)).take(count))
                }
                Role::Start { .. } => all(self.start),
                Role::Count => all(self.tokens.len()),
                Role::Extended { original } => all((self.length > original).into()),
                role => state.get(&role).cloned().unwrap_or_else(|| all(0)),
            }
        };
        signature.arguments.iter().map(argument).collect()
    }
}

impl Bisection<'_> {
    /// Stops after the first call that differs. Both get the reference's KV cache before each.
    pub fn compare_calls(
        &self,
        trace: &Trace,
        calls: &[TokenCall],
        watch: &mut dyn FnMut(&TokenCall) -> std::ops::ControlFlow<()>,
    ) -> Result<Vec<Bisected>, BisectError> {
        let mut state = HashMap::new();
        let mut compared = Vec::new();
        for call in calls {
            if watch(call).is_break() {
                return Err(BisectError::Stopped);
            }
            let signature = super::signature(trace, &call.entry)?;
            let bisected = self.compare(trace, &call.entry, call.arguments(&signature, &state))?;
            let results = signature.results.iter().zip(&bisected.reference);
            state = results.map(|(result, value)| (result.role, value.clone())).collect();
            let found = bisected.finding.is_some();
            compared.push(bisected);
            if found {
                break;
            }
        }
        Ok(compared)
    }
}
