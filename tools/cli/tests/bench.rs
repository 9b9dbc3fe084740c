//! `tracewright bench`, on models so small that each takes seconds.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

/// The cases that a benchmark reports, each of which holds what all do.
#[track_caller]
fn measured(arguments: &[&str]) -> Vec<Value> {
    let folder = folder();
    let [json, plot] = ["report.json", "report.svg"].map(|name| folder.path().join(name));
    let outputs = ["--json", text(&json), "--plot", text(&plot)];
    let temporary = littered();
    let mut command = tracewright(&["bench"]);
    command.args(arguments).args(["--rounds", "2"]).args(outputs).env("TMPDIR", temporary.path());
    let ran = succeed(&mut command);
    // Others throw nothing away.
    if arguments[0] == "suite" {
        assert_swept(&temporary);
    }
    let report: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((&report["schema"], &report["rounds"]), (&1.into(), &2.into()));
    let rates = ["read", "copy"].map(|name| report["memory"][name]["median"].as_f64().unwrap());
    // Between a slow disk and the fastest memory there is.
    assert!(rates.iter().all(|rate| (1e8..1e13).contains(rate)), "{rates:?}");
    assert!(report["peak_rss_bytes"].as_u64().is_none_or(|bytes| bytes > 1 << 20));
    let cases = report["cases"].as_array().unwrap().clone();
    let drawn = fs::read_to_string(&plot).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    for case in &cases {
        let seconds = |name: &str| case["seconds"][name].as_f64().unwrap();
        let order = ["min", "lower_quartile", "median", "upper_quartile", "max"].map(seconds);
        assert!(order[0] > 0.0 && order.is_sorted(), "{order:?}");
        // What is said in other units is the same.
        for (rate, work, unit) in
            [("tokens_per_s", "tokens", 1.0), ("gflop_per_s", "flops", 1e9), ("gb_per_s", "bytes", 1e9)]
        {
            // Parsed numbers are off in the last bit.
            let per_unit = |of: f64| of * unit * seconds("median");
            let (found, expected) = (case[rate].as_f64().map(per_unit), case["work"][work].as_f64());
            let equal = |(found, expected): (f64, f64)| (found / expected - 1.0).abs() < 1e-9;
            assert!(found.zip(expected).is_none_or(equal) && found.is_some() == expected.is_some(), "{rate}");
        }
        let name = case["case"].as_str().unwrap();
        assert!(ran.out.contains(name) && drawn.contains(name), "{}", ran.out);
    }
    assert_eq!(cases[0]["ratio_to_first"], 1.0);
    cases
}

fn calls(case: &Value) -> f64 {
    let dispatches = case["dispatches"].as_array().unwrap();
    dispatches.iter().map(|dispatch| dispatch["calls"].as_f64().unwrap()).sum()
}

/// The number of dispatches equals the compiler's, the bytes equal the plan's, and the kernels are found in
/// the network.
#[test]
fn decode_measures_what_is_planned_and_compiled() {
    let demo = demo();
    let sizes = ["--context", "64", "--chunk", "8", "--dtype", "bf16"];
    let quants = if is_long() { &["none", "q4"][..] } else { &["none"] };
    let asked = quants.join(",");
    let cases = measured(&[&["decode", text(&demo), "--quant", &asked, "--depth", "5"], &sizes[..]].concat());
    assert_eq!(cases.len(), quants.len());
    for (case, quant) in cases.iter().zip(quants) {
        let quant: &[&str] = if *quant == "none" { &[] } else { &["--quant", quant] };
        let plan = succeed(bare(&["plan", text(&demo), "--json"]).args(sizes).args(quant));
        let plan: Value = serde_json::from_str(&plan.out).unwrap();
        assert_eq!(case["work"]["bytes"].as_f64(), plan["streamed_bytes"].as_f64());

        let folder = folder();
        let [module, statistics] = ["decode.mlir", "statistics.json"].map(|name| folder.path().join(name));
        let dump = ["--entry", "decode", "--emit", "mlir", "--kernels", "on"];
        let dumped = succeed(trace_dump(&[text(&demo)]).args(dump).args(sizes).args(quant));
        fs::write(&module, dumped.out).unwrap();
        let flags = case["flags"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap().to_owned());
        let mut compile = Command::new(iree_compile());
        compile.arg(&module).arg("-o").arg(folder.path().join("decode.vmfb")).args(flags);
        compile.arg("--iree-scheduling-dump-statistics-format=json");
        compile.arg(format!("--iree-scheduling-dump-statistics-file={}", statistics.display()));
        assert!(compile.status().unwrap().success());
        let statistics: Value = serde_json::from_slice(&fs::read(&statistics).unwrap()).unwrap();
        let execution = &statistics["stream-aggregate"]["execution"];
        assert_eq!(Some(calls(case)), execution["dispatch-count"].as_f64());
    }
    let of = |case: &Value, path: &str| {
        let dispatches = case["dispatches"].as_array().unwrap();
        let there = |one: &&Value| one["paths"].as_array().unwrap().iter().any(|found| found == path);
        dispatches.iter().filter(there).map(|one| one["seconds"].as_f64().unwrap()).sum::<f64>()
    };
    assert!(cases.iter().all(|case| of(case, "model.layers.*.self_attn") > 0.0 && of(case, "lm_head") > 0.0));
}

