//! Plants faults in every rule. The check of the rules must find each fault. For changes that are not faults, this
//! file has the reason.
//!
//! Faults on the right side of a text rule:
//!
//! - swap two neighbouring operands, or put another variable of the left side in a variable's place
//! - replace an operation by its sibling
//! - return an operand instead of the result, or negate the result
//!
//! Faults on the left side of a text rule:
//!
//! - let two occurrences of a variable be different
//! - drop the condition that a variable is a constant, or ask for another constant
//!
//! Faults in a tree of an attribute rule:
//!
//! - swap two neighbouring operands, or drop one
//! - return an operand instead of the result, or negate the result
//! - replace a class by another operand of the use
//! - change an attribute: a number by one, a list by a swap or a missing entry, a word to its siblings
//! - change the number in a constant

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once};

use egg::Rewrite;
use ops::ops::{Constant, Unary, UnaryKind};
use ops::{ElementType, Literal, Op, Reader};
use simplify::rules::{Rule, RuleKind, Site, Table, Tree};
use simplify::{Context, Term};

use super::check::{Outcome, check};
use super::instances::Instance;
use super::{ONE_ELEMENT_TYPE, attempts, for_each_rule};

/// How many instances a fault may survive.
const INSTANCES: usize = 400;

/// Faults that are none: the rule (`*` for any), how the fault's description starts, and why.
const EQUAL: &[(&str, &str, &str)] = &[
    ("subtract negate", "swap operands 0 and 1 of `add`", "a sum commutes"),
    ("select or", "swap operands 0 and 1 at operand 0 of the root", "`or` commutes"),
    ("select or", "take operand 2 of the use at operand 2 of the root", "it is asked only where d is false"),
    ("and true", "?c is 2.0", "2 is rounded to true"),
    ("true and", "?c is 2.0", "2 is rounded to true"),
    ("or true", "?c is 2.0", "2 is rounded to true"),
    ("true or", "?c is 2.0", "2 is rounded to true"),
    ("select true", "?c is 2.0", "2 is rounded to true"),
    ("and false", "?c is -0.0", "there is one false"),
    ("false and", "?c is -0.0", "there is one false"),
    ("or false", "?c is -0.0", "there is one false"),
    ("false or", "?c is -0.0", "there is one false"),
    ("select false", "?c is -0.0", "there is one false"),
    ("convert convert", "take operand 0 of the use at operand 0", "it is the left side again"),
    ("reshape reshape", "take operand 0 of the use at operand 0", "it is the left side again"),
    ("divide constant", "swap operands 0 and 1 at the root", "a product commutes"),
    ("multiply constants", "swap operands 0 and 1 at the root", "a product commutes"),
    ("norm scale", "swap operands 0 and 1 at operand 1 of the root", "a product commutes"),
    ("norm scale", "sibling 0 in style at operand 0 of the root", "where the weight is 1 it does not matter"),
];

struct Mutant {
    what: String,
    rule: Rule,
    fault: Option<String>,
    /// The instances where the fault is visible in the rule's right side; none for a text rule, which has its own.
    at: Vec<usize>,
}

