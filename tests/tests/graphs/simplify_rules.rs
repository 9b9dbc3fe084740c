//! Applies every rule of every table at least a thousand times to random operands. The result evaluates to the same
//! bits, or for the approximate table within a bound. Every fault planted in a rule is found.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "simplify_rules/check.rs"]
mod check;
#[path = "simplify_rules/instances.rs"]
mod instances;
#[path = "simplify_rules/mutants.rs"]
mod mutants;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use check::{Outcome, check};
use instances::{Instance, instance};
use ops::ElementType;
use simplify::rules::{Rule, Table};
use tracewright_tests::arbitrary::Dice;

/// How often a rule must find something.
const FIRINGS: usize = 1000;
/// How often it may find nothing.
const ATTEMPTS: usize = 40_000;

/// Rules that hold for one element type only.
const ONE_ELEMENT_TYPE: &[&str] = &[
    "and same",
    "or same",
    "and true",
    "true and",
    "and false",
    "false and",
    "or false",
    "false or",
    "or true",
    "true or",
];

/// Rules that make a tensor smaller, which an empty one cannot become.
const NEVER_EMPTY: &[&str] =
    &["unary broadcast", "convert broadcast", "binary broadcast", "compare broadcast"];

/// All rules with their tables and places.
fn rules() -> Vec<(usize, Table, Rule)> {
    let all = Table::ALL.into_iter().flat_map(|table| table.rules().iter().map(move |rule| (table, *rule)));
    all.enumerate().map(|(place, (table, rule))| (place, table, rule)).collect()
}

/// Instances of a rule, each made from a seed of its own.
fn attempts<'a>(
    place: usize,
    table: Table,
    rule: &'a Rule,
) -> impl Iterator<Item = (u64, Instance)> + use<'a> {
    let seeds = (0..ATTEMPTS as u64).map(move |attempt| ((place as u64) << 32) | attempt);
    seeds.filter_map(move |seed| Some((seed, instance(rule, table, &mut Dice::new(seed))?)))
}

/// Does the work of every rule, on all cores.
fn for_each_rule(work: impl Fn(usize, Table, Rule) + Sync) {
    let rules = rules();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(place, table, rule)) = rules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let done =
                        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(place, table, rule)));
                    if done.is_err() {
                        failures.lock().unwrap().push(rule.name);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "rules that failed: {failures:?}");
}

#[test]
fn every_rule_holds_on_random_operands() {
    let total = AtomicUsize::new(0);
    for_each_rule(|place, table, rule| {
        let rewrite = rule.rewrite();
        let (mut fired, mut tried) = (0, 0);
        let (mut elements, mut extents) = (BTreeSet::new(), BTreeSet::new());
        for (seed, instance) in attempts(place, table, &rule) {
            tried += 1;
            match check(&rewrite, &instance, table) {
                Outcome::Silent => continue,
                Outcome::Holds => fired += 1,
                Outcome::Wrong(why) => {
                    panic!("rule `{}`, seed {seed:#x}: {why}\n{}", rule.name, instance.trace())
                }
            }
            for ty in instance.types() {
                elements.insert(ty.element);
                extents.extend(ty.shape.iter().copied());
            }
            if fired == FIRINGS {
                break;
            }
        }
        total.fetch_add(fired, Ordering::Relaxed);
        println!("{:28} {fired} of {tried}: {elements:?}, extents {extents:?}", rule.name);
        assert_eq!(fired, FIRINGS, "`{}` found something too rarely in {tried} attempts", rule.name);
        for extent in [0, 1, 3, 5] {
            let expected = extent > 0 || !NEVER_EMPTY.contains(&rule.name);
            let met = extents.contains(&extent);
            assert_eq!(met, expected, "`{}` met an extent of {extent}", rule.name);
        }
        let one = ONE_ELEMENT_TYPE.contains(&rule.name);
        assert_eq!(elements.len() == 1, one, "`{}` met {elements:?}", rule.name);
        assert!(!one || elements.contains(&ElementType::I1), "`{}` met {elements:?}", rule.name);
    });
    println!("{} rules, {} times in all", rules().len(), total.into_inner());
}
