//! A T5 as a network of a user: its encoder fills memory from tokens or from features, its decoder reads it. The logits are
//! those of transformers (`tests/oracle/encoder_decoder.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;

use ops::{ElementType, Literal, TensorType, Value};
use runtime::{Buffer, Device, Runtime};
use safetensors::SafeTensors;
use serde::Deserialize;
use support::*;
use trace::{Signature, Trace};
use tracewright::dsl::nn::{Attend, Encoded, Kv, Mask, Position, attend, relu};
use tracewright::dsl::{
    Axis, Cache, CausalLm, EntryPoint, F32, Float, I32, LogitsMode, Tensor, TraceError, Traced, model,
};
use tracewright::generate::{
    Batch, CallArgument, EncoderInput, Evaluator, Executor, Features, GenerateError, Iree, Network, Prompt,
    PromptPart, Session, TokenOptions,
};
use tracewright::model::TuningSource;
use tracewright::models::{Architecture, DeclaredSize, MtpError, Opened};
use tracewright::targets::Tuning;
use tracewright::{Model, ModelError, OpenOptions};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::calls::WeightValues;
use tracewright_tests::level;

/// The axis of the slots of keys and values.
const SLOTS: Axis = Axis("N");

#[derive(Clone, Deserialize)]
struct Config {
    vocab_size: usize,
    d_model: usize,
    d_kv: usize,
    d_ff: usize,
    num_layers: usize,
    num_decoder_layers: usize,
    num_heads: usize,
    relative_attention_num_buckets: usize,
    relative_attention_max_distance: usize,
    epsilon: f64,
    #[serde(default)]
    source: usize,
}

impl Config {
    /// The bucket of a distance, of which `buckets` are told apart (Raffel et al. 2020, §2.1; `_relative_position_bucket`).
    fn bucket(&self, distance: usize, buckets: usize) -> usize {
        let exact = buckets / 2;
        if distance < exact {
            return distance;
        }
        let far = (self.relative_attention_max_distance as f32 / exact as f32).ln();
        let step = (distance as f32 / exact as f32).ln() / far * (buckets - exact) as f32;
        (exact + step as usize).min(buckets - 1)
    }
}

fn constant(shape: &[usize], axes: &[Axis], numbers: Vec<usize>) -> Tensor<I32> {
    let ty = TensorType::new(ElementType::I32, shape);
    let value = Value::new(ty, numbers.into_iter().map(|number| number as f64));
    Tensor::constant(Literal::from_value(&value), axes)
}

