//! `tracewright plan`: what a model will hold in memory.

use std::fs;

use serde_json::Value;

use crate::support::*;

#[test]
fn a_plan_reads_a_configuration_alone() {
    let folder = folder();
    let config = folder.path().join("config.json");
    fs::copy(demo().join("config.json"), &config).unwrap();
    let ran = succeed(bare(&["plan", text(&config), "--json"]).args(SMALL));
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    let bytes = |name: &str| plan[name].as_u64().unwrap();
    // Keys and values of each layer: context × heads × features, two bytes each.
    let config: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let number = |name: &str| config[name].as_u64().unwrap();
    let state = 2 * 2 * 40 * number("num_key_value_heads") * number("head_dim") * number("num_hidden_layers");
    assert_eq!(plan["state_bytes"]["kv"].as_u64().unwrap(), state);
    assert!(bytes("running_bytes") > bytes("weight_bytes") + state);
    assert_eq!(plan["fits"], true);

    let table = succeed(bare(&["plan", text(folder.path())]).args(SMALL));
    for word in
        ["weights", "no matrix: model.layers.0.input_layernorm.weight", "state", "context 40", "running"]
    {
        assert!(table.out.contains(word), "`{word}` is not in\n{}", table.out);
    }
    assert_eq!(listing(folder.path()).len(), 1);
}

/// Keys and values of a hundred million positions: refused by all, and at once.
#[test]
fn what_cannot_fit_is_refused() {
    let folder = copied("llama-untied");
    edit_config(folder.path(), |config| {
        config.insert("max_position_embeddings".into(), 1_000_000_000.into());
    });
    let model = text(folder.path());
    let words = ["the network needs", "state", "--context"];
    let ran = refused(bare(&["plan", model, "--context", "1000000000"]).args(["--chunk", "8"]), 1, &words);
    assert!(ran.out.contains("running"), "{}", ran.out);
    #[cfg(feature = "iree")]
    {
        let cache = folder.path().join("cache");
        let generate =
            ["generate", model, "--tokens", "1", "--context", "1000000000", "--cache", text(&cache)];
        refused(&mut tracewright(&generate), 1, &words);
        assert!(!cache.exists());
    }
}

/// A published size among devices of a published kind, from its name alone.
#[test]
fn a_plan_for_many_devices_says_what_each_holds_and_exchanges() {
    let asked = ["plan", "llama-3.1-405b", "--mesh", "model=16", "--machine", "h100"];
    let ran = succeed(bare(&asked).args(["--json"]));
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&plan["devices"], &plan["fits"]), (&16.into(), &true.into()));
    assert_eq!(plan["replicated"].as_array().unwrap().len(), 2 * 126 + 1);
    assert_eq!(plan["notes"].as_array().unwrap().len(), 2);
    let calls = plan["calls"].as_array().unwrap();
    let decode = calls.iter().find(|call| call["entry"] == "decode").unwrap();
    let counts = decode["collectives"].as_array().unwrap().iter().map(|one| one["count"].as_u64().unwrap());
    assert_eq!(counts.sum::<u64>(), 2 * 126 + 3);
    let seconds = |name: &str| decode["seconds"][name].as_f64().unwrap();
    assert!((seconds("total") - seconds("read") - seconds("exchange")).abs() < 1e-12);

    let table = succeed(&mut bare(&asked)).out;
    for word in [
        "each of 16 devices",
        "253 weights",
        "NVIDIA",
        "252  all-reduce of f32[1,16384] among 16",
        "total ms",
    ] {
        assert!(table.contains(word), "`{word}` is not in\n{table}");
    }
    let words = ["each device needs 101.", "only 80.00 GB are available", "--mesh"];
    let ran =
        refused(&mut bare(&["plan", "llama-3.1-405b", "--mesh", "model=8", "--machine", "h100"]), 1, &words);
    assert!(ran.out.contains("each of 8 devices"), "{}", ran.out);
}

/// Options without effect, and paths without a plan, are errors.
#[test]
fn what_is_asked_for_has_a_meaning() {
    let (model, out) = (fixture("llama-untied"), folder());
    let many = "expected a number from 1 to 65536";
    for batch in ["0", "65537", "4611686018427387904", "18446744073709551616"] {
        refused(&mut bare(&["plan", text(&model), "--batch", batch]), 2, &[many]);
    }
    let dump =
        &mut trace_dump(&[text(&model), "--context", "64", "--chunk", "1", "--entry", "prefill_short"]);
    refused(dump, 2, &["has no entry point `prefill_short`", "decode"]);
    let (weights, archive) = (model.join("model.safetensors"), out.path().join("x.irpa"));
    for option in
        [["--context", "7"], ["--chunk", "3"], ["--kv", "q8"], ["--quant", "q8"], ["--simplify", "off"]]
    {
        let mut bake = bare(&["bake", text(&weights), "-o", text(&archive)]);
        refused(bake.args(option), 2, &[option[0], "is for a model"]);
        assert!(!archive.exists());
    }
    let gguf = fixture("gguf").join("q4_0.gguf");
    for command in [
        &["plan", text(&gguf), "--mesh", "model=1"][..],
        &["export", text(&gguf), "-o", "/nowhere/x", "--engine", "xla"],
    ] {
        refused(&mut bare(command), 1, &["is a GGUF file, but XLA reads only safetensors"]);
    }
    let damaged = copied("llama-untied");
    std::fs::write(damaged.path().join("model.safetensors"), "").unwrap();
    refused(&mut bare(&["plan", text(damaged.path())]), 1, &["model.safetensors"]);
    // A configuration alone is enough.
    std::fs::remove_file(damaged.path().join("model.safetensors")).unwrap();
    succeed(&mut bare(&["plan", text(damaged.path())]));
    succeed(&mut bare(&["plan", text(&model.join("config.json"))]));
}

