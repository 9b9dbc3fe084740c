//! Memory that an encoder fills, features in place of tokens, a token after each position, adapters: recorded, checked and
//! served by a session, under the evaluator and IREE.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::ops::ControlFlow;

use ops::{ElementType, TensorType};
use runtime::{Device, Runtime};
use support::*;
use trace::{Role, Signature, Trace};
use tracewright::dsl::nn::{Attend, Cache, Encoded, Kv, Position, attend, dot, softmax};
use tracewright::dsl::{
    Axis, CausalLm, EntryPoint, F32, Float, I32, LogitsMode, Recording, Tensor, TraceErrorKind, model,
};
use tracewright::generate::{
    Batch, EncoderInput, Evaluator, Executor, Features, GenerateError, Generated, Network, Prompt,
    PromptPart, Session, TokenOptions,
};
use tracewright_tests::calls::{WeightValues, random};
use tracewright_tests::golden::is_best_within;

#[derive(Clone)]
struct Config {
    layers: usize,
}

model! {
    /// Each position looks at what the encoder gives, and at nothing else.
    Translate<T: Float>(Config) {
        dims { V = 11, D = 4, M = 4, N = 6, L = layers }
        cache { L of source: Encoded[N, D], L of length: Encoded<I32>[] }

        embed: Embedding[V, D],
        encoder: Linear[D -> M],
        head: Linear[D -> V],

        fn encode(tokens: i32[B, S], count: i32[B], cache: &mut Cache<T>) -> () {
            let x = self.encoder(self.embed(tokens));
            let source: &mut Encoded<T> = cache.named(0, "source");
            source.fill(x.rename(S, N).rename(M, D));
            cache.named::<Encoded<I32>>(0, "length").fill(count);
        }

        fn forward(tokens: i32[B, S], _at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let x = self.embed(tokens);
            let source = cache.named::<Encoded<T>>(0, "source").read();
            let length = cache.named::<Encoded<I32>>(0, "length").read();
            let scores = dot(x, source, D); // [B, S, N]
            let place = Tensor::<I32>::iota(N, self.dim(N));
            let real = place.broadcast(length).less(length.broadcast(place)); // [B, N]
            let scores = real.broadcast(scores).select(scores, -1e9);
            x + dot(softmax(scores, N), source, N).permute(&[B, S, D])
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.head(x).to()
        }
    }
}

model! {
    /// Attention over tokens, or over what stands in place of them.
    See<T: Float>(Config) {
        dims { V = 11, D = 6, K = 2, E = 3, L = layers }
        cache { L of [K, E] }

        embed: Embedding[V, D],
        layers: [Layer; L],
        head: Linear[D -> V],

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.forward_features(self.embed(tokens), at, cache)
        }
        fn forward_features(x: T[B, S, D], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let at = Attend::causal(at, S);
            let mut x = x;
            for (i, layer) in self.layers.iter().enumerate() {
                x = layer.forward(x, &at, cache.state(i));
            }
            x
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.head(x).to()
        }
    }

    Layer {
        q: Linear[D -> K, E],
        k: Linear[D -> K, E],
        v: Linear[D -> K, E],
        o: Linear[K, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let (k, v) = kv.append(self.k(x), self.v(x), at);
            x + self.o(attend(self.q(x), k, v, at))
        }
    }
}

const CONTEXT: usize = 12;
const SOURCE: usize = 6;

fn encoder(batch: usize) -> EntryPoint {
    EntryPoint::new("encode", batch, SOURCE, SOURCE, LogitsMode::None)
}

fn weights(trace: &Trace) -> WeightValues {
    let value = |(i, p): (usize, trace::Parameter)| (p.key, random(p.ty, 3 + i as u64));
    trace.parameters().unwrap().into_iter().enumerate().map(value).collect()
}

fn signatures(trace: &Trace) -> Vec<Signature> {
    trace.entries.iter().map(|&id| trace.function(id).signature()).collect()
}

