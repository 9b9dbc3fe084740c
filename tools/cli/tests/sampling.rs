//! Answers that follow a schema or a grammar, penalties, and what was likely.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tracewright::generate::{Finish, Sampling};

use crate::schemas::{Exported, SIZES};
use crate::support::*;

/// The demo, continuing the begin of a story.
fn story(arguments: &[&str]) -> Command {
    let mut command =
        tracewright(&["generate", text(&demo()), "--dtype", "f32", "--context", "512", "--chunk", "1"]);
    command.args(["-p", "Once upon a time", "--json"]).args(arguments);
    command
}

#[track_caller]
fn object(command: &mut Command) -> Value {
    serde_json::from_str(&succeed(command).out).unwrap()
}

fn written(folder: &TempDir, name: &str, words: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, words).unwrap();
    path
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "animal": {"type": "string", "minLength": 1, "maxLength": 20},
            "brave": {"type": "boolean"},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "colours": {"type": "array", "items": {"enum": ["red", "blue", "green"]}, "minItems": 1, "maxItems": 2},
        },
        "required": ["animal", "brave", "age", "colours"],
        "additionalProperties": false,
    })
}

/// An answer to a schema, from the directory `model`.
fn animal(model: &str, file: &str, more: &[&str]) -> Value {
    let mut command = tracewright(&["generate", model, "-p", "A fox.", "-n", "200", "--json"]);
    let answer = object(command.args(["--json-schema", file]).args(more));
    assert_eq!(answer["finish"], "stop", "{answer}");
    let value: Value = serde_json::from_str(answer["text"].as_str().unwrap()).unwrap();
    assert!(jsonschema::validator_for(&schema()).unwrap().is_valid(&value), "{value}");
    value
}

#[test]
fn an_answer_is_valid_by_its_schema_from_a_model_and_from_an_export() {
    let folder = folder();
    let file = written(&folder, "schema.json", &schema().to_string());
    let (model, sizes) = (demo(), SIZES);
    let greedy = animal(text(&model), text(&file), &sizes);
    let warm = ["--temp", "1.5", "--seed", "7"];
    let drawn = animal(text(&model), text(&file), &[&warm[..], &sizes].concat());
    let out = folder.path().join("export");
    succeed(tracewright(&["export", text(&model), "-o", text(&out)]).args(sizes));
    assert_eq!(animal(text(&out), text(&file), &[]), greedy);
    assert_eq!(animal(text(&out), text(&file), &warm), drawn);
    always_valid(&out, &schema());
}

/// Whatever the shipped model says, cold or hot: its answers parse and are valid.
fn always_valid(export: &Path, schema: &Value) {
    let exported = Exported::open(export);
    let constraint = exported.constrainer().json_schema(&schema.to_string()).unwrap();
    let judge = jsonschema::validator_for(schema).unwrap();
    let mut said = BTreeSet::new();
    for seed in 0..60 {
        let prompt = ["Once", "The fox is", "{", "\n"][seed as usize % 4];
        let temperature = [0.3, 1.0, 4.0][seed as usize % 3];
        let sampling = Sampling { temperature, seed, ..Sampling::default() };
        let (answer, finish) = exported.answer(prompt, 300, sampling, constraint.clone());
        assert_eq!(finish, Finish::Stop, "{answer}");
        let value: Value = serde_json::from_str(&answer).unwrap();
        assert!(judge.is_valid(&value), "{seed}: {answer}");
        said.insert(answer);
    }
    assert!(said.len() > 40, "{said:?}");
}

#[test]
fn a_grammar_that_forces_one_text_gives_it() {
    let folder = folder();
    let file = written(
        &folder,
        "grammar.lark",
        "start: \"The \" animal \" said: \" WORD\nanimal: \"fox\"\nWORD: \"é!\"\n",
    );
    let answer = object(&mut story(&["--grammar", text(&file)]));
    assert_eq!((&answer["text"], &answer["finish"]), (&json!("The fox said: é!"), &json!("stop")));
    // One that is longer than allowed is said to be cut.
    let mut cut =
        tracewright(&["generate", text(&demo()), "--dtype", "f32", "--context", "512", "--chunk", "1"]);
    let ran = succeed(cut.args(["-p", "A fox.", "-n", "2", "--grammar", text(&file)]));
    assert!(
        ran.err.contains("the answer is not complete: `-n N` allows more than its 2 tokens"),
        "{}",
        ran.err
    );
}

