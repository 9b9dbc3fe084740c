//! States that a layer declares by name, with an element type and axes of their own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use irpa::Checkpoint;
use lower::{LowerError, Weights};
use ops::Value;
use runtime::{Device, Runtime};
use safetensors::{Dtype, tensor::TensorView};
use simplify::Rules;
use support::built;
use trace::{KvFormat, Trace};
use tracewright::Lowered;
use tracewright::dsl::nn::{Attend, Cache, Kv, Position, Recurrent, Slots, attend, dot};
use tracewright::dsl::{Axis, Bf16, CausalLm, EntryPoint, F32, Float, I32, Tensor, model};
use tracewright::generate::{Evaluator, Executor, Network, Session};
use tracewright_tests::built::{Built, compiler};
use tracewright_tests::calls::{WeightValues, random};
use tracewright_tests::level;

/// The tokens that a sum is made of.
const Z: Axis = Axis("Z");

#[derive(Clone)]
struct Config {
    layers: usize,
}

impl Config {
    /// The last layer sees a few positions.
    fn window(&self, layer: usize) -> Option<usize> {
        (layer + 1 == self.layers).then_some(3)
    }

    fn twice(&self, _: usize) -> bool {
        self.layers > 1
    }
}

model! {
    /// Each layer has keys and values of different widths, two recurrent states and a latent.
    Mixed<T: Float>(Config) {
        dims { V = 13, D = 6, L = layers, K = 2, E = 4, W = 3, C = 2, J = C + 1, R = 5 }
        cache {
            L of [K, E, W] within window,
            L of conv: Recurrent[C, D],
            L of total: Recurrent<F32>[D],
            L of latent: Slots[R],
        }

        embed: Embedding[V, D],
        layers: [Layer; L],
        head: Linear[D -> V],

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let causal = Attend::causal(at, S);
            let mut x = self.embed(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                x = layer.forward(x, &causal.clone().windowed(self.config.window(i)), cache.state(i));
                x = layer.convolve(x, at, cache.named(i, "conv"));
                x = layer.sum(x, at, cache.named(i, "total"));
                x = layer.compress(x, &causal, cache.named(i, "latent"));
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
        v: Linear[D -> K, W],
        o: Linear[K, W -> D],
        taps: Weight[J, D],
        down: Linear[D -> R],
        query: Linear[D -> R],
        up: Linear[R -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let (k, v) = kv.append(self.k(x), self.v(x), at);
            x + self.o(attend(self.q(x), k, v, at))
        }

        fn convolve(x: T[B, S, D], at: Position, state: &mut Recurrent<T>) -> T[B, S, D] {
            let seen = state.append(x, C, S, at);
            let tap = |j| seen.narrow(S, j, x.extent(S)) * self.taps().narrow(J, j, 1).reshape(&[self.dims.dim(D)]);
            x + (0..self.dim(J)).map(tap).reduce(|a, b| a + b).unwrap()
        }

        /// Adds the mean of all tokens so far, summed in f32.
        fn sum(x: T[B, S, D], at: Position, state: &mut Recurrent<F32>) -> T[B, S, D] {
            let before = state.before(at); // [B, D]
            let token = Tensor::<I32>::iota(S, x.extent(S));
            let new = at.real(S, x.extent(S)).broadcast(x).select(x.to::<F32>(), 0.0);
            let other = token.rename(S, Z);
            let earlier = other.less_equal(token.broadcast(other)).to::<F32>(); // [Z, S]
            let sums = dot(new.rename(S, Z), earlier, Z).permute(&[B, S, D]);
            let sums = sums + before.broadcast(sums);
            state.state = before + new.sum(S);
            x + sums.to() * 0.125
        }

        fn compress(x: T[B, S, D], at: &Attend<T>, latent: &mut Slots<T>) -> T[B, S, D] {
            let all = latent.append(self.down(x), at); // [B, N, R]
            x + self.up(attend(self.query(x), all, all, at))
        }
    }
}

const CONTEXT: usize = 14;
const TOKENS: [u32; 11] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];

fn record<T: Float>(rows: usize, chunk: usize, kv: KvFormat) -> Trace {
    let mut entries = EntryPoint::all(rows, chunk, CONTEXT);
    entries.iter_mut().for_each(|entry| entry.kv = kv);
    Mixed::<T>::trace(&Config { layers: 2 }, &entries).unwrap().trace
}

fn weights(trace: &Trace) -> WeightValues {
    let value = |(i, p): (usize, trace::Parameter)| {
        let full = random(p.ty, 7 + i as u64);
        (p.key, Value::new(full.ty, full.data.iter().map(|x| x / 2.0)))
    };
    trace.parameters().unwrap().into_iter().enumerate().map(value).collect()
}

