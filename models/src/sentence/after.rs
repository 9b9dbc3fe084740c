//! The part of a network that computes the embedding or the score of a text from the features of its tokens.

use std::rc::Rc;

use dsl::nn::{gelu, relu};
use dsl::{
    Axis, Block, BuildError, Call as _, Dim, EntryInput, EntryPoint, F32, Float, I32, LayerNorm, Linear,
    LogitsMode, Recording, Scope, Tensor, TraceError, TraceErrorKind, Traced,
};
use trace::{Provenance, Role};

use super::{Activation, HeadStep, Pooling, SentenceConfig};

const TEXTS: Axis = Axis("B");
const TOKENS: Axis = Axis("S");
/// The axes of features: what comes in, and what linear layers give in turn.
const FEATURES: Axis = Axis("D");
const OUTPUTS: [Axis; 2] = [Axis("M"), Axis("O")];

/// Pooling, and the steps behind it. Their weights have paths of their own in the checkpoint.
#[derive(Clone, Debug)]
pub struct After<T: Float> {
    pooling: Vec<Pooling>,
    steps: Vec<Built<T>>,
}

#[derive(Clone, Debug)]
enum Built<T: Float> {
    Linear(Linear<T>, Activation),
    LayerNorm(LayerNorm<T>),
    Normalize(Axis),
}

impl<T: Float> Block for After<T> {
    type Config = SentenceConfig;

    fn build(_: Scope, config: &Rc<SentenceConfig>) -> Result<Self, BuildError> {
        let mut x = FEATURES.of(config.pooled());
        let mut outputs = OUTPUTS.into_iter().cycle();
        let build = |step: &HeadStep| match step {
            HeadStep::Linear { path, outputs: features, bias, activation } => {
                let from = x;
                x = outputs.next().unwrap_or(FEATURES).of(*features);
                Built::Linear(Linear::build(Scope::root(path), &[from], &[x]).bias(*bias), *activation)
            }
            HeadStep::LayerNorm { path, epsilon, bias } => {
                Built::LayerNorm(LayerNorm::build(Scope::root(path), &[x]).eps(*epsilon).bias(*bias))
            }
            HeadStep::Normalize => Built::Normalize(x.axis),
        };
        let steps = config.steps.iter().map(build).collect();
        Ok(Self { pooling: config.pooling.clone(), steps })
    }

    fn declared_axes(&self) -> Vec<Dim> {
        Vec::new()
    }
}

impl<T: Float> After<T> {
    /// From `[B, S, D]`, of which the first `count` tokens of each text are real, to `f32[B, O]`.
    #[track_caller]
    pub fn of(&self, hidden: Tensor<T>, count: Tensor<I32>) -> Tensor<F32> {
        let hidden = hidden.to::<F32>();
        let pooled: Vec<Tensor<F32>> = self.pooling.iter().map(|mode| mode.apply(hidden, count)).collect();
        let x = match pooled[..] {
            [one] => one,
            _ => Tensor::concat(&pooled, FEATURES),
        };
        self.steps.iter().fold(x, |x, step| match step {
            Built::Linear(linear, activation) => activation.apply(linear.call(x.to())).to(),
            Built::LayerNorm(norm) => norm.call(x.to::<T>()).to(),
            Built::Normalize(axis) => x / (x * x).sum(*axis).sqrt().maximum(1e-12),
        })
    }
}

impl Pooling {
    #[track_caller]
    fn apply(self, x: Tensor<F32>, count: Tensor<I32>) -> Tensor<F32> {
        let token = Tensor::<I32>::iota(TOKENS, x.extent(TOKENS));
        let real = || token.broadcast(count).less(count.broadcast(token)); // [B, S]
        let number = || count.to::<F32>();
        match self {
            Self::Cls => x.narrow(TOKENS, 0, 1).sum(TOKENS),
            Self::LastToken => x.at(TOKENS, count - 1),
            Self::Max => real().select(x, f64::NEG_INFINITY).max(TOKENS),
            Self::Mean | Self::MeanSqrtLen => {
                let sum = real().select(x, 0.0).sum(TOKENS);
                let by = if self == Self::Mean { number() } else { number().sqrt() };
                sum / by.broadcast(sum)
            }
            Self::WeightedMean => {
                let sum = real().select(x * (token.to::<F32>() + 1.0).broadcast(x), 0.0).sum(TOKENS);
                sum / (number() * (number() + 1.0) * 0.5).broadcast(sum)
            }
        }
    }
}

impl Activation {
    #[track_caller]
    fn apply<T: Float>(self, x: Tensor<T>) -> Tensor<T> {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
            Self::Gelu => gelu(x),
            Self::Relu => relu(x),
            Self::Sigmoid => x.logistic(),
        }
    }
}

/// The arguments of an entry point.
pub(crate) struct Texts {
    /// `[B, S]`
    pub tokens: Tensor<I32>,
    /// The tokens of the first of two texts, `[B]`, if they are marked.
    pub first: Option<Tensor<I32>>,
    /// `[B]`
    pub count: Tensor<I32>,
}

/// Records entry points that compute the embeddings or scores of B texts of up to S tokens.
pub(crate) fn trace<M>(
    mut recording: Recording<M>,
    sentence: &SentenceConfig,
    entry_points: &[EntryPoint],
    embed: impl Fn(&M, Texts) -> Tensor<F32>,
) -> Result<Traced, TraceError> {
    for point in entry_points {
        if (point.input, point.logits) != (EntryInput::Tokens, LogitsMode::None) {
            let kind = TraceErrorKind::NoFunction { name: point.name.clone(), function: "logits" };
            return Err(TraceError { kind: Box::new(kind), provenance: Provenance::new("", "", 0) });
        }
        let (rows, text) = (TEXTS.of(point.batch), TOKENS.of(point.chunk));
        let marks = sentence.pairs.as_ref().is_some_and(|pairs| pairs.marks);
        recording = recording.entry_with(&point.name, |model, entry| {
            let tokens = entry.input("tokens", Role::Tokens, &[rows, text]);
            let first = marks.then(|| entry.input("first", Role::First, &[rows]));
            let count = entry.input("count", Role::Count, &[rows]);
            let texts = Texts { tokens, first, count };
            entry.output("embedding", Role::Embedding, embed(model, texts));
        })?;
    }
    Ok(recording.finish())
}
