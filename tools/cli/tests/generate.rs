//! `tracewright generate` from a model directory.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::support::*;

/// The demo in the element type of its goldens, at sizes that all these tests share.
fn story(arguments: &[&str]) -> Command {
    let mut command =
        tracewright(&["generate", text(&demo()), "--dtype", "f32", "--context", "512", "--chunk", "1"]);
    command.args(arguments);
    command
}

#[track_caller]
fn json(command: &mut Command) -> Value {
    let ran = succeed(command.arg("--json"));
    assert_eq!(ran.out.matches('\n').count(), 1, "one line: {}", ran.out);
    serde_json::from_str(&ran.out).unwrap()
}

fn golden(path: &str) -> Vec<Value> {
    let file = root().join("tests/fixtures").join(path);
    let golden: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    golden["prompts"].as_array().unwrap().clone()
}

fn list(value: &Value) -> String {
    value.as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

/// The checkpoint has keys without `model.` and a head of its own: `generate` reads it as `bake` does, and warns once.
#[test]
fn a_base_model_with_a_head_of_its_own_equals_the_golden() {
    let model = copied("llama-untied");
    edit_tensors(model.path(), |t| {
        let renamed =
            |(key, tensor): (String, _)| (key.strip_prefix("model.").unwrap_or(&key).to_owned(), tensor);
        *t = std::mem::take(t).into_iter().map(renamed).collect();
    });
    edit_config(model.path(), |config| {
        config.insert("architectures".into(), json!(["LlamaModel"]));
        config.insert("tie_word_embeddings".into(), json!(true));
    });
    let golden = &golden("llama-untied/golden.json")[0];
    let tokens = list(&golden["prompt_tokens"]);
    let mut command = tracewright(&["generate", text(model.path()), "--tokens", &tokens, "--json"]);
    let ran = succeed(command.args(SMALL).args(["-n", "8", "--ignore-eos"]));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["tokens"], golden["tokens"]);
    assert_eq!(ran.err.matches("warning: `lm_head.weight` differs").count(), 1, "{}", ran.err);
}

/// M20, with the object that the manual promises, from a directory without a tokenizer.
#[test]
fn m20_json_from_token_ids_equals_the_golden() {
    let model = fixture("llama-untied");
    let golden = &golden("llama-untied/golden.json")[0];
    let mut command = tracewright(&["generate", text(&model), "--tokens", &list(&golden["prompt_tokens"])]);
    let object = json(command.args(SMALL).args(["-n", "8", "--ignore-eos"]));
    let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["prompt_tokens", "tokens", "text", "finish", "timings", "transfers", "peak_rss_bytes"]);
    assert_eq!((&object["prompt_tokens"], &object["tokens"]), (&golden["prompt_tokens"], &golden["tokens"]));
    assert_eq!((&object["text"], &object["finish"]), (&Value::Null, &json!("length")));
    let timings = object["timings"].as_object().unwrap();
    let names = [
        "load_ms",
        "compile_ms",
        "prefill_ms",
        "first_token_ms",
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "prefill_tokens",
        "decode_steps",
        "drafted_tokens",
        "accepted_tokens",
    ];
    assert_eq!(timings.keys().collect::<Vec<_>>(), names);
    assert!(timings["first_token_ms"].as_f64() >= timings["prefill_ms"].as_f64(), "{timings:?}");
    let counts =
        ["decode_steps", "drafted_tokens", "accepted_tokens"].map(|name| timings[name].as_u64().unwrap());
    assert_eq!(counts, [7, 0, 0]);
    let times = timings.iter().filter(|(name, _)| name.contains("_ms") || name.contains("per_s"));
    assert!(times.clone().all(|(_, time)| time.as_f64().unwrap() > 0.0), "{timings:?}");
    assert!(object["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    // Without --json the ids themselves are the text.
    let shown = succeed(&mut command_without_json(&command)).out;
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>().join(","), list(&golden["tokens"]));
}

fn command_without_json(command: &Command) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args().filter(|a| *a != "--json")).env_clear();
    again.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    again
}

