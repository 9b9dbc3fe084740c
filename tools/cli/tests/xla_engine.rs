//! Commands with `--engine xla`, through the plugin for the CPU. No compiler of IREE is on PATH.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::*;

/// The JSON that a command prints with XLA.
fn json(plugin: &Path, cache: &Path, command: &[&str]) -> Value {
    let engine = ["--engine", "xla", "--plugin", text(plugin), "--json"];
    let mut command = bare(&[command, &engine].concat());
    serde_json::from_str(&succeed(command.env("TRACEWRIGHT_CACHE", cache)).out).unwrap()
}

/// The vocabularies of the test models are odd, so the devices do not divide them.
const TWO_DEVICES: [&str; 4] = ["--mesh", "model=2", "--shard", "V=none"];

/// The second start takes the executables from the cache.
#[test]
fn a_second_start_compiles_nothing() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, model) = (folder(), fixture("llama-tied"));
    let generate = [&["generate", text(&model), "--tokens", "5,17,3", "-n", "8"], SMALL].concat();
    let [cold, warm] = [(); 2].map(|()| json(&plugin, folder.path(), &generate));
    let engine = ["--engine", "xla", "--plugin", text(&plugin)];
    let mut quiet = bare(&[&generate[..], &engine].concat());
    let ran = succeed(quiet.env("TRACEWRIGHT_CACHE", folder.path()));
    assert!(!ran.err.contains("cpu_aot_loader"), "{}", ran.err);
    assert_eq!(cold["tokens"], warm["tokens"]);
    let compile = |report: &Value| report["timings"]["compile_ms"].as_f64().unwrap();
    assert!(compile(&warm) < compile(&cold) / 2.0, "{} and {} ms", compile(&cold), compile(&warm));
}

#[test]
fn embeddings_are_those_of_the_golden() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, model) = (folder(), fixture("embeddinggemma"));
    let golden: Value = serde_json::from_slice(&fs::read(model.join("golden.json")).unwrap()).unwrap();
    let embed = ["embed", text(&model), "--dtype", "f32", "-p", golden["texts"][0]["text"].as_str().unwrap()];
    let tensors = tensors(&model.join("golden.safetensors"));
    let (_, _, bytes) = &tensors["texts.0.embedding"];
    let expected = bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    // The extent of `F` is odd.
    let by_features = ["--mesh", "model=2", "--shard", "F=none"];
    let by_texts = ["--mesh", "data=2", "--batch", "2", "-p", "another text"];
    for mesh in [&[][..], &by_features, &by_texts] {
        let found = json(&plugin, folder.path(), &[&embed[..], mesh].concat());
        let found: Vec<f32> = serde_json::from_value(found["texts"][0]["embedding"].clone()).unwrap();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected.clone()) {
            assert!((found - expected).abs() <= 1e-5, "{found} and {expected}");
        }
    }
}

#[test]
fn benchmarks_measure_decode_and_prefill() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, model) = (folder(), fixture("llama-tied"));
    let report = folder.path().join("report.json");
    let on_mesh = [&["--quant", "none,q8", "--tokens", "16"][..], &TWO_DEVICES].concat();
    let cases = [
        ("decode", &["--batch", "1,2"][..]),
        ("prefill", &["--tokens", "8,16"]),
        ("decode", &on_mesh),
        ("prefill", &on_mesh),
    ];
    for (case, more) in cases {
        let sizes = ["--context", "64", "--chunk", "8", "--rounds", "1", "--json", text(&report)];
        let engine = ["--engine", "xla", "--plugin", text(&plugin)];
        let mut bench = bare(&[&["bench", case, text(&model)], &sizes[..], &engine, more].concat());
        succeed(bench.env("TRACEWRIGHT_CACHE", folder.path()));
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let cases = report["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 2);
        for measured in cases {
            assert_eq!((&measured["case"], &measured["variant"]["engine"]), (&case.into(), &"xla".into()));
            assert_eq!(measured["variant"]["device"], "cpu");
            let mesh = if more == on_mesh { "model=2".into() } else { Value::Null };
            assert_eq!(measured["variant"]["mesh"], mesh, "{measured}");
            assert!(measured["tokens_per_s"].as_f64().unwrap() > 0.0, "{measured}");
        }
    }
}

#[test]
fn bisect_finds_no_difference() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, model) = (folder(), fixture("llama-tied"));
    let bisect = ["bisect", text(&model), "--tokens", "5,17,3,4", "--dtype", "f32", "--context", "64"];
    let on_mesh = [&["--quant", "q4"][..], &TWO_DEVICES].concat();
    for more in [&[][..], &["--quant", "q8"], &on_mesh] {
        let report = json(&plugin, folder.path(), &[&bisect[..], more].concat());
        assert_eq!((&report["subject"], &report["reference"]), (&"xla".into(), &"evaluator".into()));
        assert_eq!(report["differs"], false, "{more:?}: {report}");
        assert!(report["nodes"].as_u64().unwrap() > 50, "{more:?}: {report}");
    }
}

