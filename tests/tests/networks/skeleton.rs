//! The whole way, without weights from files: a network written with the dsl's handles, recorded, lowered,
//! compiled and run; a small transformer on this machine and for another one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use tracewright_tests::calls::{WeightValues, evaluate, operand, random, ty};
use tracewright_tests::golden::is_best_within;

use std::any::TypeId;
use std::rc::Rc;

use dsl::*;
use ops::{TensorType, Value};
use runtime::CompileOptions;
use support::*;

const S: Axis = Axis("S");
const D: Axis = Axis("D");
const F: Axis = Axis("F");
const V: Axis = Axis("V");
const K: Axis = Axis("K");
const G: Axis = Axis("G");
const E: Axis = Axis("E");

const fn dim(axis: Axis, extent: usize) -> Dim {
    Dim { axis, extent }
}

/// A network whose one function is a closure.
struct Net(Rc<Body>, Vec<(usize, LayerState)>);

type Body = dyn Fn(Tensor<I32>, Position, &mut Cache<F32>) -> Tensor<F32>;

impl CausalLm for Net {
    type Element = F32;
    type Config = (Rc<Body>, Vec<(usize, LayerState)>);

    fn new(config: &Self::Config) -> Result<Self, BuildError> {
        Ok(Self(config.0.clone(), config.1.clone()))
    }
    fn state(&self) -> Vec<(usize, LayerState)> {
        self.1.clone()
    }
    fn forward(&self, tokens: Tensor<I32>, at: Position, cache: &mut Cache<F32>) -> Tensor<F32> {
        (self.0)(tokens, at, cache)
    }
    fn logits(&self, features: Tensor<F32>) -> Tensor<F32> {
        features
    }
}

fn recorded(body: Rc<Body>, layers: Vec<(usize, LayerState)>, entries: &[EntryPoint]) -> trace::Trace {
    Net::trace(&(body, layers), entries).unwrap_or_else(|error| panic!("{error}")).trace
}

#[test]
fn m2_one_dot_general_is_exact() {
    let body = |tokens: Tensor<I32>, _: Position, _: &mut Cache<F32>| {
        let w = Weight::<F32>::build(Scope::root("").child("w"), &[dim(S, 3), dim(V, 4)]).call(());
        nn::dot(tokens.to::<F32>(), w, S)
    };
    let score = EntryPoint {
        name: "score".into(),
        batch: 2,
        chunk: 3,
        context: 8,
        input: EntryInput::Tokens,
        logits: LogitsMode::All,
        hidden: false,
        kv: trace::KvFormat::Computed,
        experts: ExpertsMode::Auto,
    };
    let trace = recorded(Rc::new(body), vec![], &[score]);
    let built = built(&trace);
    assert_eq!(built.module.histogram().get("dot_general"), Some(&1));

    let numbers = |text: &str| operand(text, 0);
    let weights = WeightValues::from([("w".into(), numbers("f32[3,4] 0,1,2,3,4,5,6,7,8,9,10,11"))]);
    let positions = [numbers("i32[2] 0,0"), numbers("i32[2] 3,3")];
    let arguments = [&[numbers("i32[2,3] 1,2,3,4,5,6")][..], &positions].concat();
    let found = built.load(&weights).call("score", &arguments);
    // [[1, 2, 3], [4, 5, 6]] · [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], as NumPy gives it.
    assert_eq!(found, [numbers("f32[2,4] 32,38,44,50,68,83,98,113")]);
}

