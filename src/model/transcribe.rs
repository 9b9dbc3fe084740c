//! Transcribes speech, window by window (`generate` in `models/whisper/generation_whisper.py` of transformers).

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use audio::{LogMel, Spectrogram};
use generate::{EncoderInput, Features, Finish, GenerateOptions, Prompt, SpeechRules};
use serde::Serialize;

use super::error::ModelError;
use super::handle::Model;
use super::jobs::{AlignJob, Job};
use super::segments::{Judgement, compression_ratio, cut, judge, token_bytes};
use super::speech::{Speech, TranscribeOptions};
use super::words::{AttentionWeights, SpeechWord, words};

/// The text of an audio file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// The code of the spoken language, such as `en`.
    pub language: String,
    /// In seconds.
    pub duration: f64,
    /// In the order of the file. Segments without text are left out.
    pub segments: Vec<SpeechSegment>,
    /// The time that the spectrograms and the network took.
    pub time: Duration,
}

/// The text of a part of an audio file. Its JSON has the names of Whisper's `verbose_json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpeechSegment {
    /// The first frame of the window, of which there are 100 in a second.
    pub seek: usize,
    /// In seconds from the begin of the file.
    pub start: f64,
    /// In seconds from the begin of the file.
    pub end: f64,
    /// As the model wrote it, in most languages with a space at the begin.
    pub text: String,
    /// With the timestamps.
    pub tokens: Vec<u32>,
    /// The temperature with which the window's tokens were drawn.
    pub temperature: f32,
    /// The average logarithm of the probabilities of the window's tokens.
    pub avg_logprob: f64,
    /// The bytes of the window's text divided by those of the compressed text.
    pub compression_ratio: f64,
    /// The probability that nobody speaks in the window, from 0 to 1.
    pub no_speech_prob: f64,
    /// If [`TranscribeOptions::words`] asks for them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<SpeechWord>,
}

impl SpeechSegment {
    /// A segment for each word.
    pub fn by_word(&self) -> Vec<Self> {
        let of = |SpeechWord { word, start, end }: &SpeechWord| {
            let (text, start, end) = (word.clone(), *start, *end);
            Self { text, start, end, words: Vec::new(), ..self.clone() }
        };
        self.words.iter().map(of).collect()
    }
}

/// The progress of [`Model::transcribe_samples`] after a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeechProgress<'a> {
    /// The new segments; none if nobody speaks in the window.
    pub segments: &'a [SpeechSegment],
    /// The begin of the next window, in seconds from the begin of the file.
    pub end: f64,
}

