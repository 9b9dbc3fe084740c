//! Computes the memory that a program needs. The computation uses only the trace, so Tracewright
//! can check the memory before reading a checkpoint and before compiling the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;

use lower::{DenseReason, Sharding};
use ops::{ElementType, Form, LayoutOp, Literal, Op, OpClass, WeightFormat};
use sysinfo::{MemoryRefreshKind, Pid, Process, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};
use targets::Backend;
use trace::{Function, NodeId, NodeKind, Parameter, ParameterConflict, Recipe, Role, Trace, key_pattern};

use crate::Expanded;

/// The amount of memory that a program needs, in bytes.
///
/// ```
/// use dsl::EntryPoint;
/// use models::{Architecture as _, presets::Preset};
/// use ops::ElementType;
/// use tracewright_program::{Expanded, Footprint};
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
    /// By storage format. All are mapped into memory.
    pub weights: BTreeMap<WeightStorage, WeightTotal>,
    /// Bytes that every call reads completely; not those of which it looks up rows, such as an embedding.
    pub streamed: usize,
    /// Bytes that the program copies and repacks at its start: none if the archive has the kernels' layout,
    /// or the mapped file is read directly.
    pub repacked: usize,
    /// Bytes of each kind of state, such as `kv.keys`. All entry points share it.
    pub state: BTreeMap<String, usize>,
    /// An upper bound of the bytes of each entry point's activations.
    ///
    /// It adds all values of the entry point to those of its largest layer: one layer runs at a time, and the
    /// compiler may reorder within it. Views, and results that can overwrite an operand that nothing else
    /// reads, take nothing. A cache that a call updates and also reads counts twice, because IREE copies it.
    pub activations: BTreeMap<String, usize>,
    /// The size of all constants in the compiled module, such as rotary tables, in bytes.
    pub constants: usize,
    /// An estimate of the memory that `iree-compile` needs, in bytes.
    pub compile: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightStorage {
    /// The weight is stored in the packed layout that Tracewright's kernels read.
    Packed(WeightFormat),
    /// The weight is quantized and stored in the checkpoint's order.
    Grouped(WeightFormat),
    /// In the network's element type, and why.
    Plain(ElementType, DenseReason),
}

/// The total size and the keys of all weights that have the same storage format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightTotal {
    pub keys: Vec<String>,
    /// Keys in the checkpoint, with `*` for a layer's number.
    pub patterns: BTreeSet<String>,
    /// The size of all weights together.
    pub bytes: usize,
}

/// Bytes that a program can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The machine's, or the process's limit (`memory.max` of the control group).
    pub total: u64,
    /// Free memory, and what the system can free.
    pub available: u64,
}

/// The error about a program that does not fit into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {} of memory (weights {}, state {}, activations {}), but only {} are available",
    readable(*.needs), readable(*.weights as u64), readable(*.state as u64), readable(*.activations as u64),
    readable(*.total)
)]
pub struct TooLarge {
    pub what: Phase,
    pub needs: u64,
    pub weights: usize,
    pub state: usize,
    pub activations: usize,
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Running,
    Compiling,
    /// The program runs on one device of a mesh, so the error is about the memory of one device.
    Device,
}

/// `iree-compile` 3.13 needs this beside memory for each operation and for constants.
const COMPILER: usize = 160 << 20;
/// For each operation, the memory that `iree-compile` needs in addition to [`COMPILER`], in bytes.
const COMPILED_NODE: usize = 12 << 10;
/// For each byte of constants, the memory that `iree-compile` needs in addition to [`COMPILER`], in bytes.
const COMPILED_CONSTANT: usize = 8;

/// Code, threads and a small tokenizer. `generate` needs at most 30 MB with the model in `demo` (1.7 MB).
const PROCESS: usize = 32 << 20;

