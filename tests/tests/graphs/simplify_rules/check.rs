//! Whether what a rule finds is the same.

use std::collections::HashMap;

use egg::{Id, Rewrite, Runner, SimpleScheduler};
use ops::ops::{Linear, Unary, UnaryKind};
use ops::{Op, Operation as _, Value};
use simplify::rules::Table;
use simplify::{Context, Graph, Term};
use trace::{NodeId, NodeKind};
use tracewright_tests::arbitrary::same;

use super::instances::Instance;

/// The result of one application of a rule.
pub enum Outcome {
    Silent,
    /// All that it finds is equal.
    Holds,
    /// Something is not.
    Wrong(String),
}

/// The bound on an element after approximate rules, in units in the last place of the largest term of its
/// sum. A term is a product of two rounded factors, and each sum is rounded once. Elements are not compared
/// if their computation meets infinity, NaN or a subnormal number: these rules may remove such steps.
pub const APPROXIMATE: f64 = 4.0;

/// Applies a rule once to an instance and evaluates every term there is then.
pub fn check(rule: &Rewrite<Term, Context>, instance: &Instance, table: Table) -> Outcome {
    let function = &instance.function;
    let inputs = function.inputs().into_iter().map(|(_, ty)| ty.clone()).collect();
    let approximate = table == Table::Approximate;
    let mut graph = Graph::new(Context { inputs, approximate, ..Context::default() });
    let mut classes: Vec<Id> = Vec::new();
    for id in function.ids() {
        let operands = function.operands(id).iter().map(|o| classes[o.index()]).collect();
        classes.push(graph.add(Term::new(function.node(id).kind.clone(), operands)));
    }
    graph.rebuild();
    let runner = Runner::<Term, Context>::new(Context::default())
        .with_egraph(graph)
        .with_iter_limit(1)
        .with_scheduler(SimpleScheduler)
        .run([rule]);
    if runner.iterations[0].applied.get(&rule.name).is_none_or(|&count| count == 0) {
        return Outcome::Silent;
    }
    let graph = &runner.egraph;

    let root = graph.find(classes[function.outputs[0].node.index()]);
    let allowed = approximate.then(|| allowed(instance));
    if allowed.as_ref().is_some_and(|allowed| !allowed.is_empty() && allowed.iter().all(Option::is_none)) {
        return Outcome::Silent; // nothing would be compared
    }
    let equal = |class: Id, value: &Value, other: &Value| match &allowed {
        Some(allowed) if class == root => within(value, other, allowed),
        _ => same(value, other),
    };
    // What the function's own nodes are; nodes that became one class must be one value.
    let mut values: HashMap<Id, Value> = HashMap::new();
    for (&class, value) in classes.iter().zip(&instance.values) {
        let class = graph.find(class);
        match values.get(&class) {
            Some(other) if !equal(class, other, value) => {
                return Outcome::Wrong(format!("{other:?} became {value:?}"));
            }
            Some(_) => {}
            None => {
                values.insert(class, value.clone());
            }
        }
    }
    // Every term, once its operands are known.
    let mut pending: Vec<(Id, &Op, Vec<Id>)> = Vec::new();
    for class in graph.classes() {
        for term in &class.nodes {
            if let NodeKind::Op(op) = &*term.kind {
                pending.push((class.id, op, term.operands.iter().map(|&id| graph.find(id)).collect()));
            }
        }
    }
    pending.sort_by_key(|(class, ..)| *class);
    while !pending.is_empty() {
        let before = pending.len();
        let mut wrong = None;
        pending.retain(|(class, op, operands)| {
            let known: Option<Vec<&Value>> = operands.iter().map(|id| values.get(id)).collect();
            let Some(known) = known else { return true };
            let found = op.eval(&known, graph[*class].data.ty());
            match values.get(class) {
                Some(value) if !equal(*class, value, &found) => {
                    let mut text = String::new();
                    op.print(&mut text);
                    wrong = Some(format!("{text} of {known:?}\nis {found:?}\nexpected {value:?}"));
                }
                Some(_) => {}
                None => {
                    values.insert(*class, found);
                }
            }
            false
        });
        if let Some(wrong) = wrong {
            return Outcome::Wrong(wrong);
        }
        assert!(pending.len() < before, "terms that nothing computes");
    }
    Outcome::Holds
}

/// By how much each element of the result may differ; `None` where it is not compared.
fn allowed(instance: &Instance) -> Vec<Option<f64>> {
    let function = &instance.function;
    let root = function.outputs[0].node;
    let result = &instance.values[root.index()];
    let magnitude = match &function.node(root).kind {
        NodeKind::Op(Op::Linear(_)) => {
            let operands = function.operands(root);
            let operands: Vec<Value> =
                operands.iter().map(|o| absolute(&instance.values[o.index()])).collect();
            Linear {}.eval(&operands.iter().collect::<Vec<_>>(), &result.ty)
        }
        _ => result.clone(),
    };
    let element = result.ty.element;
    // What the rules compute ahead of time is their own affair.
    let known = |id: NodeId| match &function.node(id).kind {
        NodeKind::Op(Op::Constant(constant)) => constant.value.as_splat().is_some(),
        _ => false,
    };
    let same_type = function.ids().filter(|&id| function.node(id).ty() == &result.ty && !known(id));
    let steps: Vec<&Value> = same_type.map(|id| &instance.values[id.index()]).collect();
    let limit = |at: usize| {
        let normal = |x: f64| x.is_finite() && (x == 0.0 || element.ulp(x) > element.ulp(0.0));
        let ulp = element.ulp(magnitude.data[at]);
        steps.iter().all(|step| normal(step.data[at])).then_some(APPROXIMATE * ulp)
    };
    (0..result.data.len()).map(limit).collect()
}

fn absolute(value: &Value) -> Value {
    Unary { kind: UnaryKind::Abs }.eval(&[value], &value.ty)
}

fn within(a: &Value, b: &Value, allowed: &[Option<f64>]) -> bool {
    let close = |((a, b), allowed): ((&f64, &f64), &Option<f64>)| match allowed {
        Some(allowed) => (a - b).abs() <= *allowed,
        None => true,
    };
    a.ty == b.ty && a.data.iter().zip(&b.data).zip(allowed).all(close)
}
