//! Paths in place of a model, the messages about paths that are not models, and the selection of files in a folder.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use serde_json::Value;
use tracewright::irpa::Archive;

use crate::support::*;

/// The files of a folder with their content, which of them is named (the folder itself where that is empty), and the words of
/// the refusal.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);

/// Paths that people give by mistake: the message has their kind and a remedy.
#[test]
fn what_is_no_model_is_told_what_it_is() {
    const ZIP: &str = "PK\u{3}\u{4}\0\0";
    const ADAPTER: &str = r#"{"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 8}"#;
    let cases: &[Case<'_>] = &[
        (
            &[("adapter_config.json", ADAPTER), ("adapter_model.safetensors", "")],
            "",
            &[
                "a PEFT adapter (LORA), not a whole model; open `org/base`",
                "help: `tracewright generate MODEL --lora PATH`",
            ],
        ),
        (
            &[("adapter_config.json", "{}"), ("config.json", "CONFIG"), ("adapter_model.bin", "")],
            "",
            &["a PEFT adapter"],
        ),
        (&[("model_index.json", "{}"), ("unet/config.json", "{}")], "", &["a diffusers pipeline"]),
        (&[("model.onnx", "")], "", &["a model in ONNX, expected safetensors or GGUF"]),
        (&[("config.json", "CONFIG"), ("onnx/model_q4.onnx", "")], "", &["a model in ONNX"]),
        (
            &[("models--a--b/refs/main", "0a"), ("models--c--d/refs/main", "0a")],
            "",
            &[
                "the cache of the Hugging Face hub; name the folder of a model in the cache: `models--a--b` or `models--c--d`",
            ],
        ),
        (&[("tf_model.h5", "")], "", &["a model of TensorFlow or Keras"]),
        (&[("flax_model.msgpack", "")], "", &["a model of Flax"]),
        (&[("weights.npz", "")], "", &["arrays of NumPy"]),
        (
            &[("pytorch_model.bin.index.json", "{}"), ("pytorch_model-00001-of-00002.bin", "")],
            "",
            &["pickled PyTorch"],
        ),
        (&[("model.zip", ZIP)], "", &["a folder with `model.zip`, a packed archive; unpack the archive"]),
        (&[("model.zip", ZIP)], "model.zip", &["model.zip", "a packed archive; unpack the archive"]),
        (&[("download", ZIP)], "download", &["a packed archive; unpack the archive"]),
        (&[("model.tar.gz", "\u{1f}")], "model.tar.gz", &["a packed archive; unpack the archive"]),
        (&[("model.pth", "PK\u{3}\u{4}....archive/data.pkl")], "model.pth", &["pickled PyTorch"]),
        (&[("model.onnx", "")], "model.onnx", &["a model in ONNX"]),
        (&[("m.irpa", "IRPA")], "m.irpa", &["a parameter archive without a configuration; name the folder"]),
        (
            &[("inner/config.json", "CONFIG"), ("inner/model.safetensors", "")],
            "",
            &["a folder that contains the model in another folder; name the inner folder `inner`"],
        ),
        (
            &[("config.json", "CONFIG"), ("weights.safetensors", "")],
            "",
            &[
                "found `weights.safetensors`; if this file contains the whole model, rename the file to `model.safetensors`",
            ],
        ),
        (
            &[("models--org--name/refs/main", "0a"), ("models--org--name/snapshots/", "")],
            "models--org--name",
            &["a model folder of the Hugging Face cache with no snapshot; download the model again"],
        ),
        (
            &[("models--o--n/snapshots/0a/config.json", ""), ("models--o--n/snapshots/1b/config.json", "")],
            "models--o--n",
            &[
                "a model folder of the Hugging Face cache with several snapshots; select one of these snapshots: `",
                "/snapshots/0a`; `",
                "/snapshots/1b`",
            ],
        ),
    ];
    for (files, place, words) in cases {
        let held = folder();
        for (name, content) in *files {
            let path = held.path().join(name);
            let parent = if name.ends_with('/') { &path } else { path.parent().unwrap() };
            fs::create_dir_all(parent).unwrap();
            let config = fixture("llama-untied").join("config.json");
            match *content {
                _ if name.ends_with('/') => {}
                "CONFIG" => drop(fs::copy(config, path).unwrap()),
                content => fs::write(path, content).unwrap(),
            }
        }
        let model = if place.is_empty() { held.path().to_owned() } else { held.path().join(place) };
        let out = held.path().join("out");
        refused(&mut bare(&["bake", text(&model), "-o", text(&out)]), 1, words);
        #[cfg(feature = "iree")]
        refused(&mut tracewright(&["generate", text(&model), "--chat", "Hello"]), 1, words);
        if !model.join("config.json").exists() {
            refused(&mut bare(&["plan", text(&model)]), 1, words);
            refused(&mut trace_dump(&[text(&model)]), 1, words);
            refused(&mut bare(&["random", text(&model), "-o", text(&out)]), 1, words);
            #[cfg(feature = "iree")]
            for command in [
                &["bench", "decode"][..],
                &["prompt", "--chat", "Hello"],
                &["embed", "-p", "Hello"],
                &["tune", "--show"],
            ] {
                refused(tracewright(command).arg(&model), 1, words);
            }
        }
        assert!(!out.exists());
    }
}

