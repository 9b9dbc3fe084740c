//! `tracewright quantize`: models with rounded weights, and formats by matrix.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::*;

/// Text such as the demo continues.
const STORY: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. \
    One day, she saw a big dog in the park. The dog was sad because he had lost his ball. Lily wanted to help him. ";

fn kl(model: &str, quant: &[&str], file: &str) -> f64 {
    let words = ["--against", text(&demo()), "--window", "32", "--json"].map(str::to_owned);
    let out = succeed(tracewright(&["quality", model, "-f", file]).args(words).args(quant)).out;
    let measured: Value = serde_json::from_str(&out).unwrap();
    measured["quality"]["mean_kl"].as_f64().unwrap()
}

/// The weights that `quantize` writes are those that `--quant` makes, bit for bit; with a text they are better for such text. Both
/// times the folder is a model.
#[test]
fn a_quantized_model_is_a_model() {
    let folder = folder();
    let [plain, calibrated, text_file, other] =
        ["plain", "calibrated", "text", "other"].map(|name| folder.path().join(name));
    fs::write(&text_file, STORY.repeat(4)).unwrap();
    fs::write(
        &other,
        "Tom and his mother went to the park. They saw a dog and a ball. Tom was very happy. ".repeat(6),
    )
    .unwrap();
    let demo = demo();
    let quantize = |out, more: &[&str]| {
        succeed(tracewright(&["quantize", text(&demo), "-o", text(out), "--quant", "q4"]).args(more)).err
    };
    let said = quantize(&plain, &[]);
    assert!(said.contains("of weights"), "{said}");
    let windows = ["--calibrate", text(&text_file), "--window", "32"];
    quantize(&calibrated, &windows);
    let generate = |model: &str, more: &[&str]| {
        succeed(
            tracewright(&["generate", model, "-p", "Once upon a time", "-n", "12", "--temperature", "0"])
                .args(["--chunk", "16"])
                .args(more),
        )
        .out
    };
    assert_eq!(generate(text(&plain), &[]), generate(text(&demo), &["--quant", "q4"]));
    let other = text(&other);
    let by_itself = kl(text(&demo), &["--quant", "q4"], other);
    assert_eq!(kl(text(&plain), &[], other), by_itself);
    let with_text = kl(text(&calibrated), &[], other);
    assert!(0.0 < with_text && with_text < 0.9 * by_itself, "{with_text} of {by_itself}");
    // The same text gives the same bytes.
    let again = folder.path().join("again");
    quantize(&again, &windows);
    let bytes = |folder: &std::path::Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert!(bytes(&again) == bytes(&calibrated) && bytes(&again) != bytes(&plain));
}

/// With `q4_k` weights that are calibrated on the book's pages, at least 16 of 20 short questions have the same answer as in f32.
/// Only in the long form: without optimizations, the calibration takes many minutes.
#[test]
fn a_calibrated_real_model_answers_short_questions() {
    if !is_long() {
        return;
    }
    let model = smollm2().expect("`cargo xtask setup --model smollm2` installs SmolLM2 for the long form");
    let folder = folder();
    let [pages, calibrated, typed, cache] =
        ["pages", "calibrated", "typed", "cache"].map(|name| folder.path().join(name));
    fs::write(&pages, book()).unwrap();
    let quantize = ["quantize", text(&model), "-o", text(&calibrated), "--calibrate", text(&pages)];
    succeed(tracewright(&quantize).args(["--windows", "16", "--window", "256", "--quant", "q4_k"]));
    let questions = include_str!("../../../tests/oracle/smollm2_questions.txt");
    fs::write(&typed, questions.replace('\n', "\n/reset\n")).unwrap();
    let answers = |model: &Path, more: &[&str]| {
        let mut chat = tracewright(&["chat", text(model), "-n", "24", "--temperature", "0"]);
        chat.args(more).env("TRACEWRIGHT_CACHE", &cache).stdin(fs::File::open(&typed).unwrap());
        let said = succeed(&mut chat).out;
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let exact = answers(&model, &["--quant", "none", "--dtype", "f32"]);
    assert_eq!((exact.len(), &*exact[0]), (20, "The capital of France is Paris."));
    let found = answers(&calibrated, &[]);
    let same = exact.iter().zip(&found).filter(|(exact, found)| exact == found).count();
    assert!(same >= 16, "{same} of 20: {found:?}");
}

/// The pages of the book, one after the other.
fn book() -> String {
    let folders = ["concepts", "guides", "reference", "tutorials"].map(|name| root().join("docs").join(name));
    let mut pages: Vec<_> = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|page| page.unwrap().path())
        .collect();
    pages.sort();
    pages.iter().map(|page| fs::read_to_string(page).unwrap()).collect()
}

