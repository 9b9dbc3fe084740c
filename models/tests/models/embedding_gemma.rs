//! Tests that the evaluator computes the same hidden states and embeddings as
//! sentence-transformers, and tests of the errors for invalid models.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use std::collections::BTreeMap;
use std::path::Path;

use bake::Quantizer;
use dsl::{Bf16, EntryPoint, F32};
use expect_test::{Expect, expect};
use ops::{ElementType, TensorType, Value, WeightFormat};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;
use support::*;
use trace::{Evaluation, Trace, evaluate};
use tracewright_models::embedding_gemma::EmbeddingGemma;
use tracewright_models::{EmbeddingGemmaConfig, ModelConfig, Opened, check_embeds};

const FIXTURES: [&str; 2] = ["embeddinggemma", "embeddinggemma-saved"];
/// The folders of the linear layers after the transformer.
const FOLDERS: [&str; 2] = ["2_Dense", "3_Dense"];

/// The length of the entry point, which is larger than the number of tokens in any text.
const LENGTH: usize = 43;

fn read(folder: &Path) -> EmbeddingGemmaConfig {
    match ModelConfig::read(folder, &[]) {
        Ok(ModelConfig::EmbeddingGemma(config)) => config,
        other => panic!("{other:?}"),
    }
}

fn recorded(folder: &Path, rows: usize) -> Trace {
    let config = read(folder);
    let sizes = [("B", rows), ("S", LENGTH)];
    let recording = EmbeddingGemma::<F32>::record(&config).unwrap();
    let recording = recording.entry("hidden", EmbeddingGemma::hidden, sizes).unwrap();
    recording.entry("embed", EmbeddingGemma::embed, sizes).unwrap().finish().trace
}

fn weights(folder: &Path) -> BTreeMap<String, Value> {
    let of = |path: &str| tensors(&folder.join(path).join("model.safetensors"));
    let dense = FOLDERS
        .into_iter()
        .flat_map(|name| of(name).into_iter().map(move |(key, value)| (format!("{name}.{key}"), value)));
    of("").into_iter().chain(dense).collect()
}

fn worst(found: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max) / largest
}

/// The test passes all texts in batches of two, so each text has padding and another text next to
/// it.
#[test]
fn the_oracle_of_embeddings() {
    for name in FIXTURES {
        let folder = fixture(name);
        let (trace, weights) = (recorded(&folder, 2), weights(&folder));
        let golden = std::fs::read(folder.join("golden.json")).unwrap();
        let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
        let expected = tensors(&folder.join("golden.safetensors"));
        let tokens = |text: &serde_json::Value| -> Vec<f64> {
            text["tokens"].as_array().unwrap().iter().map(|token| token.as_f64().unwrap()).collect()
        };
        let texts: Vec<Vec<f64>> = golden["texts"].as_array().unwrap().iter().map(tokens).collect();
        assert!(texts.len() > 10 && texts.iter().any(|text| text.len() == 2));
        let mut furthest: f64 = 0.0;
        for first in (0..texts.len()).step_by(2) {
            let rows = [first, (first + 1).min(texts.len() - 1)];
            let run = |entry: &str| {
                let inputs = trace.entry(entry).unwrap().inputs();
                let argument = |(name, ty): (&str, &TensorType)| match name {
                    "count" => Value::new(ty.clone(), rows.map(|row| texts[row].len() as f64)),
                    // The token that pads a text can have any value.
                    _ => Value::from_fn(ty.clone(), |at| *texts[rows[at[0]]].get(at[1]).unwrap_or(&7.0)),
                };
                let arguments = inputs.into_iter().map(argument).collect();
                let parameters = |key: &str| weights.get(key).cloned();
                let evaluation = Evaluation { parameters: &parameters, watch: None };
                evaluate(&trace, entry, arguments, evaluation).unwrap().swap_remove(0)
            };
            let [hidden, vectors] = ["hidden", "embed"].map(run);
            for (row, text) in rows.into_iter().enumerate() {
                let expected =
                    ["hidden", "embedding"].map(|what| &expected[&format!("texts.{text}.{what}")].data);
                let found = [&hidden, &vectors].map(|value| &value.data[row * value.data.len() / 2..]);
                for (found, expected) in found.into_iter().zip(expected) {
                    let off = worst(&found[..expected.len()], expected);
                    assert!(off <= 1e-5, "{name}: text {text} is off by {off}");
                    furthest = furthest.max(off);
                }
            }
        }
        println!("{name}: {} texts, worst error {furthest:.1e}", texts.len());
    }
}

/// The window extends to both sides of a token, so each side has half of the configured window.
#[test]
fn a_window_is_halved_to_both_sides() {
    let window = |name| {
        let config = read(&fixture(name));
        config.windows.iter().flatten().copied().max().unwrap()
    };
    assert_eq!(FIXTURES.map(window), [6, 4]);
}

/// The recording succeeds with an element type that cannot represent the score of hidden keys.
#[test]
fn narrow_elements_are_recorded() {
    let config = read(&fixture(FIXTURES[0]));
    let recording = EmbeddingGemma::<Bf16>::record(&config).unwrap();
    let trace = recording.entry("embed", EmbeddingGemma::embed, [("B", 1), ("S", 5)]).unwrap().finish().trace;
    trace.verify().unwrap();
}

