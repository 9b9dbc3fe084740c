//! Verifies that a trace is valid.

use ops::{InferError, TensorType};

use crate::{Argument, Function, NodeId, NodeKind, ParameterConflict, Provenance, Role, Signature, Trace};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VerifyError {
    #[error("the node %{node} of `{function}` ({}, {}:{}) is not valid", .provenance.path, .provenance.file, .provenance.line)]
    Infer {
        function: String,
        node: usize,
        /// The place in the network that declares the node.
        provenance: Provenance,
        source: Box<InferError>,
    },
    #[error("the node %{node} of `{function}` ({}, {}:{}) has the type `{found}`, expected `{expected}`",
        .provenance.path, .provenance.file, .provenance.line)]
    Type {
        function: String,
        node: usize,
        /// The place in the network that declares the node.
        provenance: Provenance,
        expected: String,
        found: String,
    },
    #[error("the node %{node} of `{function}`: {what}")]
    Structure { function: String, node: usize, what: &'static str },
    #[error("two functions have the name `{0}`")]
    DuplicateFunction(String),
    /// No entry point returns an encoder's output of this type.
    #[error("the entry point `{reader}` reads `{memory}`, {}", other_filler(.filler))]
    Memory {
        /// The entry point that reads the encoder's output.
        reader: String,
        memory: String,
        /// The entry point that returns it with another type, and that type.
        filler: Option<(String, String)>,
    },
    #[error(transparent)]
    Parameter(#[from] ParameterConflict),
}

fn other_filler(filler: &Option<(String, String)>) -> String {
    match filler {
        Some((name, result)) => format!("and the entry point `{name}` fills `{result}`"),
        None => "which no other entry point fills".into(),
    }
}

impl Trace {
    /// Checks what later stages rely on: types, operand indices, the order of nodes, calls, names.
    pub fn verify(&self) -> Result<(), VerifyError> {
        for (i, function) in self.functions.iter().enumerate() {
            if self.functions[..i].iter().any(|f| f.name == function.name) {
                return Err(VerifyError::DuplicateFunction(function.name.clone()));
            }
            let mut inputs = Vec::new();
            for id in function.ids() {
                self.verify_node(i, function, id)?;
                if let NodeKind::Input { index, .. } = function.node(id).kind {
                    inputs.push(index);
                }
            }
            inputs.sort_unstable();
            let structure =
                |node: usize, what| VerifyError::Structure { function: function.name.clone(), node, what };
            if !inputs.iter().copied().eq(0..inputs.len()) {
                return Err(structure(0, "inputs are not numbered 0, 1, …"));
            }
            for output in &function.outputs {
                if output.node.index() >= function.len() {
                    return Err(structure(output.node.index(), "a result is no node"));
                }
                if function.node(output.node).types.len() != 1 {
                    return Err(structure(
                        output.node.index(),
                        "a call is returned instead of one of its results",
                    ));
                }
            }
        }
        self.parameters()?;
        self.verify_memory()
    }

    /// Each encoder output that is read must be returned by another entry point with the same type.
    fn verify_memory(&self) -> Result<(), VerifyError> {
        let entries: Vec<Signature> = self.entries.iter().map(|&id| self.function(id).signature()).collect();
        let is_memory = |argument: &&Argument| matches!(argument.role, Role::Memory { .. });
        for reader in &entries {
            for memory in reader.arguments.iter().filter(is_memory) {
                let fillers = entries.iter().filter(|entry| entry.name != reader.name);
                let mut filled =
                    fillers.flat_map(|entry| entry.results.iter().map(move |result| (&entry.name, result)));
                let found = filled.find(|(_, result)| result.role == memory.role);
                if found.is_some_and(|(_, result)| result.ty == memory.ty) {
                    continue;
                }
                let filler = found.map(|(name, result)| (name.clone(), result.to_string()));
                let (reader, memory) = (reader.name.clone(), memory.to_string());
                return Err(VerifyError::Memory { reader, memory, filler });
            }
        }
        Ok(())
    }

    fn verify_node(&self, at: usize, function: &Function, id: NodeId) -> Result<(), VerifyError> {
        let node = function.node(id);
        let structure =
            |what| Err(VerifyError::Structure { function: function.name.clone(), node: id.index(), what });
        if !function.positions(id).into_iter().eq(0..function.positions(id).len() as u32) {
            return structure("operand positions are not 0, 1, …");
        }
        let operands = function.operands(id);
        if operands.iter().any(|o| *o >= id) {
            return structure("an operand does not come before its user");
        }
        let is_call = |id: NodeId| matches!(function.node(id).kind, NodeKind::Call { .. });
        if !matches!(node.kind, NodeKind::Result { .. }) && operands.iter().any(|&o| is_call(o)) {
            return structure("a call is used instead of one of its results");
        }
        if !node.axes.is_empty() && node.axes.len() != node.ty().rank() {
            return structure("there are not as many axis names as axes");
        }
        let types: Vec<&TensorType> = operands.iter().map(|&o| function.node(o).ty()).collect();
        let infer = |source| VerifyError::Infer {
            function: function.name.clone(),
            node: id.index(),
            provenance: node.provenance.clone(),
            source: Box::new(source),
        };
        let expected: Vec<TensorType> = match &node.kind {
            NodeKind::Input { .. } => node.types.clone(),
            NodeKind::Parameter(parameter) => match &parameter.recipe {
                None => vec![parameter.ty.clone()],
                Some(recipe) if recipe.ty().map_err(infer)? != parameter.ty => {
                    return structure("a recipe does not make the type of its parameter");
                }
                Some(_) => vec![parameter.ty.clone()],
            },
            NodeKind::Op(op) => vec![op.infer(&types).map_err(infer)?],
            NodeKind::Call { function: callee, .. } => {
                if callee.0 as usize >= at {
                    return structure("a call of a function that does not come before");
                }
                let callee = self.function(*callee);
                if !callee.inputs().iter().map(|(_, ty)| *ty).eq(types) {
                    return structure("a call's arguments do not have the types of the function's inputs");
                }
                callee.output_types().into_iter().cloned().collect()
            }
            NodeKind::Result { index } => match operands[..] {
                [call] if is_call(call) && *index < function.node(call).types.len() => {
                    vec![function.node(call).types[*index].clone()]
                }
                _ => return structure("a `result` needs a call that has it"),
            },
        };
        if node.types != expected {
            let text =
                |types: &[TensorType]| types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
            return Err(VerifyError::Type {
                function: function.name.clone(),
                node: id.index(),
                provenance: node.provenance.clone(),
                expected: text(&expected),
                found: text(&node.types),
            });
        }
        Ok(())
    }
}
