//! What a program will hold in memory, known from its trace before anything is read, compiled or loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use lower::{DenseReason, Sharding};
use ops::{ElementType, Form, LayoutOp, Literal, Op, OpClass, WeightFormat};
use sysinfo::{MemoryRefreshKind, Pid, Process, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};
use trace::{Function, NodeId, NodeKind, Parameter, ParameterConflict, Recipe, Role, Trace};

use crate::Expanded;

/// What a program will hold in memory, in bytes.
///
/// ```
/// use dsl::EntryPoint;
/// use models::{Architecture as _, presets::Preset};
/// use ops::ElementType;
/// use tracewright_pipeline::{Expanded, Footprint};
///
/// let model = Preset::named("llama-3.2-1b").ok_or("it has this name")?.read()?;
/// let trace = model.trace(ElementType::Bf16, &EntryPoint::steps(1, 128, 512))?.trace;
/// let expanded = Expanded::new(&trace, Default::default(), Default::default(), Default::default())?;
/// let footprint = Footprint::of(&expanded)?;
/// assert_eq!(footprint.weight_bytes(), 2 * 1_235_814_400);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// The weights, by how the archive stores them. They are mapped, and every byte of them is looked at.
    pub weights: BTreeMap<WeightStorage, WeightTotal>,
    /// What every call reads of the weights: all but those of which only rows are looked up.
    pub streamed: usize,
    /// The copy that the compiler's program packs of weights when it is loaded; 0 where kernels read the archive's own
    /// layout, or weights are read where they are mapped.
    pub repacked: usize,
    /// What layers remember, by kind of state; all entry points share it.
    pub state: BTreeMap<String, usize>,
    /// Of each entry point: what a call computes and holds beside weights and state, at most.
    ///
    /// That is the sum of all values that the entry point computes itself, and of all that the largest of the functions
    /// does that it calls: inside a layer the compiler may reorder, one layer follows the other. Views take no room, and an
    /// operation takes over an operand that nothing else reads. So a cache counts again where a call reads a part of
    /// it beside the update: IREE copies it then.
    pub activations: BTreeMap<String, usize>,
    /// The constants in the compiled module: rotary tables.
    pub constants: usize,
    /// What `iree-compile` holds while it compiles, estimated.
    pub compile: usize,
}

/// How a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightStorage {
    /// In the layout that kernels read.
    Packed(WeightFormat),
    /// Quantized, in the order of the checkpoint.
    Grouped(WeightFormat),
    /// As the network computes with it, and why.
    Plain(ElementType, DenseReason),
}

/// Weights that are stored in one way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightTotal {
    /// Their keys in the archive.
    pub keys: Vec<String>,
    /// Their bytes.
    pub bytes: usize,
}

/// The memory that a program may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it: the machine's, or what the process is limited to (`memory.max` of its control group).
    pub total: u64,
    /// What is free of it, or could be.
    pub available: u64,
}

/// A program that cannot fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {}, of which weights {}, state {}, activations {}; there are {}",
    readable(*.needs), readable(*.weights as u64), readable(*.state as u64), readable(*.activations as u64),
    readable(*.total)
)]
pub struct TooLarge {
    pub what: Phase,
    pub needs: u64,
    /// What the weights need of it.
    pub weights: usize,
    pub state: usize,
    pub activations: usize,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The network, loaded and called.
    Running,
    Compiling,
    /// One device of those among which the network is divided.
    Device,
}

/// What `iree-compile` 3.13 holds beside the module, for each operation of it, and for each byte of its constants.
const COMPILER: usize = 160 << 20;
/// See [`COMPILER`].
const COMPILED_NODE: usize = 12 << 10;
/// See [`COMPILER`].
const COMPILED_CONSTANT: usize = 8;

/// What a process holds beside all that a footprint counts: code, threads, a small tokenizer. `generate` with the model
/// in `demo`, of 1.7 MB, peaks at 30 MB.
const PROCESS: usize = 32 << 20;

