//! Checkpoints that are not what the model asks for. `bake` meets them first, and writes nothing.

use std::fs;
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::support::*;

/// Bakes the model: it is refused, and nothing is written anywhere.
#[track_caller]
fn not_baked(model: &Path, words: &[&str]) -> Ran {
    let (out, before) = (folder(), listing(model));
    let archive = out.path().join("model.irpa");
    let ran = refused(bare(&["bake", text(model), "-o", text(&archive)]).args(SMALL), 1, words);
    assert_eq!(listing(out.path()), []);
    assert_eq!(listing(model), before);
    ran
}

/// The tensors of `llama-untied`, with one thing wrong.
#[track_caller]
fn spoiled(edit: impl FnOnce(&mut Tensors), words: &[&str]) -> Ran {
    let model = copied("llama-untied");
    edit_tensors(model.path(), edit);
    not_baked(model.path(), words)
}

const NORM: &str = "model.layers.1.input_layernorm.weight";

#[test]
fn a_missing_tensor() {
    let lost = |t: &mut Tensors| drop(t.remove(NORM).unwrap());
    let ran = spoiled(lost, &["1 problem(s)", &format!("missing `{NORM}`: `f32[60]`")]);
    assert!(
        !ran.err.contains("the checkpoint has"),
        "nothing that is read can be a misspelling\n{}",
        ran.err
    );
}

#[test]
fn an_extra_tensor() {
    let more =
        |t: &mut Tensors| drop(t.insert("model.layers.2.mlp.bias".into(), (Dtype::F32, vec![1], vec![0; 4])));
    let words = [
        "1 problem(s)",
        "extra `model.layers.2.mlp.bias`",
        "model.safetensors`",
        "does not read this tensor",
    ];
    spoiled(more, &words);
}

#[test]
fn a_wrong_shape() {
    let other = |t: &mut Tensors| t.get_mut("model.layers.0.mlp.up_proj.weight").unwrap().1 = vec![60, 90];
    let words = [
        "`model.layers.0.mlp.up_proj.weight` in `",
        "model.safetensors` has shape [60, 90], expected [90, 60]",
        // The line that declares it.
        "note: in `model.layers.*.mlp.up_proj`",
        "--> models/src/llama.rs:",
        "^^^^^^",
    ];
    spoiled(other, &words);
}

/// S2: float to float is converted; anything else is an error.
#[test]
fn s2_a_wrong_dtype() {
    let other = |t: &mut Tensors| t.get_mut(NORM).unwrap().0 = Dtype::I32;
    let words = [&format!("`{NORM}` in `"), "has elements `I32`, which do not convert to `f32`"];
    spoiled(other, &words);
}

#[test]
fn all_problems_are_listed_at_once_with_the_nearest_name() {
    let edit = |t: &mut Tensors| {
        let norm = t.remove(NORM).unwrap();
        t.insert("model.layers.1.input_layer_norm.weight".into(), norm);
        t.remove("lm_head.weight").unwrap();
        t.get_mut("model.norm.weight").unwrap().1 = vec![2, 30];
        t.get_mut("model.layers.0.input_layernorm.weight").unwrap().0 = Dtype::I32;
        t.insert("something".into(), (Dtype::F16, vec![2], vec![0; 4]));
    };
    let words = [
        "6 problem(s)",
        &format!("missing `{NORM}`: `f32[60]`; the checkpoint has `model.layers.1.input_layer_norm.weight`"),
        "missing `lm_head.weight`",
        "`model.norm.weight` in `",
        "has shape [2, 30], expected [60]",
        "`model.layers.0.input_layernorm.weight` in `",
        "extra `something`",
        "extra `model.layers.1.input_layer_norm.weight`",
    ];
    spoiled(edit, &words);
}