model! {
    /// `T5ForConditionalGeneration`: an encoder for a source, and a decoder.
    T5<T: Float>(Config) {
        dims {
            V = vocab_size, D = d_model, H = num_heads, E = d_kv, F = d_ff, M = source,
            L = num_decoder_layers, X = num_layers, R = relative_attention_num_buckets,
        }
        cache {
            L of [H, E],
            L of cross_keys: Encoded[M, H, E],
            L of cross_values: Encoded[M, H, E],
            L of length: Encoded<I32>[],
        }

        shared: Embedding[V, D],
        encoder: Encoder,
        decoder: Decoder,
        lm_head: Linear[D -> V] = tied(shared),

        fn encode(tokens: i32[B, S], count: i32[B], cache: &mut Cache<T>) -> () {
            self.encode_features(self.shared(tokens).to(), count, cache)
        }
        fn encode_features(x: f32[B, S, D], count: i32[B], cache: &mut Cache<T>) -> () {
            let encoded = self.encoder(x.to(), count); // [B, S, D]
            for (i, layer) in self.decoder.block.iter().enumerate() {
                let (keys, values) = layer.cross.keys(encoded);
                cache.named::<Encoded<T>>(i, "cross_keys").fill(keys.rename(S, M));
                cache.named::<Encoded<T>>(i, "cross_values").fill(values.rename(S, M));
                cache.named::<Encoded<I32>>(i, "length").fill(count);
            }
        }
        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.decoder(self.shared(tokens), at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x * (self.dim(D) as f64).powf(-0.5)).to()
        }
    }

    Encoder {
        relative: Embedding[R, H] at "block.0.layer.0.SelfAttention.relative_attention_bias",
        block: [EncoderLayer; X],
        final_layer_norm: RmsNorm[D](eps = epsilon),

        fn forward(x: T[B, S, D], count: i32[B]) -> T[B, S, D] {
            let length = x.extent(S);
            let half = self.dim(R) / 2;
            let bucket = |query: usize, key: usize| {
                let after = if key > query { half } else { 0 };
                after + self.config.bucket(query.abs_diff(key), half)
            };
            let buckets = (0..length * length).map(|i| bucket(i / length, i % length)).collect();
            let bias = self.relative(constant(&[length, length], &[S, SLOTS], buckets)); // [S, N, H]
            let mask = Mask::additive(bias) & Mask::counted(SLOTS, length, count);
            let at = Attend::bidirectional(S, mask).scaled(1.0);
            let x = self.block.iter().fold(x, |x, layer| layer.forward(x, &at));
            self.final_layer_norm(x)
        }
    }

    EncoderLayer {
        attention_norm: RmsNorm[D](eps = epsilon) at "layer.0.layer_norm",
        attention: Attention at "layer.0.SelfAttention",
        norm: RmsNorm[D](eps = epsilon) at "layer.1.layer_norm",
        mlp: Mlp at "layer.1.DenseReluDense",

        fn forward(x: T[B, S, D], at: &Attend<T>) -> T[B, S, D] {
            let normed = self.attention_norm(x);
            let (k, v) = self.attention.keys(normed);
            let x = x + self.attention(normed, k.rename(S, SLOTS), v.rename(S, SLOTS), at);
            x + self.mlp(self.norm(x))
        }
    }

    Decoder {
        relative: Embedding[R, H] at "block.0.layer.0.SelfAttention.relative_attention_bias",
        block: [DecoderLayer; L],
        final_layer_norm: RmsNorm[D](eps = epsilon),

        fn forward(x: T[B, S, D], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let context = cache.context;
            let buckets = (0..context).map(|distance| self.config.bucket(distance, self.dim(R))).collect();
            let buckets = constant(&[context], &[Axis("Z")], buckets);
            let key = Tensor::<I32>::iota(SLOTS, context);
            let query = at.positions(S, x.extent(S));
            let distance = query.broadcast(key) - key; // [S, N] or [B, S, N]
            let bias = self.relative(buckets.rows(distance.maximum(0.0))); // […, S, N, H]
            let causal = Attend::causal(at, S).scaled(1.0).within(Mask::additive(bias));

            let length = cache.named::<Encoded<I32>>(0, "length").read();
            let cross = Attend::bidirectional(S, Mask::counted(M, self.dim(M), length)).scaled(1.0);
            let mut x = x;
            for (i, layer) in self.block.iter().enumerate() {
                let keys = cache.named::<Encoded<T>>(i, "cross_keys").read();
                let values = cache.named::<Encoded<T>>(i, "cross_values").read();
                x = layer.forward(x, &causal, cache.state(i), keys, values, &cross);
            }
            self.final_layer_norm(x)
        }
    }

    DecoderLayer {
        attention_norm: RmsNorm[D](eps = epsilon) at "layer.0.layer_norm",
        attention: Attention at "layer.0.SelfAttention",
        cross_norm: RmsNorm[D](eps = epsilon) at "layer.1.layer_norm",
        cross: Attention at "layer.1.EncDecAttention",
        norm: RmsNorm[D](eps = epsilon) at "layer.2.layer_norm",
        mlp: Mlp at "layer.2.DenseReluDense",

        fn forward(
            x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>, keys: T[B, M, H, E], values: T[B, M, H, E], cross: &Attend<T>,
        ) -> T[B, S, D] {
            let normed = self.attention_norm(x);
            let (k, v) = self.attention.keys(normed);
            let (k, v) = kv.append(k, v, at);
            let x = x + self.attention(normed, k, v, at);
            let x = x + self.cross(self.cross_norm(x), keys, values, cross);
            x + self.mlp(self.norm(x))
        }
    }

    Attention {
        q: Linear[D -> H, E],
        k: Linear[D -> H, E],
        v: Linear[D -> H, E],
        o: Linear[H, E -> D],

        fn keys(x: T[B, S, D]) -> (T[B, S, H, E], T[B, S, H, E]) {
            (self.k(x), self.v(x))
        }
        fn forward(x: T[B, S, D], k: T[.., E], v: T[.., E], at: &Attend<T>) -> T[B, S, D] {
            self.o(attend(self.q(x), k, v, at))
        }
    }

    Mlp {
        wi: Linear[D -> F],
        wo: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.wo(relu(self.wi(x)))
        }
    }
}

