//! What one device of many holds, and what it reads, computes and exchanges in a call: known from the trace before anything is
//! exported.

use std::collections::{BTreeMap, BTreeSet};

use lower::{Collective, ShardNote, Shards};
use ops::CostOperand;
use ops::Op;
use targets::{Machine, NamedMachine};
use trace::{Function, NodeId, NodeKind, Parameter, ParameterConflict, Role};

use crate::Expanded;
use crate::footprint::{Phase, TooLarge, only_looked_up, peak};

/// What each device of a mesh has to hold and to do.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePartition {
    /// How many devices there are.
    pub devices: usize,
    /// Bytes of the device's parts of all weights.
    pub weights: usize,
    /// The weights that every device holds whole, and the bytes of each: part of `weights`.
    pub replicated: BTreeMap<String, usize>,
    /// Bytes of what layers remember, by kind of state.
    pub state: BTreeMap<String, usize>,
    /// What is not divided along all of the mesh that a rule names.
    pub notes: BTreeSet<ShardNote>,
    /// Each entry point that chooses tokens.
    pub calls: Vec<CallCost>,
}

/// A device's part of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    pub entry: String,
    /// New tokens of all sequences.
    pub tokens: usize,
    /// Bytes that are read: weights, of some of which only rows are looked up, and all state.
    pub read: usize,
    /// Bytes of what is computed and held at once.
    pub activations: usize,
    /// Multiplications, additions and elementary functions.
    pub flops: f64,
    /// What is exchanged, in the order of the call.
    pub collectives: Vec<Collective>,
}

/// How long a device's part of a call takes at least, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSeconds {
    /// To read what is read.
    pub read: f64,
    /// To compute, which happens meanwhile.
    pub compute: f64,
    /// To exchange, which nothing happens beside.
    pub exchange: f64,
}

impl DevicePartition {
    /// The part that each device has of a program. The shards without a mesh are one device.
    ///
    /// # Errors
    /// If one parameter has two types.
    pub fn of(Expanded { trace, target, .. }: &Expanded, shards: Shards) -> Result<Self, ParameterConflict> {
        let parameters = trace.parameters()?;
        let whole = shards.replicated(&parameters).into_iter();
        let mut state: BTreeMap<String, usize> = BTreeMap::new();
        let mut calls = Vec::new();
        for &id in &trace.entries {
            let alone = trace.with_entries(&[&trace.function(id).name]).inlined();
            let entry = alone.function(alone.entries[0]);
            let divided = shards.collectives(entry);
            let local = |id: NodeId| divided.shardings[id.index()].local(entry.node(id).ty()).bytes();
            let remembered: Vec<_> =
                entry.ids().filter_map(|id| Some((kind_of_state(entry, id)?, id))).collect();
            if calls.is_empty() {
                remembered
                    .iter()
                    .for_each(|(kind, id)| *state.entry(kind.clone()).or_default() += local(*id));
            }
            let looked_up = only_looked_up(&alone);
            let streamed = |id: &NodeId| match &entry.node(*id).kind {
                NodeKind::Parameter(parameter) => !looked_up.contains(&parameter.key),
                _ => false,
            };
            let rows = |id: &NodeId| match &entry.node(*id).kind {
                NodeKind::Op(Op::Gather(_)) => {
                    matches!(entry.node(entry.operands(*id)[0]).kind, NodeKind::Parameter(_))
                }
                _ => false,
            };
            let read = entry.ids().filter(|id| streamed(id) || rows(id));
            let read = read.chain(remembered.iter().map(|(_, id)| *id));
            calls.push(CallCost {
                entry: entry.name.clone(),
                tokens: tokens(entry),
                read: read.map(local).sum(),
                activations: peak(entry, &divided.shardings),
                flops: flops(&target.machine, entry, &divided.parts),
                collectives: divided.collectives,
            });
        }
        Ok(Self {
            devices: shards.mesh.devices(),
            weights: shards.device_bytes(&parameters),
            replicated: match shards.mesh.axes.is_empty() {
                true => BTreeMap::new(),
                false => whole.map(|p: &Parameter| (p.key.clone(), p.ty.bytes())).collect(),
            },
            state,
            notes: shards.notes,
            calls,
        })
    }

    /// Bytes that layers remember.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// Bytes that the call with the largest activations computes.
    pub fn activation_bytes(&self) -> usize {
        self.calls.iter().map(|call| call.activations).max().unwrap_or(0)
    }

    /// Bytes of all of that.
    pub fn bytes(&self) -> u64 {
        (self.weights + self.state_bytes() + self.activation_bytes()) as u64
    }

    /// Whether the memory of such a machine is enough, as far as it is known.
    ///
    /// # Errors
    /// What cannot fit.
    pub fn check(&self, machine: &NamedMachine) -> Result<(), TooLarge> {
        match machine.memory.filter(|&memory| self.bytes() > memory) {
            None => Ok(()),
            Some(total) => Err(TooLarge {
                what: Phase::Device,
                needs: self.bytes(),
                weights: self.weights,
                state: self.state_bytes(),
                activations: self.activation_bytes(),
                total,
            }),
        }
    }
}

impl CallCost {
    /// Bytes that the device sends to others, and receives.
    pub fn sent(&self) -> f64 {
        self.collectives.iter().map(Collective::sent_bytes).sum()
    }

    /// How long it takes on such a machine at least: a roofline.
    pub fn seconds(&self, machine: &NamedMachine) -> CallSeconds {
        CallSeconds {
            read: self.read as f64 / machine.machine.bandwidth,
            compute: self.flops / machine.machine.flops,
            exchange: self.sent() / machine.link,
        }
    }
}

impl CallSeconds {
    pub fn total(&self) -> f64 {
        self.read.max(self.compute) + self.exchange
    }
}

fn kind_of_state(entry: &Function, id: NodeId) -> Option<String> {
    match entry.node(id).kind {
        NodeKind::Input { role: Role::State { part, .. }, .. } => Some(part.kind.to_string()),
        NodeKind::Input { role: Role::Memory { .. }, .. } => Some("memory".to_owned()),
        _ => None,
    }
}

fn tokens(entry: &Function) -> usize {
    let tokens = entry.signature().arguments.into_iter().find(|argument| argument.role == Role::Tokens);
    tokens.map_or(1, |argument| argument.ty.count())
}

/// The operations of one of the devices among which the work of each node is divided.
fn flops(machine: &Machine, entry: &Function, parts: &[usize]) -> f64 {
    let live = entry.live();
    let of_node = |id: NodeId| {
        let node = entry.node(id);
        let NodeKind::Op(op) = &node.kind else { return 0.0 };
        let operands = entry.operands(id);
        let reads: Vec<CostOperand<'_>> = operands
            .iter()
            .map(|&operand| CostOperand { ty: entry.node(operand).ty(), splat: false })
            .collect();
        simplify::cost(machine, op, &reads, node.ty()).flops / parts[id.index()] as f64
    };
    entry.ids().filter(|id| live[id.index()]).map(of_node).sum()
}
