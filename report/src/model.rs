//! What a report has: everything that any form of it shows.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tracewright::ops::OpClass;

/// All that is known of a network before it runs.
///
/// Serialized it is a graph collection of Google's Model Explorer (`label`, `graphs`, and of each node `id`, `label`,
/// `namespace`, `incomingEdges`, `outputsMetadata`, `subgraphIds`, `attrs`), and more: `docs/guides/inspect.md` has all fields.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkReport {
    pub label: String,
    /// Every function of every stage, callees before callers.
    pub graphs: Vec<FunctionGraph>,
    /// What it was made for.
    pub network: NetworkFacts,
    /// The weights, those of repeated layers together, sorted by key.
    pub parameters: Vec<ParameterGroup>,
    /// The rules that found something, and what they say.
    pub rules: Vec<RuleFacts>,
    /// What the program will hold in memory.
    pub memory: MemoryFacts,
    /// What attention sees, in each function that has any.
    pub masks: Vec<MaskFacts>,
    /// The frequencies of rotary embeddings, each once.
    pub rotary: Vec<RotaryFacts>,
    /// The lines of Rust that nodes come from, with those around them, by file and number.
    pub sources: BTreeMap<String, BTreeMap<u32, String>>,
    /// What a call took, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileFacts>,
}

/// What a call of an entry point took.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileFacts {
    /// What was measured: the model's name.
    pub model: String,
    /// `decode` or `prefill`.
    pub case: String,
    pub entry: String,
    /// How it was built and measured, as words.
    pub variant: BTreeMap<String, String>,
    /// Seconds of a call.
    pub seconds: f64,
    /// Seconds of what it dispatches, measured in calls of their own.
    pub dispatched: f64,
    /// Of these, what no recorded node is known to take.
    pub elsewhere: f64,
    /// Seconds by field path, layers together, the longest first.
    pub paths: Vec<PathTime>,
    /// Seconds by function that was dispatched, the longest first.
    pub functions: Vec<FunctionTime>,
}

/// What the operations of a field took.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathTime {
    /// The field path, with `*` for the layer.
    pub path: String,
    /// How many dispatches compute a part of it in a call.
    pub calls: f64,
    /// Seconds of all layers.
    pub seconds: f64,
}

/// What a function took that a device executed.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionTime {
    /// Its name in the module.
    pub function: String,
    /// How often, in a call.
    pub calls: f64,
    /// Seconds of all of these.
    pub seconds: f64,
    /// Bytes that they read and write, where they are known.
    pub bytes: Option<f64>,
    /// Operations, where they are known.
    pub flops: Option<f64>,
    pub paths: BTreeSet<String>,
}

/// How far a trace is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// As the declaration records it.
    Traced,
    Simplified,
    Expanded,
}

/// What a network was recorded for.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkFacts {
    /// The type of weights and activations.
    pub element: String,
    pub context: usize,
    /// Tokens of a sequence that one prefill takes.
    pub chunk: usize,
    pub batch: usize,
    pub rules: String,
    /// Numbers in the weights that the network declares.
    pub parameters: usize,
    /// Their bytes in a checkpoint of that element type.
    pub parameter_bytes: usize,
    /// Bytes a second of the machine whose roofline gives times.
    pub bandwidth: f64,
    /// Operations a second of it.
    pub flops: f64,
}

/// One function at one stage.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionGraph {
    /// `traced/decode`
    pub id: String,
    pub stage: Stage,
    pub function: String,
    /// Whether it is called from outside.
    pub entry: bool,
    /// What a call replaces in the keys of parameters.
    pub prefix: String,
    /// What calls replace it by, in order: the layers.
    pub layers: Vec<String>,
    /// What a call of it costs, with all that it calls.
    pub cost: CostFacts,
    /// How often each rule found something on the way from the stage before.
    pub fired: BTreeMap<String, usize>,
    /// The nodes, operands before users.
    pub nodes: Vec<NodeFacts>,
    pub results: Vec<ResultFacts>,
    /// The function in StableHLO; of the last stage only.
    pub statements: Vec<StatementFacts>,
}

/// What something costs, by the roofline of the target.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CostFacts {
    /// Bytes read and written.
    pub bytes: f64,
    /// Multiplications, additions and elementary functions.
    pub flops: f64,
    /// Seconds.
    pub seconds: f64,
}

