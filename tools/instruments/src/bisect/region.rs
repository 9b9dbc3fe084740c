//! Turns a function of a trace into a separate program. The separate program returns the values of
//! the function's nodes as additional results.

use std::collections::HashSet;

use ops::{ElementType, Op, Value};
use trace::{Builder, Function, FunctionId, NodeId, NodeKind, Output, Trace};

/// Contains a separate program with one function, and the arguments for calling this function.
pub(crate) struct Region {
    trace: Trace,
    pub arguments: Vec<Value>,
}

/// A trace with exposed nodes. The entry points of the trace return the values of the exposed nodes
/// as additional results.
pub(crate) struct Probed {
    pub trace: Trace,
    /// For each exposed node, contains the index of the entry point that returns the node's value,
    /// and the index of the value among the results of this entry point.
    pub places: Vec<(usize, usize)>,
}

impl Region {
    /// Creates a separate program from an entry point of a trace.
    pub fn of_entry(trace: &Trace, name: &str, arguments: Vec<Value>) -> Self {
        Self { trace: trace.with_entries(&[name]), arguments }
    }

    /// Creates a separate program from a function that this program calls. The method inlines all
    /// calls in the called function, so the separate program contains no calls.
    pub fn of_call(&self, call: NodeId, arguments: Vec<Value>) -> Self {
        let node = self.function().node(call);
        let NodeKind::Call { function, .. } = &node.kind else { unreachable!("a call is looked into") };
        let callee = self.trace.function(*function);
        let mut entry = Function::new(callee.name.clone(), "");
        let mut b = Builder { function: &mut entry, provenance: node.provenance.clone() };
        let inputs: Vec<NodeId> = callee
            .inputs()
            .into_iter()
            .enumerate()
            .map(|(index, (name, ty))| b.push(NodeKind::input(index, name), vec![ty.clone()], &[]))
            .collect();
        let called = b.push(node.kind.clone(), node.types.clone(), &inputs);
        let results: Vec<NodeId> = node
            .types
            .iter()
            .enumerate()
            .map(|(index, ty)| b.push(NodeKind::Result { index }, vec![ty.clone()], &[called]))
            .collect();
        entry.outputs = callee
            .outputs
            .iter()
            .zip(results)
            .map(|(output, node)| Output { node, ..output.clone() })
            .collect();
        let mut trace = self.trace.clone();
        trace.entries = vec![FunctionId(trace.functions.len() as u32)];
        trace.functions.push(entry);
        Self { trace: trace.inlined(), arguments }
    }

    /// Returns the first call of each function that this program calls.
    pub fn first_calls(&self) -> Vec<NodeId> {
        let (function, mut seen) = (self.function(), HashSet::new());
        let is_first = |id: &NodeId| match &function.node(*id).kind {
            NodeKind::Call { function, .. } => seen.insert(*function),
            _ => false,
        };
        function.ids().filter(is_first).collect()
    }

    pub fn function(&self) -> &Function {
        self.trace.function(self.trace.entries[0])
    }

    /// Returns the program without exposed values.
    pub fn plain(&self) -> &Trace {
        &self.trace
    }

    /// Returns the nodes whose values a compiled program can expose, in the order of computation. The list
    /// omits each constant whose elements are all equal, because the value of such a constant cannot differ.
    pub fn nodes(&self) -> Vec<NodeId> {
        let (function, live) = (self.function(), self.function().live());
        let shown = |id: &NodeId| match &function.node(*id).kind {
            NodeKind::Op(Op::Constant(constant)) => constant.value.as_splat().is_none(),
            NodeKind::Op(_) | NodeKind::Result { .. } => true,
            NodeKind::Input { .. } | NodeKind::Parameter(_) | NodeKind::Call { .. } => false,
        };
        let nodes = function.ids().filter(|id| live[id.index()]).filter(shown);
        nodes.filter(|id| function.node(*id).ty().element != ElementType::I4).collect()
    }

    /// Exposes all given nodes as results of one function. As a consequence, the compiler cannot
    /// fuse the exposed nodes with each other.
    pub fn together(&self, nodes: &[NodeId]) -> Probed {
        let mut function = self.function().clone();
        let places = nodes.iter().map(|&node| (0, result(&mut function, node))).collect();
        Probed { trace: self.with(vec![function]), places }
    }

    /// Exposes each given node in a separate copy of the function. In each copy, the compiler can
    /// still fuse all other nodes.
    pub fn apart(&self, nodes: &[NodeId]) -> Probed {
        let mut functions = Vec::with_capacity(nodes.len());
        let mut places = Vec::with_capacity(nodes.len());
        for &node in nodes {
            let mut function = self.function().clone();
            places.push((functions.len(), result(&mut function, node)));
            function.name = format!("{}_{}", function.name, node.index());
            functions.push(function);
        }
        Probed { trace: self.with(functions), places }
    }

    /// Returns a copy of the program's trace with the entry points `entries`.
    pub fn with(&self, entries: Vec<Function>) -> Trace {
        let own = self.trace.entries[0].0 as usize;
        // A function comes after the functions that it calls, and no function calls an entry point.
        let mut functions = self.trace.functions[..own].to_vec();
        let first = functions.len();
        functions.extend(entries);
        let entries = (first..functions.len()).map(|index| FunctionId(index as u32)).collect();
        Trace { functions, entries }
    }
}

/// Returns the index of the result that contains the node's value. If no result contains the node's
/// value, the function adds the node as a result.
fn result(function: &mut Function, node: NodeId) -> usize {
    if let Some(place) = function.outputs.iter().position(|output| output.node == node) {
        return place;
    }
    function.outputs.push(Output::new(format!("node{}", node.index()), node));
    function.outputs.len() - 1
}
