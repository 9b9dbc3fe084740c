//! Compares the next-token distributions of a model with the distributions of a reference model. The two
//! models read the windows of a text. The KV cache is empty at the beginning of each window. As in
//! `llama-perplexity`, the comparison uses only the positions in the second half of a window. The tokens in
//! the first half of a window are only context for the positions in the second half.

use std::fs;
use std::ops::{ControlFlow, Range};

use errors::{FileError, WithPath as _};
use generate::{GenerateError, Tokenizer};
use serde::Serialize;
use tracewright::footprint::readable;
use tracewright::{Model, ModelError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    pub length: usize,
    /// `None` for all.
    pub most: Option<usize>,
    /// The token at the beginning of every window, if the model expects a special first token.
    pub first: Option<u32>,
}

/// Returns the token that the tokenizer inserts at the beginning of every text, if any.
pub fn first_token(tokenizer: &Tokenizer) -> Result<Option<u32>, GenerateError> {
    let (empty, text) = (tokenizer.encode("")?, tokenizer.encode("a")?);
    Ok(empty.first().filter(|first| text.first() == Some(first)).copied())
}

impl Windows {
    /// With `first` at the beginning of each. An incomplete last window is omitted.
    pub fn of(&self, tokens: &[u32]) -> Vec<Vec<u32>> {
        let own = self.length.saturating_sub(usize::from(self.first.is_some())).max(1);
        let windows = tokens.chunks_exact(own).take(self.most.unwrap_or(usize::MAX));
        windows.map(|window| self.first.into_iter().chain(window.iter().copied()).collect()).collect()
    }

    /// The model predicts the next token of the window there.
    fn counted(&self) -> Range<usize> {
        self.length / 2..self.length.saturating_sub(1)
    }
}

/// Divergences are from the reference to the model, in nats.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    pub positions: usize,
    pub mean_kl: f64,
    pub mean_kl_error: f64,
    pub median_kl: f64,
    /// The 99th percentile of the KL divergence over all positions.
    pub kl_99: f64,
    pub max_kl: f64,
    /// The fraction of positions at which the two models predict the same token.
    pub same_token: f64,
    pub perplexity: f64,
    pub reference_perplexity: f64,
}

/// The result of comparing a model with a reference model, and the size of each model's weights in bytes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QualityReport {
    pub quality: Quality,
    pub bytes: Option<u64>,
    pub reference_bytes: Option<u64>,
    /// For each matrix, if measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerQuality>,
}

/// The quality of a model in which every layer contains only one quantized matrix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerQuality {
    /// The key of the quantized matrix, with `*` instead of the layer's number.
    pub pattern: String,
    pub format: &'static str,
    pub quality: Quality,
}

impl QualityReport {
    pub fn new(quality: Quality, model: &Model, reference: &Model) -> Result<Self, FileError> {
        let bytes = |model: &Model| match &model.info().build {
            None => Ok(None),
            Some(build) if build.parameters.is_empty() => {
                let file = fs::metadata(&build.archive).with_path("open", &build.archive)?;
                Ok(Some(file.len()))
            }
            Some(build) => Ok(Some(build.parameters.iter().map(|p| p.ty.bytes() as u64).sum())),
        };
        Ok(Self { quality, bytes: bytes(model)?, reference_bytes: bytes(reference)?, layers: Vec::new() })
    }

    pub fn text(&self) -> String {
        let Quality { positions, mean_kl, mean_kl_error, median_kl, kl_99, max_kl, .. } = self.quality;
        let Quality { same_token, perplexity, reference_perplexity, .. } = self.quality;
        let mut lines = format!(
            "positions      {positions}\n\
             KL divergence  {mean_kl:.4} ± {mean_kl_error:.4} nats (median {median_kl:.4}, 99 % {kl_99:.4}, largest {max_kl:.4})\n\
             same token     {:.1} %\n\
             perplexity     {perplexity:.3} (reference {reference_perplexity:.3})\n",
            same_token * 100.0,
        );
        if let (Some(model), Some(reference)) = (self.bytes, self.reference_bytes) {
            lines += &format!("weights        {} (reference {})\n", readable(model), readable(reference));
        }
        for LayerQuality { pattern, format, quality } in &self.layers {
            lines += &format!("{format:<6} {:.4}  {pattern}\n", quality.mean_kl);
        }
        lines
    }
}

/// The reason why two models cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum QualityError {
    #[error("the text has {found} tokens, expected at least the {window} tokens of one window")]
    Short { found: usize, window: usize },
    /// No window has a position to compare.
    #[error("a window of the text has {0} tokens, expected at least 4")]
    Window(usize),
    /// The two models have vocabularies of different sizes.
    #[error("the model has {found} token ids, but the reference model has {reference} token ids")]
    Vocabulary { found: usize, reference: usize },
    #[error("the logits after token {position} of window {window} are not finite")]
    NotFinite {
        /// From 0.
        window: usize,
        /// From 0.
        position: usize,
    },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("the quality measurement was interrupted")]
    Interrupted,
}

