//! [`Session`] is one sequence of tokens whose state stays on the device between calls.

use std::ops::ControlFlow;

use crate::entry::EntryKind;
use crate::executor::{Executor, Iree};
use crate::generation::{Generated, Generation, StepOutput, StepRequest, TokenOptions};
use crate::sequence::SequenceInput;
use crate::sequences::Sequences;
use crate::{Drafter, EncoderInput, Features, GenerateError, Network};

/// A sequence of tokens, and the state of the network's layers after these tokens.
///
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use tracewright_generate::{GenerateError, TokenOptions, Network, Session};
///
/// fn two_turns(network: &Network) -> Result<(), GenerateError> {
///     let mut session = Session::new(network);
///     let show = |token| {
///         print!("{token} ");
///         ControlFlow::Continue(())
///     };
///     session.generate(&[5, 17, 3], &TokenOptions::default(), show)?;
///     // The network does not process the first turn again.
///     let answer = session.generate(&[8, 1], &TokenOptions::default(), show)?;
///     println!("{:.1} tokens/s", answer.decode_rate());
///     Ok(())
/// }
/// ```
pub struct Session<'a, E: Executor = Iree> {
    sequences: Sequences<'a, E>,
}

/// The index of the session's sequence in the batch.
const OWN: usize = 0;

impl<'a, E: Executor> Session<'a, E> {
    /// Creates a session without tokens.
    pub fn new(network: &'a Network<E>) -> Self {
        Self { sequences: Sequences::new(network) }
    }

    /// Adds a drafter to the session. If the network has an entry point that verifies draft tokens,
    /// [`generate`](Self::generate) returns the same tokens as without a drafter, after fewer network calls.
    #[must_use]
    pub fn speculate(mut self, drafter: impl Drafter + 'a) -> Self {
        self.sequences.drafters = vec![Box::new(drafter)];
        self
    }

    /// Returns all tokens of the session so far.
    pub fn tokens(&self) -> &[u32] {
        &self.sequences.all[OWN].tokens
    }

    /// Keeps the first `length` tokens. If a layer cannot be rewound, the next call processes them again.
    pub fn truncate(&mut self, length: usize) {
        self.sequences.truncate(OWN, length);
    }

    /// Appends `tokens`, and returns the logits after each of these tokens, as f32 [tokens, vocabulary].
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, GenerateError> {
        self.sequences.network.only(EntryKind::Scorer)?;
        Ok(self.show(StepRequest::All, |all| all.push(OWN, tokens))?.0)
    }

    /// Appends `tokens`, and returns the most likely next token after each appended token.
    pub fn favoured(&mut self, tokens: &[u32]) -> Result<Vec<u32>, GenerateError> {
        self.sequences.network.only(EntryKind::Each)?;
        Ok(self.show(StepRequest::Each, |all| all.push(OWN, tokens))?.1)
    }

    /// Appends tokens, and returns the logits after the last token.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, GenerateError> {
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let (mut logits, _) = self.show(StepRequest::Logits, |all| all.push(OWN, tokens))?;
        logits.pop().ok_or(GenerateError::EmptyPrompt)
    }

    /// Appends features, and returns the logits after the last position. [`tokens`](Self::tokens) contains
    /// `placeholder` for each position.
    pub fn feed_features(
        &mut self,
        features: &Features,
        placeholder: u32,
    ) -> Result<Vec<f32>, GenerateError> {
        let push = |all: &mut Sequences<'a, E>| all.push_features(OWN, features, placeholder);
        let (mut logits, _) = self.show(StepRequest::Logits, push)?;
        logits.pop().ok_or(GenerateError::EmptyPrompt)
    }

    /// Runs the network's encoder, and removes all tokens of the session.
    pub fn encode(&mut self, input: EncoderInput) -> Result<(), GenerateError> {
        let source = Some(self.sequences.network.source(input)?);
        let adapter = self.sequences.all[OWN].input.adapter;
        let input = SequenceInput { source, adapter, ..SequenceInput::default() };
        self.sequences.begin(OWN, 0, Vec::new(), input)
    }

    /// Sets the adapter for all tokens, 0 for none. After a change, the next call processes all again.
    pub fn adapt(&mut self, adapter: u32) -> Result<(), GenerateError> {
        self.sequences.network.check_adapter(adapter)?;
        let own = &mut self.sequences.all[OWN];
        own.input.adapter = adapter;
        own.reset();
        Ok(())
    }

    /// Calls `push`, which appends positions, and returns the network's outputs for them.
    fn show(
        &mut self,
        want: StepRequest,
        push: impl FnOnce(&mut Sequences<'a, E>) -> Result<(), GenerateError>,
    ) -> Result<(Vec<Vec<f32>>, Vec<u32>), GenerateError> {
        let before = self.tokens().len();
        self.flush()?;
        push(&mut self.sequences)?;
        let (mut logits, mut favoured) = (Vec::new(), Vec::new());
        while !self.sequences.is_settled(OWN) {
            match self.sequences.step(want) {
                Ok(mut answers) => match answers.swap_remove(OWN) {
                    StepOutput::Logits(all) => logits.extend(all),
                    StepOutput::Tokens(tokens) => favoured.extend(tokens),
                    StepOutput::Token(_) | StepOutput::Nothing | StepOutput::Verified(_) => {}
                },
                Err(error) => {
                    self.sequences.truncate(OWN, before);
                    return Err(error);
                }
            }
        }
        // If the rotary embedding changed, the network processed all tokens of the session again.
        let appended = self.tokens().len() - before;
        logits.drain(..logits.len().saturating_sub(appended));
        favoured.drain(..favoured.len().saturating_sub(appended));
        Ok((logits, favoured))
    }

    /// If the state of the session was lost, the function processes the session's tokens again.
    fn flush(&mut self) -> Result<(), GenerateError> {
        while !self.sequences.is_settled(OWN) {
            self.sequences.step(StepRequest::Nothing)?;
        }
        Ok(())
    }

    /// Appends `prompt`, and then generates. `on_token` receives each new token immediately, and can cancel.
    /// On return, the last new token is not processed yet.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        options: &TokenOptions,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generated, GenerateError> {
        let generation = Generation::new(prompt, options)?;
        let before = self.tokens().len();
        self.flush()?;
        self.sequences.push(OWN, prompt)?;
        let mut running = Some(generation);
        loop {
            let ended =
                self.sequences.step_all(std::slice::from_mut(&mut running), |_, token| on_token(token));
            match ended.and_then(|mut ended| ended.pop().map(|(_, one)| one).transpose()) {
                Ok(Some(generated)) => return Ok(generated),
                Ok(None) => {}
                Err(error) => {
                    // If the call fails before the first new token, the session removes the prompt.
                    if self.tokens().len() == before + prompt.len() {
                        self.sequences.truncate(OWN, before);
                    }
                    return Err(error);
                }
            }
        }
    }
}
