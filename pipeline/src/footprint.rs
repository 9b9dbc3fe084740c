//! Computes the memory that a program needs from its trace, before anything is read, compiled or loaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use lower::{DenseReason, Sharding};
use ops::{ElementType, Form, LayoutOp, Literal, Op, OpClass, WeightFormat};
use sysinfo::{MemoryRefreshKind, Pid, Process, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};
use trace::{Function, NodeId, NodeKind, Parameter, ParameterConflict, Recipe, Role, Trace, key_pattern};

use crate::Expanded;

/// The memory that a program needs, in bytes.
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
    /// The weights, by storage format. Weights are memory-mapped, and calls read every byte of them.
    pub weights: BTreeMap<WeightStorage, WeightTotal>,
    /// The number of bytes of weights that every call reads. Weights from which calls only look up rows do
    /// not count.
    pub streamed: usize,
    /// The number of bytes of the copy of weights that the compiled program packs when it loads them. The
    /// number is 0 if kernels read the archive's own layout, or if the program reads weights directly from
    /// the memory-mapped file.
    pub repacked: usize,
    /// The number of bytes of state, by the kind of state. All entry points share the state.
    pub state: BTreeMap<String, usize>,
    /// For each entry point, an upper bound of the memory that a call needs in addition to weights and state.
    ///
    /// The bound is the sum of all values that the entry point itself computes, and of the values of the
    /// largest function that it calls. The compiler may reorder operations within a layer, but layers run one
    /// after another. Views need no memory, and an operation can overwrite an operand that nothing else
    /// reads. A KV cache counts twice if a call updates the cache and also reads a part of it, because IREE
    /// then copies the cache.
    pub activations: BTreeMap<String, usize>,
    /// The number of bytes of constants in the compiled module, such as rotary tables.
    pub constants: usize,
    /// An estimate of the memory of `iree-compile`, in bytes.
    pub compile: usize,
}

/// The storage format of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightStorage {
    /// The weight is stored in the layout that kernels read.
    Packed(WeightFormat),
    /// The weight is quantized and stored in the checkpoint's order.
    Grouped(WeightFormat),
    /// The weight is stored in the element type of the network, for the given reason.
    Plain(ElementType, DenseReason),
}

/// The weights with one storage format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightTotal {
    pub keys: Vec<String>,
    /// The patterns of the weights' keys in the checkpoint.
    pub patterns: BTreeSet<String>,
    /// The number of bytes that the weights take.
    pub bytes: usize,
}

/// The memory that a program may use, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory of the machine, or the limit of the process (`memory.max` of its control group).
    pub total: u64,
    /// The memory that is free, or that the system can free.
    pub available: u64,
}

/// The program does not fit into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {} of memory (weights {}, state {}, activations {}), but only {} are available",
    readable(*.needs), readable(*.weights as u64), readable(*.state as u64), readable(*.activations as u64),
    readable(*.total)
)]
pub struct TooLarge {
    pub what: Phase,
    pub needs: u64,
    /// The number of bytes that weights need.
    pub weights: usize,
    pub state: usize,
    pub activations: usize,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Running,
    Compiling,
    /// One device of a mesh.
    Device,
}

/// The memory that `iree-compile` 3.13 needs, in bytes: a fixed part, a part per operation, and a multiple of
/// the bytes of constants.
const COMPILER: usize = 160 << 20;
/// The number of bytes per operation, in addition to [`COMPILER`].
const COMPILED_NODE: usize = 12 << 10;
/// The number of bytes per byte of constants, in addition to [`COMPILER`].
const COMPILED_CONSTANT: usize = 8;

/// The number of bytes of a process that a footprint does not include: code, threads, and a small tokenizer.
/// `generate` needs at most 30 MB with the model in `demo`, which has 1.7 MB.
const PROCESS: usize = 32 << 20;

