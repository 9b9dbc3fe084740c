//! Tests that a report agrees with its trace, and that every output format shows all data.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use expect_test::{expect, expect_file};
use instruments::profile::{Profile, ProfiledDispatch, ProfiledPlace};
use serde_json::Value;
use tracewright::models::ModelConfig;
use tracewright::models::presets::Preset;
use tracewright::targets::Target;
use tracewright::trace::Trace;
use tracewright::{Plan, lower};
use tracewright_inspect::report::{FunctionGraph, NetworkReport, NodeClass, NodeFacts, Stage};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(file: &str) -> Option<String> {
    std::fs::read_to_string(root().join(file)).ok()
}

fn plan(model: ModelConfig, context: usize, chunk: usize) -> Plan {
    let plan = Plan::new(model, None, Some(context), Some(chunk)).unwrap();
    let weights = lower::Weights { kernels: false, ..plan.weights.clone() };
    Plan { target: Target::processor("generic"), weights, ..plan }
}

fn fixture(name: &str) -> (Plan, Trace) {
    let plan = plan(ModelConfig::read(root().join("tests/fixtures").join(name), &[]).unwrap(), 40, 8);
    let trace = plan.trace().unwrap().trace;
    (plan, trace)
}

/// Whether tests take their long form: `cargo xtask test --long`.
fn is_long() -> bool {
    std::env::var_os("TRACEWRIGHT_TEST_LONG").is_some()
}

fn report(name: &str) -> NetworkReport {
    let (plan, trace) = fixture(name);
    NetworkReport::new(name, &plan, &trace, &source).unwrap()
}

/// The part of a page between the texts `open` and `close`.
fn between<'a>(page: &'a str, open: &str, close: &str) -> &'a str {
    page.split_once(open).unwrap().1.split_once(close).unwrap().0
}

fn data(page: &str) -> Value {
    serde_json::from_str(between(page, "<script id=\"report\" type=\"application/json\">", "</script>"))
        .unwrap()
}

#[test]
fn every_node_of_every_stage_is_in_the_report_and_on_the_page() {
    let (plan, trace) = fixture("gemma3-a");
    let report = NetworkReport::new("gemma3-a", &plan, &trace, &source).unwrap();
    let staged = plan.stages(&trace).unwrap();
    let stages = [&trace, &staged.simplified.0, &staged.expanded.0.trace];
    let page = report.html(None);
    let shown = data(&page);
    for (stage, trace) in Stage::ALL.into_iter().zip(stages) {
        for (index, function) in trace.functions.iter().enumerate() {
            let graph = report.graph(stage, &function.name).unwrap();
            for (id, node) in function.ids().zip(&graph.nodes) {
                let operands: Vec<String> =
                    function.operands(id).iter().map(|o| o.index().to_string()).collect();
                let edges: Vec<&String> =
                    node.incoming_edges.iter().map(|edge| &edge.source_node_id).collect();
                assert_eq!(edges, operands.iter().collect::<Vec<_>>(), "{} %{}", graph.id, node.id);
                let provenance = &function.node(id).provenance;
                assert_eq!((&*node.path, node.line), (&*provenance.path, provenance.line));
            }
            assert_eq!(graph.nodes.len(), function.len());
            if stage == Stage::Expanded {
                continue;
            }
            let listed = shown["functions"][index]["stages"][stage.name()]["nodes"].as_array().unwrap();
            assert_eq!(listed.len(), function.len());
            for (node, listed) in graph.nodes.iter().zip(listed) {
                let word = |place: usize| &shown["strings"][listed[place].as_u64().unwrap() as usize];
                assert_eq!((word(0), word(1)), (&node.label.as_str().into(), &node.text.as_str().into()));
            }
        }
    }
}

#[test]
fn the_page_needs_nothing_beside_it() {
    let page = report("gemma3-a").html(None);
    let without_names =
        page.replace("http://www.w3.org/2000/svg", "").replace("http://www.w3.org/1999/xhtml", "");
    for never in
        ["http:", "https:", "src=", "<link", "@import", "url(", "fetch(", "import(", "XMLHttpRequest"]
    {
        assert!(!without_names.contains(never), "`{never}` is in the page");
    }
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    // Each end tag occurs only once, because the inserted data do not end an element.
    for once in ["</style>", "</html>", "</body>", "</head>"] {
        assert_eq!(page.matches(once).count(), 1, "{once}");
    }
    assert_eq!(page.matches("</script>").count(), 2);
    assert_eq!(page, report("gemma3-a").html(None), "the same input gave another page");
}

