//! Random schedules give the same results as a single pass over the same tokens: sequences of a batch join, end and
//! are replaced, and sessions go back and continue. The test covers every kind of state, in the evaluator and in
//! IREE.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;

use ops::Value;
use proptest::prelude::*;
use proptest::test_runner::{Config as Proptest, TestRunner};
use runtime::{Device, Runtime};
use support::*;
use trace::{KvFormat, Role, Trace};
use tracewright::dsl::nn::{Attend, Cache, Kv, Position, Recurrent, RopeFrequencies, attend};
use tracewright::dsl::{CausalLm, EntryPoint, F32, Float, model};
use tracewright::generate::{Batch, Evaluator, Executor, Network, Session, TokenOptions};
use tracewright_tests::calls::{WeightValues, random};
use tracewright_tests::golden::is_best_within;
use tracewright_tests::long;

/// The computation of a layer of the toy.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Attention,
    Window(usize),
    Convolution,
}

#[derive(Clone)]
struct Config {
    kinds: Vec<Kind>,
    layers: usize,
}

impl Config {
    fn window(&self, layer: usize) -> Option<usize> {
        match self.kinds[layer] {
            Kind::Window(width) => Some(width),
            _ => None,
        }
    }
    fn attends(&self, layer: usize) -> bool {
        self.kinds[layer] != Kind::Convolution
    }
    fn convolves(&self, layer: usize) -> bool {
        !self.attends(layer)
    }
}

model! {
    /// Layers that attend and layers that convolve, in any order.
    Toy<T: Float>(Config) {
        dims { V = 13, D = 6, K = 2, E = 2, L = layers, C = 2, J = C + 1 }
        cache { L of [K, E] within window if attends, L of recurrent [C, D] if convolves }

        embed: Embedding[V, D],
        layers: [Layer; L],
        head: Linear[D -> V],

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = RopeFrequencies::new(vec![0.5], 1.0);
            let rotary = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.embed(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                x = if self.config.attends(i) { layer.forward(x, &rotary.clone().windowed(self.config.window(i)), cache.state(i)) } else { layer.convolve(x, at, cache.state(i)) };
            }
            x
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.head(x).to()
        }
    }

    Layer {
        norm: RmsNorm[D],
        q: Linear[D -> K, E],
        k: Linear[D -> K, E],
        v: Linear[D -> K, E],
        o: Linear[K, E -> D],
        taps: Weight[J, D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let y = self.norm(x);
            let (k, v) = kv.append(at.rope(self.k(y)), self.v(y), at);
            x + self.o(attend(at.rope(self.q(y)), k, v, at))
        }

        fn convolve(x: T[B, S, D], at: Position, state: &mut Recurrent<T>) -> T[B, S, D] {
            let seen = state.append(self.norm(x), C, S, at);
            let tap = |j| seen.narrow(S, j, x.extent(S)) * self.taps().narrow(J, j, 1).reshape(&[self.dims.dim(D)]);
            x + (0..self.dim(J)).map(tap).reduce(|a, b| a + b).unwrap()
        }
    }
}

const CONTEXT: usize = 14;
const CHUNK: usize = 4;
const ROWS: usize = 3;
const VOCABULARY: u32 = 13;

/// How far IREE's logits may be from the evaluator's, in units of the row's largest; 1.4e-6 is the most that was seen.
const IREE: f32 = 1e-5;

/// A toy of every kind of state, and of all at once.
fn toys() -> Vec<(Vec<Kind>, KvFormat)> {
    use Kind::{Attention, Convolution, Window};
    vec![
        (vec![Attention, Attention], KvFormat::Computed),
        (vec![Window(3), Window(5)], KvFormat::Computed),
        (vec![Convolution, Convolution], KvFormat::Computed),
        (vec![Window(2), Convolution, Attention], KvFormat::Computed),
        (vec![Window(3), Attention], KvFormat::Q8),
    ]
}

