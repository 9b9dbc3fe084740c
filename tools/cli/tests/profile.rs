//! The measured time of a call, from the benchmark to the page.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::*;

/// Those of the benchmarks too, so that each network is compiled once.
const SIZES: [&str; 4] = ["--context", "64", "--chunk", "8"];

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The profile of the shipped model, measured in this folder, and what the benchmark itself reports.
#[track_caller]
fn measured(folder: &Path, case: &[&str]) -> (Value, Value) {
    let [trace, report] = ["trace.json", "report.json"].map(|name| folder.join(name));
    let mut command = tracewright(&["bench", case[0], text(&demo())]);
    command.args(&case[1..]).args(["--rounds", "2", "--trace", text(&trace), "--json", text(&report)]);
    let temporary = littered();
    command.env("TMPDIR", temporary.path());
    // Files are written whether somebody reads the table or not.
    #[cfg(unix)]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(std::process::Stdio::from(writer));
    }
    succeed(&mut command);
    assert_swept(&temporary);
    (json_of(&trace), json_of(&report))
}

/// The profile of a step, its folder, and the report of the benchmark.
static DECODED: LazyLock<(TempDir, Value, Value)> = LazyLock::new(|| {
    let folder = folder();
    let (trace, report) = measured(folder.path(), &[&["decode", "--tokens", "4"], &SIZES[..]].concat());
    (folder, trace, report)
});

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn sum(values: impl Iterator<Item = f64>) -> f64 {
    values.sum()
}

#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a / b - 1.0).abs() < 1e-6, "{a} and {b}");
}

/// The events have the Trace Event Format's JSON Object Format: complete events with numbers, one after the
/// other on a single track, with the layers in order. They cover everything that the benchmark measured.
#[test]
fn k5_a_trace_has_every_dispatch_of_a_step_in_order() {
    let (_, trace, report) = &*DECODED;
    let events = trace["traceEvents"].as_array().unwrap();
    let (said, complete): (Vec<_>, Vec<_>) = events.iter().partition(|event| event["ph"] == "M");
    assert_eq!(said.iter().map(|event| &event["name"]).collect::<Vec<_>>(), ["process_name", "thread_name"]);
    let mut end = 0.0;
    for event in &complete {
        assert_eq!([&event["ph"], &event["pid"], &event["tid"]], [&json!("X"), &json!(1), &json!(1)]);
        assert!((number(&event["ts"]) - end).abs() < 1e-3 && number(&event["dur"]) >= 0.0, "{event}");
        assert!(
            !event["name"].as_str().unwrap().is_empty() && event["args"]["function"].is_string(),
            "{event}"
        );
        end = number(&event["ts"]) + number(&event["dur"]);
    }
    let dispatches = report["cases"][0]["dispatches"].as_array().unwrap();
    near(end / 1e6, sum(dispatches.iter().map(|one| number(&one["seconds"]))));
    near(
        sum(complete.iter().map(|event| number(&event["args"]["calls"]))),
        sum(dispatches.iter().map(|one| number(&one["calls"]))),
    );
    // Field path and operation; layers in their order, the head behind them.
    let names: Vec<&str> = complete.iter().map(|event| event["name"].as_str().unwrap()).collect();
    let place = |name: &str| {
        names
            .iter()
            .position(|known| known.starts_with(name))
            .unwrap_or_else(|| panic!("no `{name}` in {names:#?}"))
    };
    assert!(place("model.layers.0.mlp") < place("model.layers.1.mlp"), "{names:#?}");
    assert!(place("model.layers.1.mlp") < place("lm_head linear"), "{names:#?}");
    assert!(names.iter().any(|name| name.contains(".self_attn sdpa")), "{names:#?}");
    assert!(!names.iter().any(|name| name.contains('*')), "{names:#?}");
    // Of the head all is known: it reads its weight once.
    let head = &complete[place("lm_head linear")]["args"];
    let plan = succeed(bare(&["plan", text(&demo()), "--json"]).args(SIZES)).out;
    assert!(number(&head["bytes"]) > 512.0 && number(&head["gflop"]) > 0.0, "{head} {plan}");
    assert_eq!(trace["tracewright"]["seconds"], report["cases"][0]["seconds"]["median"]);
}

/// Seconds of a call of a function by its nodes, with all that it calls.
fn took(graphs: &BTreeMap<&str, &Value>, id: &str) -> f64 {
    let one = |node: &Value| match node["subgraphIds"].as_array().unwrap().first() {
        Some(callee) => took(graphs, callee.as_str().unwrap()),
        None => node["measured"].as_f64().unwrap_or(0.0),
    };
    sum(graphs[id]["nodes"].as_array().unwrap().iter().map(one))
}