/// Tests that the name of a key or a file never ends the HTML element that contains the name.
#[test]
fn names_are_data_and_no_markup() {
    let (plan, trace) = fixture("llama-untied");
    let text = trace.to_string().replace("self_attn", "</script><script>alert(1)</script>");
    let hostile: Trace = text.parse().unwrap();
    let page = NetworkReport::new("<b>&\"", &plan, &hostile, &|_| None).unwrap().html(None);
    assert!(!page.contains("<script>alert") && !page.contains("<b>"), "a name is markup");
    assert!(page.contains("<title>&lt;b&gt;&amp;&quot;</title>"));
    assert_eq!(page.matches("</script>").count(), 2);
    let svgs = page.split("<template").skip(1).map(|rest| between(rest, ">", "</template>"));
    svgs.for_each(|svg| drop(roxmltree::Document::parse(svg).unwrap()));
}

#[test]
fn boxes_do_not_overlap_and_stand_for_every_node_that_is_drawn() {
    for name in if is_long() { &["gemma3-a", "mixtral", "lfm2", "gpt2"][..] } else { &["mixtral", "lfm2"] } {
        let report = report(name);
        for graph in report.graphs.iter().filter(|graph| graph.stage != Stage::Expanded) {
            let svg = report.svg(graph);
            let document = roxmltree::Document::parse(&svg).unwrap();
            let number = |node: roxmltree::Node<'_, '_>, key: &str| {
                node.attribute(key).unwrap().parse::<f64>().unwrap()
            };
            let mut places = Vec::new();
            let mut drawn = BTreeSet::new();
            for shape in document.descendants().filter(|node| node.attribute("data-nodes").is_some()) {
                let nodes = shape.attribute("data-nodes").unwrap().split_whitespace();
                drawn.extend(nodes.map(|id| id.parse::<usize>().unwrap()));
                let card = shape.children().find(|child| child.attribute("class") == Some("card")).unwrap();
                places.push(["x", "y", "width", "height"].map(|key| number(card, key)));
            }
            let [right, bottom] = ["width", "height"].map(|key| number(document.root_element(), key));
            for (i, [x, y, width, height]) in places.iter().enumerate() {
                assert!(*x >= 0.0 && *y >= 0.0 && x + width <= right && y + height <= bottom, "{}", graph.id);
                for [other_x, other_y, other_width, other_height] in &places[i + 1..] {
                    let apart = x + width <= *other_x || other_x + other_width <= *x;
                    assert!(apart || y + height <= *other_y || other_y + other_height <= *y, "{}", graph.id);
                }
            }
            for (index, node) in graph.nodes.iter().enumerate() {
                let folds =
                    matches!(node.class, NodeClass::Parameter | NodeClass::Constant | NodeClass::Input);
                assert!(
                    folds || drawn.contains(&index),
                    "{} %{index} `{}` is not drawn",
                    graph.id,
                    node.text
                );
            }
        }
    }
}

/// Tests the facts about a node that the trace does not contain: its weight, its source line, and
/// its statements.
#[test]
fn a_node_knows_what_it_costs_where_it_stands_and_what_it_becomes() {
    let report = report("llama-untied");
    let layer = report.stage(Stage::Traced).find(|graph| !graph.entry).unwrap();
    let up =
        layer.nodes.iter().find(|node| node.path.ends_with("up_proj") && node.label == "linear").unwrap();
    let [x, weight] = [0, 1].map(|operand| layer.operands(up).nth(operand).unwrap());
    // A matmul reads its two operands, writes its result, and multiplies and adds each number of
    // the weight.
    let moved = x.types[0].bytes + weight.types[0].bytes + up.types[0].bytes;
    let tokens: usize = x.types[0].shape[..2].iter().product();
    let elements: usize = weight.types[0].shape.iter().product();
    assert_eq!((up.cost.bytes, up.cost.flops), (moved as f64, (2 * tokens * elements) as f64));
    let line = &report.sources[&up.file][&up.line];
    assert!(line.contains("self.up_proj(x)"), "{line}");
    let expanded = report.graph(Stage::Expanded, &layer.function).unwrap();
    let became = expanded.statements.iter().filter(|s| (&s.path, s.line) == (&up.path, up.line));
    assert!(
        became.clone().any(|s| s.text.contains("stablehlo.dot_general")),
        "{:?}",
        became.collect::<Vec<_>>()
    );
    // The cost of an entry point contains the cost of the called function once for each call.
    let entry = report
        .stage(Stage::Traced)
        .find(|graph| graph.nodes.iter().any(|n| n.label == layer.function))
        .unwrap();
    let calls: Vec<_> = entry.nodes.iter().filter(|node| node.class == NodeClass::Call).collect();
    assert_eq!(calls.len(), layer.layers.len());
    assert!(
        calls
            .iter()
            .all(|call| call.cost.flops == layer.cost.flops && call.subgraph_ids == [layer.id.clone()])
    );
    assert!(entry.cost.flops > calls.len() as f64 * layer.cost.flops);
}

