//! A smaller, equivalent trace.
//!
//! Each function becomes an e-graph (Willsey et al., "egg: Fast and Extensible Equality Saturation", 2021), the
//! [rules](Rules) say what else every node equals, and the cheapest choice becomes the function again. What depends on
//! weights alone becomes a recipe of a parameter: `bake` computes it once, when the archive is written.

mod cost;
mod explain;
mod extract;
mod facts;
mod function;
mod recipes;
pub mod rules;
mod term;

use std::collections::{BTreeMap, BTreeSet};

use ops::TensorType;
use trace::{Parameter, Trace};

pub use cost::{Cost, Operand, Target};
pub use explain::{Check, ExplainError, Explanation, Step, explain};
pub use facts::{Context, Facts, Graph, Origin};
pub use rules::Rules;
pub use term::Term;

use function::Saturated;

/// How [`simplify`] works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The rules.
    pub rules: Rules,
    /// The machine whose time is saved.
    pub target: Target,
}

impl Default for Options {
    fn default() -> Self {
        Self { rules: Rules::default(), target: Target::CPU }
    }
}

impl Options {
    /// The input as it is.
    pub fn off() -> Self {
        Self { rules: Rules::Off, ..Self::default() }
    }
}

/// What a simplification did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What each function was and became.
    pub functions: Vec<Change>,
    /// How often each rule found something new.
    pub fired: BTreeMap<&'static str, usize>,
}

/// What one function was and became.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// Nodes before and after.
    pub nodes: [usize; 2],
    /// Estimates before and after.
    pub cost: [Cost; 2],
}

/// By what share an archive may grow.
const GROWTH: f64 = 0.01;

/// The simplest trace that was found. It computes the same: bit for bit, unless approximate rules were asked for.
/// Never fails: at worst it is the input.
pub fn simplify(trace: &Trace, options: &Options) -> (Trace, Report) {
    if options.rules == Rules::Off {
        return (trace.clone(), Report::default());
    }
    let rules = options.rules.all();
    let mut report = Report::default();
    let (saturated, simplified, _) = saturate(trace, options, &rules);
    for (rule, count) in saturated.iter().flat_map(Saturated::fired) {
        let rule =
            rules.iter().find(|known| known.name == rule).map_or("constant folding", |known| known.name);
        *report.fired.entry(rule).or_default() += count;
    }
    for (before, after) in trace.functions.iter().zip(&simplified.functions) {
        report.functions.push(Change {
            name: before.name.clone(),
            nodes: [before, after].map(|f| f.live().iter().filter(|live| **live).count()),
            cost: [before, after].map(|f| options.target.function(f)),
        });
    }
    (simplified, report)
}

/// All that was found of every function, the cheapest choice, and the keys of the recipes that it must not use.
fn saturate<'a>(
    trace: &'a Trace,
    options: &Options,
    rules: &[rules::Rule],
) -> (Vec<Saturated<'a>>, Trace, BTreeSet<String>) {
    let rewrites: Vec<_> = rules.iter().map(|rule| rule.rewrite()).collect();
    let results: Vec<Vec<TensorType>> =
        trace.functions.iter().map(|f| f.output_types().into_iter().cloned().collect()).collect();
    let approximate = options.rules == Rules::Approximate;
    let saturate = |function| Saturated::new(function, &results, &rewrites, approximate);
    let saturated: Vec<Saturated<'_>> = trace.functions.iter().map(saturate).collect();
    // What two functions read must be stored once: a recipe that would store a tensor again is not used anywhere.
    let mut banned = BTreeSet::new();
    loop {
        let functions = saturated.iter().map(|s| s.extract(&options.target, &banned).0).collect();
        let simplified = Trace { functions, entries: trace.entries.clone() };
        match duplicate(&simplified) {
            Some(key) => banned.insert(key),
            None => return (saturated, simplified, banned),
        };
    }
}

/// The key of a recipe that the archive is better without, if it has a tensor twice or grows too much.
fn duplicate(trace: &Trace) -> Option<String> {
    let mut derived: BTreeMap<&str, &Parameter> = BTreeMap::new();
    let mut stored: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for parameter in trace.functions.iter().flat_map(|function| function.parameters()) {
        if parameter.recipe.is_some() {
            derived.insert(&parameter.key, parameter);
        }
        parameter.sources(&mut |key, _| {
            stored.entry(key).or_default().insert(&parameter.key);
        });
    }
    if derived.is_empty() {
        return None;
    }
    let size = |ty: &TensorType| ty.bytes() as f64;
    let shared = |parameter: &Parameter| {
        let mut shared = false;
        parameter.sources(&mut |key, _| shared |= stored.get(key).is_some_and(|places| places.len() > 1));
        shared
    };
    let twice = derived.values().any(|parameter| shared(parameter));
    // By how much the archive is larger for it: all of it if what it is made of is stored anyway.
    let excess = |parameter: &Parameter| {
        let mut saved = 0.0;
        parameter.sources(&mut |key, ty| {
            if stored.get(key).is_none_or(|places| places.len() < 2) {
                saved += size(ty);
            }
        });
        size(&parameter.ty) - saved
    };
    let fits = trace.parameters().is_ok_and(|parameters| {
        let mut sources = BTreeMap::new();
        for parameter in &parameters {
            parameter.sources(&mut |key, ty| {
                sources.insert(key, size(ty));
            });
        }
        let before: f64 = sources.values().sum();
        let after: f64 = parameters.iter().map(|p| size(&p.ty)).sum();
        after <= before * (1.0 + GROWTH)
    });
    if fits && !twice {
        return None;
    }
    let candidates = derived.values().filter(|parameter| !twice || shared(parameter));
    let worst = candidates.max_by(|a, b| excess(a).total_cmp(&excess(b)).then_with(|| a.key.cmp(&b.key)));
    worst.map(|parameter| parameter.key.clone())
}
