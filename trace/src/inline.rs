//! Replaces each function call in a trace by the body of the called function.

use std::collections::HashMap;

use crate::{Function, Node, NodeId, NodeKind, Output, Provenance, Trace, resolve_key};

impl Trace {
    /// The same entry points without calls. Parameters, field paths and text grow with the number of layers;
    /// each entry point still has one node per weight.
    pub fn inlined(&self) -> Self {
        let inlined = |function: &Function| {
            let into = Function::new(function.name.clone(), "");
            let mut inliner = Inliner { trace: self, into, parameters: HashMap::new() };
            let results = inliner.body(function, "", None);
            let outputs = function.outputs.iter().zip(results);
            inliner.into.outputs = outputs.map(|(output, node)| Output { node, ..output.clone() }).collect();
            inliner.into
        };
        let functions: Vec<Function> = self.entries.iter().map(|&id| inlined(self.function(id))).collect();
        let entries = (0..functions.len() as u32).map(crate::FunctionId).collect();
        Self { functions, entries }
    }
}

struct Inliner<'a> {
    trace: &'a Trace,
    into: Function,
    parameters: HashMap<String, NodeId>,
}

impl Inliner<'_> {
    /// Returns the nodes of the results. `prefix` replaces the declared prefix, and `arguments` the inputs,
    /// which stay inputs for `None`.
    fn body(&mut self, function: &Function, prefix: &str, arguments: Option<&[NodeId]>) -> Vec<NodeId> {
        // The new nodes for each old node: several nodes for a call, one node otherwise.
        let mut values: Vec<Vec<NodeId>> = Vec::with_capacity(function.len());
        for id in function.ids() {
            let node = function.node(id);
            let operands: Vec<NodeId> = match node.kind {
                NodeKind::Result { .. } => Vec::new(),
                _ => function.operands(id).iter().map(|o| values[o.index()][0]).collect(),
            };
            let value = match (&node.kind, arguments) {
                (NodeKind::Input { index, .. }, Some(arguments)) => vec![arguments[*index]],
                (NodeKind::Parameter(parameter), _) => {
                    let parameter = parameter.resolved(&function.prefix, prefix);
                    let key = parameter.key.clone();
                    vec![match self.parameters.get(&key) {
                        Some(&known) => known,
                        None => {
                            let kind = NodeKind::Parameter(parameter);
                            let loaded = self.push(node, kind, function, prefix, &[]);
                            self.parameters.insert(key, loaded);
                            loaded
                        }
                    }]
                }
                (NodeKind::Call { function: callee, prefix: inner }, _) => {
                    let inner = resolve_key(inner, &function.prefix, prefix);
                    self.body(self.trace.function(*callee), &inner, Some(&operands))
                }
                (NodeKind::Result { index }, _) => {
                    vec![values[function.operands(id)[0].index()][*index]]
                }
                (kind, _) => vec![self.push(node, kind.clone(), function, prefix, &operands)],
            };
            values.push(value);
        }
        function.outputs.iter().map(|output| values[output.node.index()][0]).collect()
    }

    fn push(
        &mut self,
        node: &Node,
        kind: NodeKind,
        function: &Function,
        prefix: &str,
        operands: &[NodeId],
    ) -> NodeId {
        let path = if function.prefix.is_empty() {
            node.provenance.path.clone()
        } else {
            resolve_key(&node.provenance.path, &function.prefix, prefix).into()
        };
        let provenance = Provenance { path, ..node.provenance.clone() };
        let node = Node { kind, types: node.types.clone(), axes: node.axes.clone(), provenance };
        self.into.push(node, operands)
    }
}
