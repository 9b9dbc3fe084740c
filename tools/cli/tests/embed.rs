//! `tracewright embed`: embeddings of texts, and texts without an embedding.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::*;

const FIXTURES: [&str; 2] = ["embeddinggemma", "embeddinggemma-saved"];
/// The element type of the goldens, and sizes that these tests share.
const SIZES: [&str; 6] = ["--dtype", "f32", "--length", "40", "--batch", "4"];

/// The texts of a golden.
fn golden(fixture_name: &str) -> Vec<Value> {
    let file = fixture(fixture_name).join("golden.json");
    let golden: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    golden["texts"].as_array().unwrap().clone()
}

/// The vector of a golden's text.
fn expected(fixture_name: &str, text: usize) -> Vec<f32> {
    let bytes = fs::read(fixture(fixture_name).join("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(&format!("texts.{text}.embedding")).unwrap();
    tensor.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[track_caller]
fn near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error <= 1e-5, "{error:e}");
}

fn numbers(vector: &Value) -> Vec<f32> {
    serde_json::from_value(vector.clone()).unwrap()
}

/// The command for a fixture, in the element type of its golden.
fn embed(fixture_name: &str, arguments: &[&str]) -> std::process::Command {
    let folder = fixture(fixture_name);
    let mut command = tracewright(&["embed", text(&folder)]);
    command.args(SIZES).args(arguments);
    command
}

/// Texts in, with and without prompts, one too long: the tokens and vectors of sentence-transformers.
#[test]
fn texts_give_the_tokens_and_vectors_of_the_golden() {
    for name in FIXTURES {
        let golden = golden(name);
        for prompt in [None, Some("query"), Some("document")] {
            let chosen: Vec<usize> =
                (0..golden.len()).filter(|&i| golden[i]["prompt"].as_str() == prompt).collect();
            let mut arguments = vec!["--json"];
            for &i in &chosen {
                arguments.extend(["-p", golden[i]["text"].as_str().unwrap()]);
            }
            arguments.extend(prompt.into_iter().flat_map(|name| ["--prompt-name", name]));
            let ran = succeed(&mut embed(name, &arguments));
            assert_eq!(ran.out.matches('\n').count(), 1, "one line: {}", ran.out);
            let object: Value = serde_json::from_str(&ran.out).unwrap();
            let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["texts", "timings", "peak_rss_bytes"]);
            assert!(
                object["timings"].as_object().unwrap().values().all(|time| time.as_f64().unwrap() >= 0.0)
            );
            let texts = object["texts"].as_array().unwrap();
            assert_eq!(texts.len(), chosen.len());
            for (found, &i) in texts.iter().zip(&chosen) {
                assert_eq!(found["tokens"], golden[i]["tokens"], "{name} text {i}");
                near(&numbers(&found["embedding"]), &expected(name, i));
                let last = i + 1 == golden.len();
                assert_eq!(found["cut_from"].is_null(), !last);
            }
            let cut = format!("text {0} of {0} is cut from 53 tokens to 40\n", chosen.len());
            assert_eq!(ran.err.contains(&cut), prompt.is_none(), "{}", ran.err);
        }
    }
}

/// A line of numbers for each line of a file, and a summary for the reader.
#[test]
fn a_file_has_a_text_on_each_line() {
    let (name, out) = (FIXTURES[0], folder());
    let golden = golden(name);
    let file = out.path().join("texts.txt");
    let lines: Vec<&str> = (0..5).map(|i| golden[i]["text"].as_str().unwrap()).collect();
    assert_eq!(lines[0], "", "an empty line is a text too");
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    let ran = succeed(&mut embed(name, &["-f", text(&file), "-p", lines[4]]));
    let found: Vec<Vec<f32>> =
        ran.out.lines().map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
    assert_eq!(found.len(), 6);
    near(&found[0], &expected(name, 4));
    (0..5).for_each(|i| near(&found[i + 1], &expected(name, i)));
    assert!(ran.err.contains("6 texts, 30 tokens in "), "{}", ran.err);
    assert!(ran.err.contains(", 30 numbers each; load "), "{}", ran.err);
}

