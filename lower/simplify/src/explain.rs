//! Explains which rewrite rules replaced a recorded node in the simplification.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;

use egg::{ENodeOrVar, Id};
use ops::{CostOperand, ElementType, Op, TensorType, Value};
use targets::Machine;
use trace::{NodeId, NodeKind, Parameter, Trace};

use crate::cost::cost;
use crate::facts::{FOLDING, Graph};
use crate::function::Saturated;
use crate::rules::{Rule, RuleKind, Site, Tree};
use crate::{Options, Rules, Term};

/// The chain of rewrite rules from a recorded node to its replacement.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The node before simplification.
    pub recorded: String,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub rule: &'static str,
    pub equation: String,
    /// The expression that replaces the node after the application of one rewrite rule.
    pub term: String,
    pub ty: TensorType,
    /// Whether the expression computes the same values as the recorded node.
    pub check: Check,
}

/// A comparison of an expression with the recorded node on random inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Check {
    Equal,
    Different,
    /// They differ by rounding, as the set `approximate` allows: the largest difference divided by the
    /// largest value.
    Rounded(f64),
    /// The evaluator would take too long: the multiplications and additions it would need.
    TooLarge(f64),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The trace has no function with this name.
    #[error("the trace has no function `{name}`; its functions are {known:?}")]
    Function { name: String, known: Vec<String> },
    /// The simplified function has no node with this number.
    #[error("the simplified function `{function}` has no node %{node}; the function has {count} nodes")]
    Node { function: String, node: usize, count: usize },
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "recorded  {}", self.recorded)?;
        if self.steps.is_empty() {
            writeln!(f, "no rule changed it")?;
        }
        for Step { rule, equation, term, ty, check } in &self.steps {
            let check = match check {
                Check::Equal => "evaluated on random inputs: equal".into(),
                Check::Different => "evaluated on random inputs: NOT EQUAL".into(),
                Check::Rounded(difference) => {
                    format!("evaluated on random inputs: equal within {difference:.1e} of the largest number")
                }
                Check::TooLarge(flops) => {
                    format!("not evaluated: {flops:.1e} operations; try a small configuration")
                }
            };
            writeln!(f, "{rule}: {equation}\n       =  {term} : {ty}\n          {check}")?;
        }
        Ok(())
    }
}

/// The largest number of arithmetic operations that the evaluator may compute for one explanation.
const FLOPS: f64 = 3e8;

pub fn explain(
    trace: &Trace,
    options: &Options,
    function: &str,
    node: usize,
) -> Result<Explanation, ExplainError> {
    let Some(at) = trace.functions.iter().position(|f| f.name == function) else {
        let known = trace.functions.iter().map(|f| f.name.clone()).collect();
        return Err(ExplainError::Function { name: function.into(), known });
    };
    if options.rules == Rules::Off {
        let count = trace.functions[at].len();
        if node >= count {
            return Err(ExplainError::Node { function: function.into(), node, count });
        }
        return Ok(Explanation { recorded: format!("%{node}"), steps: vec![] });
    }
    let rules = options.rules.all();
    let (all, _, banned) = crate::saturate(trace, options);
    let saturated = &all[at];
    let (made, classes) = saturated.extract(options, &banned);
    let count = made.len();
    if node >= count {
        return Err(ExplainError::Node { function: function.into(), node, count });
    }
    let explainer = Explainer { saturated, graph: saturated.graph(), rules: &rules };
    // A node that a rule created has no recorded node. The function then explains the next node
    // after it that has a recorded node.
    let mut at = node;
    while explainer.recorded(classes[at]).is_none() {
        let users = made.ids().skip(at + 1).filter(|&id| made.operands(id).contains(&NodeId::new(at)));
        match users.map(NodeId::index).next() {
            Some(user) => at = user,
            None => break,
        }
    }
    Ok(explainer.explanation(classes[at], &made.node(NodeId::new(at)).kind, at, &made, &classes))
}

struct Explainer<'a> {
    saturated: &'a Saturated<'a>,
    graph: &'a Graph,
    rules: &'a [Rule],
}

