//! Exports for XLA: what is in them, and what cannot be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::*;

fn export(model: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = export_xla(model, out);
    command.args(more);
    command
}

/// The elements of each weight are at the manifest's offset, and equal those of the checkpoint.
#[test]
fn the_manifest_says_where_each_weight_lies() {
    for (name, mesh, whole) in [
        ("llama-bias", "data=2,model=2", "V=none"),
        ("gpt2", "data=2,model=3", "F=none"),
        ("mixtral", "data=2,model=2", "F,V=none"),
    ] {
        let (model, folder) = (fixture(name), folder());
        let out = folder.path().join("out");
        succeed(&mut export(&model, &out, &["--mesh", mesh, "--batch", "2", "--shard", whole]));
        let manifest = manifest(&out);
        let weights = manifest["weights"].as_array().unwrap();
        let mut made = 0;
        for weight in weights {
            let is_made = weight["made"].as_bool().unwrap();
            made += usize::from(is_made);
            let file = if is_made { &out } else { &model }.join(weight["file"].as_str().unwrap());
            let bytes = fs::read(&file).unwrap();
            let (offset, key) =
                (weight["offset"].as_u64().unwrap() as usize, weight["key"].as_str().unwrap());
            assert_eq!(weight["tensor"], key);
            if is_made {
                continue;
            }
            let held = tensors(&file);
            let (_, shape, content) = &held[key];
            assert_eq!(&bytes[offset..offset + content.len()], &content[..], "{key}");
            assert_eq!(weight["sharding"].as_array().unwrap().len(), shape.len(), "{key}");
        }
        assert_eq!(made > 0, name != "llama-bias", "{name}");
        assert_eq!(out.join("made.irpa").exists(), made > 0);
        for entry in manifest["entry_points"].as_array().unwrap() {
            let module = fs::read_to_string(out.join(entry["module"].as_str().unwrap())).unwrap();
            assert!(module.contains("sdy.mesh @mesh = <[\"data\"=2, \"model\"="));
            let known: Vec<&Value> = weights.iter().map(|weight| &weight["key"]).collect();
            assert!(entry["weights"].as_array().unwrap().iter().all(|key| known.contains(&key)));
        }
    }
}

#[test]
fn another_export_leaves_nothing_of_the_one_before() {
    let folder = folder();
    let out = folder.path().join("out");
    let model = fixture("llama-untied");
    // Chunks so long that short prompts have an entry point of their own.
    succeed(&mut bare(&[
        "export",
        text(&model),
        "-o",
        text(&out),
        "--engine",
        "xla",
        "--context",
        "64",
        "--chunk",
        "64",
    ]));
    assert!(out.join("prefill_short.mlir").exists());
    for mine in ["note.txt", "note.mlir"] {
        fs::write(out.join(mine), "mine").unwrap();
    }
    let ran = succeed(export(&model, &out, &["--mesh", "model=2", "--shard", "V=none"]).args(["--json"]));
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["mesh"], "model=2");
    assert!(!out.join("prefill_short.mlir").exists());
    assert!(out.join("note.txt").exists() && out.join("note.mlir").exists());
    assert_eq!(manifest(&out)["mesh"], "model=2");
    // A manifest does not say what else is removed.
    let mine = folder.path().join("mine.mlir");
    fs::write(&mine, "mine").unwrap();
    let mut edited = manifest(&out);
    edited["entry_points"][0]["module"] = json!("../mine.mlir");
    edited["entry_points"][1]["module"] = json!("note.txt");
    fs::write(out.join("manifest.json"), edited.to_string()).unwrap();
    succeed(&mut export(&model, &out, &["--mesh", "model=2", "--shard", "V=none"]));
    assert!(mine.exists() && out.join("note.txt").exists());
}

#[test]
fn what_does_not_divide_is_refused_before_anything_is_written() {
    let folder = folder();
    let out = folder.path().join("out");
    let model = fixture("llama-untied");
    for (more, words) in [
        (&["--mesh", "model=5"][..], &["not divisible by the 5 devices along `model`", "--shard"][..]),
        (&["--mesh", "tensor=2"], &["no rule divides a tensor along the axis `tensor`"]),
        (
            &["--mesh", "model=2"],
            &["`lm_head.weight`: the axis `V` of extent 515 is not divisible", "`--shard AXES=none`"],
        ),
        (&["--mesh", "model=2", "--shard", "Q=model"], &["has the axis `Q`; the existing axes are", "K"]),
        (&["--mesh", "model=2", "--shard", "K=tensor"], &["`K=tensor` divides along the axis `tensor`"]),
        (&["--kv", "q8"], &["only kernels can read a KV cache in 8 bits"]),
    ] {
        refused(&mut export(&model, &out, more), 1, words);
    }
    for (more, words) in [
        (&["--mesh", "model=0"][..], "is not an axis of a mesh"),
        (&["--shard", "K=model"], "name the mesh with `--mesh`"),
        (&["--tuning", "off"], "`--tuning` is for IREE"),
        (&["--kernels", "on"], "`--kernels` is for IREE"),
        (&["--activations", "16"], "`--activations` is for IREE"),
        (&["--print-commands"], "`--print-commands` is for IREE"),
        (&["--target", "generic"], "`--target` is for IREE"),
    ] {
        refused(&mut export(&model, &out, more), 2, &[words]);
    }
    assert!(!out.exists());
    refused(&mut export(&model, &model, &[]), 1, &["is the model's own folder"]);
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written() {
    let model = copied("llama-untied");
    edit_tensors(model.path(), |tensors| drop(tensors.remove("model.norm.weight")));
    let out = model.path().join("out");
    refused(&mut export(model.path(), &out, &[]), 1, &["model.norm.weight", "missing"]);
    assert!(!out.exists());
}

/// One prompt through XLA on two devices, where `cargo xtask test` or `xla` has installed jax; elsewhere it is said that this was left out.
#[test]
fn two_devices_go_on_as_transformers_does() {
    let lib = root().join(".tracewright/xla/lib");
    let pythons = fs::read_dir(&lib).into_iter().flatten().flatten();
    let packages: Option<PathBuf> =
        pythons.map(|python| python.path().join("site-packages")).find(|path| path.join("jax").exists());
    let Some(packages) = packages else {
        eprintln!("XLA is left out: `cargo xtask xla` installs jax");
        return;
    };
    let folder = folder();
    for name in ["demo", "demo-gemma3"] {
        let out = folder.path().join(name);
        let golden = fs::read(root().join(format!("tests/fixtures/{name}.json"))).unwrap();
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        let prompt = &golden["prompts"][0];
        let tokens = |key: &str| -> Vec<u64> {
            prompt[key].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
        };
        let ids = tokens("prompt_tokens").iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let sizes = ["--dtype", "f32", "--context", "128", "--chunk", "16"];
        let model = root().join(name);
        let export = ["export", text(&model), "-o", text(&out), "--engine", "xla", "--mesh", "model=2"];
        succeed(bare(&export).args(sizes));
        let mut python = Command::new("python3");
        python.args(["-m", "tracewright_xla", "run", text(&out), "--tokens", &ids, "-n", "16"]);
        python.args(["--ignore-eos", "--json"]).current_dir(root().join("tools/python"));
        let ran = succeed(python.env("PYTHONPATH", packages.as_os_str()).env("PYTHONDONTWRITEBYTECODE", "1"));
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let found: Vec<u64> = serde_json::from_value(report["tokens"][0].clone()).unwrap();
        assert_eq!(found, tokens("tokens")[..16], "{name}");
    }
}