type Forms = fn(&Site<'_>) -> Vec<Tree>;

thread_local! {
    /// The forms of the rule under test, and the fault that is planted in them; none to note what could be planted.
    static PLANTED: RefCell<Option<(Forms, Option<String>)>> = const { RefCell::new(None) };
    static POSSIBLE: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    /// Whether panics of this thread are expected.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn every_planted_fault_is_found() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                loud(info);
            }
        }));
    });
    let counts: Mutex<BTreeMap<&str, usize>> = Mutex::default();
    let used: Mutex<BTreeSet<usize>> = Mutex::default();
    let survivors: Mutex<Vec<String>> = Mutex::default();
    for_each_rule(|place, table, rule| {
        let (instances, mutants) = match rule.how {
            RuleKind::Text { .. } => (vec![], text_mutants(&rule)),
            RuleKind::Attribute { op, forms, .. } => attribute_mutants(place, table, &rule, op, forms),
        };
        assert!(!mutants.is_empty(), "no faults for `{}`", rule.name);
        for mutant in mutants {
            let end = match mutant.rule.how {
                RuleKind::Text { .. } => {
                    let rewrite = mutant.rule.rewrite();
                    let fresh = attempts(place, table, &mutant.rule).take(2 * INSTANCES);
                    found(&rewrite, table, fresh.map(|(_, instance)| instance))
                }
                RuleKind::Attribute { forms, .. } => {
                    let original = match rule.how {
                        RuleKind::Attribute { forms, .. } => forms,
                        RuleKind::Text { .. } => forms,
                    };
                    PLANTED.set(Some((original, mutant.fault.clone())));
                    let rewrite = mutant.rule.rewrite();
                    found(&rewrite, table, mutant.at.iter().map(|&at| &instances[at]))
                }
            };
            let known = EQUAL.iter().position(|(name, start, _)| {
                (*name == "*" || *name == rule.name) && mutant.what.starts_with(start)
            });
            let count = match (end, known) {
                (Some(how), None) => how,
                (None, Some(known)) => {
                    used.lock().unwrap().insert(known);
                    "is none"
                }
                // A fault that is none for some instances' sake must be none for all.
                (Some(_), Some(known)) => {
                    survivors
                        .lock()
                        .unwrap()
                        .push(format!("{}: {} is a fault ({})", rule.name, mutant.what, EQUAL[known].2));
                    "is none after all"
                }
                (None, None) => {
                    survivors.lock().unwrap().push(format!("{}: {}", rule.name, mutant.what));
                    "lives"
                }
            };
            *counts.lock().unwrap().entry(count).or_default() += 1;
        }
    });
    let counts = counts.into_inner().unwrap();
    println!("{} faults: {counts:?}", counts.values().sum::<usize>());
    let survivors = survivors.into_inner().unwrap();
    assert!(survivors.is_empty(), "faults that nothing found:\n{}", survivors.join("\n"));
    let used = used.into_inner().unwrap();
    let stale: Vec<_> = (0..EQUAL.len()).filter(|at| !used.contains(at)).map(|at| EQUAL[at]).collect();
    assert!(stale.is_empty(), "reasons for no fault: {stale:?}");
}

/// How the fault shows, if it does.
fn found<I: std::borrow::Borrow<Instance>>(
    rewrite: &Rewrite<Term, Context>,
    table: Table,
    instances: impl Iterator<Item = I>,
) -> Option<&'static str> {
    let mut refused = None;
    for (at, instance) in instances.enumerate() {
        // Where some types are refused, others may show another value: the better answer, but not worth all instances.
        if refused.is_some() && at > INSTANCES / 4 {
            break;
        }
        QUIET.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| check(rewrite, instance.borrow(), table)));
        QUIET.set(false);
        match outcome {
            // A term without a type, a class with two, or a constant with two values.
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default();
                let known =
                    ["a rule changed a type", "a rule changed a value", "a rule made an ill-typed term"];
                assert!(known.iter().any(|known| text.contains(known)), "{text}");
                refused = Some("is refused by the e-graph");
            }
            Ok(Outcome::Wrong(_)) => return Some("gives another value"),
            Ok(Outcome::Holds | Outcome::Silent) => {}
        }
    }
    refused
}

// Attribute rules.

fn attribute_mutants(
    place: usize,
    table: Table,
    rule: &Rule,
    op: &'static str,
    forms: Forms,
) -> (Vec<Instance>, Vec<Mutant>) {
    let faulty = Rule { how: RuleKind::Attribute { equation: "", op, forms: planted }, ..*rule };
    let rewrite = faulty.rewrite();
    let mut instances = Vec::new();
    let mut at: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    PLANTED.set(Some((forms, None)));
    for (_, instance) in attempts(place, table, rule) {
        POSSIBLE.take();
        if !matches!(check(&rewrite, &instance, table), Outcome::Holds) {
            continue;
        }
        for fault in POSSIBLE.take() {
            at.entry(fault).or_default().push(instances.len());
        }
        instances.push(instance);
        if instances.len() == INSTANCES {
            break;
        }
    }
    let mutants = at.into_iter().map(|(fault, at)| Mutant {
        what: fault.clone(),
        rule: faulty,
        fault: Some(fault),
        at,
    });
    (instances, mutants.collect())
}

/// The forms of the rule under test, with the fault.
fn planted(site: &Site<'_>) -> Vec<Tree> {
    let (forms, fault) = PLANTED.with_borrow(|planted| planted.clone().unwrap());
    let faulty = |tree: Tree| {
        let mut all = Vec::new();
        walk(site, &tree, "the root", &|tree| tree, &mut all);
        match &fault {
            None => {
                POSSIBLE.with_borrow_mut(|possible| possible.extend(all.into_iter().map(|(what, _)| what)));
                tree
            }
            Some(fault) => all.into_iter().find(|(what, _)| what == fault).map_or(tree, |(_, tree)| tree),
        }
    };
    forms(site).into_iter().map(faulty).collect()
}