/// What kind of node it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeClass {
    Input,
    Parameter,
    /// What is known when the network is recorded.
    Constant,
    /// A product with a weight, or of two tensors.
    Product,
    Attention,
    /// A norm or another sum over an axis.
    Reduction,
    /// Element by element.
    Elementwise,
    /// What moves numbers and computes none.
    Movement,
    State,
    /// A call of a function.
    Call,
    /// One result of a call.
    Result,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFacts {
    /// Its number in the function.
    pub id: String,
    /// What it does, in a word or two.
    pub label: String,
    /// The field path, with slashes; the function's name where there is none.
    pub namespace: String,
    pub incoming_edges: Vec<EdgeFacts>,
    /// The graphs of the function that it calls.
    pub subgraph_ids: Vec<String>,
    /// What viewers show of it.
    pub attrs: Vec<AttributeFacts>,
    /// The types of its results, as viewers show them.
    pub outputs_metadata: Vec<OutputFacts>,
    /// What kind of node it is.
    pub class: NodeClass,
    /// What it is, as the text form of a trace says it.
    pub text: String,
    pub types: Vec<TypeFacts>,
    /// What it costs; of a call, what it calls.
    pub cost: CostFacts,
    /// Seconds that it took, where that was measured: in one call of the function, the mean of those that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<f64>,
    pub path: String,
    pub file: String,
    pub line: u32,
}

/// An operand of a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeFacts {
    /// The node that computes it.
    pub source_node_id: String,
    /// Which of that node's results.
    pub source_node_output_id: String,
    pub target_node_input_id: String,
}

/// Something that viewers show of a node.
#[derive(Clone, Debug, Serialize)]
pub struct AttributeFacts {
    pub key: String,
    pub value: String,
}

/// What viewers show of a result.
#[derive(Clone, Debug, Serialize)]
pub struct OutputFacts {
    pub id: String,
    pub attrs: Vec<AttributeFacts>,
}

/// A type with the names of its axes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeFacts {
    /// The type of an element.
    pub element: String,
    pub shape: Vec<usize>,
    /// The names; empty where nobody gave any.
    pub axes: Vec<String>,
    /// Bytes of all elements.
    pub bytes: usize,
}

/// A result of a function.
#[derive(Clone, Debug, Serialize)]
pub struct ResultFacts {
    pub name: String,
    /// What it is to the caller of an entry point.
    pub role: String,
    /// The node that computes it.
    pub node: String,
}

/// A statement of the module.
#[derive(Clone, Debug, Serialize)]
pub struct StatementFacts {
    pub text: String,
    pub path: String,
    pub file: String,
    pub line: u32,
}

/// Weights of one key, but for the number of the layer.
#[derive(Clone, Debug, Serialize)]
pub struct ParameterGroup {
    /// The key, with `*` for the layer.
    pub key: String,
    /// The keys of all of them.
    pub keys: Vec<String>,
    /// The type of each, as the archive has it.
    #[serde(rename = "type")]
    pub ty: TypeFacts,
    /// How the archive stores it.
    pub stored: String,
    /// How it is made of the checkpoint's tensors; `None` if it is one of them.
    pub recipe: Option<String>,
    /// Those tensors, with `*` for the layer.
    pub sources: Vec<String>,
}

/// A rule that found something.
#[derive(Clone, Debug, Serialize)]
pub struct RuleFacts {
    pub name: String,
    pub equation: String,
    /// How often it found something, in all functions.
    pub fired: usize,
}

/// What the program will hold in memory, in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryFacts {
    /// The weights, by how they are stored.
    pub weights: Vec<StoredFacts>,
    /// The copy of them that is packed when the program is loaded.
    pub repacked: usize,
    /// What layers remember, by kind of state.
    pub state: BTreeMap<String, usize>,
    /// What a call of each entry point computes.
    pub activations: BTreeMap<String, usize>,
    /// Tables in the compiled module.
    pub constants: usize,
    /// All that a running program needs.
    pub running: u64,
    /// What the compiler holds, about.
    pub compiling: usize,
}

/// Weights that are stored in one way.
#[derive(Clone, Debug, Serialize)]
pub struct StoredFacts {
    pub stored: String,
    pub count: usize,
    /// Their bytes.
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MaskFacts {
    /// The entry points that lead there.
    pub entries: Vec<String>,
    pub function: String,
    /// The layers that are calls of it.
    pub layers: Vec<String>,
    /// The conditions that must all hold, as the text form says them.
    pub terms: Vec<String>,
    /// Positions that ask, in one call.
    pub queries: usize,
    pub keys: usize,
    /// The factor on the scores.
    pub scale: f64,
    /// The bound on the scores.
    pub softcap: Option<f64>,
    /// Query heads for each head of keys.
    pub groups: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RotaryFacts {
    /// The layers that use it.
    pub layers: Vec<String>,
    pub positions: usize,
    /// The factor on cosine and sine.
    pub scaling: f64,
    /// The angle of each pair of features at position 1.
    pub frequencies: Vec<f64>,
}

impl TypeFacts {
    /// `bf16 [B 1, S 5, D 14]`
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
    /// All of them, in order.
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

    /// The graph that is shown where nothing says which: of the function that chooses tokens one by one, or of the last
    /// entry point.
    pub fn shown_first(&self, stage: Stage) -> Option<&FunctionGraph> {
        let entries = || self.stage(stage).filter(|graph| graph.entry);
        entries().find(|graph| graph.function == "decode").or_else(|| entries().next_back())
    }

    /// The graphs of a stage, callees before callers.
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
