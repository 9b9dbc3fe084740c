//! Legalizations rewrite operations that a compiler does not compile, or computes wrongly. Each
//! such fault of a compiler has its own source file and a line in the list below. The definitions
//! of the operations in the crate `ops` do not depend on these faults, and follow the StableHLO
//! specification.

mod broadcast_moves_axes;
mod gather_by_scalar;
mod i1_to_number;
mod integer_to_bf16;
mod iota_bf16;
mod iota_in_reduction;
mod largest_integer;
mod number_to_i1;
mod power;
mod product_of_broadcast;
mod product_of_no_terms;
mod product_of_one_term;
mod product_of_terms_first;
mod sum_of_constants;
mod update_in_place;

use std::borrow::Cow;

use ops::{InferError, Op};
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
    power::LEGALIZATION,
    broadcast_moves_axes::LEGALIZATION,
    gather_by_scalar::LEGALIZATION,
    product_of_no_terms::LEGALIZATION,
    product_of_one_term::LEGALIZATION,
    product_of_terms_first::LEGALIZATION,
    product_of_broadcast::LEGALIZATION,
    update_in_place::LEGALIZATION,
    sum_of_constants::LEGALIZATION,
];

/// A fault of a compiler, and a rewrite that avoids it.
#[derive(Debug)]
pub struct Legalization {
    pub name: &'static str,
    pub backends: &'static [Backend],
    /// The kinds of devices whose compiler has the fault. The tests compile the examples for the
    /// first kind of device.
    pub devices: &'static [DeviceKind],
    pub fault: &'static str,
    /// Programs that, without the legalization, fail to compile or compute wrong numbers.
    pub examples: &'static [FaultExample],
    /// The operation that the compiler computes wrongly or does not compile.
    operation: &'static str,
    /// Returns whether the compiler's fault affects a use of the operation.
    shows: fn(&Function, &Op, &[NodeId]) -> bool,
    /// Rewrites one use of the operation. The legalization does not check the new operations again.
    rewrite: fn(&mut Builder<'_>, &Op, &[NodeId]) -> Result<NodeId, InferError>,
}

/// A program that shows a fault, in the text form of traces. The values of the program are
/// numbered: first the operands, then the result of each operation. The results of the program are
/// the results that no operation reads.
#[derive(Debug)]
pub struct FaultExample {
    /// The operations, for example `convert to=bf16`, each with the numbers of the operation's
    /// operands.
    pub operations: &'static [(&'static str, &'static [usize])],
    /// The operands of the program, for example `i32[2] 3,1`.
    pub operands: &'static [&'static str],
}

impl Legalization {
    /// The legalizations for the faults of a target's compiler.
    pub fn needed(target: &Target) -> Vec<&'static Self> {
        let needs =
            |this: &&Self| this.backends.contains(&target.backend) && this.devices.contains(&target.device);
        LEGALIZATIONS.iter().filter(needs).collect()
    }
}

/// The faults of the target's compiler that affect a trace of primitive operations, with the
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

/// Returns the same program after all `legalizations` have rewritten it.
///
/// # Errors
/// Returns an error if an operation rejects its operands. This happens only if the trace was not
/// verified.
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
