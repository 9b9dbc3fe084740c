//! A [`Function`] is a directed acyclic graph (DAG) of nodes. Each edge of the graph contains an
//! index, which is the position of an operand in the list of a node's operands.

use std::sync::Arc;

use ops::{InferError, Op, TensorType};
use petgraph::Direction::Incoming;
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::EdgeRef;

use crate::Parameter;
use crate::axis::AxisName;
use crate::signature::{Argument, Role, Signature};

/// The index in its function, which is also the position in topological order.
pub type NodeId = NodeIndex<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// The field of the network, and the line of Rust code, that declare a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Provenance {
    /// The field path of the declaration in the model: `model.layers.*.self_attn.q_proj`.
    pub path: Arc<str>,
    /// The path of the Rust file, relative to the parent folder of the file's crate: `models/src/llama.rs`.
    pub file: Arc<str>,
    pub line: u32,
}

impl Provenance {
    pub fn new(path: &str, file: &str, line: u32) -> Self {
        Self { path: path.into(), file: file.into(), line }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NodeKind {
    Input {
        index: usize,
        name: String,
        /// The role in an entry point.
        role: Role,
    },
    Parameter(Parameter),
    Op(Op),
    Call {
        function: FunctionId,
        prefix: String,
    },
    /// The only operand is the call.
    Result {
        index: usize,
    },
}

impl NodeKind {
    pub fn input(index: usize, name: impl Into<String>) -> Self {
        Self::Input { index, name: name.into(), role: Role::Plain }
    }
}

/// A node of a function: the node's kind, its type, and the place in the network that declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub kind: NodeKind,
    /// One type, or one for each result of a call.
    pub types: Vec<TensorType>,
    /// Empty if unknown.
    pub axes: Vec<AxisName>,
    pub provenance: Provenance,
}

impl Node {
    /// Not for calls.
    pub fn ty(&self) -> &TensorType {
        &self.types[0]
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    pub name: String,
    /// The role in an entry point.
    pub role: Role,
    pub node: NodeId,
}

impl Output {
    pub fn new(name: impl Into<String>, node: NodeId) -> Self {
        Self { name: name.into(), role: Role::Plain, node }
    }
}

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    /// The prefix of parameter keys, such as `model.layers.*`, which calls replace; empty for entry points.
    pub prefix: String,
    pub outputs: Vec<Output>,
    /// An edge's weight is the operand's position, because petgraph lists edges in reverse order of
    /// insertion.
    graph: DiGraph<Node, u32>,
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, &self.prefix, &self.outputs) == (&other.name, &other.prefix, &other.outputs)
            && self.len() == other.len()
            && self.ids().all(|id| self.node(id) == other.node(id) && self.operands(id) == other.operands(id))
    }
}

impl Function {
    pub fn new(name: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self { name: name.into(), prefix: prefix.into(), outputs: Vec::new(), graph: DiGraph::new() }
    }

    /// The operands must exist already, so that the order of nodes is topological.
    pub fn push(&mut self, node: Node, operands: &[NodeId]) -> NodeId {
        let id = self.graph.add_node(node);
        for (position, &operand) in operands.iter().enumerate() {
            self.graph.add_edge(operand, id, position as u32);
        }
        id
    }

