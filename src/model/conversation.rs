//! Manages a conversation with a model over several turns.

use generate::{Chat, Finish, GenerateOptions, SavedFault, SavedSequence};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::image_prompt::ImagePrompt;
use super::messages::{Message, assistant, user};
use super::{Completion, Model, ModelError, Pieces};

impl Model {
    /// Starts a conversation with several turns, each of which computes only the new tokens.
    pub fn conversation(&self) -> Conversation {
        Conversation::new(self.clone())
    }
}

/// A conversation with a model. The clone of a conversation is an independent conversation that
/// begins with the same messages.
///
/// In each turn, the network computes only the new tokens that the chat template adds. Some chat
/// templates rewrite earlier messages, for example to remove old reasoning. If the template changes
/// an earlier message, the network computes all tokens after the first difference again.
///
/// ```no_run
/// use tracewright::Model;
///
/// let model = Model::open("SmolLM2-135M-Instruct.gguf")?;
/// let mut chat = model.conversation();
/// for question in ["What is the capital of France?", "And of Italy?"] {
///     println!("{}", chat.say(question)?);
/// }
/// # Ok::<(), tracewright::ModelError>(())
/// ```
#[derive(Clone)]
pub struct Conversation {
    model: Model,
    /// The messages of the conversation so far.
    pub messages: Vec<Message>,
    /// Descriptions of functions that the model may call, for the chat template, or `None` for none.
    pub tools: Option<Vec<Value>>,
    /// Additional variables for the chat template, by name.
    pub variables: Map<String, Value>,
    /// The options with which the model generates all further answers.
    pub options: GenerateOptions,
    /// A text that the tokenizer encodes as exactly `tokens`, if such a text is known.
    shown: Option<String>,
    tokens: Vec<u32>,
}

impl Conversation {
    pub(super) fn new(model: Model) -> Self {
        let options = model.defaults().options.clone();
        Self {
            model,
            messages: Vec::new(),
            tools: None,
            variables: Map::new(),
            options,
            shown: None,
            tokens: Vec::new(),
        }
    }

    /// Sends a message, and waits for the whole answer. An error leaves the conversation unchanged.
    pub fn say(&mut self, message: impl Into<String>) -> Result<String, ModelError> {
        let mut turn = self.turn(message)?;
        turn.by_ref().find_map(Result::err).map_or(Ok(()), Err)?;
        Ok(turn.finish().map(|completion| completion.text).unwrap_or_default())
    }