#[cfg(unix)]
#[test]
fn a_manifest_names_no_path_that_is_no_text() {
    use std::os::unix::ffi::OsStrExt as _;

    let (held, out) = (copied("llama-untied"), folder());
    let model = out.path().join(std::ffi::OsStr::from_bytes(b"n\xff"));
    std::fs::rename(held.path(), &model).unwrap();
    let export = out.path().join("out");
    let mut command = bare(&["export", "--engine", "xla", "-o", text(&export)]);
    refused(command.arg(&model).args(SMALL), 1, &["is not valid UTF-8", "rename the checkpoint"]);
    assert!(!export.exists());
    std::fs::rename(&model, held.path()).unwrap();
}

#[test]
fn one_device_of_a_named_kind_exchanges_nothing() {
    let ran = succeed(bare(&["plan", text(&demo()), "--machine", "1e9:1e12", "--json"]).args(SMALL));
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    for call in plan["calls"].as_array().unwrap() {
        assert!(call["collectives"].as_array().unwrap().is_empty());
        let read = call["read_bytes"].as_f64().unwrap() / 1e9;
        assert!((call["seconds"]["read"].as_f64().unwrap() - read).abs() < 1e-12);
    }
    assert!(plan["fits"].is_null() && plan["mesh"].is_null());
}

/// Two devices divide the six experts of the fixture, four devices divide each expert.
#[test]
fn a_plan_names_experts_that_devices_cannot_divide() {
    let fixture = fixture("qwen3_moe");
    let plan = |mesh: &str| {
        let whole = ["--shard", "F,V=none", "--expert-parallel"];
        succeed(bare(&["plan", text(&fixture), "--mesh", mesh]).args(whole).args(SMALL)).out
    };
    assert!(!plan("model=2").contains("experts"), "{}", plan("model=2"));
    let note = "X of 6 experts is not divisible by the 4 devices along `model`: each device holds all of `";
    assert!(plan("model=4").contains(note), "{}", plan("model=4"));
}

#[test]
fn a_plan_for_no_devices_is_refused() {
    let demo = demo();
    let plan = ["plan", text(&demo)];
    for (more, code, words) in [
        (&["--shard", "K=model"][..], 2, "name the mesh with `--mesh`"),
        (&["--expert-parallel"], 2, "`--expert-parallel` divides axes among the devices of a mesh"),
        (&["--mesh", "model=2", "--expert-parallel"], 1, "has the axis `experts`"),
        (&["--machine", "abacus"], 2, "expected cpu, gpu, h100, mi300x, tpu-v5e, or BYTES:OPERATIONS"),
        (&["--machine", "1e9:2e9:3e9:4e9"], 2, "is not a machine"),
        (
            &["--mesh", "model=2", "--shard", "V=none", "--shard", "K,V=model"],
            2,
            "both divides `V` and leaves it whole",
        ),
        (&["--mesh", "model=5"], 1, "not divisible by the 5 devices"),
    ] {
        refused(bare(&plan).args(more), code, &[words]);
    }
    refused(&mut bare(&["plan", "llama-3.1-504b"]), 1, &["trace-dump presets"]);
}

/// A reader that has gone does not turn a refusal into success.
#[cfg(unix)]
#[test]
fn a_refusal_is_one_whoever_reads() {
    let unread = |mut command: std::process::Command| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = command.stdout(std::process::Stdio::from(writer)).output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned())
    };
    let small = ["plan", "llama-3.1-405b", "--machine", "h100", "--mesh", "model=8", "--dtype", "bf16"];
    let (code, said) = unread(bare(&small));
    assert!(code == Some(1) && said.contains("error[TW0505]: "), "{said}");
    let gguf = fixture("gguf").join("llama.gguf");
    let mut lint = trace_dump(&["lint", text(&gguf), "--target", "xla"]);
    lint.args(SMALL);
    let (code, said) = unread(lint);
    assert!(code == Some(1) && said.contains("error[TW1009]: "), "{said}");
    let (code, said) = unread(bare(&["doctor", "--iree-compile", "/nowhere/iree-compile"]));
    // Without IREE the binary lacks the command, which is a mistake in usage.
    let lacking = if cfg!(feature = "iree") { 1 } else { 2 };
    assert!(code == Some(lacking), "{said}");
}