/// Joins these prompts, each after a step of the ones before, and returns what each has in the end.
fn batched<E: Executor>(network: &Network<E>, prompts: &[Prompt]) -> Vec<Generated> {
    let options = TokenOptions { max_tokens: 3, keep_logits: true, ..TokenOptions::default() };
    let mut batch = Batch::new(network);
    let mut answers: Vec<Option<Generated>> = vec![None; prompts.len()];
    let mut row_of = Vec::new();
    while answers.iter().any(Option::is_none) {
        if row_of.len() < prompts.len() && batch.free() > 0 {
            row_of.push(batch.join(prompts[row_of.len()].clone(), &options).unwrap());
        }
        for (row, generated) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
            answers[row_of.iter().rposition(|&taken| taken == row).unwrap()] = Some(generated);
        }
    }
    answers.into_iter().flatten().collect()
}

/// A test of a network, which runs on each executor.
trait Check {
    fn check<E: Executor>(&self, network: &Network<E>, bound: f32);
}

fn on_both(trace: &Trace, weights: &WeightValues, check: &impl Check) {
    trace.verify().unwrap();
    assert_eq!(trace.to_string().parse::<Trace>().unwrap(), *trace);
    let parameters = |key: &str| weights.get(key).cloned();
    let evaluator = Evaluator { trace, parameters: &parameters };
    check.check(&Network::on(evaluator, &signatures(trace)).unwrap(), 1e-6);
    let built = built(trace);
    let runtime = Runtime::new(Device::LocalSync).unwrap();
    let program = built.program(&runtime, weights);
    check.check(&Network::new(&runtime, &program, &built.module.signatures).unwrap(), 1e-4);
}

fn near(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(1.0f32, |max, x| max.max(x.abs()));
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= bound * scale, "{a} and {b}");
    }
}

/// The logits of `Translate` in plain numbers.
fn translated(weights: &WeightValues, source: &[u32], token: u32) -> Vec<f32> {
    let matrix = |key: &str, row: usize| weights[key].data[4 * row..][..4].to_vec();
    let inner = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let encoded = |token: &u32| -> Vec<f64> {
        let x = matrix("embed.weight", *token as usize);
        (0..4).map(|row| inner(&matrix("encoder.weight", row), &x)).collect()
    };
    let source: Vec<Vec<f64>> = source.iter().map(encoded).collect();
    let x = matrix("embed.weight", token as usize);
    let scores: Vec<f64> = source.iter().map(|one| inner(one, &x).exp()).collect();
    let sum: f64 = scores.iter().sum();
    let mixed = |d: usize| x[d] + source.iter().zip(&scores).map(|(one, p)| one[d] * p / sum).sum::<f64>();
    let y: Vec<f64> = (0..4).map(mixed).collect();
    (0..11).map(|row| inner(&matrix("head.weight", row), &y) as f32).collect()
}

struct Translates<'a>(&'a WeightValues);

impl Check for Translates<'_> {
    fn check<E: Executor>(&self, network: &Network<E>, bound: f32) {
        let mut session = Session::new(network);
        let unfilled = session.feed(&[1]).unwrap_err().to_string();
        assert!(unfilled.contains("but no call has run the encoder"), "{unfilled}");
        for source in [&[3, 1, 4][..], &[9, 2, 6, 5, 8, 7]] {
            session.encode(EncoderInput::Tokens(source.to_vec())).unwrap();
            assert!(session.tokens().is_empty());
            for token in [5, 0, 10] {
                near(&session.feed(&[token]).unwrap(), &translated(self.0, source, token), 10.0 * bound);
            }
        }
        let long = EncoderInput::Tokens(vec![1; SOURCE + 1]);
        let long = session.encode(long).unwrap_err().to_string();
        assert!(long.contains("the text has 7 tokens, but the context has only 6 tokens"), "{long}");

        // Texts of a batch have sources of their own, also where one joins beside others.
        let sources = [&[3, 1, 4][..], &[9, 2, 6, 5, 8, 7], &[2]];
        let translated_from = |source: &[u32]| Prompt {
            source: Some(EncoderInput::Tokens(source.to_vec())),
            ..Prompt::from([5])
        };
        let prompts = sources.map(translated_from);
        for (source, generated) in sources.iter().zip(batched(network, &prompts)) {
            for (token, logits) in [5].iter().chain(&generated.tokens).zip(&generated.logits) {
                near(logits, &translated(self.0, source, *token), 10.0 * bound);
            }
            assert_eq!(generated.logits.len(), 3);
        }
        let mut batch = Batch::new(network);
        let options = TokenOptions::default();
        let mut refused = |prompt: Prompt| batch.join(prompt, &options).unwrap_err();
        assert!(matches!(refused(Prompt::from([5])), GenerateError::NoMemory));
        assert!(matches!(refused(translated_from(&[])), GenerateError::EmptyPrompt));
        assert!(matches!(refused(translated_from(&[99])), GenerateError::Token { token: 99, .. }));
        assert!(matches!(refused(translated_from(&[1; SOURCE + 1])), GenerateError::TooLong { .. }));
        let seen = Some(EncoderInput::Features(Features { numbers: vec![0.0; 4], width: 4 }));
        let error = refused(Prompt { source: seen, ..Prompt::from([5]) });
        assert!(matches!(error, GenerateError::SourceKind { takes: "tokens" }), "{error}");
        assert_eq!(
            refused(Prompt { adapter: 1, ..prompts[0].clone() }).to_string(),
            "the program has no entry point that takes an argument with the role `adapter`"
        );
        let part = PromptPart::Features(Features { numbers: vec![0.0; 4], width: 4 }, 0);
        assert_eq!(
            refused(Prompt { parts: vec![part], ..prompts[0].clone() }).to_string(),
            "the program has no entry point that takes an argument with the role `features`"
        );
        assert_eq!(batch.free(), network.batch());
    }
}