/// A line of a `.jsonl` file is a string, or an object with a string `text`. The NumPy file has the golden's vectors.
#[test]
fn json_lines_have_a_text_each_and_a_numpy_file_all_vectors() {
    let (name, out) = (FIXTURES[0], folder());
    let golden = golden(name);
    let texts: Vec<&str> = (1..3).map(|i| golden[i]["text"].as_str().unwrap()).collect();
    let [file, vectors] = ["texts.jsonl", "vectors.npy"].map(|name| out.path().join(name));
    fs::write(&file, format!("{}\n\n{}\n", json!(texts[0]), json!({ "text": texts[1], "id": 7 }))).unwrap();
    succeed(&mut embed(name, &["-f", text(&file), "--npy", text(&vectors)]));
    let bytes = fs::read(&vectors).unwrap();
    let head = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00") && head.is_multiple_of(64));
    let header = std::str::from_utf8(&bytes[10..head]).unwrap();
    assert!(header.contains("'descr': '<f4', 'fortran_order': False, 'shape': (2, 30)"), "{header}");
    let found: Vec<f32> =
        bytes[head..].chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    found.chunks(30).zip(1..).for_each(|(found, i)| near(found, &expected(name, i)));

    fs::write(&file, "\"a\"\n[\"b\"]\n").unwrap();
    let refused = run(&mut embed(name, &["-f", text(&file)]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("line 2 of `"), "{}", refused.err);
}

#[test]
fn token_ids_are_taken_as_they_are() {
    let (name, text) = (FIXTURES[1], 3);
    let tokens = golden(name)[text]["tokens"].clone();
    let list: Vec<String> = tokens.as_array().unwrap().iter().map(Value::to_string).collect();
    let ran = succeed(&mut embed(name, &["--tokens", &list.join(","), "--json"]));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["texts"][0]["tokens"], tokens);
    near(&numbers(&object["texts"][0]["embedding"]), &expected(name, text));
}

/// A shorter length cuts more, and keeps the token that ends a text.
#[test]
fn a_length_cuts_texts() {
    let model = fixture(FIXTURES[0]);
    let shorter = ["--dtype", "f32", "--length", "4", "--json"];
    let ran = succeed(tracewright(&["embed", text(&model), "-p", "Once upon a time"]).args(shorter));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["texts"][0]["tokens"], json!([2, 452, 565, 1]));
    assert_eq!(object["texts"][0]["cut_from"], json!(6));
    assert!(ran.err.contains("text 1 of 1 is cut from 6 tokens to 4"), "{}", ran.err);
}

/// A copy of a fixture that a test may spoil.
fn spoiled(spoil: impl FnOnce(&Path)) -> tempfile::TempDir {
    spoiled_copy(FIXTURES[0], spoil)
}