impl Footprint {
    /// Each quantized format, if there are several.
    pub fn mixture(&self) -> Vec<(WeightFormat, &WeightTotal)> {
        let quantized = |(stored_as, stored): (&WeightStorage, _)| Some((stored_as.quantized()?, stored));
        let formats: Vec<_> = self.weights.iter().filter_map(quantized).collect();
        if formats.len() > 1 { formats } else { Vec::new() }
    }

    /// Computes how much memory a program needs.
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
        let keeps = |one: &trace::Argument| {
            matches!(one.role, Role::State { .. } | Role::Memory { .. } | Role::LowRank)
        };
        let kept = entries().map(|entry| entry.signature().arguments).find(|all| all.iter().any(keeps));
        for argument in kept.unwrap_or_default() {
            let kind = match argument.role {
                Role::State { part, .. } => part.kind.to_string(),
                Role::Memory { .. } => "memory".to_owned(),
                Role::LowRank => "adapters".to_owned(),
                _ => continue,
            };
            *state.entry(kind).or_default() += argument.ty.bytes();
        }
        let computed = computed(trace, target.backend == Backend::Xla);
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

    pub fn weight_bytes(&self) -> usize {
        self.weights.values().map(|stored| stored.bytes).sum()
    }

    /// Returns the size of the state of all layers, such as the KV cache, in bytes.
    pub fn state_bytes(&self) -> usize {
        self.state.values().sum()
    }

    /// Returns the largest size of an entry point's activations, in bytes.
    pub fn activation_bytes(&self) -> usize {
        self.activations.values().copied().max().unwrap_or(0)
    }

    pub fn running(&self) -> u64 {
        // A module is read, and copied to where it stays.
        let parts = [self.repacked, self.activation_bytes(), 2 * self.constants, PROCESS, self.state_bytes()];
        (self.weight_bytes() + parts.iter().sum::<usize>()) as u64
    }

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
    /// Returns the memory that this process may use, if the system reports this number.
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
    /// `origins` are the keys under which the network declares it.
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

/// Weights of which functions only look up rows, such as an embedding.
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

/// Different constants of a module; those of equal elements need nothing.
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

/// An estimate for `iree-compile`, by the operations after inlining, and by the constants, which it parses as
/// text.
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

/// With the functions that each calls: see [`Footprint::activations`].
fn computed(trace: &Trace, in_xla: bool) -> Vec<usize> {
    let mut found: Vec<Computed> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        found.push(Computed::of(function, &found, in_xla));
    }
    found.into_iter().map(|computed| computed.bytes).collect()
}

struct Computed {
    /// All computed values, and those of the largest called function, without the arguments.
    bytes: usize,
    /// For each result, contains the index of the argument whose memory the result reuses, or `None`.
    in_place: Vec<Option<usize>>,
}

