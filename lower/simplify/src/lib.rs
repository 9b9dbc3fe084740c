//! Simplifies a trace. Simplifies a trace: the simplified trace has a lower cost and computes the
//! same values.
//!
//! Each function becomes an e-graph (Willsey et al., "egg: Fast and Extensible Equality Saturation", 2021).
//! The [rules](Rules) add expressions that are equal to nodes of the function. The expressions with the
//! lowest total cost become the new function. If a computation depends only on weights, the computation
//! becomes the recipe of a parameter. The crate `bake` evaluates a recipe once, when it writes the archive.

mod cost;
mod explain;
mod extract;
mod facts;
mod function;
mod recipes;
pub mod rules;
mod term;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ops::{TensorType, WeightFormat};
use targets::{Machine, Target};
use trace::{Parameter, Read, Trace};

pub use cost::{Cost, cost};
pub use explain::{Check, ExplainError, Explanation, Step, explain};
pub use facts::{Context, Facts, Graph, Origin};
pub use rules::Rules;
pub use term::Term;

use function::{Saturated, function_cost};

/// Options of [`simplify`].
///
/// ```
/// use targets::Target;
/// use trace::Trace;
/// use tracewright_simplify::{Options, Rules, simplify};
///
/// let twice = r#"entry @main {
///   %0 = input 0 "x" () : f32[2,3] from "" at "f.rs":1
///   %1 = permute order=[1,0] (%0) : f32[3,2] from "" at "f.rs":2
///   %2 = permute order=[1,0] (%1) : f32[2,3] from "" at "f.rs":3
///   return %2 "y"
/// }
/// "#;
/// let trace: Trace = twice.parse()?;
/// let (simple, _) = simplify(&trace, &Options::new(Rules::Exact, &Target::host()));
/// assert_eq!(simple.functions[0].len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub rules: Rules,
    /// The machine for which the cost model minimizes the time of a call.
    pub machine: Machine,
    /// Whether computations that depend only on weights may become recipes, which the crate `bake`
    /// evaluates. Set this option to false if the program has no archive.
    pub recipes: bool,
    /// The storage formats of quantized weights, by the tensor-name patterns of the weights' keys.
    /// The rules do not merge weights that have different storage formats.
    pub formats: Arc<BTreeMap<String, WeightFormat>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { rules: Rules::default(), machine: Machine::CPU, recipes: true, formats: Arc::default() }
    }
}

impl Options {
    /// Returns options with the given rewrite rules, for the machine of the given target.
    pub fn new(rules: Rules, target: &Target) -> Self {
        Self {
            rules,
            machine: target.machine,
            recipes: target.backend.has_archive(),
            formats: Arc::default(),
        }
    }