#[test]
fn a_thousand_problems_are_listed_as_fifty() {
    let many = |t: &mut Tensors| {
        (0..1000).for_each(|i| drop(t.insert(format!("x\u{1b}[31m{i}"), (Dtype::F32, vec![1], vec![0; 4]))))
    };
    let ran = spoiled(many, &["1000 problem(s)", "and 950 more", "extra `x\\u{1b}[31m1`"]);
    assert!(ran.err.lines().count() < 60, "{}", ran.err);
    assert!(!ran.err.contains('\u{1b}'), "the terminal obeys nobody's file");
}

/// The archive of a model, and what is said of it.
#[track_caller]
fn baked(model: &Path) -> (Vec<u8>, Ran) {
    let out = folder();
    let archive = out.path().join("model.irpa");
    let ran = succeed(&mut bare(&["bake", text(model), "-o", text(&archive)]));
    (fs::read(archive).unwrap(), ran)
}

/// A copy of a fixture with other tensors and another key.
fn changed(name: &str, edit: impl FnOnce(&mut Tensors), tied: Option<bool>) -> tempfile::TempDir {
    let model = copied(name);
    edit_tensors(model.path(), edit);
    if let Some(tied) = tied {
        edit_config(model.path(), |config| drop(config.insert("tie_word_embeddings".into(), json!(tied))));
    }
    model
}

/// These fixtures are untied, and goldens of transformers. With a configuration that ties them transformers computes the same.
#[test]
fn a_head_of_its_own_is_taken_although_the_config_ties_it() {
    for (name, embedding) in [
        ("llama-untied", "model.embed_tokens.weight"),
        ("gemma3-untied", "model.embed_tokens.weight"),
        ("gemma2-uncapped", "model.embed_tokens.weight"),
        ("gpt2-untied", "wte.weight"),
        ("lfm2-bias", "model.embed_tokens.weight"),
    ] {
        let (untied, ran) = baked(&fixture(name));
        assert!(!ran.err.contains("warning"), "{name}: {}", ran.err);
        let model = changed(name, |_| {}, Some(true));
        let (archive, ran) = baked(model.path());
        assert!(archive == untied, "{name}: another archive");
        let (place, differs) = (text(model.path()), format!("`lm_head.weight` differs from `{embedding}`"));
        let warning = format!(
            "warning: {differs} in `{place}`, but the configuration ties the two tensors; Tracewright uses"
        );
        assert!(ran.err.contains(&warning), "{name}: {}", ran.err);
        assert!(ran.err.contains("help: set `tie_word_embeddings` to false"), "{name}: {}", ran.err);
        // Other commands take the same head, and warn once.
        let dumped = succeed(trace_dump(&[place]).args(SMALL));
        assert!(dumped.out.contains("lm_head.weight"), "{name}");
        let planned = succeed(bare(&["plan", place]).args(SMALL));
        for ran in [dumped, planned] {
            assert_eq!(ran.err.matches(&warning).count(), 1, "{name}: {}", ran.err);
        }
    }
    let model = changed("llama-untied", |_| {}, Some(true));
    let out = folder();
    let ran = succeed(&mut export_xla(model.path(), &out.path().join("out")));
    assert!(ran.err.contains("warning: `lm_head.weight` differs"), "{}", ran.err);
    assert!(fs::read_to_string(out.path().join("out/manifest.json")).unwrap().contains("\"lm_head.weight\""));
}