/// Every faulty tree, with what is wrong. `whole` puts a part back into its place.
fn walk(
    site: &Site<'_>,
    part: &Tree,
    place: &str,
    whole: &dyn Fn(Tree) -> Tree,
    faults: &mut Vec<(String, Tree)>,
) {
    let mut fault = |what: String, tree: Tree| faults.push((format!("{what} at {place}"), whole(tree)));
    if place == "the root" {
        let kind = if site.result().element == ElementType::I1 { UnaryKind::Not } else { UnaryKind::Negate };
        fault("negate".into(), Tree::op(Unary { kind }, [part.clone()]));
    }
    match part {
        Tree::Class(class) => {
            for (i, operand) in site.operands.iter().enumerate() {
                if operand != class {
                    fault(format!("take operand {i} of the use"), (*operand).into());
                }
            }
        }
        Tree::Op(op, operands) => {
            for i in 1..operands.len() {
                let mut swapped = operands.clone();
                swapped.swap(i - 1, i);
                fault(format!("swap operands {} and {i}", i - 1), Tree::Op(op.clone(), swapped));
                let mut dropped = operands.clone();
                dropped.remove(i);
                fault(format!("drop operand {i}"), Tree::Op(op.clone(), dropped));
            }
            for (i, operand) in operands.iter().enumerate() {
                fault(format!("return operand {i}"), operand.clone());
            }
            for (what, op) in attribute_faults(op) {
                fault(what, Tree::Op(op, operands.clone()));
            }
            for (i, operand) in operands.iter().enumerate() {
                let whole = |tree: Tree| {
                    let mut operands = operands.clone();
                    operands[i] = tree;
                    whole(Tree::Op(op.clone(), operands))
                };
                walk(site, operand, &format!("operand {i} of {place}"), &whole, faults);
            }
        }
    }
}

/// Words that stand for each other.
const SIBLINGS: &[&[&str]] = &[
    &["add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "and", "or"],
    &["negate", "abs", "exponential", "log", "tanh", "logistic", "sqrt", "rsqrt", "not"],
    &["EQ", "NE", "LT", "LE", "GT", "GE"],
    &["f32", "f16", "bf16", "i32", "i8", "i4", "i1"],
    &["scale", "wide", "one_plus"],
];

/// The next sibling and the one after it.
fn siblings(word: &str) -> Vec<&'static str> {
    let family = SIBLINGS.iter().find_map(|family| Some((family, family.iter().position(|w| *w == word)?)));
    family.map_or(vec![], |(family, at)| [1, 2].map(|by| family[(at + by) % family.len()]).to_vec())
}

/// An operation with one attribute changed, through its text form, so that no attribute is forgotten.
fn attribute_faults(op: &Op) -> Vec<(String, Op)> {
    if let Op::Constant(Constant { value }) = op {
        let Some(bits) = value.as_splat() else { return vec![] };
        let other = match value.ty().element {
            ElementType::I1 => f64::from(bits == 0),
            element => element.decode(bits) + 1.0,
        };
        return vec![(
            "change the constant".into(),
            Constant { value: Literal::splat(value.ty().clone(), other) }.into(),
        )];
    }
    let mut text = String::new();
    op.print(&mut text);
    let words: Vec<&str> = text.split(' ').collect();
    let mut faults = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let Some((key, value)) = word.split_once('=') else { continue };
        for (what, value) in value_faults(value) {
            let word = format!("{key}={value}");
            let mut words = words.clone();
            words[at] = &word;
            let text = words.join(" ");
            let mut reader = Reader::new(&text);
            if let Ok(op) = Op::parse(&mut reader) {
                faults.push((format!("{what} in {key}"), op));
            }
        }
    }
    faults
}

fn value_faults(value: &str) -> Vec<(String, String)> {
    let one_off = |number: usize| {
        let less = number.checked_sub(1).map(|less| ("one less".to_owned(), less));
        [Some(("one more".to_owned(), number + 1)), less].into_iter().flatten()
    };
    if let Ok(number) = value.parse::<usize>() {
        return one_off(number).map(|(what, number)| (what, number.to_string())).collect();
    }
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return siblings(value)
            .into_iter()
            .enumerate()
            .map(|(i, w)| (format!("sibling {i}"), w.into()))
            .collect();
    };
    let list: Vec<usize> = list.split(',').filter_map(|entry| entry.parse().ok()).collect();
    let mut faults = Vec::new();
    for (i, &entry) in list.iter().enumerate() {
        for (what, entry) in one_off(entry) {
            let mut list = list.clone();
            list[i] = entry;
            faults.push((format!("entry {i} {what}"), format!("{list:?}").replace(' ', "")));
        }
        let mut dropped = list.clone();
        dropped.remove(i);
        faults.push((format!("entry {i} dropped"), format!("{dropped:?}").replace(' ', "")));
        if i > 0 {
            let mut swapped = list.clone();
            swapped.swap(i - 1, i);
            faults.push((
                format!("entries {} and {i} swapped", i - 1),
                format!("{swapped:?}").replace(' ', ""),
            ));
        }
    }
    faults
}