    /// Returns options with which the simplification does not change the trace.
    pub fn off() -> Self {
        Self { rules: Rules::Off, ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The changes that the simplification made in each function of the trace.
    pub functions: Vec<Change>,
    /// Returns the number of times that each rewrite rule found a new expression.
    pub fired: BTreeMap<&'static str, usize>,
}

/// The changes that the simplification made in one function of the trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    pub name: String,
    pub nodes: [usize; 2],
    pub cost: [Cost; 2],
    /// The number of times that each rewrite rule found a new expression in the function.
    pub fired: BTreeMap<&'static str, usize>,
    /// Whether the simplification reached the limit of iterations or expressions before the rewrite
    /// rules had found all expressions.
    pub limited: bool,
}

/// The largest fraction by which recipes may increase the size of an archive.
const GROWTH: f64 = 0.01;

/// Returns the trace with the lowest cost that the simplification found. The simplified trace
/// computes the same bits as the recorded trace, unless you selected approximate rules. If the
/// simplification finds no better trace, the function returns the trace that it received.
pub fn simplify(trace: &Trace, options: &Options) -> (Trace, Report) {
    if options.rules == Rules::Off {
        return (trace.clone(), Report::default());
    }
    let rules = options.rules.all();
    let mut report = Report::default();
    let (saturated, simplified, _) = saturate(trace, options);
    for ((before, after), saturated) in trace.functions.iter().zip(&simplified.functions).zip(&saturated) {
        let mut fired = BTreeMap::new();
        for (rule, count) in saturated.fired() {
            let rule =
                rules.iter().find(|known| known.name == rule).map_or(facts::FOLDING.0, |known| known.name);
            *fired.entry(rule).or_default() += count;
            *report.fired.entry(rule).or_default() += count;
        }
        report.functions.push(Change {
            name: before.name.clone(),
            nodes: [before, after].map(|f| f.live().iter().filter(|live| **live).count()),
            cost: [before, after].map(|f| function_cost(&options.machine, f)),
            fired,
            limited: saturated.limited(),
        });
    }
    (simplified, report)
}

/// All expressions of every function, the choice of expressions with the lowest cost, and the keys
/// of recipes that the choice must not use.
fn saturate<'a>(trace: &'a Trace, options: &Options) -> (Vec<Saturated<'a>>, Trace, BTreeSet<String>) {
    let results: Vec<Arc<[TensorType]>> =
        trace.functions.iter().map(|f| f.output_types().into_iter().cloned().collect()).collect();
    let rewrites =
        if options.recipes { options.rules.rewrites() } else { options.rules.rewrites_without_archive() };
    let saturate = |function| Saturated::new(function, &results, rewrites, options);
    let saturated: Vec<Saturated<'_>> = trace.functions.iter().map(saturate).collect();
    // The archive must store a tensor only once, even if two functions read the tensor. So the loop
    // bans a recipe that would store a tensor again, but keeps recipes of the recorded trace.
    let recorded: BTreeSet<&str> = derived(trace).map(|parameter| parameter.key.as_str()).collect();
    let mut banned: BTreeSet<String> = BTreeSet::new();
    loop {
        let functions = saturated.iter().map(|s| s.extract(options, &banned).0).collect();
        let simplified = Trace { functions, entries: trace.entries.clone() };
        let worst = worst_recipe(&simplified, &recorded);
        let Some(key) = worst.filter(|key| !banned.contains(key)) else {
            return (saturated, simplified, banned);
        };
        banned.insert(key);
    }
}

/// Returns the parameters of a trace that are computed by a recipe.
fn derived(trace: &Trace) -> impl Iterator<Item = &Parameter> {
    let parameters = trace.functions.iter().flat_map(|function| function.parameters());
    parameters.filter(|parameter| parameter.recipe.is_some())
}

/// Returns the key of a recipe that the trace must not use; `None` if the trace may use all its recipes.
/// Recipes whose keys are in `recorded` may always stay in the trace. The trace must not use a recipe if
/// another recipe has the same key, or if the recipe stores a tensor twice or makes the archive too large.
fn worst_recipe(trace: &Trace, recorded: &BTreeSet<&str>) -> Option<String> {
    derived(trace).next()?;
    let reads = match trace.reads() {
        Ok(reads) => reads.entries,
        Err(conflict) => return conflict.origins.into_iter().find(|key| !recorded.contains(key.as_str())),
    };
    let size = |ty: &TensorType| ty.bytes() as f64;
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut before, mut after) = (0.0, 0.0);
    for Read { parameter, .. } in reads.values() {
        after += size(&parameter.ty);
        for (key, ty) in parameter.sources() {
            let uses = uses.entry(key).or_default();
            *uses += 1;
            before += if *uses == 1 { size(ty) } else { 0.0 };
        }
    }
    // For each recipe in all its calls: the bytes by which the archive becomes larger, and whether
    // the recipe stores a tensor again.
    let mut recipes: BTreeMap<&str, (f64, bool)> = BTreeMap::new();
    for Read { parameter, origins } in reads.values().filter(|read| read.parameter.recipe.is_some()) {
        let (mut excess, mut shares) = (size(&parameter.ty), false);
        for (key, ty) in parameter.sources() {
            match uses[key] {
                1 => excess -= size(ty),
                _ => shares = true,
            }
        }
        for origin in origins.iter().filter(|origin| !recorded.contains(origin.as_str())) {
            let (sum, any) = recipes.entry(origin).or_default();
            *sum += excess;
            *any |= shares;
        }
    }
    let twice = recipes.values().any(|(_, shares)| *shares);
    if !twice && after <= before * (1.0 + GROWTH) {
        return None;
    }
    let candidates = recipes.into_iter().filter(|(_, (_, shares))| !twice || *shares);
    let worst = candidates.max_by(|(a, (x, _)), (b, (y, _))| x.total_cmp(y).then_with(|| a.cmp(b)));
    worst.map(|(key, _)| key.to_owned())
}