impl Explainer<'_> {
    /// The oldest recorded node in a class (expressions that compute the same values).
    fn recorded(&self, class: Id) -> Option<usize> {
        let class = self.graph.find(class);
        self.saturated.classes.iter().position(|of| of.is_some_and(|id| self.graph.find(id) == class))
    }

    fn term(&self, node: usize) -> Term {
        let id = NodeId::new(node);
        let function = self.saturated.function;
        let operands = function.operands(id).into_iter().filter_map(|o| self.saturated.classes[o.index()]);
        Term::new(function.node(id).kind.clone(), operands.map(|o| self.graph.find(o)).collect())
    }

    fn explanation(
        &self,
        class: Id,
        kind: &NodeKind,
        node: usize,
        made: &trace::Function,
        classes: &[Id],
    ) -> Explanation {
        let class = self.graph.find(class);
        let Some(first) = self.recorded(class) else {
            return Explanation { recorded: "nothing: a constant".into(), steps: vec![] };
        };
        let start = self.term(first);
        let operands =
            made.operands(NodeId::new(node)).iter().map(|o| self.graph.find(classes[o.index()])).collect();
        let goal = Term::new(kind.clone(), operands);
        let recorded = format!("%{first} = {}", self.show(&start, 1));
        // A parameter with a recipe is no expression of the e-graph; it replaces such an
        // expression.
        let stored = match kind {
            NodeKind::Parameter(Parameter { recipe: Some(_), .. }) => start.kind != goal.kind,
            _ => false,
        };
        let mut steps = self.path(class, &start, (!stored).then_some(&goal));
        if stored {
            steps.push(("recipe", "computed once, when the archive is written".into(), goal));
        }
        let mut values = Values::new(self);
        let steps = steps.into_iter().map(|(rule, equation, term)| Step {
            rule,
            equation,
            ty: self.graph[class].data.ty().clone(),
            check: values.compare(class, &start, &term),
            term: self.show(&term, 2),
        });
        Explanation { recorded, steps: steps.collect() }
    }

    /// The shortest chain of rules from `start` to an equal expression: `goal`, or any that `bake` can
    /// compute.
    fn path(&self, class: Id, start: &Term, goal: Option<&Term>) -> Vec<(&'static str, String, Term)> {
        let mut from: HashMap<Term, (Term, &'static str, String)> = HashMap::new();
        let mut queue = VecDeque::from([start.clone()]);
        let mut seen = BTreeSet::from([start.clone()]);
        let done = |term: &Term| goal.is_none_or(|goal| goal == term);
        let mut end = None;
        while let Some(term) = queue.pop_front() {
            if done(&term) {
                end = Some(term);
                break;
            }
            for (rule, equation, next) in self.neighbours(class, &term) {
                if seen.insert(next.clone()) {
                    from.insert(next.clone(), (term.clone(), rule, equation));
                    queue.push_back(next);
                }
            }
        }
        let mut steps = Vec::new();
        let mut at = match (end, goal) {
            (Some(end), _) => end,
            // The expression was in another class, which was later merged with this class.
            (None, Some(goal)) => {
                return vec![("congruence", "its operands are equal".into(), goal.clone())];
            }
            (None, None) => return steps,
        };
        while let Some((before, rule, equation)) = from.get(&at) {
            steps.push((*rule, equation.clone(), at.clone()));
            at = before.clone();
        }
        steps.reverse();
        steps
    }

    /// Returns the expressions that one application of a rewrite rule produces from `term`.
    fn neighbours(&self, class: Id, term: &Term) -> Vec<(&'static str, String, Term)> {
        let mut found = Vec::new();
        let mut add = |rule: &Rule, tree: &Tree| match self.resolve(tree) {
            Some(Resolved::Term(next))
                if self.graph.lookup(next.clone()).map(|id| self.graph.find(id)) == Some(class) =>
            {
                found.push((rule.name, rule.equation(), next));
            }
            // The rule replaces the operation by one of its operands. The recorded nodes of this
            // operand are in the same class now.
            Some(Resolved::Class(same)) if same == class => {
                let nodes = (0..self.saturated.classes.len()).filter(|&node| {
                    self.saturated.classes[node].is_some_and(|id| self.graph.find(id) == class)
                });
                let terms = nodes.map(|node| self.term(node)).chain(self.graph[class].nodes.iter().cloned());
                found.extend(terms.map(|next| (rule.name, rule.equation(), next)));
            }
            _ => {}
        };
        for rule in self.rules {
            match rule.how {
                RuleKind::Attribute { op, forms, .. } => {
                    let Some(own) = term.op().filter(|own| own.name() == op) else { continue };
                    let site = Site::new(self.graph, own, class, &term.operands);
                    forms(&site).iter().for_each(|tree| add(rule, tree));
                }
                RuleKind::Text { left, right, .. } => {
                    let (Ok(left), Ok(right)) =
                        (left.parse::<egg::Pattern<Term>>(), right.parse::<egg::Pattern<Term>>())
                    else {
                        continue;
                    };
                    let rewrite = rule.rewrite();
                    let Some(matches) = rewrite.searcher.search_eclass(self.graph, class) else { continue };
                    for found in &matches.substs {
                        if fits(&left, term, found) {
                            add(rule, &instantiate(&right, right.ast.root(), found));
                        }
                    }
                }
            }
        }
        if self.graph[class].data.constant.is_some() {
            let constants =
                self.graph[class].nodes.iter().filter(|term| matches!(term.op(), Some(Op::Constant(_))));
            found.extend(constants.map(|next| (FOLDING.0, FOLDING.1.into(), next.clone())));
        }
        found
    }

    fn resolve(&self, tree: &Tree) -> Option<Resolved> {
        match tree {
            Tree::Class(class) => Some(Resolved::Class(self.graph.find(*class))),
            Tree::Op(op, operands) => {
                let operand = |tree: &Tree| match self.resolve(tree)? {
                    Resolved::Class(class) => Some(class),
                    Resolved::Term(term) => self.graph.lookup(term).map(|id| self.graph.find(id)),
                };
                let operands = operands.iter().map(operand).collect::<Option<_>>()?;
                Some(Resolved::Term(Term::new(NodeKind::Op(op.clone()), operands)))
            }
        }
    }

    /// For example `narrow axis=2 start=0 length=4 (linear (%3, …))`, with recorded nodes by number.
    fn show(&self, term: &Term, depth: usize) -> String {
        let mut text = String::new();
        match &*term.kind {
            NodeKind::Op(op) => op.print(&mut text),
            NodeKind::Parameter(parameter) => {
                text = format!("parameter \"{}\"", parameter.key);
                if let Some(recipe) = &parameter.recipe {
                    text.push_str(" = ");
                    recipe.print(&mut text);
                }
            }
            NodeKind::Input { name, .. } => text = format!("input \"{name}\""),
            NodeKind::Call { prefix, .. } => text = format!("call prefix=\"{prefix}\""),
            NodeKind::Result { index } => text = format!("result {index}"),
        }
        let operand = |&class: &Id| match (self.recorded(class), self.graph[class].nodes.first()) {
            (Some(node), _) => format!("%{node}"),
            (None, Some(term)) if depth > 0 => self.show(term, depth - 1),
            _ => "…".into(),
        };
        if !term.operands.is_empty() {
            let operands: Vec<String> = term.operands.iter().map(operand).collect();
            text.push_str(&format!(" ({})", operands.join(", ")));
        }
        text
    }
}

