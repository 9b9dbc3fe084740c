//! Computes the second moments of the inputs of every matmul in a network. The module splits a text into
//! windows, and runs the network on each window. The network runs layer by layer. A layer processes all
//! windows of the text before the next layer is built. Therefore, the memory contains the weights of only one
//! layer, and the activations between two layers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::vec::IntoIter;

use bake::Moments;
use files::Scratch;
use irpa::{ArchiveError, Checkpoint};
use lower::Weights;
use ops::ops::{DotGeneral, Reshape};
use ops::{Array, ElementType, WeightUse};
use runtime::{Compiler, Runtime};
use trace::{Builder, Function, FunctionId, Ignorable, NodeId, NodeKind, Output, Quantization, Role, Trace};
use tracewright::build::{Build, BuildTools};
use tracewright::models::ModelKind;
use tracewright::{Lowered, Plan, PlanError, Program};

use crate::bisect::region::Region;
use crate::bisect::{BisectError, TokenCall, signature};

/// The network computes in f32.
pub struct Calibration<'a> {
    /// Context and chunk are the length of a window.
    pub plan: &'a Plan,
    /// Under the names that the network declares.
    pub checkpoint: &'a Checkpoint,
    pub tools: (&'a Compiler, &'a Path),
    pub runtime: Runtime,
}

/// The reason why the second moments cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A layer, or the code before the first layer, cannot be built or called.
    #[error(transparent)]
    Part(Box<BisectError>),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A layer reads a value that neither a layer nor the code before the first layer computes.
    #[error(
        "the weight `{path}` multiplies an activation that no layer returns, expected a network that consists of \
        consecutive layers; quantize without a calibration text"
    )]
    Between { path: String },
    /// A network that computes embeddings has no prefill calls, in which the layers could be observed.
    #[error(
        "the network computes embeddings, expected a network that predicts tokens; quantize without a calibration text"
    )]
    Embeds,
    #[error("the text has {found} tokens, expected at least the {window} tokens of one window")]
    Short { found: usize, window: usize },
    /// An activation is NaN or infinite, so the moments say nothing about a matrix.
    #[error(
        "a second moment of the inputs of `{key}` is {found}, expected a finite number; look for damaged weights with \
        `tracewright bisect`, or quantize without a calibration text"
    )]
    NotFinite { key: String, found: f32 },
    #[error("the calibration was interrupted")]
    Interrupted,
}

impl From<BisectError> for CalibrateError {
    fn from(error: BisectError) -> Self {
        Self::Part(Box::new(error))
    }
}

/// Contains the second moments of the inputs that a layer's matmuls read.
pub struct LayerMoments {
    /// The second moments of an input, and the matrices that multiply it.
    pub inputs: Vec<(Vec<String>, Moments)>,
}