#[test]
fn declared_states_have_names_types_and_axes_of_their_own() {
    let trace = record::<Bf16>(2, 4, KvFormat::Computed);
    let signature = trace.entry("decode").unwrap().signature();
    let shown: Vec<String> = signature.arguments[3..8].iter().map(ToString::to_string).collect();
    let expected = [
        "keys0: bf16[2,2,14,4] (state(kv.keys, layer 0))",
        "values0: bf16[2,2,14,3] (state(kv.values, layer 0))",
        "conv0: bf16[2,2,6] (state(recurrent.conv, layer 0))",
        "total0: f32[2,6] (state(recurrent.total, layer 0))",
        "latent0: bf16[2,14,5] (state(kv.latent, layer 0))",
    ];
    assert_eq!(shown, expected);
    assert_eq!(trace.to_string().parse::<Trace>().unwrap(), trace);
    let quantized = record::<Bf16>(1, 4, KvFormat::Q8).entry("decode").unwrap().signature();
    let names: Vec<&str> = quantized.arguments[3..].iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names[..4], ["keys0", "key_scales0", "values0", "value_scales0"]);
    assert_eq!(names[6..8], ["latent0", "latent_scales0"]);
}

model! {
    /// Two states of one name, or one that is not declared.
    Wrong<T: Float>(Config) {
        dims { V = 13, D = 6, L = layers }
        cache { L of conv: Recurrent[D], L of conv: Recurrent[D] if twice }

        embed: Embedding[V, D],

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let x = self.embed(tokens);
            let state: &mut Recurrent<T> = cache.state(0);
            x + state.before(at).broadcast(x)
        }
        fn logits(x: T[.., D]) -> f32[.., D] {
            x.to()
        }
    }
}

#[test]
fn a_state_that_is_not_declared_right_is_an_error() {
    for (layers, expected) in [
        (1, "layer 0 has no state of the kind `Recurrent` without a name; declare the state in `cache`"),
        (2, "layer 0 declares two states with the name `conv0`; give one of the states another name"),
    ] {
        let error = Wrong::<F32>::trace(&Config { layers }, &EntryPoint::all(1, 4, CONTEXT)).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// The logits after each token, shown one by one and in chunks, after going back and on.
fn stepped<E: Executor>(network: &Network<E>) -> Vec<Vec<f32>> {
    let mut session = Session::new(network);
    session.feed(&TOKENS[..7]).unwrap();
    session.truncate(5);
    session.feed(&TOKENS[5..8]).unwrap();
    session.truncate(0);
    TOKENS.iter().map(|&token| session.feed(&[token]).unwrap()).collect()
}

fn check(found: &[Vec<f32>], expected: &[Vec<f32>], bound: f32) {
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let scale = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= bound * scale, "step {step}: {a} and {b}");
        }
    }
}

/// The results of a session, step by step, equal those of a single pass, in the evaluator and in IREE.
#[test]
fn every_declared_state_is_remembered() {
    for (rows, kv) in [(1, KvFormat::Computed), (2, KvFormat::Computed), (1, KvFormat::Q8)] {
        let trace = record::<F32>(rows, 4, kv);
        let weights = weights(&trace);
        let whole = record::<F32>(rows, TOKENS.len(), kv);
        let parameters = |key: &str| weights.get(key).cloned();
        let network = |trace| {
            let signatures = signatures(trace);
            Network::on(Evaluator { trace, parameters: &parameters }, &signatures).unwrap()
        };
        let expected = Session::new(&network(&whole)).score(&TOKENS).unwrap();

        check(&stepped(&network(&trace)), &expected, 1e-5);
        let built = built(&trace);
        let runtime = Runtime::new(Device::LocalSync).unwrap();
        let program = built.program(&runtime, &weights);
        let network = Network::new(&runtime, &program, &built.module.signatures).unwrap();
        check(&stepped(&network), &expected, 1e-4);
    }
}

/// The trace as the product compiles it, with its kernels; `None` if the processor that tests compile for has none.
fn with_kernels(trace: &Trace, weights: &WeightValues) -> Option<Built> {
    let folder = tempfile::tempdir().unwrap();
    let bytes = weights.values().map(Value::to_bytes).collect::<Vec<_>>();
    let views = weights.iter().zip(&bytes).map(|((key, value), bytes)| {
        (key.as_str(), TensorView::new(Dtype::F32, value.ty.shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let target = compiler().unwrap().resolve(&level::target()).unwrap();
    match Lowered::new(trace, Rules::default(), target, Weights::default(), Vec::new()) {
        Ok(lowered) => Some(Built::new(lowered, trace, &checkpoint, Device::LocalSync).unwrap()),
        Err(LowerError::IntegersWithoutKernels) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Keys and values of different widths, and a state without heads, in 8 bits.
#[test]
fn kernels_read_integers_of_every_state() {
    for rows in [1, 2] {
        let trace = record::<F32>(rows, 4, KvFormat::Q8);
        let weights = weights(&trace);
        let parameters = |key: &str| weights.get(key).cloned();
        let evaluator = Evaluator { trace: &trace, parameters: &parameters };
        let expected = stepped(&Network::on(evaluator, &signatures(&trace)).unwrap());
        let Some(built) = with_kernels(&trace, &weights) else { return };
        assert!(built.module.text.contains("flow.dispatch"), "no kernel is in the module");
        let network = Network::new(&built.runtime, &built.program, &built.module.signatures).unwrap();
        check(&stepped(&network), &expected, 1e-4);
    }
}

fn signatures(trace: &Trace) -> Vec<trace::Signature> {
    trace.entries.iter().map(|&id| trace.function(id).signature()).collect()
}