#[test]
fn an_encoder_fills_what_a_decoder_reads() {
    for batch in [1, 2] {
        let mut entries = EntryPoint::all(batch, 4, CONTEXT);
        entries.push(encoder(batch));
        let trace = Translate::<F32>::trace(&Config { layers: 1 }, &entries).unwrap().trace;
        let weights = weights(&trace);
        let decode = trace.entry("decode").unwrap().signature();
        let roles: Vec<String> = decode.arguments[3..].iter().map(ToString::to_string).collect();
        let expected = [
            format!("source0: f32[{batch},6,4] (memory(source, layer 0))"),
            format!("length0: i32[{batch}] (memory(length, layer 0))"),
        ];
        assert_eq!(roles, expected);
        assert_eq!(decode.results.len(), 2, "memory is not returned");
        on_both(&trace, &weights, &Translates(&weights));
    }
    let entries = [EntryPoint::all(2, 4, CONTEXT), vec![encoder(1)]].concat();
    let trace = Translate::<F32>::trace(&Config { layers: 1 }, &entries).unwrap().trace;
    let evaluator = Evaluator { trace: &trace, parameters: &|_| None };
    let error = Network::on(evaluator, &signatures(&trace)).err().unwrap().to_string();
    assert_eq!(error, "entry point `encode` computes 1, expected the whole batch of 2");
}

#[test]
fn memory_without_its_encoder_is_an_error() {
    let config = Config { layers: 1 };
    let trace = Translate::<F32>::trace(&config, &EntryPoint::steps(1, 4, CONTEXT)).unwrap().trace;
    let error = trace.verify().unwrap_err().to_string();
    let expected = "the entry point `prefill` reads `source0: f32[1,6,4] (memory(source, layer 0))`, which no other \
                    entry point fills";
    assert_eq!(error, expected);

    let mut entries = EntryPoint::all(1, 4, CONTEXT);
    entries.push(encoder(1));
    let text = Translate::<F32>::trace(&config, &entries).unwrap().trace.to_string();
    let mut trace: Trace = text.parse().unwrap();
    // Another type than the encoder's.
    for function in &mut trace.functions {
        if function.name == "encode" {
            let count = function.outputs.iter().position(|one| one.name == "length0").unwrap();
            function.outputs[count].node = function.outputs[1 - count].node;
        }
    }
    let error = trace.verify().unwrap_err().to_string();
    let expected = "reads `length0: i32[1] (memory(length, layer 0))`, and the entry point `encode` fills \
                    `length0: f32[1,6,4] (memory(length, layer 0))`";
    assert!(error.ends_with(expected), "{error}");

    let short = EntryPoint { chunk: 5, ..encoder(1) };
    let error = Translate::<F32>::trace(&config, &[short]).unwrap_err();
    assert!(matches!(*error.kind, TraceErrorKind::Signature { .. }), "{error}");
    let error = Translate::<F32>::trace(&config, &[encoder(1).of_features()]).unwrap_err().to_string();
    assert!(error.starts_with("the entry point `encode` calls the function `encode_features`"), "{error}");
}

struct Sees<'a>(&'a WeightValues);

