//! Computes the memory, the operations and the communication of one device of a mesh, from the trace alone.

use std::collections::{BTreeMap, BTreeSet};

use lower::{Collective, ShardNote, Shards};
use ops::CostOperand;
use ops::Op;
use targets::{Machine, NamedMachine};
use trace::{Function, NodeId, NodeKind, Parameter, ParameterConflict, Role};

use crate::Expanded;
use crate::footprint::{Memory, Phase, TooLarge, only_looked_up, peak};

/// The memory and the operations of each device of a mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePartition {
    pub devices: usize,
    /// The number of bytes of the device's parts of all weights.
    pub weights: usize,
    /// The weights of which every device stores a whole copy, with their bytes. The field `weights` includes
    /// these bytes.
    pub replicated: BTreeMap<String, usize>,
    /// The number of bytes of state, by the kind of state.
    pub state: BTreeMap<String, usize>,
    /// Tensors that are partitioned along only a part of the mesh axis that a rule names.
    pub notes: BTreeSet<ShardNote>,
    /// The calls of each entry point that chooses tokens.
    pub calls: Vec<CallCost>,
}

/// One device's part of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    pub entry: String,
    /// The number of new tokens in all sequences.
    pub tokens: usize,
    /// The number of bytes of all state, and of the weights that the call reads. If the call only looks up
    /// rows of a weight, only these rows count.
    pub read: usize,
    /// The largest number of bytes of values that exist at the same time.
    pub activations: usize,
    /// The number of multiplications, additions and elementary functions.
    pub flops: f64,
    /// The collectives, in the order in which the call runs them.
    pub collectives: Vec<Collective>,
}

/// The shortest time of a device's part of a call, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSeconds {
    /// The seconds that reading weights and state takes.
    pub read: f64,
    /// The seconds of computation, which overlaps with reading.
    pub compute: f64,
    /// The seconds of communication, which overlaps with no other work.
    pub exchange: f64,
}

impl DevicePartition {
    /// Computes the part of a program on each device. Shards without a mesh describe a single device.
    ///
    /// # Errors
    /// Returns an error if a parameter has two types.
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

    /// The number of bytes of the state of all layers.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// The number of bytes of the largest activations of any call.
    pub fn activation_bytes(&self) -> usize {
        self.calls.iter().map(|call| call.activations).max().unwrap_or(0)
    }

    /// The number of bytes of weights, state and activations together.
    pub fn bytes(&self) -> u64 {
        (self.weights + self.state_bytes() + self.activation_bytes()) as u64
    }

    /// Checks that the machine has enough memory, if its memory is known.
    ///
    /// # Errors
    /// Returns an error if the device needs more memory.
    pub fn check(&self, machine: &NamedMachine) -> Result<(), TooLarge> {
        machine.memory.map_or(Ok(()), |total| self.fits(Phase::Device, 1, total))
    }

    /// Checks that the parts of all devices together fit into one memory.
    ///
    /// # Errors
    /// Returns an error if the devices need more memory.
    pub fn check_together(&self, memory: Memory) -> Result<(), TooLarge> {
        self.fits(Phase::Running, self.devices, memory.total)
    }

    /// Checks that the parts of this number of devices fit into `total` bytes.
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
    /// The number of bytes that the device sends to other devices. The device receives the same number of
    /// bytes.
    pub fn sent(&self) -> f64 {
        self.collectives.iter().map(Collective::sent_bytes).sum()
    }

    /// The shortest time of the call on such a machine, by a roofline model.
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

/// The number of arithmetic operations on one of the devices over which the computation of each node is
/// partitioned.
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
