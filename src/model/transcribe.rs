//! Transcribes speech.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use generate::{EncoderInput, Features, GenerateOptions, LogitRules, Prompt, Sampling};

use super::engine::Completion;
use super::error::ModelError;
use super::handle::Model;
use super::speech::{Speech, TranscribeOptions};

/// The text of an audio file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The code of the spoken language, such as `en`.
    pub language: String,
    /// In seconds.
    pub duration: f64,
    /// One for each window of the model, 30 s for all published ones, in the order of the file.
    pub segments: Vec<SpeechSegment>,
    /// The time that the spectrograms and the network took.
    pub time: Duration,
}

/// The text of a part of an audio file.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeechSegment {
    /// In seconds from the begin of the file.
    pub start: f64,
    /// In seconds from the begin of the file.
    pub end: f64,
    /// Without spaces at both ends.
    pub text: String,
    /// The tokens of the text, without those that ended it.
    pub tokens: Vec<u32>,
}

impl Transcript {
    /// The texts of all segments, joined by spaces.
    pub fn text(&self) -> String {
        let texts = self.segments.iter().map(|segment| segment.text.as_str());
        texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
    }
}

impl Model {
    /// Transcribes an audio file with a Whisper.
    ///
    /// ```no_run
    /// use tracewright::Model;
    /// use tracewright::model::TranscribeOptions;
    ///
    /// let model = Model::open("openai/whisper-base")?;
    /// println!("{}", model.transcribe("speech.mp3", &TranscribeOptions::default())?.text());
    /// # Ok::<(), tracewright::ModelError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the model is no speech model, if it does not know the language, or if the file
    /// cannot be read.
    pub fn transcribe(
        &self,
        file: impl AsRef<Path>,
        options: &TranscribeOptions,
    ) -> Result<Transcript, ModelError> {
        let samples = audio::decode(file.as_ref(), self.sampling_rate()?)?;
        self.transcribe_samples(&samples, options, |_| ControlFlow::Continue(()))
    }

    /// The samples per second that [`transcribe_samples`](Self::transcribe_samples) takes.
    pub fn sampling_rate(&self) -> Result<u32, ModelError> {
        Ok(self.inner.text.speech()?.mel.config().sampling_rate)
    }

    /// Transcribes samples from −1 to 1. `watch` gets each segment, and can end the transcript.
    pub fn transcribe_samples(
        &self,
        samples: &[f32],
        options: &TranscribeOptions,
        mut watch: impl FnMut(&SpeechSegment) -> ControlFlow<()>,
    ) -> Result<Transcript, ModelError> {
        let (speech, begin) = (self.inner.text.speech()?, Instant::now());
        speech.check(&self.inner.text.path, options)?;
        let config = speech.mel.config();
        let seconds = |samples: usize| samples as f64 / f64::from(config.sampling_rate);
        let windows = samples.chunks(config.samples()).map(|window| features(speech, window));
        let mut windows = windows.peekable();
        let language = match (&options.language, windows.peek()) {
            (Some(code), _) => code.clone(),
            (None, Some(first)) if !speech.languages.is_empty() => self.detected(speech, first.clone())?,
            (None, _) => "en".into(),
        };
        let prompt = speech.prompt(speech.language(&language)?, options.translate);
        let duration = seconds(samples.len());
        let mut transcript = Transcript { language, duration, ..Transcript::default() };
        for (index, features) in windows.enumerate() {
            let found = self.heard(features, prompt.clone(), self.greedy(prompt.len()))?;
            let start = seconds(index * config.samples());
            let end = (start + seconds(config.samples())).min(duration);
            let mut tokens = found.generated.tokens;
            while tokens.last().is_some_and(|last| self.stop_tokens().contains(last)) {
                tokens.pop();
            }
            let segment = SpeechSegment { start, end, text: found.text.trim().into(), tokens };
            let is_cancelled = watch(&segment).is_break();
            transcript.segments.push(segment);
            if is_cancelled {
                break;
            }
        }
        transcript.time = begin.elapsed();
        Ok(transcript)
    }

    /// The model's own options. As in transformers, `max_length` does not count the prompt.
    fn greedy(&self, prompt: usize) -> GenerateOptions {
        let options = self.defaults().options.clone();
        let room = self.info().context.saturating_sub(prompt);
        let most = self.defaults().max_new_tokens.or(options.max_length);
        GenerateOptions { max_tokens: most.map_or(room, |most| most.min(room)), max_length: None, ..options }
    }

    /// The language whose token most likely follows the first one.
    fn detected(&self, speech: &Speech, features: Features) -> Result<String, ModelError> {
        let is_language = |token: &u32| speech.languages.iter().any(|(_, language)| language == token);
        let suppress_tokens =
            (0..self.info().vocabulary as u32).filter(|token| !is_language(token)).collect();
        let rules = LogitRules { suppress_tokens, ..LogitRules::default() };
        let sampling = Sampling { temperature: 0.0, rules, ..Sampling::default() };
        let options = GenerateOptions { max_tokens: 1, sampling, ..GenerateOptions::default() };
        let found = self.heard(features, vec![speech.start], options)?.generated.tokens;
        let code = speech.languages.iter().find(|(_, token)| found.contains(token));
        Ok(code.map_or("en", |(code, _)| code).into())
    }

    fn heard(
        &self,
        features: Features,
        prompt: Vec<u32>,
        options: GenerateOptions,
    ) -> Result<Completion, ModelError> {
        let source = Some(EncoderInput::Features(features));
        self.continue_prompt(Prompt { source, ..Prompt::from(prompt) }).options(options).complete()
    }
}

fn features(speech: &Speech, window: &[f32]) -> Features {
    Features { numbers: speech.mel.compute(window), width: speech.mel.config().feature_size }
}
