//! The data of a report, which all its output formats show.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tracewright::ops::OpClass;

/// Everything known about a network before it runs.
///
/// The serialized form is a graph collection of Google's Model Explorer with further fields. The Model
/// Explorer reads `label`, `graphs`, and for each node `id`, `label`, `namespace`, `incomingEdges`,
/// `outputsMetadata`, `subgraphIds` and `attrs`. `docs/guides/inspect.md` describes all fields.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkReport {
    pub label: String,
    /// Every function of every stage; a function comes before the functions that call it.
    pub graphs: Vec<FunctionGraph>,
    /// The sizes and types of the network.
    pub network: NetworkFacts,
    /// The weights, sorted by key. The weights of repeated layers share an entry.
    pub parameters: Vec<ParameterGroup>,
    /// The rewrite rules that found a match, with their equations.
    pub rules: Vec<RuleFacts>,
    /// The memory of the program.
    pub memory: MemoryFacts,
    /// The attention masks, in each function that has a mask.
    pub masks: Vec<MaskFacts>,
    /// The frequencies of rotary embeddings, each listed once.
    pub rotary: Vec<RotaryFacts>,
    /// The source lines of nodes and the lines around them, by file and line number.
    pub sources: BTreeMap<String, BTreeMap<u32, String>>,
    /// The measured time of a call, if there is a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileFacts>,
}

/// The measured time of a call of an entry point.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileFacts {
    /// The name of the model that was measured.
    pub model: String,
    /// The name of the measured case: `decode` or `prefill`.
    pub case: String,
    pub entry: String,
    /// The options with which the network was built and measured, as words.
    pub variant: BTreeMap<String, String>,
    pub seconds: f64,
    /// The seconds of all dispatches, measured in separate calls.
    pub dispatched: f64,
    /// The seconds of all dispatches that belong to no recorded node.
    pub elsewhere: f64,
    /// The seconds by field path, with all layers together; the longest time comes first.
    pub paths: Vec<PathTime>,
    /// The seconds by dispatched function; the longest time comes first.
    pub functions: Vec<FunctionTime>,
}

/// The time of the operations of a field.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathTime {
    /// The field path, with `*` for the layer.
    pub path: String,
    /// The number of dispatches per call that compute a part of the field.
    pub calls: f64,
    /// The seconds of all layers together.
    pub seconds: f64,
}

/// The time of a function that a device executed.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionTime {
    pub function: String,
    /// The number of executions per call.
    pub calls: f64,
    /// The seconds of all executions together.
    pub seconds: f64,
    /// The number of bytes that the executions read and write, if it is known.
    pub bytes: Option<f64>,
    /// The number of operations that the executions compute, if it is known.
    pub flops: Option<f64>,
    pub paths: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The trace as the declaration records it.
    Traced,
    Simplified,
    Expanded,
}

/// The sizes and types for which a network was recorded.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkFacts {
    /// The type of weights and activations.
    pub element: String,
    pub context: usize,
    /// The number of tokens of a sequence per prefill call.
    pub chunk: usize,
    pub batch: usize,
    pub rules: String,
    /// The number of elements in all declared weights.
    pub parameters: usize,
    /// The number of bytes of these weights in a checkpoint with this element type.
    pub parameter_bytes: usize,
    /// The bytes per second of the machine that the cost model describes.
    pub bandwidth: f64,
    /// The operations per second of the machine that the cost model describes.
    pub flops: f64,
}

/// One function of the trace at one stage.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionGraph {
    /// The stage and the name of the function: `traced/decode`.
    pub id: String,
    pub stage: Stage,
    pub function: String,
    /// Whether the function can be called from outside.
    pub entry: bool,
    /// The prefix that calls replace in the keys of parameters.
    pub prefix: String,
    /// The prefixes of the function's calls in order; each call is a layer.
    pub layers: Vec<String>,
    /// The cost of a call, including the functions that it calls.
    pub cost: CostFacts,
    /// How often each rewrite rule matched on the way from the previous stage.
    pub fired: BTreeMap<String, usize>,
    /// The nodes of the function; operands come before the nodes that use them.
    pub nodes: Vec<NodeFacts>,
    pub results: Vec<ResultFacts>,
    /// The function in StableHLO, for the last stage only.
    pub statements: Vec<StatementFacts>,
}