#[test]
fn rules_masks_rings_and_frequencies_are_those_of_the_network() {
    let report = report("gemma3-a");
    assert!(
        report.rules.iter().all(|rule| !rule.equation.is_empty() && rule.fired > 0),
        "{:?}",
        report.rules
    );
    let mut fired: BTreeMap<&str, usize> = BTreeMap::new();
    for (rule, count) in report.graphs.iter().flat_map(|graph| &graph.fired) {
        *fired.entry(rule).or_default() += count;
    }
    let all = report.rules.iter().map(|rule| (rule.name.as_str(), rule.fired)).collect();
    assert_eq!(fired, all, "each rule found something in some function");
    assert!(fired.contains_key("linears of one input"));
    let terms: BTreeSet<Vec<&str>> =
        report.masks.iter().map(|mask| mask.terms.iter().map(String::as_str).collect()).collect();
    expect![[r#"{["causal"], ["causal", "window(6)", "ring"]}"#]].assert_eq(&format!("{terms:?}"));
    let [first, second] = &report.rotary[..] else { panic!("{} rotary embeddings", report.rotary.len()) };
    assert!(first.layers.iter().all(|layer| !second.layers.contains(layer)) && first.frequencies[0] == 1.0);
    let layers = first.layers.len() + second.layers.len();
    assert_eq!(
        layers,
        report
            .graph(Stage::Traced, "decode")
            .unwrap()
            .nodes
            .iter()
            .filter(|n| n.class == NodeClass::Call)
            .count()
    );
}

#[test]
fn weights_of_layers_stand_together_with_format_and_recipe() {
    let (plan, trace) = fixture("gemma3-a");
    let report = NetworkReport::new("gemma3-a", &plan, &trace, &source).unwrap();
    let keys: BTreeSet<String> = report.parameters.iter().flat_map(|group| group.keys.clone()).collect();
    let written = plan.expand(&trace).unwrap().trace.parameters().unwrap();
    assert_eq!(keys, written.iter().map(|parameter| parameter.key.clone()).collect());
    let bytes: usize = report.parameters.iter().map(|group| group.keys.len() * group.ty.bytes).sum();
    assert_eq!(bytes, report.memory.weights.iter().map(|stored| stored.bytes).sum::<usize>());
    let merged = report.parameters.iter().find(|group| group.key.contains("gate_proj")).unwrap();
    assert_eq!(merged.sources, ["model.layers.*.mlp.gate_proj.weight", "model.layers.*.mlp.up_proj.weight"]);
    assert!(
        merged.recipe.as_ref().unwrap().starts_with("concatenate axis=0 (\"model.layers.*.mlp.gate_proj")
    );
    assert!(report.parameters.iter().all(|group| !group.stored.is_empty()));
}

/// Tests the fields that Google's Model Explorer reads: `label`, `graphs`, and the namespaces of
/// its hierarchy.
#[test]
fn the_json_is_a_graph_collection_with_a_namespace_on_every_node() {
    let json: Value = serde_json::from_str(&report("llama-untied").json()).unwrap();
    let graphs = json["graphs"].as_array().unwrap();
    let ids: BTreeSet<&str> = graphs.iter().map(|graph| graph["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), graphs.len());
    for graph in graphs {
        let nodes = graph["nodes"].as_array().unwrap();
        let known: BTreeSet<&str> = nodes.iter().map(|node| node["id"].as_str().unwrap()).collect();
        assert_eq!(known.len(), nodes.len());
        for node in nodes {
            assert!(
                !node["namespace"].as_str().unwrap().is_empty()
                    && !node["label"].as_str().unwrap().is_empty()
            );
            let edges = node["incomingEdges"].as_array().unwrap();
            assert!(
                edges.iter().all(|edge| known.contains(edge["sourceNodeId"].as_str().unwrap())),
                "{node}"
            );
            let called = node["subgraphIds"].as_array().unwrap();
            assert!(called.iter().all(|id| ids.contains(id.as_str().unwrap())), "{node}");
        }
    }
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let linear =
        graphs[0]["nodes"].as_array().unwrap().iter().find(|node| node["label"] == "linear").unwrap();
    let shown = format!("{}\n{}\n{linear:#}\n", keys(&json), keys(&graphs[0]));
    expect_file![golden("node.json")].assert_eq(&shown);
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name)
}

#[test]
fn a_layer_for_graphviz() {
    let report = report("llama-untied");
    let layer = report.stage(Stage::Traced).rfind(|graph| !graph.entry).unwrap();
    expect_file![golden("layer.dot")].assert_eq(&report.dot(layer));
}

/// Tests a profile with known times: two places of a layer together, the head, and a dispatch
/// without a recorded node.
#[test]
fn measured_times_are_shared_among_the_nodes_of_a_place() {
    let (plan, trace) = fixture("llama-untied");
    let mut report = NetworkReport::new("llama-untied", &plan, &trace, &source).unwrap();
    let find = |report: &NetworkReport, path: &str, label: &str| {
        let of = |graph: &FunctionGraph| {
            graph.nodes.iter().find(|node| node.path == path && node.label == label).cloned()
        };
        let layer = report.graph(Stage::Traced, "decode").unwrap().nodes.iter();
        let called = layer.clone().find(|node| node.class == NodeClass::Call).unwrap().label.clone();
        [called.as_str(), "decode"]
            .into_iter()
            .find_map(|name| of(report.graph(Stage::Traced, name)?))
            .unwrap()
    };
    let place = |path: &str, label: &str, share: f64| {
        let NodeFacts { path, file, line, .. } = find(&report, path, label);
        ProfiledPlace { path, file, line, operation: None, share }
    };
    let [up, down] = ["up_proj", "down_proj"].map(|name| format!("model.layers.*.mlp.{name}"));
    let dispatch = |layer: Option<&str>, seconds: f64, places: Vec<ProfiledPlace>| ProfiledDispatch {
        function: format!("dispatch_{}", places.len()),
        layer: layer.map(str::to_owned),
        calls: 1.0,
        seconds,
        bytes: Some(1e6),
        flops: None,
        places,
    };
    let both = || vec![place(&up, "linear", 0.75), place(&down, "linear", 0.25)];
    let profile = Profile {
        seconds: 0.02,
        dispatches: vec![
            dispatch(Some("model.layers.0"), 0.004, both()),
            dispatch(Some("model.layers.1"), 0.008, both()),
            dispatch(None, 0.003, vec![place("lm_head", "linear", 1.0)]),
            dispatch(None, 0.001, Vec::new()),
        ],
        ..Profile::new("llama-untied", &plan, &trace, "decode")
    };
    profile.check(&plan, &trace).unwrap();
    let text = profile.text();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("profile.json");
    std::fs::write(&file, &text).unwrap();
    assert_eq!(Profile::read(&file).unwrap(), profile);
    let file: Value = serde_json::from_str(&text).unwrap();
    let names: Vec<&str> =
        file["traceEvents"].as_array().unwrap().iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(
        names[2..],
        ["model.layers.0.mlp.up_proj + 1", "model.layers.1.mlp.up_proj + 1", "lm_head", "dispatch_0"]
    );

    report.add_profile(profile);
    let took =
        |path: &str, label: &str| find(&report, path, label).measured.map(|seconds| (seconds * 1e9).round());
    // The measured time is the mean of two layers: 0.75 · (4 + 8) / 2 ms.
    assert_eq!(took(&up, "linear"), Some(4_500_000.0));
    assert_eq!(took(&down, "linear"), Some(1_500_000.0));
    assert_eq!(took("lm_head", "linear"), Some(3_000_000.0));
    assert_eq!(took("model.layers.*.mlp.gate_proj", "linear"), None);
    let facts = report.profile.as_ref().unwrap();
    let paths: Vec<(&str, f64)> =
        facts.paths.iter().map(|one| (one.path.as_str(), (one.seconds * 1e6).round())).collect();
    assert_eq!(paths, [(up.as_str(), 9000.0), ("lm_head", 3000.0), (down.as_str(), 3000.0)]);
    assert!((facts.dispatched - 0.016).abs() < 1e-12 && (facts.elsewhere - 0.001).abs() < 1e-12, "{facts:?}");
    assert_eq!((facts.functions[0].calls, facts.functions[0].bytes), (2.0, Some(2e6)));
    let shown = data(&report.html(None));
    assert_eq!(shown["profile"]["entry"], "decode");
}

/// Tests that the page of a network with 126 layers stays small enough to send, and in the long
/// form also that of a network with 26 layers.
#[test]
fn pages_of_published_sizes_are_small() {
    for name in ["llama-3.1-405b", "gemma-3-1b"].into_iter().take(if is_long() { 2 } else { 1 }) {
        let plan = plan(Preset::named(name).unwrap().read().unwrap(), 2048, 128);
        let trace = plan.trace().unwrap().trace;
        let page = NetworkReport::new(name, &plan, &trace, &source).unwrap().html(None);
        println!("{name}: {} bytes", page.len());
        assert!(page.len() < 2_000_000, "{name}: {} bytes", page.len());
    }
}
