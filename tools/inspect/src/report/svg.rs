//! Draws a function as an SVG picture.

use std::fmt::Write as _;

use super::drawing::{Drawing, LINE, PADDING};
use super::model::{FunctionGraph, NetworkReport};
use super::sketch::{BoxEdge, NodeBox, Place};

/// For light and dark mode; shared with the HTML page.
pub(crate) const COLOURS: &str = include_str!("page/colours.css");
pub(crate) const SHAPES: &str = include_str!("page/graph.css");

impl NetworkReport {
    pub fn svg(&self, graph: &FunctionGraph) -> String {
        let drawing = Drawing::of(self, graph);
        let style = format!("<style>{COLOURS}{SHAPES}svg {{ background: var(--paper); }}</style>");
        let mut svg = element(graph, &drawing, &style);
        svg.push('\n');
        svg
    }
}

pub(crate) fn element(graph: &FunctionGraph, drawing: &Drawing, style: &str) -> String {
    let Drawing { width, height, .. } = drawing;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"graph\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"group\" aria-label=\"{}\">{style}",
        escaped(&format!("graph of {}", graph.function))
    );
    // Writing to a string cannot fail.
    for cluster in &drawing.clusters {
        let Place { x, y, width, height } = corner(cluster.place);
        let _ = write!(
            out,
            "<g class=\"cluster\"><rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"10\"/>\
             <text x=\"{}\" y=\"{}\">{}</text></g>",
            x + 10.0,
            y + 16.0,
            escaped(&cluster.name)
        );
    }
    drawing.edges.iter().for_each(|edge| draw_edge(edge, drawing, &mut out));
    drawing.boxes.iter().for_each(|shape| draw_box(shape, graph, &mut out));
    out.push_str("</svg>");
    out
}

fn corner(place: Place) -> Place {
    Place { x: place.x - (place.width / 2.0).floor(), y: place.y - (place.height / 2.0).floor(), ..place }
}

fn draw_edge(edge: &BoxEdge, drawing: &Drawing, out: &mut String) {
    let [from, to] = [edge.from, edge.to].map(|end| drawing.boxes[end].nodes.first());
    let end = |node: Option<&usize>| node.map_or_else(String::new, ToString::to_string);
    let _ = write!(out, "<g class=\"edge\" data-from=\"{}\" data-to=\"{}\"><path d=\"", end(from), end(to));
    curve(&edge.points, out);
    out.push_str("\"/>");
    if let [.., before, tip] = edge.points[..] {
        let _ = write!(out, "<path class=\"tip\" d=\"{}\"/>", arrow(before, tip));
        if let Some(position) = &edge.position {
            // The number is beside the arrow, and does not overlap the box.
            let (dx, dy) = (tip[0] - before[0], tip[1] - before[1]);
            let sideways = dx.abs() > dy.abs();
            let x = tip[0] + if sideways { -10.0 * dx.signum() - 3.0 } else { 6.0 };
            let y = tip[1] - if sideways { 6.0 } else { 8.0 };
            let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{position}</text>");
        }
    }
    out.push_str("</g>");
}

/// From the first to the last point, bent towards the others.
fn curve(points: &[[f64; 2]], out: &mut String) {
    let Some(([x, y], rest)) = points.split_first() else { return };
    let _ = write!(out, "M{x} {y}");
    for (i, &[x, y]) in rest.iter().enumerate() {
        match rest.get(i + 1) {
            Some(&[next_x, next_y]) if i + 2 < rest.len() => {
                let _ = write!(out, "Q{x} {y} {} {}", f64::midpoint(x, next_x), f64::midpoint(y, next_y));
            }
            Some(&[next_x, next_y]) => {
                let _ = write!(out, "Q{x} {y} {next_x} {next_y}");
                return;
            }
            None => {
                let _ = write!(out, "L{x} {y}");
            }
        }
    }
}

fn arrow(before: [f64; 2], tip: [f64; 2]) -> String {
    let (dx, dy) = (tip[0] - before[0], tip[1] - before[1]);
    let length = (dx * dx + dy * dy).sqrt().max(1.0);
    let (dx, dy) = (dx / length, dy / length);
    let side = |sign: f64| {
        let [x, y] = [tip[0] - 7.0 * dx - sign * 3.5 * dy, tip[1] - 7.0 * dy + sign * 3.5 * dx];
        format!("{} {}", tenths(x), tenths(y))
    };
    format!("M{} {}L{}L{}Z", tip[0], tip[1], side(1.0), side(-1.0))
}

fn tenths(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

fn draw_box(shape: &NodeBox, graph: &FunctionGraph, out: &mut String) {
    let Place { x, y, width, height } = corner(shape.place);
    let nodes: Vec<String> = shape.nodes.iter().map(ToString::to_string).collect();
    let _ = write!(
        out,
        "<g class=\"box {}\" data-nodes=\"{}\" data-of=\"{}\"{} tabindex=\"-1\" role=\"button\">\
         <rect class=\"card\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\
         <path class=\"stripe\" d=\"M{} {y}h-2a6 6 0 0 0-6 6v{}a6 6 0 0 0 6 6h2z\"/>",
        shape.class,
        nodes.join(" "),
        escaped(&graph.function),
        shape
            .calls
            .as_ref()
            .map_or_else(String::new, |callee| format!(" data-calls=\"{}\"", escaped(callee))),
        x + 8.0,
        height - 12.0,
    );
    let left = x + PADDING + 6.0;
    let mut baseline = y + PADDING / 2.0 + 12.0;
    let _ =
        write!(out, "<text class=\"title\" x=\"{left}\" y=\"{baseline}\">{} </text>", escaped(&shape.title));
    for line in &shape.lines {
        baseline += LINE;
        let _ = write!(out, "<text x=\"{left}\" y=\"{baseline}\">{} </text>", escaped(line));
    }
    out.push_str("</g>");
}

/// Replaces the characters of a text that have a special meaning in HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