impl Calibration<'_> {
    /// Passes the moments of matmul inputs to `each`, layer by layer. `watch` gets the finished and all
    /// layers, and can stop.
    pub fn run(
        &self,
        windows: &[Vec<u32>],
        mut each: impl FnMut(LayerMoments) -> Result<(), CalibrateError>,
        mut watch: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<(), CalibrateError> {
        if self.plan.model.kind != ModelKind::Text {
            return Err(CalibrateError::Embeds);
        }
        let trace = self.plan.record(&self.plan.steps())?.trace;
        let entry = Region::of_entry(&trace, ENTRY, Vec::new());
        let layers = Layers::of(&entry)?;
        let mut values = self.before_layers(&trace, &entry, &layers, windows)?;
        for (index, &call) in layers.calls.iter().enumerate() {
            if watch(index, layers.calls.len()).is_break() {
                return Err(CalibrateError::Interrupted);
            }
            let first = layers.first[&callee(entry.function(), call)];
            let sums = self.layer(&entry, (index, call, first), &layers, &mut values, windows.len())?;
            values.retain(|node, _| layers.last_use.get(node).is_some_and(|last| *last > index));
            let moments = |(keys, sums): InputSums| {
                let inputs = sums.len().isqrt();
                match sums.iter().find(|sum| !sum.is_finite()) {
                    Some(&found) => {
                        let key = keys.into_iter().next().unwrap_or_default();
                        Err(CalibrateError::NotFinite { key, found })
                    }
                    None => Ok((keys, Moments::new(&sums, inputs))),
                }
            };
            let inputs = sums.into_iter().map(moments).collect::<Result<_, _>>()?;
            each(LayerMoments { inputs })?;
        }
        Ok(())
    }

    /// Computes what layers read that depends on no layer, such as embeddings.
    fn before_layers(
        &self,
        trace: &Trace,
        entry: &Region,
        layers: &Layers,
        windows: &[Vec<u32>],
    ) -> Result<Values, CalibrateError> {
        let (signature, function) = (signature(trace, ENTRY)?, entry.function());
        let mut values = Values::new();
        let mut program = None;
        let computed: Vec<NodeId> = layers.before.iter().copied().collect();
        for window in windows {
            let length = window.len();
            let call = TokenCall { entry: ENTRY.into(), start: 0, tokens: window.clone(), length };
            let arguments = call.arguments(&signature, &HashMap::new());
            let arguments: Vec<Array> = arguments.iter().map(Array::from).collect();
            if values.is_empty() {
                for id in function.ids() {
                    if let NodeKind::Input { index, .. } = &function.node(id).kind
                        && layers.last_use.contains_key(&id)
                    {
                        let by_window = signature.arguments[*index].role == Role::Tokens;
                        let known = if by_window { Vec::new() } else { vec![arguments[*index].clone()] };
                        values.insert(id, known);
                    }
                }
            }
            let program = match &program {
                Some(program) => program,
                None => {
                    let outputs = computed.iter().map(|&id| (format!("node{}", id.index()), id));
                    let part = with_outputs(entry, function.clone(), outputs.collect());
                    program.insert(self.built(&part, self.checkpoint)?)
                }
            };
            let results = program.call(ENTRY, &arguments).map_err(BisectError::from)?;
            for (&id, result) in computed.iter().zip(results) {
                let known = values.entry(id).or_default();
                if known.is_empty() || layers.by_window.contains(&id) {
                    known.push(without_axes(&result));
                }
            }
        }
        Ok(values)
    }

    /// Runs a layer (position `index`, function called by `first`, weights of `call`) on all windows. Stores
    /// its results in `values`, drops those that no later layer reads, and returns XᵀX for each input X of a
    /// matmul.
    fn layer(
        &self,
        entry: &Region,
        (index, call, first): (usize, NodeId, NodeId),
        layers: &Layers,
        values: &mut Values,
        windows: usize,
    ) -> Result<Vec<InputSums>, CalibrateError> {
        let region = entry.of_call(first, Vec::new());
        let mut function = region.function().clone();
        let results = layers.results(entry.function(), call);
        let mut outputs: Vec<(String, NodeId)> = results
            .iter()
            .map(|&(index, _)| (function.outputs[index].name.clone(), function.outputs[index].node))
            .collect();
        let inputs = matmul_inputs(&function);
        let (own, theirs) = (prefix(entry.function(), call), prefix(entry.function(), first));
        for (place, (input, _)) in inputs.iter().enumerate() {
            outputs.push((format!("sums{place}"), sums_in(&mut function, *input)?));
        }
        let name = function.name.clone();
        let part = with_outputs(&region, function, outputs);
        let checkpoint =
            self.checkpoint.clone().revised(|mut tensor| match tensor.name.strip_prefix(&*own) {
                Some(rest) => {
                    tensor.name = format!("{theirs}{rest}");
                    Some(tensor)
                }
                None => (!tensor.name.starts_with(&*theirs)).then_some(tensor),
            });
        let program = self.built(&part, &checkpoint)?;
        let mut sums: Vec<Vec<f32>> = vec![Vec::new(); inputs.len()];
        let operands = entry.function().operands(call);
        let mut ending: HashMap<NodeId, IntoIter<Array>> = HashMap::new();
        for operand in operands.iter().filter(|&operand| layers.last_use.get(operand) == Some(&index)) {
            if values.get(operand).is_some_and(|known| known.len() > 1)
                && let Some(known) = values.remove(operand)
            {
                ending.insert(*operand, known.into_iter());
            }
        }
        for window in 0..windows {
            let last = ending.iter_mut().filter_map(|(&id, known)| Some((id, known.next()?)));
            let last: HashMap<NodeId, Array> = last.collect();
            let arguments: Vec<Array> = operands
                .iter()
                .map(|operand| match last.get(operand) {
                    Some(value) => value.clone(),
                    None => {
                        let known = &values[operand];
                        known[if known.len() == 1 { 0 } else { window }].clone()
                    }
                })
                .collect();
            drop(last);
            let mut found = program.call(&name, &arguments).map_err(BisectError::from)?.into_iter();
            for (&(_, node), value) in results.iter().zip(found.by_ref()) {
                values.entry(node).or_default().push(without_axes(&value));
            }
            for (sums, found) in sums.iter_mut().zip(found) {
                let found = found.bytes().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                if sums.is_empty() {
                    sums.extend(found)
                } else {
                    sums.iter_mut().zip(found).for_each(|(sum, found)| *sum += found)
                }
            }
        }
        let named = |keys: Vec<String>| {
            let own_key = |key: String| match key.strip_prefix(&*theirs) {
                Some(rest) => format!("{own}{rest}"),
                None => key,
            };
            keys.into_iter().map(own_key).collect()
        };
        Ok(inputs.into_iter().zip(sums).map(|((_, keys), sums)| (named(keys), sums)).collect())
    }

    /// Builds and loads the program `part`, such as one layer of the network.
    fn built(&self, part: &Trace, checkpoint: &Checkpoint) -> Result<Program, CalibrateError> {
        let (compiler, cache) = self.tools;
        let weights = Weights { quantize: Quantization::Computed, ..self.plan.weights.clone() };
        let (rules, target) = (self.plan.rules, self.plan.target.clone());
        let all = vec![Ignorable::Prefix("")];
        let lowered = Lowered::new(part, rules, target, weights, all).map_err(BisectError::from)?;
        let build = Build::new(lowered, part, checkpoint, BuildTools::new(compiler, cache));
        let mut build = build.map_err(BisectError::from)?;
        let folder = Scratch::new_in(&std::env::temp_dir()).map_err(BisectError::from)?;
        let (archive, _) = build.bake(&folder.path().join("part.irpa")).map_err(BisectError::from)?;
        let module = build.instantiate(&self.runtime, &archive).map_err(BisectError::from)?;
        let signatures = build.lowered.module.signatures;
        Ok(Program::new(&self.runtime, &module, signatures).map_err(BisectError::from)?)
    }
}