    /// Sends a message, and returns an iterator over the answer, which [`Turn::finish`] adds.
    pub fn turn(&mut self, message: impl Into<String>) -> Result<Turn<'_>, ModelError> {
        let prepared = self.prepare(message)?;
        self.begin(prepared)
    }

    /// Renders and tokenizes the prompt for a message. The function does not run the network yet.
    pub fn prepare(&self, message: impl Into<String>) -> Result<PreparedTurn, ModelError> {
        self.prepare_message(user(message))
    }

    /// Like [`prepare`](Self::prepare), for a message with any parts, such as images.
    pub fn prepare_message(&self, message: Message) -> Result<PreparedTurn, ModelError> {
        let mut all = self.messages.clone();
        all.push(message);
        let messages = all.iter().map(Message::json).collect();
        let (tools, variables) = (self.tools.clone(), self.variables.clone());
        let chat = Chat { messages, tools, variables, add_generation_prompt: true, now: None };
        if let Some(images) = self.model.image_prompt(&all, &chat)? {
            let (text, prompt) = (images.text().to_owned(), images.tokens().to_vec());
            return Ok(PreparedTurn { messages: all, text, prompt, images: Some(images) });
        }
        let text = self.model.render(&chat)?;
        let tokenizer = self.model.inner.text.tokenizer()?;
        let added = self.shown.as_ref().and_then(|shown| text.strip_prefix(shown.as_str()));
        let prompt = match added {
            Some(added) if !added.is_empty() => [&self.tokens[..], &tokenizer.encode_plain(added)?].concat(),
            _ => tokenizer.encode_plain(&text)?,
        };
        Ok(PreparedTurn { messages: all, text, prompt, images: None })
    }

    /// Copies the messages, and the state (such as the KV cache) after them, for [`resume`](Self::resume).
    ///
    /// # Errors
    /// Returns an error if a message has an image, which a saved sequence cannot contain.
    pub fn save(&self) -> Result<SavedSequence, ModelError> {
        let mut parts = self.messages.iter().flat_map(|message| &message.parts);
        if parts.any(|part| part.image().is_some()) {
            let (path, does) = (self.model.inner.text.path.clone(), "reads images");
            return Err(ModelError::Kind { path, does, asked: "save a conversation with images" });
        }
        let notes = json!({ "messages": self.messages, "shown": self.shown, "tokens": self.tokens });
        Ok(self.model.save(&self.tokens)?.with_notes(notes))
    }

    /// Replaces this conversation by a saved one, without computing its tokens again.
    pub fn resume(&mut self, saved: SavedSequence) -> Result<(), ModelError> {
        let notes: Notes = match serde_json::from_value(saved.notes().clone()) {
            Ok(notes) => notes,
            Err(_) => return Err(saved.refuse(SavedFault::NoConversation).into()),
        };
        self.model.load(saved)?;
        let Notes { messages, shown, tokens } = notes;
        (self.messages, self.shown, self.tokens) = (messages, shown, tokens);
        Ok(())
    }

    /// Begins the answer to a [prepared](Self::prepare) message.
    pub fn begin(&mut self, mut prepared: PreparedTurn) -> Result<Turn<'_>, ModelError> {
        let request = match prepared.images.take() {
            Some(images) => self.model.continue_prompt(self.model.see(images)?),
            None => self.model.continue_prompt(&prepared.prompt),
        };
        let pieces = request.options(self.options.clone()).reuse().stream()?;
        Ok(Turn { conversation: self, pieces, prepared })
    }
}

/// The messages and tokens that a saved conversation contains in addition to the state.
#[derive(Deserialize)]
struct Notes {
    messages: Vec<Message>,
    shown: Option<String>,
    tokens: Vec<u32>,
}

/// A message that is rendered and tokenized, but not sent to the model yet.
pub struct PreparedTurn {
    messages: Vec<Message>,
    text: String,
    prompt: Vec<u32>,
    /// The prompt, if a message has images.
    images: Option<ImagePrompt>,
}

/// An iterator over the pieces of an answer in a conversation.
pub struct Turn<'a> {
    conversation: &'a mut Conversation,
    pieces: Pieces,
    prepared: PreparedTurn,
}

impl Turn<'_> {
    /// Ends the answer after the next token, like [`Pieces::cancel`].
    pub fn cancel(&self) {
        self.pieces.cancel();
    }

    /// Adds the message and its answer. With an error or a piece left to take, nothing changes, and the result
    /// is `None`. Nothing changes after a cancellation before the first piece, either.
    pub fn finish(self) -> Option<Completion> {
        let Self { conversation, pieces, prepared: PreparedTurn { mut messages, text, prompt, .. } } = self;
        let completion = pieces.into_completion()?;
        if completion.generated.finish == Finish::Cancelled && completion.text.is_empty() {
            return Some(completion);
        }
        messages.push(assistant(&completion.text));
        conversation.messages = messages;
        let tokens = &completion.generated.tokens;
        // In the next prompt, the chat template renders this answer to the same tokens under two
        // conditions: the answer contains no special tokens, and no stop string or cancellation
        // ended the answer.
        let tokenizer = conversation.model.tokenizer();
        let is_known = tokenizer.is_some_and(|all| !tokens.iter().any(|&token| all.is_special(token)))
            && !completion.is_cut
            && completion.generated.finish != Finish::Cancelled;
        conversation.shown = is_known.then(|| text + &completion.text);
        conversation.tokens = [prompt, tokens.clone()].concat();
        Some(completion)
    }
}

impl Iterator for Turn<'_> {
    type Item = Result<String, ModelError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pieces.next()
    }
}
