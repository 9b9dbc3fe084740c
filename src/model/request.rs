//! A text that is asked for, and the pieces in which it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use generate::{Follow, GenerateOptions};

use super::engine::{Completion, Event, GenerateJob, Job};
use super::{Inner, ModelError};

/// A text that is asked for, with its options. [`into_iter`](IntoIterator::into_iter) begins it and gives its pieces;
/// [`text`](Self::text) and [`complete`](Self::complete) wait for all of it.
#[must_use = "a request does nothing until it is iterated over, or its text is asked for"]
#[derive(Clone)]
pub struct Request {
    pub(super) model: Arc<Inner>,
    pub(super) prompt: Vec<u32>,
    pub(super) options: GenerateOptions,
    /// Whether a slot that has seen a part of the prompt need not compute it again.
    pub(super) continues: bool,
}

impl Request {
    /// All options at once.
    pub fn options(mut self, options: GenerateOptions) -> Self {
        self.options = options;
        self
    }

    /// At most this many new tokens.
    pub fn max_tokens(mut self, count: usize) -> Self {
        self.options.max_tokens = count;
        self
    }

    /// The temperature of the sampling; 0 takes the most likely token.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.options.sampling.temperature = temperature;
        self
    }

    /// The same seed draws the same tokens.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.sampling.seed = seed;
        self
    }

    /// Ends the text in front of this one; may be repeated.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.options.stop.push(text.into());
        self
    }

    /// The text is JSON that is valid by this JSON Schema.
    pub fn json_schema(mut self, schema: impl Into<String>) -> Self {
        self.options.follow = Some(Follow::JsonSchema(schema.into()));
        self
    }

    /// The tokens of the prompt.
    pub fn prompt_tokens(&self) -> &[u32] {
        &self.prompt
    }

    /// Begins the text, and gives its pieces.
    ///
    /// # Errors
    /// If an option cannot be followed. What is found later is an error of the iterator.
    pub fn stream(self) -> Result<Pieces, ModelError> {
        let Self { model, prompt, options, continues } = self;
        let stop = options.stop.clone();
        let options = model.text.token_options(&options)?;
        let (send, events) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let job =
            GenerateJob { prompt, options, stop, continues, cancelled: cancelled.clone(), events: send };
        model.ask(Job::Generate(Box::new(job)))?;
        Ok(Pieces { events: Some(events), completion: None, cancelled, _model: model })
    }

    /// The whole text.
    ///
    /// # Errors
    /// If an option cannot be followed, the prompt does not fit, or a call fails.
    pub fn text(self) -> Result<String, ModelError> {
        Ok(self.complete()?.text)
    }

    /// The whole text, with its tokens and timings.
    ///
    /// # Errors
    /// As [`text`](Self::text).
    pub fn complete(self) -> Result<Completion, ModelError> {
        let mut pieces = self.stream()?;
        pieces.by_ref().find_map(Result::err).map_or(Ok(()), Err)?;
        pieces.into_completion().ok_or(ModelError::Gone)
    }
}

impl IntoIterator for Request {
    type Item = Result<String, ModelError>;
    type IntoIter = Pieces;

    /// Begins the text. An option that cannot be followed is the iterator's first and only item.
    fn into_iter(self) -> Pieces {
        let model = self.model.clone();
        self.stream().unwrap_or_else(|error| {
            let (send, events) = channel();
            // The receiver is here.
            let _ = send.send(Event::Failed(error));
            Pieces { events: Some(events), completion: None, cancelled: Arc::default(), _model: model }
        })
    }
}

/// The pieces of a text as they arrive, each a `String` that is not empty. Dropping it stops the generation.
pub struct Pieces {
    events: Option<Receiver<Event>>,
    completion: Option<Completion>,
    cancelled: Arc<AtomicBool>,
    /// The engine stays while somebody listens.
    _model: Arc<Inner>,
}

impl Pieces {
    /// Ends the text after the next token. What is there by then still arrives, and [`completion`](Self::completion) says
    /// [`Finish::Cancelled`](generate::Finish::Cancelled).
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Tokens and timings, as [`completion`](Self::completion).
    pub fn into_completion(self) -> Option<Completion> {
        self.completion
    }

    /// Tokens and timings of the text, once the iterator has ended without an error.
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }
}

impl Iterator for Pieces {
    type Item = Result<String, ModelError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.events.as_ref()?.recv() {
                // A token may complete no text.
                Ok(Event::Piece(piece)) if piece.is_empty() => {}
                Ok(Event::Piece(piece)) => return Some(Ok(piece)),
                Ok(Event::Done(completion)) => {
                    self.completion = Some(*completion);
                    self.events = None;
                }
                Ok(Event::Failed(error)) => {
                    self.events = None;
                    return Some(Err(error));
                }
                Err(_) => {
                    self.events = None;
                    return Some(Err(ModelError::Gone));
                }
            }
        }
    }
}