impl Footprint {
    /// The footprint of a program.
    ///
    /// # Errors
    /// If one parameter has two types.
    pub fn of(program: &Expanded) -> Result<Self, ParameterConflict> {
        let (trace, target) = (&program.trace, &program.target);
        let reads = trace.reads()?.entries;
        let looked_up = only_looked_up(trace);
        let mut weights: BTreeMap<WeightStorage, WeightTotal> = BTreeMap::new();
        let (mut streamed, mut plain_matrices) = (0, 0);
        for (key, read) in &reads {
            let bytes = read.parameter.ty.bytes();
            let stored = weights.entry(program.stored_as(&read.parameter, &read.origins)).or_default();
            stored.keys.push(key.clone());
            stored.bytes += bytes;
            if !read.origins.is_subset(&looked_up) {
                streamed += bytes;
            }
            if !read.parameter.is_packed() && read.parameter.ty.rank() > 1 {
                plain_matrices += bytes;
            }
        }
        let largest = reads.values().map(|read| &read.parameter).max_by_key(|p| p.ty.bytes());
        let repacks =
            largest.is_some_and(|p| !p.is_packed() && target.repacks(p.ty.element == ElementType::Bf16));
        let entries = || trace.entries.iter().map(|&id| trace.function(id));
        let mut state: BTreeMap<String, usize> = BTreeMap::new();
        let keeps = |one: &trace::Argument| matches!(one.role, Role::State { .. } | Role::Memory { .. });
        let kept = entries().map(|entry| entry.signature().arguments).find(|all| all.iter().any(keeps));
        for argument in kept.unwrap_or_default() {
            let kind = match argument.role {
                Role::State { part, .. } => part.kind.to_string(),
                Role::Memory { .. } => "memory".to_owned(),
                _ => continue,
            };
            *state.entry(kind).or_default() += argument.ty.bytes();
        }
        let computed = computed(trace);
        let activations = entries()
            .map(|entry| entry.name.clone())
            .zip(trace.entries.iter().map(|id| computed[id.0 as usize]));
        let constants = constants(trace);
        Ok(Self {
            weights,
            streamed,
            repacked: if repacks { plain_matrices } else { 0 },
            state,
            activations: activations.collect(),
            constants,
            compile: compile(trace, constants),
        })
    }

    /// Bytes of the archive, but for its directory.
    pub fn weight_bytes(&self) -> usize {
        self.weights.values().map(|stored| stored.bytes).sum()
    }

    /// Bytes that layers remember.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// Bytes that the entry point with the largest activations computes.
    pub fn activation_bytes(&self) -> usize {
        self.activations.values().copied().max().unwrap_or(0)
    }

    /// What the process needs that runs the program.
    pub fn running(&self) -> u64 {
        // A module is read, and copied to where it stays.
        let parts = [self.repacked, self.activation_bytes(), 2 * self.constants, PROCESS, self.state_bytes()];
        (self.weight_bytes() + parts.iter().sum::<usize>()) as u64
    }

    /// Whether the program can be compiled and run in so much memory.
    ///
    /// # Errors
    /// What cannot fit.
    pub fn check(&self, memory: Memory) -> Result<(), TooLarge> {
        for (what, needs) in [(Phase::Running, self.running()), (Phase::Compiling, self.compile as u64)] {
            if needs > memory.total {
                let (weights, state) = (self.weight_bytes() + self.repacked, self.state_bytes());
                let (activations, total) = (self.activation_bytes(), memory.total);
                return Err(TooLarge { what, needs, weights, state, activations, total });
            }
        }
        Ok(())
    }
}

impl Memory {
    /// What this process may use, where the system tells.
    pub fn of_machine() -> Option<Self> {
        let mut system = System::new_with_specifics(
            RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
        )
        .ok()?;
        let whole = Self { total: system.total_memory(), available: system.available_memory() };
        let this = Pid::from_u32(std::process::id());
        system.refresh_processes_specifics(
            ProcessesToUpdate::Some(&[this]),
            true,
            ProcessRefreshKind::nothing(),
        );
        Some(match system.process(this).and_then(Process::cgroup_limits) {
            Some(limits) => Self {
                total: whole.total.min(limits.total_memory),
                available: whole.available.min(limits.free_memory),
            },
            None => whole,
        })
    }
}

