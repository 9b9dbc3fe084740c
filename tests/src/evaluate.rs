//! Evaluates an entry point in the reference evaluator.

use std::collections::BTreeMap;

use tracewright::ops::Value;
use tracewright::trace::{self, Evaluation, Trace};

/// The numbers of the weights, by key.
pub type WeightValues = BTreeMap<String, Value>;

/// Evaluates an entry point with these weights.
pub fn evaluate(trace: &Trace, name: &str, arguments: &[Value], weights: &WeightValues) -> Vec<Value> {
    let parameters = |key: &str| weights.get(key).cloned();
    let evaluation = Evaluation { parameters: &parameters, watch: None };
    trace::evaluate(trace, name, arguments.to_vec(), evaluation).unwrap_or_else(|error| panic!("{error}"))
}
