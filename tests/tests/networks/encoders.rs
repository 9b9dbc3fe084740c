//! A BERT and a LLaVA as networks of a user, with the tensor names of published checkpoints. Their results are those of
//! transformers (`tests/oracle/architectures.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::fs;

use ops::{ElementType, TensorType, Value};
use runtime::{Device, Runtime};
use safetensors::SafeTensors;
use serde::Deserialize;
use support::*;
use tracewright::dsl::nn::{Attend, Cache, Kv, Mask, Position, attend, dot, gelu, silu};
use tracewright::dsl::{Axis, CausalLm, EntryPoint, F32, Float, I32, LogitsMode, Project, Tensor, model};
use tracewright::generate::{Features, Network, Session};
use tracewright::models::RopeParameters;
use tracewright_tests::built::repository;
use tracewright_tests::calls::{WeightValues, evaluate};
use tracewright_tests::golden::{best, relative_error};

/// The axis of the keys, which are tokens of the same text or patches of the same image.
const KEYS: Axis = Axis("Key");
/// The axis of the numbers of a patch.
const PIXELS: Axis = Axis("Pixel");

#[derive(Clone, Deserialize)]
struct BertConfig {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: f64,
}

model! {
    /// `BertModel`: Devlin et al., "BERT" (2019).
    Bert<T: Float>(BertConfig) {
        dims {
            V = vocab_size, P = max_position_embeddings, Y = type_vocab_size,
            D = hidden_size, L = num_hidden_layers, F = intermediate_size, H = num_attention_heads, E = D / H, O = D,
        }

        words: Embedding[V, D] at "embeddings.word_embeddings",
        positions: Embedding[P, D] at "embeddings.position_embeddings",
        types: Embedding[Y, D] at "embeddings.token_type_embeddings",
        norm: LayerNorm[D](eps = layer_norm_eps) at "embeddings.LayerNorm",
        layers: [BertLayer; L] at "encoder.layer",
        pooler: Linear[D -> O](bias) at "pooler.dense",

        /// Features of each token, and of each text. The first `count` tokens of a text are real.
        fn encode(tokens: i32[B, S], types: i32[B, S], count: i32[B]) -> (T[B, S, D], T[B, O]) {
            let length = tokens.extent(S);
            let x = self.words(tokens) + self.types(types) + self.positions(Tensor::<I32>::iota(S, length));
            let at = Attend::bidirectional(S, Mask::counted(KEYS, length, count));
            let x = self.layers.iter().fold(self.norm(x), |x, layer| layer.forward(x, &at));
            let first = x.narrow(S, 0, 1).sum(S);
            (x, self.pooler(first).tanh())
        }
    }

    BertLayer {
        q: Linear[D -> H, E](bias) at "attention.self.query",
        k: Linear[D -> H, E](bias) at "attention.self.key",
        v: Linear[D -> H, E](bias) at "attention.self.value",
        o: Linear[H, E -> D](bias) at "attention.output.dense",
        first_norm: LayerNorm[D](eps = layer_norm_eps) at "attention.output.LayerNorm",
        up: Linear[D -> F](bias) at "intermediate.dense",
        down: Linear[F -> D](bias) at "output.dense",
        second_norm: LayerNorm[D](eps = layer_norm_eps) at "output.LayerNorm",

        fn forward(x: T[B, S, D], at: &Attend<T>) -> T[B, S, D] {
            let (k, v) = (self.k(x).rename(S, KEYS), self.v(x).rename(S, KEYS));
            let x = self.first_norm(x + self.o(attend(self.q(x), k, v, at)));
            self.second_norm(x + self.down(gelu(self.up(x))))
        }
    }
}

#[derive(Clone, Deserialize)]
struct LlavaConfig {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f64,
    rope_theta: f64,
    vision_hidden_size: usize,
    vision: VisionConfig,
}

