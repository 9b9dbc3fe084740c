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

/// The memory and the work of one device; they are the same for all devices of the mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePartition {
    pub devices: usize,
    /// Bytes on one device.
    pub weights: usize,
    /// Bytes of weights that every device stores completely; part of `weights`.
    pub replicated: BTreeMap<String, usize>,
    /// Maps each kind of state, such as `kv.keys`, to its size on one device in bytes.
    pub state: BTreeMap<String, usize>,
    /// Tensor axes shorter than their mesh axis, so that several devices copy the same part.
    pub notes: BTreeSet<ShardNote>,
    pub calls: Vec<CallCost>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    pub entry: String,
    /// New tokens, in all sequences together.
    pub tokens: usize,
    /// Bytes of state and weights; of weights that are looked up, only the rows.
    pub read: usize,
    /// The peak size of all activations that exist at the same time during the call, in bytes.
    pub activations: usize,
    /// The number of multiplications, additions and elementary functions that the device computes.
    pub flops: f64,
    /// In the order of execution.
    pub collectives: Vec<Collective>,
}

/// A lower bound of the time that one device needs for a call, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSeconds {
    /// Seconds for weights and state.
    pub read: f64,
    /// Seconds for arithmetic, which overlaps with reading.
    pub compute: f64,
    /// Seconds for communication, during which the device does no other work.
    pub exchange: f64,
}

impl DevicePartition {
    /// Without a mesh, for a single device.
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
            replicated: if shards.mesh.axes.is_empty() {
                BTreeMap::new()
            } else {
                whole.map(|p: &Parameter| (p.key.clone(), p.ty.bytes())).collect()
            },
            state,
            notes: shards.notes,
            calls,
        })
    }

    /// Bytes on one device.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// Bytes of the largest call.
    pub fn activation_bytes(&self) -> usize {
        self.calls.iter().map(|call| call.activations).max().unwrap_or(0)
    }

    /// Returns the total size of weights, state and activations on one device, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.weights + self.state_bytes() + self.activation_bytes()) as u64
    }

    /// Succeeds if the machine's memory is unknown.
    pub fn check(&self, machine: &NamedMachine) -> Result<(), TooLarge> {
        machine.memory.map_or(Ok(()), |total| self.fits(Phase::Device, 1, total))
    }

    /// For devices that share one memory.
    pub fn check_together(&self, memory: Memory) -> Result<(), TooLarge> {
        self.fits(Phase::Running, self.devices, memory.total)
    }

    /// Checks that `total` bytes are enough for the data of the given number of devices.
    fn fits(&self, what: Phase, devices: usize, total: u64) -> Result<(), TooLarge> {
        let [weights, state, activations] =
            [self.weights, self.state_bytes(), self.activation_bytes()].map(|bytes| devices * bytes);
        let needs = (weights + state + activations) as u64;
        if needs > total { Err(TooLarge { what, needs, weights, state, activations, total }) } else { Ok(()) }
    }
}

impl CallCost {
    /// Bytes that one device sends in a call, and as many that it receives.
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

/// The floating-point operations of one device. `parts` has the devices that share each node's computation.
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