#[test]
fn what_no_answer_can_follow_is_refused() {
    let folder = folder();
    let bad = written(&folder, "bad.json", "{\n  \"type\": }");
    let bad = text(&bad);
    refused(&mut story(&["--json-schema", bad]), 1, &[bad, "not valid JSON", "line 2 column 11"]);
    let odd = written(&folder, "odd.json", "{\"type\": \"animal\"}");
    refused(
        &mut story(&["--json-schema", text(&odd)]),
        1,
        &[text(&odd), "cannot write an answer that follows", "animal"],
    );
    let grammar = written(&folder, "grammar.lark", "start: \"a\"\nrest: )\n");
    refused(&mut story(&["--grammar", text(&grammar)]), 1, &[text(&grammar), "line 2, column 7"]);
    let missing = folder.path().join("missing.json");
    refused(&mut story(&["--json-schema", text(&missing)]), 1, &[text(&missing)]);
    let model = fixture("llama-untied");
    let mut plain = tracewright(&["generate", text(&model), "--tokens", "5", "--grammar", text(&grammar)]);
    refused(&mut plain, 2, &["--grammar", "no tokenizer.json"]);
    for two in [["--json-schema", "--grammar"], ["--ignore-eos", "--grammar"]] {
        let arguments: Vec<&str> = two
            .iter()
            .flat_map(|flag| if *flag == "--ignore-eos" { vec![*flag] } else { vec![*flag, bad] })
            .collect();
        refused(&mut story(&arguments), 2, &two);
    }
}

#[test]
fn settings_are_those_of_llama_cpp_and_checked() {
    let tokens = |more: &[&str]| object(story(&["-n", "40", "--ignore-eos"]).args(more))["tokens"].clone();
    let greedy = tokens(&[]);
    let repeats = |tokens: &Value| {
        let list = tokens.as_array().unwrap();
        (1..list.len()).any(|i| list[..i].contains(&list[i]))
    };
    assert!(repeats(&greedy));
    let never = ["--presence-penalty", "1000", "--repeat-last-n", "-1"];
    assert!(!repeats(&tokens(&never)), "no token comes twice");
    assert_eq!(tokens(&["--presence-penalty", "1000", "--repeat-last-n", "0"]), greedy);
    assert_eq!(tokens(&["--presence-penalty", "1000", "--samplers", "top_k;temperature"]), greedy);
    assert_eq!(
        tokens(&["--dry-multiplier", "0", "--mirostat", "2"]),
        greedy,
        "of one token nothing is left out"
    );
    // With breakers nowhere, each token that ends a repetition of one is out.
    let dry = ["--dry-multiplier", "1000", "--dry-allowed-length", "1", "--dry-sequence-breaker", "none"];
    let dry = tokens(&dry);
    let pairs: Vec<_> = dry.as_array().unwrap().windows(2).map(|pair| (&pair[0], &pair[1])).collect();
    assert!((1..pairs.len()).all(|i| !pairs[..i].contains(&pairs[i])), "a pair comes twice: {dry}");
    let warm = ["--temp", "1", "--seed", "3"];
    for aimed in [["--mirostat", "1"], ["--mirostat", "2"]] {
        let aimed = [&warm[..], &aimed, &["--mirostat-ent", "1.5"]].concat();
        assert_eq!(tokens(&aimed), tokens(&aimed));
        assert_ne!(tokens(&aimed), tokens(&warm));
    }
    for (flag, value, words) in [
        ("--repeat-penalty", "0", "repeat_penalty"),
        ("--typical", "1.5", "typical_p"),
        ("--xtc-probability", "-1", "xtc_probability"),
        ("--dry-multiplier", "-0.5", "dry_multiplier"),
        ("--temp", "-1", "temperature"),
    ] {
        refused(&mut story(&[flag, value]), 1, &[words, flag, value, "expected"]);
    }
    // A flag that does nothing beside the others is named.
    let idle =
        succeed(&mut story(&["-n", "2", "--top-k", "40", "--seed", "3", "--dry-sequence-breaker", "none"]))
            .err;
    for (flag, other) in
        [("--top-k", "--temp"), ("--seed", "--temp"), ("--dry-sequence-breaker", "--dry-multiplier")]
    {
        assert!(idle.contains(&format!("`{flag}` does nothing without `{other}`")), "{idle}");
    }
    let busy = succeed(&mut story(&["-n", "2", "--top-k", "40", "--seed", "3", "--temp", "1"])).err;
    assert!(!busy.contains("does nothing"), "{busy}");
    refused(&mut story(&["--mirostat", "3"]), 2, &["--mirostat"]);
    refused(&mut story(&["--samplers", "top_k;best"]), 2, &["best"]);
}