#[test]
fn a_neighbour_is_a_variant() {
    let demo = demo();
    let sizes = ["--context", "64", "--chunk", "8", "--tokens", "4"];
    let cases = measured(&[&["decode", text(&demo), "--neighbour"], &sizes[..]].concat());
    assert_eq!(
        (&cases[0]["variant"]["neighbour"], &cases[1]["variant"]["neighbour"]),
        (&Value::Null, &"busy".into())
    );
    assert_eq!(cases[0]["work"], cases[1]["work"]);
    assert!(cases[1]["ratio_to_first"].as_f64().unwrap() > 0.0);
}

#[test]
fn prefill_measures_prompts_of_several_chunks() {
    let random = fixture("llama-untied").join("config.json");
    let model = ["prefill", text(&random), "--tokens", "8,20", "--context", "40", "--chunk", "8"];
    let kernels = if is_long() { &["on", "off"][..] } else { &["on"] };
    let cases = measured(&[&model[..], &["--kernels", &kernels.join(",")]].concat());
    let flops: Vec<f64> = cases.iter().map(|case| case["work"]["flops"].as_f64().unwrap()).collect();
    assert_eq!(cases.len(), 2 * kernels.len());
    assert!(flops.chunks(2).all(|of| of[1] == 3.0 * of[0]), "{flops:?}");
    // With kernels and without, nearly all of the time is somebody's.
    for case in &cases {
        let dispatches = case["dispatches"].as_array().unwrap();
        let seconds = |one: &Value| one["seconds"].as_f64().unwrap();
        let named = dispatches.iter().filter(|one| !one["paths"].as_array().unwrap().is_empty());
        let (named, all): (f64, f64) = (named.map(seconds).sum(), dispatches.iter().map(seconds).sum());
        assert!(named > 0.8 * all && all > 0.0, "{named} of {all}");
    }
}

#[test]
fn a_batch_gives_a_token_for_each_row() {
    let demo = demo();
    let sizes = ["--context", "64", "--chunk", "8", "--tokens", "4"];
    let rows = if is_long() { &[1.0, 3.0][..] } else { &[3.0] };
    let asked = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let cases = measured(&[&["decode", text(&demo), "--batch", &asked], &sizes[..]].concat());
    let tokens: Vec<_> = cases.iter().map(|case| case["work"]["tokens"].as_f64()).collect();
    assert_eq!(tokens, rows.iter().copied().map(Some).collect::<Vec<_>>());
}

#[test]
fn each_combination_is_a_variant() {
    let demo = demo();
    let variants = ["--simplify", "off,exact", "--chunk", "8,16", "--context", "64"];
    let cases = measured(&[&["trace", text(&demo)], &variants[..]].concat());
    let lowered = cases.iter().filter(|case| case["case"] == "lower");
    let variant =
        |case: &Value| ["simplify", "chunk"].map(|name| case["variant"][name].as_str().unwrap().to_owned());
    let found: Vec<_> = lowered.map(variant).collect();
    assert_eq!(found, [["off", "8"], ["exact", "8"], ["off", "16"], ["exact", "16"]]);
}

#[test]
fn k8_a_product_is_measured_alone() {
    let cases = measured(&["matmul", "--m", "1,4", "--n", "64", "--k", "96", "--quant", "none,q8"]);
    let work = |i: usize, of: &str| cases[i]["work"][of].as_f64().unwrap();
    assert_eq!((work(0, "flops"), work(1, "flops")), (2.0 * 64.0 * 96.0, 8.0 * 64.0 * 96.0));
    // Two bytes a number; eight bits and a half, in columns of 64.
    assert_eq!((work(0, "bytes"), work(2, "bytes")), (64.0 * 96.0 * 2.0, 64.0 * 128.0 * 8.5 / 8.0));
}

