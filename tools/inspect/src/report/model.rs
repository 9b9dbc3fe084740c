//! The data of a report, which JSON, HTML and the drawings show.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tracewright::ops::OpClass;

/// Everything that is known of a network before it runs. As JSON, a graph collection for Google's Model
/// Explorer, which reads `label` and `graphs`, and of each node `id`, `label`, `namespace`, `incomingEdges`,
/// `outputsMetadata`, `subgraphIds` and `attrs`. `docs/guides/inspect.md` describes all fields.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkReport {
    pub label: String,
    /// Every function at every stage, called functions before their callers.
    pub graphs: Vec<FunctionGraph>,
    pub network: NetworkFacts,
    /// Sorted by key; one item for all repetitions of a layer.
    pub parameters: Vec<ParameterGroup>,
    /// The rewrite rules that matched any nodes of the trace, each with its equation.
    pub rules: Vec<RuleFacts>,
    pub memory: MemoryFacts,
    pub masks: Vec<MaskFacts>,
    /// The frequencies of rotary embeddings; each list of frequencies occurs only once.
    pub rotary: Vec<RotaryFacts>,
    /// By file and line number, with neighbouring lines.
    pub sources: BTreeMap<String, BTreeMap<u32, String>>,
    /// The measured time of a call of an entry point, if the report contains a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileFacts>,
}