const TOKENS: [u32; 9] = [3, 1, 4, 1, 5, 9, 2, 6, 5];

impl Check for Sees<'_> {
    fn check<E: Executor>(&self, network: &Network<E>, bound: f32) {
        let scores = Session::new(network).score(&TOKENS).unwrap();
        let features = |tokens: &[u32]| {
            let rows =
                tokens.iter().flat_map(|&token| &self.0["embed.weight"].data[6 * token as usize..][..6]);
            Features { numbers: rows.map(|&number| number as f32).collect(), width: 6 }
        };
        // Tokens, features in their place, tokens again; then back into the features, and on.
        let mut session = Session::new(network);
        session.feed(&TOKENS[..2]).unwrap();
        near(&session.feed_features(&features(&TOKENS[2..7]), 0).unwrap(), &scores[6], bound);
        assert_eq!(session.tokens()[2..7], [0; 5]);
        near(&session.feed(&TOKENS[7..]).unwrap(), &scores[8], bound);
        session.truncate(4);
        near(&session.feed(&TOKENS[4..6]).unwrap(), &scores[5], bound);
        for (count, width, expected) in [
            (
                7,
                6,
                "7 feature values with a width of 6 are no features for the network, expected 1 to 12 vectors with a width of 6",
            ),
            (
                12,
                4,
                "12 feature values with a width of 4 are no features for the network, expected 1 to 12 vectors with a width of 6",
            ),
            (
                12,
                0,
                "12 feature values with a width of 0 are no features for the network, expected 1 to 12 vectors with a width of 6",
            ),
            (
                0,
                6,
                "0 feature values with a width of 6 are no features for the network, expected 1 to 12 vectors with a width of 6",
            ),
        ] {
            let wrong = Features { numbers: vec![0.0; count], width };
            assert_eq!(session.feed_features(&wrong, 0).unwrap_err().to_string(), expected);
            let prompt = Prompt { parts: vec![PromptPart::Features(wrong, 0)], ..Prompt::default() };
            let refused = Batch::new(network).join(prompt, &TokenOptions::default());
            assert_eq!(refused.unwrap_err().to_string(), expected);
        }
        let source = Some(EncoderInput::Tokens(vec![1]));
        let refused =
            Batch::new(network).join(Prompt { source, ..Prompt::from([1]) }, &TokenOptions::default());
        assert!(matches!(refused, Err(GenerateError::NoEncoder)));

        // A token after each position is what stepping chooses.
        let mut session = Session::new(network);
        let favoured = session.favoured(&TOKENS).unwrap();
        assert_eq!(favoured.len(), scores.len());
        for (row, token) in scores.iter().zip(favoured) {
            assert!(is_best_within(bound.into(), row, token), "{token} of {row:?}");
        }
        assert_eq!(session.tokens(), TOKENS);

        // In a batch, some positions of one text are features while another has tokens alone.
        let seen = features(&TOKENS[2..7]);
        let mixed = Prompt {
            parts: vec![
                PromptPart::Tokens(TOKENS[..2].to_vec()),
                PromptPart::Features(seen.clone(), 0),
                PromptPart::Tokens(TOKENS[7..].to_vec()),
            ],
            ..Prompt::default()
        };
        let plain = Prompt::from(TOKENS);
        for generated in batched(network, &[plain.clone(), mixed.clone(), mixed, plain]) {
            near(&generated.logits[0], &scores[8], bound);
            let mut session = Session::new(network);
            session.feed(&TOKENS).unwrap();
            for (token, logits) in generated.tokens.iter().zip(&generated.logits[1..]) {
                near(logits, &session.feed(&[*token]).unwrap(), bound);
            }
        }
        // Placeholders are no tokens: nothing of them is taken over.
        let mut batch = Batch::new(network);
        let options = TokenOptions { max_tokens: 1, keep_logits: true, ..TokenOptions::default() };
        let placed = Prompt { parts: vec![PromptPart::Features(seen, 3)], reuse: true, ..Prompt::default() };
        for _ in 0..2 {
            batch.join(placed.clone(), &options).unwrap();
            let ended = loop {
                let ended = batch.step(|_, _| ControlFlow::Continue(())).unwrap();
                if let [(_, generated)] = &ended[..] {
                    break generated.prefill_tokens;
                }
            };
            assert_eq!(ended, 5, "features are computed each time");
        }
        batch.join(Prompt::from([3, 3, 3]).reusing(), &options).unwrap();
        let mut ended = Vec::new();
        while ended.is_empty() {
            ended = batch.step(|_, _| ControlFlow::Continue(())).unwrap();
        }
        let expected = Session::new(network).feed(&[3, 3, 3]).unwrap();
        near(&ended[0].1.logits[0], &expected, bound);
    }
}