/// Reads a window.
const ENTRY: &str = "prefill";

/// Contains the matrix XᵀX for an input X, and the keys of all weight matrices that multiply X.
type InputSums = (Vec<String>, Vec<f32>);

/// One value per window, or one for all.
type Values = HashMap<NodeId, Vec<Array>>;

/// The layers of an entry point, and what they read.
struct Layers {
    /// In the order of execution.
    calls: Vec<NodeId>,
    /// By layer function.
    first: HashMap<FunctionId, NodeId>,
    /// Read by layers, but independent of them, such as embeddings.
    before: BTreeSet<NodeId>,
    /// The nodes in `before` whose values depend on the tokens, so each window has a separate value.
    by_window: BTreeSet<NodeId>,
    /// The last layer that reads each node.
    last_use: HashMap<NodeId, usize>,
}

impl Layers {
    fn of(entry: &Region) -> Result<Self, CalibrateError> {
        let function = entry.function();
        let signature = function.signature();
        // Whether a node depends on tokens, and on a layer.
        let mut depends: Vec<[bool; 2]> = Vec::with_capacity(function.len());
        let mut layers = Self {
            calls: Vec::new(),
            first: HashMap::new(),
            before: BTreeSet::new(),
            by_window: BTreeSet::new(),
            last_use: HashMap::new(),
        };
        for id in function.ids() {
            let node = function.node(id);
            let operands = function.operands(id);
            let any = |which: usize| operands.iter().any(|operand| depends[operand.index()][which]);
            let mut own = [any(0), any(1)];
            match &node.kind {
                NodeKind::Input { index, .. } => own[0] = signature.arguments[*index].role == Role::Tokens,
                NodeKind::Call { function: callee, .. } => {
                    for &operand in &operands {
                        layers.last_use.insert(operand, layers.calls.len());
                        match &function.node(operand).kind {
                            NodeKind::Input { .. } | NodeKind::Result { .. } => {}
                            _ if depends[operand.index()][1] => {
                                let path = node.provenance.path.to_string();
                                return Err(CalibrateError::Between { path });
                            }
                            _ => {
                                layers.before.insert(operand);
                                if depends[operand.index()][0] {
                                    layers.by_window.insert(operand);
                                }
                            }
                        }
                    }
                    layers.first.entry(*callee).or_insert(id);
                    layers.calls.push(id);
                    own[1] = true;
                }
                _ => {}
            }
            depends.push(own);
        }
        Ok(layers)
    }