fn record(toy: &(Vec<Kind>, KvFormat), rows: usize, chunk: usize) -> Trace {
    recorded(toy, EntryPoint::all(rows, chunk, CONTEXT))
}

fn recorded((kinds, kv): &(Vec<Kind>, KvFormat), mut entries: Vec<EntryPoint>) -> Trace {
    let config = Config { kinds: kinds.clone(), layers: kinds.len() };
    entries.iter_mut().for_each(|entry| entry.kv = *kv);
    Toy::<F32>::trace(&config, &entries).unwrap().trace
}

/// Made-up weights, halved. At full size, moving each weight by a unit in its last place moves the
/// evaluator's own logits by up to 3e-4 of the row's largest.
fn weights(trace: &Trace) -> WeightValues {
    let value = |(i, p): (usize, trace::Parameter)| {
        let full = random(p.ty, 7 + i as u64);
        (p.key, Value::new(full.ty, full.data.iter().map(|x| x / 2.0)))
    };
    trace.parameters().unwrap().into_iter().enumerate().map(value).collect()
}

/// The logits after any tokens, by one pass over all of them that begins at nothing.
struct Oracle<'a> {
    network: Network<Evaluator<'a>>,
    known: RefCell<HashMap<Vec<u32>, Vec<f32>>>,
}

impl Oracle<'_> {
    fn logits(&self, tokens: &[u32]) -> Vec<f32> {
        if let Some(known) = self.known.borrow().get(tokens) {
            return known.clone();
        }
        let rows = Session::new(&self.network).score(tokens).unwrap();
        let mut known = self.known.borrow_mut();
        for (i, row) in rows.iter().enumerate() {
            known.insert(tokens[..=i].to_vec(), row.clone());
        }
        rows.last().unwrap().clone()
    }
}

/// How far logits may be from those of the oracle: the evaluator's sums have no order, IREE's have.
fn check(found: &[f32], expected: &[f32], bound: f32) -> Result<(), TestCaseError> {
    let scale = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    for (a, b) in found.iter().zip(expected) {
        prop_assert!((a - b).abs() <= bound * scale, "{} and {}", a, b);
    }
    Ok(())
}

/// An event of a batch.
#[derive(Clone, Debug)]
enum Event {
    /// A text joins, if a row is free.
    Join(Vec<u32>, usize),
    /// The text of a row is broken off.
    Leave(usize),
    Step,
}

fn prompt() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0..VOCABULARY, 1..CONTEXT)
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (prompt(), 1..6usize).prop_map(|(prompt, length)| Event::Join(prompt, length)),
        1 => (0..ROWS).prop_map(Event::Leave),
        6 => Just(Event::Step),
    ];
    proptest::collection::vec(event, 4..24)
}

/// Runs a schedule to its end; every text that ends has the logits of a run alone, and tokens that are the best by these
/// logits.
fn run<E: Executor>(
    network: &Network<E>,
    oracle: &Oracle<'_>,
    events: &[Event],
    bound: f32,
) -> Result<(), TestCaseError> {
    let mut batch = Batch::new(network);
    let mut running: Vec<Option<(Vec<u32>, usize)>> = vec![None; ROWS];
    let mut ended = 0;
    let mut events = events.iter();
    loop {
        let event = events.next().unwrap_or(&Event::Step);
        match event {
            Event::Join(prompt, length) if batch.free() > 0 => {
                let options =
                    TokenOptions { max_tokens: *length, keep_logits: true, ..TokenOptions::default() };
                let row = batch.join(prompt, &options).unwrap();
                prop_assert!(running[row].is_none());
                running[row] = Some((prompt.clone(), *length));
            }
            Event::Join(..) => {}
            Event::Leave(row) => {
                prop_assert_eq!(batch.leave(*row).is_some(), running[*row].take().is_some());
            }
            Event::Step => {
                for (row, generated) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
                    let (prompt, length) = running[row].take().unwrap();
                    prop_assert_eq!(generated.tokens.len(), length.min(CONTEXT + 1 - prompt.len()));
                    let mut tokens = prompt;
                    for (&token, logits) in generated.tokens.iter().zip(&generated.logits) {
                        let expected = oracle.logits(&tokens);
                        check(logits, &expected, bound)?;
                        prop_assert!(is_best_within(bound.into(), &expected, token), "{}", token);
                        tokens.push(token);
                    }
                    ended += 1;
                }
                if events.len() == 0 && running.iter().all(Option::is_none) {
                    break;
                }
            }
        }
    }
    prop_assert_eq!(batch.free(), ROWS);
    prop_assume!(ended > 0);
    Ok(())
}