#[derive(Deserialize)]
struct Golden {
    source: usize,
    scaled: bool,
    config: Config,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    source: Vec<u32>,
    tokens: Vec<u32>,
}

fn file(name: &str) -> Vec<u8> {
    fs::read(repository().join("tests/fixtures/t5").join(name)).unwrap()
}

/// The tensors of a file.
fn tensors(name: &str) -> WeightValues {
    let bytes = file(name);
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let value = |(key, tensor): (String, safetensors::tensor::TensorView<'_>)| {
        let ty = TensorType::new(ElementType::F32, tensor.shape());
        let words = tensor.data().as_chunks().0.iter().copied();
        (key, Value::new(ty, words.map(|word| f64::from(f32::from_le_bytes(word)))))
    };
    found.tensors().into_iter().map(value).collect()
}

fn golden() -> Golden {
    let mut golden: Golden = serde_json::from_slice(&file("golden.json")).unwrap();
    assert!(golden.scaled && golden.cases.len() == 4);
    golden.config.source = golden.source;
    golden
}

const CONTEXT: usize = 24;

fn record(golden: &Golden, batch: usize, from_features: bool) -> Trace {
    let encoder = EntryPoint::new("encode", batch, golden.source, golden.source, LogitsMode::None);
    let mut entries = EntryPoint::all(batch, 8, CONTEXT);
    entries.push(if from_features { encoder.of_features() } else { encoder });
    T5::<F32>::trace(&golden.config, &entries).unwrap().trace
}

/// The logits of transformers after each token of a case.
fn expected(tensors: &WeightValues, case: usize) -> Vec<Vec<f32>> {
    let value = &tensors[&format!("cases.{case}.logits")];
    value.data.chunks(value.ty.shape[1]).map(|row| row.iter().map(|&x| x as f32).collect()).collect()
}

/// The largest distance of a logit, in units of its row's largest.
fn distance(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let of_row = |(found, expected): (&Vec<f32>, &Vec<f32>)| {
        let scale = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        found.iter().zip(expected).fold(0.0f32, |max, (a, b)| max.max((a - b).abs())) / scale
    };
    found.iter().zip(expected).map(of_row).fold(0.0, f32::max)
}

const BOUND: f32 = 1e-5;

