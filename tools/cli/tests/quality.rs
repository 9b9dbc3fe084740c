//! A format compared with f32 on a text.

use std::fs;

use serde_json::Value;

use crate::support::*;

#[test]
fn eight_bits_cost_less_than_four_and_none_cost_nothing() {
    let folder = folder();
    let file = folder.path().join("text");
    fs::write(&file, "Once upon a time, there was a little girl who loved to play in the park. ".repeat(8))
        .unwrap();
    let measure = |quant: &str, dtype: &str| {
        let words = ["--window", "32", "--windows", "2", "--quant", quant, "--dtype", dtype, "--json"];
        let out = succeed(tracewright(&["quality", text(&demo()), "-f", text(&file)]).args(words)).out;
        let measured: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(measured["quality"]["positions"], 2 * 15, "{out}");
        let number = |key: &str| measured["quality"][key].as_f64().unwrap();
        assert!(number("median_kl") <= number("kl_99") && number("kl_99") <= number("max_kl"), "{out}");
        (number("mean_kl"), number("same_token"), measured["bytes"].as_u64().unwrap())
    };
    assert_eq!((measure("none", "f32").0, measure("none", "f32").1), (0.0, 1.0));
    let (eight, four) = (measure("q8", "f32"), measure("q4", "f32"));
    assert!(0.0 < eight.0 && eight.0 < four.0 && four.0 < 2.0, "{eight:?} {four:?}");
    assert!(eight.2 > four.2, "{eight:?} {four:?}");
}

/// With `--layers` each matrix is rounded by itself: none costs more than a little over all together.
#[test]
fn each_matrix_is_measured() {
    let folder = folder();
    let file = folder.path().join("text");
    fs::write(&file, "Once upon a time, there was a little girl who loved to play in the park. ".repeat(4))
        .unwrap();
    let words =
        ["--window", "32", "--windows", "1", "--quant", "q4:pure", "--dtype", "f32", "--layers", "--json"];
    let out = succeed(tracewright(&["quality", text(&demo()), "-f", text(&file)]).args(words)).out;
    let measured: Value = serde_json::from_str(&out).unwrap();
    let layers = measured["layers"].as_array().unwrap();
    let kl = |of: &Value| of["quality"]["mean_kl"].as_f64().unwrap();
    assert_eq!(layers.len(), 8, "{out}");
    assert!(layers.iter().all(|layer| layer["format"] == "q4" && kl(layer) > 0.0), "{out}");
    assert!(layers.iter().all(|layer| kl(layer) < 1.5 * kl(&measured)), "{out}");
    let down = layers.iter().find(|layer| layer["pattern"] == "model.layers.*.mlp.down_proj.weight");
    assert!(down.is_some(), "{out}");
}

#[test]
fn what_cannot_be_compared() {
    let folder = folder();
    let file = folder.path().join("text");
    fs::write(&file, "Once upon").unwrap();
    let demo = demo();
    let refuses = |more: &[&str], code: i32, words: &[&str]| {
        refused(tracewright(&["quality", text(&demo), "-f", text(&file)]).args(more), code, words);
    };
    refuses(
        &["--window", "32"],
        1,
        &["error[TW1010]: the text has 2 tokens, expected at least the 32 tokens of one window"],
    );
    refuses(&["--against", "nowhere"], 1, &["`nowhere`"]);
    refuses(&["--window", "2"], 2, &["--window"]);
}
