//! Prints a function in the language of Graphviz, and draws the nodes of each field of the network
//! as a cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::model::{FunctionGraph, NetworkReport, NodeFacts};

impl NetworkReport {
    /// Formats a function as input for Graphviz's command `dot`.
    pub fn dot(&self, graph: &FunctionGraph) -> String {
        let mut out = format!("digraph {} {{\n", quoted(&graph.function));
        out.push_str("  node [shape=box, fontname=\"monospace\", fontsize=10];\n  edge [fontname=\"monospace\", fontsize=9];\n");
        let mut fields: BTreeMap<&str, Vec<&NodeFacts>> = BTreeMap::new();
        for node in &graph.nodes {
            fields.entry(&node.path).or_default().push(node);
        }
        // Writing to a string cannot fail.
        for (index, (path, nodes)) in fields.into_iter().enumerate() {
            let (open, close) = match path {
                "" => (String::new(), ""),
                path => (format!("  subgraph cluster_{index} {{\n    label={};\n", quoted(path)), "  }\n"),
            };
            out.push_str(&open);
            for node in nodes {
                let ty = node.types.first().map(super::model::TypeFacts::named).unwrap_or_default();
                let label = format!("%{} {}\n{ty}", node.id, node.label);
                let place = format!("{}\n{}:{}", node.text, node.file, node.line);
                let _ =
                    writeln!(out, "    n{} [label={}, tooltip={}];", node.id, quoted(&label), quoted(&place));
            }
            out.push_str(close);
        }
        for node in &graph.nodes {
            let several = node.incoming_edges.len() > 1;
            for edge in &node.incoming_edges {
                let _ = write!(out, "  n{} -> n{}", edge.source_node_id, node.id);
                if several {
                    let _ = write!(out, " [headlabel={}]", quoted(&edge.target_node_input_id));
                }
                out.push_str(";\n");
            }
        }
        for (index, result) in graph.results.iter().enumerate() {
            let label = quoted(&result.name);
            let _ =
                writeln!(out, "  r{index} [label={label}, shape=plain];\n  n{} -> r{index};", result.node);
        }
        out.push_str("}\n");
        out
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
