//! Inserts a function into an e-graph, and extracts the simplified function from the e-graph.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use egg::{Id, Language as _, Rewrite, RewriteScheduler, Runner, SearchMatches, StopReason};
use ops::{CostOperand, Op, TensorType};
use targets::Machine;
use trace::{Function, Node, NodeId, NodeKind, Output};

use crate::cost::{Cost, cost};
use crate::extract::{Candidate, Class, Extraction};
use crate::facts::{Context, FOLDING, Graph, Origin};
use crate::recipes::{recipes, stored};
use crate::{Options, Rules, Term};

/// The largest number of iterations, each of which applies all rewrite rules. The functions of
/// language models need three or four iterations.
const ITERATIONS: usize = 12;
/// The largest number of expressions that the rewrite rules add to the e-graph of a function.
const TERMS: usize = 20_000;

/// A scheduler that applies all rewrite rules in every iteration. The default scheduler of egg would delay
/// rules that have many matches. The rules of Tracewright limit the number of expressions themselves.
struct Bounded;

impl RewriteScheduler<Term, Context> for Bounded {
    fn search_rewrite<'a>(
        &mut self,
        _: usize,
        graph: &Graph,
        rule: &'a Rewrite<Term, Context>,
    ) -> Vec<SearchMatches<'a, Term>> {
        rule.search_with_limit(graph, TERMS)
    }
}

/// A function, and all expressions that the rewrite rules found to be equal to the function's nodes.
pub(crate) struct Saturated<'a> {
    pub function: &'a Function,
    runner: Runner<Term, Context>,
    /// For each node, the class of equal expressions that contains the node; `None` for a node that
    /// no result of the function needs.
    pub classes: Vec<Option<Id>>,
}

impl<'a> Saturated<'a> {
    /// Applies the rules to a function until the rules find no new expressions, or until the search reaches a
    /// limit. Set `approximate` to true if some of the rules change the rounding of results.
    pub fn new(
        function: &'a Function,
        results: &[Arc<[TensorType]>],
        rules: &[Rewrite<Term, Context>],
        options: &Options,
    ) -> Self {
        let inputs = function.inputs().into_iter().map(|(_, ty)| ty.clone()).collect();
        let context = Context {
            inputs,
            results: results.to_vec(),
            approximate: options.rules == Rules::Approximate,
            formats: options.formats.clone(),
            ..Context::default()
        };
        let mut graph = Graph::new(context);
        let live = function.live();
        let mut classes: Vec<Option<Id>> = Vec::with_capacity(function.len());
        for id in function.ids() {
            let node = function.node(id);
            if !live[id.index()] && !matches!(node.kind, NodeKind::Input { .. }) {
                classes.push(None);
                continue;
            }
            let operands = function.operands(id).iter().filter_map(|o| classes[o.index()]).collect();
            graph.analysis.inserting = Some(id.index() as u32);
            classes.push(Some(graph.add(Term::new(node.kind.clone(), operands))));
        }
        graph.analysis.inserting = None;
        let limit = graph.total_size() + TERMS;
        graph.analysis.limit = Some(limit);
        let runner = Runner::<Term, Context>::new(Context::default())
            .with_egraph(graph)
            .with_iter_limit(ITERATIONS)
            .with_node_limit(limit)
            .with_time_limit(Duration::MAX)
            .with_scheduler(Bounded)
            .run(rules);
        Self { function, runner, classes }
    }

    pub fn graph(&self) -> &Graph {
        &self.runner.egraph
    }

    /// Whether the search reached a limit before the rewrite rules had found all expressions.
    pub fn limited(&self) -> bool {
        !matches!(self.runner.stop_reason, Some(StopReason::Saturated))
    }

    /// The number of times that each rewrite rule found a new expression.
    pub fn fired(&self) -> Vec<(String, usize)> {
        let mut fired: Vec<(String, usize)> = vec![(FOLDING.0.into(), self.graph().analysis.folded)];
        for iteration in &self.runner.iterations {
            fired.extend(iteration.applied.iter().map(|(rule, count)| (rule.to_string(), *count)));
        }
        fired.retain(|(_, count)| *count > 0);
        fired
    }