#[test]
fn logprobs_are_those_of_the_saved_logits() {
    let folder = folder();
    let file = folder.path().join("logits.safetensors");
    let answer = object(&mut story(&[
        "-n",
        "5",
        "--ignore-eos",
        "--logprobs",
        "3",
        "--temp",
        "2",
        "--seed",
        "4",
        "--save-logits",
        text(&file),
    ]));
    let logits = floats(&tensors(&file), "logits");
    let vocabulary = logits.len() / 5;
    let content = answer["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 5);
    for (row, (one, token)) in
        logits.chunks(vocabulary).zip(content.iter().zip(answer["tokens"].as_array().unwrap()))
    {
        assert_eq!(&one["id"], token);
        let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        let near = |one: &Value| {
            let expected = f64::from(row[one["id"].as_u64().unwrap() as usize]) - sum.ln();
            assert!((one["logprob"].as_f64().unwrap() - expected).abs() < 1e-5, "{one}: {expected}");
        };
        near(one);
        let top = one["top_logprobs"].as_array().unwrap();
        top.iter().for_each(near);
        let mut order: Vec<usize> = (0..vocabulary).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let ids: Vec<_> = top.iter().map(|one| one["id"].as_u64().unwrap() as usize).collect();
        assert_eq!(ids, order[..3]);
        let bytes: Vec<u8> = serde_json::from_value(one["bytes"].clone()).unwrap();
        assert_eq!(one["token"], String::from_utf8_lossy(&bytes).as_ref());
    }
    let said: String = content.iter().map(|one| one["token"].as_str().unwrap()).collect();
    assert_eq!(answer["text"], said);
    let mut plain = tracewright(&["generate", text(&demo()), "-p", "A", "--logprobs", "3"]);
    refused(&mut plain, 2, &["--json"]);
}

/// A model's `generation_config.json` sets options, flags override single options, and a key that is not applied is named.
#[test]
fn the_model_sets_options() {
    let model = copied_demo();
    let answer = |file: Value, more: &[&str]| {
        fs::write(model.path().join("generation_config.json"), file.to_string()).unwrap();
        let mut command = tracewright(&["generate", text(model.path()), "-p", "Once upon a time", "--json"]);
        let ran = succeed(command.args(["--dtype", "f32", "--context", "512", "--chunk", "1"]).args(more));
        let object: Value = serde_json::from_str(&ran.out).unwrap();
        (object["tokens"].as_array().unwrap().clone(), ran.err)
    };
    let ends = json!([1, 4]);
    let (plain, said) = answer(json!({"eos_token_id": ends, "transformers_version": "5"}), &["-n", "12"]);
    assert!(plain.len() == 12 && !said.contains("warning"), "{said}");
    let rules = json!({
        "eos_token_id": ends, "suppress_tokens": [plain[0], plain[3]], "max_new_tokens": 9, "num_beams": 4,
    });
    let (found, said) = answer(rules.clone(), &[]);
    assert!(found.len() == 9 && !found.contains(&plain[0]) && !found.contains(&plain[3]), "{found:?}");
    let warning = "warning: `num_beams` in `generation_config.json` is `4`, which has no effect here";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    let second = plain[1].to_string();
    let (found, _) = answer(rules.clone(), &["-n", "1", "--suppress-tokens", &second]);
    assert_eq!(found, plain[..1]);
    let (found, _) = answer(rules, &["-n", "12", "--ignore-generation-config"]);
    assert_eq!(found, plain);
    // A penalty below 1 repeats tokens in greedy decoding, and an end of the text comes only after enough tokens.
    let (found, _) = answer(json!({"eos_token_id": ends, "repetition_penalty": 0.01}), &["-n", "12"]);
    assert_ne!(found, plain);
    let stops = json!({"eos_token_id": plain[2], "min_new_tokens": 8, "max_new_tokens": 10});
    assert!(answer(stops.clone(), &[]).0.len() >= 8);
    assert_eq!(answer(stops, &["--min-new-tokens", "0"]).0, plain[..2]);
    // Sampling with the seed 0 draws the same tokens as the flags do.
    let sampled = json!({"eos_token_id": ends, "do_sample": true, "temperature": 1.5, "top_k": 9});
    let order = "temperature;top_k";
    let flags = ["-n", "12", "--temp", "1.5", "--top-k", "9", "--samplers", order];
    assert_eq!(answer(sampled.clone(), &["-n", "12"]).0, answer(json!({"eos_token_id": ends}), &flags).0);
    assert_eq!(answer(sampled, &["-n", "12", "--temp", "0"]).0, plain);
}

/// The types of the Python package list the settings of the sampler.
#[test]
fn python_types_list_the_settings() {
    let file = root().join("tools/python/tracewright/options.py");
    let whole = fs::read_to_string(&file).unwrap();
    let (before, _) = whole.split_once("which `cargo xtask bless` lists.\n").unwrap();
    let kind = |is_whole| if is_whole { "int" } else { "float" };
    let names = Sampling::settings().flat_map(|setting| {
        let names = std::iter::once(&setting.name).chain(setting.aliases);
        names.map(|name| format!("    {name}: {} | None\n", kind(setting.range.is_whole)))
    });
    let expected = format!("{before}which `cargo xtask bless` lists.\n{}", names.collect::<String>());
    expect_test::expect_file![file].assert_eq(&expected);
}