/// The configuration of a vision tower. The projector reads what the last layer but one gives, so the last layer is none of
/// `layers`.
#[derive(Clone, Deserialize)]
struct VisionConfig {
    hidden_size: usize,
    intermediate_size: usize,
    layers: usize,
    num_attention_heads: usize,
    image_size: usize,
    patch_size: usize,
    grid: usize,
    places: usize,
    layer_norm_eps: f64,
}

impl Project<VisionConfig> for LlavaConfig {
    fn project(&self) -> VisionConfig {
        self.vision.clone()
    }
}

model! {
    /// `LlavaForConditionalGeneration`: Liu et al., "Visual Instruction Tuning" (2023). A vision tower gives features that
    /// stand in place of tokens in a Llama.
    Llava<T: Float>(LlavaConfig) {
        dims {
            V = vocab_size, D = hidden_size, F = intermediate_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, E = head_dim, G = H / K,
            W = vision_hidden_size, P = D,
        }
        cache { L of [K, E] }

        embed_tokens: Embedding[V, D] at "model.language_model.embed_tokens",
        layers: [LlavaLayer; L] at "model.language_model.layers",
        norm: RmsNorm[D](eps = rms_norm_eps) at "model.language_model.norm",
        lm_head: Linear[D -> V],
        tower: Tower<T> at "model.vision_tower",
        inner: Linear[W -> P](bias) at "model.multi_modal_projector.linear_1",
        outer: Linear[P -> D](bias) at "model.multi_modal_projector.linear_2",

        /// The features of an image's patches.
        fn see(pixels: T[B, C, I, J]) -> T[B, N, D] {
            self.outer(gelu(self.inner(self.tower.forward(pixels).rename(TOWER, W))))
        }
        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.forward_features(self.embed_tokens(tokens), at, cache)
        }
        fn forward_features(x: T[B, S, D], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = RopeParameters::plain(self.config.rope_theta).frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, x.extent(S), &rope, cache.context);
            let mut x = x;
            for (i, layer) in self.layers.iter().enumerate() {
                x = layer.forward(x, &at, cache.state(i));
            }
            self.norm(x)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    LlavaLayer {
        first_norm: RmsNorm[D](eps = rms_norm_eps) at "input_layernorm",
        q: Linear[D -> K, G, E] at "self_attn.q_proj",
        k: Linear[D -> K, E] at "self_attn.k_proj",
        v: Linear[D -> K, E] at "self_attn.v_proj",
        o: Linear[K, G, E -> D] at "self_attn.o_proj",
        second_norm: RmsNorm[D](eps = rms_norm_eps) at "post_attention_layernorm",
        gate: Linear[D -> F] at "mlp.gate_proj",
        up: Linear[D -> F] at "mlp.up_proj",
        down: Linear[F -> D] at "mlp.down_proj",

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let normed = self.first_norm(x);
            let (k, v) = kv.append(at.rope(self.k(normed)), self.v(normed), at);
            let x = x + self.o(attend(at.rope(self.q(normed)), k, v, at));
            let normed = self.second_norm(x);
            x + self.down(silu(self.gate(normed)) * self.up(normed))
        }
    }
}

/// The axis of a vision tower's features.
const TOWER: Axis = Axis("D");

