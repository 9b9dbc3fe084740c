//! `--device`, `--target` and `devices`: what is not there is named, and what was made for one device does not run on another.

use serde_json::Value;

use crate::support::*;

#[test]
fn devices_says_what_is_there_and_why_others_are_not() {
    let found: Value = serde_json::from_str(&succeed(&mut tracewright(&["devices", "--json"])).out).unwrap();
    assert_eq!(found["devices"][0]["device"], "cpu");
    let missing = found["missing"].as_array().unwrap();
    let why = |kind: &str| missing.iter().find(|one| one["kind"] == kind).and_then(|one| one["why"].as_str());
    assert!(
        why("hip")
            .unwrap()
            .contains("compiles and exports programs for hip devices, but cannot run such programs"),
        "{found}"
    );
    // Either there is one, or it says what is missing.
    let has = found["devices"].as_array().unwrap().iter().any(|one| one["device"] == "vulkan");
    assert!(has || why("vulkan").unwrap().contains("libvulkan1"), "{found}");
    let said = succeed(&mut tracewright(&["devices"])).out;
    assert!(
        said.starts_with("cpu ")
            && said
                .contains("\nhip        missing: this binary compiles and exports programs for hip devices"),
        "{said}"
    );
}

#[test]
fn a_device_that_cannot_be_used_is_named() {
    let demo = demo();
    let generate = ["generate", demo.to_str().unwrap(), "-p", "Once", "-n", "1"];
    for (arguments, code, words) in [
        (&["--device", "gpu"][..], 2, "`gpu` is not a device; expected cpu, or vulkan"),
        (&["--mesh", "model=2"], 2, "`--mesh` is for XLA; leave it out, or add `--engine xla`"),
        (&["--device", "cpu:1"], 2, "`cpu:1` is not a device"),
        (&["--device", "hip"], 1, "error[TW0710]: this binary compiles and exports programs for hip devices"),
        (
            &["--device", "vulkan", "--target", "cuda:sm_80"],
            2,
            "`--target` is `sm_80` on cuda and `--device` is vulkan",
        ),
        (&["--device", "cpu", "--target", "x86-64-v3"], 2, "the model of a GPU device"),
        (&["--target", "vulkan"], 2, "--device"),
        (&["--numerics", "invariant", "--kernels", "off"], 1, "error[TW0518]: the numerics are invariant"),
        (&["--numerics", "portable", "--kernels", "off"], 1, "leave out `--kernels off`"),
    ] {
        let ran = run(&mut tracewright(&[&generate[..], arguments].concat()));
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn an_export_runs_on_the_kind_of_device_that_it_was_made_for() {
    let (folder, model) = (folder(), fixture("llama-tied"));
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    // The least to compile: one token at a time.
    let sizes = ["--target", "cuda", "--context", "40", "--chunk", "1"];
    succeed(&mut tracewright(&[&["export", text(&model), "-o", out][..], &sizes].concat()));
    let manifest = std::fs::read(folder.path().join("out/manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!((&manifest["device"], &manifest["target_cpu"]), (&"cuda".into(), &"sm_80".into()));
    assert!(manifest["cpu_features"].as_array().unwrap().contains(&"b16".into()), "{manifest}");
    let ran = run(&mut tracewright(&["generate", out, "--tokens", "5", "-n", "1", "--device", "cpu"]));
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("`--device` is cpu, but the model was exported for cuda"), "{}", ran.err);
}

/// Measurements and comparisons are of the device that is named.
#[test]
fn bench_and_bisect_take_a_device() {
    let model = fixture("llama-tied");
    let folder = folder();
    let json = folder.path().join("report.json");
    let sizes = ["--context", "64", "--chunk", "1", "--device"];
    let bench = ["bench", "decode", text(&model), "--tokens", "2", "--rounds", "1", "--json", text(&json)];
    let bisect = ["bisect", text(&model), "--tokens", "5,17,3,4"];
    for command in [&bench[..], &bisect[..]] {
        let ran = run(&mut tracewright(&[command, &sizes, &["hip"]].concat()));
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        assert!(
            ran.err.contains("error[TW0710]: this binary compiles and exports programs for hip devices"),
            "{}",
            ran.err
        );
    }
    assert!(!json.exists());
    let found: Value = serde_json::from_str(&succeed(&mut tracewright(&["devices", "--json"])).out).unwrap();
    if !found["devices"].as_array().unwrap().iter().any(|one| one["device"] == "vulkan") {
        return;
    }
    succeed(&mut tracewright(&[&bench[..], &sizes, &["vulkan"]].concat()));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["cases"][0]["variant"]["device"], "vulkan");
    assert!(report["cases"][0]["flags"].to_string().contains("vulkan"), "{report}");
    // The command fails if a node is out of its bounds. Whether the others are equal bit for bit depends on the processor.
    let said = succeed(&mut tracewright(&[&bisect[..], &sizes, &["vulkan", "--json"]].concat())).out;
    let found: Value = serde_json::from_str(&said).unwrap();
    assert!(found["nodes"].as_u64().unwrap() > 0, "{found}");
    assert_eq!(found["differs"], false, "{found}");
}

/// XLA's plugin for the CPU that `cargo xtask setup --xla` installs. The suite installs it and sets the variable.
fn plugin() -> Option<String> {
    let pythons = std::fs::read_dir(root().join(".tracewright/xla-cpu/lib")).into_iter().flatten().flatten();
    let folders = pythons.map(|python| python.path().join("site-packages"));
    let found = tracewright::pjrt::find_plugin("cpu", &folders.collect::<Vec<_>>());
    assert!(found.is_ok() || std::env::var_os("TRACEWRIGHT_TEST_XLA").is_none(), "{found:?}");
    Some(found.ok()?.to_str().unwrap().to_owned())
}

#[test]
fn a_model_runs_through_xla() {
    let Some(plugin) = plugin() else { return };
    let golden = std::fs::read_to_string(root().join("tests/fixtures/demo.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let ids = |value: &Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
    };
    let golden = &golden["prompts"][0];
    let prompt = ids(&golden["prompt_tokens"]).iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let demo = demo();
    let generate = ["generate", demo.to_str().unwrap(), "--engine", "xla", "--dtype", "f32"];
    let mut command = tracewright(&generate);
    command
        .args(["--tokens", &prompt, "-n", "12", "--ignore-eos", "--json"])
        .env("TRACEWRIGHT_PLUGIN", &plugin);
    // Neither a compiler nor a Python is needed.
    command.env("TRACEWRIGHT_IREE_COMPILE", "no/such/compiler");
    let found: Value = serde_json::from_str(&succeed(&mut command).out).unwrap();
    assert_eq!(ids(&found["tokens"]), ids(&golden["tokens"])[..12]);
    // The processor is four devices. Each computes a part of each layer.
    let ran = succeed(command.args(["--mesh", "model=2,data=2"]));
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(ids(&found["tokens"]), ids(&golden["tokens"])[..12]);
    let note = "B has 1 for the 2 devices along `data`: each part is held by 2 of them\n";
    assert!(ran.err.contains(note), "{}", ran.err);
    for (mesh, words) in [
        ("idle=2", "error[TW0512]: no rule divides a tensor along"),
        ("model=5", "`--shard AXES=none` does not divide the tensor axes"),
        ("data=4096", "error[TW0712]: the platform `cpu` has 2048 device(s), expected at least 4096"),
    ] {
        let arguments = ["--tokens", &prompt, "--plugin", &plugin, "--mesh", mesh];
        let ran = run(&mut tracewright(&[&generate[..], &arguments].concat()));
        assert_eq!(ran.code, Some(1), "{mesh}: {}", ran.err);
        assert!(ran.err.contains(words), "{mesh}: {}", ran.err);
    }

    let listed = succeed(&mut tracewright(&["devices", "--json", "--plugin", &plugin])).out;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["plugins"][0]["platform"], "cpu", "{listed}");
    assert_eq!(listed["plugins"][0]["devices"][0]["kind"], "cpu", "{listed}");
    let listed = succeed(&mut tracewright(&["devices", "--plugin", "no/plugin.so"])).out;
    assert!(listed.contains("\nxla        missing: the plugin `no/plugin.so` cannot be loaded"), "{listed}");
}

#[test]
fn a_plugin_that_cannot_be_used_is_named() {
    let demo = demo();
    let generate = ["generate", demo.to_str().unwrap(), "-p", "Once", "-n", "1", "--engine", "xla"];
    for (arguments, code, words) in [
        (&["--plugin", "no/plugin.so"][..], 1, "error[TW0713]: the plugin `no/plugin.so` cannot be loaded"),
        (&["--device", "cuda"], 1, "install the package `jax-cuda13-pjrt`"),
        (&["--device", "vulkan"], 2, "`--device` is vulkan, expected cpu, cuda or hip with `--engine xla`"),
        (&["--threads", "2"], 2, "`--threads` is for IREE"),
        (&["--activations", "16"], 2, "`--activations` is for IREE"),
        (&["--print-commands"], 2, "`--print-commands` is for IREE"),
        (&["--mesh", "model=2", "--device", "cuda:1"], 2, "`--device` is cuda:1, but a mesh begins at the"),
        (&["--mesh", "model=2", "--device", "cpu:1"], 2, "`cpu:1` is not a device"),
        (&["--shard", "V=none"], 2, "name the mesh with `--mesh`"),
    ] {
        let ran = run(&mut tracewright(&[&generate[..], arguments].concat()));
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
}