/// A name on the hub is looked up in the cache; the hub's own folder of a model is one, by its branch `main` or its only
/// snapshot.
#[test]
fn a_name_on_the_hub_and_its_folder() {
    let (hub, out) = (folder(), folder());
    let archive = out.path().join("model.irpa");
    let folder = hub.path().join("hub/models--Org--Model-1B");
    let looks =
        ["error[TW0212]", "`Org/Model-1B` is not a local folder or file", "`tracewright models --fetch"];
    let offline = ["error[TW1101]", "is not in the cache", "HF_HUB_OFFLINE"];
    let places = ["Org/Model-1B", "https://huggingface.co/Org/Model-1B/tree/main", "hf://Org/Model-1B"];
    let named = |arguments: &[&str], place: &str| {
        let mut command = bare(arguments);
        command.arg(place).env("HF_HOME", hub.path());
        command
    };
    let commands: &[&[&str]] = &[
        &["bake", "-o", text(&archive)],
        &["plan"],
        &["random", "-o", text(&archive)],
        &["export", "--engine", "xla", "-o", text(&archive)],
        #[cfg(feature = "iree")]
        &["generate", "-p", "Hello"],
        #[cfg(feature = "iree")]
        &["chat"],
        #[cfg(feature = "iree")]
        &["prompt", "--chat", "Hello"],
        #[cfg(feature = "iree")]
        &["embed", "-p", "Hello"],
        #[cfg(feature = "iree")]
        &["bench", "prefill"],
    ];
    for arguments in commands {
        for place in places {
            refused(&mut named(arguments, place), 1, &offline);
        }
    }
    refused(&mut trace_dump(&["Org/Model-1B"]), 1, &looks);
    for (name, model) in [("0a", "llama-untied"), ("1b", "llama-tied")] {
        let snapshot = folder.join("snapshots").join(name);
        fs::create_dir_all(&snapshot).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture(model).join(file), snapshot.join(file)).unwrap();
        }
        let mut bake = bare(&["bake", text(&folder), "-o", text(&archive)]);
        match name {
            "0a" => drop(succeed(bake.args(SMALL))),
            _ => drop(refused(&mut bake, 1, &["several snapshots", "/snapshots/1b"])),
        }
    }
    let baked = |model: &Path| {
        succeed(bare(&["bake", text(model), "-o", text(&archive)]).args(SMALL));
        fs::read(&archive).unwrap()
    };
    fs::create_dir(folder.join("refs")).unwrap();
    for (name, model) in [("0a\n", "llama-untied"), ("1b", "llama-tied")] {
        fs::write(folder.join("refs/main"), name).unwrap();
        assert_eq!(baked(&folder), baked(&fixture(model)));
        for place in places {
            succeed(&mut named(&["plan"], place));
        }
        succeed(trace_dump(&["Org/Model-1B"]).env("HF_HOME", hub.path()));
    }
    succeed(&mut bare(&["plan", text(&folder)]));
    succeed(&mut trace_dump(&[text(&folder)]));
}

