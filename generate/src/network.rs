//! A loaded program seen as a network: which entry points it has, what they take, and how they are called.

use lower::Signature;
use ops::{ElementType, TensorType};
use runtime::{Argument, Buffer, Function, Program, Runtime, Value};

use crate::Error;

/// A program with the entry points `prefill` and `decode`, and `score` if it has one.
pub struct Network {
    pub(crate) runtime: Runtime,
    pub(crate) prefill: Function,
    pub(crate) decode: Function,
    pub(crate) score: Option<Function>,
    /// Sequences at once.
    pub(crate) batch: usize,
    /// Tokens of a sequence that one `prefill` takes.
    pub(crate) chunk: usize,
    /// Whether a layer keeps fewer positions than the context, and so has forgotten the first ones.
    pub(crate) forgets: bool,
    context: usize,
    vocabulary: usize,
    /// The state: keys and values of each layer.
    state: Vec<TensorType>,
}

/// Arguments before the state: tokens, start, count; in a batch of several, pad.
fn before_state(batch: usize) -> usize {
    if batch > 1 { 4 } else { 3 }
}

impl Network {
    /// The network in `program`, whose entry points have these signatures, for sequences of `context` tokens.
    ///
    /// # Errors
    /// If an entry point is missing or is not called as `dsl::trace_entry_points` declares it.
    pub fn new(
        runtime: &Runtime,
        program: &Program,
        signatures: &[Signature],
        context: usize,
    ) -> Result<Self, Error> {
        let find = |name: &'static str| signatures.iter().find(|s| s.name == name);
        let signature =
            |name: &'static str| find(name).ok_or(Error::EntryPoint { name, why: "is missing".into() });
        let refuse = |name: &'static str, why: String| Error::EntryPoint { name, why };
        let (prefill, decode) = (signature("prefill")?, signature("decode")?);
        let batch =
            prefill.arguments.first().and_then(|tokens| tokens.ty.shape.first()).copied().unwrap_or(1);
        let state_of = |s: &Signature| -> Vec<TensorType> {
            s.arguments.iter().skip(before_state(batch)).map(|a| a.ty.clone()).collect()
        };
        let state = state_of(prefill);
        for (name, s) in [("prefill", Some(prefill)), ("decode", Some(decode)), ("score", find("score"))] {
            let Some(s) = s else { continue };
            let results = if name == "score" { 1 } else { 2 };
            let kept: Vec<TensorType> = s.results.iter().skip(results).map(|r| r.ty.clone()).collect();
            if state_of(s) != state || kept != state {
                return Err(refuse(name, "does not take and return the same state as `prefill`".into()));
            }
            let integers = |ty: &TensorType, rank| {
                ty.element == ElementType::I32 && ty.rank() == rank && (rank == 0 || ty.shape[0] == batch)
            };
            let ranks = [2, 0, 0, 1];
            let given = s.arguments.iter().take(before_state(batch)).zip(ranks);
            if s.arguments.len() < before_state(batch)
                || !given.into_iter().all(|(a, rank)| integers(&a.ty, rank))
            {
                let pad = if batch > 1 { format!(", pad: i32[{batch}]") } else { String::new() };
                let expected = format!("(tokens: i32[{batch},S], start: i32, count: i32{pad}, state…)");
                return Err(refuse(name, format!("does not take {expected}")));
            }
        }
        let Some(&vocabulary) = prefill.results.first().and_then(|logits| logits.ty.shape.last()) else {
            return Err(refuse("prefill", "has no logits".into()));
        };
        if let Some(slots) = state.iter().find(|ty| ty.rank() != 4) {
            return Err(refuse("prefill", format!("has a state of type {slots}, expected `[B,K,N,E]`")));
        }
        Ok(Self {
            runtime: runtime.clone(),
            prefill: program.function("prefill")?,
            decode: program.function("decode")?,
            score: find("score").map(|_| program.function("score")).transpose()?,
            batch,
            chunk: prefill.arguments[0].ty.shape[1],
            forgets: state.iter().any(|ty| ty.shape[2] < context),
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

    /// Tokens of a sequence that one prefill takes.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// Sequences that one call takes.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Keys and values that nothing was written to.
    pub(crate) fn empty_state(&self) -> Result<Vec<Buffer>, Error> {
        self.state.iter().map(|ty| Ok(Buffer::zeros(&self.runtime, ty)?)).collect()
    }

    /// Calls an entry point with the tokens of all sequences, one sequence after the other; the state moves in and
    /// out. Returns the `results` before the state. After an error the state is gone.
    pub(crate) fn call(
        &self,
        function: &Function,
        tokens: &[u32],
        positions: Positions<'_>,
        state: &mut Vec<Buffer>,
        results: usize,
    ) -> Result<Vec<Buffer>, Error> {
        let integers = |shape: &[usize], values: &[u32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Buffer::from_bytes(&self.runtime, &TensorType::new(ElementType::I32, shape), &bytes)
        };
        let mut arguments = vec![
            Argument::Buffer(integers(&[self.batch, tokens.len() / self.batch], tokens)?),
            Argument::I32(positions.start as i32),
            Argument::I32(positions.count as i32),
        ];
        if self.batch > 1 {
            arguments.push(Argument::Buffer(integers(&[self.batch], positions.pad)?));
        }
        arguments.extend(state.drain(..).map(Argument::Buffer));
        let values = function.call(arguments)?;
        let mut buffers: Vec<Buffer> = values.into_iter().filter_map(Value::buffer).collect();
        *state = buffers.split_off(results.min(buffers.len()));
        Ok(buffers)
    }
}

/// Where the tokens of a call stand.
#[derive(Clone, Copy)]
pub(crate) struct Positions<'a> {
    /// The slot of the first.
    pub start: usize,
    /// How many of each sequence are real.
    pub count: usize,
    /// In a batch: how many slots before each sequence's first token are empty.
    pub pad: &'a [u32],
}

/// The numbers in a result.
pub(crate) fn floats(buffer: &Buffer) -> Result<Vec<f32>, Error> {
    let bytes = buffer.read()?;
    Ok(bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect())
}

/// The tokens in a result.
pub(crate) fn ids(buffer: &Buffer) -> Result<Vec<u32>, Error> {
    let bytes = buffer.read()?;
    Ok(bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect())
}
