//! The configuration of a log-mel spectrogram.

use std::path::Path;

use serde_json::{Map, Value};

use crate::AudioError;

/// The settings of transformers' `WhisperFeatureExtractor`. The default is that of Whisper up to large-v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MelConfig {
    /// Mel bins of a frame.
    pub feature_size: usize,
    /// Samples of a Fourier transform.
    pub n_fft: usize,
    /// Samples from one frame to the next.
    pub hop_length: usize,
    /// Seconds to which samples are padded.
    pub chunk_length: usize,
    /// Samples per second.
    pub sampling_rate: u32,
}

impl Default for MelConfig {
    fn default() -> Self {
        Self { feature_size: 80, n_fft: 400, hop_length: 160, chunk_length: 30, sampling_rate: 16_000 }
    }
}

/// transformers 5 writes the first file, with an object for the extractor, and earlier versions the second.
const FILES: [&str; 2] = ["processor_config.json", "preprocessor_config.json"];

impl MelConfig {
    /// Reads the files of a Hugging Face folder. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if a value has another type, or does not fit the others.
    pub fn read(folder: &Path) -> Result<Option<Self>, AudioError> {
        for name in FILES {
            let path = folder.join(name);
            if !files::is_there(&path) {
                continue;
            }
            let syntax = |why: String| AudioError::Syntax { path: path.clone(), why };
            let text = files::read_json(&path)?;
            let value: Value = files::parse_json(&text).map_err(|error| syntax(error.to_string()))?;
            let Value::Object(mut keys) = value else { return Err(syntax("expected an object".into())) };
            if let Some(Value::Object(inner)) = keys.remove("feature_extractor") {
                keys = inner;
            } else if name == FILES[0] {
                continue;
            }
            return Self::of(&path, &keys).map(Some);
        }
        Ok(None)
    }

    fn of(path: &Path, keys: &Map<String, Value>) -> Result<Self, AudioError> {
        let refuse = |key: &'static str, found: &Value, expected: &str| {
            let (found, expected) = (errors::shortened(found.to_string(), 80), String::from(expected));
            AudioError::Key { path: path.into(), key, found, expected }
        };
        let kind = keys.get("feature_extractor_type");
        if let Some(other) = kind.filter(|kind| kind.as_str() != Some("WhisperFeatureExtractor")) {
            return Err(refuse("feature_extractor_type", other, "\"WhisperFeatureExtractor\""));
        }
        for key in ["dither", "do_normalize"] {
            let is_off = |value: &Value| value.is_null() || value.as_f64() == Some(0.0) || value == false;
            if let Some(other) = keys.get(key).filter(|value| !is_off(value)) {
                return Err(refuse(key, other, "0 or false"));
            }
        }
        let usual = Self::default();
        let count = |key: &'static str, usual: usize, most: usize| match keys.get(key) {
            None => Ok(usual),
            Some(value) => match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(number) if (1..=most).contains(&number) => Ok(number),
                _ => Err(refuse(key, value, &format!("an integer from 1 to {most}"))),
            },
        };
        let config = Self {
            feature_size: count("feature_size", usual.feature_size, 1024)?,
            n_fft: count("n_fft", usual.n_fft, 1 << 14)?,
            hop_length: count("hop_length", usual.hop_length, 1 << 14)?,
            chunk_length: count("chunk_length", usual.chunk_length, 3600)?,
            sampling_rate: count("sampling_rate", usual.sampling_rate as usize, 384_000)? as u32,
        };
        config.check(path)?;
        Ok(config)
    }

    /// The samples of a spectrogram.
    pub fn samples(&self) -> usize {
        self.chunk_length * self.sampling_rate as usize
    }

    /// The frames of a spectrogram.
    pub fn frames(&self) -> usize {
        self.samples() / self.hop_length
    }

    /// Checks that the frames fit into the samples.
    pub(crate) fn check(&self, path: &Path) -> Result<(), AudioError> {
        let wrong = |key, found: usize, expected: &str| {
            let (found, expected) = (found.to_string(), expected.to_owned());
            Err(AudioError::Key { path: path.into(), key, found, expected })
        };
        if self.feature_size == 0 {
            wrong("feature_size", 0, "at least 1")
        } else if self.n_fft < 2 || self.n_fft / 2 >= self.samples() {
            wrong("n_fft", self.n_fft, "at least 2, and at most twice the samples of a chunk")
        } else if self.hop_length == 0 || !self.samples().is_multiple_of(self.hop_length) {
            wrong("hop_length", self.hop_length, "a divisor of the samples of a chunk")
        } else {
            Ok(())
        }
    }
}
