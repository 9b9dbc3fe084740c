//! What a compiler gets wrong is said otherwise: each fault is a file and a line of the list, and the operations of
//! `ops` stay as StableHLO specifies them.

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

/// A fault of a compiler, and a way round it.
#[derive(Debug)]
pub struct Legalization {
    pub name: &'static str,
    pub backends: &'static [Backend],
    /// On which kinds of devices, the one first whose examples are compiled for.
    pub devices: &'static [DeviceKind],
    pub fault: &'static str,
    /// Programs that do not compile or give other numbers without the legalization.
    pub examples: &'static [FaultExample],
    /// The operation that it is a fault of.
    operation: &'static str,
    /// Whether the fault shows in a use of it.
    shows: fn(&Function, &Op, &[NodeId]) -> bool,
    /// Says a use that shows it otherwise. What it says is not looked at again.
    rewrite: fn(&mut Builder<'_>, &Op, &[NodeId]) -> Result<NodeId, InferError>,
}

/// A program in the text form. Its values are numbered: first the operands, then each operation's result. Its results
/// are those that no operation takes.
#[derive(Debug)]
pub struct FaultExample {
    /// `convert to=bf16`, and the numbers of what it takes.
    pub operations: &'static [(&'static str, &'static [usize])],
    /// `i32[2] 3,1`
    pub operands: &'static [&'static str],
}

impl Legalization {
    /// Those that a target needs.
    pub fn needed(target: &Target) -> Vec<&'static Self> {
        let needs =
            |this: &&Self| this.backends.contains(&target.backend) && this.devices.contains(&target.device);
        LEGALIZATIONS.iter().filter(needs).collect()
    }
}

/// The faults of a target's compiler that a trace of primitives shows, each with the places where it does.
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

/// The same program without what shows the faults that `legalizations` are for.
///
/// # Errors
/// If a node's operands do not fit its operation: the trace was not verified.
pub fn legalize<'a>(trace: &'a Trace, legalizations: &[&Legalization]) -> Result<Cow<'a, Trace>, LowerError> {
    let needed = |function: &Function, op: &Op, operands: &dyn Fn() -> Vec<NodeId>| {
        let mut known = legalizations.iter().filter(|legalization| legalization.operation == op.name());
        known.find(|legalization| (legalization.shows)(function, op, &operands()))
    };
    let shows = |function: &Function, id: NodeId| match &function.node(id).kind {
        NodeKind::Op(op) => needed(function, op, &|| function.operands(id)).is_some(),
        _ => false,
    };
    // Most programs stay as they are.
    if !trace.functions.iter().any(|function| function.ids().any(|id| shows(function, id))) {
        return Ok(Cow::Borrowed(trace));
    }
    let rewritten = rewrite(trace, |b, op, operands| match needed(b.function, op, &|| operands.to_vec()) {
        Some(legalization) => (legalization.rewrite)(b, op, operands),
        None => b.op(op.clone(), operands),
    })?;
    Ok(Cow::Owned(rewritten))
}
