//! Prompts that cannot be continued. All are refused before the compiler is looked for.

use crate::support::*;

/// Refused with nothing on PATH and an empty cache, which stays empty.
#[track_caller]
fn refuses(model: &str, arguments: &[&str], code: i32, words: &[&str]) {
    let cache = folder();
    let mut command = bare(&["generate", model, "--cache", text(cache.path())]);
    refused(command.args(arguments), code, words);
    assert_eq!(listing(cache.path()), []);
}

#[test]
fn m16_a_prompt_that_is_longer_than_the_context() {
    let model = fixture("llama-untied");
    let tokens = |n: u32| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    let too_long = ["the prompt has 41 tokens, expected at most 40, the `--context`", "takes more, up to 64"];
    refuses(text(&model), &["--tokens", &tokens(41), "--context", "40"], 1, &too_long);
    refuses(
        text(&model),
        &["--tokens", &tokens(65)],
        1,
        &["65 tokens, expected at most 64, the model's own limit"],
    );
}

#[test]
fn a_token_id_out_of_range() {
    let model = fixture("llama-untied");
    refuses(
        text(&model),
        &["--tokens", "5,514,515"],
        1,
        &["token 2 of the prompt has the id 515, expected an id below 515"],
    );
    refuses(text(&model), &["--tokens", "4294967295"], 1, &["token 0", "4294967295"]);
}

#[test]
fn text_without_a_tokenizer() {
    let model = fixture("llama-untied");
    for input in [["-p", "Once"], ["--chat", "Hello"], ["-f", "/dev/null"]] {
        refuses(text(&model), &input, 2, &["has no tokenizer.json", "`--tokens`"]);
    }
    refuses(
        text(&model),
        &["--tokens", "5", "--stop", "end"],
        2,
        &["`--stop` needs text", "no tokenizer.json"],
    );
}

#[test]
fn a_prompt_file_that_is_not_there_or_no_text() {
    let (demo, out) = (demo(), folder());
    let file = out.path().join("prompt.txt");
    refuses(text(&demo), &["-f", text(&file)], 1, &["cannot read", "prompt.txt", "No such file"]);
    std::fs::write(&file, [0xff]).unwrap();
    refuses(
        text(&demo),
        &["-f", text(&file)],
        1,
        &["cannot read", "prompt.txt", "invalid utf-8 sequence of 1 bytes from index 0"],
    );
}

#[test]
fn an_empty_prompt_without_a_first_token() {
    // A copy of the demo whose tokenizer puts nothing in front.
    let model = folder();
    for (name, _) in listing(&demo()) {
        std::fs::copy(&name, model.path().join(name.file_name().unwrap())).unwrap();
    }
    let path = model.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = serde_json::Value::Null;
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    refuses(text(model.path()), &["-p", ""], 1, &["the prompt has no tokens"]);
}

#[test]
fn settings_out_of_range() {
    let model = fixture("llama-untied");
    let model = text(&model);
    let cases: &[(&[&str], &str)] = &[
        (&["--temp", "-1"], "temperature"),
        (&["--temp", "1", "--top-p", "1.5"], "top_p"),
        (&["--temp", "1", "--min-p", "2"], "min_p"),
    ];
    for (arguments, word) in cases {
        refuses(model, &[&["--tokens", "5"], *arguments].concat(), 1, &[word, "expected"]);
    }
}

#[test]
fn a_place_for_logits_that_is_not_there() {
    let model = fixture("llama-untied");
    let arguments = ["--tokens", "5", "--save-logits", "nowhere/logits.safetensors"];
    refuses(text(&model), &arguments, 1, &["cannot create `nowhere/logits.safetensors`", "No such file"]);
}
