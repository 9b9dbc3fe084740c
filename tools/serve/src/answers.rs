//! [`Answers`] returns pieces of all answers to one request while the engine generates the answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use generate::Finish;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracewright::GenerateOptions;
use tracewright::generate::{Prompt, SchemaNote};
use tracewright::model::{Completion, Running, TextEvent};

use crate::failure::Failure;
use crate::metrics::{Metrics, ModelMetrics};
use crate::models::Loaded;
use crate::permit::Permit;
use crate::reader::{AnswerReader, Reading};
use crate::update::{AnswerEnd, EndReason, Update, Usage};

/// The prompts of a request, and the options for the answers.
pub struct Ask {
    pub loaded: Arc<Loaded>,
    pub prompts: Vec<Prompt>,
    pub options: GenerateOptions,
    /// The number of answers that the model generates for each prompt. Each answer gets its own seed.
    pub count: usize,
    pub reading: Reading,
    /// The request's field whose schema or grammar the answers follow.
    pub followed: String,
}

/// The answers to one request. Dropping them stops the generation, and frees the slots of the batch.
pub struct Answers {
    events: UnboundedReceiver<(usize, TextEvent)>,
    updates: VecDeque<(usize, Update)>,
    readers: Vec<AnswerReader>,
    /// The number of pieces of text that the engine has sent for each answer.
    pieces: Vec<usize>,
    /// The number of answers that have not ended.
    open: usize,
    /// The number of answers that the model generates for each prompt.
    count: usize,
    prompt_tokens: usize,
    stop: Vec<String>,
    followed: String,
    running: Vec<Running>,
    /// Dropped after `running`, because it frees an unloaded model on another thread.
    loaded: Arc<Loaded>,
    metrics: Arc<ModelMetrics>,
    first: Option<Duration>,
    usage: Usage,
    /// How the answers ended, for the log.
    ends: Vec<&'static str>,
    permit: Permit,
}

impl Answers {
    /// Starts to generate the answers. Returns an error if the options of the request are invalid.
    pub fn begin(ask: Ask, metrics: &Metrics, permit: Permit) -> Result<Self, Failure> {
        let Ask { loaded, prompts, options, count, reading, followed } = ask;
        let metrics = metrics.model(&loaded.name);
        let (send, events) = unbounded_channel();
        let is_special =
            |name: &str| loaded.model.tokenizer().is_some_and(|all| all.special_token(name).is_some());
        let (shown, stop) = (reading.shown(is_special), options.stop.clone());
        let mut running = Vec::new();
        let all = prompts.len() * count;
        let is_empty = options.max_tokens == 0;
        for index in (0..all).filter(|_| !is_empty) {
            let mut options = options.clone();
            options.sampling.seed = options.sampling.seed.wrapping_add((index % count) as u64);
            let send = send.clone();
            let request = loaded.model.continue_prompt(prompts[index / count].clone());
            let request = request.options(options).show(shown.clone());
            let begun = request.listen(move |event| send.send((index, event)).is_ok());
            running.push(begun.map_err(|error| Failure::from(error).about(&followed))?);
        }
        let open = running.len();
        metrics.began(open);
        let ended = |index: usize| {
            let prompt = if index.is_multiple_of(count) { prompts[index / count].tokens().len() } else { 0 };
            let usage = Usage { prompt, ..Usage::default() };
            (index, Update::End(AnswerEnd { reason: EndReason::Length, usage }))
        };
        Ok(Self {
            events,
            updates: (0..all).filter(|_| is_empty).map(ended).collect(),
            readers: (0..all).map(|_| AnswerReader::new(reading.clone())).collect(),
            pieces: vec![0; all],
            open,
            count,
            prompt_tokens: prompts.iter().map(|prompt| prompt.tokens().len()).sum(),
            stop,
            followed,
            loaded,
            metrics,
            first: None,
            usage: Usage::default(),
            ends: Vec::new(),
            running,
            permit,
        })
    }

    /// Returns the parts of the schema that the answers can violate.
    pub fn notes(&self) -> &[SchemaNote] {
        self.running.first().map_or(&[], Running::notes)
    }

    /// Returns the id of the request.
    pub fn request(&self) -> &str {
        &self.permit.id
    }

    /// Returns the total number of tokens of all prompts.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the number of answers.
    pub fn len(&self) -> usize {
        self.readers.len()
    }

