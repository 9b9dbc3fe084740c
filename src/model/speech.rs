//! The spectrogram and the special tokens of a speech model.

use std::path::Path;

use audio::{AudioError, LogMel, MelConfig};
use generate::{GenerationDefaults, SpeechRules, TimestampRules, Tokenizer};
use models::SpeechConfig;

use super::ModelError;

/// What [`Model::transcribe`](super::Model::transcribe) writes. The defaults are those of the model cards of Whisper.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscribeOptions {
    /// The code of the spoken language, such as `en`. `None` detects it in the first window of a file.
    pub language: Option<String>,
    /// Whether to write English instead of the spoken language.
    pub translate: bool,
    /// Whether the model writes timestamps, which split the text into segments. Without them, each window of 30 s
    /// is a segment, and a word at the border of two windows can be wrong.
    pub timestamps: bool,
    /// Whether each segment has the times of its words. They take a second network call for each window.
    pub words: bool,
    /// A text that could stand before the transcript, with names in their spelling.
    pub prompt: Option<String>,
    /// Whether the model reads the text of the windows before. A repetition then easily goes on.
    pub condition_on_prev_tokens: bool,
    /// The temperatures that are tried one after another, until a window passes the next two thresholds.
    pub temperatures: Vec<f32>,
    /// Fails a window whose tokens' bytes compress better than this, because it repeats itself.
    pub compression_ratio_threshold: Option<f64>,
    /// Fails a window whose tokens have a lower average logarithm of their probabilities.
    pub logprob_threshold: Option<f64>,
    /// Skips a window that fails [`logprob_threshold`](Self::logprob_threshold), if nobody speaks with a larger
    /// probability than this.
    pub no_speech_threshold: Option<f64>,
    /// The seed for temperatures above 0.
    pub seed: u64,
}

impl Default for TranscribeOptions {
    fn default() -> Self {
        Self {
            language: None,
            translate: false,
            timestamps: true,
            words: false,
            prompt: None,
            condition_on_prev_tokens: false,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio_threshold: Some(1.35),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            seed: 0,
        }
    }
}

/// The codes of the languages that a Whisper can have, in the order of their tokens.
const LANGUAGES: &str = "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no \
    th ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so \
    af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su yue";

/// The vocabulary of the published models for English, which have the tokens of all languages too.
const ENGLISH: usize = 51_864;

/// Keys of `generation_config.json` that are applied here, or that concern timestamps and older versions.
const KEYS: &[&str] = &[
    "alignment_heads",
    "is_multilingual",
    "lang_to_id",
    "max_initial_timestamp_index",
    "median_filter_width",
    "no_timestamps_token_id",
    "prev_sot_token_id",
    "return_timestamps",
    "task_to_id",
];

/// Whether a key of `generation_config.json` is among [`KEYS`], or has a value that the default options have too.
fn is_applied(key: &str, value: &str, no_timestamps: u32) -> bool {
    match key {
        "forced_decoder_ids" => value.starts_with("[[1,null]") || value == format!("[[1,{no_timestamps}]]"),
        "task" => value == "\"transcribe\"",
        key => KEYS.contains(&key),
    }
}

