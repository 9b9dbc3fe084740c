//! The properties of a class of equal expressions: its type, its constant value, and the node from
//! which the class originates.

use std::collections::BTreeMap;
use std::sync::Arc;

use egg::{Analysis, DidMerge, EGraph, Id};
use ops::ops::Constant;
use ops::{Literal, Op, TensorType, Value, WeightFormat};
use trace::NodeKind;

use crate::Term;

/// The name and the equation of the rule for constant folding, which evaluates an operation whose operands
/// are constants. The tables of rewrite rules do not contain the rule for constant folding.
pub(crate) const FOLDING: (&str, &str) = ("constant folding", "f(constants) = a constant");

pub type Graph = EGraph<Term, Context>;

/// Contains types that operations do not determine, and limits for the rewrite rules.
#[derive(Clone, Debug, Default)]
pub struct Context {
    pub inputs: Vec<TensorType>,
    /// For each function of the trace, the types of its results.
    pub results: Vec<Arc<[TensorType]>>,
    /// The index of the node that Tracewright currently inserts into the e-graph; `None` if the
    /// inserted expression is not a node of the function.
    pub inserting: Option<u32>,
    /// The number of constants that constant folding has computed.
    pub folded: usize,
    /// The largest number of expressions in the e-graph, if there is a limit. A limit is necessary because a
    /// single application of a rewrite rule can find more expressions than fit into memory.
    pub limit: Option<usize>,
    /// Whether rewrite rules may change the rounding of a result. If rules may change the rounding,
    /// two expressions for the same constant can have different results.
    pub approximate: bool,
    /// The storage formats of weights, by the tensor-name patterns of the weights' keys.
    pub formats: Arc<BTreeMap<String, WeightFormat>>,
}

impl Context {
    /// Whether the e-graph contains fewer expressions than its limit.
    pub(crate) fn has_room(graph: &Graph) -> bool {
        graph.analysis.limit.is_none_or(|limit| graph.total_size() <= limit)
    }
}

#[derive(Clone, Debug)]
pub struct Facts {
    /// The type of the expressions in the class. A class that contains a call has one type for each
    /// result of the call.
    pub types: Arc<[TensorType]>,
    /// The value of all expressions in the class, if the value is constant.
    pub constant: Option<Literal>,
    /// The node of the function from which the class originates.
    pub origin: Origin,
}

/// The node of the function from which a class of equal expressions originates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Node(u32),
    /// A rewrite rule derived the class from the node with the index in this field.
    Near(u32),
    /// A rewrite rule created the class, and the class contains no node of the function.
    Nowhere,
}

impl Facts {
    /// Returns the type of the expressions in a class that contains no call.
    pub fn ty(&self) -> &TensorType {
        &self.types[0]
    }

    /// Returns the value of all elements, if the class is a constant whose elements are all equal.
    pub fn splat(&self) -> Option<f64> {
        let literal = self.constant.as_ref()?;
        Some(literal.ty().element.decode(literal.as_splat()?))
    }
}

/// The largest number of elements in a constant that constant folding computes, unless all elements
/// of the constant are equal.
const FOLDED: usize = 4096;
/// Tracewright adds an expression for the constant value of a class only if the constant has at
/// most this number of elements, or if all its elements are equal. The module would contain a
/// larger constant as data, instead of computing the constant.
const STORED: usize = 64;

impl Analysis<Term> for Context {
    type Data = Facts;