/// Among equal logits the module itself takes the first, a NaN before any number, as torch does; in a row that is alone and in
/// several at once.
#[test]
fn m15_the_modules_own_argmax_is_that_of_torch() {
    const LOGITS: usize = 70;
    const NONE: f64 = f64::NEG_INFINITY;
    /// A row of logits: the common value, the exceptions, and the token.
    type Row = (f64, &'static [(usize, f64)], u32);
    let cases: [Row; 9] = [
        (-1.0, &[(3, 7.5), (68, 7.5)], 3),
        (0.25, &[], 0),
        (-1.0, &[(2, -0.0), (5, 0.0)], 2),
        (-1.0, &[(5, 0.0), (64, -0.0)], 5),
        (-1.0, &[(3, f64::INFINITY), (40, f64::NAN), (69, f64::NAN)], 40),
        (1.0, &[(69, f64::NAN)], 69),
        (NONE, &[], 0),
        (NONE, &[(7, f64::INFINITY), (9, f64::INFINITY)], 7),
        (f64::NAN, &[], 0),
    ];
    let rows = cases.iter().flat_map(|(all, others, _)| {
        let mut row = vec![*all; LOGITS];
        others.iter().for_each(|&(token, logit)| row[token] = logit);
        row
    });
    let table = Value::new(TensorType::new(ops::ElementType::F32, [cases.len(), LOGITS]), rows);
    let expected: Vec<f64> = cases.iter().map(|&(.., token)| f64::from(token)).collect();

    let body = |tokens: Tensor<I32>, _: Position, _: &mut Cache<F32>| {
        let table = [dim(Axis("R"), 9), dim(V, LOGITS)];
        Weight::<F32>::build(Scope::root("").child("w"), &table).call(()).rows(tokens)
    };
    let entry = |name: &str, batch| EntryPoint {
        name: name.into(),
        batch,
        chunk: 1,
        context: 8,
        input: EntryInput::Tokens,
        logits: LogitsMode::Next,
        hidden: false,
        kv: trace::KvFormat::Computed,
        experts: ExpertsMode::Auto,
    };
    let trace = recorded(Rc::new(body), vec![], &[entry("one", 1), entry("all", cases.len())]);
    let (built, weights) = (built(&trace), WeightValues::from([("w".into(), table)]));
    let loaded = built.load(&weights);
    let numbers = |shape: &[usize], numbers: &[f64]| {
        Value::new(TensorType::new(ops::ElementType::I32, shape), numbers.iter().copied())
    };
    let each: Vec<f64> = (0..cases.len()).map(|i| i as f64).collect();
    let (first, one) = (vec![0.0; cases.len()], vec![1.0; cases.len()]);
    let arguments = [numbers(&[9, 1], &each), numbers(&[9], &first), numbers(&[9], &one)];
    assert_eq!(loaded.call("all", &arguments)[1].data, expected);
    for (row, &token) in each.iter().zip(&expected) {
        let arguments = [numbers(&[1, 1], &[*row]), numbers(&[], &[0.0]), numbers(&[], &[1.0])];
        assert_eq!(loaded.call("one", &arguments)[1].data, [token], "row {row}");
    }
}

/// A transformer of the Llama kind: grouped heads, rope, a gated feed-forward part, two layers of two kinds.
fn transformer(tokens: Tensor<I32>, at: Position, cache: &mut Cache<F32>) -> Tensor<F32> {
    let root = Scope::root("model");
    let (d, f, v) = (dim(D, 12), dim(F, 20), dim(V, 17));
    let (k, g, e) = (dim(K, 2), dim(G, 3), dim(E, 4));
    let context = cache.context;
    let frequencies = nn::RopeFrequencies::new(vec![1.0, 0.25], 1.0);
    let length = tokens.extent(S);
    let attend = Attend::rotary(at, S, length, &frequencies, context);
    let mut x = Embedding::<F32>::build(root.child("embed"), &[v, d]).call(tokens);
    for i in 0..LAYERS {
        let scope = root.element("layers", i);
        let mut at = attend.clone();
        if i % 2 == 1 {
            at.mask &= Mask::window(3);
        }
        let own = scope.clone();
        let layer = move |(x, kv, at): (Tensor<F32>, Kv<F32>, Attend<F32>)| {
            let mut kv = kv;
            let linear =
                |name: &str, from: &[Dim], to: &[Dim]| Linear::<F32>::build(own.child(name), from, to);
            let h = RmsNorm::build(own.child("norm1"), &[d]).eps(1e-5).call(x);
            let q = at.rope(linear("q", &[d], &[k, g, e]).bias(true).call(h));
            let new = at.rope(linear("k", &[d], &[k, e]).call(h));
            let (keys, values) = kv.append(new, linear("v", &[d], &[k, e]).call(h), &at);
            let x = x + linear("o", &[k, g, e], &[d]).call(nn::attend(q, keys, values, &at));
            let h = RmsNorm::build(own.child("norm2"), &[d]).eps(1e-5).call(x);
            let gate = nn::silu(linear("gate", &[d], &[f]).call(h));
            (x + linear("down", &[f], &[d]).call(gate * linear("up", &[d], &[f]).call(h)), kv)
        };
        let (y, kv) = dsl::__private::block(
            TypeId::of::<()>(),
            &scope,
            &Vec::new,
            "Layer::forward",
            (x, *cache.state(i), at),
            layer,
        );
        (x, *cache.state(i)) = (y, kv);
    }
    let x = RmsNorm::build(root.child("norm"), &[d]).style(WeightStyle::OnePlus).call(x);
    Linear::<F32>::build(root.child("head"), &[d], &[v]).tied(root.child("embed")).call(x)
}

const LAYERS: usize = 4;

fn small_transformer() -> trace::Trace {
    let layer = |i| (i, LayerState::new::<Kv<F32>, _>([dim(K, 2), dim(E, 4)]));
    let cache = (0..LAYERS).map(layer).collect();
    recorded(Rc::new(transformer), cache, &EntryPoint::all(1, 5, 9))
}

fn weights_of(trace: &trace::Trace) -> WeightValues {
    let parameters = trace.parameters().unwrap();
    let small = |(i, p): (usize, trace::Parameter)| {
        let value = random(p.ty, i as u64);
        (p.key, Value::new(value.ty, value.data.iter().map(|x| x / 8.0)))
    };
    parameters.into_iter().enumerate().map(small).collect()
}

/// Prefill of five tokens, then decoding with the returned state: IREE's tokens and logits are the evaluator's.
#[test]
fn s20_a_small_transformer_compiles_and_runs_on_this_machine() {
    let trace = small_transformer();
    let built = built(&trace);
    let weights = weights_of(&trace);
    let program = built.load(&weights);
    let scalar = |x: usize| Value::new(ty("i32[]"), [x as f64]);
    let empty =
        |i: usize| Value::new(built.module.signatures[0].arguments[3 + i].ty.clone(), vec![0.0; 2 * 9 * 4]);
    let mut state: [Vec<Value>; 2] = [0, 1].map(|_| (0..2 * LAYERS).map(empty).collect());
    let mut tokens = vec![3.0, 1.0, 4.0, 1.0, 5.0];
    let mut start = 0;
    while start + tokens.len() <= 9 {
        let name = if tokens.len() == 5 { "prefill" } else { "decode" };
        let input = Value::new(TensorType::new(ops::ElementType::I32, [1, tokens.len()]), tokens.clone());
        let arguments =
            |state: &[Value]| [&[input.clone(), scalar(start), scalar(tokens.len())], state].concat();
        let expected = evaluate(&trace, name, &arguments(&state[0]), &weights);
        let found = program.call(name, &arguments(&state[1]));
        let bound = ops::Bound::UlpsOfLargest(64.0);
        for (i, (expected, found)) in expected.iter().zip(&found).enumerate().filter(|(i, _)| *i != 1) {
            assert_eq!(bound.first_violation(expected, found), None, "result {i} of {name} at {start}");
        }
        let logits: Vec<f32> = expected[0].data.iter().map(|&x| x as f32).collect();
        let ulps = 64.0 * f64::from(f32::EPSILON);
        assert!(is_best_within(ulps, &logits, found[1].data[0] as u32), "the token {:?}", found[1].data);
        start += tokens.len();
        tokens = expected[1].data.clone();
        state = [expected, found].map(|results| results[2..].to_vec());
    }
    assert_eq!(start, 9);
    // `score` gives the same logits at all positions at once.
    let input = Value::new(ty("i32[1,5]"), [3.0, 1.0, 4.0, 1.0, 5.0]);
    let arguments = [vec![input, scalar(0), scalar(5)], (0..2 * LAYERS).map(empty).collect()].concat();
    let last = program.call("prefill", &arguments).remove(0);
    let scores = program.call("score", &arguments).remove(0);
    let row = Value::new(last.ty.clone(), scores.data[4 * 17..].iter().copied());
    assert_eq!(ops::Bound::UlpsOfLargest(64.0).first_violation(&row, &last), None);
}

#[test]
fn s21_the_same_module_compiles_for_aarch64() {
    let module = module(&small_transformer());
    let target = "aarch64-linux-gnu:generic:+neon".parse().unwrap();
    let vmfb = compile(&module, &CompileOptions::new(target, true));
    let holds = |text: &[u8]| vmfb.windows(text.len()).any(|window| window == text);
    assert!(holds(b"embedded-elf-arm_64"), "the executables are those of the other machine");
    assert!(!holds(b"embedded-elf-x86_64"));
}

/// Layers of one kind share a function, weights are named parameters, and no argument is a weight.
#[test]
fn s19_s22_the_transformer_lowers_whole() {
    let trace = small_transformer();
    let module = module(&trace);
    let lines = |start: &str| module.text.lines().filter(|line| line.trim_start().starts_with(start)).count();
    // Two kinds of layers in each of three entry points; decode and prefill differ in the length of a chunk.
    let private = lines("func.func private @layer");
    assert_eq!((private, lines("func.func @")), (4, 3), "kinds × chunk lengths, and entry points");
    assert_eq!(lines("util.global private @\"model."), module.parameters.len());
    assert_eq!(module.parameters.len(), 2 + LAYERS * 10);
    for signature in &module.signatures {
        let names: Vec<&str> = signature.arguments.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names[..3], ["tokens", "start", "count"]);
        assert!(
            names[3..].iter().all(|name| name.starts_with("keys") || name.starts_with("values")),
            "{names:?}"
        );
    }
    for never in ["custom_call", "xf64", "<f64", " f64", "cosine", "sine", "chlo."] {
        assert!(!module.text.contains(never), "{never}");
    }
}
