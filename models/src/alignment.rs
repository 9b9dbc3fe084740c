//! [`Alignment`] computes which part of the speech a decoder attends to for each token of a text.

use dsl::nn::{Attend, Mask, Position, attend, dot, gelu, softmax};
use dsl::{AnyFloat, Axis, EntryPoint, F32, Float, I32, Tensor, TraceError, Traced, in_element};
use ops::ElementType;
use trace::Role;

use crate::shape_check::DeclaredSize;
use crate::whisper::{Whisper, WhisperConfig};
use crate::{Architecture, MtpError};

const BATCH: Axis = Axis("B");
const FRAMES: Axis = Axis("S");
const TOKENS: Axis = Axis("S");
const BINS: Axis = Axis("C");
const FEATURES: Axis = Axis("E");
const HEADS: Axis = Axis("H");
const SOURCE: Axis = Axis("N");
/// Earlier tokens, which the decoder attends to.
const KEYS: Axis = Axis("M");
const CHOSEN: Axis = Axis("K");

/// A speech network whose text is known. It has the weights of the one that writes the text, so both read one archive.
#[derive(Clone, Debug, PartialEq)]
pub struct Alignment {
    /// The configuration of the network.
    pub whisper: WhisperConfig,
    /// The layer and the number of each attention head whose weights are computed, at least one.
    pub heads: Vec<[usize; 2]>,
}

impl Alignment {
    /// Its arguments are a spectrogram and a text, of which `count` tokens are real. Its results are the weights of the
    /// heads, `[B, K, S, N]`, and the logits after the text, which read the weights that no head needs.
    fn record<T: Float>(&self, whisper: &Whisper<T>, entry: &mut dsl::EntryRecorder, point: &EntryPoint) {
        let config = &self.whisper;
        let batch = BATCH.of(point.batch);
        let frames = FRAMES.of(2 * config.max_source_positions);
        let mel = entry.input::<F32>("mel", Role::Features, &[batch, frames, BINS.of(config.num_mel_bins)]);
        let tokens = entry.input::<I32>("tokens", Role::Tokens, &[batch, TOKENS.of(point.chunk)]);
        let count = entry.input::<I32>("count", Role::Count, &[batch]);
        let encoded = whisper.listen(mel);
        let at = Position { start: count.filled(0.0), count };
        let causal = Attend::causal(at, TOKENS);
        let mut x = whisper.tokens(tokens) + whisper.positions(at.positions(TOKENS, point.chunk));
        let mut chosen = Vec::new();
        for (i, layer) in whisper.layers.iter().enumerate() {
            let normed = layer.norm(x);
            let [k, v] = [layer.key(normed), layer.value(normed)].map(|part| part.rename(TOKENS, KEYS));
            x = x + layer.out(attend(layer.query(normed), k, v, &causal));
            let (q, (k, v)) = (layer.cross_query(layer.cross_norm(x)), layer.keys(encoded));
            let heads: Vec<usize> =
                self.heads.iter().filter(|[layer, _]| *layer == i).map(|[_, head]| *head).collect();
            if !heads.is_empty() {
                let scores = dot(q, k, FEATURES).to::<F32>() * (config.head_features() as f64).powf(-0.5);
                let weights = softmax(scores, SOURCE).permute(&[BATCH, HEADS, TOKENS, SOURCE]);
                let of = |head: usize| weights.narrow(HEADS, head, 1).rename(HEADS, CHOSEN);
                chosen.extend(heads.into_iter().map(of));
            }
            x = x + layer.cross_out(attend(q, k, v, &Attend::bidirectional(TOKENS, Mask::all())));
            x = x + layer.down(gelu(layer.up(layer.mlp_norm(x))));
        }
        entry.output("weights", Role::Plain, Tensor::concat(&chosen, CHOSEN));
        let last = whisper.norm(x).at(TOKENS, count - 1);
        entry.output("logits", Role::Logits, whisper.logits(last));
    }
}

impl Architecture for Alignment {
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        in_element(element, || {
            let mut recording = Whisper::<AnyFloat>::record(&self.whisper)?;
            for point in entry_points {
                recording =
                    recording.entry_with(&point.name, |whisper, entry| self.record(whisper, entry, point))?;
            }
            Ok(recording.finish())
        })
    }

    fn max_context(&self) -> usize {
        self.whisper.max_position_embeddings
    }

    fn vocabulary(&self) -> usize {
        self.whisper.vocab_size
    }

    fn element(&self) -> Option<ElementType> {
        self.whisper.element
    }

    fn check_mtp(&self) -> Result<(), MtpError> {
        Err(MtpError::Family)
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        self.whisper.sizes()
    }
}