/// The files that every configuration needs.
const NEEDED: [&str; 5] =
    ["config.json", "modules.json", "1_Pooling/config.json", "2_Dense/config.json", "3_Dense/config.json"];
/// The files that describe the preparation of texts.
const OF_TEXTS: [&str; 3] =
    ["config_sentence_transformers.json", "sentence_bert_config.json", "tokenizer_config.json"];

/// A folder with copies of some files of a fixture.
fn copied(files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in files {
        let to = folder.path().join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(fixture(FIXTURES[0]).join(name), to).unwrap();
    }
    folder
}

/// Changes a JSON file in a folder.
fn edit(folder: &Path, file: &str, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.join(file);
    let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut value);
    std::fs::write(&path, value.to_string()).unwrap();
}

/// Reads a copy of a fixture after `spoil` has changed a file, and compares the error.
fn check(file: &str, spoil: impl FnOnce(&mut serde_json::Value), expected: Expect) {
    let folder = copied(&[&NEEDED[..], &OF_TEXTS].concat());
    edit(folder.path(), file, spoil);
    let config = ModelConfig::read(folder.path(), &[]);
    let embeds = config.and_then(|config| check_embeds(&config.kind(), folder.path()).map(drop));
    let error = embeds.expect_err("an error").to_string();
    expected.assert_eq(&error.replace(folder.path().to_str().unwrap(), "."));
}

/// The first file that limits the length of texts sets the limit. All these files may be missing.
#[test]
fn the_longest_text_and_the_prompts() {
    let folder = copied(&NEEDED);
    let read = || read(folder.path()).sentence;
    let bare = read();
    assert_eq!((bare.max_tokens, bare.prompt(None)), (64, Ok("")), "as many tokens as positions");
    let unknown = bare.prompt(Some("query")).unwrap_err().to_string();
    assert_eq!(unknown, "the model has no prompt `query`; the model's prompts are []");

    let write = |file: &str, value: serde_json::Value| {
        std::fs::write(folder.path().join(file), value.to_string()).unwrap();
        read().max_tokens
    };
    assert_eq!(write("tokenizer_config.json", json!({"model_max_length": 1e30})), 64, "no limit of its own");
    assert_eq!(write("tokenizer_config.json", json!({"model_max_length": 50, "bos_token": "<bos>"})), 50);
    assert_eq!(write("sentence_bert_config.json", json!({"max_seq_length": null})), 50);
    assert_eq!(write("sentence_bert_config.json", json!({"max_seq_length": 40})), 40);
    let prompts = json!({"query": "query: ", "plain": null});
    write("config_sentence_transformers.json", json!({"prompts": prompts, "default_prompt_name": "query"}));
    let sentence = read();
    assert_eq!(
        [None, Some("query"), Some("plain")].map(|name| sentence.prompt(name).unwrap()),
        ["query: ", "query: ", ""]
    );
}

