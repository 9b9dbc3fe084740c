//! [`Network`] is a program that predicts the next token.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ops::{TensorType, Value};
use runtime::{Runtime, VmModule};
use trace::{Role, Signature};

use crate::GenerateError;
use crate::entry::{
    ArgBinding, EntryKind, EntryPoint, KeptTensor, Shared, drafts, refuse, shared, takes_positions, twice,
};
use crate::executor::{CallArgument, Executor, Iree, Patience};
use crate::low_rank::LowRankTensors;

/// The positions that take as long one by one as the compilation of an entry point that computes several.
const LONG: usize = 64;

/// A program that predicts the next token. The network finds the arguments and results of its entry points by
/// their roles.
pub struct Network<E: Executor = Iree> {
    pub(crate) executor: E,
    /// The entry points that choose a token, sorted by the number of tokens that each entry point takes.
    steps: Vec<EntryPoint>,
    /// The entry points that take features instead of tokens, and otherwise equal `steps`.
    feature_steps: Vec<EntryPoint>,
    /// All other entry points, by ascending number of sequences; at most one of each kind per number.
    others: Vec<EntryPoint>,
    shared: Shared,
    /// Whether an entry point leaves an encoder's output as it is, found out in its first call. A compiled
    /// program may write to any argument, and always or never does.
    only_reads: RefCell<BTreeMap<String, bool>>,
    low_rank: LowRankTensors<E::Buffer>,
    /// The entry points of the module for multi-token prediction, if the program has such entry points.
    mtp: Option<MtpEntries>,
}

/// The entry points that run the module for multi-token prediction on one sequence.
pub(crate) struct MtpEntries {
    /// The entry points, sorted by the number of tokens that each entry point takes.
    steps: Vec<EntryPoint>,
    pub shared: Shared,
    /// The number of features of a hidden state.
    pub width: usize,
}

/// The new tokens of a sequence, and the position of the first new token.
#[derive(Clone, Default)]
pub(crate) struct Feed<'a> {
    pub tokens: &'a [u32],
    /// The feature vectors in place of token embeddings, if the entry point takes features.
    pub features: Vec<f32>,
    pub start: usize,
    pub adapter: u32,
    /// The number of all tokens of the sequence, with those of later calls.
    pub length: usize,
}

/// The results of a network call, except the new values of the state tensors.
pub(crate) struct StepResults<B> {
    pub logits: Option<B>,
    pub token: Option<B>,
    pub hidden: Option<B>,
}

impl Network {
    /// Creates a network from a compiled program whose entry points have the given signatures.
    pub fn new(
        runtime: &Runtime,
        program: &VmModule,
        signatures: &[Signature],
    ) -> Result<Self, GenerateError> {
        Self::on(Iree::new(runtime, program)?, signatures)
    }
}

impl<E: Executor> Network<E> {
    /// Whether [`Session::score`](crate::Session::score) has an entry point with the logits after each token.
    pub fn has_scorer(&self) -> bool {
        self.only(EntryKind::Scorer).is_ok()
    }

    /// Whether [`Session::speculate`](crate::Session::speculate) has an entry point that verifies drafts.
    pub fn has_verifier(&self) -> bool {
        self.verifier().is_some()
    }

