//! Damage to weights: found by name, in archives, exports and the cache.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;

/// The name of a tensor in a Llama's archives: the down projection of the first layer's feed-forward network.
const TENSOR: &str = "model.layers.0.mlp.down_proj.weight";

/// Flips a bit in the middle of a tensor.
fn flip(archive: &Path, name: &str) {
    let mut bytes = fs::read(archive).unwrap();
    let opened = tracewright::irpa::Archive::open(archive).unwrap();
    let tracewright::irpa::EntryData::Range(range) = opened.get(name).unwrap().data.clone() else {
        panic!("`{name}` has data")
    };
    bytes[(range.start + range.end) / 2] ^= 4;
    // Another file: the one that was mapped stays as it is.
    fs::remove_file(archive).unwrap();
    fs::write(archive, bytes).unwrap();
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

#[test]
fn a_flipped_bit_of_an_export_is_found_by_name() {
    let (out, model) = (folder(), fixture("llama-untied"));
    let export = out.path().join("export");
    succeed(tracewright(&["export", text(&model), "-o", text(&export)]).args(SMALL));
    let generate = |more: &[&str]| {
        let mut command = bare(&["generate", text(&export), "--tokens", "5,17,3", "-n", "2"]);
        command.args(more);
        command
    };
    let sound = succeed(&mut bare(&["verify", text(&export), "--json"]));
    let said = json_of(&sound);
    assert!(said["tensors"].as_u64().unwrap() >= 10 && said["bytes"].as_u64().unwrap() > 100_000, "{said}");
    assert_eq!((&said["damaged"], &said["without_hash"]), (&json!([]), &json!([])));
    let line = succeed(&mut bare(&["verify", text(&export)])).out;
    assert!(line.contains("as they were written"), "{line}");
    succeed(&mut generate(&["--verify"]));

    flip(&export.join("model.irpa"), TENSOR);
    succeed(&mut generate(&[])); // Nobody asked.
    let words = ["model.irpa` is damaged", &format!("`{TENSOR}`"), "blake3", "expected"];
    refused(&mut generate(&["--verify"]), 1, &words);
    let found = refused(&mut bare(&["verify", text(&export), "--json"]), 1, &words);
    let damaged = json_of(&found)["damaged"].clone();
    assert_eq!((damaged.as_array().unwrap().len(), &damaged[0]["name"]), (1, &json!(TENSOR)));
    let error = &json_of(&found)["error"];
    assert!(
        error["code"] == "TW0302" && error["message"].as_str().unwrap().contains("is damaged"),
        "{error}"
    );
    let alone = refused(&mut bare(&["verify", text(&export.join("model.irpa")), "--json"]), 1, &words);
    assert_eq!(json_of(&alone)["damaged"], damaged);
}

#[test]
fn what_an_export_for_xla_has_of_its_own_is_compared() {
    const MADE: &str = "h.1.mlp.c_fc.weight";
    let out = folder();
    let of = |name: &str, sound: &[&str]| {
        let export = out.path().join(name);
        let mut command = bare(&["export", text(&fixture(name)), "-o", text(&export), "--engine", "xla"]);
        succeed(&mut command);
        let said = succeed(&mut bare(&["verify", text(&export)])).out;
        sound.iter().for_each(|words| assert!(said.contains(words), "{said}"));
        export
    };
    // Nothing is made of its weights, and the checkpoint has no hashes.
    of(
        "llama-untied",
        &["the program and 0 tensors", "carry no hash and were not compared: `lm_head.weight`"],
    );
    let export = of(
        "gpt2",
        &["the program and 12 tensors", "as they were written", "carry no hash and were not compared: `h.0."],
    );
    let refused = |words: &[&str]| refused(&mut bare(&["verify", text(&export), "--json"]), 1, words);

    let (archive, manifest, module) =
        (export.join("made.irpa"), export.join("manifest.json"), export.join("decode.mlir"));
    let sound = fs::read(&archive).unwrap();
    flip(&archive, MADE);
    let damaged = json_of(&refused(&["made.irpa` is damaged", &format!("`{MADE}`")]))["damaged"].clone();
    assert_eq!((damaged.as_array().unwrap().len(), &damaged[0]["name"]), (1, &json!(MADE)));
    fs::write(&archive, sound).unwrap();

    let written = fs::read_to_string(&manifest).unwrap();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut content: Value = serde_json::from_str(&written).unwrap();
        change(&mut content);
        fs::write(&manifest, content.to_string()).unwrap();
    };
    let is_made = |weight: &&mut Value| weight["key"] == MADE;
    changed(&|content| {
        let weight = content["weights"].as_array_mut().unwrap().iter_mut().find(is_made).unwrap();
        weight["offset"] = (weight["offset"].as_u64().unwrap() + 64).into();
    });
    refused(&[
        "error[TW0904]: ",
        &format!("made.irpa` has `{MADE}` at byte "),
        "but the manifest expects byte",
    ]);
    changed(&|content| content["entry_points"][0]["module"] = "../decode.mlir".into());
    refused(&["error[TW0902]: ", "`../decode.mlir` is no plain file name"]);
    changed(&|content| content["format"] = 99.into());
    refused(&["error[TW0902]: ", "its format is 99, expected 2"]);
    changed(&|content| content["entry_points"] = json!([]));
    refused(&["it has no entry point"]);
    changed(&|content| content["weights"] = json!([]));
    refused(&["which is not listed"]);
    fs::write(&manifest, &written[1..]).unwrap();
    refused(&["is not a manifest"]);
    fs::write(&manifest, &written).unwrap();

    let program = fs::read_to_string(&module).unwrap();
    fs::write(&module, program.replacen("add", "subtract", 1)).unwrap();
    let said = refused(&["error[TW0904]: ", "decode.mlir` is not the module that the manifest names"]);
    let said = json_of(&said);
    assert_eq!(said["error"]["code"], "TW0904");
    // How much else was as it was written, nobody looked.
    assert!(["tensors", "bytes", "without_hash"].iter().all(|key| said[key].is_null()), "{said}");
    fs::remove_file(&module).unwrap();
    refused(&["decode.mlir"]);
}

