//! Computes how much memory, computation and communication one device of a mesh needs for a
//! program. To compute the memory and the work of a device, the module needs only the trace.

use std::collections::{BTreeMap, BTreeSet};

use lower::{Collective, ShardNote, Shards};
use ops::CostOperand;
use ops::Op;
use targets::{Machine, NamedMachine};
use trace::{Function, NodeId, NodeKind, Parameter, ParameterConflict, Role};

use crate::Expanded;
use crate::footprint::{Memory, Phase, TooLarge, only_looked_up, peak};

/// Contains the memory that one device of a mesh needs, and the work that this device does. All
/// devices of the mesh need the same memory and do the same work.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePartition {
    pub devices: usize,
    /// The size of the weights on one device, in bytes.
    pub weights: usize,
    /// For each weight that every device stores completely, maps the key of the weight to its size in bytes.
    /// The field `weights` includes the size of the weights that every device stores completely.
    pub replicated: BTreeMap<String, usize>,
    /// Maps each kind of state, such as `kv.keys`, to its size on one device in bytes.
    pub state: BTreeMap<String, usize>,
    /// Notes about each tensor axis that is shorter than its mesh axis, so several devices have a copy of the
    /// same part of the tensor. The length of a mesh axis is the number of devices along this axis.
    pub notes: BTreeSet<ShardNote>,
    /// Contains the cost of one call for each entry point.
    pub calls: Vec<CallCost>,
}

/// The cost of a call of an entry point on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    pub entry: String,
    /// The number of new tokens that the call processes in all sequences together.
    pub tokens: usize,
    /// The size of all state and of all weights that the call reads, in bytes. If the call only
    /// looks up rows of a weight, the field includes only the size of the looked-up rows.
    pub read: usize,
    /// The peak size of all activations that exist at the same time during the call, in bytes.
    pub activations: usize,
    /// The number of multiplications, additions and elementary functions that the device computes.
    pub flops: f64,
    /// The collective operations that the call runs, in the order of execution.
    pub collectives: Vec<Collective>,
}

/// A lower bound of the time that one device needs for a call, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSeconds {
    /// The time for reading weights and state, in seconds.
    pub read: f64,
    /// The time for arithmetic operations, in seconds. The times for reading and for arithmetic
    /// operations overlap, because the device computes while it reads weights and state.
    pub compute: f64,
    /// The time for communication with other devices, in seconds. During communication, the device
    /// does no other work.
    pub exchange: f64,
}

impl DevicePartition {
    /// Computes the memory that a program needs on each device, and the work that each device does.
    /// If `shards` has no mesh, the result describes a single device.
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

    /// Returns the size of the state of all layers on one device, in bytes.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// Returns the largest size of a call's activations, in bytes.
    pub fn activation_bytes(&self) -> usize {
        self.calls.iter().map(|call| call.activations).max().unwrap_or(0)
    }

    /// Returns the total size of weights, state and activations on one device, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.weights + self.state_bytes() + self.activation_bytes()) as u64
    }

    /// Checks that the memory of one device is large enough for the program. If the size of the
    /// machine's memory is unknown, the check succeeds.
    pub fn check(&self, machine: &NamedMachine) -> Result<(), TooLarge> {
        machine.memory.map_or(Ok(()), |total| self.fits(Phase::Device, 1, total))
    }

    /// Checks that the memory that all devices share is large enough for the data of all devices together.
    pub fn check_together(&self, memory: Memory) -> Result<(), TooLarge> {
        self.fits(Phase::Running, self.devices, memory.total)
    }

    /// Checks that `total` bytes are enough for the data of the given number of devices.
    fn fits(&self, what: Phase, devices: usize, total: u64) -> Result<(), TooLarge> {
        let [weights, state, activations] =
            [self.weights, self.state_bytes(), self.activation_bytes()].map(|bytes| devices * bytes);
        let needs = (weights + state + activations) as u64;
        match needs > total {
            true => Err(TooLarge { what, needs, weights, state, activations, total }),
            false => Ok(()),
        }
    }
}

impl CallCost {
    /// Returns the number of bytes that one device sends to other devices during a call. The device
    /// receives the same number of bytes.
    pub fn sent(&self) -> f64 {
        self.collectives.iter().map(Collective::sent_bytes).sum()
    }

    /// Computes a lower bound of the time for the call on the given machine, with a roofline model.
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

/// Returns the number of arithmetic operations that one device computes. For each node, `parts`
/// contains the number of devices that share the computation of the node.
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
