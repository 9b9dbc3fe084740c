//! Mixed formats: which matrices stay in 8 bits if you select a format with fewer bits.
//!
//! On SmolLM2 135M, with every matrix in `q4`, the mean KL divergence is 0.33 nats. With the head in `q8`,
//! the divergence is 0.25 nats. With the value matrices in `q8` too, which are 3 % of a layer, the divergence
//! is 0.15 nats. No other matrix of a layer improves the divergence as much per byte, as `tracewright quality
//! --layers` measures.

use std::collections::{BTreeMap, BTreeSet};

use ops::{Op, WeightFormat, WeightUse};
use trace::{Function, NodeId, NodeKind, Parameter, Trace, key_pattern};

/// A value matrix is stored in 8 bits only if it has at most this fraction of its layer's weights.
const VALUES_SHARE: f64 = 1.0 / 16.0;

/// The number of elements of each matrix, by the pattern of its key in the checkpoint.
pub(crate) type Matrices = BTreeMap<String, usize>;

/// The matrices of a trace.
pub(crate) fn matrices(trace: &Trace) -> Matrices {
    trace.functions.iter().flat_map(of_function).collect()
}

/// The format of each matrix. Matrices of layers are stored in `format`, except small matrices whose rounding
/// costs much quality.
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

/// The key patterns of matrices in a function that are stored in 8 bits.
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
                let head = weight(function, id).filter(|weight| !patterns(weight).any(|key| in_layer(&key)));
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

/// Whether a matrix belongs to a list of layers. The head does not belong to one.
fn in_layer(pattern: &str) -> bool {
    pattern.split('.').any(|part| part == "*")
}

/// The weight that a matmul reads.
fn weight(function: &Function, matmul: NodeId) -> Option<&Parameter> {
    match &function.node(*function.operands(matmul).get(1)?).kind {
        NodeKind::Parameter(parameter) => Some(parameter),
        _ => None,
    }
}

/// The weights of the nearest matmuls before a value.
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