impl Expanded {
    /// How a parameter that was declared with these keys is stored.
    fn stored_as(&self, parameter: &Parameter, origins: &BTreeSet<String>) -> WeightStorage {
        if let Some(Recipe::Op(op, _)) = parameter.recipe.as_deref()
            && let Form::Archive(stored) = op.form()
        {
            return match stored {
                LayoutOp::Pack(pack) => WeightStorage::Packed(pack.format),
                LayoutOp::Quantize(quantize) => WeightStorage::Grouped(quantize.format),
            };
        }
        let why = origins.iter().find_map(|key| self.formats.get(key)?.err());
        // What only became a weight when composites were expanded is part of none that is packed.
        WeightStorage::Plain(parameter.ty.element, why.unwrap_or(DenseReason::NoMatrix))
    }
}

/// The keys, in the functions that declare them, of weights of which only rows are looked up.
pub(crate) fn only_looked_up(trace: &Trace) -> BTreeSet<String> {
    let (mut looked_up, mut read) = (BTreeSet::new(), BTreeSet::new());
    for function in &trace.functions {
        for id in function.ids() {
            for (position, operand) in function.operands(id).into_iter().enumerate() {
                let NodeKind::Parameter(parameter) = &function.node(operand).kind else { continue };
                let looks_up = matches!(&function.node(id).kind, NodeKind::Op(op) if op.picks_rows());
                let keys = if looks_up && position == 0 { &mut looked_up } else { &mut read };
                keys.insert(parameter.key.clone());
            }
        }
    }
    &looked_up - &read
}

/// Bytes of the constants that a module has to store, each once. One value everywhere takes no room.
fn constants(trace: &Trace) -> usize {
    let mut found: BTreeSet<&Literal> = BTreeSet::new();
    for function in &trace.functions {
        found.extend(function.ids().filter_map(|id| match &function.node(id).kind {
            NodeKind::Op(Op::Constant(constant)) => Some(&constant.value),
            _ => None,
        }));
    }
    found.iter().filter(|literal| literal.as_splat().is_none()).map(|literal| literal.ty().bytes()).sum()
}

/// What `iree-compile` holds: itself, every operation with all calls inlined, and constants, which it reads as text.
fn compile(trace: &Trace, constants: usize) -> usize {
    let mut inlined: Vec<usize> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        let nodes = function.ids().map(|id| match function.node(id).kind {
            NodeKind::Call { function, .. } => inlined[function.0 as usize],
            _ => 1,
        });
        inlined.push(nodes.sum());
    }
    let nodes: usize = trace.entries.iter().map(|id| inlined[id.0 as usize]).sum();
    COMPILER + nodes * COMPILED_NODE + constants * COMPILED_CONSTANT
}

/// Of each function: bytes of what it and its callees compute; see [`Footprint::activations`].
fn computed(trace: &Trace) -> Vec<usize> {
    let mut found: Vec<Computed> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        found.push(Computed::of(function, &found));
    }
    found.into_iter().map(|computed| computed.bytes).collect()
}

struct Computed {
    /// Bytes of what it and the largest of its callees compute, its arguments not counted.
    bytes: usize,
    /// Of each result: the argument whose memory it is in.
    in_place: Vec<Option<usize>>,
}

impl Computed {
    fn of(function: &Function, callees: &[Self]) -> Self {
        let live = function.live();
        let ids = || function.ids().filter(|id| live[id.index()]);
        let readers = readers(function, &live);
        // Of each node: the one in whose memory it is.
        let mut home: Vec<NodeId> = function.ids().collect();
        let (mut own, mut inside) = (0, 0);
        for id in ids() {
            let node = function.node(id);
            let room = match &node.kind {
                NodeKind::Input { .. } | NodeKind::Parameter(_) => continue,
                NodeKind::Op(op) => Room::of(function, id, op, &readers),
                NodeKind::Call { function: callee, .. } => {
                    inside = inside.max(callees[callee.0 as usize].bytes);
                    continue;
                }
                NodeKind::Result { index } => {
                    argument_of(function, function.operands(id)[0], *index, callees)
                        .map_or(Room::Own, Room::Of)
                }
            };
            match room {
                Room::None => {}
                Room::Of(other) => home[id.index()] = home[other.index()],
                Room::Own => own += node.ty().bytes(),
            }
        }
        let argument = |id: NodeId| match function.node(home[id.index()]).kind {
            NodeKind::Input { index, .. } => Some(index),
            _ => None,
        };
        let in_place = function.outputs.iter().map(|output| argument(output.node)).collect();
        Self { bytes: own + inside, in_place }
    }
}

