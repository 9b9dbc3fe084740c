//! A program seen as a network: which entry points it has, and what their arguments and results are.

use ops::{ElementType, TensorType};
use runtime::{Runtime, VmModule};
use trace::{Argument, Part, Role, Signature};

use crate::GenerateError;
use crate::executor::{CallArgument, Executor, Iree};

/// A program that predicts the next token. Everything in it is known by its role.
pub struct Network<E: Executor = Iree> {
    pub(crate) executor: E,
    /// Those that choose a token, by the number of tokens that they take.
    steps: Vec<EntryPoint>,
    /// That with the logits after each token, if there is one.
    scorer: Option<EntryPoint>,
    batch: usize,
    context: usize,
    vocabulary: usize,
    /// What layers remember.
    state: Vec<StateTensor>,
}

/// A tensor of a layer's state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StateTensor {
    layer: usize,
    part: Part,
    ty: TensorType,
}

/// An entry point, and the place of what has a role.
#[derive(Clone, Debug)]
pub(crate) struct EntryPoint {
    name: String,
    /// New tokens of each row.
    pub chunk: usize,
    arguments: Vec<ArgBinding>,
    logits: usize,
    token: Option<usize>,
    /// Of each tensor of the state, in the network's order: which result it becomes.
    state: Vec<usize>,
    results: usize,
}

/// What an argument gets.
#[derive(Clone, Debug)]
enum ArgBinding {
    Tokens(TensorType),
    /// A number of the host, or one for each row.
    Start(Option<TensorType>),
    Count(Option<TensorType>),
    State(usize),
}

/// What a call costs beside its tokens, in tokens: the weights are read once for all of them. Measured with kernels, where a
/// chunk of 128 takes as long as eight single tokens; without them reading counts for less.
const CALL: usize = 16;

/// New tokens of a row, and where they stand.
#[derive(Clone, Copy, Default)]
pub(crate) struct Feed<'a> {
    pub tokens: &'a [u32],
    pub start: usize,
}

/// What a call gives beside the state.
pub(crate) struct StepResults<B> {
    pub logits: B,
    pub token: Option<B>,
}

impl Network {
    /// The network in a compiled program, whose entry points have these signatures.
    ///
    /// # Errors
    /// If an entry point lacks a role.
    pub fn new(
        runtime: &Runtime,
        program: &VmModule,
        signatures: &[Signature],
    ) -> Result<Self, GenerateError> {
        Self::on(Iree::new(runtime, program)?, signatures)
    }
}

/// The one argument or result of a role.
fn only<'a>(
    entry: &Signature,
    list: &'a [Argument],
    role: &str,
    is: impl Fn(Role) -> bool,
) -> Result<(usize, &'a Argument), GenerateError> {
    let mut found = list.iter().enumerate().filter(|(_, one)| is(one.role));
    let kind = if std::ptr::eq(list, entry.arguments.as_slice()) { "argument" } else { "result" };
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(refuse(entry, format!("has no {kind} with the role `{role}`"))),
        (Some(_), Some(_)) => Err(refuse(entry, format!("has several {kind}s with the role `{role}`"))),
    }
}

fn refuse(entry: &Signature, why: String) -> GenerateError {
    GenerateError::EntryPoint { name: entry.name.clone(), why }
}

/// What layers remember, among arguments or results.
fn slots(list: &[Argument]) -> Vec<(usize, StateTensor)> {
    let slot = |(index, one): (usize, &Argument)| match one.role {
        Role::State { layer, part } => Some((index, StateTensor { layer, part, ty: one.ty.clone() })),
        _ => None,
    };
    list.iter().enumerate().filter_map(slot).collect()
}

impl<E: Executor> Network<E> {
    /// Whether an entry point gives the logits after each token: [`Session::score`](crate::Session::score) needs it.
    pub fn has_scorer(&self) -> bool {
        self.scorer.is_some()
    }