/// The shards of a model, and how one of them was replaced: by another that the index names instead.
fn overlaid(model: &Path, overlay: &str) -> String {
    let index = model.join("model.safetensors.index.json");
    let mut keys: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let whole = fixture("llama-bias");
    let name = "model.norm.weight";
    let shard = keys["weight_map"][name].as_str().unwrap().to_owned();
    let (dtype, shape, mut bytes) = tensors(&whole.join(&shard))[name].clone();
    bytes.iter_mut().for_each(|byte| *byte = 0);
    let view = TensorView::new(dtype, shape.clone(), &bytes).unwrap();
    let left = TensorView::new(dtype, shape, &bytes).unwrap();
    safetensors::serialize_to_file([(name, view), ("left.over", left)], None, &model.join(overlay)).unwrap();
    keys["weight_map"][name] = overlay.into();
    fs::write(&index, keys.to_string()).unwrap();
    name.into()
}

fn copied_shards() -> tempfile::TempDir {
    let model = folder();
    for (path, _) in listing(&fixture("llama-bias")) {
        if !path.ends_with("golden.safetensors") {
            fs::copy(&path, model.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    model
}

/// Whichever shard comes first by name: the index decides, and what it does not list matters to nobody.
#[test]
fn a_tensor_in_two_shards_is_that_of_the_index() {
    let out = folder();
    let archive = out.path().join("model.irpa");
    let baked = |model: &Path| {
        succeed(bare(&["bake", text(model), "-o", text(&archive)]).args(SMALL));
        fs::read(&archive).unwrap()
    };
    for overlay in ["a-overlay.safetensors", "model-overlay.safetensors"] {
        let model = copied_shards();
        let name = overlaid(model.path(), overlay);
        baked(model.path());
        let found = Archive::open(&archive).unwrap();
        assert!(found.data(&name).unwrap().iter().all(|byte| *byte == 0), "{overlay}");
        // Without the overlay in the index it is a file that nobody reads.
        fs::copy(
            fixture("llama-bias").join("model.safetensors.index.json"),
            model.path().join("model.safetensors.index.json"),
        )
        .unwrap();
        assert_eq!(baked(model.path()), baked(&fixture("llama-bias")));
    }
}

/// One file and shards beside it: the file is read, and where they differ that is said.
#[test]
fn a_whole_file_comes_before_shards() {
    let out = folder();
    let archive = out.path().join("model.irpa");
    let bake = |model: &Path| {
        let ran = succeed(bare(&["bake", text(model), "-o", text(&archive)]).args(SMALL));
        (fs::read(&archive).unwrap(), ran.err)
    };
    let model = copied_shards();
    let merged: Tensors = listing(model.path())
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "safetensors"))
        .flat_map(|(path, _)| tensors(path))
        .collect();
    let (shards, _) = bake(model.path());
    let write = |tensors: &Tensors| {
        let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &model.path().join("model.safetensors")).unwrap();
    };
    write(&merged);
    let (same, said) = bake(model.path());
    assert!(same == shards && !said.contains("warning"), "{said}");
    let mut other = merged.clone();
    other.get_mut("model.norm.weight").unwrap().2.reverse();
    write(&other);
    let (found, said) = bake(model.path());
    assert!(found != shards);
    let words = [
        "warning: ",
        "holds two checkpoints",
        "`model.safetensors` and the shards of `model.safetensors.index.json`",
        "`model.norm.weight` has other numbers in each",
        "`model.safetensors` is read",
    ];
    words.iter().for_each(|word| assert!(said.contains(word), "`{word}` is not in {said}"));
    assert_eq!(said.matches("warning").count(), 1, "{said}");
    let mut less = merged.clone();
    less.insert("extra".into(), less["model.norm.weight"].clone());
    write(&less);
    let ran = run(&mut bare(&["plan", text(model.path())]));
    assert!(ran.err.contains("only `model.safetensors` has `extra`"), "{}", ran.err);
    // Without the shards there are no others.
    write(&other);
    fs::remove_file(model.path().join("model-00002-of-00003.safetensors")).unwrap();
    let (_, said) = bake(model.path());
    assert!(!said.contains("warning"), "{said}");
}
