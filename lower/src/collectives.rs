//! Derives the collectives that a program needs when it runs on a device mesh. Like XLA's
//! partitioner, this module propagates the sharding of arguments and weights forward through the
//! operations. If an operation sums over a partitioned axis, the module inserts an all-reduce.

use std::collections::HashMap;
use std::fmt;

use ops::{Op, TensorType};
use targets::MeshAxis;
use trace::{Function, NodeId, NodeKind};

use crate::{EntryShards, Sharding, Shards};

/// The sharding of each value in an entry point, and the collectives that the sharding requires.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collectives {
    /// The sharding of the value of each node, by node index.
    pub shardings: Vec<Sharding>,
    /// For each node, the number of devices among which the computation of the node is divided. If the mesh
    /// has more devices than this number, the additional devices repeat the same computation.
    pub parts: Vec<usize>,
    /// The collectives of the entry point, in execution order.
    pub collectives: Vec<Collective>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    pub kind: CollectiveKind,
    /// The type of the collective's result on each device.
    pub ty: TensorType,
    /// The number of devices in each group that exchanges data.
    pub devices: usize,
    /// The node whose value the devices exchange.
    pub node: NodeId,
}

/// The kind of collective, which is a data exchange between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CollectiveKind {
    /// Before an all-reduce, each device has one term of a sum or, for a maximum, one candidate.
    /// After the all-reduce, each device has the complete sum or maximum.
    AllReduce,
    /// Before an all-gather, each device has one part of a tensor. After the all-gather, each
    /// device has the complete tensor.
    AllGather,
}

impl Collective {
    /// Returns the number of bytes that each device sends for the collective in a ring of n devices. In an
    /// all-reduce, each device sends 2(n−1)/n of the result's bytes; in an all-gather, each device sends
    /// (n−1)/n of the bytes. No algorithm for an all-reduce or an all-gather sends fewer bytes than the ring.
    ///
    /// Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    /// workstations" (2009).
    pub fn sent_bytes(&self) -> f64 {
        let turns = match self.kind {
            CollectiveKind::AllReduce => 2.0,
            CollectiveKind::AllGather => 1.0,
        };
        turns * (self.devices - 1) as f64 / self.devices as f64 * self.ty.bytes() as f64
    }
}

/// Prints the collective under the name that HLO uses.
impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
        })
    }
}

impl Shards {
    /// The collectives that one call of an entry point executes. The entry point must contain only
    /// primitive operations, and the trace must be [inlined](trace::Trace::inlined).
    pub fn collectives(&self, entry: &Function) -> Collectives {
        let nothing = EntryShards { arguments: Vec::new(), results: Vec::new() };
        let declared = self.entries.get(&entry.name).unwrap_or(&nothing);
        let mut walk = Walk { entry, done: Collectives::default(), gathered: HashMap::new() };
        let live = entry.live();
        for id in entry.ids() {
            let (sharding, parts) = match &entry.node(id).kind {
                _ if !live[id.index()] => walk.whole(id),
                NodeKind::Input { index, .. } => given(declared.arguments.get(*index), entry, id),
                NodeKind::Parameter(parameter) => given(self.weights.get(&parameter.key), entry, id),
                NodeKind::Op(op) => walk.operation(id, op),
                NodeKind::Call { .. } | NodeKind::Result { .. } => walk.whole(id),
            };
            walk.done.shardings.push(sharding);
            walk.done.parts.push(parts);
        }
        for (output, wanted) in entry.outputs.iter().zip(&declared.results) {
            for axis in 0..wanted.0.len() {
                walk.gather_beyond(output.node, axis, wanted.0[axis].len());
            }
        }
        walk.done
    }
}

/// The sharding that the program declares for a node.
fn given(declared: Option<&Sharding>, entry: &Function, id: NodeId) -> (Sharding, usize) {
    let whole = || Sharding(vec![Vec::new(); entry.node(id).ty().rank()]);
    let sharding = declared.cloned().unwrap_or_else(whole);
    let parts = sharding.parts();
    (sharding, parts)
}

struct Walk<'a> {
    entry: &'a Function,
    done: Collectives,
    /// The sharding of a node's value after an all-gather has gathered the value. Later operations
    /// of the program read the gathered value of the node.
    gathered: HashMap<NodeId, Sharding>,
}