impl Footprint {
    /// The weights of each quantized format, if there are several formats.
    pub fn mixture(&self) -> Vec<(WeightFormat, &WeightTotal)> {
        let quantized = |(stored_as, stored): (&WeightStorage, _)| Some((stored_as.quantized()?, stored));
        let formats: Vec<_> = self.weights.iter().filter_map(quantized).collect();
        if formats.len() > 1 { formats } else { Vec::new() }
    }

    /// Computes the footprint of a program.
    ///
    /// # Errors
    /// Returns an error if a parameter has two types.
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
            stored.patterns.extend(read.parameter.sources().into_iter().map(|(key, _)| key_pattern(key)));
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

    /// The number of bytes of the archive, without its table.
    pub fn weight_bytes(&self) -> usize {
        self.weights.values().map(|stored| stored.bytes).sum()
    }

    /// The number of bytes of the state of all layers.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// The number of bytes of the largest activations of any entry point.
    pub fn activation_bytes(&self) -> usize {
        self.activations.values().copied().max().unwrap_or(0)
    }

    /// The number of bytes that a process needs to run the program.
    pub fn running(&self) -> u64 {
        // A module is read, and copied to where it stays.
        let parts = [self.repacked, self.activation_bytes(), 2 * self.constants, PROCESS, self.state_bytes()];
        (self.weight_bytes() + parts.iter().sum::<usize>()) as u64
    }

    /// Checks that the program can be compiled and run in this memory.
    ///
    /// # Errors
    /// Returns an error if the compiler or the program needs more memory.
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
    /// The memory that this process may use, if the system reports it.
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
    /// The storage format of a parameter that is declared with these keys.
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

/// The keys of weights from which calls only look up rows, in the functions that declare the weights.
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

/// The number of bytes of the constants that a module stores, each counted once. Constants with a single
/// value need no memory.
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

/// The number of bytes that `iree-compile` needs: a fixed part, all operations with calls inlined, and
/// constants, which the compiler parses as text.
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

/// For each function, the bytes that the function and the functions that it calls compute; see
/// [`Footprint::activations`].
fn computed(trace: &Trace) -> Vec<usize> {
    let mut found: Vec<Computed> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        found.push(Computed::of(function, &found));
    }
    found.into_iter().map(|computed| computed.bytes).collect()
}

struct Computed {
    /// The number of bytes that the function and the largest function that it calls compute, without its
    /// arguments.
    bytes: usize,
    /// For each result, the argument whose memory it reuses.
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

/// The number of nodes and results that read each node, among nodes that a result needs.
fn readers(function: &Function, live: &[bool]) -> Vec<usize> {
    let mut readers = vec![0; function.len()];
    let ids = function.ids().filter(|id| live[id.index()]);
    let read = ids.flat_map(|id| function.operands(id)).chain(function.outputs.iter().map(|o| o.node));
    read.for_each(|id| readers[id.index()] += 1);
    readers
}

/// The memory that an operation's result takes.
enum Room {
    /// The result needs no memory in addition to the call's arguments.
    None,
    /// The result uses the memory of another node.
    Of(NodeId),
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

/// The peak memory of a function without calls, in the order of its nodes, on one device of a mesh with these
/// shardings.
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

/// The argument of a call whose memory a result reuses.
fn argument_of(function: &Function, call: NodeId, result: usize, callees: &[Computed]) -> Option<NodeId> {
    let NodeKind::Call { function: callee, .. } = function.node(call).kind else { return None };
    let argument = callees[callee.0 as usize].in_place.get(result).copied()??;
    function.operands(call).get(argument).copied()
}

/// The peak memory of this process so far in bytes, if the system reports it.
pub fn peak_rss() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// A number of bytes, formatted for messages.
pub fn readable(bytes: u64) -> String {
    match bytes {
        0..10_000_000 => format!("{:.2} MB", bytes as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

impl WeightStorage {
    /// The format of a weight, if the weight is quantized.
    pub fn quantized(&self) -> Option<WeightFormat> {
        match self {
            Self::Packed(format) | Self::Grouped(format) => Some(*format).filter(|f| f.element().is_none()),
            Self::Plain(..) => None,
        }
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