    /// Creates a network, whose entry points `executor` calls. One of them must take a single token.
    pub fn on(executor: E, signatures: &[Signature]) -> Result<Self, GenerateError> {
        let low_rank = LowRankTensors::zeros(&executor, signatures)?;
        let (drafting, signatures): (Vec<_>, Vec<_>) = signatures.iter().cloned().partition(drafts);
        let mtp = if drafting.is_empty() { None } else { Some(MtpEntries::new(&drafting)?) };
        let shared = shared(&signatures)?;
        let (mut steps, mut feature_steps) = (Vec::new(), Vec::new());
        let mut others: Vec<EntryPoint> = Vec::new();
        for signature in signatures.iter().filter(|signature| takes_positions(signature)) {
            let entry = EntryPoint::new(signature, &shared)?;
            match (entry.kind, entry.features()) {
                (EntryKind::Step, None) => steps.push(entry),
                (EntryKind::Step, Some(_)) => feature_steps.push(entry),
                (EntryKind::Encoder, _) if entry.sequences != shared.batch => {
                    let why =
                        format!("computes {}, expected the whole batch of {}", entry.sequences, shared.batch);
                    return Err(refuse(signature, why));
                }
                (kind, _) => {
                    let is_same =
                        |other: &&EntryPoint| other.kind == kind && other.sequences == entry.sequences;
                    if let Some(first) = others.iter().find(is_same) {
                        return Err(refuse(signature, twice(kind, &first.name)));
                    }
                    others.push(entry);
                }
            }
        }
        steps.sort_by_key(|entry| entry.chunk);
        feature_steps.sort_by_key(|entry| entry.chunk);
        others.sort_by_key(|entry| entry.sequences);
        // Every sequence needs an entry point that can compute it.
        let serves_all = |entry: &EntryPoint| entry.chunk == 1 && entry.sequences == shared.batch;
        if steps.iter().any(serves_all) {
            let only_reads = RefCell::default();
            Ok(Self { executor, steps, feature_steps, others, shared, only_reads, low_rank, mtp })
        } else {
            Err(GenerateError::NoEntryPoint { role: Role::Token })
        }
    }

    /// Returns the executor that calls the entry points.
    pub fn executor(&self) -> &E {
        &self.executor
    }

