//! The data of a report, which JSON, HTML and the drawings show.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tracewright::ops::OpClass;

/// Everything that Tracewright knows about a network before you run the network.
///
/// The JSON text of a report is a graph collection for Google's Model Explorer, with additional
/// fields. The Model Explorer reads `label` and `graphs`. For each node, the Model Explorer reads
/// `id`, `label`, `namespace`, `incomingEdges`, `outputsMetadata`, `subgraphIds` and `attrs`. The
/// guide `docs/guides/inspect.md` describes all fields of the JSON text.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkReport {
    pub label: String,
    /// The graphs of every function at every compilation stage. The graph of a function comes
    /// before the graphs of its callers.
    pub graphs: Vec<FunctionGraph>,
    /// The sizes (such as the context length) and the element type with which Tracewright recorded
    /// the network.
    pub network: NetworkFacts,
    /// The weights of the network, sorted by key. The list contains the weights of all repetitions
    /// of a layer as a single item.
    pub parameters: Vec<ParameterGroup>,
    /// The rewrite rules that matched any nodes of the trace, each with its equation.
    pub rules: Vec<RuleFacts>,
    /// The memory that the program needs.
    pub memory: MemoryFacts,
    /// The attention masks of each function that has a mask.
    pub masks: Vec<MaskFacts>,
    /// The frequencies of rotary embeddings; each list of frequencies occurs only once.
    pub rotary: Vec<RotaryFacts>,
    /// The source lines that declare the nodes, together with the neighbouring lines, by file and
    /// line number.
    pub sources: BTreeMap<String, BTreeMap<u32, String>>,
    /// The measured time of a call of an entry point, if the report contains a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileFacts>,
}

/// The measured time of a call of an entry point.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileFacts {
    /// The name of the model whose time was measured.
    pub model: String,
    /// The name of the measured benchmark case: `decode` or `prefill`.
    pub case: String,
    pub entry: String,
    /// The options that were set when the network was built and measured, as words.
    pub variant: BTreeMap<String, String>,
    pub seconds: f64,
    /// The total time of all dispatches in seconds, measured in separate calls.
    pub dispatched: f64,
    /// The total time in seconds of those dispatches that belong to no recorded node.
    pub elsewhere: f64,
    /// The time in seconds for each field path, summed over all layers; the path with the longest
    /// time comes first.
    pub paths: Vec<PathTime>,
    /// The time in seconds for each dispatched function; the function with the longest time comes first.
    pub functions: Vec<FunctionTime>,
}

/// The time of the operations that one field of the network declares.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathTime {
    /// The field path, with `*` in place of the layer's number.
    pub path: String,
    /// The number of dispatches per call that compute at least some operations of the field.
    pub calls: f64,
    /// The time in seconds of the field in all layers together.
    pub seconds: f64,
}

/// The time of a function that a device executed.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionTime {
    pub function: String,
    /// The number of executions of the dispatched function per call.
    pub calls: f64,
    /// The time in seconds of all executions of the function together.
    pub seconds: f64,
    /// The number of bytes that all executions of the function read and store; `None` if the number
    /// is unknown.
    pub bytes: Option<f64>,
    /// The number of arithmetic operations in all executions of the function; `None` if the number
    /// is unknown.
    pub flops: Option<f64>,
    pub paths: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The trace that Tracewright recorded from the declaration of the network.
    Traced,
    Simplified,
    Expanded,
}

/// The sizes and the element type with which Tracewright recorded a network.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkFacts {
    /// The element type of the network's weights and activations.
    pub element: String,
    pub context: usize,
    /// The number of tokens per sequence in one prefill call.
    pub chunk: usize,
    pub batch: usize,
    pub rules: String,
    /// The number of elements of all declared weights of the network together.
    pub parameters: usize,
    /// The number of bytes of all declared weights in a checkpoint with the element type of the network.
    pub parameter_bytes: usize,
    /// The memory bandwidth in bytes per second of the machine that the cost model describes.
    pub bandwidth: f64,
    /// The arithmetic operations per second of the machine that the cost model describes.
    pub flops: f64,
}

/// The graph of one function of the trace at one compilation stage.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionGraph {
    /// The compilation stage and the name of the function: `traced/decode`.
    pub id: String,
    pub stage: Stage,
    pub function: String,
    /// Whether the function is an entry point, which callers of the program can call.
    pub entry: bool,
    /// The prefix of parameter keys in the function; each call of the function replaces this prefix
    /// by another prefix.
    pub prefix: String,
    /// The prefixes of parameter keys that the calls of the function use, in order. Each call of
    /// the function is a layer of the network.
    pub layers: Vec<String>,
    /// The cost of one call of the function, including the cost of the functions that this function calls.
    pub cost: CostFacts,
    /// How often each rewrite rule matched between the previous compilation stage and this stage.
    pub fired: BTreeMap<String, usize>,
    /// The nodes of the function in the graph. In the list of nodes, the operands of a node come
    /// before the node.
    pub nodes: Vec<NodeFacts>,
    pub results: Vec<ResultFacts>,
    /// The StableHLO statements of the function; the list is empty except at the last compilation stage.
    pub statements: Vec<StatementFacts>,
}