/// The measured time of a call of an entry point.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileFacts {
    pub model: String,
    /// `decode` or `prefill`.
    pub case: String,
    pub entry: String,
    /// The options that were set when the network was built and measured, as words.
    pub variant: BTreeMap<String, String>,
    pub seconds: f64,
    /// The total time of all dispatches in seconds, measured in separate calls.
    pub dispatched: f64,
    /// The total time in seconds of those dispatches that belong to no recorded node.
    pub elsewhere: f64,
    /// Seconds per field path in all layers, the longest first.
    pub paths: Vec<PathTime>,
    /// The time in seconds for each dispatched function; the function with the longest time comes first.
    pub functions: Vec<FunctionTime>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PathTime {
    /// With `*` for the layer's number.
    pub path: String,
    /// The number of dispatches per call that compute at least some operations of the field.
    pub calls: f64,
    /// In all layers together.
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FunctionTime {
    pub function: String,
    /// Per call.
    pub calls: f64,
    /// The sum of all executions.
    pub seconds: f64,
    /// In all executions; `None` if unknown.
    pub bytes: Option<f64>,
    /// In all executions; `None` if unknown.
    pub flops: Option<f64>,
    pub paths: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    Traced,
    Simplified,
    Expanded,
}

#[derive(Clone, Debug, Serialize)]
pub struct NetworkFacts {
    pub element: String,
    pub context: usize,
    /// The number of tokens per sequence in one prefill call.
    pub chunk: usize,
    pub batch: usize,
    pub rules: String,
    /// Elements of all declared weights.
    pub parameters: usize,
    /// In a checkpoint with the network's element type.
    pub parameter_bytes: usize,
    /// The memory bandwidth in bytes per second of the machine that the cost model describes.
    pub bandwidth: f64,
    /// The arithmetic operations per second of the machine that the cost model describes.
    pub flops: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FunctionGraph {
    /// `traced/decode`.
    pub id: String,
    pub stage: Stage,
    pub function: String,
    pub entry: bool,
    /// Starts parameter keys; each call replaces it.
    pub prefix: String,
    /// The prefixes in the calls, in order; each call is a layer.
    pub layers: Vec<String>,
    /// For one call, with what it calls.
    pub cost: CostFacts,
    /// How often each rewrite rule matched between the previous compilation stage and this stage.
    pub fired: BTreeMap<String, usize>,
    /// Operands come before their node.
    pub nodes: Vec<NodeFacts>,
    pub results: Vec<ResultFacts>,
    /// The StableHLO statements of the function; the list is empty except at the last compilation stage.
    pub statements: Vec<StatementFacts>,
}

/// In the target's roofline model.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CostFacts {
    pub bytes: f64,
    /// Multiplications, additions and elementary functions.
    pub flops: f64,
    pub seconds: f64,
}

/// Determines the colour in drawings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeClass {
    Input,
    Parameter,
    /// The node is a constant, which is known when Tracewright records the network.
    Constant,
    /// With a weight, or of two activations.
    Product,
    Attention,
    /// The node is a norm, or another operation that sums along an axis.
    Reduction,
    Elementwise,
    /// The node only moves numbers in memory, and computes no new numbers.
    Movement,
    State,
    Call,
    Result,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// In its function.
    pub id: String,
    /// One or two words.
    pub label: String,
    /// The field path with slashes, or else the function's name.
    pub namespace: String,
    pub incoming_edges: Vec<EdgeFacts>,
    pub subgraph_ids: Vec<String>,
    pub attrs: Vec<AttributeFacts>,
    /// The types of the node's results, in the data format that graph viewers read.
    pub outputs_metadata: Vec<OutputFacts>,
    pub class: NodeClass,
    /// In the text form of a trace.
    pub text: String,
    pub types: Vec<TypeFacts>,
    /// For a call, of the called function.
    pub cost: CostFacts,
    /// Seconds per call of the function, from a profile; the mean over its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    pub path: String,
    pub file: String,
    pub line: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeFacts {
    pub source_node_id: String,
    /// The index of the operand among the results of the node that computes the operand.
    pub source_node_output_id: String,
    pub target_node_input_id: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct AttributeFacts {
    pub key: String,
    pub value: String,
}

/// The attributes of a node's result that graph viewers show.
#[derive(Clone, Debug, Serialize)]
pub struct OutputFacts {
    pub id: String,
    pub attrs: Vec<AttributeFacts>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeFacts {
    pub element: String,
    pub shape: Vec<usize>,
    /// Empty if unknown.
    pub axes: Vec<String>,
    pub bytes: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct ResultFacts {
    pub name: String,
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

/// The weights whose keys differ only in the number of the layer.
#[derive(Clone, Debug, Serialize)]
pub struct ParameterGroup {
    /// With `*` for the layer's number.
    pub key: String,
    pub keys: Vec<String>,
    /// In the archive.
    #[serde(rename = "type")]
    pub ty: TypeFacts,
    /// In the archive.
    pub stored: String,
    /// `None` for a tensor of the checkpoint.
    pub recipe: Option<String>,
    /// With `*` for the layer's number.
    pub sources: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RuleFacts {
    pub name: String,
    pub equation: String,
    pub fired: usize,
}

/// In bytes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryFacts {
    /// Bytes by storage format.
    pub weights: Vec<StoredFacts>,
    /// The number of bytes of weights that the program packs into copies at load time.
    pub repacked: usize,
    /// The number of bytes of the layers' state, by the kind of state (such as keys and values).
    pub state: BTreeMap<String, usize>,
    /// In bytes.
    pub activations: BTreeMap<String, usize>,
    /// In bytes.
    pub constants: usize,
    /// In bytes.
    pub running: u64,
    /// In bytes.
    pub compiling: usize,
}

/// The memory of all weights with the same storage format.
#[derive(Clone, Debug, Serialize)]
pub struct StoredFacts {
    pub stored: String,
    pub count: usize,
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MaskFacts {
    pub entries: Vec<String>,
    pub function: String,
    pub layers: Vec<String>,
    /// The conditions of the attention mask, which must all be true, in the text form of traces.
    pub terms: Vec<String>,
    pub queries: usize,
    pub keys: usize,
    pub scale: f64,
    /// The soft bound on the attention scores; `None` if the attention has no softcap.
    pub softcap: Option<f64>,
    pub groups: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RotaryFacts {
    pub layers: Vec<String>,
    pub positions: usize,
    /// The factor by which the rotary embedding multiplies the cosine and the sine.
    pub scaling: f64,
    /// For each pair of features, the rotation angle at position 1 in radians.
    pub frequencies: Vec<f64>,
}

impl TypeFacts {
    /// Returns the type as text, for example `bf16 [B 1, S 5, D 14]`.
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
    pub fn graph(&self, stage: Stage, function: &str) -> Option<&FunctionGraph> {
        self.graphs.iter().find(|graph| graph.stage == stage && graph.function == function)
    }

    /// Decodes single tokens, or is the last entry point.
    pub fn shown_first(&self, stage: Stage) -> Option<&FunctionGraph> {
        let entries = || self.stage(stage).filter(|graph| graph.entry);
        entries().find(|graph| graph.function == "decode").or_else(|| entries().next_back())
    }

    /// Called functions before their callers.
    pub fn stage(&self, stage: Stage) -> impl DoubleEndedIterator<Item = &FunctionGraph> {
        self.graphs.iter().filter(move |graph| graph.stage == stage)
    }
}

impl FunctionGraph {
    /// In the order of operands.
    pub fn operands(&self, node: &NodeFacts) -> impl Iterator<Item = &NodeFacts> {
        node.incoming_edges
            .iter()
            .filter_map(|edge| self.nodes.get(edge.source_node_id.parse::<usize>().ok()?))
    }
}