    /// Returns the largest number of tokens of a sequence, prompt and answer together.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Returns the number of token ids in the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.shared.vocabulary
    }

    /// Returns the largest number of tokens that one call of the network processes for each sequence.
    pub fn chunk(&self) -> usize {
        self.steps.last().map_or(1, |entry| entry.chunk)
    }

    /// Returns the largest number of sequences that one call of the network processes.
    pub fn batch(&self) -> usize {
        self.shared.batch
    }

    /// Checks that `tokens` can follow a sequence of `before` tokens.
    pub(crate) fn check(&self, tokens: &[u32], before: usize) -> Result<(), GenerateError> {
        check_tokens(tokens, before, self.shared.context, self.shared.vocabulary)
    }

    /// The most tokens to which it can grow with the same rotary embedding. A change loses the state.
    pub(crate) fn original(&self, length: usize) -> usize {
        self.shared.originals.iter().copied().find(|&original| original >= length).unwrap_or(usize::MAX)
    }

    /// Whether a sequence of `length` tokens is too long for the network's original rotary embedding.
    pub(crate) fn is_extended(&self, length: usize) -> bool {
        self.shared.originals.first().is_some_and(|&original| length > original)
    }

    /// Whether a network call can compute a few sequences without the others, which then take no time.
    pub(crate) fn serves_parts(&self) -> bool {
        self.steps.iter().any(|entry| entry.sequences < self.shared.batch)
    }

    /// Chooses the cheapest entry point for `positions` positions of `span` consecutive sequences, or one
    /// with the largest chunk if `positions` is at least that. While entry points are still compiled, it
    /// chooses among the others.
    pub(crate) fn step(
        &self,
        span: usize,
        positions: usize,
        of_features: bool,
    ) -> Result<&EntryPoint, GenerateError> {
        let steps = if of_features { &self.feature_steps } else { &self.steps };
        // A block of features is divided only if no call can compute it.
        let fits = |entry: &&EntryPoint| entry.chunk >= positions && entry.sequences >= span;
        if of_features && steps.iter().any(|entry| fits(&entry)) {
            return cheapest(steps.iter().filter(fits), span, positions);
        }
        let patience = if positions < LONG { Patience::Idle } else { Patience::Soon };
        let ready = steps.iter().filter(|entry| self.executor.is_ready(&entry.name, patience));
        cheapest(ready, span, positions).or_else(|_| cheapest(steps.iter(), span, positions))
    }

    /// Returns the network's module for multi-token prediction, which proposes draft tokens.
    pub fn mtp(&self) -> Result<MtpModule<'_, E>, GenerateError> {
        let missing =
            || GenerateError::EntryPoint { name: "draft_1".into(), why: "is missing in the program".into() };
        self.mtp.as_ref().map(|entries| MtpModule { network: self, entries }).ok_or_else(missing)
    }

    /// Returns the number of features per position that the network takes.
    pub(crate) fn features(&self) -> Result<usize, GenerateError> {
        self.step(1, 1, true).map(|entry| entry.features().unwrap_or_default())
    }

    /// Whether the decoder reads the output of an encoder.
    pub(crate) fn reads_memory(&self) -> bool {
        !self.shared.memory.is_empty()
    }

    /// Returns an entry point of the given kind for at least `span` consecutive sequences.
    pub(crate) fn of_kind(&self, kind: EntryKind, span: usize) -> Option<&EntryPoint> {
        self.others.iter().find(|entry| entry.kind == kind && entry.sequences >= span)
    }

    /// Returns the entry point of the given kind that computes the fewest sequences.
    pub(crate) fn only(&self, kind: EntryKind) -> Result<&EntryPoint, GenerateError> {
        let name = match kind {
            EntryKind::Step => "decode",
            EntryKind::Scorer => "score",
            EntryKind::Each => "each",
            EntryKind::Verifier => "verify",
            EntryKind::Encoder => "encode",
        };
        let missing =
            || GenerateError::EntryPoint { name: name.into(), why: "is missing in the program".into() };
        self.of_kind(kind, 1).ok_or_else(missing)
    }

    /// Returns the entry point that verifies draft tokens, if the program contains such an entry point.
    pub(crate) fn verifier(&self) -> Option<&EntryPoint> {
        self.of_kind(EntryKind::Verifier, 1)
    }

    /// Like [`verifier`](Self::verifier), but without an entry point that is still compiled.
    pub(crate) fn ready_verifier(&self) -> Option<&EntryPoint> {
        self.verifier().filter(|entry| self.executor.is_ready(&entry.name, Patience::Idle))
    }

    /// Returns the state tensors, which the layers of the network keep between calls.
    pub(crate) fn state(&self) -> &[KeptTensor] {
        &self.shared.state
    }

    /// Whether a sequence can be rewound to `to`, after calls have written all positions below `written`.
    pub(crate) fn rewinds(&self, written: usize, to: usize) -> bool {
        let mut parts = self.shared.state.iter().filter_map(KeptTensor::part);
        parts.all(|part| part.kind.rewinds(written, to))
    }

    /// Replaces the matrices of adapters. `bytes` returns the little-endian numbers for the name and the type of an
    /// argument with the role [`Role::LowRank`]. Prefixes that sequences of a changed adapter have computed are then
    /// wrong, see [`Batch::forget_adapter`](crate::Batch::forget_adapter).
    pub fn set_low_rank(&self, bytes: impl Fn(&str, &TensorType) -> Vec<u8>) -> Result<(), GenerateError> {
        self.low_rank.set(&self.executor, bytes)
    }

    /// Whether an entry point takes the matrices with this name.
    pub fn has_low_rank(&self, name: &str) -> bool {
        self.low_rank.all().contains_key(name)
    }

    /// Creates the state of a batch of empty sequences.
    pub(crate) fn empty(&self) -> Result<Vec<E::Buffer>, GenerateError> {
        self.shared.state.iter().map(|slot| self.executor.zeros(&slot.ty)).collect()
    }

    /// Computes new positions for consecutive sequences from `first` on. Consumes the state and returns the
    /// new one; an error loses it. The output of the encoder stays.
    pub(crate) fn call(
        &self,
        entry: &EntryPoint,
        first: usize,
        feeds: &[Feed<'_>],
        state: &mut Vec<E::Buffer>,
        memory: &[E::Buffer],
    ) -> Result<StepResults<E::Buffer>, GenerateError> {
        self.call_with(&self.shared, entry, first, feeds, state, memory)
    }

    /// Calls an entry point of the network, or an entry point of the module for multi-token
    /// prediction. `shared` contains the properties of these entry points.
    fn call_with(
        &self,
        shared: &Shared,
        entry: &EntryPoint,
        first: usize,
        feeds: &[Feed<'_>],
        state: &mut Vec<E::Buffer>,
        memory: &[E::Buffer],
    ) -> Result<StepResults<E::Buffer>, GenerateError> {
        let mut whole: Vec<E::Buffer> = std::mem::take(state);
        let mut held = Vec::with_capacity(whole.len());
        if entry.sequences == shared.batch {
            held.extend(whole.drain(..).map(Some));
        } else {
            for (tensor, buffer) in shared.state.iter().zip(&mut whole) {
                held.push(Some(self.executor.rows(buffer, &tensor.ty.with_rows(entry.sequences), first)?));
            }
        }
        let mut arguments = Vec::with_capacity(entry.arguments.len());
        let low_rank = self.low_rank.all();
        let mut watched = Vec::new();
        for bound in &entry.arguments {
            arguments.push(match bound {
                ArgBinding::State(slot) => match held[*slot].take() {
                    Some(buffer) => CallArgument::Buffer(buffer),
                    None => unreachable!("each part of the state is one argument"),
                },
                ArgBinding::Memory(slot) => {
                    let filled = memory.get(*slot).ok_or(GenerateError::NoMemory)?;
                    let ty = &shared.memory[*slot].ty;
                    CallArgument::Buffer(self.memory(ty, filled, (entry, first), &mut watched)?)
                }
                ArgBinding::LowRank(name) => {
                    let (ty, matrices) = &low_rank[name];
                    CallArgument::Buffer(self.unchanged(ty, matrices, entry, &mut watched)?)
                }
                bound => self.input(bound, entry.chunk, first, feeds)?,
            });
        }
        let results = self.executor.call(&entry.name, arguments)?;
        self.compare(entry, &watched)?;
        if results.len() != entry.results {
            let why = format!("gives {} results, expected {}", results.len(), entry.results);
            return Err(GenerateError::EntryPoint { name: entry.name.clone(), why });
        }
        let mut results: Vec<Option<E::Buffer>> = results.into_iter().map(Some).collect();
        let mut take = |index: usize| match results[index].take() {
            Some(buffer) => buffer,
            None => unreachable!("each result has one role"),
        };
        let answered = StepResults {
            logits: entry.logits.map(&mut take),
            token: entry.token.map(&mut take),
            hidden: entry.hidden.map(&mut take),
        };
        if whole.is_empty() {
            state.extend(entry.kept.iter().map(|&index| take(index)));
            return Ok(answered);
        }
        for ((tensor, buffer), &index) in shared.state.iter().zip(whole).zip(&entry.kept) {
            state.push(self.executor.put_rows(&tensor.ty, buffer, first, take(index))?);
        }
        Ok(answered)
    }

    /// A tensor that an encoder filled, for a call: its memory if the entry point only reads it, and else a
    /// copy. A copy of which this is not known is watched, together with the tensor.
    fn memory<'m>(
        &self,
        ty: &TensorType,
        filled: &'m E::Buffer,
        (entry, first): (&EntryPoint, usize),
        watched: &mut Vec<(&'m E::Buffer, E::Buffer)>,
    ) -> Result<E::Buffer, GenerateError> {
        if entry.sequences != self.shared.batch {
            return self.executor.copied_rows(filled, &ty.with_rows(entry.sequences), first);
        }
        self.unchanged(ty, filled, entry, watched)
    }

    /// The whole tensor for a call, its memory or a copy, as for [`memory`](Self::memory).
    fn unchanged<'m>(
        &self,
        ty: &TensorType,
        filled: &'m E::Buffer,
        entry: &EntryPoint,
        watched: &mut Vec<(&'m E::Buffer, E::Buffer)>,
    ) -> Result<E::Buffer, GenerateError> {
        let only_reads = self.only_reads.borrow().get(&entry.name).copied();
        if only_reads == Some(true)
            && let Some(alias) = self.executor.alias(filled)?
        {
            return Ok(alias);
        }
        let copy = self.executor.copy(ty, filled)?;
        if only_reads.is_none() {
            watched.extend(self.executor.alias(&copy)?.map(|alias| (filled, alias)));
        }
        Ok(copy)
    }

    /// Finds out whether the call of an entry point has changed copies.
    fn compare(&self, entry: &EntryPoint, watched: &[(&E::Buffer, E::Buffer)]) -> Result<(), GenerateError> {
        if watched.is_empty() {
            return Ok(());
        }
        let mut only_reads = true;
        for (filled, copy) in watched {
            only_reads &= self.executor.read(filled)? == self.executor.read(copy)?;
        }
        self.only_reads.borrow_mut().insert(entry.name.clone(), only_reads);
        Ok(())
    }

    /// Creates an argument of a network call that contains one or several numbers for each sequence.
    fn input(
        &self,
        bound: &ArgBinding,
        chunk: usize,
        first: usize,
        feeds: &[Feed<'_>],
    ) -> Result<CallArgument<E::Buffer>, GenerateError> {
        let upload = |ty: &TensorType, numbers: &mut dyn Iterator<Item = u32>| {
            let bytes: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
            self.executor.upload(ty, &bytes).map(CallArgument::Buffer)
        };
        let of_each = |ty: &Option<TensorType>, number: &dyn Fn(&Feed<'_>) -> usize| match ty {
            None => Ok(CallArgument::Scalar(feeds.first().map_or(0, number) as i32)),
            Some(ty) => upload(ty, &mut feeds.iter().map(|feed| number(feed) as u32)),
        };
        match bound {
            ArgBinding::Tokens(ty) => {
                let padded = |feed: &Feed<'_>| {
                    let padding = std::iter::repeat_n(0, chunk - feed.tokens.len());
                    feed.tokens.iter().copied().chain(padding).collect::<Vec<u32>>()
                };
                upload(ty, &mut feeds.iter().flat_map(padded))
            }
            ArgBinding::Features(ty) => {
                let of_each = ty.count() / feeds.len().max(1);
                let padded = feeds.iter().flat_map(|feed| {
                    let padding = std::iter::repeat_n(0.0, of_each - feed.features.len());
                    feed.features.iter().map(|&number| f64::from(number)).chain(padding)
                });
                let value = Value::new(ty.clone(), padded);
                self.executor.upload(ty, &value.to_bytes()).map(CallArgument::Buffer)
            }
            ArgBinding::Start(ty) => of_each(ty, &|feed| feed.start),
            ArgBinding::Count(ty) => of_each(ty, &|feed| feed.tokens.len()),
            ArgBinding::Extended(ty, original) => of_each(ty, &|feed| (feed.length > *original).into()),
            ArgBinding::Sequence(ty) => {
                upload(ty, &mut (first..first + feeds.len()).map(|index| index as u32))
            }
            ArgBinding::Adapter(ty, _) => upload(ty, &mut feeds.iter().map(|feed| feed.adapter)),
            ArgBinding::State(_) | ArgBinding::Memory(_) | ArgBinding::LowRank(_) => {
                unreachable!("kept on the device")
            }
        }
    }
}

impl MtpEntries {
    fn new(signatures: &[Signature]) -> Result<Self, GenerateError> {
        let shared = shared(signatures)?;
        let mut steps = Vec::new();
        let mut width = 0;
        for signature in signatures {
            let entry = EntryPoint::new(signature, &shared)?;
            width = entry.features().unwrap_or_default();
            let hidden = entry.hidden.and_then(|index| signature.results[index].ty.shape.last().copied());
            if entry.kind != EntryKind::Step || entry.sequences != 1 || hidden != Some(width) {
                let why =
                    format!("is no step of one sequence that returns hidden states of {width} features");
                return Err(refuse(signature, why));
            }
            steps.push(entry);
        }
        steps.sort_by_key(|entry| entry.chunk);
        Ok(Self { steps, shared, width })
    }
}

/// The module for multi-token prediction, which proposes draft tokens ([`MtpDrafter`](crate::MtpDrafter)).
pub struct MtpModule<'a, E: Executor = Iree> {
    network: &'a Network<E>,
    pub(crate) entries: &'a MtpEntries,
}