/// The bytes are those of the weights on the device.
#[test]
fn quality_counts_the_bytes_of_weights() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, demo) = (folder(), demo());
    let file = folder.path().join("text");
    fs::write(&file, "Once upon a time, there was a little girl who loved to play in the park. ".repeat(4))
        .unwrap();
    let sizes = ["--window", "32", "--windows", "1", "--dtype", "f32", "--quant", "q8"];
    let quality = [&["quality", text(&demo), "-f", text(&file)], &sizes[..]].concat();
    let report = json(&plugin, folder.path(), &quality);
    let bytes = |key: &str| report[key].as_u64().unwrap() as f64;
    let share = bytes("bytes") / bytes("reference_bytes");
    // Rows of 144 numbers fill five groups of 32.
    assert!(bytes("bytes") > 9e5 && (0.25..0.31).contains(&share), "{share}: {report}");
    assert!(report["quality"]["mean_kl"].as_f64().unwrap() < 0.01, "{report}");
}

/// A chat of two runs, whose weights all come directly from the checkpoint.
#[test]
fn a_chat_continues_from_its_session() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, demo) = (folder(), demo());
    let session = folder.path().join("chat.twseq");
    for question in ["Tell me a story about a fox.", "And about an owl?"] {
        let command = ["chat", text(&demo), "--session", text(&session), "-n", "8", "--context", "256"];
        let mut chat = bare(&[&command[..], &["--engine", "xla", "--plugin", text(&plugin)]].concat());
        let mut child = spawn(chat.env("TRACEWRIGHT_CACHE", folder.path()).stdin(Stdio::piped()));
        writeln!(child.stdin.take().unwrap(), "{question}").unwrap();
        let ran = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && !ran.stdout.trim_ascii().is_empty(), "{said}");
    }
    assert!(session.metadata().unwrap().len() > 1000);
}

/// The GPU benchmark, on the CPU: the tokens are those of transformers, and each speed has a row.
#[test]
fn the_gpu_benchmark_runs_on_a_cpu() {
    let Some(plugin) = cpu_plugin() else { return };
    let (folder, python) = (folder(), root().join(".tracewright/venv/bin/python"));
    let out = folder.path().join("out");
    let mut command = Command::new(python);
    command.arg(root().join("tests/benches/gpu/run")).arg("--out").arg(&out).arg("--rehearse");
    command.args([
        "--only",
        "devices,native-1b,quantized-1b,tokens",
        "--tracewright",
        env!("CARGO_BIN_EXE_tracewright"),
    ]);
    command.arg("--plugin").arg(&plugin).env("TRACEWRIGHT_CACHE", folder.path().join("cache"));
    succeed(&mut command);
    let report: Value = serde_json::from_slice(&fs::read(out.join("results.json")).unwrap()).unwrap();
    let results = |part: &str, kind: &str| -> Vec<Value> {
        let results = report["parts"][part]["results"].as_array().unwrap();
        results.iter().filter_map(|result| result.get(kind)).cloned().collect()
    };
    let speeds = results("native-1b", "speed");
    assert_eq!(speeds.len(), 4, "two batch sizes, with kernels and without");
    let quantized = results("quantized-1b", "speed");
    assert_eq!(quantized.len(), 4, "two batch sizes, in two formats");
    let bytes =
        |speed: &Value| speed["bytes_per_s"].as_f64().unwrap() * speed["step_ms"].as_f64().unwrap() / 1e3;
    let [eight, four] = ["tracewright, q8", "tracewright, q4"].map(|engine| {
        bytes(quantized.iter().find(|speed| speed["engine"] == engine && speed["batch"] == 1).unwrap())
    });
    let dense = bytes(&speeds[0]);
    assert!(four < eight && eight < 0.7 * dense, "{four}, {eight} and {dense} bytes a step");
    for speed in speeds.iter().chain(&quantized) {
        assert!(speed["decode_tokens_per_s"].as_f64().unwrap() > 0.0, "{speed}");
    }
    let tokens = results("tokens", "tokens");
    assert_eq!(tokens.len(), 4, "{tokens:?}");
    for found in tokens {
        assert_eq!(found["equal"], found["answers"], "{found}");
    }
    let table = fs::read_to_string(out.join("table.md")).unwrap();
    assert!(table.contains("| tiny | 8 | tracewright, kernels | bench |"), "{table}");
}