    /// Returns the function with the lowest cost, and the class of each of its nodes. The returned
    /// function contains no recipe whose key is in `banned`.
    pub fn extract(&self, options: &Options, banned: &BTreeSet<String>) -> (Function, Vec<Id>) {
        let graph = self.graph();
        let roots: Vec<Id> = self
            .function
            .outputs
            .iter()
            .filter_map(|o| self.classes[o.node.index()])
            .map(|id| graph.find(id))
            .collect();

        // The loop finds the classes that a result could need.
        let mut ids: BTreeSet<Id> = BTreeSet::new();
        let mut pending = roots.clone();
        while let Some(id) = pending.pop() {
            if ids.insert(id) {
                let terms = graph[id].nodes.iter();
                pending.extend(terms.flat_map(|term| term.children().iter().map(|&child| graph.find(child))));
            }
        }
        let places: HashMap<Id, usize> = ids.iter().enumerate().map(|(place, &id)| (id, place)).collect();
        let recipes = if options.recipes { recipes(graph) } else { HashMap::new() };
        let classes: Vec<Class> = ids
            .iter()
            .map(|&id| {
                let mut terms: Vec<Candidate> = graph[id]
                    .nodes
                    .iter()
                    .map(|term| {
                        let operands: Vec<Id> =
                            term.children().iter().map(|&child| graph.find(child)).collect();
                        let read = |&o: &Id| CostOperand {
                            ty: graph[o].data.ty(),
                            splat: graph[o].data.splat().is_some(),
                        };
                        let reads: Vec<CostOperand<'_>> = operands.iter().map(read).collect();
                        let cost = term
                            .op()
                            .map(|op| cost(&options.machine, op, &reads, graph[id].data.ty()).seconds);
                        Candidate {
                            kind: term.kind.clone(),
                            operands: operands.iter().map(|operand| places[operand]).collect(),
                            cost: cost.unwrap_or(0.0),
                        }
                    })
                    .collect();
                let parameter = recipes.get(&id).and_then(stored);
                if let Some(parameter) = parameter.filter(|parameter| !banned.contains(&parameter.key)) {
                    let kind = Arc::new(NodeKind::Parameter(parameter));
                    terms.push(Candidate { kind, operands: vec![], cost: 0.0 });
                }
                Class { id, terms }
            })
            .collect();

        let start = self.start(&classes, &places);
        let roots: Vec<usize> = roots.iter().map(|root| places[root]).collect();
        let extraction = Extraction::search(&classes, start, &roots);
        self.rebuild(&extraction, &roots)
    }

    /// Returns the choice of expressions with which the search for the lowest cost begins. For a
    /// class that contains nodes of the function, the search begins with the oldest of the nodes.
    /// For a class without nodes of the function, the search begins with the expression that has
    /// the cheapest critical path, which is the most expensive path through the operands. The first
    /// choice has no cycle, because the oldest node of a class depends only on older nodes.
    fn start(&self, classes: &[Class], places: &HashMap<Id, usize>) -> Vec<usize> {
        let graph = self.graph();
        let mut chosen: Vec<Option<usize>> = vec![None; classes.len()];
        for id in self.function.ids() {
            let Some(class) = self.classes[id.index()] else { continue };
            let Some(&place) = places.get(&graph.find(class)) else { continue };
            if chosen[place].is_none() {
                let node = self.function.node(id);
                let operands: Vec<usize> = self
                    .function
                    .operands(id)
                    .iter()
                    .filter_map(|o| self.classes[o.index()])
                    .map(|id| places.get(&graph.find(id)).copied().unwrap_or(usize::MAX))
                    .collect();
                let same = |term: &Candidate| *term.kind == node.kind && term.operands == operands;
                chosen[place] = classes[place].terms.iter().position(same);
            }
        }
        let mut path: Vec<f64> =
            chosen.iter().map(|c| if c.is_some() { 0.0 } else { f64::INFINITY }).collect();
        loop {
            let mut changed = false;
            for (place, class) in classes.iter().enumerate() {
                for (at, term) in class.terms.iter().enumerate() {
                    let below = term.operands.iter().map(|&operand| path[operand]).fold(0.0, f64::max);
                    if below + term.cost < path[place] {
                        path[place] = below + term.cost;
                        chosen[place] = Some(at);
                        changed = true;
                    }
                }
            }
            if !changed {
                return chosen.into_iter().map(Option::unwrap_or_default).collect();
            }
        }
    }