impl<E: Executor> Clone for MtpModule<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Executor> Copy for MtpModule<'_, E> {}

impl<E: Executor> MtpModule<'_, E> {
    /// Processes positions after the first `feed.start` ones. Returns the last position's most likely token
    /// and hidden state, and the number of processed positions.
    pub(crate) fn step(
        &self,
        positions: &[(u32, &[f32])],
        start: usize,
        state: &mut Vec<E::Buffer>,
    ) -> Result<(u32, Vec<f32>, usize), GenerateError> {
        let MtpEntries { steps, shared, width } = self.entries;
        let executor = &self.network.executor;
        let entry = cheapest(steps.iter(), 1, positions.len())?;
        let positions = &positions[..positions.len().min(entry.chunk)];
        let tokens: Vec<u32> = positions.iter().map(|(token, _)| *token).collect();
        let features = positions.iter().flat_map(|(_, hidden)| *hidden).copied().collect();
        if state.is_empty() {
            *state = shared.state.iter().map(|slot| executor.zeros(&slot.ty)).collect::<Result<_, _>>()?;
        }
        let length = start + tokens.len();
        let feed = Feed { tokens: &tokens, features, start, adapter: 0, length };
        let found = self.network.call_with(shared, entry, 0, &[feed], state, &[])?;
        let (Some(token), Some(hidden)) = (&found.token, &found.hidden) else {
            unreachable!("each step returns a token and hidden states");
        };
        let token = ids(&executor.read(token)?)[0];
        if token as usize >= shared.vocabulary {
            return Err(GenerateError::Favoured { token, vocabulary: shared.vocabulary });
        }
        let bytes = width * size_of::<f32>();
        let last = (tokens.len() - 1) * bytes;
        let hidden = floats(&executor.read_range(hidden, last..last + bytes)?);
        Ok((token, hidden, tokens.len()))
    }
}