#[test]
fn logits_are_saved_row_by_row() {
    let (model, out) = (fixture("llama-untied"), folder());
    let golden = &golden("llama-untied/golden.json")[1];
    let file = out.path().join("logits.safetensors");
    let saving = |more: &[&str]| {
        let mut command =
            tracewright(&["generate", text(&model), "--tokens", &list(&golden["prompt_tokens"])]);
        command.args(SMALL).args(["-n", "8", "--ignore-eos", "--save-logits", text(&file)]);
        json(command.args(more))["tokens"].clone()
    };
    assert_eq!(saving(&[]), golden["tokens"]);
    assert_eq!(tensors(&file).keys().collect::<Vec<_>>(), ["logits"]);
    assert_eq!(saving(&["--all-positions"]), golden["tokens"]);
    let saved = tensors(&file);
    let shapes: Vec<_> =
        saved.iter().map(|(name, (dtype, shape, _))| (name.as_str(), *dtype, shape.clone())).collect();
    let f32 = safetensors::Dtype::F32;
    assert_eq!(shapes, [("logits", f32, vec![8, 515]), ("prompt_logits", f32, vec![8, 515])]);
    let logits = floats(&saved, "logits");
    let chosen: Vec<usize> =
        logits.chunks(515).map(|row| (0..515).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()).collect();
    assert_eq!(json!(chosen), golden["tokens"], "row i chose token i");
    let last = &floats(&saved, "prompt_logits")[7 * 515..];
    let difference = last.iter().zip(&logits[..515]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference < 1e-5, "the last row of the prompt is the first of the answer: {difference}");
    assert_eq!(listing(out.path()).len(), 1, "nothing else is left");
}

/// M20: a raw prompt, from the command line and from a file, streamed and as JSON.
#[test]
fn m20_a_raw_prompt_streams_the_text_of_the_golden() {
    let golden =
        golden("demo.json").into_iter().find(|p| p["prompt"].as_str().is_some_and(|p| p.len() > 20)).unwrap();
    let prompt = golden["prompt"].as_str().unwrap();
    let object = json(&mut story(&["-p", prompt, "-n", "48", "--ignore-eos"]));
    assert_eq!((&object["prompt_tokens"], &object["tokens"]), (&golden["prompt_tokens"], &golden["tokens"]));
    assert_eq!(object["text"], golden["text"]);
    let ran = succeed(&mut story(&["-p", prompt, "-n", "48", "--ignore-eos"]));
    assert_eq!(ran.out, format!("{}\n", golden["text"].as_str().unwrap()));
    assert!(ran.err.contains("48 new tokens at"), "{}", ran.err);
    let out = folder();
    let file = out.path().join("prompt.txt");
    fs::write(&file, prompt).unwrap();
    let again = json(&mut story(&["-f", text(&file), "-n", "48", "--ignore-eos", "--threads", "1"]));
    assert_eq!(again["tokens"], golden["tokens"]);
}

/// M24: the chat template, which ends the answer with a stop token.
#[test]
fn m24_a_chat_goes_through_the_template() {
    let question = "Tell me a story about a brave owl.";
    let chat = json(&mut story(&["--chat", question, "-n", "200"]));
    let ids: Vec<u64> = serde_json::from_value(chat["prompt_tokens"].clone()).unwrap();
    // <|begin_of_text|><|start_header_id|>user<|end_header_id|> … <|eot_id|>
    // <|start_header_id|>assistant<|end_header_id|>: the special tokens of a chat are ids 0 and 2 to 4.
    let special: Vec<u64> = ids.iter().copied().filter(|&id| id < 5).collect();
    assert_eq!(special, [0, 2, 3, 4, 2, 3]);
    assert_eq!(chat["finish"], "stop");
    let answer = chat["text"].as_str().unwrap();
    assert!(answer.contains("owl") && !answer.contains("<|"), "{answer}");
    let system = json(&mut story(&["--chat", question, "--system", "Be short.", "-n", "4"]));
    let ids: Vec<u64> = serde_json::from_value(system["prompt_tokens"].clone()).unwrap();
    assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 3, "{ids:?}");
    let model = fixture("llama-untied");
    refused(&mut tracewright(&["generate", text(&model), "--chat", question]), 2, &["no tokenizer.json"]);
}