    /// Waits for the next update of any answer, with its index; `None` after all answers have ended.
    pub async fn next(&mut self) -> Option<Result<(usize, Update), Failure>> {
        loop {
            if let Some(update) = self.updates.pop_front() {
                return Some(Ok(update));
            }
            if self.open == 0 {
                return None;
            }
            let taken = tokio::select! {
                event = self.events.recv() => self.take(event),
                () = self.permit.closed() => Err(Failure::Stopping),
            };
            if let Err(failure) = taken {
                self.ends.push(failure.code());
                self.metrics.ended(std::mem::take(&mut self.open));
                return Some(Err(failure));
            }
        }
    }

    fn take(&mut self, event: Option<(usize, TextEvent)>) -> Result<(), Failure> {
        let gone = || Failure::from(tracewright::ModelError::Gone);
        let (index, event) = event.ok_or_else(gone)?;
        let reader = self.readers.get_mut(index).ok_or_else(gone)?;
        let pieces = self.pieces.get_mut(index).ok_or_else(gone)?;
        let mut updates = Vec::new();
        match event {
            TextEvent::Piece(piece) => {
                if self.first.is_none() {
                    let time = self.permit.start.elapsed();
                    self.first = Some(time);
                    self.metrics.first_token(time);
                }
                // Each token sends a piece, and the end of the answer sends one more.
                self.metrics.generated(usize::from(*pieces > 0));
                *pieces += 1;
                updates = reader.push(&piece);
            }
            TextEvent::Logprobs(logprobs) => updates.push(Update::Logprobs(logprobs)),
            TextEvent::Failed(error) => return Err(Failure::from(error).about(&self.followed)),
            TextEvent::Done(completion) => {
                updates =
                    reader.finish(matches!(completion.generated.finish, Finish::Length | Finish::Context));
                let has_calls = reader.ends_with_calls();
                let counted = pieces.saturating_sub(1);
                self.metrics.generated(completion.generated.tokens.len().saturating_sub(counted));
                let end = self.end(index, &completion, has_calls);
                self.metrics.answered(&end.usage, &completion.generated);
                self.usage.add(end.usage);
                self.ends.push(end.reason.word());
                self.metrics.ended(1);
                self.open -= 1;
                updates.push(Update::End(end));
            }
        }
        self.updates.extend(updates.into_iter().map(|update| (index, update)));
        Ok(())
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.metrics.ended(self.open);
        if self.open > 0 {
            self.ends.push("the client left");
        }
        let Usage { prompt, cached, completion, .. } = self.usage;
        let milliseconds = |time: Duration| time.as_millis();
        tracing::info!(
            "{} `{}`: {prompt} tokens in, {cached} of them reused, {completion} tokens out, first token after {} ms, \
             end after {} ms: {}",
            self.permit.id,
            self.loaded.name,
            self.first.map_or_else(|| "-".to_owned(), |time| milliseconds(time).to_string()),
            milliseconds(self.permit.start.elapsed()),
            self.ends.join(", "),
        );
    }
}

impl Answers {
    fn end(&self, index: usize, completion: &Completion, has_calls: bool) -> AnswerEnd {
        let Completion { generated, prompt_tokens, .. } = completion;
        let is_first = index.is_multiple_of(self.count);
        let prompt = if is_first { *prompt_tokens } else { 0 };
        let usage = Usage {
            prompt,
            cached: prompt.saturating_sub(generated.prefill_tokens),
            completion: generated.tokens.len(),
            prefill: generated.prefill,
            decode: generated.decode,
        };
        let reason = match generated.finish {
            _ if has_calls => EndReason::ToolCalls,
            Finish::Length | Finish::Context => EndReason::Length,
            Finish::Stop | Finish::Cancelled => {
                self.stop_string(completion).map_or(EndReason::Stop, EndReason::StopString)
            }
        };
        AnswerEnd { reason, usage }
    }

    /// Returns the stop string that ended an answer. Its tokens include it, but its text does not.
    fn stop_string(&self, completion: &Completion) -> Option<String> {
        let tokenizer = self.loaded.model.tokenizer().filter(|_| completion.is_cut)?;
        let whole = tokenizer.decode(&completion.generated.tokens).ok()?;
        let behind = whole.strip_prefix(&*completion.text).unwrap_or_default();
        self.stop.iter().filter(|stop| behind.starts_with(&***stop)).max_by_key(|stop| stop.len()).cloned()
    }
}