/// Nothing of what was measured is lost on the way to the nodes, at any stage; the sizes are those of the profile.
#[test]
fn the_page_shows_what_was_measured() {
    let (folder, ..) = &*DECODED;
    let profile = folder.path().join("trace.json");
    let dump = |more: &[&str]| trace_dump(&[&[text(&demo()), "--profile", text(&profile)], more].concat());
    let report: Value = serde_json::from_str(&succeed(&mut dump(&["--emit", "json"])).out).unwrap();
    let facts = &report["profile"];
    let (dispatched, elsewhere) = (number(&facts["dispatched"]), number(&facts["elsewhere"]));
    let graphs: BTreeMap<&str, &Value> = report["graphs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|graph| (graph["id"].as_str().unwrap(), graph))
        .collect();
    for stage in ["traced", "simplified"] {
        let placed = took(&graphs, &format!("{stage}/decode"));
        assert!(
            placed > 0.8 * dispatched && placed < 1.000_001 * dispatched,
            "{stage}: {placed} of {dispatched}"
        );
        near(took(&graphs, "traced/decode"), dispatched - elsewhere);
    }
    near(sum(facts["functions"].as_array().unwrap().iter().map(|one| number(&one["seconds"]))), dispatched);
    let paths: Vec<f64> =
        facts["paths"].as_array().unwrap().iter().map(|one| number(&one["seconds"])).collect();
    assert!(paths.is_sorted_by(|a, b| a >= b) && paths.len() > 5, "{paths:?}");
    assert_eq!([&report["network"]["context"], &report["network"]["chunk"]], [64, 8]);
    let page = succeed(&mut dump(&["--emit", "html"])).out;
    assert!(page.contains("\"profile\":{\"model\":\"demo\"") && page.contains("\"first\":\"decode\""));
    let without = succeed(trace_dump(&[text(&demo()), "--emit", "html"]).args(SIZES)).out;
    assert!(!without.contains("\"profile\":"));

    refused(
        &mut dump(&["--emit", "json", "--context", "128"]),
        1,
        &["TW1007", "`context` is 64 in the profile and 128 in the network", "help: "],
    );
    refused(
        &mut dump(&["--emit", "html", "--entry", "prefill"]),
        1,
        &["TW1007", "for `decode`", "its entry points are `prefill`"],
    );
    refused(&mut dump(&["--emit", "dot"]), 2, &["--emit html"]);
    let other = copied("llama-untied");
    let mut other = trace_dump(&[text(other.path()), "--emit", "html", "--profile", text(&profile)]);
    refused(&mut other, 1, &["TW1007", "another network, `demo`"]);
    let spoiled = |edit: &dyn Fn(&mut Value)| {
        let mut file = json_of(&profile);
        edit(&mut file);
        let path = folder.path().join("spoiled.json");
        fs::write(&path, file.to_string()).unwrap();
        trace_dump(&[text(&demo()), "--emit", "html", "--profile", text(&path)])
    };
    let entry = |file: &mut Value| file["tracewright"]["schema"] = 2.into();
    refused(&mut spoiled(&entry), 1, &["TW1006", "`schema` is 2, expected 1"]);
    refused(&mut spoiled(&|file| *file = json!([])), 1, &["TW1006", "no key `tracewright`"]);
    let negative = |file: &mut Value| file["tracewright"]["dispatches"][0]["seconds"] = (-1).into();
    refused(&mut spoiled(&negative), 1, &["TW1006", "a time, a count or a share of -1"]);
    for key in ["calls", "bytes", "flops"] {
        let negative = |file: &mut Value| file["tracewright"]["dispatches"][0][key] = (-2).into();
        refused(&mut spoiled(&negative), 1, &["TW1006", "a time, a count or a share of -2"]);
    }
    let hash = |file: &mut Value| file["tracewright"]["recorded"] = "0".into();
    refused(&mut spoiled(&hash), 1, &["TW1007", "the network's declaration has changed since"]);
}

#[test]
fn a_prompt_of_whole_chunks_has_a_profile() {
    let folder = folder();
    let (trace, report) = measured(folder.path(), &[&["prefill", "--tokens", "16"], &SIZES[..]].concat());
    let own = &trace["tracewright"];
    assert_eq!([&own["case"], &own["entry"]], ["prefill", "prefill"]);
    // Two calls of eight tokens.
    near(2.0 * number(&own["seconds"]), number(&report["cases"][0]["seconds"]["median"]));
    let dispatched = sum(own["dispatches"].as_array().unwrap().iter().map(|one| number(&one["seconds"])));
    let all = report["cases"][0]["dispatches"].as_array().unwrap();
    near(2.0 * dispatched, sum(all.iter().map(|one| number(&one["seconds"]))));
}

/// Reading the prompts of a batch is not counted. The rest consists of whole steps.
#[test]
fn a_batch_has_a_profile_of_its_steps() {
    let folder = folder();
    let case = ["decode", "--batch", "3", "--depth", "11", "--tokens", "4"];
    let (trace, report) = measured(folder.path(), &[&case[..], &SIZES[..]].concat());
    assert_eq!(trace["tracewright"]["variant"]["batch"], "3");
    let dispatches = report["cases"][0]["dispatches"].as_array().unwrap();
    assert!(dispatches.len() > 5, "{dispatches:#?}");
    for one in dispatches {
        assert_eq!(number(&one["calls"]).fract(), 0.0, "{one}");
    }
    let profile = folder.path().join("trace.json");
    let mut page = trace_dump(&[text(&demo()), "--profile", text(&profile), "--emit", "html"]);
    refused(&mut page, 1, &["TW1007", "`batch` is 3 in the profile and 1 in the network"]);
}

#[test]
fn what_has_no_profile_is_refused_before_anything_is_measured() {
    let (folder, demo) = (folder(), demo());
    let file = folder.path().join("trace.json");
    let bench = |case: &[&str]| {
        let mut command = tracewright(&["bench", case[0], text(&demo)]);
        command.args(&case[1..]).args(SIZES).args(["--trace", text(&file)]);
        command
    };
    refused(&mut bench(&["prefill", "--tokens", "8,16"]), 2, &["one variant"]);
    refused(
        &mut bench(&["prefill", "--tokens", "20"]),
        1,
        &["TW1008", "a prompt of 20 `tokens`", "`chunk` of 8"],
    );
    assert!(listing(folder.path()).is_empty(), "something is left");
    let own = ["bench", "decode", text(&demo), "--trace"];
    refused(tracewright(&own).arg(demo.join("config.json")), 1, &["TW0008"]);
}
