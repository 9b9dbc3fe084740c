//! A [`Term`] represents a node of a trace in the e-graph.

use std::fmt;
use std::sync::Arc;

use egg::{FromOp, Id, Language};
use ops::{Op, Reader};
use trace::NodeKind;

/// The kind of a node, and the classes of equal expressions to which the node's operands belong. A
/// single Rust type represents all operations, because egg only needs to compare operations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term {
    pub kind: Arc<NodeKind>,
    pub operands: Vec<Id>,
}

impl Term {
    pub fn new(kind: NodeKind, operands: Vec<Id>) -> Self {
        Self { kind: Arc::new(kind), operands }
    }

    pub fn op(&self) -> Option<&Op> {
        match &*self.kind {
            NodeKind::Op(op) => Some(op),
            _ => None,
        }
    }

    /// Returns the name of the operation; for nodes that are not operations, a name for the kind of node.
    pub fn name(&self) -> &'static str {
        match &*self.kind {
            NodeKind::Op(op) => op.name(),
            NodeKind::Input { .. } => "input",
            NodeKind::Parameter(_) => "parameter",
            NodeKind::Call { .. } => "call",
            NodeKind::Result { .. } => "result",
        }
    }
}

impl Language for Term {
    type Discriminant = &'static str;

    fn discriminant(&self) -> &'static str {
        self.name()
    }
    fn matches(&self, other: &Self) -> bool {
        self.operands.len() == other.operands.len() && self.kind == other.kind
    }
    fn children(&self) -> &[Id] {
        &self.operands
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.operands
    }
}

/// Prints the operation as a single token without blanks, as the patterns of the crate `egg`
/// require: a comma replaces each blank.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        match &*self.kind {
            NodeKind::Op(op) => op.print(&mut text),
            NodeKind::Input { name, .. } => text.push_str(name),
            NodeKind::Parameter(parameter) => text.push_str(&parameter.key),
            NodeKind::Call { prefix, .. } => text = format!("call {prefix}"),
            NodeKind::Result { index } => text = format!("result {index}"),
        }
        f.write_str(&text.replace(' ', ","))
    }
}

/// Parses the name of an operation in the equation of a rewrite rule: `add` means
/// `binary kind=add`, and `convert,to=f32` means `convert to=f32`.
impl FromOp for Term {
    type Error = String;

    fn from_op(token: &str, operands: Vec<Id>) -> Result<Self, String> {
        let spaced = token.replace(',', " ");
        ["", "binary kind=", "unary kind=", "compare direction="]
            .iter()
            .find_map(|family| {
                let text = format!("{family}{spaced}");
                let mut reader = Reader::new(&text);
                Op::parse(&mut reader).ok().filter(|_| reader.at_end())
            })
            .map(|op| Self::new(NodeKind::Op(op), operands))
            .ok_or_else(|| format!("`{token}` is no operation"))
    }
}
