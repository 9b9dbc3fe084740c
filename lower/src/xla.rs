//! Prints one entry point as a StableHLO module for XLA. The arguments of the module are the
//! arguments of the entry point, followed by the weights. If there is a mesh, the module also
//! contains the sharding of its arguments and results in Shardy's syntax.

use std::collections::HashMap;

use kernels::Kernels;
use ops::Op;
use ops::ops::{Compare, Direction, Reduce, ReduceKind, Select};
use targets::{Dialect, Target};
use trace::{Argument, Role, Signature, Trace};

use crate::cuda::has_cuda_kernels;
use crate::legalize::{Legalization, legalize};
use crate::module::{Frame, Module, write_with};
use crate::rewrite::rewrite_nodes;
use crate::{EntryShards, LowerError, Shards};

/// The name of the module's function that XLA calls.
const MAIN: &str = "main";
const MESH: &str = "mesh";

/// Prints one entry point of a trace of primitive operations as a module for XLA. The module
/// donates the memory of the state arguments to XLA: XLA stores each new state in the memory of the
/// argument with the same role.
///
/// # Errors Returns an error if the trace does not have the entry point, if the trace contains a
/// composite operation, or if a parameter has two types.
pub fn xla(
    trace: &Trace,
    entry: &str,
    target: &Target,
    shards: Option<&Shards>,
) -> Result<Module, LowerError> {
    let mut alone = legalize(trace, &Legalization::needed(target))?.with_entries(&[entry]);
    let Some(&id) = alone.entries.first() else { return Err(LowerError::NoEntry(entry.to_owned())) };
    alone = with_nan_as_infinity(&alone, id.0 as usize)?;
    alone.functions[id.0 as usize].name = MAIN.to_owned();
    let signature = alone.function(id).signature();
    let cuda = has_cuda_kernels(target);
    let mut frame = Frame { name: entry.to_owned(), exact: true, cuda, ..Frame::default() };
    let mut of_entry = None;
    if let Some(shards) = shards {
        let axes = shards.mesh.axes.iter().map(|axis| format!("\"{}\"={}", axis.name, axis.size));
        let mesh = axes.collect::<Vec<_>>().join(", ");
        frame.attributes = format!(
            " attributes {{mhlo.num_partitions = {} : i32, mhlo.num_replicas = 1 : i32}}",
            shards.mesh.devices()
        );
        frame.before = format!("  sdy.mesh @{MESH} = <[{mesh}]>\n");
        let weights = shards.weights.iter().map(|(key, sharding)| (key.clone(), spelled(sharding)));
        frame.weights = weights.map(|(key, text)| (key, braced(&[text]))).collect::<HashMap<_, _>>();
        of_entry = shards.entries.get(entry);
    }
    frame.arguments = arguments(&signature, of_entry);
    if let Some(EntryShards { results, .. }) = of_entry {
        frame.results = results.iter().map(|sharding| braced(&[spelled(sharding)])).collect();
    }
    let mut module = write_with(&alone, Dialect::Arguments, Kernels::none(), &frame)?;
    module.signatures.iter_mut().for_each(|signature| signature.name = entry.to_owned());
    Ok(module)
}

/// If the program computes the maximum of a result of the entry point, the function replaces NaN by
/// infinity in the operand of the maximum. On CPUs, XLA's maximum and its all-reduce of a maximum
/// ignore NaN (the test `a_maximum_ignores_nan` in `run/pjrt/tests/plugin.rs`). With infinity instead
/// of NaN, every device selects the token with the NaN as the most likely token. The logit of the
/// selected token is then NaN, so you notice the error.
fn with_nan_as_infinity(trace: &Trace, entry: usize) -> Result<Trace, LowerError> {
    let function = &trace.functions[entry];
    rewrite_nodes(trace, |b, (index, id), op, operands| {
        if index == entry
            && let Op::Reduce(Reduce { kind: ReduceKind::Maximum, .. }) = op
            && let read = function.operands(id)[0]
            && function.node(read).ty().element.is_float()
            && function.outputs.iter().any(|output| output.node == read)
        {
            let x = operands[0];
            let is_nan = b.op(Compare { direction: Direction::Ne }, &[x, x])?;
            let infinity = b.splat(x, f64::INFINITY)?;
            let number = b.op(Select {}, &[is_nan, infinity, x])?;
            return b.op(op.clone(), &[number]);
        }
        b.op(op.clone(), operands)
    })
}

/// Returns the MLIR attributes of each argument: the argument's sharding, and the result that XLA
/// may store in the memory of the argument.
fn arguments(signature: &Signature, shards: Option<&EntryShards>) -> Vec<String> {
    let of_argument = |(at, argument): (usize, &Argument)| {
        let mut said: Vec<String> = Vec::new();
        said.extend(shards.and_then(|shards| shards.arguments.get(at)).map(spelled));
        if let Role::State { .. } = argument.role
            && let Some(result) = signature.results.iter().position(|result| result.role == argument.role)
        {
            said.push(format!("tf.aliasing_output = {result} : i32"));
        }
        braced(&said)
    };
    signature.arguments.iter().enumerate().map(of_argument).collect()
}

fn spelled(sharding: &crate::Sharding) -> String {
    format!("sdy.sharding = #sdy.sharding<@{MESH}, {sharding}>")
}

/// Formats a list of attributes in braces, such as ` {a, b}`. Returns an empty string if the list
/// of attributes is empty.
fn braced(said: &[String]) -> String {
    if said.is_empty() { String::new() } else { format!(" {{{}}}", said.join(", ")) }
}