    /// The network whose entry points have these signatures, called by `executor`.
    ///
    /// # Errors
    /// If an entry point lacks a role, or no entry point takes a single token.
    pub fn on(executor: E, signatures: &[Signature]) -> Result<Self, GenerateError> {
        let called = |s: &&Signature| s.arguments.iter().any(|argument| argument.role == Role::Tokens);
        let Some(first) = signatures.iter().find(called) else {
            return Err(GenerateError::NoEntryPoint { role: Role::Tokens });
        };
        let state: Vec<StateTensor> = slots(&first.arguments).into_iter().map(|(_, slot)| slot).collect();
        let tokens = only(first, &first.arguments, "tokens", |role| role == Role::Tokens)?.1;
        let start = only(first, &first.arguments, "start", |role| matches!(role, Role::Start { .. }))?.1;
        let Role::Start { context } = start.role else { unreachable!("found by this role") };
        // A position past the slots of a layer would be written over another one.
        for argument in &first.arguments {
            let Role::State { part, .. } = argument.role else { continue };
            let Some((slots, axis)) = part.slots(context, argument.ty.rank()) else { continue };
            if argument.ty.shape[axis] != slots {
                let why = format!("takes `{argument}`, expected {slots} slots for the context of {context}");
                return Err(refuse(first, why));
            }
        }
        let logits = only(first, &first.results, "logits", |role| role == Role::Logits)?.1;
        let sizes = (tokens.ty.shape.first().copied(), logits.ty.shape.last().copied());
        let (Some(batch), Some(vocabulary)) = sizes else {
            return Err(refuse(first, format!("takes `{tokens}` and gives `{logits}`, which have no axes")));
        };
        let (mut steps, mut scorer) = (Vec::new(), None);
        for signature in signatures.iter().filter(called) {
            let entry = EntryPoint::new(signature, &state, batch, context, vocabulary)?;
            match entry.token {
                Some(_) => steps.push(entry),
                None => {
                    if let Some(first) = &scorer {
                        let first: &EntryPoint = first;
                        let why =
                            format!("gives logits and no token, as `{}` does; expected one such", first.name);
                        return Err(refuse(signature, why));
                    }
                    scorer = Some(entry);
                }
            }
        }
        steps.sort_by_key(|entry| entry.chunk);
        match steps.first().is_some_and(|entry| entry.chunk == 1) {
            true => Ok(Self { executor, steps, scorer, batch, context, vocabulary, state }),
            false => Err(GenerateError::NoEntryPoint { role: Role::Token }),
        }
    }

    /// What calls it.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// The longest sequence, prompt and answer together.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Tokens of a sequence that one call takes at most.
    pub fn chunk(&self) -> usize {
        self.steps.last().map_or(1, |entry| entry.chunk)
    }

    /// Sequences that one call takes.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Whether `tokens` may follow `seen` others.
    pub(crate) fn check(&self, tokens: &[u32], seen: usize) -> Result<(), GenerateError> {
        check_tokens(tokens, seen, self.context, self.vocabulary)
    }

    /// The entry point for the next of `tokens` new tokens of a row: the longest, as long as they fill it; then that with
    /// which the rest of them costs least.
    pub(crate) fn step(&self, tokens: usize) -> &EntryPoint {
        let longest = &self.steps[self.steps.len() - 1];
        let cost = |entry: &&EntryPoint| tokens.div_ceil(entry.chunk) * (CALL + entry.chunk);
        let cheapest = self.steps.iter().filter(|_| tokens < longest.chunk).min_by_key(cost);
        cheapest.unwrap_or(longest)
    }

    /// The entry point that gives logits after each token.
    pub(crate) fn scorer(&self) -> Result<&EntryPoint, GenerateError> {
        self.scorer.as_ref().ok_or(GenerateError::EntryPoint {
            name: "score".into(),
            why: "is missing in the program".into(),
        })
    }

    /// Whether a row can go back to position `to` after positions below `written` were written.
    pub(crate) fn rewinds(&self, written: usize, to: usize) -> bool {
        self.state.iter().all(|slot| slot.part.kind.rewinds(written, to))
    }

    /// What layers remember of nothing.
    pub(crate) fn empty(&self) -> Result<Vec<E::Buffer>, GenerateError> {
        self.state.iter().map(|slot| self.executor.zeros(&slot.ty)).collect()
    }

