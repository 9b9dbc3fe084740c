//! [`Answers`] returns pieces of all answers to one request while the engine generates the answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use generate::Finish;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracewright::GenerateOptions;
use tracewright::generate::{Prompt, SchemaNote};
use tracewright::model::{Completion, Running, TextEvent};

use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::models::Loaded;
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
    loaded: Arc<Loaded>,
    metrics: Arc<Metrics>,
    start: Instant,
    is_first: bool,
    running: Vec<Running>,
    _permit: OwnedSemaphorePermit,
}

impl Answers {
    /// Starts to generate the answers. Returns an error if the options of the request are invalid.
    pub fn begin(ask: Ask, metrics: Arc<Metrics>, permit: OwnedSemaphorePermit) -> Result<Self, Failure> {
        let Ask { loaded, prompts, options, count, reading } = ask;
        let (send, events) = unbounded_channel();
        let is_special =
            |name: &str| loaded.model.tokenizer().is_some_and(|all| all.special_token(name).is_some());
        let (shown, stop) = (reading.shown(is_special), options.stop.clone());
        let mut running = Vec::new();
        for index in 0..prompts.len() * count {
            let mut options = options.clone();
            options.sampling.seed = options.sampling.seed.wrapping_add((index % count) as u64);
            let send = send.clone();
            let request = loaded.model.continue_prompt(prompts[index / count].clone());
            let request = request.options(options).show(shown.clone());
            running.push(request.listen(move |event| send.send((index, event)).is_ok())?);
        }
        let open = running.len();
        metrics.began(open);
        Ok(Self {
            events,
            updates: VecDeque::new(),
            readers: (0..open).map(|_| AnswerReader::new(reading.clone())).collect(),
            pieces: vec![0; open],
            open,
            count,
            prompt_tokens: prompts.iter().map(|prompt| prompt.tokens().len()).sum(),
            stop,
            loaded,
            metrics,
            start: Instant::now(),
            is_first: true,
            running,
            _permit: permit,
        })
    }

    /// Returns the parts of the schema that the answers can violate.
    pub fn notes(&self) -> &[SchemaNote] {
        self.running.first().map_or(&[], Running::notes)
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
            let event = self.events.recv().await;
            if let Err(failure) = self.take(event) {
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
                if std::mem::take(&mut self.is_first) {
                    self.metrics.first_token(self.start.elapsed());
                }
                // Each token sends a piece, and the end of the answer sends one more.
                self.metrics.generated(usize::from(*pieces > 0));
                *pieces += 1;
                updates = reader.push(&piece);
            }
            TextEvent::Logprobs(logprobs) => updates.push(Update::Logprobs(logprobs)),
            TextEvent::Failed(error) => return Err(error.into()),
            TextEvent::Done(completion) => {
                updates = reader.finish();
                let has_calls = reader.has_calls();
                let counted = pieces.saturating_sub(1);
                self.metrics.generated(completion.generated.tokens.len().saturating_sub(counted));
                let end = self.end(index, &completion, has_calls);
                self.metrics.answered(&end.usage, &completion.generated);
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