impl Computed {
    fn of(function: &Function, callees: &[Self], in_xla: bool) -> Self {
        let live = function.live();
        let ids = || function.ids().filter(|id| live[id.index()]);
        let readers = readers(function, &live);
        // Of each node: the one in whose memory it is.
        let mut home: Vec<NodeId> = function.ids().collect();
        let (mut own, mut inside) = (0, 0);
        let fused = FusedWeights::of(function, &live, in_xla);
        for id in ids() {
            let node = function.node(id);
            let room = match &node.kind {
                NodeKind::Input { .. } | NodeKind::Parameter(_) => continue,
                NodeKind::Op(_) if fused.is_part[id.index()] => {
                    // XLA dequantizes one weight after the other into the same memory.
                    inside = inside.max(fused.bytes(function, id));
                    continue;
                }
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

/// Only nodes that the results need read their operands; a result reads its node.
fn readers(function: &Function, live: &[bool]) -> Vec<usize> {
    let mut readers = vec![0; function.len()];
    let ids = function.ids().filter(|id| live[id.index()]);
    let read = ids.flat_map(|id| function.operands(id)).chain(function.outputs.iter().map(|o| o.node));
    read.for_each(|id| readers[id.index()] += 1);
    readers
}

/// Describes where the result of an operation is stored in memory.
enum Room {
    /// For example a constant, which is a part of the module.
    None,
    /// The result of the operation is stored in the memory of another node.
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

/// XLA fuses dequantization with a sum of products. For a matmul, it writes the dequantized weight to memory.
struct FusedWeights {
    /// Nodes that dequantize.
    is_part: Vec<bool>,
    /// Nodes that a matmul reads.
    is_written: Vec<bool>,
}

impl FusedWeights {
    /// Empty for other compilers.
    fn of(function: &Function, live: &[bool], in_xla: bool) -> Self {
        let nothing = || vec![false; function.len()];
        let (mut is_part, mut is_written) = (nothing(), nothing());
        let mut is_weight = nothing();
        for id in function.ids().filter(|id| in_xla && live[id.index()]) {
            let operands = function.operands(id);
            match &function.node(id).kind {
                NodeKind::Parameter(parameter) => is_weight[id.index()] = is_grouped(parameter),
                NodeKind::Op(op) => {
                    let reads = operands.iter().any(|operand| is_weight[operand.index()]);
                    let fuses = op.class() == OpClass::Elementwise || is_broadcast(op) || op.is_view();
                    is_part[id.index()] = reads && fuses;
                    is_weight[id.index()] = reads && fuses;
                    if op.class() == OpClass::Matmul {
                        operands.iter().for_each(|operand| is_written[operand.index()] = true);
                    }
                }
                _ => {}
            }
        }
        // XLA also fuses the broadcasts of other operands of the sum of products.
        let mut only_fused = vec![in_xla; function.len()];
        for id in function.ids().filter(|id| live[id.index()] && !is_part[id.index()]) {
            function.operands(id).iter().for_each(|operand| only_fused[operand.index()] = false);
        }
        function.outputs.iter().for_each(|output| only_fused[output.node.index()] = false);
        for id in function.ids().filter(|id| live[id.index()]) {
            if let NodeKind::Op(op) = &function.node(id).kind {
                is_part[id.index()] |= only_fused[id.index()] && is_broadcast(op);
            }
        }
        Self { is_part, is_written }
    }

    /// Returns the size of the dequantized weight that XLA writes to memory, or 0.
    fn bytes(&self, function: &Function, id: NodeId) -> usize {
        if self.is_written[id.index()] { function.node(id).ty().bytes() } else { 0 }
    }
}

fn is_broadcast(op: &Op) -> bool {
    matches!(op, Op::BroadcastInDim(_))
}

fn is_grouped(parameter: &Parameter) -> bool {
    matches!(parameter.recipe.as_deref(), Some(Recipe::Op(Op::Quantize(_), _)))
}

/// On one device of a mesh, for a function without calls that executes its nodes in order.
pub(crate) fn peak(function: &Function, shardings: &[Sharding]) -> usize {
    let live = function.live();
    let readers = readers(function, &live);
    let fused = FusedWeights::of(function, &live, true);
    let mut home: Vec<NodeId> = function.ids().collect();
    let mut bytes = vec![0; function.len()];
    let mut last: Vec<NodeId> = function.ids().collect();
    for id in function.ids().filter(|id| live[id.index()]) {
        if let NodeKind::Op(op) = &function.node(id).kind {
            match Room::of(function, id, op, &readers) {
                _ if fused.is_part[id.index()] && fused.bytes(function, id) == 0 => {}
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

/// The argument whose memory the result reuses.
fn argument_of(function: &Function, call: NodeId, result: usize, callees: &[Computed]) -> Option<NodeId> {
    let NodeKind::Call { function: callee, .. } = function.node(call).kind else { return None };
    let argument = callees[callee.0 as usize].in_place.get(result).copied()??;
    function.operands(call).get(argument).copied()
}

/// Returns the peak memory of this process so far in bytes, if the system reports this number.
pub fn peak_rss() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

pub fn readable(bytes: u64) -> String {
    match bytes {
        0..10_000_000 => format!("{:.2} MB", bytes as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

impl WeightStorage {
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