/// The cost of a node or function by the target's roofline.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CostFacts {
    pub bytes: f64,
    /// The number of multiplications, additions and elementary functions.
    pub flops: f64,
    pub seconds: f64,
}

/// The class of a node, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeClass {
    Input,
    Parameter,
    /// A value that is known when the network is recorded.
    Constant,
    /// A matmul with a weight, or of two tensors.
    Product,
    Attention,
    /// A norm, or another sum over an axis.
    Reduction,
    Elementwise,
    /// An operation that moves numbers and computes none.
    Movement,
    State,
    Call,
    Result,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// The number of the node in its function.
    pub id: String,
    /// A short label of one or two words.
    pub label: String,
    /// The field path with slashes; the function's name if there is no path.
    pub namespace: String,
    pub incoming_edges: Vec<EdgeFacts>,
    /// The graphs of the function that the node calls.
    pub subgraph_ids: Vec<String>,
    pub attrs: Vec<AttributeFacts>,
    /// The types of the node's results, for viewers.
    pub outputs_metadata: Vec<OutputFacts>,
    pub class: NodeClass,
    /// The node in the text form of a trace.
    pub text: String,
    pub types: Vec<TypeFacts>,
    /// The cost of the node; for a call, the cost of the function that it calls.
    pub cost: CostFacts,
    /// The measured seconds per call of the function; for a function with several calls, the mean of the
    /// calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    pub path: String,
    pub file: String,
    pub line: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeFacts {
    /// The node that computes the operand.
    pub source_node_id: String,
    /// The index of the result of this node.
    pub source_node_output_id: String,
    pub target_node_input_id: String,
}

/// An attribute that viewers show.
#[derive(Clone, Debug, Serialize)]
pub struct AttributeFacts {
    pub key: String,
    pub value: String,
}

/// The facts about a result that viewers show.
#[derive(Clone, Debug, Serialize)]
pub struct OutputFacts {
    pub id: String,
    pub attrs: Vec<AttributeFacts>,
}