    pub fn len(&self) -> usize {
        self.graph.node_count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Operands come before their node.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.len()).map(NodeId::new)
    }

    pub fn node(&self, id: NodeId) -> &Node {
        &self.graph[id]
    }

    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.graph[id]
    }

    pub fn any_operand(&self, id: NodeId, is_like: impl FnMut(NodeId) -> bool) -> bool {
        self.graph.neighbors_directed(id, Incoming).any(is_like)
    }

    /// In the operation's order.
    pub fn operands(&self, id: NodeId) -> Vec<NodeId> {
        let edges = self.graph.edges_directed(id, Incoming);
        let mut operands = vec![NodeId::end(); edges.clone().count()];
        edges.for_each(|edge| operands[*edge.weight() as usize] = edge.source());
        operands
    }

    /// The positions at the edges to a node, ascending. In a valid function they are 0, 1, ….
    pub(crate) fn positions(&self, id: NodeId) -> Vec<u32> {
        let mut positions: Vec<u32> = self.graph.edges_directed(id, Incoming).map(|e| *e.weight()).collect();
        positions.sort_unstable();
        positions
    }

    pub fn inputs(&self) -> Vec<(&str, &TensorType)> {
        let mut inputs: Vec<_> = self
            .ids()
            .filter_map(|id| match &self.node(id).kind {
                NodeKind::Input { index, name, .. } => Some((*index, name.as_str(), self.node(id).ty())),
                _ => None,
            })
            .collect();
        inputs.sort_by_key(|&(index, ..)| index);
        inputs.into_iter().map(|(_, name, ty)| (name, ty)).collect()
    }

    pub fn output_types(&self) -> Vec<&TensorType> {
        self.outputs.iter().map(|output| self.node(output.node).ty()).collect()
    }

    /// Returns the weights that the function reads directly, in the order of their first use.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.ids().filter_map(|id| match &self.node(id).kind {
            NodeKind::Parameter(parameter) => Some(parameter),
            _ => None,
        })
    }

    /// For each node, whether a result depends on it.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.len()];
        self.outputs.iter().for_each(|o| live[o.node.index()] = true);
        for id in self.ids().rev() {
            if live[id.index()] {
                self.graph.neighbors_directed(id, Incoming).for_each(|o| live[o.index()] = true);
            }
        }
        live
    }
}

impl Function {
    pub fn signature(&self) -> Signature {
        let argument = |name: &str, role, id| {
            let node = self.node(id);
            Argument { name: name.into(), role, ty: node.ty().clone(), axes: node.axes.clone() }
        };
        let mut arguments: Vec<(usize, Argument)> = self
            .ids()
            .filter_map(|id| match &self.node(id).kind {
                NodeKind::Input { index, name, role } => Some((*index, argument(name, *role, id))),
                _ => None,
            })
            .collect();
        arguments.sort_by_key(|(index, _)| *index);
        Signature {
            name: self.name.clone(),
            arguments: arguments.into_iter().map(|(_, argument)| argument).collect(),
            results: self.outputs.iter().map(|o| argument(&o.name, o.role, o.node)).collect(),
        }
    }
}

/// Appends nodes that are all declared at the same place.
///
/// ```
/// use ops::ops::{Unary, UnaryKind};
/// use ops::{ElementType, TensorType};
/// use tracewright_trace::{Builder, Function, NodeKind, Output, Provenance, Trace};
///
/// let mut main = Function::new("main", "");
/// let ty = TensorType::new(ElementType::F32, [2]);
/// let mut b = Builder { function: &mut main, provenance: Provenance::new("", file!(), line!()) };
/// let x = b.push(NodeKind::input(0, "x"), vec![ty], &[]);
/// let y = b.op(Unary { kind: UnaryKind::Negate }, &[x])?;
/// main.outputs.push(Output::new("y", y));
/// assert_eq!(main.signature().results[0].ty.to_string(), "f32[2]");
/// # Ok::<(), ops::InferError>(())
/// ```
#[derive(Debug)]
pub struct Builder<'a> {
    pub function: &'a mut Function,
    /// The place in the network that declares the appended nodes.
    pub provenance: Provenance,
}

impl Builder<'_> {
    pub fn op(&mut self, op: impl Into<Op>, operands: &[NodeId]) -> Result<NodeId, InferError> {
        let op = op.into();
        let types: Vec<&TensorType> = operands.iter().map(|&o| self.function.node(o).ty()).collect();
        let ty = op.infer(&types)?;
        Ok(self.push(NodeKind::Op(op), vec![ty], operands))
    }

    pub fn push(&mut self, kind: NodeKind, types: Vec<TensorType>, operands: &[NodeId]) -> NodeId {
        let node = Node { kind, types, axes: Vec::new(), provenance: self.provenance.clone() };
        self.function.push(node, operands)
    }

    pub fn ty(&self, id: NodeId) -> &TensorType {
        self.function.node(id).ty()
    }
}