/// Chooses the entry point with the lowest cost for `positions` positions of `span` consecutive sequences.
fn cheapest<'n>(
    steps: impl Iterator<Item = &'n EntryPoint> + Clone,
    span: usize,
    positions: usize,
) -> Result<&'n EntryPoint, GenerateError> {
    let fits = || steps.clone().filter(|entry| entry.sequences >= span);
    let longest = fits().map(|entry| entry.chunk).max();
    let longest = longest.ok_or(GenerateError::NoEntryPoint { role: Role::Features })?;
    let cost = |entry: &&'n EntryPoint| positions.div_ceil(entry.chunk) * entry.cost();
    let cheapest = fits().filter(|entry| positions < longest || entry.chunk == longest).min_by_key(cost);
    cheapest.ok_or(GenerateError::NoEntryPoint { role: Role::Features })
}

/// Checks that `tokens` are in the vocabulary and fit into the context after `before` tokens.
pub fn check_tokens(
    tokens: &[u32],
    before: usize,
    context: usize,
    vocabulary: usize,
) -> Result<(), GenerateError> {
    let length = before + tokens.len();
    if length > context {
        return Err(GenerateError::TooLong { length, context });
    }
    match tokens.iter().position(|&token| token as usize >= vocabulary) {
        Some(index) => Err(GenerateError::Token { index, token: tokens[index], vocabulary }),
        None => Ok(()),
    }
}

/// Converts the bytes of a result to f32 numbers.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// Converts the bytes of a result to token ids.
pub(crate) fn ids(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect()
}

/// Converts little-endian bytes to integers.
pub(crate) fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().copied().map(i32::from_le_bytes).collect()
}
