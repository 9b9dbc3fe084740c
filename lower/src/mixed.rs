//! Mixed storage formats: if you select a format with fewer than 8 bits, the archive still stores
//! some matrices in 8 bits.
//!
//! On SmolLM2 135M, with every matrix in `q4`, the mean KL divergence from the unquantized model is 0.33
//! nats. With the output head in `q8` and all other matrices in `q4`, the KL divergence is 0.25 nats. With
//! the output head and the value matrices in `q8`, the KL divergence is 0.15 nats; the value matrices are 3 %
//! of the weights in a layer. In a measurement with `tracewright quality --layers`, storing another matrix of
//! a layer in q8 reduced the KL divergence less per added byte.

use std::collections::{BTreeMap, BTreeSet};

use ops::{Op, WeightFormat, WeightUse};
use trace::{Function, NodeId, NodeKind, Parameter, Trace, key_pattern};

/// The archive stores a value matrix in 8 bits only if the matrix has at most this fraction of the
/// weights in its layer.
const VALUES_SHARE: f64 = 1.0 / 16.0;

/// The number of elements of each matrix, by the tensor-name pattern of the matrix's key in the checkpoint.
pub(crate) type Matrices = BTreeMap<String, usize>;

/// Returns the matrices and stacks of matrices among the parameters of a trace.
pub(crate) fn matrices(trace: &Trace) -> Matrices {
    trace.functions.iter().flat_map(of_function).collect()
}

/// Returns the storage format of each matrix, by the tensor-name pattern of the matrix's key. The
/// archive stores the matrices of layers in `format`, except small matrices whose rounding would
/// reduce the quality of the model too much.
pub(crate) fn mixed(trace: &Trace, format: WeightFormat) -> BTreeMap<String, WeightFormat> {
    let mut formats: BTreeMap<String, WeightFormat> =
        matrices(trace).into_keys().map(|pattern| (pattern, format)).collect();
    let sensitive = trace.functions.iter().flat_map(sensitive);
    formats.extend(sensitive.map(|pattern| (pattern, WeightFormat::Q8)));
    formats
}

fn of_function(function: &Function) -> Matrices {
    let matrices = function.parameters().flat_map(Parameter::sources).filter(|(_, ty)| ty.rank() > 1);
    matrices.map(|(key, ty)| (key_pattern(key), ty.count())).collect()
}

/// Returns the tensor-name patterns of the matrices that a function reads and that the archive
/// stores in 8 bits.
fn sensitive(function: &Function) -> BTreeSet<String> {
    let mut sensitive = BTreeSet::new();
    let layer: usize =
        of_function(function).iter().filter(|(key, _)| in_layer(key)).map(|(_, count)| count).sum();
    for id in function.ids() {
        match &function.node(id).kind {
            NodeKind::Op(Op::Sdpa(_)) => {
                for weight in weights_behind(function, function.operands(id)[2]) {
                    if weight.ty.count() as f64 <= VALUES_SHARE * layer as f64 {
                        sensitive.extend(patterns(weight));
                    }
                }
            }
            NodeKind::Op(op) if op.weight_use() == Some(WeightUse::Matmul) => {
                let head = weight(function, id).filter(|weight| is_head(weight));
                sensitive.extend(head.into_iter().flat_map(patterns));
            }
            _ => {}
        }
    }
    sensitive
}

fn patterns(parameter: &Parameter) -> impl Iterator<Item = String> {
    parameter.sources().into_iter().map(|(key, _)| key_pattern(key))
}

/// Whether a weight belongs to no repeated layer of the network, like the output head.
fn is_head(weight: &Parameter) -> bool {
    !patterns(weight).any(|key| in_layer(&key))
}

/// Whether a matrix belongs to a repeated layer of the network, unlike the output head.
fn in_layer(pattern: &str) -> bool {
    pattern.split('.').any(|part| part == "*")
}

/// Returns the weight that a matmul reads.
fn weight(function: &Function, matmul: NodeId) -> Option<&Parameter> {
    match &function.node(*function.operands(matmul).get(1)?).kind {
        NodeKind::Parameter(parameter) => Some(parameter),
        _ => None,
    }
}

/// Follows every path of nodes that leads to a value, and returns the weight of the last matmul on each path.
fn weights_behind(function: &Function, value: NodeId) -> Vec<&Parameter> {
    let (mut found, mut seen, mut pending) = (Vec::new(), BTreeSet::new(), vec![value]);
    while let Some(id) = pending.pop() {
        let NodeKind::Op(op) = &function.node(id).kind else { continue };
        if !seen.insert(id) {
            continue;
        }
        match op.weight_use() {
            Some(WeightUse::Matmul) => found.extend(weight(function, id)),
            _ => pending.extend(function.operands(id)),
        }
    }
    found
}