impl Walk<'_> {
    fn whole(&self, id: NodeId) -> (Sharding, usize) {
        let rank = self.entry.node(id).types.first().map_or(0, TensorType::rank);
        (Sharding(vec![Vec::new(); rank]), 1)
    }

    fn operation(&mut self, id: NodeId, op: &Op) -> (Sharding, usize) {
        let operands = self.entry.operands(id);
        let ty = self.entry.node(id).ty();
        if let Op::Reshape(_) = op {
            return self.reshaped(operands[0], ty);
        }
        let types: Vec<&TensorType> = operands.iter().map(|&operand| self.entry.node(operand).ty()).collect();
        let loops = op.iteration_space(&types, ty);
        let mut divided: Vec<Vec<MeshAxis>> = vec![Vec::new(); loops.count];
        // In a gather, the sharding of the indices has priority over the sharding of the table's rows.
        let mut order: Vec<(&NodeId, &Vec<Option<usize>>)> = operands.iter().zip(&loops.operands).collect();
        if let Op::Gather(_) = op {
            order.reverse();
        }
        for (&operand, axes) in order {
            for (axis, at) in axes.iter().enumerate() {
                let found = self.sharding(operand).0[axis].clone();
                let Some(at) = *at else {
                    self.gather_beyond(operand, axis, 0);
                    continue;
                };
                let common = found.iter().zip(&divided[at]).take_while(|(a, b)| a == b).count();
                if common == found.len() {
                    continue;
                }
                // Each mesh axis divides at most one loop. A tensor that is partitioned differently is gathered.
                let free = |axis: &MeshAxis| divided.iter().all(|taken| !taken.contains(axis));
                let fits = common == divided[at].len();
                let more =
                    if fits { found[common..].iter().take_while(|axis| free(axis)).count() } else { 0 };
                self.gather_beyond(operand, axis, common + more);
                divided[at].extend_from_slice(&found[common..common + more]);
            }
        }
        let of_result = |at: &Option<usize>| at.map_or(Vec::new(), |at| divided[at].clone());
        let sharding = Sharding(loops.result.iter().map(of_result).collect());
        let summed = (0..loops.count).filter(|at| !loops.result.contains(&Some(*at)));
        let devices: usize = summed.flat_map(|at| &divided[at]).map(|axis| axis.size).product();
        if devices > 1 {
            let (kind, ty) = (CollectiveKind::AllReduce, sharding.local(ty));
            self.done.collectives.push(Collective { kind, ty, devices, node: id });
        }
        (sharding, divided.iter().flatten().map(|axis| axis.size).product())
    }

    /// Returns the sharding of a node's value that the next operation reads.
    fn sharding(&self, id: NodeId) -> &Sharding {
        self.gathered.get(&id).unwrap_or(&self.done.shardings[id.index()])
    }

    /// Gathers a value along one axis of the tensor. After the gather, only the first `keep` mesh
    /// axes still partition the gathered tensor axis.
    fn gather_beyond(&mut self, id: NodeId, axis: usize, keep: usize) {
        let mut sharding = self.sharding(id).clone();
        let Some(lost) = sharding.0[axis].get(keep..).filter(|lost| !lost.is_empty()) else { return };
        let devices = lost.iter().map(|axis| axis.size).product();
        sharding.0[axis].truncate(keep);
        let ty = sharding.local(self.entry.node(id).ty());
        self.gathered.insert(id, sharding);
        self.done.collectives.push(Collective { kind: CollectiveKind::AllGather, ty, devices, node: id });
    }

    /// Computes the sharding of a tensor after a reshape. If the reshape merges several axes into one axis,
    /// or splits one axis into several axes, the result is partitioned along the first of these axes.
    fn reshaped(&mut self, operand: NodeId, ty: &TensorType) -> (Sharding, usize) {
        let from = self.entry.node(operand).ty();
        let mut sharding = vec![Vec::new(); ty.rank()];
        for (before, after) in groups(&from.shape, &ty.shape) {
            let mut along: Vec<MeshAxis> = Vec::new();
            let mut filled = true;
            for axis in before {
                let divided = self.sharding(operand).0[axis].clone();
                if !filled {
                    self.gather_beyond(operand, axis, 0);
                    continue;
                }
                let parts: usize = divided.iter().map(|axis| axis.size).product();
                along.extend(divided);
                filled = parts == from.shape[axis];
            }
            let mut places = after.map(|axis| (axis, ty.shape[axis])).collect::<Vec<_>>().into_iter();
            let mut place = places.next();
            for over in along {
                while place.is_some_and(|(_, left)| left == 1) {
                    place = places.next();
                }
                match &mut place {
                    Some((axis, left)) if left.is_multiple_of(over.size) => {
                        *left /= over.size;
                        sharding[*axis].push(over);
                    }
                    _ => {
                        // The part of a device would end inside a row of the new shape, so the
                        // value is gathered first.
                        let (kind, node) = (CollectiveKind::AllGather, operand);
                        let ty = Sharding(sharding.clone()).local(ty);
                        self.done.collectives.push(Collective { kind, ty, devices: over.size, node });
                        place = None;
                    }
                }
            }
        }
        let sharding = Sharding(sharding);
        let parts = sharding.parts();
        (sharding, parts)
    }
}

/// Divides the axes before and after a reshape into the smallest groups that have equal numbers of elements.
fn groups(from: &[usize], to: &[usize]) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
    let (mut first, mut second) = (0, 0);
    let mut found = Vec::new();
    while first < from.len() && second < to.len() {
        let (begun, started) = (first, second);
        let (mut before, mut after) = (from[first], to[second]);
        (first, second) = (first + 1, second + 1);
        while before != after {
            if before < after && first < from.len() {
                before *= from[first];
                first += 1;
            } else if second < to.len() {
                after *= to[second];
                second += 1;
            } else {
                return found;
            }
        }
        found.push((begun..first, started..second));
    }
    found
}
