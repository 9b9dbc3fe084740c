//! Computes the layout of a function's drawing: [dagre](https://github.com/dagrejs/dagre) computes
//! the positions of the boxes and edges in the drawing.

use std::collections::BTreeSet;

use dagre::graph::{Graph, GraphOptions};
use dagre::{EdgeLabel, LayoutOptions, NodeLabel, Point, layout};

use super::model::{FunctionGraph, NetworkReport};
use super::sketch::{BoxEdge, NodeBox, Place, Sketch};

/// Positions in pixels.
pub(crate) struct Drawing {
    pub boxes: Vec<NodeBox>,
    pub edges: Vec<BoxEdge>,
    pub clusters: Vec<Cluster>,
    pub width: f64,
    pub height: f64,
}

/// The boxes for one field of the network, which the drawing shows next to each other.
pub(crate) struct Cluster {
    pub name: String,
    pub place: Place,
}

/// Pixels: the width of a character, the distance of lines, and the space around text and drawing.
const CHARACTER: f64 = 6.7;
pub(crate) const LINE: f64 = 16.0;
pub(crate) const PADDING: f64 = 10.0;
const MARGIN: f64 = 12.0;
const NARROWEST: f64 = 84.0;

impl Drawing {
    pub fn of(report: &NetworkReport, graph: &FunctionGraph) -> Self {
        let sketch = Sketch::of(report, graph);
        let fields = sketch.clusters();
        let Sketch { mut boxes, mut edges, .. } = sketch;
        let mut laid = described(&boxes, &edges, &fields);
        let options = LayoutOptions {
            nodesep: 18.0,
            ranksep: 24.0,
            edgesep: 10.0,
            marginx: MARGIN,
            marginy: MARGIN,
            ..LayoutOptions::default()
        };
        layout(&mut laid, Some(options));
        for (index, shape) in boxes.iter_mut().enumerate() {
            shape.place = place(&laid, &index.to_string());
        }
        for (index, edge) in edges.iter_mut().enumerate() {
            let label = laid.edge(&edge.from.to_string(), &edge.to.to_string(), Some(&index.to_string()));
            let points = label.map(|label| label.points.as_slice()).unwrap_or_default();
            edge.points = points.iter().map(|Point { x, y }| [x.round(), y.round()]).collect();
        }
        let cluster = |name: String| Cluster { place: place(&laid, &key(&name)), name };
        let clusters: Vec<Cluster> = fields.into_iter().map(cluster).collect();
        let places =
            || boxes.iter().map(|shape| shape.place).chain(clusters.iter().map(|cluster| cluster.place));
        let width = places().map(|place| place.x + place.width / 2.0).fold(0.0, f64::max).ceil() + MARGIN;
        let height = places().map(|place| place.y + place.height / 2.0).fold(0.0, f64::max).ceil() + MARGIN;
        Self { boxes, edges, clusters, width, height }
    }
}

/// Returns the boxes and their sizes in the data format that dagre reads, by the key of each box.
fn described(boxes: &[NodeBox], edges: &[BoxEdge], fields: &BTreeSet<String>) -> Graph<NodeLabel, EdgeLabel> {
    let mut graph = Graph::with_options(GraphOptions { directed: true, multigraph: true, compound: true });
    for name in fields {
        graph.set_node(key(name), Some(NodeLabel::default()));
    }
    for (index, shape) in boxes.iter().enumerate() {
        let longest =
            shape.lines.iter().chain([&shape.title]).map(|line| line.chars().count()).max().unwrap_or(0);
        let width = (longest as f64 * CHARACTER + 2.0 * PADDING + 6.0).max(NARROWEST).ceil();
        let height = (shape.lines.len() + 1) as f64 * LINE + PADDING;
        graph.set_node(index.to_string(), Some(NodeLabel { width, height, ..NodeLabel::default() }));
        if let Some(name) = shape.cluster.as_ref().filter(|name| fields.contains(*name)) {
            graph.set_parent(&index.to_string(), Some(&key(name)));
        }
    }
    for (index, edge) in edges.iter().enumerate() {
        // Edges within a field have a larger weight, so dagre keeps the boxes of a field together
        // and bends the other edges.
        let same = boxes[edge.from].cluster == boxes[edge.to].cluster;
        let label = EdgeLabel { weight: if same { 4 } else { 1 }, ..EdgeLabel::default() };
        graph.set_edge(edge.from.to_string(), edge.to.to_string(), Some(label), Some(&index.to_string()));
    }
    graph
}

/// Different from the keys of all boxes.
fn key(field: &str) -> String {
    format!("field {field}")
}

fn place(graph: &Graph<NodeLabel, EdgeLabel>, key: &str) -> Place {
    graph.node(key).map_or(Place::default(), |label| Place {
        x: label.x.unwrap_or_default().round(),
        y: label.y.unwrap_or_default().round(),
        width: label.width.round(),
        height: label.height.round(),
    })
}