#[test]
fn a_flipped_bit_of_the_cache_is_found_by_name() {
    let (cache, model) = (folder(), fixture("llama-untied"));
    let generate = |more: &[&str]| {
        let mut command = tracewright(&["generate", text(&model), "--tokens", "5,17,3", "-n", "2"]);
        command.args(SMALL).args(more).env("TRACEWRIGHT_CACHE", cache.path());
        command
    };
    let sound = succeed(&mut generate(&["--verify"])).out;
    let archives: Vec<_> =
        listing(&cache.path().join("archives")).into_iter().map(|(path, _)| path).collect();
    let [archive] = &archives[..] else { panic!("{archives:?}") };
    flip(archive, TENSOR);
    refused(
        &mut generate(&["--verify"]),
        1,
        &["is damaged", &format!("`{TENSOR}`"), "help: remove the damaged file"],
    );
    fs::remove_file(archive).unwrap();
    assert_eq!(succeed(&mut generate(&["--verify"])).out, sound);
}

/// A reader that has gone does not turn damage into success.
#[cfg(unix)]
#[test]
fn damage_is_a_failure_whoever_reads() {
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Stdio;

    let (out, model) = (folder(), fixture("llama-untied"));
    // A name that is no UTF-8 is shown as far as it can be.
    let archive = out.path().join(std::ffi::OsStr::from_bytes(b"a\xff.irpa"));
    succeed(bare(&["bake", text(&model), "-o"]).arg(&archive).args(SMALL));
    flip(&archive, TENSOR);
    let verify = || {
        let mut command = bare(&["verify", "--json"]);
        command.arg(&archive);
        command
    };
    let said = json_of(&refused(&mut verify(), 1, &["is damaged"]));
    assert!(said["path"].as_str().unwrap().ends_with("a\u{fffd}.irpa"), "{said}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = verify().stdout(Stdio::from(writer)).output().unwrap();
    let words = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.code() == Some(1) && words.contains("is damaged"), "{words}");
}

