//! [`Request`] describes a text to generate, and [`Pieces`] iterates over the pieces of this text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::task::Poll;
use std::time::Duration;

use generate::{Chat, Follow, GenerateError, GenerateOptions, Prompt, SchemaNote};

use super::ModelError;
use super::adapters::LoadedAdapter;
use super::handle::{Inner, Model};
use super::jobs::{Completion, GenerateJob, Job, Listener, TextEvent};
use super::messages::Message;

impl Model {
    /// Creates a request that answers a conversation with the chat template. You can build messages with
    /// [`user`](super::user), [`system`](super::system) and [`assistant`](super::assistant).
    pub fn chat(&self, messages: impl IntoIterator<Item = Message>) -> Result<Request, ModelError> {
        let all: Vec<Message> = messages.into_iter().collect();
        let messages = all.iter().map(Message::json).collect();
        let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
        Ok(self.continue_prompt(self.prompt(&all, &chat)?))
    }

    /// Creates a request that continues the text `prompt`, without a chat template.
    pub fn generate(&self, prompt: &str) -> Result<Request, ModelError> {
        Ok(self.continue_prompt(self.inner.text.tokenizer()?.encode(prompt)?))
    }

    /// Creates a request that continues a prompt: a list of token ids, or a [`Prompt`] with features,
    /// a source for the encoder, or an adapter. The request fails if the network does not take a part
    /// of the prompt.
    ///
    /// ```no_run
    /// use tracewright::generate::{EncoderInput, Prompt};
    /// use tracewright::Model;
    ///
    /// let model = Model::open("model")?;
    /// println!("{}", model.continue_prompt([5, 17, 3]).text()?);
    /// // An encoder-decoder: the encoder reads the source, and the decoder begins with token 0.
    /// let source = Some(EncoderInput::Tokens(vec![37, 423, 1]));
    /// println!("{}", model.continue_prompt(Prompt { source, ..Prompt::from([0]) }).text()?);
    /// # Ok::<(), tracewright::ModelError>(())
    /// ```
    pub fn continue_prompt(&self, prompt: impl Into<Prompt>) -> Request {
        let (model, options) = (self.inner.clone(), self.defaults().options.clone());
        let (mut prompt, adapter) = (prompt.into(), self.adapter.clone());
        if let Some(adapter) = &adapter {
            prompt.adapter = adapter.index;
        }
        Request { model, adapter, prompt, options, shown: Vec::new() }
    }
}

/// A request to generate a text, with options. [`into_iter`](IntoIterator::into_iter) starts the
/// generation and returns an iterator over pieces of text. [`text`](Self::text) and
/// [`complete`](Self::complete) wait for the whole text.
#[must_use = "a request does nothing until it is iterated over, or its text is asked for"]
#[derive(Clone)]
pub struct Request {
    pub(super) model: Arc<Inner>,
    pub(super) adapter: Option<Arc<LoadedAdapter>>,
    pub(super) prompt: Prompt,
    pub(super) options: GenerateOptions,
    pub(super) shown: Vec<String>,
}

impl Request {
    /// Replaces all options with which the text is generated.
    pub fn options(mut self, options: GenerateOptions) -> Self {
        self.options = options;
        self
    }

    /// Allows the model to [reuse](Prompt::reuse) the state of an earlier sequence that begins with the same
    /// tokens as the prompt. The network then processes only the tokens after the reused ones.
    pub fn reuse(mut self) -> Self {
        self.prompt.reuse = true;
        self
    }

    /// Limits the number of generated tokens.
    pub fn max_tokens(mut self, count: usize) -> Self {
        self.options.max_tokens = count;
        self
    }

    /// Sets the sampler's temperature. With 0, the sampler always takes the most likely token.
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.options.sampling.temperature = temperature;
        self
    }

    /// Sets the seed of the sampler. With the same seed, the sampler draws the same tokens.
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.sampling.seed = seed;
        self
    }

    /// Adds a stop string: the generation ends before it appears in the text.
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.options.stop.push(text.into());
        self
    }

    /// Restricts the answer to JSON that is valid under the given JSON Schema.
    pub fn json_schema(mut self, schema: impl Into<String>) -> Self {
        self.options.follow = Some(Follow::JsonSchema(schema.into()));
        self
    }

    /// Includes the names of special tokens in the text, such as `[TOOL_CALLS]`. By default they have none.
    pub fn show(mut self, special_tokens: Vec<String>) -> Self {
        self.shown = special_tokens;
        self
    }

    /// Returns the request's prompt.
    pub fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    /// Starts the generation, and returns an iterator over pieces of text, or errors during it.
    pub fn stream(self) -> Result<Pieces, ModelError> {
        let (send, events) = channel();
        let running = self.listen(move |event| send.send(event).is_ok())?;
        Ok(Pieces { events: Some(events), completion: None, running })
    }

    /// Starts the generation. `listener` receives events on the engine's thread, and returns whether to
    /// continue. It must not block, as all texts wait for it, and must not own a handle of the model.
    /// Dropping the returned value stops the generation.
    pub fn listen(
        self,
        listener: impl FnMut(TextEvent) -> bool + Send + 'static,
    ) -> Result<Running, ModelError> {
        let Self { model, adapter, prompt, options, shown } = self;
        // A handle holds its adapter, so that no other adapter takes the place.
        let held = adapter.as_ref().map_or(0, |adapter| adapter.index);
        if model.adapters.is_some() && prompt.adapter != held {
            return Err(GenerateError::Adapter { adapter: prompt.adapter, count: 0 }.into());
        }
        let stop = options.stop.clone();
        let options = model.text.token_options(&options)?;
        let notes = options.constraint.as_ref().map_or(Vec::new(), |constraint| constraint.notes().to_vec());
        let listener: Listener = Box::new(listener);
        let cancelled = Arc::new(AtomicBool::new(false));
        let job =
            GenerateJob { prompt, adapter, options, stop, cancelled: cancelled.clone(), shown, listener };
        model.ask(Job::Generate(Box::new(job)))?;
        Ok(Running { cancelled, notes, _model: model })
    }

    /// Waits for the whole text.
    pub fn text(self) -> Result<String, ModelError> {
        Ok(self.complete()?.text)
    }

    /// Waits for the whole text, and returns it with the tokens and the timings.
    pub fn complete(self) -> Result<Completion, ModelError> {
        let mut pieces = self.stream()?;
        pieces.by_ref().find_map(Result::err).map_or(Ok(()), Err)?;
        pieces.into_completion().ok_or(ModelError::Gone)
    }
}