#[test]
fn what_would_change_a_text_is_named() {
    check(
        "sentence_bert_config.json",
        |config| config["max_seq_length"] = 65.into(),
        expect![[r#"
            `./sentence_bert_config.json`: 1 problem(s)
              `max_seq_length` is 65, expected at most 64, the positions of the network"#]],
    );
    check(
        "tokenizer_config.json",
        |config| config["model_max_length"] = 0.5.into(),
        expect![[r#"
            `./tokenizer_config.json`: 1 problem(s)
              `model_max_length` is 0.5, expected at least 1"#]],
    );
    check(
        "sentence_bert_config.json",
        |keys| keys["processing_kwargs"] = json!({"text": {"max_length": 7}}),
        expect![[r#"
            `./sentence_bert_config.json`: 1 problem(s)
              `processing_kwargs` is not a known key"#]],
    );
    check(
        "tokenizer_config.json",
        |keys| keys["truncation_side"] = json!("left"),
        expect![[r#"
        `./tokenizer_config.json`: 1 problem(s)
          `truncation_side` is "left", expected one of ["right"]"#]],
    );
    check(
        "config_sentence_transformers.json",
        |keys| keys["prompts"]["query"] = json!(7),
        expect![[r#"
        `./config_sentence_transformers.json`: 1 problem(s)
          `prompts` is {"document":"title: none | text: ","query":7}, expected an object of strings"#]],
    );
    check(
        "config_sentence_transformers.json",
        |keys| keys["default_prompt_name"] = json!("passage"),
        expect![[r#"
            `./config_sentence_transformers.json`: 1 problem(s)
              `default_prompt_name` is "passage", expected one of ["document", "query"]"#]],
    );
}

#[test]
fn what_is_no_embedding_is_named() {
    check(
        "config.json",
        |keys| {
            keys["architectures"] = json!(["Gemma3ForCausalLM"]);
            keys["use_bidirectional_attention"] = json!(false);
        },
        expect![
            "`./config.json`: the architecture `Gemma3ForCausalLM` generates text and does not compute embeddings"
        ],
    );
    // This is a Gemma 3 that transformers saved without the output head.
    check(
        "config.json",
        |keys| keys["use_bidirectional_attention"] = json!(false),
        expect![
            "`./config.json`: the architecture `Gemma3TextModel` generates text and does not compute embeddings"
        ],
    );
    check(
        "modules.json",
        |modules| modules[3]["type"] = json!("sentence_transformers.models.LSTM"),
        expect![
            "`./modules.json`: module 3 is LSTM at `3_Dense`, expected Normalize, or Dense in a folder of the model"
        ],
    );
    check(
        "1_Pooling/config.json",
        |keys| keys["pooling_mode_cls_token"] = json!(true),
        expect![[r#"
        `./2_Dense/config.json`: 1 problem(s)
          `in_features` is 42, expected 84, the features that come in"#]],
    );
    check(
        "1_Pooling/config.json",
        |keys| keys["word_embedding_dimension"] = json!(43),
        expect![[r#"
            `./1_Pooling/config.json`: 1 problem(s)
              `word_embedding_dimension` is 43, expected 42, the `hidden_size`"#]],
    );
    check(
        "2_Dense/config.json",
        |keys| keys["activation_function"] = json!("torch.nn.ReLU"),
        expect![[r#"
        `./2_Dense/config.json`: 1 problem(s)
          `activation_function` is "torch.nn.ReLU", expected one of ["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.GELU", "torch.nn.modules.activation.ReLU", "torch.nn.modules.activation.Sigmoid"]"#]],
    );
    check(
        "3_Dense/config.json",
        |keys| keys["in_features"] = json!(43),
        expect![[r#"
        `./3_Dense/config.json`: 1 problem(s)
          `in_features` is 43, expected 66, the features that come in"#]],
    );
}

/// A network that computes embeddings has no output head, so the tensor of the head can contain
/// anything.
#[test]
fn the_head_of_a_language_model_is_left_out() {
    let (source, folder) = (fixture("embeddinggemma"), tempfile::tempdir().unwrap());
    let config = ModelConfig::read(&source, &[]).unwrap();
    let weights = std::fs::read(source.join("model.safetensors")).unwrap();
    let known = SafeTensors::deserialize(&weights).unwrap();
    let head = vec![7; 4 * 6];
    let head = TensorView::new(Dtype::F32, vec![2, 3], &head).unwrap();
    let all = known.tensors().into_iter().chain([("lm_head.weight".to_owned(), head)]);
    let file = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(all, None, &file).unwrap();
    for name in FOLDERS {
        let dense = format!("{name}/model.safetensors");
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::copy(source.join(&dense), folder.path().join(&dense)).unwrap();
    }
    let checkpoint = Opened::from(config.clone()).weights(&folder.path().into()).unwrap();
    let parameters = recorded(&source, 1).parameters().unwrap();
    let checked = bake::check(&checkpoint, &parameters, &config.ignorable()).unwrap();
    assert_eq!(checked.planned().ignored, ["lm_head.weight"]);
}

/// Quantized blocks change the storage format of a network, and not what the network computes.
#[test]
fn a_network_with_quantized_blocks_still_computes_embeddings() {
    let (source, folder) = (fixture(FIXTURES[0]), copied(&[&NEEDED[..], &OF_TEXTS].concat()));
    let config = ModelConfig::read(folder.path(), &[]).unwrap();
    let checkpoint = Opened::from(config.clone()).weights(&(&source).into()).unwrap();
    let parameters = recorded(&source, 1).parameters().unwrap();
    let formats = BTreeMap::from([("layers.*.mlp.down_proj.weight".to_owned(), WeightFormat::Q8)]);
    Quantizer::new(&checkpoint, &parameters, &formats).write(folder.path()).unwrap();
    let opened = tracewright_models::read(folder.path(), &[]).unwrap();
    assert_eq!(opened.stored.formats().len(), 1);
    assert_eq!(opened.kind, config.kind());
    assert_eq!(opened.entry_points(2, 8, 8), Opened::from(config).entry_points(2, 8, 8));
    // The quantized file contains the tensors of all folders.
    let weights = opened.weights(&folder.path().into()).unwrap();
    bake::check(&weights, &parameters, &opened.ignorable).unwrap();
}

/// A network that computes embeddings implements `Architecture`. Its entry point has a name and a
/// size, and an entry point with logits is an error.
#[test]
fn an_architecture_with_one_entry_point() {
    let config = ModelConfig::read(fixture(FIXTURES[0]), &[]).unwrap();
    let model = Opened::from(config.clone());
    let sentence = model.sentence().unwrap();
    assert_eq!((&sentence.weights[..], sentence.max_tokens), (&FOLDERS.map(str::to_owned)[..], 40));
    let trace = model.trace(ElementType::F32, &model.entry_points(2, 8, 8)).unwrap().trace;
    let signature = trace.entry("embed").unwrap().signature();
    assert_eq!(signature.arguments[0].to_string(), "tokens: i32[2,8] (tokens)");
    let error = model.trace(ElementType::F32, &EntryPoint::steps(1, 8, 8)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the entry point `prefill` calls the function `logits`, which the root block does not declare"
    );
}