enum Resolved {
    Class(Id),
    Term(Term),
}

/// Whether `left`, which matched a class, also matches the expression `term` of the class.
fn fits(left: &egg::Pattern<Term>, term: &Term, found: &egg::Subst) -> bool {
    let ENodeOrVar::ENode(root) = &left.ast[left.ast.root()] else { return true };
    root.kind == term.kind
        && root.operands.iter().zip(&term.operands).all(|(operand, class)| match &left.ast[*operand] {
            ENodeOrVar::Var(variable) => found.get(*variable) == Some(class),
            ENodeOrVar::ENode(_) => true,
        })
}

fn instantiate(right: &egg::Pattern<Term>, at: Id, found: &egg::Subst) -> Tree {
    match &right.ast[at] {
        ENodeOrVar::Var(variable) => Tree::Class(found[*variable]),
        ENodeOrVar::ENode(term) => {
            let operands = term.operands.iter().map(|&operand| instantiate(right, operand, found)).collect();
            match term.op() {
                Some(op) => Tree::Op(op.clone(), operands),
                None => unreachable!("patterns have operations only"),
            }
        }
    }
}

/// The values of expressions on random inputs.
struct Values<'a> {
    explainer: &'a Explainer<'a>,
    terms: HashMap<Id, Term>,
    known: HashMap<Id, Value>,
    flops: f64,
}

impl<'a> Values<'a> {
    fn new(explainer: &'a Explainer<'a>) -> Self {
        Self { explainer, terms: founded(explainer), known: HashMap::new(), flops: 0.0 }
    }

    fn compare(&mut self, class: Id, recorded: &Term, term: &Term) -> Check {
        let ty = self.explainer.graph[class].data.ty().clone();
        let approximate = self.explainer.graph.analysis.approximate;
        match (self.value(recorded, &ty), self.value(term, &ty)) {
            (Some(a), Some(b)) if a.ty == b.ty && a.to_bytes() == b.to_bytes() => Check::Equal,
            (Some(a), Some(b)) if approximate && a.ty == b.ty => {
                let largest = a.data.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
                let pairs = a.data.iter().zip(&b.data);
                Check::Rounded(pairs.fold(0.0, |most: f64, (a, b)| most.max((a - b).abs())) / largest)
            }
            (Some(_), Some(_)) => Check::Different,
            _ => Check::TooLarge(self.flops),
        }
    }