/// A head that equals the embedding is tied to it, in whatever type it is stored. A checkpoint may have either of the two.
#[test]
fn a_head_that_is_the_embedding() {
    const HEAD: &str = "lm_head.weight";
    let f32s = |(_, shape, bytes): &(Dtype, Vec<usize>, Vec<u8>)| {
        let widened = bytes.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]).collect();
        (Dtype::F32, shape.clone(), widened)
    };
    for (name, embedding) in [
        ("llama-mqa", "model.embed_tokens.weight"),
        ("gemma3-a", "model.embed_tokens.weight"),
        ("gpt2", "wte.weight"),
        ("gpt2-inner", "transformer.wte.weight"),
        ("lfm2", "model.embed_tokens.weight"),
        ("gemma3-4b-tower", "language_model.model.embed_tokens.weight"),
    ] {
        let (tied, _) = baked(&fixture(name));
        let copy = |t: &mut Tensors| drop(t.insert(HEAD.into(), t[embedding].clone()));
        let wide = |t: &mut Tensors| drop(t.insert(HEAD.into(), f32s(&t[embedding])));
        let moved = |t: &mut Tensors| {
            let table = t.remove(embedding).unwrap();
            t.insert(HEAD.into(), table);
        };
        let is_bf16 = tensors(&fixture(name).join("model.safetensors"))[embedding].0 == Dtype::BF16;
        let edits: [&dyn Fn(&mut Tensors); 3] = [&copy, &moved, if is_bf16 { &wide } else { &copy }];
        for (which, edit) in edits.into_iter().enumerate() {
            let model = changed(name, edit, None);
            let (archive, ran) = baked(model.path());
            assert!(archive == tied, "{name}, {which}: another archive");
            assert!(!ran.err.contains("warning"), "{name}, {which}: {}", ran.err);
        }
    }
}