/// All cases, by a session and by a batch in which texts join while others run.
fn check<E: Executor>(network: &Network<E>, golden: &Golden, weights: &WeightValues, from_features: bool) {
    let logits = tensors("golden.safetensors");
    let width = golden.config.d_model;
    let source = |case: &Case| {
        let row = |&token: &u32| &weights["shared.weight"].data[token as usize * width..][..width];
        let numbers = || case.source.iter().flat_map(row).map(|&x| x as f32).collect();
        if from_features {
            EncoderInput::Features(Features { numbers: numbers(), width })
        } else {
            EncoderInput::Tokens(case.source.clone())
        }
    };
    let mut worst = 0.0f32;
    for (i, case) in golden.cases.iter().enumerate() {
        let expected = expected(&logits, i);
        let fed = &case.tokens[..expected.len()];
        let mut session = Session::new(network);
        session.encode(source(case)).unwrap();
        worst = worst.max(distance(&session.score(fed).unwrap(), &expected));
        session.truncate(0);
        let stepped: Vec<Vec<f32>> = fed.iter().map(|&token| session.feed(&[token]).unwrap()).collect();
        worst = worst.max(distance(&stepped, &expected));
    }
    assert!(worst <= BOUND, "{worst}");

    let options = TokenOptions { max_tokens: golden.cases[0].tokens.len() - 1, ..TokenOptions::default() };
    let mut batch = Batch::new(network);
    let (mut joined, mut ended) = (Vec::new(), 0);
    while ended < golden.cases.len() {
        if joined.len() < golden.cases.len() && batch.free() > 0 {
            let source = Some(source(&golden.cases[joined.len()]));
            joined.push(batch.join(Prompt { source, ..Prompt::from([0]) }, &options).unwrap());
        }
        for (row, generated) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
            let case = joined.iter().rposition(|&taken| taken == row).unwrap();
            assert_eq!(generated.tokens, golden.cases[case].tokens[1..], "case {case}");
            ended += 1;
        }
    }
}

fn signatures(trace: &Trace) -> Vec<Signature> {
    trace.entries.iter().map(|&id| trace.function(id).signature()).collect()
}

#[test]
fn a_t5_gives_the_logits_of_transformers() {
    let (golden, weights) = (golden(), tensors("model.safetensors"));
    for (batch, from_features) in [(1, false), (3, true)] {
        let trace = record(&golden, batch, from_features);
        trace.verify().unwrap();
        let keys: Vec<String> = trace.parameters().unwrap().into_iter().map(|one| one.key).collect();
        assert_eq!(weights.keys().find(|key| !keys.contains(key)), None, "a tensor that nothing reads");
        if batch == 1 {
            let parameters = |key: &str| weights.get(key).cloned();
            let evaluator = Evaluator { trace: &trace, parameters: &parameters };
            let network = Network::on(evaluator, &signatures(&trace)).unwrap();
            check(&network, &golden, &weights, from_features);
        }
        let built = built(&trace);
        let runtime = Runtime::new(Device::LocalSync).unwrap();
        let program = built.program(&runtime, &weights);
        let network = Network::new(&runtime, &program, &built.module.signatures).unwrap();
        check(&network, &golden, &weights, from_features);
    }
}

/// Counts the bytes that copies take.
struct Counting {
    iree: Iree,
    copied: Cell<usize>,
}

impl Executor for Counting {
    type Buffer = Buffer;

    fn zeros(&self, ty: &TensorType) -> Result<Buffer, GenerateError> {
        self.iree.zeros(ty)
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<Buffer, GenerateError> {
        self.iree.upload(ty, bytes)
    }

    fn copy(&self, ty: &TensorType, buffer: &Buffer) -> Result<Buffer, GenerateError> {
        self.copied.set(self.copied.get() + ty.bytes());
        self.iree.copy(ty, buffer)
    }

    fn alias(&self, buffer: &Buffer) -> Result<Option<Buffer>, GenerateError> {
        self.iree.alias(buffer)
    }

    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, GenerateError> {
        self.iree.read(buffer)
    }

    fn read_element(&self, buffer: &Buffer, index: usize) -> Result<Vec<u8>, GenerateError> {
        self.iree.read_element(buffer, index)
    }

    fn call(&self, entry: &str, arguments: Vec<CallArgument<Buffer>>) -> Result<Vec<Buffer>, GenerateError> {
        self.iree.call(entry, arguments)
    }
}

/// The first call of each entry point copies the encoder's output, and no other one.
#[test]
fn decode_calls_do_not_copy_the_output_of_the_encoder() {
    let (golden, weights) = (golden(), tensors("model.safetensors"));
    let trace = record(&golden, 1, false);
    let built = built(&trace);
    let runtime = Runtime::new(Device::LocalSync).unwrap();
    let program = built.program(&runtime, &weights);
    let counting = Counting { iree: Iree::new(&runtime, &program).unwrap(), copied: Cell::default() };
    let network = Network::on(counting, &built.module.signatures).unwrap();
    let case = &golden.cases[3];
    let mut session = Session::new(&network);
    session.encode(EncoderInput::Tokens(case.source.clone())).unwrap();
    let encoder = trace.entry("encode").unwrap().signature();
    let memory: usize = encoder.results.iter().map(|result| result.ty.bytes()).sum();
    for (index, &token) in case.tokens.iter().enumerate() {
        session.feed(&[token]).unwrap();
        assert_eq!(network.executor().copied.get(), memory, "after call {index}");
    }
}

/// The T5 as an architecture of a user's own, which adds its encoder to the entry points.
impl Architecture for Config {
    fn trace(&self, _: ElementType, entries: &[EntryPoint]) -> Result<Traced, TraceError> {
        let batch = entries.iter().map(|entry| entry.batch).max().unwrap_or(1);
        let encoder = EntryPoint::new("encode", batch, self.source, self.source, LogitsMode::None);
        T5::<F32>::trace(self, &[entries, &[encoder]].concat())
    }