model! {
    /// The vision tower of CLIP: Radford et al., "Learning Transferable Visual Models" (2021).
    Tower<T: Float>(VisionConfig) {
        dims {
            D = hidden_size, F = intermediate_size, L = layers, H = num_attention_heads, E = D / H,
            // An image has I rows and J columns of pixels, and R rows and Q columns of patches.
            I = image_size, J = image_size, R = grid, Q = grid, Y = patch_size, X = patch_size, C = 3,
            M = places,
        }

        class: Weight[D] at "embeddings.class_embedding",
        patch: Weight[D, C, Y, X] at "embeddings.patch_embedding.weight",
        positions: Weight[M, D] at "embeddings.position_embedding.weight",
        norm: LayerNorm[D](eps = layer_norm_eps) at "pre_layrnorm",
        layers: [TowerLayer; L] at "encoder.layers",

        fn forward(pixels: T[B, C, I, J]) -> T[B, N, D] {
            let rows = pixels.unmerge(I, &[R.of(self.dim(R)), Y.of(self.dim(Y))]);
            let patches = rows.unmerge(J, &[Q.of(self.dim(Q)), X.of(self.dim(X))]); // [B, C, R, Y, Q, X]
            let patches = patches.merge(&[C, Y, X], PIXELS).merge(&[R, Q], N);
            let x = dot(patches, self.patch().merge(&[C, Y, X], PIXELS), PIXELS); // [B, N, D]
            let class = self.class().broadcast(x.narrow(N, 0, 1)).permute(&[B, N, D]);
            let x = Tensor::concat(&[class, x], N) + self.positions().rename(M, N);
            let at = Attend::bidirectional(N, Mask::all());
            let x = self.layers.iter().fold(self.norm(x), |x, layer| layer.forward(x, &at));
            x.narrow(N, 1, self.dim(M) - 1)
        }
    }

    TowerLayer {
        first_norm: LayerNorm[D](eps = layer_norm_eps) at "layer_norm1",
        q: Linear[D -> H, E](bias) at "self_attn.q_proj",
        k: Linear[D -> H, E](bias) at "self_attn.k_proj",
        v: Linear[D -> H, E](bias) at "self_attn.v_proj",
        o: Linear[H, E -> D](bias) at "self_attn.out_proj",
        second_norm: LayerNorm[D](eps = layer_norm_eps) at "layer_norm2",
        up: Linear[D -> F](bias) at "mlp.fc1",
        down: Linear[F -> D](bias) at "mlp.fc2",

        fn forward(x: T[B, N, D], at: &Attend<T>) -> T[B, N, D] {
            let normed = self.first_norm(x);
            let (k, v) = (self.k(normed).rename(N, KEYS), self.v(normed).rename(N, KEYS));
            let x = x + self.o(attend(self.q(normed), k, v, at));
            let inner = self.up(self.second_norm(x));
            x + self.down(inner * (inner * 1.702).logistic())
        }
    }
}

/// A file of a fixture.
fn file(fixture: &str, name: &str) -> Vec<u8> {
    fs::read(repository().join("tests/fixtures").join(fixture).join(name)).unwrap()
}

/// The tensors of a fixture's file.
fn tensors(fixture: &str, name: &str) -> WeightValues {
    let bytes = file(fixture, name);
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let value = |(key, tensor): (String, safetensors::tensor::TensorView<'_>)| {
        let ty = TensorType::new(ElementType::F32, tensor.shape());
        let words = tensor.data().as_chunks().0.iter().copied();
        (key, Value::new(ty, words.map(|word| f64::from(f32::from_le_bytes(word)))))
    };
    found.tensors().into_iter().map(value).collect()
}

fn integers(shape: &[usize], numbers: &[u32]) -> Value {
    Value::new(TensorType::new(ElementType::I32, shape), numbers.iter().map(|&number| f64::from(number)))
}

fn floats(value: &Value) -> Vec<f32> {
    value.data.iter().map(|&number| number as f32).collect()
}

const BOUND: f64 = 1e-5;

#[derive(Deserialize)]
struct Texts {
    config: BertConfig,
    tokens: Vec<u32>,
    kinds: Vec<u32>,
    counts: Vec<u32>,
}

