//! Sorts the arguments and results of a network's entry point by role.

use std::ops::Range;

use ops::{ElementType, TensorType};
use trace::{Argument, Part, Role, Signature};

use crate::GenerateError;

/// The fixed cost of a network call, in units of the cost of one token. With Tracewright's kernels, a call
/// with 128 tokens took as long as eight calls with one token; without the kernels, it is lower.
const CALL: usize = 16;

/// A tensor that stays on the device between calls: the state of a layer, or the output of an encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptTensor {
    pub role: Role,
    pub ty: TensorType,
}

impl KeptTensor {
    /// The component of a layer's state, such as the keys of attention; `None` for an encoder's output.
    pub fn part(&self) -> Option<Part> {
        match self.role {
            Role::State { part, .. } => Some(part),
            _ => None,
        }
    }
}

/// The properties that all entry points of a network share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub batch: usize,
    pub context: usize,
    pub vocabulary: usize,
    pub state: Vec<KeptTensor>,
    pub memory: Vec<KeptTensor>,
    /// The lengths above which sequences have another rotary embedding, in ascending order.
    pub originals: Vec<usize>,
}

/// The purpose for which the host calls an entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    /// The entry point chooses the next token for each sequence.
    Step,
    /// The entry point returns the logits after each token of the call.
    Scorer,
    /// The entry point returns the most likely next token after each token of the call.
    Each,
    /// Verifies draft tokens: returns the logits and the most likely next token after each token.
    Verifier,
    /// The entry point runs the encoder, whose output stays on the device.
    Encoder,
}

/// Contains the indices of an entry point's arguments and results, by role.
#[derive(Clone, Debug)]
pub(crate) struct EntryPoint {
    pub name: String,
    pub kind: EntryKind,
    /// The number of sequences that a call computes: the whole batch, or a few consecutive ones.
    pub sequences: usize,
    /// The number of new positions that a call of the entry point computes for each sequence.
    pub chunk: usize,
    pub arguments: Vec<ArgBinding>,
    pub logits: Option<usize>,
    pub token: Option<usize>,
    /// The index of the result with the hidden states.
    pub hidden: Option<usize>,
    /// For each state tensor, or tensor that an encoder fills, the index of the result with its new value.
    pub kept: Vec<usize>,
    pub results: usize,
}

/// The sequences and the positions that one call of an entry point processes.
pub(crate) struct EntryCall<'n> {
    pub entry: &'n EntryPoint,
    /// The index of the first sequence that the call computes.
    pub first: usize,
    /// The new positions of each sequence from `first` on, empty for a sequence that does not change.
    pub ranges: Vec<Range<usize>>,
}

/// The value that a call passes for an argument.
#[derive(Clone, Debug)]
pub(crate) enum ArgBinding {
    Tokens(TensorType),
    Features(TensorType),
    /// The start positions. The value is an integer from the host, or a tensor with one integer per sequence.
    Start(Option<TensorType>),
    Count(Option<TensorType>),
    /// Whether the sequences have more tokens than this number.
    Extended(Option<TensorType>, usize),
    State(usize),
    Memory(usize),
    Sequence(TensorType),
    /// The index of each adapter, and the number of adapters.
    Adapter(TensorType, usize),
    /// The argument's name.
    LowRank(String),
}

/// Whether an entry point takes tokens or features.
pub(crate) fn takes_positions(signature: &Signature) -> bool {
    signature.arguments.iter().any(|argument| matches!(argument.role, Role::Tokens | Role::Features))
}

/// Whether it runs multi-token prediction, from tokens and the hidden states of the positions before them.
pub(crate) fn drafts(signature: &Signature) -> bool {
    let takes = |role| signature.arguments.iter().any(|argument| argument.role == role);
    takes(Role::Tokens) && takes(Role::Features)
}

/// Whether an entry point runs the encoder.
pub(crate) fn encodes(signature: &Signature) -> bool {
    signature.results.iter().any(|result| matches!(result.role, Role::Memory { .. }))
}

/// Finds the argument or result with a given role. Exactly one argument or result must have the given role.
pub(crate) fn only<'a>(
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

pub(crate) fn refuse(entry: &Signature, why: String) -> GenerateError {
    GenerateError::EntryPoint { name: entry.name.clone(), why }
}

/// Returns all arguments or results for whose role `is` returns true, with their indices.
pub(crate) fn kept(list: &[Argument], is: fn(Role) -> bool) -> Vec<(usize, KeptTensor)> {
    let found = list.iter().enumerate().filter(|(_, one)| is(one.role));
    found.map(|(index, one)| (index, KeptTensor { role: one.role, ty: one.ty.clone() })).collect()
}

pub(crate) fn is_state(role: Role) -> bool {
    matches!(role, Role::State { .. })
}

pub(crate) fn is_memory(role: Role) -> bool {
    matches!(role, Role::Memory { .. })
}