/// How many nodes and results read each node, of those that a result needs.
fn readers(function: &Function, live: &[bool]) -> Vec<usize> {
    let mut readers = vec![0; function.len()];
    let ids = function.ids().filter(|id| live[id.index()]);
    let read = ids.flat_map(|id| function.operands(id)).chain(function.outputs.iter().map(|o| o.node));
    read.for_each(|id| readers[id.index()] += 1);
    readers
}

/// Where the result of an operation is.
enum Room {
    /// In no memory that a call needs beside its arguments.
    None,
    /// In that of another node.
    Of(NodeId),
    /// In memory of its own.
    Own,
}

impl Room {
    fn of(function: &Function, id: NodeId, op: &Op, readers: &[usize]) -> Self {
        let operands = function.operands(id);
        let shared = match op {
            // What attention reads as it is stored.
            Op::Dequantize(_) => return Self::None,
            op if op.class() == OpClass::Constant => return Self::None,
            op if op.is_view() => operands.first().copied(),
            op => operands.into_iter().find(|&operand| {
                op.in_place()
                    && readers[operand.index()] == 1
                    && function.node(operand).ty() == function.node(id).ty()
            }),
        };
        shared.map_or(Self::Own, Self::Of)
    }
}

/// Bytes of what a function without calls computes and holds at once, at most, in the order of its nodes: on one of the devices
/// among which each node is divided like this.
pub(crate) fn peak(function: &Function, shardings: &[Sharding]) -> usize {
    let live = function.live();
    let readers = readers(function, &live);
    let mut home: Vec<NodeId> = function.ids().collect();
    let mut bytes = vec![0; function.len()];
    let mut last: Vec<NodeId> = function.ids().collect();
    for id in function.ids().filter(|id| live[id.index()]) {
        if let NodeKind::Op(op) = &function.node(id).kind {
            match Room::of(function, id, op, &readers) {
                Room::None => {}
                Room::Of(other) => home[id.index()] = home[other.index()],
                Room::Own => bytes[id.index()] = shardings[id.index()].local(function.node(id).ty()).bytes(),
            }
        }
        for operand in function.operands(id) {
            last[home[operand.index()].index()] = id;
        }
        last[home[id.index()].index()] = id;
    }
    let end = NodeId::new(function.len());
    function.outputs.iter().for_each(|output| last[home[output.node.index()].index()] = end);
    let mut freed = vec![0; function.len() + 1];
    function.ids().for_each(|id| freed[last[id.index()].index()] += bytes[id.index()]);
    let (mut held, mut most) = (0, 0);
    for id in function.ids() {
        held += bytes[id.index()];
        most = most.max(held);
        held -= freed[id.index()];
    }
    most
}

/// The argument of a call in whose memory one of its results is.
fn argument_of(function: &Function, call: NodeId, result: usize, callees: &[Computed]) -> Option<NodeId> {
    let NodeKind::Call { function: callee, .. } = function.node(call).kind else { return None };
    let argument = callees[callee.0 as usize].in_place.get(result).copied()??;
    function.operands(call).get(argument).copied()
}

/// The most memory that this process ever held, in bytes, where the system tells.
pub fn peak_rss() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// Bytes as messages show them.
pub fn readable(bytes: u64) -> String {
    match bytes {
        0..10_000_000 => format!("{:.2} MB", bytes as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

impl fmt::Display for WeightStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packed(format) => write!(f, "{}, packed", format.word()),
            Self::Grouped(format) => write!(f, "{}, in the checkpoint's order", format.word()),
            Self::Plain(element, why) => write!(f, "{element}, {why}"),
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "the network",
            Self::Compiling => "its compilation",
            Self::Device => "each device",
        })
    }
}
