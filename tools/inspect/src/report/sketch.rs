//! Decides which nodes of a function get a box in the drawing, and which text a box contains. The following
//! nodes get no box: a weight, a single number, a state, and a value that many nodes read. If many nodes read
//! a value, the boxes of these nodes contain the name of the value. Consecutive calls of the same function,
//! such as the layers of a network, share a box.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{FunctionGraph, NetworkReport, NodeClass, NodeFacts, TypeFacts};
use super::words::spans;

pub(crate) struct NodeBox {
    /// The first one names the box.
    pub nodes: Vec<usize>,
    pub class: &'static str,
    pub title: String,
    pub lines: Vec<String>,
    pub calls: Option<String>,
    pub cluster: Option<String>,
    pub place: Place,
}

/// A rectangle in the drawing, given by its centre and its size.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

pub(crate) struct BoxEdge {
    pub from: usize,
    pub to: usize,
    /// The operand's index, if there are several.
    pub position: Option<String>,
    pub points: Vec<[f64; 2]>,
}

/// If more than this number of nodes read a value, the boxes of the reading nodes mention the value.
const READERS: usize = 5;

/// The boxes and edges of a drawing, before dagre computes their positions.
pub(crate) struct Sketch<'a> {
    graph: &'a FunctionGraph,
    pub boxes: Vec<NodeBox>,
    pub edges: Vec<BoxEdge>,
    /// The box of each node.
    home: Vec<Option<usize>>,
    /// For each node without a box, the note that appears in the boxes of the nodes that read this node.
    notes: BTreeMap<usize, Note>,
}

/// About an operand that has no box.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Note {
    /// Name and type.
    Weight(String),
    /// The number of a splat.
    Number(String),
    /// The state tensor that the node updates.
    Written(String),
    Shared(String),
    /// The state tensor that the call reads and updates.
    State(String),
    Unread,
}

impl Note {
    /// In place of a node's box.
    fn of(
        graph: &FunctionGraph,
        index: usize,
        readers: &BTreeSet<usize>,
        name: Option<&String>,
    ) -> Option<Self> {
        let node = &graph.nodes[index];
        let named = || name.unwrap_or(&node.label).clone();
        let several = readers.len() > 1;
        match node.class {
            NodeClass::Parameter => Some(Self::Weight(weight(node))),
            NodeClass::Constant if splat(node).is_some() => splat(node).map(Self::Number),
            NodeClass::Input if node.text.contains(" role=state(") => {
                Some(Self::State(unnumbered(&node.label).to_owned()))
            }
            NodeClass::Input if readers.is_empty() => Some(Self::Unread),
            // These inputs are positions, or they are the same for all layers.
            NodeClass::Input if several && (name.is_some() || is_number(node)) => Some(Self::Shared(named())),
            NodeClass::Input if is_written(graph, index, readers) => Some(Self::Written(named())),
            NodeClass::Input | NodeClass::Result => None,
            _ => {
                let calls =
                    readers.iter().filter(|&&reader| graph.nodes[reader].class == NodeClass::Call).count();
                (readers.len() > READERS || calls > 1).then(|| Self::Shared(origin(graph, node)))
            }
        }
    }
}

impl<'a> Sketch<'a> {
    pub fn of(report: &'a NetworkReport, graph: &'a FunctionGraph) -> Self {
        let home = vec![None; graph.nodes.len()];
        let names = argument_names(report, graph);
        let readers = readers(graph);
        let note = |index: usize| Some((index, Note::of(graph, index, &readers[index], names.get(&index))?));
        let notes = (0..graph.nodes.len()).filter_map(note).collect();
        let mut sketch = Self { graph, boxes: Vec::new(), edges: Vec::new(), home, notes };
        for (index, node) in graph.nodes.iter().enumerate() {
            let has_box = match sketch.notes.get(&index) {
                None => true,
                // A computed value keeps its box, although the boxes of its readers also contain
                // its name.
                Some(Note::Shared(_)) => node.class != NodeClass::Input,
                Some(_) => false,
            };
            match node.class {
                _ if !has_box => {}
                NodeClass::Result => sketch.result(index, node),
                NodeClass::Call => sketch.call(index, node),
                _ => sketch.open(index, node, names.get(&index).unwrap_or(&node.label).clone()),
            }
        }
        sketch.fill();
        sketch.results();
        sketch
    }

    fn open(&mut self, index: usize, node: &NodeFacts, title: String) {
        let relative =
            node.path.strip_prefix(&self.graph.prefix).unwrap_or(&node.path).trim_start_matches('.');
        let field = relative.split('.').next().filter(|first| !first.is_empty());
        self.home[index] = Some(self.boxes.len());
        self.boxes.push(NodeBox {
            nodes: vec![index],
            class: node.class.name(),
            title,
            lines: Vec::new(),
            calls: None,
            cluster: field.filter(|_| node.class != NodeClass::Input).map(str::to_owned),
            place: Place::default(),
        });
    }

    fn result(&mut self, index: usize, node: &NodeFacts) {
        let call = operand_indices(node).next().and_then(|call| self.home[call]);
        self.home[index] = call;
        if let Some(call) = call {
            self.boxes[call].nodes.push(index);
        }
    }

