//! Configurations that are broken. `trace-dump` reads nothing else.

use std::fs;

use serde_json::{Map, Value, json};

use crate::support::*;

/// A config.json with something wrong; the messages have these words and name the file.
#[track_caller]
fn refuses(edit: impl FnOnce(&mut Map<String, Value>), words: &[&str]) -> Ran {
    let model = copied("llama-untied");
    edit_config(model.path(), edit);
    let config = model.path().join("config.json");
    let ran = refused(trace_dump(&[text(&config)]).args(SMALL), 1, words);
    assert!(ran.out.is_empty());
    ran
}

#[test]
fn m19_an_unknown_key_is_refused_with_the_nearest_one_and_may_be_allowed() {
    let misspelled = |c: &mut Map<String, Value>| {
        let value = c.remove("rms_norm_eps").unwrap();
        c.insert("rms_norm_epz".into(), value);
        c.insert("sliding_window".into(), json!(128));
    };
    let words = [
        "config.json`: 2 problem(s)",
        "`rms_norm_epz` is not a known key, the nearest is `rms_norm_eps`",
        "`sliding_window` is not a known key",
        "help: `--allow-config-key sliding_window` ignores this key",
    ];
    refuses(misspelled, &words);
    let model = copied("llama-untied");
    edit_config(model.path(), |c| drop(c.insert("sliding_window".into(), json!(128))));
    succeed(trace_dump(&[text(model.path()), "--allow-config-key", "sliding_window"]).args(SMALL));
}

#[test]
fn m19_missing_keys_and_wrong_values_are_listed_together() {
    let edit = |c: &mut Map<String, Value>| {
        c.remove("vocab_size");
        c.insert("hidden_size".into(), json!("sixty"));
        c.insert("hidden_act".into(), json!("gelu"));
        c.insert("num_hidden_layers".into(), json!(-2));
        c.insert("rope_parameters".into(), json!({ "rope_type": "xpos" }));
    };
    let words = [
        "5 problem(s)",
        "`vocab_size` is missing, expected a positive integer",
        "`hidden_size` is \"sixty\", expected a positive integer",
        "`hidden_act` is \"gelu\", expected one of [\"silu\"]",
        "`num_hidden_layers` is -2, expected a positive integer",
        "`rope_parameters.rope_type` is \"xpos\"",
    ];
    refuses(edit, &words);
}

#[test]
fn m19_heads_that_do_not_divide_name_both_keys_and_both_values() {
    let words = ["num_attention_heads", "num_key_value_heads", "6", "4"];
    refuses(|c| drop(c.insert("num_key_value_heads".into(), json!(4))), &words);
}

#[test]
fn an_unknown_architecture() {
    let other =
        |c: &mut Map<String, Value>| drop(c.insert("architectures".into(), json!(["MambaForCausalLM"])));
    refuses(
        other,
        &["architecture `MambaForCausalLM` is not supported, expected one of", "LlamaForCausalLM"],
    );
}

#[test]
fn a_config_that_is_no_json_or_not_there() {
    let model = copied("llama-untied");
    let config = model.path().join("config.json");
    let good = fs::read_to_string(&config).unwrap();
    for (bad, words) in [
        (good.replacen(':', "=", 1), ["is not a JSON object", "line 2"]),
        (good[..good.len() / 2].to_owned(), ["is not a JSON object", "line"]),
        (String::new(), ["config.json", "it is empty; download the file again"]),
        ("[1, 2]".to_owned(), ["is not a JSON object", "a list"]),
    ] {
        fs::write(&config, bad).unwrap();
        refused(&mut trace_dump(&[text(model.path())]), 1, &words);
    }
    fs::remove_file(&config).unwrap();
    refused(&mut trace_dump(&[text(model.path())]), 1, &["cannot read", "config.json", "No such file"]);
}

#[test]
fn sizes_that_the_model_does_not_allow() {
    let model = fixture("llama-untied");
    let model = text(&model);
    let cases: &[(&[&str], &str, &str)] = &[
        (
            &["--context", "100"],
            "the option `context` is 100, expected 1 to 64 tokens, the longest context that the model supports",
            "`--context N`",
        ),
        (&["--context", "0"], "`context` is 0", "`--context N`"),
        (
            &["--context", "40", "--chunk", "41"],
            "the option `chunk` is 41, expected 1 to 40 tokens, the length of the context",
            "`--chunk N`",
        ),
        (&["--dtype", "i8"], "the option `element` is i8, expected f32, f16 or bf16", "`--dtype TYPE`"),
    ];
    for (arguments, word, help) in cases {
        refused(trace_dump(&[model]).args(*arguments), 1, &[word, help]);
    }
}