#[test]
fn an_answer_ends_at_a_stop_token_a_stop_text_or_a_full_context() {
    let golden = &golden("demo.json")[0];
    let whole = json(&mut story(&["-p", "", "-n", "48", "--ignore-eos"]));
    assert_eq!((&whole["tokens"], &whole["finish"]), (&golden["tokens"], &json!("length")));
    let tokens = golden["tokens"].as_array().unwrap();
    let end = tokens.iter().position(|t| t == 1 || t == 4).unwrap();
    let ended = json(&mut story(&["-p", "", "-n", "48"]));
    assert_eq!(
        (ended["tokens"].as_array().unwrap(), &ended["finish"]),
        (&tokens[..end].to_vec(), &json!("stop"))
    );
    let text = golden["text"].as_str().unwrap();
    let stop = &text[text.len() / 2..text.len() / 2 + 5];
    let stopped =
        json(&mut story(&["-p", "", "-n", "48", "--ignore-eos", "--stop", "never there", "--stop", stop]));
    let before = &text[..text.find(stop).unwrap()];
    assert_eq!((stopped["text"].as_str(), &stopped["finish"]), (Some(before), &json!("stop")));
    let streamed = succeed(&mut story(&["-p", "", "-n", "48", "--ignore-eos", "--stop", stop]));
    assert_eq!(streamed.out, format!("{before}\n"));
    let model = fixture("llama-untied");
    let full = json(
        tracewright(&["generate", crate::support::text(&model), "--tokens", "5,6,7"])
            .args(SMALL)
            .arg("--ignore-eos"),
    );
    // The last token is chosen from a full context, and has no place in it.
    assert_eq!((full["tokens"].as_array().unwrap().len(), &full["finish"]), (38, &json!("context")));
}

/// A token that the network does not have ends nothing, which is said; and what is no object says nothing.
#[test]
fn tokens_that_cannot_end_an_answer() {
    let model = copied("llama-untied");
    let file = model.path().join("generation_config.json");
    let mut generate =
        tracewright(&["generate", crate::support::text(model.path()), "--tokens", "5,6,7", "-n", "2"]);
    generate.args(SMALL);
    fs::write(&file, r#"{"eos_token_id": [0, 515]}"#).unwrap();
    let said = succeed(&mut generate).err;
    let words = "no answer can end at token 515 of `eos_token_id`: the network has 515 tokens";
    assert!(said.contains(words) && !said.contains("at token 0"), "{said}");
    fs::write(&file, "[1]").unwrap();
    refused(&mut generate, 1, &["generation_config.json", "expected an object"]);
}

/// M21: sampling, and the seed that repeats it.
#[test]
fn m21_the_same_seed_draws_the_same_text() {
    let draw = |more: &[&str]| {
        let object = json(story(&["-p", "Once upon a time", "-n", "32", "--ignore-eos"]).args(more));
        object["tokens"].clone()
    };
    let greedy = draw(&[]);
    let warm = |seed: &str| draw(&["--temp", "1.2", "--seed", seed]);
    let first = warm("1");
    assert_eq!(first, warm("1"));
    assert_ne!(first, warm("2"));
    assert_ne!(first, greedy);
    assert_eq!(draw(&["--temp", "1", "--top-k", "1"]), greedy);
    assert_eq!(draw(&["--temp", "1", "--min-p", "1"]), greedy);
    assert_eq!(draw(&["--temp", "1", "--top-p", "0.000001"]), greedy);
    assert_eq!(
        draw(&["--temp", "1.2", "--seed", "1", "--top-k", "0", "--top-p", "1", "--min-p", "0"]),
        first
    );
}

/// M13, M14: keys and values stay on the device. A greedy step takes a token and returns eight bytes, which
/// are the next token and its logit. Other steps read their logits.
#[test]
fn m13_m14_a_step_moves_a_token_or_the_logits() {
    let model = fixture("llama-untied");
    let moved = |more: &[&str]| {
        let mut command =
            tracewright(&["generate", text(&model), "--tokens", "5", "-n", "8", "--ignore-eos"]);
        let transfers = json(command.args(SMALL).args(more))["transfers"].clone();
        ["host_to_device_bytes", "device_to_host_bytes"].map(|name| transfers[name].as_u64().unwrap())
    };
    assert_eq!(moved(&[]), [8 * 4, 8 * (4 + 4)]);
    assert_eq!(moved(&["--temp", "1"]), [8 * 4, 8 * 4 * 515]);
}

/// A reader that has seen enough is no failure, and no panic.
#[test]
fn a_closed_pipe_is_no_failure() {
    for json in [&[][..], &["--json"]] {
        let mut child = spawn(story(&["-p", "Once", "-n", "100", "--ignore-eos"]).args(json));
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(0) && !said.contains("panicked"), "{:?} {said}", output.status);
    }
}