    /// Returns the value of an expression; `None` if the evaluation takes too long.
    fn value(&mut self, term: &Term, ty: &TensorType) -> Option<Value> {
        match &*term.kind {
            NodeKind::Op(op) => {
                let operands: Vec<Value> =
                    term.operands.iter().map(|&id| self.class(id)).collect::<Option<_>>()?;
                let operands: Vec<&Value> = operands.iter().collect();
                let types: Vec<&TensorType> = operands.iter().map(|value| &value.ty).collect();
                let reads: Vec<CostOperand<'_>> =
                    types.iter().map(|&ty| CostOperand { ty, splat: false }).collect();
                self.flops += cost(&Machine::CPU, op, &reads, ty).flops + ty.count() as f64;
                if self.flops > FLOPS {
                    return None;
                }
                // The type is inferred again, to check that the rule has not changed it.
                let inferred = op.infer(&types).ok()?;
                Some(op.eval(&operands, &inferred))
            }
            NodeKind::Parameter(parameter) => {
                self.flops += ty.count() as f64;
                let source = |key: &str| {
                    let source = parameter.sources().into_iter().find(|(name, _)| *name == key);
                    source.map(|(_, ty)| random(ty, key.bytes().fold(7, mix)))
                };
                if self.flops > FLOPS {
                    return None;
                }
                parameter.value(&source).ok()
            }
            kind => {
                self.flops += ty.count() as f64;
                let seed = match kind {
                    NodeKind::Result { index } => mix(usize::from(term.operands[0]) as u64, *index as u8),
                    NodeKind::Input { index, .. } => mix(11, *index as u8),
                    _ => 13,
                };
                (self.flops <= FLOPS).then(|| random(ty, seed))
            }
        }
    }

    fn class(&mut self, class: Id) -> Option<Value> {
        // The loop computes operands first. It uses a list and no recursion, because the graph can
        // be deeper than the stack.
        let class = self.explainer.graph.find(class);
        let mut pending = vec![class];
        while let Some(&at) = pending.last() {
            let term = self.terms.get(&at)?.clone();
            let operands = term.operands.iter().map(|&id| self.explainer.graph.find(id));
            let unknown: Vec<Id> = operands.filter(|id| !self.known.contains_key(id)).collect();
            if self.known.contains_key(&at) {
                pending.pop();
            } else if unknown.is_empty() {
                let ty = self.explainer.graph[at].data.ty().clone();
                let value = self.value(&term, &ty)?;
                self.known.insert(at, value);
            } else {
                pending.extend(unknown);
            }
        }
        self.known.get(&class).cloned()
    }
}

/// Chooses one expression for each class, so that no class depends on itself: the oldest recorded node, or
/// else the first expression whose operands have a choice.
fn founded(explainer: &Explainer<'_>) -> HashMap<Id, Term> {
    let graph = explainer.graph;
    let mut terms: HashMap<Id, Term> = HashMap::new();
    for (node, class) in explainer.saturated.classes.iter().enumerate() {
        if let Some(class) = class {
            terms.entry(graph.find(*class)).or_insert_with(|| explainer.term(node));
        }
    }
    let mut ids: Vec<Id> = graph.classes().map(|class| class.id).collect();
    ids.sort_unstable();
    loop {
        let known: HashSet<Id> = terms.keys().copied().collect();
        for &id in ids.iter().filter(|id| !known.contains(id)) {
            let ready = |term: &&Term| term.operands.iter().all(|&o| terms.contains_key(&graph.find(o)));
            if let Some(term) = graph[id].nodes.iter().find(ready) {
                terms.insert(id, term.clone());
            }
        }
        if terms.len() == known.len() {
            return terms;
        }
    }
}

fn mix(state: u64, byte: u8) -> u64 {
    let mut z = (state ^ u64::from(byte)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// Floats around zero, and small positive integers, because integers are positions and token ids.
fn random(ty: &TensorType, seed: u64) -> Value {
    let mut state = seed;
    let element = ty.element;
    Value::from_fn(ty.clone(), |_| {
        state = mix(state, 1);
        let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
        match element {
            ElementType::I1 => (state >> 20 & 1) as f64,
            ElementType::I32 | ElementType::I8 | ElementType::I4 => (state >> 20 & 7) as f64,
            _ => 4.0 * unit - 2.0,
        }
    })
}
