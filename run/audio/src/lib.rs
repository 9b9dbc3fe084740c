//! Reads audio files, and computes the log-mel spectrograms that speech networks take.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use tracewright_audio::{LogMel, MelConfig, decode};
//!
//! let mel = LogMel::new(MelConfig::default())?;
//! let samples = decode(Path::new("speech.mp3"), mel.config().sampling_rate)?;
//! // 3000 frames of 80 numbers for the first 30 seconds.
//! let first = mel.compute(&samples[..samples.len().min(mel.config().samples())]);
//! assert_eq!(first.len(), 3000 * 80);
//! # Ok::<(), tracewright_audio::AudioError>(())
//! ```
#![warn(missing_docs)]

mod decode;
mod error;
mod mel;
mod mel_config;
mod resample;

pub use decode::{decode, decode_bytes};
pub use error::AudioError;
pub use mel::{LogMel, Spectrogram};
pub use mel_config::MelConfig;
pub use resample::resample;