/// Ctrl-C ends a generation after the token that is being made; what came before was printed. Too few logits do not
/// replace others.
#[cfg(unix)]
#[test]
fn ctrl_c_while_generating() {
    let out = folder();
    let logits = out.path().join("logits.safetensors");
    let view = TensorView::new(Dtype::F32, vec![1, 1], &[0; 4]).unwrap();
    let older = safetensors::serialize([("logits", view)], None).unwrap();
    fs::write(&logits, &older).unwrap();
    let mut story = story(&["-p", "Once", "-n", "500", "--ignore-eos", "--threads", "1"]);
    let mut child = spawn(story.args(["--save-logits", text(&logits)]));
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    interrupt(&child);
    interrupted(child);
    assert_eq!(fs::read(&logits).unwrap(), older);
    assert_eq!(listing(out.path()).len(), 1);
}

/// M11: weights are resident once beside the file they are mapped from, whatever the number of entry points.
#[cfg(target_os = "linux")]
#[test]
fn m11_weights_are_resident_once_beside_the_mapped_file() {
    let out = folder();
    let config = out.path().join("config.json");
    fs::copy(fixture("llama-untied").join("config.json"), &config).unwrap();
    edit_config(out.path(), |config| {
        let sizes =
            [("hidden_size", 512), ("intermediate_size", 1024), ("vocab_size", 24_000), ("head_dim", 64)];
        for (key, value) in sizes.into_iter().chain([("num_attention_heads", 8)]) {
            config.insert(key.into(), json!(value));
        }
    });
    let model = out.path().join("model");
    succeed(&mut bare(&["random", text(&config), "-o", text(&model)]));
    let weights = fs::metadata(model.join("model.safetensors")).unwrap().len();
    let run = || {
        json(
            tracewright(&["generate", text(&model), "--tokens", "5,6,7,8", "-n", "4", "--ignore-eos"])
                .args(SMALL)
                .args(["--cache", text(&out.path().join("cache"))]),
        )
    };
    run(); // This one bakes.
    let peak = run()["peak_rss_bytes"].as_u64().unwrap();
    println!("{weights} bytes of weights, {peak} bytes at the peak");
    // Of the embedding some rows are read: with a second copy of what is read whole it would be more.
    assert!(peak < weights + (24 << 20), "{peak} for {weights}");
}

/// A network whose logits are no numbers chooses no token, greedily too.
#[test]
fn logits_that_are_no_numbers_are_an_error() {
    for (value, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        let model = copied("llama-untied");
        edit_tensors(model.path(), |tensors| {
            // One row of the head: of 515 logits one is none.
            let head = &mut tensors.get_mut("lm_head.weight").unwrap().2;
            head[4 * 60 * 7..4 * 60 * 8].chunks_mut(4).for_each(|x| x.copy_from_slice(&value.to_le_bytes()));
        });
        let mut command = tracewright(&["generate", text(model.path()), "--tokens", "5,17", "-n", "3"]);
        let ran = refused(command.args(SMALL), 1, &["step 0", "logit of token 7 is", "expected a number"]);
        assert!(ran.err.contains(word) || ran.err.contains("NaN"), "{}", ran.err);
    }
}