/// An event of a session.
#[derive(Clone, Debug)]
enum Turn {
    Feed(Vec<u32>),
    Score(Vec<u32>),
    /// Back by so many tokens.
    Back(usize),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let few = || proptest::collection::vec(0..VOCABULARY, 1..8);
    let turn = prop_oneof![
        3 => few().prop_map(Turn::Feed),
        1 => few().prop_map(Turn::Score),
        3 => (1..CONTEXT).prop_map(Turn::Back),
    ];
    proptest::collection::vec(turn, 3..14)
}

/// A session gives the logits of its tokens, whatever it saw and took back before.
fn converse<E: Executor>(
    network: &Network<E>,
    oracle: &Oracle<'_>,
    turns: &[Turn],
    bound: f32,
) -> Result<(), TestCaseError> {
    let mut session = Session::new(network);
    for turn in turns {
        let room = CONTEXT - session.tokens().len();
        match turn {
            Turn::Back(by) => session.truncate(session.tokens().len().saturating_sub(*by)),
            Turn::Feed(tokens) | Turn::Score(tokens) if tokens.len() > room => {}
            Turn::Feed(tokens) => {
                let logits = session.feed(tokens).unwrap();
                check(&logits, &oracle.logits(session.tokens()), bound)?;
            }
            Turn::Score(tokens) => {
                let rows = session.score(tokens).unwrap();
                prop_assert_eq!(rows.len(), tokens.len());
                let before = session.tokens().len() - tokens.len();
                for (i, row) in rows.iter().enumerate() {
                    check(row, &oracle.logits(&session.tokens()[..=before + i]), bound)?;
                }
            }
        }
    }
    Ok(())
}

/// Runs as many random cases as asked for.
fn random_cases<S: Strategy>(cases: u32, of: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let config = Proptest { cases, failure_persistence: None, ..Proptest::default() };
    let seed = proptest::test_runner::TestRng::deterministic_rng(config.rng_algorithm);
    TestRunner::new_with_rng(config, seed).run(&of, test).unwrap_or_else(|error| panic!("{error}"));
}

