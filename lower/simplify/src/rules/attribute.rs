//! Matches and applies rewrite rules that depend on attributes, because patterns of the crate `egg`
//! cannot match attributes.

use std::borrow::Cow;

use egg::{Applier, Id, PatternAst, SearchMatches, Searcher, Subst, Symbol, Var};
use ops::{Op, TensorType, WeightFormat};
use trace::{NodeKind, Parameter, format_of};

use crate::Term;
use crate::facts::{Context, Facts, Graph};

/// A use of an operation in the e-graph, and the properties of the classes of its operands and its result.
pub struct Site<'a> {
    graph: &'a Graph,
    pub op: &'a Op,
    pub class: Id,
    pub operands: &'a [Id],
}

/// An expression that a rewrite rule adds to the e-graph because the expression equals a use of an operation.
#[derive(Clone, Debug)]
pub enum Tree {
    Class(Id),
    Op(Op, Vec<Tree>),
}

impl Tree {
    pub fn op(op: impl Into<Op>, operands: impl Into<Vec<Tree>>) -> Self {
        Self::Op(op.into(), operands.into())
    }
}

impl From<Id> for Tree {
    fn from(class: Id) -> Self {
        Self::Class(class)
    }
}

impl<'a> Site<'a> {
    /// Creates a use of the operation `op` in the e-graph, whose result is in `class`.
    pub fn new(graph: &'a Graph, op: &'a Op, class: Id, operands: &'a [Id]) -> Self {
        Self { graph, op, class, operands }
    }

    /// Returns the properties of a class of equal expressions.
    pub fn facts(&self, class: Id) -> &'a Facts {
        &self.graph[class].data
    }

    pub fn ty(&self, class: Id) -> &'a TensorType {
        self.facts(class).ty()
    }

    pub fn result(&self) -> &'a TensorType {
        self.ty(self.class)
    }

    pub fn ops(&self, class: Id) -> impl Iterator<Item = (&'a Op, &'a [Id])> {
        let terms = self.graph[class].nodes.iter();
        terms.filter_map(|term| term.op().map(|op| (op, term.operands.as_slice())))
    }

    /// Returns the weight that a class represents; `None` if the class does not contain a weight.
    pub fn parameter(&self, class: Id) -> Option<&'a Parameter> {
        self.graph[class].nodes.iter().find_map(|term| match &*term.kind {
            NodeKind::Parameter(parameter) => Some(parameter),
            _ => None,
        })
    }

    /// Returns the storage format of a weight, if a tensor-name pattern selects a quantized format
    /// for the weight.
    pub fn format(&self, class: Id) -> Option<WeightFormat> {
        let parameter = self.parameter(class)?;
        let (key, _) = *parameter.sources().first()?;
        format_of(&self.graph.analysis.formats, key)
    }

    /// Returns every class that contains an operation with this name, together with the operation
    /// and its operands; the oldest class comes first.
    pub fn uses(&self, name: &'static str) -> Vec<(Id, &'a Op, &'a [Id])> {
        let mut uses: Vec<(Id, &Op, &[Id])> = Vec::new();
        for class in self.graph.classes_for_op(&name).into_iter().flatten() {
            let named = self.ops(class).filter(|(op, _)| op.name() == name);
            uses.extend(named.map(|(op, operands)| (class, op, operands)));
        }
        uses.sort_by_key(|(class, ..)| (self.facts(*class).origin, *class));
        uses
    }
}

/// Finds every class that contains an operation with this name.
pub(super) struct Uses {
    pub op: &'static str,
}

impl Searcher<Term, Context> for Uses {
    fn search_eclass_with_limit(
        &self,
        graph: &Graph,
        class: Id,
        limit: usize,
    ) -> Option<SearchMatches<'_, Term>> {
        let found = limit > 0 && graph[class].nodes.iter().any(|term| term.name() == self.op);
        found.then(|| SearchMatches {
            eclass: class,
            substs: vec![Subst::default()],
            ast: None::<Cow<'_, PatternAst<Term>>>,
        })
    }

    fn search_with_limit(&self, graph: &Graph, limit: usize) -> Vec<SearchMatches<'_, Term>> {
        let mut classes: Vec<Id> = graph.classes_for_op(&self.op).into_iter().flatten().collect();
        classes.sort_unstable();
        classes.into_iter().filter_map(|class| self.search_eclass_with_limit(graph, class, limit)).collect()
    }

    fn vars(&self) -> Vec<Var> {
        vec![]
    }
}

/// The approximate largest number of expressions that a single application of a rewrite rule adds to a class.
const FORMS: usize = 1000;

/// Adds the expressions that a rewrite rule finds for each use of an operation.
pub(super) struct Forms {
    pub op: &'static str,
    pub forms: fn(&Site<'_>) -> Vec<Tree>,
}

impl Applier<Term, Context> for Forms {
    fn apply_one(
        &self,
        graph: &mut Graph,
        class: Id,
        _: &Subst,
        _: Option<&PatternAst<Term>>,
        rule: Symbol,
    ) -> Vec<Id> {
        let class = graph.find(class);
        let mut found = Vec::new();
        for term in &graph[class].nodes {
            let Some(op) = term.op().filter(|op| op.name() == self.op) else { continue };
            let site = Site::new(graph, op, class, &term.operands);
            found.extend((self.forms)(&site));
            if found.len() > FORMS {
                break;
            }
        }
        let mut changed = Vec::new();
        for tree in found {
            if !Context::has_room(graph) {
                break;
            }
            let other = add(graph, tree);
            if graph.union_trusted(class, other, rule) {
                changed.push(class);
            }
        }
        changed
    }
}

fn add(graph: &mut Graph, tree: Tree) -> Id {
    match tree {
        Tree::Class(class) => class,
        Tree::Op(op, operands) => {
            let operands = operands.into_iter().map(|operand| add(graph, operand)).collect();
            graph.add(Term::new(NodeKind::Op(op), operands))
        }
    }
}
