//! The spectrogram and the special tokens of a speech model.

use std::path::Path;

use audio::{AudioError, LogMel, MelConfig};
use generate::{GenerationDefaults, Tokenizer};
use models::SpeechConfig;

use super::ModelError;

/// What [`Model::transcribe`](super::Model::transcribe) writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscribeOptions {
    /// The code of the spoken language, such as `en`. `None` detects it in the first window of a file.
    pub language: Option<String>,
    /// Whether to write English instead of the spoken language.
    pub translate: bool,
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
    pub no_timestamps: u32,
    transcribe: u32,
    translate: u32,
}

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
        defaults.unapplied.retain(|(key, value)| !is_applied(key, value, no_timestamps));
        let languages = LANGUAGES.split_whitespace().filter(|_| !english_only);
        let known = |code| Some((code, tokenizer.special_token(&format!("<|{code}|>"))?));
        Ok(Self {
            mel: LogMel::new(mel)?,
            languages: languages.filter_map(known).collect(),
            start: token("<|startoftranscript|>")?,
            no_timestamps,
            transcribe: token("<|transcribe|>")?,
            translate: token("<|translate|>")?,
        })
    }

    /// Returns the sampling rate that the spectrogram takes.
    pub fn check(&self, path: &Path, options: &TranscribeOptions) -> Result<u32, ModelError> {
        if options.translate && self.languages.is_empty() {
            return Err(ModelError::EnglishOnly { path: path.into() });
        }
        options.language.as_ref().map_or(Ok(None), |code| self.language(code))?;
        Ok(self.mel.config().sampling_rate)
    }

    /// The token of a code, or `None` if the model has no language tokens. The code `en` is always known.
    pub fn language(&self, code: &str) -> Result<Option<u32>, ModelError> {
        match self.languages.iter().find(|(known, _)| *known == code) {
            Some((_, token)) => Ok(Some(*token)),
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

    /// The tokens that ask for a text without timestamps.
    pub fn prompt(&self, language: Option<u32>, translate: bool) -> Vec<u32> {
        let task = if translate { self.translate } else { self.transcribe };
        match language {
            Some(language) => vec![self.start, language, task, self.no_timestamps],
            None => vec![self.start, self.no_timestamps],
        }
    }
}
