//! Random graphs without undefined behaviour, for any numbers, computed in several ways: by the evaluator as
//! recorded and in primitives, simplified or not, and by IREE. `cargo xtask differential` adds the StableHLO
//! reference interpreter, XLA, and more graphs in IREE.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ops::ops::{Binary, BinaryKind, Rope, RopeLayout};
use ops::{Op, TensorType, Value};
use tracewright_tests::arbitrary::same;
use tracewright_tests::calls::{GRAPHS, found, graphs, portable};
use tracewright_tests::case::GraphCase;
use tracewright_tests::in_iree::built;
use tracewright_tests::leeway::Leeway;
use tracewright_tests::rewrite::rewrite;

/// Random graphs in every run.
const GRAPHS_IN_PRIMITIVES: u64 = 10_000;

/// A transformation of a program, with or without a fault.
type Way<'a> = &'a (dyn Fn(&GraphCase) -> GraphCase + Sync);

/// Simplified by exact rules, expanded, simplified again.
fn lowered(case: &GraphCase) -> GraphCase {
    case.simplified().in_primitives().simplified()
}

/// The difference after this transformation, if there is one.
fn fault(case: &GraphCase, way: Way<'_>) -> Option<String> {
    case.violation(&way(case).expected())
}

/// The first graph that gives other numbers this way, made as small as it can be; or how many were looked at.
fn first_fault(count: u64, way: Way<'_>) -> Result<usize, GraphCase> {
    let (next, looked) = (AtomicU64::new(0), AtomicUsize::new(0));
    let faulty = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count.min(faulty.load(Ordering::Relaxed)) {
                        return;
                    }
                    let Some(case) = portable(seed, "graph") else { continue };
                    looked.fetch_add(1, Ordering::Relaxed);
                    if fault(&case, way).is_some() {
                        faulty.fetch_min(seed, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    match portable(faulty.into_inner(), "graph").filter(|case| fault(case, way).is_some()) {
        Some(case) => Err(case.shrunk(&mut |case| fault(case, way).is_some())),
        None => Ok(looked.into_inner()),
    }
}

#[test]
fn ten_thousand_random_graphs_mean_the_same_in_primitives() {
    match first_fault(GRAPHS_IN_PRIMITIVES, &lowered) {
        Ok(looked) => {
            assert!(looked as u64 > GRAPHS_IN_PRIMITIVES / 10 * 9, "{looked} graphs have operations")
        }
        Err(case) => panic!("{}\n{case}", fault(&case, &lowered).unwrap()),
    }
}

/// The program with some of its operations replaced.
fn replaced(case: &GraphCase, replace: fn(&Op) -> Option<Op>) -> GraphCase {
    let trace =
        rewrite(&case.trace, |b, op, operands| replace(op).map(|other| b.op(other, operands)).transpose());
    GraphCase { trace: trace.unwrap(), ..case.clone() }
}

/// The names of its operations.
fn operations(case: &GraphCase) -> Vec<&'static str> {
    case.operations().iter().map(Op::name).collect()
}

#[test]
fn a_fault_in_a_converter_is_found_and_shrunk_to_its_operation() {
    let swapped = |op: &Op| match op {
        Op::Rope(rope) if rope.layout == RopeLayout::HalfSplit => {
            Some(Rope { axis: rope.axis, layout: RopeLayout::Interleaved }.into())
        }
        _ => None,
    };
    let way = |case: &GraphCase| lowered(&replaced(&case.simplified(), swapped));
    let case = first_fault(GRAPHS_IN_PRIMITIVES, &way).unwrap_err();
    println!("{case}");
    assert_eq!(operations(&case), ["rope"]);
    assert_eq!(case.to_string(), case.to_string().parse::<GraphCase>().unwrap().to_string());
}

#[test]
fn a_fault_in_a_rule_is_found_and_shrunk_to_its_operation() {
    let swapped = |op: &Op| match op {
        Op::Binary(Binary { kind: BinaryKind::Maximum }) => Some(Binary { kind: BinaryKind::Minimum }.into()),
        _ => None,
    };
    let way = |case: &GraphCase| replaced(&case.simplified(), swapped);
    let case = first_fault(GRAPHS_IN_PRIMITIVES, &way).unwrap_err();
    println!("{case}");
    assert_eq!(operations(&case), ["binary"]);
}

/// Every case that failed once, in `tests/found`.
#[test]
fn what_was_found_once_stays_mended() {
    let calls = found();
    for number in 0..calls.calls.len() {
        let case = calls.case(number);
        assert_eq!(fault(&case, &lowered), None, "{case}");
    }
    let violations = built(&calls.trace).load(&calls.weights).violations(&calls);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Most numbers are held to a single value. A number that may have any value tests nothing. Linear attention multiplies by
/// exponentials of arbitrary gates, which leaves many of its numbers open.
#[test]
fn most_numbers_are_held_to_one() {
    let calls = graphs(0);
    let (held, all) = calls.held().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    println!("{held} of {all} numbers of {GRAPHS} graphs");
    assert!(held * 4 > all * 3, "{held} of {all} numbers are held to 1 %");
}

#[test]
fn an_answer_may_be_what_another_choice_gives_and_nothing_else() {
    let sum = "entry @sum {
  %0 = input 0 \"x\" () : f32[3] from \"\" at \"a.rs\":1
  %1 = reduce kind=add axes=[0] (%0) : f32[] from \"\" at \"a.rs\":1
  return %1 \"y\"
}
";
    let verdict = |x: &str, found: f64| {
        let case: GraphCase = format!("argument f32[3] {x}\n\n{sum}").parse().unwrap();
        case.violation(&[Value::new(TensorType::new(ops::ElementType::F32, []), [found])]).is_none()
    };
    // Whole numbers have one sum; one that cancels may have lost what is small beside the others.
    assert!(verdict("1,2,3", 6.0) && !verdict("1,2,3", 6.000001));
    assert!(verdict("1e8,0.5,-1e8", 0.0) && !verdict("1e8,0.5,-1e8", 128.0));
    // Where a partial sum may overflow, nothing is known; where none can, all is.
    assert!(verdict("3e38,3e38,-3e38", f64::INFINITY) && verdict("3e38,3e38,-3e38", f64::from(3e38f32)));
    assert!(verdict("inf,1,2", f64::INFINITY) && !verdict("inf,1,2", f64::NAN));
    assert!(verdict("NaN,1,2", f64::NAN) && !verdict("NaN,1,2", 3.0));
    // A subnormal number may be flushed; one that is not may not.
    assert!(verdict("1e-40,0,0", 0.0) && !verdict("1e-30,0,0", 0.0));
    let bound = Leeway::Within(ops::Bound::Exact);
    assert!(
        bound
            .first_violation(
                &Value::new(TensorType::new(ops::ElementType::F32, [1]), [0.0]),
                &Value::new(TensorType::new(ops::ElementType::F32, [1]), [-0.0])
            )
            .is_some()
    );
}

/// As written, a case is what it was.
#[test]
fn a_case_is_read_as_it_was_written() {
    for seed in 0..300 {
        let Some(case) = portable(seed, "graph") else { continue };
        let again: GraphCase = case.to_string().parse().unwrap_or_else(|error| panic!("{error}\n{case}"));
        assert_eq!(again.trace, case.trace);
        assert!(case.arguments.iter().zip(&again.arguments).all(|(a, b)| same(a, b)));
        assert!(case.weights.iter().zip(&again.weights).all(|(a, b)| a.0 == b.0 && same(a.1, b.1)));
    }
}