    /// Calls an entry point with new tokens of each row. The state moves in and out: after an error it is gone.
    pub(crate) fn call(
        &self,
        entry: &EntryPoint,
        rows: &[Feed<'_>],
        state: &mut Vec<E::Buffer>,
    ) -> Result<StepResults<E::Buffer>, GenerateError> {
        let bytes =
            |numbers: Vec<u32>| -> Vec<u8> { numbers.into_iter().flat_map(u32::to_le_bytes).collect() };
        let of_rows = |ty: &Option<TensorType>, number: &dyn Fn(&Feed<'_>) -> usize| {
            let numbers: Vec<u32> = rows.iter().map(|row| number(row) as u32).collect();
            match ty {
                None => Ok(CallArgument::Scalar(numbers[0] as i32)),
                Some(ty) => self.executor.upload(ty, &bytes(numbers)).map(CallArgument::Buffer),
            }
        };
        let mut held: Vec<Option<E::Buffer>> = state.drain(..).map(Some).collect();
        let mut arguments = Vec::with_capacity(entry.arguments.len());
        for bound in &entry.arguments {
            arguments.push(match bound {
                ArgBinding::Tokens(ty) => {
                    let padded = rows.iter().flat_map(|row| {
                        let padding = std::iter::repeat_n(0, entry.chunk - row.tokens.len());
                        row.tokens.iter().copied().chain(padding)
                    });
                    CallArgument::Buffer(self.executor.upload(ty, &bytes(padded.collect()))?)
                }
                ArgBinding::Start(ty) => of_rows(ty, &|row| row.start)?,
                ArgBinding::Count(ty) => of_rows(ty, &|row| row.tokens.len())?,
                ArgBinding::State(slot) => match held[*slot].take() {
                    Some(buffer) => CallArgument::Buffer(buffer),
                    None => unreachable!("each part of the state is one argument"),
                },
            });
        }
        let results = self.executor.call(&entry.name, arguments)?;
        if results.len() != entry.results {
            let why = format!("gives {} results, expected {}", results.len(), entry.results);
            return Err(GenerateError::EntryPoint { name: entry.name.clone(), why });
        }
        let mut results: Vec<Option<E::Buffer>> = results.into_iter().map(Some).collect();
        let mut take = |index: usize| match results[index].take() {
            Some(buffer) => buffer,
            None => unreachable!("each result has one role"),
        };
        let answered = StepResults { logits: take(entry.logits), token: entry.token.map(&mut take) };
        state.extend(entry.state.iter().map(|&index| take(index)));
        Ok(answered)
    }
}

impl EntryPoint {
    fn new(
        signature: &Signature,
        state: &[StateTensor],
        batch: usize,
        context: usize,
        vocabulary: usize,
    ) -> Result<Self, GenerateError> {
        let Signature { name, arguments, results } = signature;
        let (tokens, _) = only(signature, arguments, "tokens", |role| role == Role::Tokens)?;
        only(signature, arguments, "start", |role| role == Role::Start { context })?;
        only(signature, arguments, "count", |role| role == Role::Count)?;
        let (logits, typed) = only(signature, results, "logits", |role| role == Role::Logits)?;
        let token = results.iter().position(|result| result.role == Role::Token);
        let i32s = |shape: &[usize]| TensorType::new(ElementType::I32, shape);
        let expect = |argument: &Argument, expected: TensorType| match argument.ty == expected {
            true => Ok(expected),
            false => Err(refuse(signature, format!("takes `{argument}`, expected the type {expected}"))),
        };
        let chunk = arguments[tokens].ty.shape.get(1).copied().unwrap_or(1);
        if typed.ty.element != ElementType::F32 || typed.ty.shape.last() != Some(&vocabulary) {
            return Err(refuse(signature, format!("gives `{typed}`, expected `f32[…,{vocabulary}]`")));
        }
        let of_rows = |argument: &Argument| match argument.is_host_scalar() && batch == 1 {
            true => Ok(None),
            false => expect(argument, i32s(&[batch])).map(Some),
        };
        let kept = slots(results);
        let place = |slot: &StateTensor| kept.iter().find(|(_, one)| one == slot).map(|(index, _)| *index);
        let mut places = Vec::new();
        for slot in state {
            let StateTensor { layer, part, ty } = slot;
            let missing = || refuse(signature, format!("does not return `{part}` of layer {layer}, {ty}"));
            places.push(place(slot).ok_or_else(missing)?);
        }
        let mut bound = Vec::new();
        for argument in arguments {
            bound.push(match argument.role {
                Role::Tokens => ArgBinding::Tokens(expect(argument, i32s(&[batch, chunk]))?),
                Role::Start { .. } => ArgBinding::Start(of_rows(argument)?),
                Role::Count => ArgBinding::Count(of_rows(argument)?),
                Role::State { layer, part } => {
                    let slot = StateTensor { layer, part, ty: argument.ty.clone() };
                    let index = state.iter().position(|one| *one == slot);
                    let other =
                        || refuse(signature, format!("takes `{argument}`, which other entry points do not"));
                    ArgBinding::State(index.ok_or_else(other)?)
                }
                Role::Plain | Role::Logits | Role::Token | Role::Embedding => {
                    let why = format!("takes `{argument}`, whose role no session fills");
                    return Err(refuse(signature, why));
                }
            });
        }
        let taken = bound.iter().filter(|bound| matches!(bound, ArgBinding::State(_))).count();
        if taken != state.len() {
            return Err(refuse(signature, "does not take the state that other entry points do".into()));
        }
        let (name, results) = (name.clone(), results.len());
        Ok(Self { name, chunk, arguments: bound, logits, token, state: places, results })
    }
}

/// Whether `tokens` may follow `seen` others: they fit into the context, and each is one of the vocabulary.
///
/// # Errors
/// If not.
pub fn check_tokens(
    tokens: &[u32],
    seen: usize,
    context: usize,
    vocabulary: usize,
) -> Result<(), GenerateError> {
    let length = seen + tokens.len();
    if length > context {
        return Err(GenerateError::TooLong { length, context });
    }
    match tokens.iter().position(|&token| token as usize >= vocabulary) {
        Some(index) => Err(GenerateError::Token { index, token: tokens[index], vocabulary }),
        None => Ok(()),
    }
}

/// The numbers in a result.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// The tokens in a result.
pub(crate) fn ids(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect()
}
