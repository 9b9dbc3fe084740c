//! Legalizations rewrite operations that a compiler rejects or computes wrongly. Each fault of a compiler has
//! its own source file and a line in the list `LEGALIZATIONS`. The definitions of the operations in the crate
//! `ops` follow the StableHLO specification, without regard to the faults of compilers.

mod broadcast_moves_axes;
mod gather_by_scalar;
mod i1_to_number;
mod integer_to_bf16;
mod iota_bf16;
mod iota_in_reduction;
mod largest_integer;
mod number_to_i1;
mod odd_row;
mod power;
mod product_beside_slice;
mod product_of_broadcast;
mod product_of_no_terms;
mod product_of_one_term;
mod product_of_terms_first;
mod sum_of_constants;
mod update_in_place;

use std::borrow::Cow;
use std::collections::BTreeSet;

use ops::{InferError, Op, OpClass};
use targets::{Backend, DeviceKind, Target};
use trace::{Builder, Function, NodeId, NodeKind, Provenance, Trace};

use crate::LowerError;
use crate::rewrite::rewrite;

pub const LEGALIZATIONS: &[Legalization] = &[
    iota_bf16::LEGALIZATION,
    iota_in_reduction::LEGALIZATION,
    largest_integer::LEGALIZATION,
    i1_to_number::LEGALIZATION,
    integer_to_bf16::LEGALIZATION,
    number_to_i1::LEGALIZATION,
    odd_row::LEGALIZATION,
    power::LEGALIZATION,
    broadcast_moves_axes::LEGALIZATION,
    gather_by_scalar::LEGALIZATION,
    product_of_no_terms::LEGALIZATION,
    product_of_one_term::LEGALIZATION,
    product_of_terms_first::LEGALIZATION,
    product_of_broadcast::LEGALIZATION,
    product_beside_slice::LEGALIZATION,
    update_in_place::LEGALIZATION,
    sum_of_constants::LEGALIZATION,
];

/// A fault of a compiler, and the rewrite of operations that avoids the fault.
#[derive(Debug)]
pub struct Legalization {
    pub name: &'static str,
    pub backends: &'static [Backend],
    /// The kinds of devices whose compiler has the fault. The tests compile the examples of a fault
    /// for the first kind of device in the list.
    pub devices: &'static [DeviceKind],
    pub fault: &'static str,
    /// Programs that, without the legalization, fail to compile or compute wrong numbers.
    pub examples: &'static [FaultExample],
    /// The operation that the compiler computes wrongly or does not compile.
    operation: &'static str,
    /// Returns whether the compiler's fault affects a given use of the operation.
    shows: fn(&Function, &Op, &[NodeId]) -> bool,
    /// Rewrites one use of the operation, so that the compiler's fault does not affect the program.
    /// Tracewright does not check whether the fault affects the operations that the rewrite inserts.
    rewrite: fn(&mut Builder<'_>, &Op, &[NodeId]) -> Result<NodeId, InferError>,
}

/// A program that shows a fault of a compiler, in the text form of traces. The values of the
/// example are numbered: first the operands, then the result of each operation. The results of the
/// example are those values that no operation reads.
#[derive(Debug)]
pub struct FaultExample {
    /// The operations of the example, such as `convert to=bf16`, each with the numbers of its operands.
    pub operations: &'static [(&'static str, &'static [usize])],
    /// The operands of the example, such as `i32[2] 3,1`.
    pub operands: &'static [&'static str],
}

impl Legalization {
    /// Returns the legalizations for the faults of a target's compiler.
    pub fn needed(target: &Target) -> Vec<&'static Self> {
        let needs =
            |this: &&Self| this.backends.contains(&target.backend) && this.devices.contains(&target.device);
        LEGALIZATIONS.iter().filter(needs).collect()
    }
}

/// Whether the compiler computes a value in the same loop as an operation that `is_wanted`.
fn is_computed_with(function: &Function, value: NodeId, is_wanted: impl Fn(&Op) -> bool) -> bool {
    let (mut open, mut known) = (vec![value], BTreeSet::new());
    while let Some(id) = open.pop() {
        let NodeKind::Op(op) = &function.node(id).kind else { continue };
        if is_wanted(op) {
            return true;
        }
        // A barrier forces the values before it into memory.
        let is_joined = matches!(op.class(), OpClass::Elementwise | OpClass::Movement);
        if is_joined && !matches!(op, Op::OptimizationBarrier(_)) {
            open.extend(function.operands(id).into_iter().filter(|&operand| known.insert(operand)));
        }
    }
    false
}

/// Returns the compiler's faults that affect a trace of primitive operations, each with the
/// affected places in the network.
pub fn shown<'a>(trace: &'a Trace, target: &Target) -> Vec<(&'static Legalization, Vec<&'a Provenance>)> {
    let places = |legalization: &'static Legalization| {
        let here = |function: &Function, id: &NodeId| match &function.node(*id).kind {
            NodeKind::Op(op) => {
                legalization.operation == op.name()
                    && (legalization.shows)(function, op, &function.operands(*id))
            }
            _ => false,
        };
        let of = |function| {
            let ids = Function::ids(function).filter(move |id| here(function, id));
            ids.map(move |id| &function.node(id).provenance)
        };
        (legalization, trace.functions.iter().flat_map(of).collect::<Vec<_>>())
    };
    Legalization::needed(target).into_iter().map(places).filter(|(_, places)| !places.is_empty()).collect()
}

/// Returns the program after all `legalizations` have rewritten its operations.
///
/// # Errors
/// Returns an error if an operation of the trace rejects its operands. A verified trace never
/// causes this error.
pub fn legalize<'a>(trace: &'a Trace, legalizations: &[&Legalization]) -> Result<Cow<'a, Trace>, LowerError> {
    let needed = |function: &Function, op: &Op, operands: &dyn Fn() -> Vec<NodeId>| {
        let mut known = legalizations.iter().filter(|legalization| legalization.operation == op.name());
        known.find(|legalization| (legalization.shows)(function, op, &operands()))
    };
    let shows = |function: &Function, id: NodeId| match &function.node(id).kind {
        NodeKind::Op(op) => needed(function, op, &|| function.operands(id)).is_some(),
        _ => false,
    };
    // Most programs do not change.
    if !trace.functions.iter().any(|function| function.ids().any(|id| shows(function, id))) {
        return Ok(Cow::Borrowed(trace));
    }
    let rewritten = rewrite(trace, |b, op, operands| match needed(b.function, op, &|| operands.to_vec()) {
        Some(legalization) => (legalization.rewrite)(b, op, operands),
        None => b.op(op.clone(), operands),
    })?;
    Ok(Cow::Owned(rewritten))
}