    fn rebuild(&self, extraction: &Extraction<'_>, roots: &[usize]) -> (Function, Vec<Id>) {
        let old = self.function;
        let mut function = Function::new(old.name.clone(), old.prefix.clone());
        let mut made: Vec<Option<NodeId>> = vec![None; extraction.classes.len()];
        let mut inputs: HashMap<usize, NodeId> = HashMap::new();
        let mut classes: Vec<Id> = Vec::new();
        for id in old.ids() {
            if let NodeKind::Input { index, .. } = old.node(id).kind {
                inputs.insert(index, function.push(old.node(id).clone(), &[]));
                classes.extend(self.classes[id.index()]);
            }
        }
        // The loop creates operands before the nodes that use them. A node that a rule created
        // without an origin gets the origin of its user.
        let mut pending: Vec<(usize, u32, bool)> = Vec::new();
        for (root, output) in roots.iter().zip(&old.outputs) {
            pending.push((*root, output.node.index() as u32, false));
            while let Some((place, user, ready)) = pending.pop() {
                if made[place].is_some() {
                    continue;
                }
                let class = &extraction.classes[place];
                let candidate = &class.terms[extraction.chosen[place]];
                let facts = &self.graph()[class.id].data;
                let origin = match facts.origin {
                    Origin::Node(at) | Origin::Near(at) => at,
                    Origin::Nowhere => user,
                };
                if !ready {
                    pending.push((place, user, true));
                    pending.extend(candidate.operands.iter().rev().map(|&operand| (operand, origin, false)));
                    continue;
                }
                if let NodeKind::Input { index, .. } = *candidate.kind {
                    made[place] = inputs.get(&index).copied();
                    continue;
                }
                let operands: Vec<NodeId> = candidate.operands.iter().filter_map(|&o| made[o]).collect();
                let from = old.node(NodeId::new(origin as usize));
                let axes = match facts.origin {
                    Origin::Node(_) => from.axes.clone(),
                    _ => Vec::new(),
                };
                let node = Node {
                    kind: (*candidate.kind).clone(),
                    types: facts.types.to_vec(),
                    axes,
                    provenance: from.provenance.clone(),
                };
                made[place] = Some(function.push(node, &operands));
                classes.push(class.id);
            }
            if let Some(node) = made[*root] {
                function.outputs.push(Output { node, ..output.clone() });
            }
        }
        (function, classes)
    }
}

/// Returns the cost of one call of a function, without the cost of the functions that the function calls.
pub(crate) fn function_cost(machine: &Machine, function: &Function) -> Cost {
    let mut sum = Cost::default();
    for (id, live) in function.ids().zip(function.live()) {
        if let (NodeKind::Op(op), true) = (&function.node(id).kind, live) {
            let operands = function.operands(id);
            let read = |&o: &NodeId| {
                let node = function.node(o);
                let splat =
                    matches!(&node.kind, NodeKind::Op(Op::Constant(c)) if c.value.as_splat().is_some());
                CostOperand { ty: node.ty(), splat }
            };
            let reads: Vec<CostOperand<'_>> = operands.iter().map(read).collect();
            sum += cost(machine, op, &reads, function.node(id).ty());
        }
    }
    sum
}