/// `watch` gets the finished and all windows, and can stop.
pub fn compare(
    model: &Model,
    reference: &Model,
    tokens: &[u32],
    windows: &Windows,
    mut watch: impl FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Quality, QualityError> {
    let counted = windows.counted();
    if counted.is_empty() {
        return Err(QualityError::Window(windows.length));
    }
    let (found, expected) = (model.info().vocabulary, reference.info().vocabulary);
    if found != expected {
        return Err(QualityError::Vocabulary { found, reference: expected });
    }
    let parts = windows.of(tokens);
    if parts.is_empty() {
        return Err(QualityError::Short { found: tokens.len(), window: windows.length });
    }
    let mut sum = Comparison::default();
    for (window, tokens) in parts.iter().enumerate() {
        if watch(window, parts.len()).is_break() {
            return Err(QualityError::Interrupted);
        }
        let (found, expected) = (model.score(tokens)?, reference.score(tokens)?);
        for position in counted.clone() {
            sum.add(&found[position], &expected[position], tokens[position + 1])
                .ok_or(QualityError::NotFinite { window, position })?;
        }
    }
    Ok(sum.finish())
}

/// Contains the intermediate results of a comparison, summed over all positions so far.
#[derive(Default)]
struct Comparison {
    kl: Vec<f64>,
    same: usize,
    surprise: f64,
    reference_surprise: f64,
}

impl Comparison {
    /// Logits `[vocabulary]` of both models, and the token that follows. `None` if one is not finite.
    fn add(&mut self, found: &[f32], reference: &[f32], next: u32) -> Option<()> {
        let (found, best) = log_probabilities(found)?;
        let (reference, reference_best) = log_probabilities(reference)?;
        let kl: f64 = reference.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum();
        // A KL divergence is never negative, but rounding can make the sum negative.
        self.kl.push(kl.max(0.0));
        self.same += usize::from(best == reference_best);
        self.surprise -= found[next as usize];
        self.reference_surprise -= reference[next as usize];
        Some(())
    }

    /// Add at least one position first.
    fn finish(mut self) -> Quality {
        self.kl.sort_by(f64::total_cmp);
        let count = self.kl.len() as f64;
        let mean = self.kl.iter().sum::<f64>() / count;
        let variance = self.kl.iter().map(|kl| (kl - mean).powi(2)).sum::<f64>() / count;
        let at = |share: f64| self.kl[((count - 1.0) * share).round() as usize];
        Quality {
            positions: self.kl.len(),
            mean_kl: mean,
            mean_kl_error: (variance / count).sqrt(),
            median_kl: at(0.5),
            kl_99: at(0.99),
            max_kl: at(1.0),
            same_token: self.same as f64 / count,
            perplexity: (self.surprise / count).exp(),
            reference_perplexity: (self.reference_surprise / count).exp(),
        }
    }
}

/// In f64, with the most likely token, of equal ones the lowest id.
fn log_probabilities(logits: &[f32]) -> Option<(Vec<f64>, usize)> {
    let (mut best, mut max) = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if !logit.is_finite() {
            return None;
        }
        if logit > max {
            (best, max) = (token, logit);
        }
    }
    let max = f64::from(max);
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    Some((logits.iter().map(|&logit| f64::from(logit) - log_sum).collect(), best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_numpy() {
        // NumPy: sum(p * log(p / q)) of p = softmax([1, 2, 3]), q = softmax([3, 2, 1]); -log(p[2]) and -log(q[2])
        let mut sum = Comparison::default();
        sum.add(&[3.0, 2.0, 1.0], &[1.0, 2.0, 3.0], 2).unwrap();
        sum.add(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 2).unwrap();
        let found = sum.finish();
        assert_eq!((found.positions, found.same_token, found.median_kl), (2, 0.5, found.max_kl));
        assert!((found.max_kl - 1.150_420_765_209).abs() < 1e-9, "{found:?}");
        assert!((found.mean_kl - found.max_kl / 2.0).abs() < 1e-12);
        assert!((found.reference_perplexity - 0.407_605_964_444_f64.exp()).abs() < 1e-9, "{found:?}");
        assert!((found.perplexity - 1.407_605_964_444_f64.exp()).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn windows_leave_out_the_rest() {
        let windows = Windows { length: 4, most: None, first: Some(9) };
        assert_eq!(windows.of(&[1, 2, 3, 4, 5, 6, 7]), [vec![9, 1, 2, 3], vec![9, 4, 5, 6]]);
        assert_eq!(windows.counted(), 2..3);
        assert_eq!(Windows { most: Some(1), ..windows }.of(&[1, 2, 3, 4, 5, 6]).len(), 1);
    }

    #[test]
    fn refuses_what_is_not_finite() {
        assert!(Comparison::default().add(&[f32::NAN, 0.0], &[0.0, 0.0], 0).is_none());
    }
}