/// A checkpoint that transformers saved from the class without a head: its keys have no `model.` in front, in one file and in shards.
#[test]
fn a_checkpoint_of_the_base_model_is_the_same_model() {
    for (name, prefix, other) in [
        ("llama-mqa", "model.", ""),
        ("gemma3-a", "model.", ""),
        ("gemma3-4b-tower", "language_model.model.", "language_model."),
        ("gemma3-4b-tower", "language_model.model.", ""),
        ("gpt2", "", "transformer."),
        ("gpt2-inner", "transformer.", ""),
        ("lfm2", "model.", ""),
        ("mixtral-sliding", "model.", ""),
        ("mistral-full", "model.", ""),
        ("olmo2-tied", "model.", ""),
        ("qwen2", "model.", ""),
        ("qwen3-yarn", "model.", ""),
        ("smollm3", "model.", ""),
    ] {
        let rename = |t: &mut Tensors| {
            let renamed = |(key, tensor): (String, _)| match key.strip_prefix(prefix) {
                Some(rest) => (format!("{other}{rest}"), tensor),
                None => (key, tensor),
            };
            *t = std::mem::take(t).into_iter().map(renamed).collect();
        };
        let (whole, _) = baked(&fixture(name));
        let (archive, _) = baked(changed(name, rename, None).path());
        assert!(archive == whole, "{name}: another archive");
    }
    // Some with and some without, as transformers reads them; but not one tensor with both.
    let mixed = |t: &mut Tensors| {
        let norm = t.remove(NORM).unwrap();
        t.insert(NORM.strip_prefix("model.").unwrap().into(), norm);
    };
    assert!(baked(changed("llama-mqa", mixed, None).path()).0 == baked(&fixture("llama-mqa")).0);
    let twice = |t: &mut Tensors| {
        let norm = t[NORM].clone();
        t.insert(NORM.strip_prefix("model.").unwrap().into(), norm);
    };
    spoiled(twice, &["1 problem(s)", "extra `layers.1.input_layernorm.weight`"]);
    // Where the weights stay in the checkpoint, they have its names.
    let bare_names = |t: &mut Tensors| {
        let renamed =
            |(key, tensor): (String, _)| (key.strip_prefix("model.").unwrap_or(&key).to_owned(), tensor);
        *t = std::mem::take(t).into_iter().map(renamed).collect();
    };
    let (model, out) = (changed("llama-mqa", bare_names, None), folder());
    succeed(&mut export_xla(model.path(), &out.path().join("out")));
    let manifest = fs::read(out.path().join("out/manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    for weight in manifest["weights"].as_array().unwrap() {
        let (key, tensor) = (weight["key"].as_str().unwrap(), weight["tensor"].as_str().unwrap());
        assert_eq!(key.strip_prefix("model."), Some(tensor));
    }
}

#[test]
fn a_base_model_without_a_head_is_refused() {
    let bare = |t: &mut Tensors| {
        t.remove("lm_head.weight").unwrap();
        let renamed = |(key, tensor): (String, _)| (key.strip_prefix("model.").unwrap().to_owned(), tensor);
        *t = std::mem::take(t).into_iter().map(renamed).collect();
    };
    spoiled(bare, &["1 problem(s)", "missing `lm_head.weight`", "contains a base model without a head"]);
}

#[test]
fn a_truncated_checkpoint() {
    let model = copied("llama-untied");
    let file = model.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    for length in [bytes.len() - 1, 1000, 4, 0] {
        fs::write(&file, &bytes[..length]).unwrap();
        let ran =
            not_baked(model.path(), &["model.safetensors", "truncated", "download or save the file again"]);
        assert!(ran.err.contains(&length.to_string()), "the size is not in\n{}", ran.err);
    }
    fs::write(&file, [&bytes[..], &[0; 3]].concat()).unwrap();
    not_baked(model.path(), &["too long", &bytes.len().to_string(), &(bytes.len() + 3).to_string()]);
    let broken = [&bytes[..20], b"????", &bytes[24..]].concat();
    fs::write(&file, broken).unwrap();
    not_baked(model.path(), &["model.safetensors", "not a valid safetensors file"]);
}

#[test]
fn a_shard_that_is_not_there() {
    let model = folder();
    for entry in fs::read_dir(fixture("llama-bias")).unwrap().flatten() {
        fs::copy(entry.path(), model.path().join(entry.file_name())).unwrap();
    }
    fs::remove_file(model.path().join("golden.safetensors")).unwrap();
    fs::remove_file(model.path().join("model-00002-of-00003.safetensors")).unwrap();
    not_baked(
        model.path(),
        &["model.safetensors.index.json", "shard `model-00002-of-00003.safetensors` is missing"],
    );
}

/// A directory with weights in another format, and one with none.
#[test]
fn a_bin_directory_a_gguf_directory_an_empty_one() {
    let cases: &[(&str, &[&str])] = &[
        ("pytorch_model.bin", &["pickled PyTorch", "save_pretrained"]),
        ("model-q4.gguf", &["GGUF", "name the file itself, `model-q4.gguf`"]),
        ("notes.txt", &["no checkpoint in", "model.safetensors"]),
    ];
    for (name, words) in cases {
        for config in [true, false] {
            let model = folder();
            // A file is known by its first bytes before its name.
            let content = match name.rsplit_once('.') {
                Some((_, "bin")) => b"\x80\x02}q\x00.",
                Some((_, "gguf")) => b"GGUF..",
                _ => b"notes.",
            };
            fs::write(model.path().join(name), content).unwrap();
            if config {
                fs::copy(fixture("llama-untied").join("config.json"), model.path().join("config.json"))
                    .unwrap();
            }
            not_baked(model.path(), words);
            #[cfg(feature = "iree")]
            refused(tracewright(&["generate", text(model.path()), "-p", "Once"]).args(SMALL), 1, words);
        }
    }
}

#[test]
fn a_folder_of_an_unknown_method() {
    let model = copied("llama-untied");
    let quantization = json!({ "quant_method": "hqq", "bits": 4, "group_size": 128 });
    edit_config(model.path(), |config| drop(config.insert("quantization_config".into(), quantization)));
    not_baked(
        model.path(),
        &[
            "config.json",
            "`quantization_config`, method `hqq`",
            "use a GGUF file or the unquantized checkpoint",
        ],
    );
}

#[test]
fn a_place_that_is_no_model() {
    refused(&mut bare(&["bake", "nowhere", "-o", "x.irpa"]), 1, &["nowhere", "No such file"]);
    let file = root().join("Cargo.toml");
    refused(
        &mut bare(&["bake", text(&file), "-o", "x.irpa"]),
        1,
        &["Cargo.toml", "not a valid safetensors file"],
    );
    #[cfg(feature = "iree")]
    for place in ["nowhere", text(&file)] {
        refused(
            &mut tracewright(&["generate", place, "--tokens", "1"]),
            1,
            &["cannot open the model directory", place],
        );
    }
    #[cfg(feature = "iree")]
    refused(
        &mut tracewright(&[
            "generate",
            text(&fixture("llama-tied").join("model.safetensors")),
            "--tokens",
            "1",
        ]),
        1,
        &["model.safetensors", "it is a file; name the folder of the model"],
    );
}

/// A folder that cannot be written to, and one that is not there.
#[test]
fn an_archive_that_cannot_be_written() {
    let model = fixture("llama-untied");
    let out = folder();
    let inside = out.path().join("missing/model.irpa");
    refused(
        bare(&["bake", text(&model), "-o", text(&inside)]).args(SMALL),
        1,
        &["missing/model.irpa", "No such file"],
    );
    let own = copied("llama-untied");
    let file = own.path().join("model.safetensors");
    let before = fs::read(&file).unwrap();
    refused(
        bare(&["bake", text(own.path()), "-o", text(&file)]).args(SMALL),
        1,
        &["a file of the model itself"],
    );
    assert_eq!(fs::read(&file).unwrap(), before);
}

/// A write that fails in the middle, as on a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_no_archive() {
    let (model, out) = (fixture("llama-untied"), folder());
    let archive = out.path().join("model.irpa");
    let mut command = bare(&["bake", text(&model), "-o", text(&archive)]);
    refused(&mut limited(command.args(SMALL), 100), 1, &["model.irpa"]);
    assert_eq!(listing(out.path()), []);
    fs::write(&archive, "IRPA, an older one").unwrap();
    refused(&mut limited(&command, 100), 1, &["model.irpa"]);
    assert_eq!(fs::read(&archive).unwrap(), b"IRPA, an older one", "what was there stays");
}