    /// Index and node of results that later layers read.
    fn results(&self, function: &Function, call: NodeId) -> Vec<(usize, NodeId)> {
        let result = |id: NodeId| match &function.node(id).kind {
            NodeKind::Result { index } if function.operands(id) == [call] => Some((*index, id)),
            _ => None,
        };
        function.ids().filter(|id| self.last_use.contains_key(id)).filter_map(result).collect()
    }
}

/// A layer and its caller can name an axis differently.
fn without_axes(array: &Array) -> Array {
    Array::from_bytes(array.ty().clone(), Vec::new(), array.bytes().to_vec())
}

fn callee(function: &Function, call: NodeId) -> FunctionId {
    match &function.node(call).kind {
        NodeKind::Call { function, .. } => *function,
        _ => unreachable!("layers are calls"),
    }
}

/// Starts the keys of a call's weights.
fn prefix(function: &Function, call: NodeId) -> String {
    match &function.node(call).kind {
        NodeKind::Call { prefix, .. } => format!("{prefix}."),
        _ => unreachable!("layers are calls"),
    }
}

fn with_outputs(region: &Region, mut function: Function, outputs: Vec<(String, NodeId)>) -> Trace {
    function.outputs = outputs.into_iter().map(|(name, node)| Output::new(name, node)).collect();
    region.with(vec![function])
}

/// With the keys of the matrices that multiply each.
fn matmul_inputs(function: &Function) -> Vec<(NodeId, Vec<String>)> {
    let mut inputs: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
    for id in function.ids() {
        let NodeKind::Op(op) = &function.node(id).kind else { continue };
        let operands = function.operands(id);
        if op.weight_use() != Some(WeightUse::Matmul) {
            continue;
        }
        if let NodeKind::Parameter(parameter) = &function.node(operands[1]).kind {
            let keys = parameter.sources().into_iter().map(|(key, _)| key.to_owned());
            inputs.entry(operands[0]).or_default().extend(keys);
        }
    }
    inputs.into_iter().collect()
}

fn sums_in(function: &mut Function, input: NodeId) -> Result<NodeId, BisectError> {
    sums_of_products(function, input).map_err(|source| {
        let provenance = function.node(input).provenance.clone();
        let (name, node) = (function.name.clone(), input.index());
        lower::LowerError::Infer { function: name, node, provenance, source: source.into() }.into()
    })
}

/// Adds nodes that compute XᵀX for the activation X. The last axis of the activation contains the features.
fn sums_of_products(function: &mut Function, x: NodeId) -> Result<NodeId, ops::InferError> {
    let provenance = function.node(x).provenance.clone();
    let b = &mut Builder { function, provenance };
    let shape = b.ty(x).shape.clone();
    let features = shape.last().copied().unwrap_or(1);
    let tokens = shape.iter().product::<usize>() / features.max(1);
    let x = b.op(Reshape { shape: vec![tokens, features] }, &[x])?;
    let x = b.convert(x, ElementType::F32)?;
    let product = DotGeneral {
        left_batch: vec![],
        right_batch: vec![],
        left_contract: vec![0],
        right_contract: vec![0],
        element: ElementType::F32,
    };
    b.op(product, &[x, x])
}
