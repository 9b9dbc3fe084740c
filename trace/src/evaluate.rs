//! The reference evaluator. The evaluator computes the nodes of a trace in order. For each node,
//! the evaluator calls the function `eval` of the node's operation.

use ops::{TensorType, Value};

use crate::{Function, NodeKind, Provenance, Trace, resolve_key};

#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    #[error("the trace has no entry point `{name}`; its entry points are {entries:?}")]
    NoEntry { name: String, entries: Vec<String> },
    #[error("`{function}` takes arguments of the types ({}), found ({})", list(.expected), list(.found))]
    Arguments {
        function: String,
        /// The types that the entry point declares for its inputs.
        expected: Vec<TensorType>,
        found: Vec<TensorType>,
    },
    /// Missing, or of another type than the trace declares.
    #[error("the parameter `{key}` has no value of the type `{ty}`")]
    Parameter { key: String, ty: TensorType },
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
}

type Watch<'a> = dyn FnMut(&Provenance, &str, &Value) + 'a;

pub struct Evaluation<'a> {
    /// The value of a parameter by its key in the checkpoint.
    pub parameters: &'a dyn Fn(&str) -> Option<Value>,
    /// Receives the value of each operation, and the prefix of parameter keys for the current call.
    pub watch: Option<&'a mut Watch<'a>>,
}

pub fn evaluate(
    trace: &Trace,
    name: &str,
    arguments: Vec<Value>,
    mut evaluation: Evaluation<'_>,
) -> Result<Vec<Value>, EvaluateError> {
    let function = trace.entry(name).ok_or_else(|| EvaluateError::NoEntry {
        name: name.into(),
        entries: trace.entries.iter().map(|&id| trace.function(id).name.clone()).collect(),
    })?;
    call(trace, function, "", arguments, &mut evaluation)
}

fn call(
    trace: &Trace,
    function: &Function,
    prefix: &str,
    arguments: Vec<Value>,
    evaluation: &mut Evaluation<'_>,
) -> Result<Vec<Value>, EvaluateError> {
    if !function.inputs().iter().map(|(_, ty)| *ty).eq(arguments.iter().map(|a| &a.ty)) {
        return Err(EvaluateError::Arguments {
            function: function.name.clone(),
            expected: function.inputs().into_iter().map(|(_, ty)| ty.clone()).collect(),
            found: arguments.into_iter().map(|a| a.ty).collect(),
        });
    }
    let live = function.live();
    let mut values: Vec<Vec<Value>> = Vec::with_capacity(function.len());
    for id in function.ids() {
        if !live[id.index()] {
            values.push(Vec::new());
            continue;
        }
        let node = function.node(id);
        let operands = function.operands(id);
        let value = match &node.kind {
            NodeKind::Input { index, .. } => vec![arguments[*index].clone()],
            NodeKind::Parameter(parameter) => {
                let value = parameter.resolved(&function.prefix, prefix).value(evaluation.parameters);
                vec![value.map_err(|(key, ty)| EvaluateError::Parameter { key, ty })?]
            }
            NodeKind::Op(op) => {
                let operands: Vec<&Value> = operands.iter().map(|o| &values[o.index()][0]).collect();
                let value = op.eval(&operands, node.ty());
                if let Some(watch) = &mut evaluation.watch {
                    watch(&node.provenance, prefix, &value);
                }
                vec![value]
            }
            NodeKind::Call { function: callee, prefix: inner } => {
                let arguments = operands.iter().map(|o| values[o.index()][0].clone()).collect();
                let inner = resolve_key(inner, &function.prefix, prefix);
                call(trace, trace.function(*callee), &inner, arguments, evaluation)?
            }
            NodeKind::Result { index } => vec![values[operands[0].index()][*index].clone()],
        };
        values.push(value);
    }
    Ok(function.outputs.iter().map(|o| values[o.node.index()][0].clone()).collect())
}