impl Transcript {
    /// The texts of all segments.
    pub fn text(&self) -> String {
        let texts: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        texts.trim().into()
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

    /// Transcribes samples from −1 to 1. `watch` is called after each window, and can end the transcript.
    pub fn transcribe_samples(
        &self,
        samples: &[f32],
        options: &TranscribeOptions,
        watch: impl FnMut(SpeechProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Transcript, ModelError> {
        let speech = self.inner.text.speech()?;
        speech.check(&self.inner.text.path, options)?;
        if options.words {
            // Its compilation is no time of the transcript.
            self.attention(speech, Vec::new(), Features::default())?;
        }
        let begin = Instant::now();
        let mut transcriber = Transcriber::new(self, speech, samples, options)?;
        let segments = transcriber.run(watch)?;
        let language = transcriber.language.map_or("en", |(code, _)| code).into();
        let duration = samples.len() as f64 / f64::from(speech.mel.config().sampling_rate);
        Ok(Transcript { language, duration, segments, time: begin.elapsed() })
    }

    fn attention(
        &self,
        speech: &Speech,
        tokens: Vec<u32>,
        mel: Features,
    ) -> Result<AttentionWeights, ModelError> {
        let heads = speech.alignment_heads.clone();
        let positions = speech.mel.config().frames() / FRAMES_PER_TIMESTAMP;
        let (answer, found) = channel();
        let count = heads.len();
        self.inner.ask(Job::Align(AlignJob { heads, tokens, mel }, answer))?;
        let numbers = found.recv().map_err(|_| ModelError::Gone)??;
        Ok(AttentionWeights { tokens: numbers.len() / (count * positions).max(1), positions, numbers })
    }
}

/// The tokens of a window.
struct Heard {
    /// The tokens before those that the model wrote.
    before: Vec<u32>,
    /// Whether a token ended the text, and not the limit of tokens.
    has_ended: bool,
    /// Without the tokens of language and task, and without the one that ended the text.
    tokens: Vec<u32>,
    temperature: f32,
    avg_logprob: f64,
    no_speech_prob: f64,
}

struct Transcriber<'a> {
    model: &'a Model,
    speech: &'a Speech,
    options: &'a TranscribeOptions,
    windows: SpeechWindows<'a>,
    /// Known after the first window; a model of English only has none.
    language: Option<(&'static str, u32)>,
    prompt: Vec<u32>,
    /// The tokens of all windows so far.
    before: Vec<u32>,
    /// Whether the next window reads `before`.
    reads_before: bool,
}

impl<'a> Transcriber<'a> {
    fn new(
        model: &'a Model,
        speech: &'a Speech,
        samples: &'a [f32],
        options: &'a TranscribeOptions,
    ) -> Result<Self, ModelError> {
        let language = options.language.as_ref().map(|code| speech.language(code)).transpose()?.flatten();
        let prompt = match options.prompt.as_deref().map(str::trim).filter(|prompt| !prompt.is_empty()) {
            Some(prompt) => model.inner.text.tokenizer()?.encode_plain(&format!(" {prompt}"))?,
            None => Vec::new(),
        };
        let windows = SpeechWindows::new(&speech.mel, samples, options.timestamps);
        let (before, reads_before) = (prompt.clone(), options.condition_on_prev_tokens);
        Ok(Self { model, speech, options, windows, language, prompt, before, reads_before })
    }

    fn run(
        &mut self,
        mut watch: impl FnMut(SpeechProgress<'_>) -> ControlFlow<()>,
    ) -> Result<Vec<SpeechSegment>, ModelError> {
        let (mut seek, mut all): (usize, Vec<SpeechSegment>) = (0, Vec::new());
        while seek < self.windows.frames {
            let (features, frames) = self.windows.at(seek);
            let before = all.len();
            seek = match self.heard(&features, seek)? {
                Some(heard) => {
                    let (next, segments) = self.segments(&heard, features, seek, frames)?;
                    all.extend(segments);
                    next
                }
                None => seek + frames,
            };
            if watch(SpeechProgress { segments: &all[before..], end: self.seconds(seek) }).is_break() {
                break;
            }
        }
        Ok(all)
    }

    /// The tokens of a window, or `None` if nobody speaks there.
    fn heard(&mut self, features: &Features, seek: usize) -> Result<Option<Heard>, ModelError> {
        let before = self.tokens_before()?;
        if !before.is_empty() {
            self.detect(features)?;
        }
        let temperatures = match self.options.temperatures.as_slice() {
            [] => &[0.0],
            some => some,
        };
        for (i, &temperature) in temperatures.iter().enumerate() {
            let seed = self.options.seed.wrapping_add((seek + i) as u64);
            let (heard, ratio) = self.draw(features, &before, temperature, seed)?;
            let judgement = judge(self.options, ratio, heard.avg_logprob, heard.no_speech_prob);
            self.reads_before = self.options.condition_on_prev_tokens && temperature < 0.5;
            match judgement {
                Judgement::Silent => return Ok(None),
                Judgement::Failed if i + 1 < temperatures.len() => {}
                _ => return Ok(Some(heard)),
            }
        }
        Ok(None)
    }

    /// Finds the language of a file from its first window alone, because a prompt is a hint of another language.
    fn detect(&mut self, features: &Features) -> Result<(), ModelError> {
        if self.language.is_some() || self.speech.languages.is_empty() {
            return Ok(());
        }
        let rules = self.speech.rules(None, self.options);
        let rules =
            SpeechRules { begin: rules.begin.into_iter().take(1).collect(), timestamps: None, ..rules };
        let mut options = self.drawing(rules, 1, 0.0, 0);
        options.max_tokens = 1;
        let source = Some(EncoderInput::Features(features.clone()));
        let prompt = Prompt { source, ..Prompt::from(vec![self.speech.start]) };
        let generated = self.model.continue_prompt(prompt).options(options).complete()?.generated;
        self.learn_language(&generated.tokens);
        Ok(())
    }

    /// The first token of a window is that of its language.
    fn learn_language(&mut self, tokens: &[u32]) {
        let is_first = |(_, token): &&(&str, u32)| tokens.first() == Some(token);
        self.language = self.language.or_else(|| self.speech.languages.iter().find(is_first).copied());
    }

    /// The tokens that the window reads before its own: half of the context at most, as in transformers.
    fn tokens_before(&self) -> Result<Vec<u32>, ModelError> {
        let tokens = if self.reads_before { &self.before } else { &self.prompt };
        if tokens.is_empty() {
            return Ok(Vec::new());
        }
        let most = (self.model.info().context / 2).saturating_sub(1);
        let kept = &tokens[tokens.len().saturating_sub(most)..];
        Ok([&[self.speech.previous(&self.model.inner.text.path)?], kept].concat())
    }

    /// Also returns the compression ratio of the tokens.
    fn draw(
        &mut self,
        features: &Features,
        before: &[u32],
        temperature: f32,
        seed: u64,
    ) -> Result<(Heard, f64), ModelError> {
        let tokens = [before, &[self.speech.start]].concat();
        let rules = self.speech.rules(self.language.map(|(_, token)| token), self.options);
        let begin = rules.begin.len();
        let options = self.drawing(rules, tokens.len(), temperature, seed);
        let source = Some(EncoderInput::Features(features.clone()));
        let prompt = Prompt { source, ..Prompt::from(tokens.clone()) };
        let generated = self.model.continue_prompt(prompt).options(options).complete()?.generated;
        self.learn_language(&generated.tokens);
        let scores = generated.scores;
        let avg_logprob = scores.logprob / scores.tokens.max(1) as f64;
        let (first, new) = generated.tokens.split_at(begin.min(generated.tokens.len()));
        let (before, tokens) = ([&tokens, first].concat(), new.to_vec());
        let has_ended = generated.finish == Finish::Stop;
        let mut whole = tokens.clone();
        whole.extend(Some(self.speech.end).filter(|_| has_ended));
        let ratio = compression_ratio(&token_bytes(&whole, self.model.info().vocabulary));
        let no_speech_prob = scores.no_speech;
        Ok((Heard { before, has_ended, tokens, temperature, avg_logprob, no_speech_prob }, ratio))
    }

    /// The model's own options. As in transformers, `max_length` does not count the prompt.
    fn drawing(&self, rules: SpeechRules, prompt: usize, temperature: f32, seed: u64) -> GenerateOptions {
        let defaults = self.model.defaults();
        let begin = rules.begin.len();
        let room = self.model.info().context.saturating_sub(prompt + begin);
        let most = defaults.max_new_tokens.or(defaults.options.max_length);
        let max_tokens = begin + most.map_or(room, |most| most.min(room));
        let mut options = GenerateOptions { max_tokens, max_length: None, ..defaults.options.clone() };
        options.sampling.rules.speech = rules;
        (options.sampling.temperature, options.sampling.seed) = (temperature, seed);
        options
    }

    /// The time of a frame. The model does not know where in the last frames the file ends.
    fn seconds(&self, frame: usize) -> f64 {
        let config = self.speech.mel.config();
        let sample = self.windows.samples.len().min(frame * config.hop_length);
        sample as f64 / f64::from(config.sampling_rate)
    }

    /// The position of the encoder at which each token of a window ends.
    fn ends(&self, heard: &Heard, mel: Features, seek: usize) -> Result<Vec<usize>, ModelError> {
        let Heard { before, tokens, has_ended, .. } = heard;
        // As in transformers, a last token without a successor ends where the one before it does.
        let rows = before.len()..before.len() + tokens.len() - usize::from(!has_ended && !tokens.is_empty());
        if rows.is_empty() {
            return Ok(vec![0; tokens.len()]);
        }
        let text = [&before[..], tokens].concat();
        let weights = self.model.attention(self.speech, text, mel)?;
        let sounding = (self.windows.frames - seek) / FRAMES_PER_TIMESTAMP;
        let mut ends = weights.ends(rows, sounding, self.speech.median_filter_width);
        ends.resize(tokens.len(), ends.last().copied().unwrap_or_default());
        Ok(ends)
    }

    /// The words of a segment, in a window with these tokens and ends.
    fn words(
        &self,
        all: &[u32],
        segment: Range<usize>,
        ends: &[usize],
        seek: usize,
    ) -> Result<Vec<SpeechWord>, ModelError> {
        if !self.options.words {
            return Ok(Vec::new());
        }
        let is_text = |index: &usize| all[*index] < self.speech.end;
        let places: Vec<usize> = segment.filter(is_text).collect();
        let tokens: Vec<u32> = places.iter().map(|&place| all[place]).collect();
        let has_spaces = Speech::has_spaces(self.language.map(|(code, _)| code));
        let second = |position: usize| self.seconds(seek + position * FRAMES_PER_TIMESTAMP);
        let timed = |(word, tokens): (String, Range<usize>)| {
            // A word begins where the token before it ends.
            let before = places[tokens.start].checked_sub(1).map_or(0, |place| ends[place]);
            SpeechWord { word, start: second(before), end: second(ends[places[tokens.end - 1]]) }
        };
        let found = words(self.model.inner.text.tokenizer()?, &tokens, has_spaces)?;
        Ok(found.into_iter().map(timed).collect())
    }

    /// The segments with text of a window, and the first frame of the next window.
    fn segments(
        &mut self,
        heard: &Heard,
        mel: Features,
        seek: usize,
        frames: usize,
    ) -> Result<(usize, Vec<SpeechSegment>), ModelError> {
        let tokenizer = self.model.inner.text.tokenizer()?;
        let text = |tokens: &[u32]| tokenizer.decode(&self.speech.words(tokens));
        // Without timestamps, there is one segment.
        let zero = if self.options.timestamps { self.speech.zero } else { u32::MAX };
        let (next, cuts) = cut(&heard.tokens, zero, frames, FRAMES_PER_TIMESTAMP);
        let compression_ratio = compression_ratio(text(&heard.tokens)?.as_bytes());
        let ends = if self.options.words { self.ends(heard, mel, seek)? } else { Vec::new() };
        let mut segments = Vec::new();
        for one in &cuts {
            let tokens = heard.tokens[one.tokens.clone()].to_vec();
            let text = text(&tokens)?;
            if text.trim().is_empty() {
                continue;
            }
            segments.push(SpeechSegment {
                start: self.seconds(seek + one.start),
                end: self.seconds(seek + one.end),
                text,
                tokens,
                seek,
                temperature: heard.temperature,
                avg_logprob: heard.avg_logprob,
                compression_ratio,
                no_speech_prob: heard.no_speech_prob,
                words: self.words(&heard.tokens, one.tokens.clone(), &ends, seek)?,
            });
        }
        for one in cuts {
            let tokens = &heard.tokens[one.tokens];
            // Of two timestamps at the end, the next window reads the first.
            let is_pair = tokens.len() > 2 && tokens[tokens.len() - 2] >= zero;
            self.before.extend(&tokens[..tokens.len() - usize::from(is_pair)]);
        }
        // A window that ends where it began would be heard forever.
        Ok((seek + if next == 0 { frames } else { next }, segments))
    }
}

/// A timestamp is a position of the encoder's output, which stands for two frames.
const FRAMES_PER_TIMESTAMP: usize = 2;

/// The spectrograms that the network reads, one for each window.
struct SpeechWindows<'a> {
    mel: &'a LogMel,
    samples: &'a [f32],
    /// The frames of the whole file.
    frames: usize,
    kind: WindowKind<'a>,
}

enum WindowKind<'a> {
    /// Zeros follow the samples of each window before its spectrogram is computed.
    Apart,
    /// Parts of the spectrogram of a file that is not longer than one window. Zeros follow its samples.
    Short(Vec<f32>),
    /// Parts of the spectrogram of a longer file. As in transformers, zeros follow its frames.
    Long(Spectrogram<'a>),
}

impl<'a> SpeechWindows<'a> {
    fn new(mel: &'a LogMel, samples: &'a [f32], timestamps: bool) -> Self {
        let config = mel.config();
        let kind = if !timestamps {
            WindowKind::Apart
        } else if samples.len() <= config.samples() {
            WindowKind::Short(mel.compute(samples))
        } else {
            WindowKind::Long(mel.spectrogram(samples))
        };
        let frames = match &kind {
            WindowKind::Long(whole) => whole.frames(),
            _ => samples.len().div_ceil(config.hop_length),
        };
        Self { mel, samples, frames, kind }
    }

    /// The spectrogram from a frame on, and how many of its frames are part of the file.
    fn at(&self, seek: usize) -> (Features, usize) {
        let config = self.mel.config();
        let numbers = match &self.kind {
            WindowKind::Apart => {
                let first = self.samples.len().min(seek * config.hop_length);
                self.mel.compute(&self.samples[first..])
            }
            WindowKind::Short(whole) => {
                let mut window = whole[seek * config.feature_size..].to_vec();
                window.resize(whole.len(), 0.0);
                window
            }
            WindowKind::Long(whole) => whole.window(seek),
        };
        let frames = config.frames().min(self.frames - seek);
        (Features { numbers, width: config.feature_size }, frames)
    }
}