impl EntryPoint {
    pub fn new(signature: &Signature, shared: &Shared) -> Result<Self, GenerateError> {
        let Signature { name, arguments, results } = signature;
        let of_tokens = drafts(signature);
        let is_input = |role| role == Role::Tokens || (role == Role::Features && !of_tokens);
        let (_, input) = only(signature, arguments, "tokens", is_input)?;
        let chunk = input.ty.shape.get(1).copied().unwrap_or(1);
        let sequences = input.ty.shape.first().copied().unwrap_or_default();
        let of_call = |all: &[KeptTensor]| -> Vec<KeptTensor> {
            all.iter().map(|one| KeptTensor { role: one.role, ty: one.ty.with_rows(sequences) }).collect()
        };
        let (state, memory) = (of_call(&shared.state), of_call(&shared.memory));
        let shared = &Shared { batch: sequences, state, memory, originals: Vec::new(), ..*shared };
        only(signature, arguments, "count", |role| role == Role::Count)?;
        let kind = Self::kind(signature, shared, chunk)?;
        let kept = match kind {
            EntryKind::Encoder => returned(signature, &shared.memory, is_memory)?,
            _ => returned(signature, &shared.state, is_state)?,
        };
        let mut bound = Vec::new();
        for argument in arguments {
            bound.push(ArgBinding::new(signature, argument, shared, chunk)?);
        }
        let taken = |is: fn(&ArgBinding) -> bool| bound.iter().filter(|bound| is(bound)).count();
        let state = if kind == EntryKind::Encoder { 0 } else { shared.state.len() };
        if taken(|bound| matches!(bound, ArgBinding::State(_))) != state {
            return Err(refuse(signature, "does not take the state that other entry points do".into()));
        }
        let place = |role| results.iter().position(|result| result.role == role);
        let hidden = place(Role::Hidden);
        if let Some(result) = hidden.map(|index| &results[index]) {
            let is_shaped = matches!(result.ty.shape[..], [b, s, _] if (b, s) == (sequences, chunk));
            if !is_shaped || result.ty.element != ElementType::F32 {
                return Err(refuse(
                    signature,
                    format!("gives `{result}`, expected `f32[{sequences},{chunk},…]`"),
                ));
            }
        }
        Ok(Self {
            name: name.clone(),
            kind,
            sequences,
            chunk,
            arguments: bound,
            logits: place(Role::Logits),
            token: place(Role::Token),
            hidden,
            kept,
            results: results.len(),
        })
    }

    /// Determines the kind from the results, and checks the types of the logits and the tokens.
    fn kind(signature: &Signature, shared: &Shared, chunk: usize) -> Result<EntryKind, GenerateError> {
        let Signature { arguments, results, .. } = signature;
        if encodes(signature) {
            return Ok(EntryKind::Encoder);
        }
        let start = Role::Start { context: shared.context };
        only(signature, arguments, "start", |role| role == start)?;
        let token = results.iter().find(|result| result.role == Role::Token);
        let each = TensorType::new(ElementType::I32, [shared.batch, chunk]);
        if let Some(token) = token.filter(|_| results.iter().all(|result| result.role != Role::Logits)) {
            return if token.ty == each {
                Ok(EntryKind::Each)
            } else {
                Err(refuse(signature, format!("gives `{token}` and no logits, expected `{each}`")))
            };
        }
        let (_, typed) = only(signature, results, "logits", |role| role == Role::Logits)?;
        if typed.ty.element != ElementType::F32 || typed.ty.shape.last() != Some(&shared.vocabulary) {
            let vocabulary = shared.vocabulary;
            return Err(refuse(signature, format!("gives `{typed}`, expected `f32[…,{vocabulary}]`")));
        }
        Ok(match token {
            None => EntryKind::Scorer,
            Some(token) if token.ty == each => EntryKind::Verifier,
            Some(_) => EntryKind::Step,
        })
    }

    /// The cost of a call, in units of one token. It has a fixed part, because each call reads all weights.
    pub fn cost(&self) -> usize {
        CALL + self.sequences * self.chunk
    }

    /// Returns the number of features per position, if the entry point takes features instead of tokens.
    pub fn features(&self) -> Option<usize> {
        self.arguments.iter().find_map(|bound| match bound {
            ArgBinding::Features(ty) => ty.shape.last().copied(),
            _ => None,
        })
    }
}

/// For each state tensor in `all`, finds the result of the entry point that returns the tensor's new value.
fn returned(
    signature: &Signature,
    all: &[KeptTensor],
    is: fn(Role) -> bool,
) -> Result<Vec<usize>, GenerateError> {
    let found = kept(&signature.results, is);
    let place = |tensor: &KeptTensor| {
        let index = found.iter().find(|(_, one)| one == tensor).map(|(index, _)| *index);
        let missing = || refuse(signature, format!("does not return `{}`, {}", tensor.role, tensor.ty));
        index.ok_or_else(missing)
    };
    all.iter().map(place).collect()
}