/// GGUF stores the rows of query matrices and the weights of norms in other ways than a model folder, into which `quantize` writes.
#[test]
fn a_quantized_gguf_file_is_the_same_model() {
    let folder = folder();
    for name in ["llama", "gemma3"] {
        let (gguf, out) = (fixture("gguf").join(format!("{name}.gguf")), folder.path().join(name));
        succeed(&mut tracewright(&["quantize", text(&gguf), "-o", text(&out), "--quant", "q8"]));
        let generate = |model: &str, more: &[&str]| {
            let words = ["generate", model, "--tokens", "3,1,4,1,5", "-n", "12", "--ignore-eos", "--json"];
            let said = succeed(tracewright(&words).args(["--chunk", "1"]).args(more)).out;
            serde_json::from_str::<Value>(&said).unwrap()["tokens"].clone()
        };
        let expected = generate(text(&gguf), &["--quant", "q8"]);
        assert!(expected.as_array().is_some_and(|tokens| tokens.len() == 12), "{expected}");
        assert_eq!(generate(text(&out), &[]), expected, "{name}");
    }
}

/// A model of sentence-transformers has a configuration for each module, and weights in two more folders.
#[test]
fn a_quantized_embedding_model_computes_embeddings() {
    let folder = folder();
    for name in ["embeddinggemma", "embeddinggemma-saved"] {
        let (model, out) = (fixture(name), folder.path().join(name));
        succeed(&mut tracewright(&["quantize", text(&model), "-o", text(&out), "--quant", "q8"]));
        let embed = |model: &Path, more: &[&str]| {
            let words = ["embed", text(model), "--dtype", "f32", "-p", "a small dog", "--json"];
            let said = succeed(tracewright(&words).args(more)).out;
            serde_json::from_str::<Value>(&said).unwrap()["texts"][0]["embedding"].clone()
        };
        let expected = embed(&model, &["--quant", "q8"]);
        assert_eq!(embed(&out, &[]), expected, "{name}");
        assert_ne!(embed(&model, &[]), expected, "{name}");
        refused(&mut tracewright(&["generate", text(&out), "-p", "a"]), 1, &["error[TW0105]", "embeddings"]);
        let again = ["quantize", text(&model), "-o", text(&out)];
        refused(&mut tracewright(&again), 1, &["exists"]);
    }
    let (model, out) = (fixture("embeddinggemma"), folder.path().join("calibrated"));
    let file = folder.path().join("text");
    fs::write(&file, STORY).unwrap();
    let words = ["quantize", text(&model), "-o", text(&out), "--calibrate", text(&file), "--window", "8"];
    refused(&mut tracewright(&words), 1, &["error[TW0516]", "computes embeddings"]);
}

#[test]
fn what_is_not_quantized() {
    let folder = folder();
    let [out, file] = ["out", "text"].map(|name| folder.path().join(name));
    fs::write(&file, "Once upon").unwrap();
    let demo = demo();
    let refuses = |more: &[&str], code, words: &[&str]| {
        refused(tracewright(&["quantize", text(&demo), "-o", text(&out)]).args(more), code, words);
        assert!(!out.exists());
    };
    refuses(&["--calibrate", text(&file)], 1, &["error[TW1010]: the text has 2 tokens, expected at least"]);
    refuses(&["--calibrate", "nowhere"], 1, &["`nowhere`"]);
    refuses(&["--quant", "none"], 2, &["rounds nothing"]);
    refuses(&["--quant", "q5"], 2, &["expected none, q8, q4, q4_k"]);
    refuses(&["--window", "8"], 2, &["--calibrate"]);
    let gguf = fixture("gguf").join("llama.gguf");
    refuses(&["--imatrix", text(&gguf)], 1, &["error[TW0517]", "`….in_sum2`"]);
    fs::create_dir(&out).unwrap();
    fs::write(out.join("model.safetensors"), "").unwrap();
    let there = &["model.safetensors` exists"];
    refused(&mut tracewright(&["quantize", text(&demo), "-o", text(&out)]), 1, there);
}

#[test]
fn a_map_names_the_formats_of_matrices() {
    let folder = folder();
    let file = folder.path().join("map.json");
    let demo = demo();
    let plan = |map: &str| {
        fs::write(&file, map).unwrap();
        bare(&["plan", text(&demo), "--quant", "q4", "--quant-map", text(&file)])
    };
    let pattern = "model.layers.*.mlp.down_proj.weight";
    let table = succeed(&mut plan(&format!(r#"{{"{pattern}": "q4_k"}}"#))).out;
    assert!(table.contains(&format!("q4_k: {pattern}\n")), "{table}");
    let refuses = |map: &str, words: &[&str]| refused(&mut plan(map), 1, words);
    refuses(r#"{"model.layers.*.mlp.down.weight": "q8"}"#, &["TW0514", "did you mean", pattern]);
    refuses(r#"{"model.norm.weight": "q8"}"#, &["TW0514", "expected a matrix"]);
    refuses(
        &format!(r#"{{"{pattern}": "q5"}}"#),
        &["TW0515", pattern, "`q5`", "none, q8, q4, q4_k or mxfp4"],
    );
    refuses("[]", &["TW0515", "not a JSON object"]);
    refused(&mut bare(&["plan", text(&demo), "--quant-map", text(&file)]), 2, &["--quant"]);
}