/// Sizes that no network has are rejected before anything is built from them.
#[test]
fn sizes_that_no_network_has() {
    for (key, value, word) in [
        ("head_dim", json!(100_000_000), "head_dim"),
        ("head_dim", json!(4104), "head_dim"),
        ("num_hidden_layers", json!(1_000_000), "num_hidden_layers"),
        ("vocab_size", json!(1_000_000_000_000_u64), "vocab_size"),
        ("hidden_size", json!(4_000_000_000_u64), "hidden_size"),
        ("num_attention_heads", json!(100_000_000), "num_attention_heads"),
        ("max_position_embeddings", json!(4_000_000_000_u64), "max_position_embeddings"),
    ] {
        let start = std::time::Instant::now();
        let edit = |c: &mut Map<String, Value>| drop(c.insert(key.into(), value.clone()));
        refuses(edit, &[&format!("`{word}` is {value}, expected a positive integer, at most")]);
        assert!(start.elapsed().as_secs() < 5, "{key}");
    }
    let gpt2 = copied("gpt2");
    edit_config(gpt2.path(), |c| drop(c.insert("n_layer".into(), json!(1_000_000))));
    let words = ["`n_layer` is 1000000, expected a positive integer, at most"];
    refused(&mut trace_dump(&[text(&gpt2.path().join("config.json"))]), 1, &words);
    // A number takes more memory than its two bytes.
    let config = gpt2.path().join("config.json");
    fs::write(&config, format!("{{\"x\": [0{}]}}", ",0".repeat(1 << 20))).unwrap();
    refused(
        &mut trace_dump(&[text(&config)]),
        1,
        &["config.json", "bytes of memory, expected at most 33554432"],
    );
    // The features of a head are no more where they follow from others.
    let wide = |c: &mut Map<String, Value>| {
        c.remove("head_dim");
        c.insert("hidden_size".into(), json!(6 << 20));
    };
    refuses(
        wide,
        &["`hidden_size / num_attention_heads` is 1048576, expected at most 4096 features of a head"],
    );
    // A value is shown as far as one reads it.
    let long = |c: &mut Map<String, Value>| drop(c.insert("head_dim".into(), json!(vec![1; 100_000])));
    let ran = refuses(long, &["`head_dim` is [1,1,1,1,", "…, expected a positive integer"]);
    assert!(ran.err.len() < 2000, "{} bytes", ran.err.len());
}

/// Many layers beside the weights of few: said at once, and nothing is written.
#[test]
fn layers_that_the_checkpoint_does_not_have() {
    let model = copied("llama-untied");
    edit_config(model.path(), |c| drop(c.insert("num_hidden_layers".into(), json!(4096))));
    let (path, out) = (text(model.path()), model.path().join("out"));
    let before = listing(model.path());
    for command in [
        &["bake", path, "-o", text(&out)][..],
        #[cfg(feature = "iree")]
        &["export", path, "-o", text(&out)],
        #[cfg(feature = "iree")]
        &["generate", path, "--tokens", "5,17"],
        #[cfg(feature = "iree")]
        &["bench", "decode", path],
        #[cfg(feature = "iree")]
        &["tune", path],
        &["plan", path],
    ] {
        let start = std::time::Instant::now();
        let words = [
            "error[TW0211]: ",
            "`num_hidden_layers` is 4096, but the checkpoint has 2 (`model.layers.0` to ",
        ];
        refused(&mut tracewright(command), 1, &words);
        // Under a second where nobody else computes; recording them all took nine.
        assert!(start.elapsed().as_secs() < 5, "{command:?}: {:?}", start.elapsed());
    }
    assert_eq!(listing(model.path()), before);
}

#[test]
fn a_thousand_problems_are_listed_as_fifty() {
    let many = |c: &mut Map<String, Value>| {
        (0..1000).for_each(|i| drop(c.insert(format!("key\u{1b}[31m{i}"), json!(i))))
    };
    let ran = refuses(many, &["1000 problem(s)", "and 950 more", "`key\\u{1b}[31m7` is not a known key"]);
    assert!(ran.err.lines().count() < 120, "{}", ran.err);
    assert!(!ran.err.contains('\u{1b}'), "the terminal obeys nobody's file");
}