// Text rules.

/// A pattern: a word, or an operation and its operands.
#[derive(Clone, PartialEq)]
enum Text {
    Word(String),
    List(Vec<Text>),
}

impl Text {
    fn parse(text: &str) -> Self {
        let spaced = text.replace('(', " ( ").replace(')', " ) ");
        let mut open: Vec<Vec<Text>> = vec![vec![]];
        for token in spaced.split_whitespace() {
            match token {
                "(" => open.push(vec![]),
                ")" => {
                    let list = open.pop().unwrap();
                    open.last_mut().unwrap().push(Self::List(list));
                }
                word => open.last_mut().unwrap().push(Self::Word(word.into())),
            }
        }
        open.remove(0).remove(0)
    }

    fn print(&self) -> String {
        match self {
            Self::Word(word) => word.clone(),
            Self::List(items) => format!("({})", items.iter().map(Self::print).collect::<Vec<_>>().join(" ")),
        }
    }

    fn words(&self) -> Vec<&str> {
        match self {
            Self::Word(word) => vec![word],
            Self::List(items) => items.iter().flat_map(Self::words).collect(),
        }
    }

    fn faults(&self, variables: &BTreeSet<String>) -> Vec<(String, Text)> {
        let mut faults = Vec::new();
        match self {
            Self::Word(word) => {
                let others = variables.iter().filter(|other| *other != word && word.starts_with('?'));
                faults.extend(others.map(|other| (format!("{other} for {word}"), Self::Word(other.clone()))));
                let siblings = siblings(word).into_iter();
                faults
                    .extend(siblings.map(|other| (format!("{other} for {word}"), Self::Word(other.into()))));
            }
            Self::List(items) => {
                for i in 2..items.len() {
                    let mut swapped = items.clone();
                    swapped.swap(i - 1, i);
                    let op = items[0].print();
                    faults.push((
                        format!("swap operands {} and {} of `{op}`", i - 2, i - 1),
                        Self::List(swapped),
                    ));
                }
                for (i, item) in items.iter().enumerate().skip(1) {
                    faults.push((format!("return operand {}", i - 1), item.clone()));
                }
                for (i, item) in items.iter().enumerate() {
                    for (what, item) in item.faults(variables) {
                        let mut items = items.clone();
                        items[i] = item;
                        faults.push((what, Self::List(items)));
                    }
                }
            }
        }
        faults
    }
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

fn text_mutants(rule: &Rule) -> Vec<Mutant> {
    let RuleKind::Text { left, right, splats } = rule.how else { return vec![] };
    let pattern = Text::parse(left);
    let variables: BTreeSet<String> =
        pattern.words().into_iter().filter(|word| word.starts_with('?')).map(str::to_owned).collect();
    let mut mutants = Vec::new();
    let mut mutant = |what: String, left: &'static str, right: &'static str, splats: &'static [_]| {
        let rule = Rule { how: RuleKind::Text { left, right, splats }, ..*rule };
        mutants.push(Mutant { what, rule, fault: None, at: vec![] });
    };
    for (what, faulty) in Text::parse(right).faults(&variables) {
        mutant(format!("{what} on the right"), left, leak(faulty.print()), splats);
    }
    let negate = if ONE_ELEMENT_TYPE.contains(&rule.name) { "not" } else { "negate" };
    mutant("negate the result".into(), left, leak(format!("({negate} {right})")), splats);
    for variable in &variables {
        if pattern.words().iter().filter(|word| *word == variable).count() > 1 {
            let at = left.rfind(variable.as_str()).unwrap();
            let untied = format!("{}?z{}", &left[..at], &left[at + variable.len()..]);
            mutant(format!("{variable} is two"), leak(untied), right, splats);
        }
    }
    for (i, &(variable, value)) in splats.iter().enumerate() {
        let mut fewer = splats.to_vec();
        fewer.remove(i);
        mutant(format!("{variable} is any"), left, right, fewer.leak());
        for other in [0.0, -0.0, 1.0, 2.0] {
            if f64::to_bits(other) != f64::to_bits(value) {
                let mut changed = splats.to_vec();
                changed[i].1 = other;
                mutant(format!("{variable} is {other:?}"), left, right, changed.leak());
            }
        }
    }
    mutants
}
