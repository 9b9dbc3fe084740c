//! all-MiniLM-L6-v2, a BERT, as one file: embeds three sentences and compares them.
use std::{error::Error, path::Path};

use tracewright::build::{ProgramOptions, build_program};
use tracewright::dsl::nn::{Attend, Mask, attend, gelu};
use tracewright::generate::Tokenizer;
use tracewright::irpa::Checkpoint;
use tracewright::runtime::Compiler;
use tracewright::trace::Ignorable;
use tracewright::{Array, Axis, F32, Float, I32, Tensor, model};

/// The sizes of all-MiniLM-L6-v2.
#[derive(Clone)]
pub struct Sizes {
    pub vocabulary: usize,
    pub positions: usize,
    pub features: usize,
    pub layers: usize,
    pub heads: usize,
    pub inner: usize,
}

/// The axis of the tokens that others attend to.
const KEYS: Axis = Axis("N");

model! {
    pub Encoder<T: Float>(Sizes) {
        dims {
            V = vocabulary, P = positions, Y = 2,
            D = features, L = layers, H = heads, E = D / H, F = inner,
        }
        words: Embedding[V, D] at "embeddings.word_embeddings",
        positions: Embedding[P, D] at "embeddings.position_embeddings",
        types: Embedding[Y, D] at "embeddings.token_type_embeddings",
        norm: LayerNorm[D](eps = 1e-12) at "embeddings.LayerNorm",
        layers: [Layer; L] at "encoder.layer",

        /// The mean of the features of the first `count` tokens, with length 1.
        fn embed(tokens: i32[B, S], count: i32[B]) -> T[B, D] {
            let at = Tensor::<I32>::iota(S, tokens.extent(S));
            let x = self.words(tokens) + self.types(at.filled(0.0)) + self.positions(at);
            let attend = Attend::bidirectional(S, Mask::counted(KEYS, tokens.extent(S), count));
            let x = self.layers.iter().fold(self.norm(x), |x, layer| layer.forward(x, &attend));
            let is_real: Tensor<T> = at.broadcast(count).less(count.broadcast(at)).select(1.0, 0.0);
            let sum = (x * is_real.broadcast(x)).sum(S);
            sum / (sum * sum).sum(D).sqrt().broadcast(sum)
        }
    }

    Layer {
        query: Linear[D -> H, E](bias) at "attention.self.query",
        key: Linear[D -> H, E](bias) at "attention.self.key",
        value: Linear[D -> H, E](bias) at "attention.self.value",
        out: Linear[H, E -> D](bias) at "attention.output.dense",
        out_norm: LayerNorm[D](eps = 1e-12) at "attention.output.LayerNorm",
        up: Linear[D -> F](bias) at "intermediate.dense",
        down: Linear[F -> D](bias) at "output.dense",
        down_norm: LayerNorm[D](eps = 1e-12) at "output.LayerNorm",

        fn forward(x: T[B, S, D], at: &Attend<T>) -> T[B, S, D] {
            let (k, v) = (self.key(x).rename(S, KEYS), self.value(x).rename(S, KEYS));
            let x = self.out_norm(x + self.out(attend(self.query(x), k, v, at)));
            self.down_norm(x + self.down(gelu(self.up(x))))
        }
    }
}

const LENGTH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name the folder of all-MiniLM-L6-v2")?;
    let folder = Path::new(&folder);
    let sizes = Sizes { vocabulary: 30522, positions: 512, features: 384, layers: 6, heads: 12, inner: 1536 };
    let traced =
        Encoder::<F32>::record(&sizes)?.entry("embed", Encoder::embed, [("B", 1), ("S", LENGTH)])?.finish();
    let compiler = Compiler::new("iree-compile"); // the one on PATH
    // Tensors of the checkpoint that the network does not read; any other is an error.
    let ignorable = vec![Ignorable::Prefix("pooler."), Ignorable::Suffix("position_ids")];
    let options = ProgramOptions { ignorable, ..ProgramOptions::new(&compiler, Path::new("cache")) };
    let program = build_program(&traced, &Checkpoint::open(folder)?, options)?.program;

    let tokenizer = Tokenizer::load(folder)?.ok_or("the folder lacks a tokenizer")?;
    let sentences = ["How do I reset my password?", "I can't log in any more.", "The train leaves at nine."];
    let mut vectors = Vec::new();
    for sentence in sentences {
        let mut tokens = tokenizer.encode(sentence)?;
        let count = tokens.len();
        tokens.resize(LENGTH, 0);
        let tokens: Vec<i32> = tokens.into_iter().map(|token| token as i32).collect();
        let arguments = [Array::from_slice(&tokens, [1, LENGTH])?, Array::from_slice(&[count as i32], [1])?];
        vectors.push(program.call("embed", &arguments)?[0].to_vec::<f32>()?);
    }
    for (sentence, vector) in sentences.iter().zip(&vectors) {
        let cosine: f32 = vectors[0].iter().zip(vector).map(|(a, b)| a * b).sum();
        println!("{cosine:.4}  {sentence}");
    }
    Ok(())
}