pub(super) struct Speech {
    pub mel: LogMel,
    /// Each with its code, such as `en`; empty for a model of English only.
    pub languages: Vec<(&'static str, u32)>,
    pub start: u32,
    /// The token before a prompt, if the tokenizer has it.
    previous: Option<u32>,
    /// The timestamp of 0 seconds.
    pub zero: u32,
    /// The token that ends a text.
    pub end: u32,
    max_initial: Option<u32>,
    transcribe: u32,
    translate: u32,
    /// The layer and the number of each attention head that follows the speech.
    pub alignment_heads: Vec<[usize; 2]>,
    /// The width of the median filter over their attention.
    pub median_filter_width: usize,
}

/// The codes of languages without spaces between words.
const UNSPACED: &[&str] = &["zh", "ja", "th", "lo", "my", "yue"];

/// The heads that `generation_config.json` names, or as in openai-whisper all of the second half of the layers.
fn alignment_heads(
    folder: &Path,
    config: &SpeechConfig,
    defaults: &GenerationDefaults,
) -> Result<Vec<[usize; 2]>, ModelError> {
    const KEY: &str = "alignment_heads";
    let Some((_, found)) = defaults.unapplied.iter().find(|(key, value)| key == KEY && value != "null")
    else {
        let layers = config.layers / 2..config.layers;
        return Ok(layers.flat_map(|layer| (0..config.heads).map(move |head| [layer, head])).collect());
    };
    let is_known = |heads: &Vec<[usize; 2]>| {
        let within = |&[layer, head]: &[usize; 2]| layer < config.layers && head < config.heads;
        !heads.is_empty() && heads.iter().all(within)
    };
    let heads = serde_json::from_str(found).ok().filter(is_known);
    heads.ok_or_else(|| {
        let SpeechConfig { layers, heads, .. } = config;
        let expected = format!("a list of pairs, each a layer below {layers} and a head below {heads}");
        AudioError::Key { path: folder.join(DEFAULTS), key: KEY, found: errors::escaped(found), expected }
            .into()
    })
}

const DEFAULTS: &str = "generation_config.json";

impl Speech {
    /// Removes the keys of `generation_config.json` that it knows from those that are not applied.
    pub fn read(
        folder: &Path,
        config: &SpeechConfig,
        tokenizer: Option<&Tokenizer>,
        defaults: &mut GenerationDefaults,
    ) -> Result<Self, ModelError> {
        let tokenizer = tokenizer.ok_or_else(|| ModelError::NoTokenizer { path: folder.into() })?;
        let usual = || MelConfig { feature_size: config.bins, ..MelConfig::default() };
        let mel = MelConfig::read(folder)?.unwrap_or_else(usual);
        let differs = |key, found: usize, expected: usize| {
            let expected = format!("{expected}, as the network in `config.json` has");
            AudioError::Key { path: folder.into(), key, found: found.to_string(), expected }
        };
        if mel.feature_size != config.bins {
            return Err(differs("feature_size", mel.feature_size, config.bins).into());
        }
        if mel.frames() != config.frames {
            return Err(differs("nb_max_frames", mel.frames(), config.frames).into());
        }
        let token = |name: &str| {
            let missing = || ModelError::SpeechToken { path: folder.into(), token: name.into() };
            tokenizer.special_token(name).ok_or_else(missing)
        };
        let is_english = |(key, value): &(String, String)| key == "is_multilingual" && value == "false";
        let english_only = config.vocabulary == ENGLISH || defaults.unapplied.iter().any(is_english);
        let no_timestamps = token("<|notimestamps|>")?;
        if no_timestamps == 0 {
            let token = "<|notimestamps|> behind other tokens".into();
            return Err(ModelError::SpeechToken { path: folder.into(), token });
        }
        let alignment_heads = alignment_heads(folder, config, defaults)?;
        let max_initial = defaults.unapplied.iter().find(|(key, _)| key == "max_initial_timestamp_index");
        let max_initial = max_initial.and_then(|(_, value)| value.parse().ok());
        defaults.unapplied.retain(|(key, value)| !is_applied(key, value, no_timestamps));
        let languages = LANGUAGES.split_whitespace().filter(|_| !english_only);
        let known = |code| Some((code, tokenizer.special_token(&format!("<|{code}|>"))?));
        Ok(Self {
            mel: LogMel::new(mel)?,
            languages: languages.filter_map(known).collect(),
            start: token("<|startoftranscript|>")?,
            previous: tokenizer.special_token("<|startofprev|>"),
            zero: no_timestamps + 1,
            end: token("<|endoftext|>")?,
            max_initial,
            transcribe: token("<|transcribe|>")?,
            translate: token("<|translate|>")?,
            alignment_heads,
            median_filter_width: config.median_filter_width,
        })
    }

    /// Returns the sampling rate that the spectrogram takes.
    pub fn check(&self, path: &Path, options: &TranscribeOptions) -> Result<u32, ModelError> {
        if options.translate && self.languages.is_empty() {
            return Err(ModelError::EnglishOnly { path: path.into() });
        }
        options.language.as_ref().map_or(Ok(None), |code| self.language(code))?;
        let has_prompt = options.prompt.as_ref().is_some_and(|prompt| !prompt.trim().is_empty());
        if has_prompt || options.condition_on_prev_tokens {
            self.previous(path)?;
        }
        Ok(self.mel.config().sampling_rate)
    }

    /// The token before a prompt.
    pub fn previous(&self, path: &Path) -> Result<u32, ModelError> {
        let missing = || ModelError::SpeechToken { path: path.into(), token: "<|startofprev|>".into() };
        self.previous.ok_or_else(missing)
    }

    /// The token of a code, or `None` if the model has no language tokens. The code `en` is always known.
    pub fn language(&self, code: &str) -> Result<Option<(&'static str, u32)>, ModelError> {
        match self.languages.iter().find(|(known, _)| *known == code) {
            Some(found) => Ok(Some(*found)),
            None if self.languages.is_empty() && code == "en" => Ok(None),
            None => {
                let mut known: Vec<String> = self.languages.iter().map(|(code, _)| (*code).into()).collect();
                if known.is_empty() {
                    known.push("en".into());
                }
                Err(ModelError::Language { found: errors::escaped(code), known })
            }
        }
    }

    /// The rules after the first token. `language` is `None` if the model detects it.
    pub fn rules(&self, language: Option<u32>, options: &TranscribeOptions) -> SpeechRules {
        let mut begin = Vec::new();
        if !self.languages.is_empty() {
            let all = || self.languages.iter().map(|(_, token)| *token).collect();
            begin.push(language.map_or_else(all, |language| vec![language]));
            begin.push(vec![if options.translate { self.translate } else { self.transcribe }]);
        }
        let timestamps = TimestampRules { zero: self.zero, end: self.end, max_initial: self.max_initial };
        if !options.timestamps {
            begin.push(vec![self.zero - 1]);
        }
        // transformers finds the token of silence by its place, because its name differs.
        let no_speech = Some(self.zero - 2);
        SpeechRules { begin, no_speech, timestamps: options.timestamps.then_some(timestamps) }
    }

    /// Whether words of a language are apart. `None` is English.
    pub fn has_spaces(language: Option<&str>) -> bool {
        !language.is_some_and(|code| UNSPACED.contains(&code))
    }

    /// The tokens of a text.
    pub fn words(&self, tokens: &[u32]) -> Vec<u32> {
        tokens.iter().copied().filter(|&token| token < self.end).collect()
    }
}