    /// Into the box of the previous call, if it calls the same function with its result.
    fn call(&mut self, index: usize, node: &NodeFacts) {
        let goes_on = operand_indices(node).find_map(|operand| {
            let home = self.home[operand]?;
            let is_result = self.graph.nodes[operand].class == NodeClass::Result;
            (is_result && self.boxes[home].calls.as_ref() == Some(&node.label)).then_some(home)
        });
        match goes_on {
            Some(home) => {
                self.boxes[home].nodes.push(index);
                self.home[index] = Some(home);
            }
            None => {
                self.open(index, node, String::new());
                if let Some(opened) = self.boxes.last_mut() {
                    opened.calls = Some(node.label.clone());
                }
            }
        }
    }

    /// Fills the boxes with text, and adds the edges between the boxes.
    fn fill(&mut self) {
        for index in 0..self.boxes.len() {
            let notes = self.notes_of(index);
            self.name(index, notes.iter().any(|note| matches!(note, Note::Weight(_))));
            let lines = self.lines(index, &notes);
            self.boxes[index].lines.extend(lines);
            self.connect(index);
        }
    }

    /// The notes in a box about operands that have no box; the list contains each note only once.
    fn notes_of(&self, index: usize) -> Vec<Note> {
        let members = self.boxes[index].nodes.iter().map(|&member| &self.graph.nodes[member]);
        let mut notes: Vec<Note> = Vec::new();
        for note in members.flat_map(operand_indices).filter_map(|operand| self.notes.get(&operand)) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        notes
    }

    /// By the numbers of its layers, or the field of its weights.
    fn name(&mut self, index: usize, has_weights: bool) {
        let shape = &mut self.boxes[index];
        let Some(&main) = shape.nodes.first() else { return };
        let node = &self.graph.nodes[main];
        if shape.calls.is_some() {
            let calls = shape.nodes.iter().map(|&member| &self.graph.nodes[member]);
            let layers: Vec<String> =
                calls.filter(|node| node.class == NodeClass::Call).map(|node| node.path.clone()).collect();
            shape.title = spans(&layers);
            let times = if layers.len() > 1 { format!("{} × ", layers.len()) } else { String::new() };
            shape.lines.push(format!("{times}{}", node.label));
        } else if let Some(field) = field(self.graph, node).filter(|_| has_weights) {
            shape.title = format!("{field} · {}", shape.title);
        }
    }

    fn lines(&self, index: usize, notes: &[Note]) -> Vec<String> {
        let Some(&main) = self.boxes[index].nodes.first() else { return Vec::new() };
        let main = &self.graph.nodes[main];
        let mut lines: Vec<String> = main.types.iter().take(1).map(TypeFacts::named).collect();
        let (mut shared, mut states) = (BTreeSet::new(), BTreeSet::new());
        for note in notes {
            match note {
                Note::Weight(weight) => lines.push(weight.clone()),
                Note::Number(value) => lines.push(number(main, self.position(main, note), value)),
                Note::Written(name) => lines.push(format!("into {name}")),
                Note::Shared(name) => _ = shared.insert(name.as_str()),
                Note::State(name) => _ = states.insert(name.as_str()),
                Note::Unread => {}
            }
        }
        let joined = |words: BTreeSet<&str>| words.into_iter().collect::<Vec<_>>().join(", ");
        if !shared.is_empty() {
            lines.push(format!("← {}", joined(shared)));
        }
        if !states.is_empty() {
            lines.push(format!("state: {}", joined(states)));
        }
        lines
    }

    fn position(&self, node: &NodeFacts, note: &Note) -> usize {
        operand_indices(node).position(|operand| self.notes.get(&operand) == Some(note)).unwrap_or_default()
    }

    /// With the operand's index at each edge, if there are several.
    fn connect(&mut self, to: usize) {
        let mut incoming: Vec<(usize, usize)> = Vec::new();
        for node in self.boxes[to].nodes.iter().map(|&member| &self.graph.nodes[member]) {
            let drawn =
                operand_indices(node).enumerate().filter(|(_, operand)| !self.notes.contains_key(operand));
            let edges = drawn.filter_map(|(position, operand)| Some((self.home[operand]?, position)));
            incoming.extend(edges.filter(|&(from, _)| from != to));
        }
        let several = incoming.len() > 1;
        let position = |position: usize| several.then(|| position.to_string());
        let edge = |(from, at)| BoxEdge { from, to, position: position(at), points: Vec::new() };
        self.edges.extend(incoming.into_iter().map(edge));
    }

    /// A state tensor's name is in the box of the node that updates it.
    fn results(&mut self) {
        for result in self.graph.results.iter().filter(|result| !result.role.starts_with("state(")) {
            let Ok(node) = result.node.parse::<usize>() else { continue };
            let Some(from) = self.home[node] else { continue };
            let facts = &self.graph.nodes[node];
            if facts.class == NodeClass::State {
                self.boxes[from].lines.push(format!("→ {}", result.name));
                continue;
            }
            self.edges.push(BoxEdge { from, to: self.boxes.len(), position: None, points: Vec::new() });
            self.boxes.push(NodeBox {
                nodes: Vec::new(),
                class: "output",
                title: result.name.clone(),
                lines: facts.types.iter().take(1).map(TypeFacts::named).collect(),
                calls: None,
                cluster: None,
                place: Place::default(),
            });
        }
    }

