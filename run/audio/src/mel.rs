//! The log-mel spectrogram of Whisper (Radford et al., "Robust Speech Recognition via Large-Scale Weak
//! Supervision", 2022, §2.2), with the numbers of transformers' `WhisperFeatureExtractor`.

use std::f64::consts::PI;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use crate::{AudioError, MelConfig};

/// Computes spectrograms of one configuration.
pub struct LogMel {
    config: MelConfig,
    fft: Arc<dyn RealToComplex<f64>>,
    window: Vec<f64>,
    filters: Vec<Filter>,
}

/// The weights of the frequencies from `first` on; all others are 0.
struct Filter {
    first: usize,
    weights: Vec<f64>,
}

/// In Hz, of all Whisper models.
const HIGHEST: f64 = 8000.0;

impl LogMel {
    /// # Errors
    /// Returns an error if the sizes in the configuration do not fit together.
    pub fn new(config: MelConfig) -> Result<Self, AudioError> {
        config.check(Path::new("preprocessor_config.json"))?;
        let n = config.n_fft;
        // Periodic: the first number of the next window would follow.
        let window = (0..n).map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / n as f64).cos()).collect();
        let fft = RealFftPlanner::new().plan_fft_forward(n);
        let filters = filters(&config);
        Ok(Self { config, fft, window, filters })
    }

    /// The sizes of the spectrograms.
    pub fn config(&self) -> &MelConfig {
        &self.config
    }

    /// A spectrogram `[frames, bins]` of at most [`MelConfig::samples`] samples, which zeros follow up to that
    /// number. Longer clips are cut.
    pub fn compute(&self, samples: &[f32]) -> Vec<f32> {
        let padded = Padded { samples, length: self.config.samples() };
        let logs = self.logs(&padded, 0..self.config.frames());
        let floor = largest(&logs) - 8.0;
        logs.into_iter().map(|log| scaled(log, floor)).collect()
    }

    /// The spectrogram of a whole file, of which windows are computed when they are needed.
    pub fn spectrogram<'a>(&'a self, samples: &'a [f32]) -> Spectrogram<'a> {
        let padded = Padded { samples, length: samples.len() };
        let (frames, step) = (samples.len() / self.config.hop_length, self.config.frames());
        let parts = (0..frames).step_by(step).map(|first| first..frames.min(first + step));
        let floor =
            parts.map(|part| largest(&self.logs(&padded, part))).fold(f64::NEG_INFINITY, f64::max) - 8.0;
        Spectrogram { mel: self, samples, frames, floor }
    }

    /// The logarithms of the powers of consecutive frames.
    fn logs(&self, padded: &Padded<'_>, frames: Range<usize>) -> Vec<f64> {
        let half = self.config.n_fft / 2;
        let mut frame = self.fft.make_input_vec();
        let mut spectrum = self.fft.make_output_vec();
        let mut result = Vec::with_capacity(frames.len() * self.config.feature_size);
        for index in frames {
            let start = index * self.config.hop_length;
            for (i, (x, weight)) in frame.iter_mut().zip(&self.window).enumerate() {
                *x = padded.get(start + i, half) * weight;
            }
            if self.fft.process(&mut frame, &mut spectrum).is_err() {
                unreachable!("the vectors have the lengths of the transform");
            }
            for filter in &self.filters {
                let powers = spectrum[filter.first..].iter().map(|x| x.norm_sqr());
                let power: f64 = powers.zip(&filter.weights).map(|(power, weight)| power * weight).sum();
                result.push(power.max(1e-10).log10());
            }
        }
        result
    }
}

/// The spectrogram of samples of any length, scaled by the loudest frame of all.
pub struct Spectrogram<'a> {
    mel: &'a LogMel,
    samples: &'a [f32],
    frames: usize,
    floor: f64,
}

impl Spectrogram<'_> {
    /// The number of whole hops.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// [`MelConfig::frames`] frames `[frames, bins]` from `first` on. As in transformers, the number 0 follows
    /// the last frame of the file.
    pub fn window(&self, first: usize) -> Vec<f32> {
        let config = &self.mel.config;
        let padded = Padded { samples: self.samples, length: self.samples.len() };
        let end = self.frames.min(first + config.frames());
        let logs = self.mel.logs(&padded, first.min(end)..end);
        let mut window: Vec<f32> = logs.into_iter().map(|log| scaled(log, self.floor)).collect();
        window.resize(config.frames() * config.feature_size, 0.0);
        window
    }
}

/// Samples, and zeros up to `length`.
struct Padded<'a> {
    samples: &'a [f32],
    length: usize,
}

impl Padded<'_> {
    /// A sample, with `half` mirrored samples at each end, without the first and the last one.
    fn get(&self, index: usize, half: usize) -> f64 {
        let index = match index.checked_sub(half) {
            None => half - index,
            Some(index) if index < self.length => index,
            Some(index) => (2 * self.length).saturating_sub(2 + index),
        };
        self.samples.get(index).map_or(0.0, |&x| f64::from(x))
    }
}

fn largest(logs: &[f64]) -> f64 {
    logs.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// The number that the network reads.
fn scaled(log: f64, floor: f64) -> f32 {
    ((log.max(floor) + 4.0) / 4.0) as f32
}

/// Triangles on Slaney's mel scale, each with the area 1 over its frequencies.
fn filters(config: &MelConfig) -> Vec<Filter> {
    let (rate, count) = (f64::from(config.sampling_rate), config.feature_size);
    let edge = |i: usize| hertz(mel(HIGHEST) * i as f64 / (count + 1) as f64);
    let frequencies: Vec<f64> =
        (0..=config.n_fft / 2).map(|k| k as f64 * rate / config.n_fft as f64).collect();
    let filter = |bin: usize| {
        let [low, peak, high] = [edge(bin), edge(bin + 1), edge(bin + 2)];
        let weight =
            |&f: &f64| ((f - low) / (peak - low)).min((high - f) / (high - peak)) * 2.0 / (high - low);
        let first = frequencies.partition_point(|f| *f <= low);
        let inside = frequencies[first..].iter().take_while(|f| **f < high);
        Filter { first, weights: inside.map(weight).collect() }
    };
    (0..count).map(filter).collect()
}

/// The frequency of a point on Slaney's mel scale: linear up to 1000 Hz, then logarithmic.
fn hertz(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp() }
}

fn mel(hertz: f64) -> f64 {
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + 27.0 * (hertz / 1000.0).ln() / 6.4f64.ln() }
}