    fn max_context(&self) -> usize {
        CONTEXT
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn element(&self) -> Option<ElementType> {
        Some(ElementType::F32)
    }

    fn check_mtp(&self) -> Result<(), MtpError> {
        Err(MtpError::Family)
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        Vec::new()
    }
}

#[test]
fn a_model_passes_the_source_of_each_request_to_its_encoder() {
    let golden = golden();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), file("model.safetensors")).unwrap();
    let options = OpenOptions {
        read: |_, _| Ok(Opened::text(self::golden().config)),
        compiler: Some(compiler().unwrap()),
        cache: Some(repository().join(".tracewright/cache")),
        target: Some(level::target()),
        tuning: Some(TuningSource::Given(Tuning::default())),
        slots: 2,
        ..OpenOptions::default()
    };
    let model = Model::open_with(folder.path(), options).unwrap();
    let max_tokens = golden.cases[0].tokens.len() - 1;
    let begin = |prompt: Prompt| model.continue_prompt(prompt).max_tokens(max_tokens);
    let of_case = |case: &Case| {
        let source = Some(EncoderInput::Tokens(case.source.clone()));
        Prompt { source, reuse: true, ..Prompt::from([0]) }
    };
    // Two sequences with different sources run at once, and none reuses the state of another source.
    let running: Vec<_> = golden.cases.iter().map(|case| begin(of_case(case)).stream().unwrap()).collect();
    for (case, mut pieces) in golden.cases.iter().zip(running) {
        pieces.by_ref().for_each(|piece| drop(piece.unwrap()));
        assert_eq!(pieces.into_completion().unwrap().generated.tokens, case.tokens[1..]);
    }

    let one = || of_case(&golden.cases[0]);
    let refused = |prompt: Prompt| match begin(prompt).text().unwrap_err() {
        ModelError::Generate(error) => error,
        other => panic!("{other}"),
    };
    let numbers = Features { numbers: vec![0.0; 8], width: 8 };
    let part = PromptPart::Features(numbers.clone(), 0);
    assert!(matches!(refused(Prompt::from([0])), GenerateError::NoMemory));
    let source = Some(EncoderInput::Features(numbers));
    assert!(matches!(refused(Prompt { source, ..one() }), GenerateError::SourceKind { takes: "tokens" }));
    assert!(matches!(refused(Prompt { adapter: 1, ..one() }), GenerateError::NoEntryPoint { .. }));
    assert!(matches!(refused(Prompt { parts: vec![part], ..one() }), GenerateError::NoEntryPoint { .. }));
    assert_eq!(begin(one()).complete().unwrap().generated.tokens, golden.cases[0].tokens[1..]);
}