    /// Fields with several boxes, but not all, which are drawn next to each other.
    pub fn clusters(&self) -> BTreeSet<String> {
        let mut sizes: BTreeMap<&String, usize> = BTreeMap::new();
        for name in self.boxes.iter().filter_map(|shape| shape.cluster.as_ref()) {
            *sizes.entry(name).or_default() += 1;
        }
        let all: usize = sizes.values().sum();
        sizes
            .into_iter()
            .filter(|(_, count)| (2..all).contains(count))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

fn operand_indices(node: &NodeFacts) -> impl Iterator<Item = usize> {
    node.incoming_edges.iter().filter_map(|edge| edge.source_node_id.parse().ok())
}

fn readers(graph: &FunctionGraph) -> Vec<BTreeSet<usize>> {
    let mut readers = vec![BTreeSet::new(); graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate() {
        operand_indices(node).for_each(|operand| _ = readers[operand].insert(index));
    }
    readers
}

fn is_number(node: &NodeFacts) -> bool {
    node.types.iter().all(|ty| ty.shape.is_empty())
}

/// Whether an argument of the function is a state tensor that only a single node updates.
fn is_written(graph: &FunctionGraph, argument: usize, readers: &BTreeSet<usize>) -> bool {
    let writes = |reader: &NodeFacts| {
        reader.class == NodeClass::State && operand_indices(reader).next() == Some(argument)
    };
    readers.len() == 1 && readers.iter().all(|&reader| writes(&graph.nodes[reader]))
}

/// Returns the number that all elements of a constant have, with as many digits as f32 needs.
fn splat(node: &NodeFacts) -> Option<String> {
    let (_, value) = node.text.split_once(" splat ")?;
    Some(match value.parse::<f64>() {
        Ok(whole) if whole.fract() == 0.0 => whole.to_string(),
        Ok(fraction) => (fraction as f32).to_string(),
        Err(_) => value.to_owned(),
    })
}

/// Formats a number together with its operator, for example `× 0.5`.
fn number(reader: &NodeFacts, position: usize, value: &str) -> String {
    let sign = match (reader.label.as_str(), position) {
        ("add", _) => "+",
        ("subtract", 1) => "−",
        ("multiply", _) => "×",
        ("divide", 1) => "÷",
        _ => return format!("operand {position} is {value}"),
    };
    format!("{sign} {value}")
}

/// Returns the name of a state tensor without the number of its layer: `keys` for `keys3`.
fn unnumbered(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Such as `q_proj`; several if the simplification merged weights.
fn field(graph: &FunctionGraph, node: &NodeFacts) -> Option<String> {
    let merged = graph
        .operands(node)
        .find(|weight| weight.class == NodeClass::Parameter && weight.label.contains('+'));
    match merged {
        Some(weight) => {
            let fields = weight.label.split('+').filter_map(|key| key.rsplit('.').nth(1));
            Some(fields.collect::<Vec<_>>().join(" + "))
        }
        None => node.path.rsplit_once('.').map(|(_, field)| field.to_owned()),
    }
}

/// Returns the name of a weight with its type, for example `weight [V 262144, D 1152]`.
fn weight(node: &NodeFacts) -> String {
    let last = node.label.rsplit('.').next().unwrap_or(&node.label);
    let name = last.split('~').next().unwrap_or(last);
    node.types.first().map_or_else(|| name.to_owned(), |ty| format!("{name} {}", ty.named()))
}

/// `cos` for a rotary table, otherwise the operation.
fn origin(graph: &FunctionGraph, node: &NodeFacts) -> String {
    let table = graph.operands(node).find_map(|operand| operand.label.strip_suffix(" table"));
    table.unwrap_or(&node.label).to_owned()
}

/// By node, as in the first caller.
fn argument_names(report: &NetworkReport, graph: &FunctionGraph) -> BTreeMap<usize, String> {
    let mut names = BTreeMap::new();
    let calls =
        |caller: &'_ &FunctionGraph| caller.nodes.iter().any(|node| node.subgraph_ids.contains(&graph.id));
    let Some(caller) = report.stage(graph.stage).find(calls) else { return names };
    let Some(call) = caller.nodes.iter().find(|node| node.subgraph_ids.contains(&graph.id)) else {
        return names;
    };
    for (position, operand) in caller.operands(call).enumerate() {
        let place = format!("input {position} ");
        let Some(argument) = graph.nodes.iter().position(|node| node.text.starts_with(&place)) else {
            continue;
        };
        let name = match operand.class {
            NodeClass::Input => unnumbered(&operand.label).to_owned(),
            _ => match origin(caller, operand) {
                table if table == "cos" || table == "sin" => table,
                _ => continue,
            },
        };
        names.insert(argument, name);
    }
    names
}
