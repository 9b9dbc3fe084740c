//! Drafts tokens with the network's own module for multi-token prediction.

use std::collections::BTreeMap;

use super::{Certainty, Drafter};
use crate::GenerateError;
use crate::executor::{Executor, Iree};
use crate::network::MtpModule;

/// The most draft tokens, as on the model card of Qwen3.5: each further token is less certain.
const MOST: usize = 3;

/// Drafts tokens with the network's module for multi-token prediction. From a token, and from the
/// network's hidden state at the position before the token, the module predicts the next token. To
/// draft further tokens, the module reads its own draft token and its own hidden state.
///
/// ```no_run
/// use tracewright_generate::{GenerateError, MtpDrafter, Network, Session};
///
/// fn drafting(network: &Network) -> Result<Session<'_>, GenerateError> {
///     Ok(Session::new(network).speculate(MtpDrafter::new(network.mtp()?)))
/// }
/// ```
pub struct MtpDrafter<'a, E: Executor = Iree> {
    module: MtpModule<'a, E>,
    /// The module's KV cache, empty before the first call and after a failed one.
    state: Vec<E::Buffer>,
    /// For each position of the KV cache, the input of the module. The list contains no draft tokens.
    pairs: Vec<Pair>,
    /// Hidden states by position: those that the KV cache does not contain, and that of its last one.
    hidden: BTreeMap<usize, Vec<f32>>,
}

/// An input: a hidden state, and the token after its position. A position that this session did not compute,
/// such as in a reused prefix, has none. Attention uses only distances, so missing positions at the beginning
/// change no other.
struct Pair {
    position: usize,
    token: u32,
}

impl<'a, E: Executor> MtpDrafter<'a, E> {
    /// Creates a drafter for one sequence of the module's network.
    pub fn new(module: MtpModule<'a, E>) -> Self {
        Self { module, state: Vec::new(), pairs: Vec::new(), hidden: BTreeMap::new() }
    }

    /// Processes all pairs up to the position `last`. Returns the most likely token and the hidden state, or
    /// `None` if a hidden state is missing or the context is exceeded.
    fn read(&mut self, tokens: &[u32], last: usize) -> Result<Option<(u32, Vec<f32>)>, GenerateError> {
        let is_same =
            |pair: &&Pair| pair.position < last && tokens.get(pair.position + 1) == Some(&pair.token);
        self.pairs.truncate(self.pairs.iter().take_while(is_same).count());
        if self.state.is_empty() {
            self.pairs.clear();
        }
        let first = self.pairs.last().map_or(0, |pair| pair.position + 1);
        let hidden = self.hidden.range(first..=last);
        let new: Vec<(usize, u32, &[f32])> =
            hidden.map(|(&position, hidden)| (position, tokens[position + 1], hidden.as_slice())).collect();
        let fits = self.pairs.len() + new.len() <= self.module.entries.shared.context;
        if !fits || !self.hidden.contains_key(&last) {
            return Ok(None);
        }
        let (mut done, mut found) = (0, None);
        while done < new.len() {
            let inputs: Vec<_> = new[done..].iter().map(|(_, token, hidden)| (*token, *hidden)).collect();
            let (token, hidden, count) = self.module.step(&inputs, self.pairs.len(), &mut self.state)?;
            let read = new[done..done + count].iter();
            self.pairs.extend(read.map(|&(position, token, _)| Pair { position, token }));
            done += count;
            found = Some((token, hidden));
        }
        self.hidden = self.hidden.split_off(&last);
        Ok(found)
    }
}

impl<E: Executor> Drafter for MtpDrafter<'_, E> {
    fn draft(&mut self, tokens: &[u32], most: usize, _: Certainty) -> Result<Vec<u32>, GenerateError> {
        let Some(last) = tokens.len().checked_sub(2) else { return Ok(Vec::new()) };
        let Some((mut token, mut hidden)) = self.read(tokens, last)? else { return Ok(Vec::new()) };
        let room = self.module.entries.shared.context - self.pairs.len();
        let mut drafted = vec![token];
        while drafted.len() < most.min(MOST).min(room + 1) {
            let start = self.pairs.len() + drafted.len() - 1;
            (token, hidden, _) = self.module.step(&[(token, &hidden)], start, &mut self.state)?;
            drafted.push(token);
        }
        Ok(drafted)
    }

    fn observe(&mut self, start: usize, hidden: &[f32]) {
        self.pairs.retain(|pair| pair.position < start);
        self.hidden.split_off(&start);
        let rows = hidden.chunks(self.module.entries.width).map(<[f32]>::to_vec);
        self.hidden.extend((start..).zip(rows));
    }
}