/// A checkpoint with other weights is another one, although size and time are those of before.
#[cfg(unix)]
#[test]
fn a_checkpoint_that_was_rewritten_is_baked_again() {
    let (model, cache) = (copied("llama-untied"), folder());
    let file = model.path().join("model.safetensors");
    edit_tensors(model.path(), |_| ()); // Written as it will be later.
    let first = fs::metadata(&file).unwrap();
    let (size, time) = (first.len(), first.modified().unwrap());
    let tokens = || {
        let mut command = tracewright(&["generate", text(model.path()), "--tokens", "5,17,3", "-n", "8"]);
        json(command.args(SMALL).args(["--ignore-eos", "--cache", text(cache.path())]))["tokens"].clone()
    };
    let (old, before) = (fs::read(&file).unwrap(), tokens());
    edit_tensors(model.path(), |tensors| tensors.get_mut("lm_head.weight").unwrap().2.rotate_left(4 * 60));
    let new = fs::read(&file).unwrap();
    let like_before = || {
        fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        let now = fs::metadata(&file).unwrap();
        assert_eq!((now.len(), now.modified().unwrap()), (size, time));
    };
    like_before();
    let after = tokens();
    assert_ne!(after, before);
    // Into the file that is there, back and forth.
    for (content, expected) in [(old, &before), (new, &after)] {
        fs::write(&file, content).unwrap();
        like_before();
        assert_eq!(tokens(), *expected);
    }
}

/// In the words of the command line, and never `--context` where that takes no more.
#[test]
fn what_is_longer_than_the_context_is_told_its_limit() {
    let (model, out) = (fixture("llama-untied"), folder());
    // It was made for 64.
    let exported = |context: &str| {
        let export = out.path().join(context);
        let mut command = tracewright(&["export", text(&model), "-o", text(&export)]);
        succeed(command.args(["--context", context, "--chunk", "8"]));
        export
    };
    let (whole, shorter) = (exported("64"), exported("40"));
    let tokens = |count: usize| vec!["5"; count].join(",");
    let own = "expected at most 64, the model's own limit";
    let flag = "`--context N` takes more, up to 64";
    let again = "export the model again with `--context N`, up to 64";
    let cases: &[(&Path, usize, &[&str], [&str; 2])] = &[
        (&model, 65, &[], [own, "shorten the text"]),
        (&model, 8801, &["--all-positions", "--save-logits", "/nowhere/x"], ["8801 tokens", own]),
        (&model, 65, &["--context", "64", "--chunk", "1"], [own, "shorten the text"]),
        (&model, 41, SMALL, ["the prompt has 41 tokens, expected at most 40, the `--context`", flag]),
        (&whole, 65, &[], [own, "shorten the text"]),
        (&shorter, 41, &[], ["expected at most 40, the context of the export", again]),
    ];
    for (model, count, more, words) in cases {
        let more: Vec<_> = more.iter().map(|word| word.replace("/nowhere", text(out.path()))).collect();
        let mut command = tracewright(&["generate", text(model), "--tokens", &tokens(*count)]);
        let said = refused(command.args(more), 1, words).err;
        assert!(said.starts_with("error[TW0816]"), "{said}");
        assert!(words[1] == flag || words[1] == again || !said.contains("--context"), "{said}");
    }
    let mut bisect = tracewright(&["bisect", text(&model), "--tokens", &tokens(65)]);
    refused(&mut bisect, 1, &[own, "shorten the text"]);
    // A limit that the model does not have is asked for.
    let longest =
        "the option `context` is 65, expected 1 to 64 tokens, the longest context that the model supports";
    for words in [
        &["generate", "--tokens", "5"][..],
        &["bisect", "--tokens", "5,6"],
        &["bench", "decode"],
        &["plan"],
        &["tune", "--show"],
    ] {
        let mut command = tracewright(words);
        refused(command.arg(&model).args(["--context", "65"]), 1, &[longest]);
    }
}