#[test]
fn a_bert_gives_the_features_of_transformers() {
    let golden: Texts = serde_json::from_slice(&file("bert", "golden.json")).unwrap();
    let (weights, expected) = (tensors("bert", "model.safetensors"), tensors("bert", "golden.safetensors"));
    let texts = golden.counts.len();
    let length = golden.tokens.len() / texts;
    let recording = Bert::<F32>::record(&golden.config).unwrap();
    let sizes = [("B", texts), ("S", length)];
    let trace = recording.entry("encode", Bert::encode, sizes).unwrap().finish().trace;
    let keys: Vec<String> = trace.parameters().unwrap().into_iter().map(|one| one.key).collect();
    assert_eq!(weights.keys().find(|key| !keys.contains(key)), None, "a tensor that nothing reads");

    let shape = [texts, length];
    let (tokens, kinds) = (integers(&shape, &golden.tokens), integers(&shape, &golden.kinds));
    let arguments = [tokens, kinds, integers(&[texts], &golden.counts)];
    let evaluated = evaluate(&trace, "encode", &arguments, &weights);
    let in_iree = built(&trace).load(&weights).call("encode", &arguments);
    let width = golden.config.hidden_size;
    for [hidden, pooled] in [evaluated, in_iree].iter().map(|results| [&results[0], &results[1]]) {
        assert!(relative_error(&floats(&expected["pooled"]), &floats(pooled)) <= BOUND);
        // What padding gives means nothing.
        let [expected, found] = [&expected["hidden"], hidden].map(floats);
        for (text, &count) in golden.counts.iter().enumerate() {
            let real = text * length * width..(text * length + count as usize) * width;
            assert!(relative_error(&expected[real.clone()], &found[real]) <= BOUND, "text {text}");
        }
    }
}

#[derive(Deserialize)]
struct Seen {
    config: LlavaConfig,
    before: Vec<u32>,
    after: Vec<u32>,
    image: u32,
    tokens: Vec<u32>,
}

#[test]
fn a_llava_gives_the_tokens_of_transformers() {
    const CONTEXT: usize = 48;
    let golden: Seen = serde_json::from_slice(&file("llava", "golden.json")).unwrap();
    let (weights, known) = (tensors("llava", "model.safetensors"), tensors("llava", "golden.safetensors"));
    let recording = Llava::<F32>::record(&golden.config).unwrap();
    let side = golden.config.vision.image_size;
    let sizes = [("B", 1), ("C", 3), ("I", side), ("J", side)];
    let sees = recording.entry("see", Llava::see, sizes).unwrap().finish().trace;
    let evaluated = evaluate(&sees, "see", &[known["pixels"].clone()], &weights).remove(0);
    let features = built(&sees).load(&weights).call("see", &[known["pixels"].clone()]).remove(0);
    let (features, expected) = (floats(&features), floats(&known["features"]));
    assert!(relative_error(&expected, &floats(&evaluated)) <= BOUND);
    assert!(relative_error(&expected, &features) <= BOUND);

    let mut entries = EntryPoint::all(1, 4, CONTEXT);
    entries.push(EntryPoint::new("features", 1, 4, CONTEXT, LogitsMode::Next).of_features());
    let trace = Llava::<F32>::trace(&golden.config, &entries).unwrap().trace;
    let built = built(&trace);
    let runtime = Runtime::new(Device::LocalSync).unwrap();
    let program = built.program(&runtime, &weights);
    let network = Network::new(&runtime, &program, &built.module.signatures).unwrap();
    let logits = floats(&known["logits"]);
    let rows: Vec<&[f32]> = logits.chunks(golden.config.vocab_size).collect();
    let mut session = Session::new(&network);
    let mut found = vec![session.feed(&golden.before).unwrap()];
    let features = Features { numbers: features, width: golden.config.hidden_size };
    found.push(session.feed_features(&features, golden.image).unwrap());
    found.push(session.feed(&golden.after).unwrap());
    let mut positions =
        vec![golden.before.len() - 1, rows.len() - golden.tokens.len() - golden.after.len() - 1];
    positions.push(rows.len() - golden.tokens.len() - 1);
    for (&token, position) in golden.tokens.iter().zip(rows.len() - golden.tokens.len()..) {
        assert_eq!(best(found.last().unwrap()) as u32, token);
        found.push(session.feed(&[token]).unwrap());
        positions.push(position);
    }
    for (row, position) in found.iter().zip(positions) {
        let error = relative_error(rows[position], row);
        assert!(error <= BOUND, "position {position}: {error:.1e}");
    }
}