/// Calls `test` for each toy with its traces for one row, for several, and for parts of several; its weights and an oracle.
fn for_each_toy(toys: Vec<(Vec<Kind>, KvFormat)>, test: impl Fn(&[Trace; 3], &WeightValues, &Oracle<'_>)) {
    for kinds in toys {
        let parts = EntryPoint::all(ROWS, CHUNK, CONTEXT).into_iter().flat_map(EntryPoint::in_parts);
        let parts = recorded(&kinds, parts.collect());
        let traces = [record(&kinds, 1, CHUNK), record(&kinds, ROWS, CHUNK), parts];
        let whole = record(&kinds, 1, CONTEXT);
        let weights = weights(&whole);
        let value = |key: &str| -> Option<Value> { weights.get(key).cloned() };
        let network = evaluated(&whole, &value);
        test(&traces, &weights, &Oracle { network, known: RefCell::default() });
    }
}

fn evaluated<'a>(trace: &'a Trace, parameters: &'a dyn Fn(&str) -> Option<Value>) -> Network<Evaluator<'a>> {
    let signatures: Vec<_> = trace.entries.iter().map(|&id| trace.function(id).signature()).collect();
    Network::on(Evaluator { trace, parameters }, &signatures).unwrap()
}

#[test]
fn schedules_through_the_evaluator() {
    for_each_toy(toys(), |traces, weights, oracle| {
        let value = |key: &str| weights.get(key).cloned();
        let [one, several, parts] = traces.each_ref().map(|trace| evaluated(trace, &value));
        let cases = if long::is_wanted() { 250 } else { 100 };
        random_cases(cases, events(), |events| run(&several, oracle, &events, 0.0));
        random_cases(cases, events(), |events| run(&parts, oracle, &events, 0.0));
        random_cases(cases, turns(), |turns| converse(&one, oracle, &turns, 0.0));
    });
}

#[test]
fn schedules_through_iree() {
    // What is compiled here has no kernels, and only they read integers. The toy of all kinds has each of the others; these are
    // for the long form.
    let toys = toys()
        .into_iter()
        .filter(|(kinds, kv)| *kv == KvFormat::Computed && (kinds.len() > 2 || long::is_wanted()));
    for_each_toy(toys.collect(), |traces, weights, oracle| {
        let runtime = Runtime::new(Device::LocalSync).unwrap();
        let [one, several, parts] = traces.each_ref().map(|trace| {
            let built = built(trace);
            let program = built.program(&runtime, weights);
            Network::new(&runtime, &program, &built.module.signatures).unwrap()
        });
        random_cases(40, events(), |events| run(&several, oracle, &events, IREE));
        random_cases(40, events(), |events| run(&parts, oracle, &events, IREE));
        random_cases(40, turns(), |turns| converse(&one, oracle, &turns, IREE));
    });
}

/// The same schedules are red where a promise of the state is broken: a row sees what another left, or a chunk's
/// padding is written.
#[test]
fn broken_promises_are_found() {
    for kinds in toys() {
        let whole = record(&kinds, 1, CONTEXT);
        let weights = weights(&whole);
        let value = |key: &str| weights.get(key).cloned();
        let oracle = Oracle { network: evaluated(&whole, &value), known: RefCell::default() };
        let trace = record(&kinds, ROWS, CHUNK);
        let honest: Vec<_> = trace.entries.iter().map(|&id| trace.function(id).signature()).collect();
        // All tokens are taken for real ones, also those that pad.
        let mut lying = honest.clone();
        for argument in lying.iter_mut().flat_map(|s| &mut s.arguments) {
            argument.role = match argument.role {
                Role::Start { .. } => Role::Count,
                Role::Count => Role::Start { context: CONTEXT },
                role => role,
            };
        }
        let network = Network::on(Evaluator { trace: &trace, parameters: &value }, &lying).unwrap();
        let events =
            [Event::Join(vec![1, 2, 3, 4, 5], 3), Event::Step, Event::Join(vec![6, 7], 4), Event::Step];
        assert!(run(&network, &oracle, &events, IREE).is_err(), "{kinds:?}");
    }
}

/// A second entry point that gives logits alone is refused: a session would call one of them, and nobody knows which.
#[test]
fn two_scorers_are_an_error() {
    let kinds = &toys()[0];
    let trace = record(kinds, 1, CONTEXT);
    let weights = weights(&trace);
    let value = |key: &str| weights.get(key).cloned();
    let mut signatures: Vec<_> = trace.entries.iter().map(|&id| trace.function(id).signature()).collect();
    let network = |signatures: &[trace::Signature]| {
        Network::on(Evaluator { trace: &trace, parameters: &value }, signatures).map(drop)
    };
    network(&signatures).unwrap();
    let scorer = signatures.iter().find(|signature| signature.name == "score").unwrap();
    signatures.push(trace::Signature { name: "verify".into(), ..scorer.clone() });
    let error = network(&signatures).unwrap_err().to_string();
    assert!(error.contains("`verify`") && error.contains("as `score` does"), "{error}");
}