impl ArgBinding {
    fn new(
        signature: &Signature,
        argument: &Argument,
        shared: &Shared,
        chunk: usize,
    ) -> Result<Self, GenerateError> {
        let batch = shared.batch;
        let i32s = |shape: &[usize]| TensorType::new(ElementType::I32, shape);
        let expect = |expected: TensorType| {
            if argument.ty == expected {
                Ok(expected)
            } else {
                Err(refuse(signature, format!("takes `{argument}`, expected the type {expected}")))
            }
        };
        let of_each = || {
            if argument.is_host_scalar() && batch == 1 { Ok(None) } else { expect(i32s(&[batch])).map(Some) }
        };
        let index = |all: &[KeptTensor], why: &str| {
            let is = |one: &KeptTensor| one.role == argument.role && one.ty == argument.ty;
            all.iter().position(is).ok_or_else(|| refuse(signature, format!("takes `{argument}`, {why}")))
        };
        Ok(match argument.role {
            Role::Tokens => Self::Tokens(expect(i32s(&[batch, chunk]))?),
            Role::Features => match (argument.ty.shape.as_slice(), argument.ty.element.is_float()) {
                (&[sequences, positions, _], true) if (sequences, positions) == (batch, chunk) => {
                    Self::Features(argument.ty.clone())
                }
                _ => {
                    let why =
                        format!("takes `{argument}`, expected numbers of the shape [{batch},{chunk},…]");
                    return Err(refuse(signature, why));
                }
            },
            Role::Start { .. } => Self::Start(of_each()?),
            Role::Count => Self::Count(of_each()?),
            Role::Extended { original } => Self::Extended(of_each()?, original),
            Role::State { .. } => Self::State(index(&shared.state, "which other entry points do not")?),
            Role::Memory { .. } => Self::Memory(index(&shared.memory, "which no entry point fills")?),
            Role::Sequence => Self::Sequence(expect(i32s(&[batch]))?),
            Role::Adapter { count } => Self::Adapter(expect(i32s(&[batch]))?, count),
            Role::LowRank => Self::LowRank(argument.name.clone()),
            Role::Plain
            | Role::Patches
            | Role::First
            | Role::Hidden
            | Role::Logits
            | Role::Token
            | Role::Embedding => {
                return Err(refuse(signature, format!("takes `{argument}`, whose role no session fills")));
            }
        })
    }
}

/// Reads the properties that all entry points share from the first entry point that chooses tokens.
pub(crate) fn shared(signatures: &[Signature]) -> Result<Shared, GenerateError> {
    let steps = |s: &&Signature| {
        takes_positions(s) && !encodes(s) && s.results.iter().any(|result| result.role == Role::Logits)
    };
    let tokens = |s: &&Signature| s.arguments.iter().any(|argument| argument.role == Role::Tokens);
    // The first axis of the token argument is the number of sequences that the entry point computes.
    let sequences = |s: &&Signature| {
        s.arguments.iter().find(|a| a.role == Role::Tokens).and_then(|a| a.ty.shape.first().copied())
    };
    let all = signatures.iter().filter(tokens).filter(steps).rev();
    let Some(first) = all.max_by_key(sequences) else {
        return Err(GenerateError::NoEntryPoint { role: Role::Tokens });
    };
    let tokens = only(first, &first.arguments, "tokens", |role| role == Role::Tokens)?.1;
    let start = only(first, &first.arguments, "start", |role| matches!(role, Role::Start { .. }))?.1;
    let Role::Start { context } = start.role else { unreachable!("found by this role") };
    // If a layer had no memory for a position, the layer would overwrite another position.
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
    let encoder = signatures.iter().find(|signature| encodes(signature));
    let tensors = |found: Vec<(usize, KeptTensor)>| found.into_iter().map(|(_, tensor)| tensor).collect();
    let state = tensors(kept(&first.arguments, is_state));
    let memory = encoder.map_or_else(Vec::new, |entry| tensors(kept(&entry.results, is_memory)));
    let mut originals: Vec<usize> = signatures
        .iter()
        .flat_map(|signature| &signature.arguments)
        .filter_map(|argument| match argument.role {
            Role::Extended { original } => Some(original),
            _ => None,
        })
        .collect();
    originals.sort_unstable();
    originals.dedup();
    Ok(Shared { batch, context, vocabulary, state, memory, originals })
}

/// Returns the error message that a network has two entry points of the same kind.
pub(crate) fn twice(kind: EntryKind, first: &str) -> String {
    let what = match kind {
        EntryKind::Scorer => "gives logits and no token",
        EntryKind::Each => "gives a token after each one",
        EntryKind::Verifier => "gives logits and a token after each one",
        EntryKind::Step | EntryKind::Encoder => "fills memory",
    };
    format!("{what}, as `{first}` does; expected one such")
}
