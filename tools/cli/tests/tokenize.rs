//! Tokens of texts. No compiler is looked for.

use std::fs;

use serde_json::Value;

use crate::support::*;

#[test]
fn tokens_and_what_they_stand_for() {
    let demo = demo();
    let shown = succeed(&mut bare(&["tokenize", text(&demo), "Once upon", "é"])).out;
    let lines: Vec<&str> = shown.lines().collect();
    let begin = r#"      0  "<|begin_of_text|>""#;
    assert_eq!(
        lines,
        [
            begin,
            r#"    456  "Once""#,
            r#"    570  " upon""#,
            "",
            begin,
            r#"    132  "\xc3""#,
            r#"    107  "\xa9""#
        ]
    );
    let json = succeed(&mut bare(&["tokenize", text(&demo), "Once", "--plain", "--json"])).out;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["texts"][0]["tokens"],
        serde_json::json!([{ "id": 456, "piece": "Once", "bytes": b"Once" }])
    );
}

#[test]
fn a_gguf_file_and_a_file_of_text() {
    let folder = folder();
    let file = folder.path().join("text");
    fs::write(&file, "ab").unwrap();
    let model = fixture("gguf/tokens-spm.gguf");
    for texts in [["ab"].as_slice(), &["-f", text(&file)]] {
        let json = succeed(bare(&["tokenize", text(&model), "--json"]).args(texts)).out;
        let json: Value = serde_json::from_str(&json).unwrap();
        let tokens = json["texts"][0]["tokens"].as_array().unwrap();
        let ids: Vec<&Value> = tokens.iter().map(|token| &token["id"]).collect();
        assert_eq!(ids, [1, 488, 2]);
    }
}

#[test]
fn what_has_no_tokenizer_or_no_text_is_refused() {
    let (demo, bare_model) = (demo(), fixture("llama-untied"));
    refused(&mut bare(&["tokenize", text(&bare_model), "a"]), 2, &["has no tokenizer.json"]);
    refused(&mut bare(&["tokenize", text(&demo)]), 2, &["<TEXT>"]);
    refused(&mut bare(&["tokenize", text(&demo), "a", "-f", "b"]), 2, &["cannot be used with"]);
    refused(&mut bare(&["tokenize", text(&demo), "-f", "nowhere"]), 1, &["nowhere"]);
    refused(&mut bare(&["tokenize", "nowhere", "a"]), 1, &["nowhere"]);
}
