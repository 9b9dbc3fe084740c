//! A conversation of several turns.

use generate::{Chat, Finish, GenerateOptions};
use serde_json::{Map, Value};

use super::{Completion, Model, ModelError, Pieces, Request, assistant, user};

/// A conversation with a model. A clone goes on by itself.
///
/// A turn computes only the text that the chat template adds. Some templates rewrite earlier messages, such as those that leave out
/// old reasoning. Then the slot goes back to where the tokens diverge.
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
    /// The messages of all sides so far.
    pub messages: Vec<Value>,
    /// Functions that the model may call, for the chat template.
    pub tools: Option<Vec<Value>>,
    /// Further variables of the chat template.
    pub variables: Map<String, Value>,
    /// How answers are generated.
    pub options: GenerateOptions,
    /// The text whose tokens are exactly `tokens`, where that is known.
    shown: Option<String>,
    tokens: Vec<u32>,
}

impl Conversation {
    pub(super) fn new(model: Model) -> Self {
        Self {
            model,
            messages: Vec::new(),
            tools: None,
            variables: Map::new(),
            options: GenerateOptions::default(),
            shown: None,
            tokens: Vec::new(),
        }
    }

    /// Says something, and waits for the whole answer.
    ///
    /// # Errors
    /// As [`Model::chat`] and [`Request::text`]. Then the conversation is as it was.
    pub fn say(&mut self, message: impl Into<String>) -> Result<String, ModelError> {
        let mut turn = self.turn(message)?;
        turn.by_ref().find_map(Result::err).map_or(Ok(()), Err)?;
        Ok(turn.finish().map(|completion| completion.text).unwrap_or_default())
    }

    /// Says something, and gives the pieces of the answer. [`Turn::finish`] adds it to the conversation.
    ///
    /// # Errors
    /// As [`say`](Self::say).
    pub fn turn(&mut self, message: impl Into<String>) -> Result<Turn<'_>, ModelError> {
        let prepared = self.prepare(message)?;
        self.begin(prepared)
    }

    /// The tokens of the prompt that a message makes. Nothing is computed yet.
    ///
    /// # Errors
    /// As [`Model::chat`].
    pub fn prepare(&self, message: impl Into<String>) -> Result<PreparedTurn, ModelError> {
        let mut messages = self.messages.clone();
        messages.push(user(message));
        let (tools, variables) = (self.tools.clone(), self.variables.clone());
        let chat = Chat { messages, tools, variables, add_generation_prompt: true, now: None };
        let text = self.model.render(&chat)?;
        let tokenizer = self.model.inner.text.tokenizer()?;
        let added = self.shown.as_ref().and_then(|shown| text.strip_prefix(shown.as_str()));
        let prompt = match added {
            Some(added) if !added.is_empty() => [&self.tokens[..], &tokenizer.encode_plain(added)?].concat(),
            _ => tokenizer.encode_plain(&text)?,
        };
        Ok(PreparedTurn { messages: chat.messages, text, prompt })
    }

    /// Begins the answer to what [`prepare`](Self::prepare) made.
    ///
    /// # Errors
    /// If an option cannot be followed.
    pub fn begin(&mut self, prepared: PreparedTurn) -> Result<Turn<'_>, ModelError> {
        let model = self.model.inner.clone();
        let (prompt, options) = (prepared.prompt.clone(), self.options.clone());
        let pieces = Request { model, prompt, options, continues: true }.stream()?;
        Ok(Turn { conversation: self, pieces, prepared })
    }
}

/// A message whose prompt is known.
pub struct PreparedTurn {
    messages: Vec<Value>,
    text: String,
    prompt: Vec<u32>,
}

/// One answer of a conversation, as it arrives.
pub struct Turn<'a> {
    conversation: &'a mut Conversation,
    pieces: Pieces,
    prepared: PreparedTurn,
}

impl Turn<'_> {
    /// Ends the answer after the next token, as [`Pieces::cancel`] does.
    pub fn cancel(&self) {
        self.pieces.cancel();
    }

    /// Adds message and answer to the conversation. Gives `None` and adds nothing unless all pieces were taken without an error;
    /// of an answer that was cancelled before its first piece nothing is added either.
    pub fn finish(self) -> Option<Completion> {
        let Self { conversation, pieces, prepared: PreparedTurn { mut messages, text, prompt } } = self;
        let completion = pieces.into_completion()?;
        if completion.generated.finish == Finish::Cancelled && completion.text.is_empty() {
            return Some(completion);
        }
        messages.push(assistant(&completion.text));
        conversation.messages = messages;
        let tokens = &completion.generated.tokens;
        // What the template will write of this answer has these tokens, if each has a text and all text was given out.
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