#[test]
fn what_carries_no_hash_is_said() {
    let (out, model) = (folder(), fixture("llama-untied"));
    let archive = out.path().join("model.irpa");
    succeed(bare(&["bake", text(&model), "-o", text(&archive), "--no-metadata"]).args(SMALL));
    refused(&mut bare(&["verify", text(&archive)]), 1, &["contains no hashes", "`--no-metadata`"]);
    let said =
        json_of(&refused(&mut bare(&["verify", text(&archive), "--json"]), 1, &["contains no hashes"]));
    assert_eq!(said["tensors"], 0);
    assert!(said["without_hash"].as_array().unwrap().contains(&json!(TENSOR)), "{said}");
    refused(&mut bare(&["verify", text(out.path())]), 1, &["is not an export directory", "manifest.json"]);
    refused(&mut bare(&["verify", text(&out.path().join("none"))]), 1, &["cannot open", "none"]);
    refused(&mut bare(&["verify", text(&model.join("config.json"))]), 1, &["not a valid parameter archive"]);
}

/// The numbers of an archive are compared with those of the file that it was made from.
#[test]
fn an_archive_has_the_numbers_of_its_model() {
    use crate::gguf::gguf;

    let out = folder();
    let bake = |model: &Path, name: &str, options: &[&str]| {
        let archive = out.path().join(name);
        succeed(bare(&["bake", text(model), "-o", text(&archive)]).args(options));
        archive
    };
    let against = |archive: &Path, model: &Path| bare(&["verify", text(archive), "--against", text(model)]);
    let model = gguf("q4_0");
    let archive = bake(&model, "model.irpa", &[]);
    let said = succeed(&mut against(&archive, &model)).out;
    assert!(said.contains("Q4_0 as q4: ") && said.contains("numbers: equal bit by bit"), "{said}");
    let said = json_of(&succeed(against(&archive, &model).arg("--json")));
    let types = said["against"]["types"].as_array().unwrap();
    assert!(
        types.iter().any(|row| row["from"] == "Q4_0" && row["to"] == "q4" && row["rounded"] == false),
        "{said}"
    );
    // Integers and scales in separate tensors.
    let apart = bake(&model, "apart.irpa", &["--kernels", "off"]);
    let said = succeed(&mut against(&apart, &model)).out;
    assert!(said.contains("Q4_0 as q4: "), "{said}");
    // Plain numbers may be narrower than in the file, quantized blocks may not be rounded again.
    let narrow = bake(&gguf("llama-bf16"), "narrow.irpa", &["--dtype", "f16"]);
    let said = succeed(&mut against(&narrow, &gguf("llama-bf16"))).out;
    assert!(said.contains("bf16 as f16: ") && said.contains("equal after rounding"), "{said}");
    let rounded = bake(&model, "rounded.irpa", &["--quant", "q4_k"]);
    refused(&mut against(&rounded, &model), 1, &["error[TW0305]: ", "row 0, column 0: the number is "]);
    let mut bytes = fs::read(&model).unwrap();
    // A bit of the last block.
    let last = bytes.len() - 100;
    bytes[last] ^= 1;
    let other = out.path().join("other.gguf");
    fs::write(&other, bytes).unwrap();
    refused(&mut against(&archive, &other), 1, &["error[TW0305]: ", "the checkpoint has "]);
    refused(&mut against(&archive, &gguf("gpt2")), 1, &["error[TW0201]: "]);
    refused(&mut against(&archive, &out.path().join("none.gguf")), 1, &["none.gguf"]);
}
