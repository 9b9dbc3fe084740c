//! Drafts tokens with the network's own module for multi-token prediction.

use std::collections::BTreeMap;

use super::{Certainty, Drafter};
use crate::GenerateError;
use crate::executor::{Executor, Iree};
use crate::network::MtpModule;

/// The largest number of draft tokens. The model card of Qwen3.5 recommends three tokens. The module
/// is trained to predict one token, so each further draft token is less certain.
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
    /// The KV cache of the module. The list is empty before the first call of the module, and after
    /// a failed call.
    state: Vec<E::Buffer>,
    /// For each position of the KV cache, the input of the module. The list contains no draft tokens.
    pairs: Vec<Pair>,
    /// The network's hidden states by position, for positions that the KV cache does not contain, and
    /// for the last position of the KV cache.
    hidden: BTreeMap<usize, Vec<f32>>,
}

/// An input of the module: the hidden state at a position, and the token after the position. If the
/// network did not compute a position in this session, such as the position of a reused prefix, the
/// module has no input for the position. The module's attention uses only distances between
/// positions, so missing positions at the beginning of the sequence change no other position.
struct Pair {
    position: usize,
    token: u32,
}

impl<'a, E: Executor> MtpDrafter<'a, E> {
    /// Creates a drafter for one sequence of the module's network.
    pub fn new(module: MtpModule<'a, E>) -> Self {
        Self { module, state: Vec::new(), pairs: Vec::new(), hidden: BTreeMap::new() }
    }

    /// Processes all pairs of a hidden state and a token up to the position `last`. Returns the most
    /// likely token after the sequence, and the hidden state of the module. Returns `None` if a hidden
    /// state is missing, or if the sequence exceeds the context.
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