/// The cost of a node or of a function in the roofline model of the target.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CostFacts {
    pub bytes: f64,
    /// The number of multiplications, additions and elementary functions.
    pub flops: f64,
    pub seconds: f64,
}

/// The class of a node, which determines the node's colour in drawings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeClass {
    Input,
    Parameter,
    /// The node is a constant, which is known when Tracewright records the network.
    Constant,
    /// The node is a matmul with a weight, or a matmul of two activations.
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
    /// The number of the node among the nodes of its function.
    pub id: String,
    /// A label for the node with one or two words.
    pub label: String,
    /// The field path of the node, with slashes between its levels; without a field path, the name
    /// of the function.
    pub namespace: String,
    pub incoming_edges: Vec<EdgeFacts>,
    /// The graphs of the function that the node calls.
    pub subgraph_ids: Vec<String>,
    pub attrs: Vec<AttributeFacts>,
    /// The types of the node's results, in the data format that graph viewers read.
    pub outputs_metadata: Vec<OutputFacts>,
    pub class: NodeClass,
    /// The node as a line in the text form of a trace.
    pub text: String,
    pub types: Vec<TypeFacts>,
    /// The cost of the node; if the node is a call, the cost of the called function.
    pub cost: CostFacts,
    /// The time in seconds that the node takes per call of the function, from a profile. If the
    /// function has several calls, the time is the mean over all calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    pub path: String,
    pub file: String,
    pub line: u32,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeFacts {
    /// The id of the node that computes the operand.
    pub source_node_id: String,
    /// The index of the operand among the results of the node that computes the operand.
    pub source_node_output_id: String,
    pub target_node_input_id: String,
}

/// An attribute of a node that graph viewers show.
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

/// The type of a tensor, with the names of its axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeFacts {
    pub element: String,
    pub shape: Vec<usize>,
    /// The names of the tensor axes; the list is empty if the names are unknown.
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

/// The weights whose keys differ only in the number of the layer.
#[derive(Clone, Debug, Serialize)]
pub struct ParameterGroup {
    /// The key of the weights, with `*` in place of the layer's number.
    pub key: String,
    pub keys: Vec<String>,
    /// The type that each weight has in the archive.
    #[serde(rename = "type")]
    pub ty: TypeFacts,
    /// The storage format of the weights in the archive.
    pub stored: String,
    /// The recipe that computes the weight from tensors of the checkpoint; `None` if the weight
    /// itself is a tensor of the checkpoint.
    pub recipe: Option<String>,
    /// The tensors of the checkpoint that the recipe of the weight reads, with `*` in place of the
    /// layer's number.
    pub sources: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RuleFacts {
    pub name: String,
    pub equation: String,
    /// The number of matches of the rule in all functions.
    pub fired: usize,
}

/// The memory that the program needs, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryFacts {
    /// The number of bytes of the weights, by storage format.
    pub weights: Vec<StoredFacts>,
    /// The number of bytes of weights that the program packs into copies at load time.
    pub repacked: usize,
    /// The number of bytes of the layers' state, by the kind of state (such as keys and values).
    pub state: BTreeMap<String, usize>,
    /// The number of bytes of the activations of a call, by entry point.
    pub activations: BTreeMap<String, usize>,
    /// The number of bytes of the constant tables that the compiled module contains.
    pub constants: usize,
    /// The number of bytes of memory that a running program needs.
    pub running: u64,
    /// An estimate of the memory that the compiler needs, in bytes.
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
    /// The entry points that call the function with this attention mask.
    pub entries: Vec<String>,
    pub function: String,
    /// The layers of the network that call the function with this attention mask.
    pub layers: Vec<String>,
    /// The conditions of the attention mask, which must all be true, in the text form of traces.
    pub terms: Vec<String>,
    /// The number of queries per call of the function.
    pub queries: usize,
    pub keys: usize,
    pub scale: f64,
    /// The soft bound on the attention scores; `None` if the attention has no softcap.
    pub softcap: Option<f64>,
    /// The number of query heads that share one key head.
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
    /// Returns the graph of a function at a compilation stage.
    pub fn graph(&self, stage: Stage, function: &str) -> Option<&FunctionGraph> {
        self.graphs.iter().find(|graph| graph.stage == stage && graph.function == function)
    }

    /// Returns the graph that a report shows first: the graph of the function that decodes single
    /// tokens. If no function decodes single tokens, the report shows the last entry point first.
    pub fn shown_first(&self, stage: Stage) -> Option<&FunctionGraph> {
        let entries = || self.stage(stage).filter(|graph| graph.entry);
        entries().find(|graph| graph.function == "decode").or_else(|| entries().next_back())
    }

    /// Returns the graphs of all functions at a compilation stage. The graph of a function comes
    /// before the graphs of its callers.
    pub fn stage(&self, stage: Stage) -> impl DoubleEndedIterator<Item = &FunctionGraph> {
        self.graphs.iter().filter(move |graph| graph.stage == stage)
    }
}

impl FunctionGraph {
    /// Returns the nodes that a node reads, in the order of its operands.
    pub fn operands(&self, node: &NodeFacts) -> impl Iterator<Item = &NodeFacts> {
        node.incoming_edges
            .iter()
            .filter_map(|edge| self.nodes.get(edge.source_node_id.parse::<usize>().ok()?))
    }
}
