//! Turns a function of a trace into a separate program. The separate program returns the values of
//! the function's nodes as additional results.

use std::collections::HashSet;

use ops::{ElementType, Op, Value};
use trace::{Builder, Function, FunctionId, NodeId, NodeKind, Output, Trace};

/// A program of one function, and arguments for it.
pub(crate) struct Region {
    trace: Trace,
    pub arguments: Vec<Value>,
}

/// Entry points return the values of exposed nodes as additional results.
pub(crate) struct Probed {
    pub trace: Trace,
    /// For each exposed node, its entry point, and its place among the results.
    pub places: Vec<(usize, usize)>,
}

impl Region {
    pub fn of_entry(trace: &Trace, name: &str, arguments: Vec<Value>) -> Self {
        Self { trace: trace.with_entries(&[name]), arguments }
    }

    /// From a called function, with its own calls inlined.
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

    pub fn plain(&self) -> &Trace {
        &self.trace
    }

    /// That can be exposed, in the order of computation; not splats, which cannot differ.
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

    /// As results of one function, so that the compiler cannot fuse them.
    pub fn together(&self, nodes: &[NodeId]) -> Probed {
        let mut function = self.function().clone();
        let places = nodes.iter().map(|&node| (0, result(&mut function, node))).collect();
        Probed { trace: self.with(vec![function]), places }
    }

    /// Each in its own copy, where the compiler can fuse all others.
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

/// Adds the node as a result if it is none.
fn result(function: &mut Function, node: NodeId) -> usize {
    if let Some(place) = function.outputs.iter().position(|output| output.node == node) {
        return place;
    }
    function.outputs.push(Output::new(format!("node{}", node.index()), node));
    function.outputs.len() - 1
}