#[test]
fn attention_is_measured_alone() {
    let sizes = ["--queries", "4", "--heads", "2", "--groups", "3", "--features", "8"];
    let contexts = if is_long() { &["32", "64"][..] } else { &["32"] };
    let variants = ["--depth", "10", "--kernels", "on,off", "--context", &contexts.join(",")];
    let cases = measured(&[&["attention"], &variants[..], &sizes].concat());
    assert_eq!(cases.len(), 2 * contexts.len());
    // Keys and values of 14 positions: slots that nobody sees are not counted.
    assert!(cases.iter().all(|case| case["work"]["bytes"].as_f64() == Some(2.0 * 14.0 * 2.0 * 8.0 * 2.0)));
}

/// K9: one report of everything, with case, variant, times, rates and flags.
#[test]
fn k9_a_suite_is_one_report() {
    let model = if is_long() { demo() } else { fixture("llama-untied") };
    let cases = measured(&[&["suite", text(&model)][..], SMALL].concat());
    let names: Vec<&str> = cases.iter().map(|case| case["case"].as_str().unwrap()).collect();
    assert_eq!(names, ["prefill", "decode", "record", "expand", "lower", "compile", "bake"]);
    assert!(cases[0]["flags"].as_array().unwrap().iter().any(|flag| flag == "--iree-opt-level=O1"));
    assert!(cases[1]["variant"]["kernels"] == "on");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let demo = demo();
    let demo = text(&demo);
    let usage: &[(&[&str], &str)] = &[
        (&["bench", "decode"], "<MODEL>"),
        (&["bench", "decode", demo, "--rounds", "0"], "--rounds"),
        (
            &["bench", "decode", demo, "--quant", "q5"],
            "none, q8, q4, q4_k, mxfp4, q4:pure, q4_k:pure or mxfp4:pure",
        ),
        (&["bench", "decode", demo, "--dtype", "bf16,f99"], "f32, f16, bf16"),
        (&["bench", "matmul", "--n", "8"], "--k"),
        (&["bench", "speed", demo], "speed"),
    ];
    for (arguments, word) in usage {
        refused(&mut bare(arguments), 2, &[word]);
    }
    let small = ["--context", "64", "--chunk", "8"];
    // Before anything is compiled.
    let cache = folder();
    for depth in ["60", "5,60", "18446744073709551615"] {
        let deep = ["bench", "decode", demo, "--cache", text(cache.path()), "--depth", depth];
        let last = depth.rsplit(',').next().unwrap();
        let expected = [&format!("a `depth` of {last} "), "a `context` of 64", "--context"];
        refused(tracewright(&deep).args(small), 1, &expected);
    }
    let long = ["bench", "prefill", demo, "--cache", text(cache.path()), "--tokens", "8,64"];
    refused(tracewright(&long).args(small), 1, &["64 tokens", "a `context` of 64"]);
    assert!(listing(cache.path()).is_empty(), "something is left");
    let model = copied("llama-untied");
    let own = model.path().join("config.json");
    let before = fs::read(&own).unwrap();
    for option in ["--json", "--plot", "--trace"] {
        let over = ["bench", "decode", text(model.path()), option, text(&own)];
        refused(tracewright(&over).args(small), 1, &["config.json` is a file of the model itself"]);
        assert_eq!(fs::read(&own).unwrap(), before, "{option}");
    }
    let one = ["bench", "decode", demo, "--json", "report", "--plot", "report"];
    refused(tracewright(&one).args(small), 2, &["name the same file"]);
    let nowhere = ["bench", "decode", demo, "--json", "/nowhere/report.json"];
    refused(tracewright(&nowhere).args(small), 1, &["/nowhere/report.json"]);
}

/// Options out of range are rejected: a depth that would wrap around, queries beyond the end.
#[test]
fn attention_within_its_context() {
    for sizes in
        [["--depth", "18446744073709551615"], ["--depth", "512"], ["--queries", "0"], ["--queries", "513"]]
    {
        let mut command = tracewright(&["bench", "attention", "--context", "512"]);
        refused(command.args(sizes), 1, &["do not fit into a `context` of 512"]);
    }
}