fn spoiled_copy(name: &str, spoil: impl FnOnce(&Path)) -> tempfile::TempDir {
    let (copy, from) = (folder(), fixture(name));
    for (path, _) in listing(&from) {
        let to = copy.path().join(path.strip_prefix(&from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path, to).unwrap();
    }
    spoil(copy.path());
    copy
}

/// Changes a JSON file of a model.
fn edit(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Refused with nothing on PATH and an empty cache, which stays empty.
#[track_caller]
fn refuses(model: &Path, arguments: &[&str], code: i32, words: &[&str]) {
    let cache = folder();
    let mut command = bare(&["embed", text(model), "--cache", text(cache.path())]);
    refused(command.args(arguments), code, words);
    assert_eq!(listing(cache.path()), []);
}

#[test]
fn a_default_prompt_stands_in_front_unless_another_is_named() {
    let model = spoiled(|model| {
        let file = model.join("config_sentence_transformers.json");
        edit(&file, |keys| keys["default_prompt_name"] = json!("query"));
    });
    let golden = golden(FIXTURES[0]);
    let of = |prompt: &str| golden.iter().find(|text| text["prompt"] == prompt).unwrap();
    for (prompt, more) in [("query", &[][..]), ("document", &["--prompt-name", "document"])] {
        let given = ["embed", text(model.path()), "--json", "-p", of(prompt)["text"].as_str().unwrap()];
        let ran = succeed(tracewright(&given).args(SIZES).args(more));
        let object: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(object["texts"][0]["tokens"], of(prompt)["tokens"]);
    }
    let file = model.path().join("config_sentence_transformers.json");
    edit(&file, |keys| keys["default_prompt_name"] = json!("passage"));
    let words = ["`default_prompt_name` is \"passage\", expected one of [\"document\", \"query\"]"];
    refuses(model.path(), &["-p", "a"], 1, &words);
}

#[test]
fn a_vector_that_is_none_is_an_error() {
    let model = spoiled(|model| {
        let norm = |tensors: &mut Tensors| tensors.get_mut("norm.weight").unwrap().2.fill(0xff);
        edit_tensors(model, norm);
    });
    for more in [&[][..], &["--json"]] {
        let mut command = tracewright(&["embed", text(model.path()), "-p", "Once"]);
        command.args(SIZES).args(more);
        let ran = refused(&mut command, 1, &["in the embedding of text 0 is NaN, expected a finite number"]);
        assert!(ran.out.is_empty(), "{}", ran.out);
    }
}

/// A tower of other sizes is said before it is recorded, with or without the prefix of language models.
#[test]
fn sizes_that_the_tower_s_checkpoint_does_not_have() {
    for name in FIXTURES {
        let model = spoiled_copy(name, |model| {
            edit(&model.join("config.json"), |keys| keys["intermediate_size"] = json!(1 << 20));
        });
        let words = ["error[TW0211]: ", "`intermediate_size` is 1048576, but the checkpoint has "];
        refuses(model.path(), &["-p", "a"], 1, &words);
        let model = spoiled_copy(name, |model| {
            edit(&model.join("config.json"), |keys| {
                keys["num_hidden_layers"] = json!(4000);
                if keys.get("layer_types").is_some() {
                    keys["layer_types"] = json!(vec!["full_attention"; 4000]);
                }
            });
        });
        let words = ["error[TW0211]: ", "`num_hidden_layers` is 4000, but the checkpoint has "];
        refuses(model.path(), &["-p", "a"], 1, &words);
    }
}

#[test]
fn inputs_that_have_no_vectors() {
    let (model, out) = (fixture(FIXTURES[0]), folder());
    refuses(
        &model,
        &["-p", "a", "--prompt-name", "passage"],
        1,
        &["the model has no prompt `passage`; the model's prompts are [\"document\", \"query\"]"],
    );
    let file = out.path().join("texts.txt");
    refuses(&model, &["-f", text(&file)], 1, &["cannot read", "texts.txt", "No such file"]);
    fs::write(&file, "").unwrap();
    refuses(&model, &["-f", text(&file)], 2, &["there is no text"]);
    fs::File::create(&file).unwrap().set_len(1 << 36).unwrap();
    refuses(&model, &["-f", text(&file)], 1, &["texts.txt", "at most 67108864"]);
    refuses(
        &model,
        &["--tokens", "2,1024,1"],
        1,
        &["token 1 of text 0 has the id 1024, expected an id below 1024"],
    );
    let long = ["2"; 41].join(",");
    refuses(
        &model,
        &["--tokens", &long],
        1,
        &["text 1 of 1 has 41 tokens, expected at most 40, the model's own limit", "shorten the text"],
    );
    for length in ["0", "41"] {
        let said = format!("`length` is {length}, expected 1 to 40");
        refuses(&model, &["-p", "a", "--length", length], 1, &[&said, "`--length N`"]);
    }
    refuses(&model, &["-p", "a", "--dtype", "i8"], 1, &["`element` is i8", "`--dtype TYPE`"]);
    refuses(Path::new("nowhere"), &["-p", "a"], 1, &["cannot open the model directory `nowhere`"]);
}

#[test]
fn folders_that_lack_a_file() {
    let without = |file: &str, input: &[&str], code, words: &[&str]| {
        let model = spoiled(|model| fs::remove_file(model.join(file)).unwrap());
        refuses(model.path(), input, code, words);
    };
    let text = ["-p", "a"];
    without("config.json", &text, 1, &["cannot read", "config.json"]);
    without("modules.json", &text, 1, &["cannot read", "modules.json"]);
    without("1_Pooling/config.json", &text, 1, &["cannot read", "1_Pooling/config.json"]);
    without("3_Dense/config.json", &text, 1, &["cannot read", "3_Dense/config.json"]);
    without("2_Dense/model.safetensors", &text, 1, &["2_Dense", "model.safetensors"]);
    without("model.safetensors", &text, 1, &["model.safetensors"]);
    without("tokenizer.json", &text, 2, &["has no tokenizer.json", "`--tokens`"]);
}

/// Each command names the other where a model is not its own.
#[test]
fn models_of_the_other_command() {
    let words = [
        "`LlamaForCausalLM` generates text and does not compute embeddings",
        "help: use `tracewright generate`",
    ];
    refuses(&fixture("llama-untied"), &["--tokens", "5"], 1, &words);
    refuses(&demo(), &["-p", "Once"], 1, &words);
    let words = [
        "`Gemma3TextModel` computes embeddings and does not generate text",
        "help: use `tracewright embed` to compute embeddings with this model",
    ];
    let model = fixture(FIXTURES[0]);
    let model = text(&model);
    for command in [
        vec!["generate", model, "-p", "a"],
        vec!["export", model, "-o", "nowhere"],
        vec!["bake", model, "-o", "nowhere.irpa"],
        vec!["random", model, "-o", "nowhere"],
    ] {
        refused(&mut bare(&command), 1, &words);
    }
    refused(&mut trace_dump(&[model]), 1, &words);
    assert!(!Path::new("nowhere").exists() && !Path::new("nowhere.irpa").exists());
}
