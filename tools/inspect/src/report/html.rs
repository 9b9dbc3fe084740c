//! Generates the report as a single HTML file without external resources.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use tracewright::errors::shortened;

use super::drawing::Drawing;
use super::model::*;
use super::svg::{COLOURS, SHAPES, element, escaped};
use super::words::spans;

const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The last stage is shown as StableHLO.
const DRAWN: [Stage; 2] = [Stage::Traced, Stage::Simplified];

/// Characters of a statement; one with a constant can be much longer.
const LONGEST: usize = 360;

impl NetworkReport {
    /// Shows the function `first` first.
    pub fn html(&self, first: Option<&str>) -> String {
        let mut pictures = String::new();
        for graph in self.graphs.iter().filter(|graph| DRAWN.contains(&graph.stage)) {
            let drawing = Drawing::of(self, graph);
            pictures.push_str(&format!("<template id=\"{}\">", escaped(&graph.id)));
            pictures.push_str(&element(graph, &drawing, ""));
            pictures.push_str("</template>\n");
        }
        let measured = self.profile.as_ref().map(|profile| profile.entry.as_str());
        let opened =
            measured.or_else(|| self.shown_first(Stage::Traced).map(|graph| graph.function.as_str()));
        // The data must not end the HTML element that contains them, so each `<` is escaped.
        let data = self.data(first.or(opened)).to_string().replace('<', "\\u003c");
        let parts = [
            ("{title}", escaped(&self.label)),
            ("{style}", format!("{COLOURS}{SHAPES}{STYLE}")),
            ("{pictures}", pictures),
            ("{data}", data),
            ("{script}", SCRIPT.to_owned()),
        ];
        filled(FRAME, &parts)
    }

    /// For the page's script. All strings are in one list, and referred to by index.
    fn data(&self, first: Option<&str>) -> Value {
        let mut strings = Strings::default();
        let mut functions: BTreeMap<&str, usize> = BTreeMap::new();
        for graph in self.stage(Stage::Traced) {
            functions.insert(&graph.function, functions.len());
        }
        let listed: Vec<Value> = self
            .stage(Stage::Traced)
            .map(|traced| {
                let stages: BTreeMap<&str, Value> = Stage::ALL
                    .into_iter()
                    .filter_map(|stage| Some((stage.name(), self.graph(stage, &traced.function)?)))
                    .map(|(name, graph)| (name, graph_data(graph, &functions, &mut strings)))
                    .collect();
                json!({
                    "name": traced.function, "entry": traced.entry, "prefix": traced.prefix,
                    "layers": traced.layers, "span": spans(&traced.layers), "stages": stages,
                })
            })
            .collect();
        let parameters = self.parameters.iter().map(|group| {
            json!({
                "key": group.key, "count": group.keys.len(), "type": group.ty.named(), "bytes": group.ty.bytes,
                "stored": group.stored, "recipe": group.recipe, "sources": group.sources,
            })
        });
        let masks = self.masks.iter().map(|mask| {
            let mut value = json!(mask);
            value["span"] = spans(&mask.layers).into();
            value
        });
        let rotary = self.rotary.iter().map(|rotary| {
            let mut value = json!(rotary);
            value["layers"] = spans(&rotary.layers).into();
            value
        });
        let mut data = json!({
            "label": self.label, "network": self.network, "rules": self.rules, "memory": self.memory,
            "parameters": parameters.collect::<Vec<_>>(), "masks": masks.collect::<Vec<_>>(),
            "rotary": rotary.collect::<Vec<_>>(), "sources": self.sources, "functions": listed, "first": first,
            "strings": strings.list,
        });
        if let Some(profile) = &self.profile {
            data["profile"] = json!(profile);
        }
        data
    }
}

fn graph_data(graph: &FunctionGraph, functions: &BTreeMap<&str, usize>, strings: &mut Strings) -> Value {
    let drawn = DRAWN.contains(&graph.stage);
    let nodes = graph.nodes.iter().filter(|_| drawn).map(|node| {
        let operands: Vec<usize> =
            node.incoming_edges.iter().filter_map(|edge| edge.source_node_id.parse().ok()).collect();
        let types: Vec<usize> = node.types.iter().map(|ty| strings.place(&ty.named())).collect();
        let [path, file] = [&node.path, &node.file].map(|text| strings.place(text));
        let bytes: usize = node.types.iter().map(|ty| ty.bytes).sum();
        let calls = if node.class == NodeClass::Call { functions.get(node.label.as_str()) } else { None };
        json!([
            strings.place(&node.label),
            strings.place(&node.text),
            strings.place(node.class.name()),
            types,
            path,
            file,
            node.line,
            operands,
            bytes,
            node.cost.bytes,
            node.cost.flops,
            (node.cost.seconds * 1e9).round(),
            calls,
            node.measured.map(|seconds| (seconds * 1e9).round()),
        ])
    });
    let nodes: Vec<Value> = nodes.collect();
    let statements = graph.statements.iter().map(|statement| {
        let [text, path, file] =
            [&shortened(statement.text.clone(), LONGEST), &statement.path, &statement.file]
                .map(|text| strings.place(text));
        json!([text, path, file, statement.line])
    });
    let statements: Vec<Value> = statements.collect();
    let results = graph.results.iter().map(|result| json!([result.name, result.node, result.role]));
    json!({
        "id": graph.id, "cost": graph.cost, "fired": graph.fired, "size": graph.nodes.len(), "nodes": nodes,
        "statements": statements, "results": results.collect::<Vec<_>>(),
    })
}

#[derive(Default)]
struct Strings {
    list: Vec<String>,
    places: HashMap<String, usize>,
}

impl Strings {
    fn place(&mut self, text: &str) -> usize {
        if let Some(&place) = self.places.get(text) {
            return place;
        }
        self.list.push(text.to_owned());
        self.places.insert(text.to_owned(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// All placeholders at once; the inserted text is not searched.
fn filled(frame: &str, parts: &[(&str, String)]) -> String {
    let mut out = String::new();
    let mut rest = frame;
    while let Some((at, name, part)) = parts
        .iter()
        .filter_map(|(name, part)| Some((rest.find(name)?, *name, part)))
        .min_by_key(|(at, ..)| *at)
    {
        out.push_str(&rest[..at]);
        out.push_str(part);
        rest = &rest[at + name.len()..];
    }
    out.push_str(rest);
    out
}