#[test]
fn features_stand_in_place_of_tokens_and_tokens_follow_each_position() {
    for batch in [1, 2] {
        let mut entries = EntryPoint::all(batch, 4, CONTEXT);
        entries.extend([
            EntryPoint::new("see", batch, 4, CONTEXT, LogitsMode::Next).of_features(),
            EntryPoint::new("each", batch, 4, CONTEXT, LogitsMode::Each),
        ]);
        let trace = See::<F32>::trace(&Config { layers: 2 }, &entries).unwrap().trace;
        let each = trace.entry("each").unwrap().signature();
        assert_eq!(each.results[0].to_string(), format!("token: i32[{batch},4] (token)"));
        let weights = weights(&trace);
        on_both(&trace, &weights, &Sees(&weights));
    }
    let error = Translate::<F32>::trace(
        &Config { layers: 1 },
        &[EntryPoint::new("see", 1, 4, CONTEXT, LogitsMode::Next).of_features()],
    );
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("the entry point `see` calls the function `forward_features`"), "{error}");
}

/// A row's logits are its adapter and the number of its sequence.
fn adapted() -> Trace {
    let (b, s, v) = (Axis("B").of(2), Axis("S").of(1), Axis("V").of(3));
    let recording = Recording::new(()).entry_with("decode", |(), entry| {
        let tokens: Tensor<I32> = entry.input("tokens", Role::Tokens, &[b, s]);
        entry.input::<I32>("start", Role::Start { context: 8 }, &[b]);
        entry.input::<I32>("count", Role::Count, &[b]);
        let sequence: Tensor<I32> = entry.input("sequence", Role::Sequence, &[b]);
        let adapter: Tensor<I32> = entry.input("adapter", Role::Adapter { count: 7 }, &[b]);
        let index = Tensor::<I32>::iota(v.axis, v.extent);
        let row = (sequence * 100 + adapter).to::<F32>();
        let zeros = Tensor::constant(
            ops::Literal::splat(TensorType::new(ElementType::F32, [2, 3]), 0.0),
            &[b.axis, v.axis],
        );
        let logits = zeros + row.broadcast(zeros) + index.to::<F32>().broadcast(zeros);
        entry.output("logits", Role::Logits, logits);
        entry.output("token", Role::Token, tracewright::dsl::nn::argmax(logits, v.axis));
        let _ = tokens;
    });
    recording.unwrap().finish().trace
}

struct Adapts;

impl Check for Adapts {
    fn check<E: Executor>(&self, network: &Network<E>, _: f32) {
        let mut session = Session::new(network);
        assert_eq!(session.feed(&[1]).unwrap(), [0.0, 1.0, 2.0]);
        session.adapt(7).unwrap();
        assert_eq!(session.feed(&[1]).unwrap(), [7.0, 8.0, 9.0]);
        assert_eq!(session.tokens(), [1, 1]);

        let expected = "the adapter is 8, expected 0 to 7; index 0 selects no adapter";
        assert_eq!(session.adapt(8).unwrap_err().to_string(), expected);
        let prompt = |adapter| Prompt { adapter, ..Prompt::from([1]) };
        let refused = Batch::new(network).join(prompt(8), &TokenOptions::default());
        assert_eq!(refused.unwrap_err().to_string(), expected);
        let generated = batched(network, &[prompt(7), prompt(0), prompt(3)]);
        // The second text is in the second row; the third takes the first that is free.
        for (i, adapter) in [7.0, 100.0].into_iter().enumerate() {
            assert_eq!(generated[i].logits[0], [adapter, adapter + 1.0, adapter + 2.0]);
        }
        assert_eq!(generated[2].logits[0][0] % 100.0, 3.0);
    }
}

#[test]
fn a_session_chooses_an_adapter() {
    let trace = adapted();
    on_both(&trace, &WeightValues::new(), &Adapts);
}
