//! Drafts tokens with a smaller model.

use std::ops::ControlFlow;

use super::{Certainty, Drafter};
use crate::executor::{Executor, Iree};
use crate::{GenerateError, Network, Session, TokenOptions};

/// Drafts the most likely tokens of a smaller model with the same tokenizer.
pub struct DraftModel<'a, E: Executor = Iree> {
    session: Session<'a, E>,
    network: &'a Network<E>,
}

impl<'a, E: Executor> DraftModel<'a, E> {
    /// Creates a drafter that drafts tokens with the given network.
    pub fn new(network: &'a Network<E>) -> Self {
        Self { session: Session::new(network), network }
    }
}

impl<E: Executor> Drafter for DraftModel<'_, E> {
    fn draft(&mut self, tokens: &[u32], most: usize, _: Certainty) -> Result<Vec<u32>, GenerateError> {
        // The small model drafts no tokens if the sequence exceeds the small model's context or
        // contains a token outside its vocabulary.
        let room = (self.network.context() + 1).saturating_sub(tokens.len());
        let is_known = |token: &u32| (*token as usize) < self.network.vocabulary();
        if room == 0 || !tokens.iter().all(is_known) {
            return Ok(Vec::new());
        }
        let shared = tokens.iter().zip(self.session.tokens()).take_while(|(a, b)| a == b).count();
        // The network must process at least the last token, because the logits after this token choose the
        // first draft token.
        let shared = shared.min(tokens.len().saturating_sub(1));
        self.session.truncate(shared);
        let options = TokenOptions { max_tokens: most.min(room), ..TokenOptions::default() };
        let drafted = self.session.generate(&tokens[shared..], &options, |_| ControlFlow::Continue(()))?;
        Ok(drafted.tokens)
    }
}