    fn make(graph: &mut Graph, term: &Term, _: Id) -> Facts {
        let of = |id: &Id| &graph[*id].data;
        let operands: Vec<&Facts> = term.operands.iter().map(of).collect();
        let types: Arc<[TensorType]> = match &*term.kind {
            NodeKind::Input { index, .. } => [graph.analysis.inputs[*index].clone()].into(),
            NodeKind::Parameter(parameter) => [parameter.ty.clone()].into(),
            NodeKind::Call { function, .. } => graph.analysis.results[function.0 as usize].clone(),
            NodeKind::Result { index } => [operands[0].types[*index].clone()].into(),
            NodeKind::Op(op) => {
                let types: Vec<&TensorType> = operands.iter().map(|facts| facts.ty()).collect();
                match op.infer(&types) {
                    Ok(ty) => [ty].into(),
                    Err(error) => unreachable!("a rule made an ill-typed term: {error}"),
                }
            }
        };
        let constant = term.op().and_then(|op| fold(op, &operands, &types[0]));
        let near = |facts: &&Facts| match facts.origin {
            Origin::Node(at) | Origin::Near(at) => Some(at),
            Origin::Nowhere => None,
        };
        let origin = match graph.analysis.inserting {
            Some(at) => Origin::Node(at),
            None => operands.iter().filter_map(near).max().map_or(Origin::Nowhere, Origin::Near),
        };
        Facts { types, constant, origin }
    }

    fn merge(&mut self, a: &mut Facts, b: Facts) -> DidMerge {
        assert_eq!(a.types, b.types, "a rule changed a type");
        let mut changed = DidMerge(false, false);
        match (&a.constant, b.constant) {
            (None, Some(constant)) => {
                a.constant = Some(constant);
                changed.0 = true;
            }
            (Some(_), None) => changed.1 = true,
            (Some(a), Some(b)) => {
                let bytes = |literal: &Literal| literal.to_value().to_bytes();
                assert!(self.approximate || *a == b || bytes(a) == bytes(&b), "a rule changed a value");
            }
            (None, None) => {}
        }
        changed.0 |= b.origin < a.origin;
        changed.1 |= a.origin < b.origin;
        a.origin = a.origin.min(b.origin);
        changed
    }

    fn modify(graph: &mut Graph, id: Id) {
        let Some(literal) = &graph[id].data.constant else { return };
        if literal.as_splat().is_none() && literal.ty().count() > STORED {
            return;
        }
        if graph[id].nodes.iter().any(|term| matches!(term.op(), Some(Op::Constant(_)))) {
            return;
        }
        let value = literal.clone();
        let constant = graph.add(Term::new(NodeKind::Op(Constant { value }.into()), vec![]));
        graph.union_trusted(id, constant, FOLDING.0);
        graph.analysis.folded += 1;
    }
}

/// Returns the value of an operation whose operands are constants.
fn fold(op: &Op, operands: &[&Facts], ty: &TensorType) -> Option<Literal> {
    if let Op::Constant(constant) = op {
        return Some(constant.value.clone());
    }
    let known: Vec<&Literal> = operands.iter().map(|facts| facts.constant.as_ref()).collect::<Option<_>>()?;
    let value = if ty.count() <= FOLDED && known.iter().all(|literal| literal.ty().count() <= FOLDED) {
        let values: Vec<Value> = known.iter().map(|literal| literal.to_value()).collect();
        op.eval(&values.iter().collect::<Vec<_>>(), ty)
    } else {
        // If all elements of the operands are equal, an elementwise operation computes equal elements, so one
        // element is enough.
        if !op.is_map() && !op.is_view() && !matches!(op, Op::Permute(_)) {
            return None;
        }
        let scalar = |literal: &&Literal| {
            let one = TensorType::new(literal.ty().element, []);
            Some(Literal::splat_bits(one, literal.as_splat()?).to_value())
        };
        let values: Vec<Value> = known.iter().map(scalar).collect::<Option<_>>()?;
        if op.is_map() {
            let one = TensorType::new(ty.element, []);
            op.eval(&values.iter().collect::<Vec<_>>(), &one)
        } else {
            values.into_iter().next()?
        }
    };
    let bits = |x: &f64| ty.element.encode(*x);
    match value.data.first().map(bits) {
        Some(first) if value.data.iter().all(|x| bits(x) == first) => {
            Some(Literal::splat_bits(ty.clone(), first))
        }
        _ => Some(Literal::from_value(&value)),
    }
}
