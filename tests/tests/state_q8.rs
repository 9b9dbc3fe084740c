//! States that a layer declares by name, with an element type and axes of their own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use ops::Value;
use runtime::{Device, Runtime};
use support::*;
use trace::{KvFormat, Trace};
use tracewright::dsl::nn::{Attend, Cache, Kv, Position, Recurrent, Slots, attend, dot};
use tracewright::dsl::{Axis, Bf16, CausalLm, EntryPoint, F32, Float, I32, Tensor, model};
use tracewright::generate::{Evaluator, Executor, Network, Session};
use tracewright_tests::calls::{WeightValues, random};

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
fn q8_scratch() {
    let trace = record::<F32>(1, 4, KvFormat::Q8);
    let weights = weights(&trace);
    let built = built(&trace);
    if let Ok(path) = std::env::var("DUMP") {
        std::fs::write(path, &built.module.text).unwrap();
    }
    let loaded = built.load(&weights);
    let signature = trace.entry("decode").unwrap().signature();
    let mut state: Vec<Value> =
        signature.arguments[3..].iter().map(|a| Value::new(a.ty.clone(), vec![0.0; a.ty.count()])).collect();
    for (i, &token) in TOKENS.iter().enumerate() {
        let scalar =
            |x: f64| Value::new(ops::TensorType::new(ops::ElementType::I32, Vec::<usize>::new()), [x]);
        let mut args = vec![
            Value::new(ops::TensorType::new(ops::ElementType::I32, vec![1usize, 1]), [f64::from(token)]),
            scalar(i as f64),
            scalar(1.0),
        ];
        args.extend(state.iter().cloned());
        let expected = tracewright_tests::calls::evaluate(&trace, "decode", &args, &weights);
        let found = loaded.call("decode", &args);
        for ((result, e), f) in signature.results.iter().zip(&expected).zip(&found) {
            let d = e.data.iter().zip(&f.data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let m = e.data.iter().map(|a| a.abs()).fold(0.0, f64::max);
            eprintln!("{i} {result}: off {d:e} of {m}");
        }
        let place = |name: &str| signature.results.iter().position(|r| r.name == name).unwrap();
        state = signature.arguments[3..].iter().map(|a| expected[place(&a.name)].clone()).collect();
    }
}
