//! Random graphs over the whole list of operations, simplified by exact rules: sound, and the same to the last bit.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use ops::{Op, Value};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseResult, TestRng, TestRunner};
use simplify::{Options, Report, simplify};
use support::built;
use trace::{Function, NodeKind, Trace};
use tracewright_tests::arbitrary::{Dice, graph, names, same, tame_value, value};
use tracewright_tests::calls::{GRAPHS, WeightValues, evaluate, graphs};
use tracewright_tests::long;

const SHORT: u32 = 10_000;
/// Graphs when there is time.
const LONG: u32 = 100_000;

/// Parts of a run, each with choices of its own: as many for any number of cores.
const PARTS: u8 = 16;

/// A seed and a number of nodes. Fewer nodes of the same seed are the beginning of the same graph, so a failure
/// shrinks to the few that show it.
fn seeds() -> impl Strategy<Value = (u64, usize)> {
    (any::<u64>().no_shrink(), prop_oneof![9 => 5..45usize, 1 => 5..95usize])
}

/// Has `check` look at so many graphs, on all cores.
fn for_each(count: u32, check: impl Fn(u64, usize) -> TestCaseResult + Sync) {
    let next = AtomicU8::new(0);
    let part = || {
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= PARTS {
                return;
            }
            let cases = count / u32::from(PARTS);
            let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
            let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[part; 32]);
            let outcome =
                TestRunner::new_with_rng(config, rng).run(&seeds(), |(seed, nodes)| check(seed, nodes));
            outcome.unwrap_or_else(|error| panic!("{error}"));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(part);
        }
    });
}

/// Values for the inputs and the weights of a trace's only function.
fn values(dice: &mut Dice, function: &Function, tame: bool) -> (Vec<Value>, WeightValues) {
    // Half of the graphs without special values: where a NaN is, little else is seen.
    let value = if tame { tame_value } else { value };
    let arguments = function.inputs().into_iter().map(|(_, ty)| value(dice, ty)).collect();
    let weights = function.parameters().map(|p| (p.key.clone(), value(dice, &p.ty))).collect();
    (arguments, weights)
}

#[derive(Default)]
struct Seen {
    /// In how many graphs each operation is.
    operations: BTreeMap<&'static str, usize>,
    /// In how many graphs each rule found something.
    rules: BTreeMap<&'static str, usize>,
    changed: usize,
    derived: usize,
}

impl Seen {
    fn add(&mut self, before: &Trace, after: &Trace, report: &Report) {
        let function = &before.functions[0];
        let live = function.live();
        let mut names: Vec<&str> = function
            .ids()
            .filter(|id| live[id.index()])
            .filter_map(|id| match &function.node(id).kind {
                NodeKind::Op(op) => Some(op.name()),
                _ => None,
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let name = Op::NAMES.iter().find(|known| **known == name).unwrap();
            *self.operations.entry(name).or_default() += 1;
        }
        for &rule in report.fired.keys() {
            *self.rules.entry(rule).or_default() += 1;
        }
        self.changed += usize::from(report.functions[0].cost[0] != report.functions[0].cost[1]);
        self.derived += usize::from(after.functions[0].parameters().any(|p| p.recipe.is_some()));
    }
}

fn check(seed: u64, nodes: usize) -> Result<(Trace, Trace, Report), TestCaseError> {
    let mut dice = Dice::new(seed);
    let before = graph(&mut dice, nodes);
    let fail = |what: String, trace: &Trace| TestCaseError::fail(format!("{what}\n{trace}"));
    before.verify().map_err(|error| fail(error.to_string(), &before))?;
    let (after, report) = simplify(&before, &Options::default());
    after.verify().map_err(|error| fail(format!("{error}\n{before}"), &after))?;
    let (arguments, weights) = values(&mut dice, &before.functions[0], seed.is_multiple_of(2));
    let expected = evaluate(&before, "main", &arguments, &weights);
    let found = evaluate(&after, "main", &arguments, &weights);
    prop_assert_eq!(expected.len(), found.len());
    for (i, (expected, found)) in expected.iter().zip(&found).enumerate() {
        if !same(expected, found) {
            let what = format!("result {i} is\n{found:?}, expected\n{expected:?}\n{before}");
            return Err(fail(what, &after));
        }
    }
    Ok((before, after, report))
}

fn random_graphs(count: u32, least: usize) {
    let seen: Mutex<Seen> = Mutex::default();
    for_each(count, |seed, nodes| {
        let (before, after, report) = check(seed, nodes)?;
        seen.lock().unwrap().add(&before, &after, &report);
        Ok(())
    });
    let seen = seen.into_inner().unwrap();
    println!("{count} graphs, {} changed, {} with derived weights", seen.changed, seen.derived);
    println!("operations: {:?}", seen.operations);
    println!("{} rules: {:?}", seen.rules.len(), seen.rules);
    for name in &names() {
        let count = seen.operations.get(name).copied().unwrap_or_default();
        assert!(count >= least, "`{name}` is in {count} graphs, expected {least}");
    }
    // Not a matter of luck: graphs that nothing changes show nothing.
    assert!(seen.changed > count as usize / 2, "{} of {count} changed", seen.changed);
    assert!(seen.derived > 0);
}

#[test]
fn ten_thousand_random_graphs_stay_the_same_to_the_last_bit() {
    random_graphs(SHORT, 100);
}

/// `cargo test -p tracewright-tests --test graphs simplify_graphs:: -- --ignored --nocapture hundred_thousand`
#[test]
#[ignore = "takes minutes; the first ten thousand run always"]
fn a_hundred_thousand_random_graphs_stay_the_same_to_the_last_bit() {
    random_graphs(LONG, 100);
}

/// Each as it is and simplified: a module of them, or half of one in the short form. `cargo xtask differential` has more, and two
/// other implementations.
#[test]
fn random_graphs_give_the_same_in_iree() {
    let calls = graphs(0);
    let taken = if long::is_wanted() { calls.calls.len() } else { GRAPHS };
    let calls = calls.only(0..taken);
    let violations = built(&calls.trace).load(&calls.weights).violations(&calls);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    println!("{} functions", calls.calls.len());
}