/// A type with the names of its axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeFacts {
    pub element: String,
    pub shape: Vec<usize>,
    /// The names of the axes; empty if the names are unknown.
    pub axes: Vec<String>,
    pub bytes: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct ResultFacts {
    pub name: String,
    /// The role of the result, if the function is an entry point.
    pub role: String,
    pub node: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct StatementFacts {
    pub text: String,
    pub path: String,
    pub file: String,
    pub line: u32,
}

/// The weights whose keys differ only in the layer.
#[derive(Clone, Debug, Serialize)]
pub struct ParameterGroup {
    /// The key, with `*` for the layer.
    pub key: String,
    pub keys: Vec<String>,
    /// The type of each weight in the archive.
    #[serde(rename = "type")]
    pub ty: TypeFacts,
    /// The storage format in the archive.
    pub stored: String,
    /// The recipe that computes the weight from the checkpoint's tensors; `None` if the weight is a tensor of
    /// the checkpoint.
    pub recipe: Option<String>,
    /// The tensors that the recipe reads, with `*` for the layer.
    pub sources: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RuleFacts {
    pub name: String,
    pub equation: String,
    /// How often the rule matched, in all functions.
    pub fired: usize,
}

/// The memory of the program, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryFacts {
    /// The weights, by storage format.
    pub weights: Vec<StoredFacts>,
    /// The number of bytes of the copy of weights that is packed at load time.
    pub repacked: usize,
    /// The number of bytes of the layers' state, by the kind of state.
    pub state: BTreeMap<String, usize>,
    /// The number of bytes of the activations of a call, by entry point.
    pub activations: BTreeMap<String, usize>,
    /// The number of bytes of tables in the compiled module.
    pub constants: usize,
    /// The number of bytes that a running program needs.
    pub running: u64,
    /// An estimate of the compiler's memory in bytes.
    pub compiling: usize,
}

/// The weights with one storage format.
#[derive(Clone, Debug, Serialize)]
pub struct StoredFacts {
    pub stored: String,
    pub count: usize,
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MaskFacts {
    /// The entry points that call the function.
    pub entries: Vec<String>,
    pub function: String,
    /// The layers that are calls of the function.
    pub layers: Vec<String>,
    /// The conditions that must all be true, in the text form.
    pub terms: Vec<String>,
    /// The number of queries per call.
    pub queries: usize,
    pub keys: usize,
    pub scale: f64,
    /// The soft bound on the attention scores.
    pub softcap: Option<f64>,
    /// The number of query heads per key head.
    pub groups: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RotaryFacts {
    pub layers: Vec<String>,
    pub positions: usize,
    /// The factor by which cosine and sine are multiplied.
    pub scaling: f64,
    /// For each pair of features, its angle at position 1 in radians.
    pub frequencies: Vec<f64>,
}

impl TypeFacts {
    /// The type of the value as text, for example `bf16 [B 1, S 5, D 14]`.
    pub fn named(&self) -> String {
        let axis = |(i, extent): (usize, &usize)| match self.axes.get(i) {
            Some(name) if name != "_" && !name.contains('=') => format!("{name} {extent}"),
            _ => extent.to_string(),
        };
        let axes: Vec<String> = self.shape.iter().enumerate().map(axis).collect();
        format!("{} [{}]", self.element, axes.join(", "))
    }
}

impl std::ops::AddAssign for CostFacts {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.flops += other.flops;
        self.seconds += other.seconds;
    }
}

impl Stage {
    pub const ALL: [Self; 3] = [Self::Traced, Self::Simplified, Self::Expanded];

    pub fn name(self) -> &'static str {
        match self {
            Self::Traced => "traced",
            Self::Simplified => "simplified",
            Self::Expanded => "expanded",
        }
    }
}

impl From<OpClass> for NodeClass {
    fn from(class: OpClass) -> Self {
        match class {
            OpClass::Constant => Self::Constant,
            OpClass::Elementwise => Self::Elementwise,
            OpClass::Movement => Self::Movement,
            OpClass::Reduction => Self::Reduction,
            OpClass::Matmul => Self::Product,
            OpClass::Attention => Self::Attention,
            OpClass::State => Self::State,
        }
    }
}

impl NodeClass {
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Parameter => "parameter",
            Self::Constant => "constant",
            Self::Product => "product",
            Self::Attention => "attention",
            Self::Reduction => "reduction",
            Self::Elementwise => "elementwise",
            Self::Movement => "movement",
            Self::State => "state",
            Self::Call => "call",
            Self::Result => "result",
        }
    }
}

impl NetworkReport {
    /// The graph of a function at a stage.
    pub fn graph(&self, stage: Stage, function: &str) -> Option<&FunctionGraph> {
        self.graphs.iter().find(|graph| graph.stage == stage && graph.function == function)
    }

    /// The graph that is shown by default: the function that generates single tokens, or otherwise the last
    /// entry point.
    pub fn shown_first(&self, stage: Stage) -> Option<&FunctionGraph> {
        let entries = || self.stage(stage).filter(|graph| graph.entry);
        entries().find(|graph| graph.function == "decode").or_else(|| entries().next_back())
    }

    /// The graphs of a stage; a function comes before the functions that call it.
    pub fn stage(&self, stage: Stage) -> impl DoubleEndedIterator<Item = &FunctionGraph> {
        self.graphs.iter().filter(move |graph| graph.stage == stage)
    }
}

impl FunctionGraph {
    /// The nodes that a node reads, in the order of its operands.
    pub fn operands(&self, node: &NodeFacts) -> impl Iterator<Item = &NodeFacts> {
        node.incoming_edges
            .iter()
            .filter_map(|edge| self.nodes.get(edge.source_node_id.parse::<usize>().ok()?))
    }
}
