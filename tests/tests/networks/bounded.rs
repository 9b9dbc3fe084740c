//! Operations that are neither StableHLO nor kernels: attention that reads only the used part, and a cache that is
//! updated in place. They run in IREE, tiled and untiled, and are compared with their meaning.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use lower::Weights;
use ops::ops::{BoundedSdpa, MaskTerm, Sdpa, SlicedAppend};
use ops::{ElementType, Op, TensorType, Value};
use runtime::CompileOptions;
use support::{Built, compile};
use targets::Target;
use trace::{NodeKind, Quantization, Trace};
use tracewright_tests::calls::{Calls, entry, examples_of, op, random, ty};
use tracewright_tests::{level, long};

/// The examples, and caches that are empty, end on a step and just behind one, and are full. The last cache is that of
/// latent attention, which all heads read.
fn calls() -> Calls {
    let mut all = examples_of(|name| name == "bounded_sdpa");
    let keys = 300;
    for (case, queries) in [1, 1, 1, 1, 5, 64, 1].into_iter().enumerate() {
        let last = keys - queries;
        let element = [ElementType::F32, ElementType::Bf16, ElementType::F16][case % 3];
        // In the short form three of each.
        let starts = match (long::is_wanted(), case % 2) {
            (true, _) => &[0, 63, 64, 191, last][..],
            (false, 0) => &[63, 191, last],
            (false, _) => &[0, 64, last],
        };
        for &start in starts {
            let seed = (100 * case + start) as u64;
            let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
            let mask = match case % 2 {
                0 => vec![MaskTerm::Causal],
                _ => vec![MaskTerm::Causal, MaskTerm::Window(20)],
            };
            let op = BoundedSdpa { mask, scale: None, softcap: (case == 3).then_some(ops::Real(2.0)) };
            let (asking, cached): (&[usize], &[usize]) = match case {
                6 => (&[1, 5, queries, 32], &[1, keys, 32]),
                _ => (&[1, 2, 3, queries, 32], &[1, 2, keys, 32]),
            };
            let arguments = vec![
                tensor(asking, seed),
                tensor(cached, seed + 1),
                tensor(cached, seed + 2),
                Value::new(TensorType::new(ElementType::I32, []), [start as f64]),
            ];
            let text = format!("{op:?} of {queries} from {start}");
            let op = Op::from(op);
            all.graph(text, arguments, op.bound(), |b, ids| b.op(op.clone(), ids));
        }
    }
    all
}

fn violations(calls: &Calls, tiled: bool, edit: &dyn Fn(String) -> String) -> Vec<String> {
    let target = support::compiler().resolve(&level::target()).unwrap();
    let mut module = lower::lower(&calls.trace, &target).unwrap();
    module.text = edit(module.text);
    module.text_without_locs = edit(module.text_without_locs);
    let vmfb = compile(&module, &CompileOptions::new(target, tiled));
    Built { module, vmfb }.load(&calls.weights).violations(calls)
}

/// The examples, and caches that are longer.
fn appends() -> Calls {
    let mut all = examples_of(|name| name == "sliced_append");
    for (case, tokens) in [1, 16, 128].into_iter().enumerate() {
        for (start, count) in [(0, tokens), (3, 0), (200, tokens / 2), (299, tokens)] {
            let op = Op::from(SlicedAppend { axis: 2 });
            let element = [ElementType::F32, ElementType::Bf16, ElementType::I8][case];
            let tensor = |length: usize, seed| random(TensorType::new(element, [1, 3, length, 20]), seed);
            let number = |n: usize| Value::new(TensorType::new(ElementType::I32, []), [n as f64]);
            let arguments = vec![tensor(300, 7), tensor(tokens, 8), number(start), number(count)];
            let text = format!("{op:?} of {count} of {tokens} tokens from {start}");
            all.graph(text, arguments, op.bound(), |b, ids| b.op(op.clone(), ids));
        }
    }
    all
}

#[test]
fn what_is_new_is_written() {
    let calls = appends();
    assert!(calls.calls.len() > 12);
    for tiled in [true, false] {
        let found = violations(&calls, tiled, &|text| text);
        assert!(found.is_empty(), "tiled {tiled}: {}", found.join("\n"));
    }
    // A fault that stays within the cache.
    let nothing = violations(&calls, false, &|text| text.replace("arith.maxsi", "arith.minsi"));
    assert!(!nothing.is_empty(), "that nothing is written is not found");
}

#[test]
fn what_is_used_is_read() {
    let calls = calls();
    // One query over a cache of all lengths shows most.
    let starts = if long::is_wanted() { 5 } else { 3 };
    let examples = calls.calls.len() - 7 * starts;
    let tiled = if long::is_wanted() { &calls } else { &self::calls().only(examples..examples + 3 * starts) };
    for (calls, is_tiled) in [(tiled, true), (&calls, false)] {
        let found = violations(calls, is_tiled, &|text| text);
        assert!(found.is_empty(), "tiled {is_tiled}: {}", found.join("\n"));
    }
    let fewer = violations(&calls.only(examples..examples + starts), false, &|text| {
        text.replace("arith.addi", "arith.subi")
    });
    assert!(!fewer.is_empty(), "a slice that ends too early is not found");
}

/// The operations of attention over a cache of so many keys.
fn lowered(queries: usize, keys: usize, offset: &str, mask: Vec<MaskTerm>, target: &Target) -> Vec<String> {
    let attend = Sdpa { mask, scale: None, softcap: None, offset: true };
    let types = [format!("f32[2,{queries},8]"), format!("f32[2,{keys},8]"), format!("f32[2,{keys},8]")];
    let mut types: Vec<TensorType> = types.iter().map(|text| ty(text)).collect();
    types.push(ty(offset));
    let mut trace = Trace::default();
    entry(&mut trace, "main", &types, |b, ids| Ok(vec![b.op(attend.clone(), ids)?]));
    let weights = Weights { quantize: Quantization::Computed, kernels: false, ..Weights::default() };
    let lowered = lower::Implementations::of(&trace, &weights, target).unwrap().expand().unwrap();
    let function = &lowered.functions[0];
    let ops = function.ids().filter_map(|id| match &function.node(id).kind {
        NodeKind::Op(op) => Some(op.name().to_owned()),
        _ => None,
    });
    ops.collect()
}

#[test]
fn only_what_can_be_short_is_bounded() {
    let (host, causal) = (Target::host(), vec![MaskTerm::Causal]);
    let bounded = vec![op("bounded_sdpa mask=[causal] scale=none softcap=none").name().to_owned()];
    assert_eq!(lowered(1, 1024, "i32[]", causal.clone(), &host), bounded);
    let ring = vec![MaskTerm::Causal, MaskTerm::Window(9), MaskTerm::Ring];
    for (queries, keys, offset, mask, target) in [
        (1, 512, "i32[]", causal.clone(), &host),
        (64, 1024, "i32[]", causal.clone(), &host),
        (1, 1024, "i32[2]", causal.clone(), &host),
        (1, 1024, "i32[]", ring, &host),
        (1, 1024, "i32[]", causal, &Target::interpreter()),
    ] {
        let found = lowered(queries, keys, offset, mask.clone(), target);
        assert!(!found.contains(&bounded[0]) && found.len() > 5, "{queries} {keys} {offset} {mask:?}");
    }
}