/// A real one, where this process may make one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_file_system_is_told_before_the_first_byte() {
    let (model, out) = (fixture("llama-untied"), folder());
    let disk = out.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=200k", "tmpfs"])
        .arg(&disk)
        .output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        println!("skipped: this process may not mount a file system");
        return;
    }
    let archive = disk.join("model.irpa");
    let ran = run(bare(&["bake", text(&model), "-o", text(&archive), "--kernels", "off"]).args(SMALL));
    let left = listing(&disk);
    let unmounted = std::process::Command::new("umount").arg(&disk).status().unwrap();
    assert!(unmounted.success());
    assert_eq!((ran.code, left), (Some(1), vec![]), "{}", ran.err);
    for word in ["no room for", "the file needs 491520 bytes", "are available", "free some space"] {
        assert!(ran.err.contains(word), "`{word}` is not in\n{}", ran.err);
    }
}

/// Ctrl-C while a large checkpoint is baked: nothing stays behind.
#[cfg(unix)]
#[test]
fn ctrl_c_while_baking() {
    let out = folder();
    // A hole in a file costs nothing to make and takes its time to copy.
    let source = out.path().join("large.safetensors");
    const SIZE: u64 = 512 << 20;
    let header =
        format!(r#"{{"weight":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{SIZE}]}}}}"#, SIZE / 4);
    fs::write(&source, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
    file.set_len(8 + header.len() as u64 + SIZE).unwrap();
    let before = listing(out.path());
    let mut child = spawn(&mut bare(&["bake", text(&source), "-o", text(&out.path().join("large.irpa"))]));
    wait_while_runs(&mut child, "a part of the archive", || listing(out.path()).len() > before.len());
    interrupt(&child);
    interrupted(child);
    assert_eq!(listing(out.path()), before);
}