impl IntoIterator for Request {
    type Item = Result<String, ModelError>;
    type IntoIter = Pieces;

    /// Starts the generation. If the model does not support an option, the iterator yields only the error.
    fn into_iter(self) -> Pieces {
        let model = self.model.clone();
        self.stream().unwrap_or_else(|error| {
            let (send, events) = channel();
            // This function owns the receiver, so sending cannot fail.
            let _ = send.send(TextEvent::Failed(error));
            let running = Running { cancelled: Arc::default(), notes: Vec::new(), _model: model };
            Pieces { events: Some(events), completion: None, running }
        })
    }
}

/// An iterator over the pieces of a text, which yields each piece as soon as the model has generated the
/// piece. Each piece is a `String` that is not empty. Dropping the iterator stops the generation.
pub struct Pieces {
    events: Option<Receiver<TextEvent>>,
    completion: Option<Completion>,
    running: Running,
}

/// A sequence in, or waiting for, the batch. Dropping a `Running` value stops the generation.
pub struct Running {
    cancelled: Arc<AtomicBool>,
    notes: Vec<SchemaNote>,
    /// Keeps the engine alive while the text is generated.
    _model: Arc<Inner>,
}

impl Running {
    /// Ends the generation after the next token.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the parts of the request's schema that the text can violate.
    pub fn notes(&self) -> &[SchemaNote] {
        &self.notes
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Pieces {
    /// Ends the generation after the next token. The iterator still returns the text up to the last token,
    /// and [`completion`](Self::completion) reports [`Finish::Cancelled`](generate::Finish::Cancelled).
    pub fn cancel(&self) {
        self.running.cancel();
    }

    /// Returns the parts of the request's schema that the text can violate.
    pub fn notes(&self) -> &[SchemaNote] {
        self.running.notes()
    }

    /// Returns the next item, or `Pending` if none arrives within `time`; you can then call this again.
    pub fn next_within(&mut self, time: Duration) -> Poll<Option<Result<String, ModelError>>> {
        loop {
            let Some(events) = &self.events else { return Poll::Ready(None) };
            let event = match events.recv_timeout(time) {
                Err(RecvTimeoutError::Timeout) => return Poll::Pending,
                event => event.ok(),
            };
            if let Poll::Ready(item) = self.item(event) {
                return Poll::Ready(item);
            }
        }
    }

    /// Converts an event of the engine to an item of the iterator, or to `Pending` if the event
    /// contains no item. If `event` is `None`, the engine has stopped.
    fn item(&mut self, event: Option<TextEvent>) -> Poll<Option<Result<String, ModelError>>> {
        match event {
            // An event with probabilities contains no text.
            Some(TextEvent::Logprobs(_)) => Poll::Pending,
            Some(TextEvent::Piece(piece)) if piece.is_empty() => Poll::Pending,
            Some(TextEvent::Piece(piece)) => Poll::Ready(Some(Ok(piece))),
            Some(TextEvent::Done(completion)) => {
                self.completion = Some(*completion);
                self.events = None;
                Poll::Ready(None)
            }
            Some(TextEvent::Failed(error)) => {
                self.events = None;
                Poll::Ready(Some(Err(error)))
            }
            None => {
                self.events = None;
                Poll::Ready(Some(Err(ModelError::Gone)))
            }
        }
    }

    /// Returns the same value as [`completion`](Self::completion), and consumes the iterator.
    pub fn into_completion(self) -> Option<Completion> {
        self.completion
    }

    /// Returns tokens and timings, or `None` until the iterator has ended without an error.
    pub fn completion(&self) -> Option<&Completion> {
        self.completion.as_ref()
    }
}

impl Iterator for Pieces {
    type Item = Result<String, ModelError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let event = self.events.as_ref()?.recv().ok();
            if let Poll::Ready(item) = self.item(event) {
                return item;
            }
        }
    }
}
