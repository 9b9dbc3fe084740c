//! Every command that takes a model takes a `.gguf` file. `tests/tests/networks/gguf.rs` judges the results.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::*;

pub fn gguf(name: &str) -> PathBuf {
    fixture("gguf").join(format!("{name}.gguf"))
}

/// The file's own expected continuation.
fn golden(name: &str) -> (String, Value) {
    let golden = fs::read(fixture("gguf").join(format!("{name}.json"))).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let prompt = golden["prompts"][0]["prompt_tokens"].as_array().unwrap();
    let prompt: Vec<String> = prompt.iter().map(ToString::to_string).collect();
    (prompt.join(","), golden["prompts"][0]["tokens"].clone())
}

#[test]
fn k18_a_gguf_file_generates_and_is_exported_and_baked() {
    let (model, out) = (gguf("llama"), folder());
    let (prompt, expected) = golden("llama");
    let tokens = |model: &std::path::Path| {
        let steps = expected.as_array().unwrap().len().to_string();
        let mut command =
            tracewright(&["generate", text(model), "--tokens", &prompt, "-n", &steps, "--json"]);
        let ran = succeed(command.args(SMALL));
        serde_json::from_str::<Value>(&ran.out).unwrap()["tokens"].clone()
    };
    assert_eq!(tokens(&model), expected);
    let export = out.path().join("export");
    succeed(tracewright(&["export", text(&model), "-o", text(&export)]).args(SMALL));
    assert_eq!(tokens(&export), expected);
    succeed(&mut bare(&["verify", text(&export)]));
    // The configuration went along, under the names of Hugging Face.
    let config: Value = serde_json::from_slice(&fs::read(export.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    let archive = out.path().join("model.irpa");
    succeed(&mut bare(&["bake", text(&gguf("q4_0")), "-o", text(&archive)]));
    succeed(&mut bare(&["verify", text(&archive)]));
}

/// A template that is too long to be read is not none: that is said where it is wanted, and nowhere else.
#[test]
fn a_template_that_is_too_long() {
    let mut bytes = fs::read(gguf("tokens-spm")).unwrap();
    let key = b"tokenizer.chat_template";
    let value = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    // A multiple of what tensors are aligned to.
    let more = 2 << 20;
    let length = u64::from_le_bytes(bytes[value..value + 8].try_into().unwrap()) + more;
    bytes[value..value + 8].copy_from_slice(&length.to_le_bytes());
    bytes.splice(value + 8..value + 8, vec![b' '; more as usize]);
    let out = folder();
    let model = out.path().join("model.gguf");
    fs::write(&model, bytes).unwrap();
    refused(
        &mut bare(&["prompt", text(&model), "--chat", "Hello"]),
        1,
        &["model.gguf`", "bytes, expected at most 1048576"],
    );
    succeed(&mut bare(&["prompt", text(&gguf("tokens-spm")), "--chat", "Hello"]));
}

/// Keys about tokens must have the right type and name existing tokens. Nothing is silently ignored.
#[test]
fn keys_of_a_tokenizer_that_mean_nothing() {
    let out = folder();
    let model = out.path().join("model.gguf");
    let sound = fs::read(gguf("tokens-spm")).unwrap();
    let value =
        |key: &str| sound.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len();
    let bos = value("tokenizer.ggml.bos_token_id");
    let mut bytes = sound.clone();
    bytes[bos + 4..bos + 8].copy_from_slice(&77_777_u32.to_le_bytes());
    fs::write(&model, bytes).unwrap();
    let said = ["`tokenizer.ggml.bos_token_id`", "`77777`", "the id of one of its tokens"];
    refused(&mut bare(&["prompt", text(&model), "--chat", "Hello"]), 1, &said);
    // A float instead.
    let mut bytes = sound.clone();
    bytes[bos..bos + 4].copy_from_slice(&6_u32.to_le_bytes());
    fs::write(&model, bytes).unwrap();
    refused(&mut bare(&["prompt", text(&model), "--chat", "Hello"]), 1, &["the id of one of its tokens"]);
}

/// A file with one more key, of this type and value, in front of the others.
pub fn with_key(bytes: &[u8], key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    let entry = |key: &str, kind: u32, value: &[u8]| {
        [&(key.len() as u64).to_le_bytes(), key.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    let mut entries = entry(key, kind, value);
    // Another one fills up to what tensors are aligned to.
    let filler = format!("{key}.filling");
    let empty = entry(&filler, 8, &0_u64.to_le_bytes()).len();
    let missing = (entries.len() + empty).next_multiple_of(32) - entries.len() - empty;
    let filling = [&(missing as u64).to_le_bytes()[..], &vec![b' '; missing]].concat();
    entries.extend(entry(&filler, 8, &filling));
    let mut bytes = bytes.to_owned();
    let keys = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) + 2;
    bytes[16..24].copy_from_slice(&keys.to_le_bytes());
    bytes.splice(24..24, entries);
    bytes
}

/// A key that would change the computation or the text and is not supported is an error. A key without effect
/// is allowed.
#[test]
fn keys_that_say_something_else() {
    let out = folder();
    let model = out.path().join("model.gguf");
    let float = |number: f32| number.to_le_bytes().to_vec();
    let with = |name: &str, key: &str, kind: u32, value: &[u8]| {
        fs::write(&model, with_key(&fs::read(gguf(name)).unwrap(), key, kind, value)).unwrap();
    };
    for (name, key, kind, value, words) in [
        (
            "llama",
            "llama.attention.causal",
            7,
            vec![0],
            "false, expected true: these networks look back only",
        ),
        ("gpt2", "gpt2.attention.causal", 7, vec![0], "false, expected true"),
        (
            "llama",
            "llama.attention.scale",
            6,
            float(0.5),
            "0.5, expected 0, or one by the root of the features",
        ),
        ("llama-yarn", "llama.rope.scaling.attn_factor", 6, float(1.5), "1.5, expected 1 beside YaRN"),
        (
            "llama",
            "llama.rope.scaling.factor",
            4,
            vec![2, 0, 0, 0],
            "2, expected 0, or a positive number, stored as a float",
        ),
    ] {
        with(name, key, kind, &value);
        refused(&mut trace_dump(&[text(&model)]), 1, &[&format!("`{key}` is {words}")]);
    }
    let dumped = |model: &std::path::Path| succeed(&mut trace_dump(&[text(model)])).out;
    let plain = dumped(&gguf("llama"));
    with("llama", "llama.attention.scale", 6, &float(0.0));
    assert_eq!(dumped(&model), plain);
    // A factor of a type that is not said divides every position; one of no type does nothing.
    with("llama", "llama.rope.scaling.factor", 6, &float(4.0));
    let scaled = dumped(&model);
    assert_ne!(scaled, plain);
    let typed = |kind: &str| {
        let kind = [&(kind.len() as u64).to_le_bytes(), kind.as_bytes()].concat();
        let with_factor =
            with_key(&fs::read(gguf("llama")).unwrap(), "llama.rope.scale_linear", 6, &float(4.0));
        fs::write(&model, with_key(&with_factor, "llama.rope.scaling.type", 8, &kind)).unwrap();
        dumped(&model)
    };
    assert_eq!(typed("linear"), scaled);
    assert_eq!(typed("none"), plain);
}

/// Two tokens of one text: the first would never be read or written.
#[test]
fn tokens_that_are_no_vocabulary() {
    let out = folder();
    let model = out.path().join("model.gguf");
    let sound = fs::read(gguf("tokens-spm")).unwrap();
    let at = |words: &str| sound.windows(words.len()).position(|window| window == words.as_bytes()).unwrap();
    let mut bytes = sound.clone();
    bytes[at("<0x42>")..][..6].copy_from_slice(b"<0x41>");
    fs::write(&model, bytes).unwrap();
    let said = ["tokenizer.ggml.tokens", "`<0x41> for tokens 68 and 69`", "a text for each token"];
    refused(&mut bare(&["prompt", text(&model), "--chat", "Hello"]), 1, &said);
}

/// Counts that no network has are refused before anything is recorded, by the names that the file gives them.
#[test]
fn sizes_that_no_network_has() {
    let out = folder();
    let model = out.path().join("model.gguf");
    let layers = "is 1000000, expected a positive integer, at most 4096";
    let count = "expected a count, or a list of counts, at most 16777216";
    for (name, key, value, words) in [
        ("llama", "llama.block_count", 1_000_000, layers),
        ("lfm2", "lfm2.block_count", 1_000_000, layers),
        ("gpt2", "gpt2.block_count", 1_000_000, layers),
        ("llama", "llama.embedding_length", 1 << 30, count),
        ("llama", "llama.attention.head_count", 1 << 30, count),
        ("llama", "llama.context_length", u32::MAX, count),
        ("lfm2", "lfm2.shortconv.l_cache", 1, "is 1, expected at least 2"),
    ] {
        let mut bytes = fs::read(gguf(name)).unwrap();
        let at =
            bytes.windows(key.len()).position(|window| window == key.as_bytes()).unwrap() + key.len() + 4;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&model, bytes).unwrap();
        let start = std::time::Instant::now();
        let said = format!("`{key}` is");
        let ran = refused(&mut trace_dump(&[text(&model)]), 1, &[words, &said]);
        assert_eq!(ran.err.matches(words).count(), 1, "{}", ran.err);
        assert!(start.elapsed().as_secs() < 5, "{key}");
    }
}

#[test]
fn what_becomes_of_blocks_is_said() {
    let out = folder();
    let archive = out.path().join("model.irpa");
    let said = |model: &str, more: &[&str]| {
        let mut command = bare(&["bake", text(&gguf(model)), "-o", text(&archive), "--context", "40"]);
        succeed(command.args(more)).err
    };
    let q8 = said("q8_0", &[]);
    assert!(q8.contains("tensors in Q8_0 as q8, exactly\n"), "{q8}");
    let long = said("q4_k", &[]);
    for words in ["Q8_0 as q8, exactly\n", "Q6_K as q6_k, exactly\n", "Q5_0 as q5_0, exactly\n"] {
        assert!(long.contains(words), "{long}");
    }
    let dense = said("q4_k", &["--quant", "none"]);
    assert!(dense.contains("Q4_K as f32, exactly\n"), "{dense}");
    let four = said("q8_0", &["--quant", "q4"]);
    assert!(four.contains("Q8_0 as q4, rounded\n"), "{four}");
}

#[test]
fn it_is_planned_and_shown_without_reading_a_weight() {
    let plan = succeed(&mut bare(&["plan", text(&gguf("q4_0")), "--context", "40", "--json"]));
    let plan: Value = serde_json::from_str(&plan.out).unwrap();
    let stored = plan["weights"].to_string();
    assert!(stored.contains("q4") && stored.contains("q8"), "{stored}");
    let shown = succeed(&mut trace_dump(&[text(&gguf("gemma3")), "--entry", "decode"]));
    assert!(shown.out.contains("entry @decode"), "{}", shown.out);
    let page = succeed(&mut trace_dump(&[text(&gguf("llama")), "--emit", "json"]));
    assert!(
        page.out.contains("\"label\":\"llama\"") || page.out.contains("\"label\": \"llama\""),
        "{}",
        &page.out[..200]
    );
}

#[test]
fn a_file_without_a_tokenizer_takes_tokens_and_one_with_takes_text() {
    let model = gguf("llama");
    refused(&mut bare(&["generate", text(&model), "-p", "Hi"]), 2, &["--tokens"]);
    let prompt = succeed(&mut bare(&["prompt", text(&gguf("tokens-spm")), "--chat", "Hi"]));
    assert_eq!(prompt.out, "<s>[user] Hi</s>");
}

#[test]
fn no_output_replaces_it() {
    let copy = folder();
    let model = copy.path().join("model.gguf");
    fs::copy(gguf("llama"), &model).unwrap();
    let before = fs::read(&model).unwrap();
    for command in [
        &["bake", text(&model), "-o", text(&model)][..],
        &["generate", text(&model), "--tokens", "1", "--save-logits", text(&model)],
    ] {
        refused(&mut bare(command), 1, &["is a file of the model itself"]);
    }
    assert_eq!(fs::read(&model).unwrap(), before);
}

#[test]
fn what_is_not_one_that_is_known_is_said() {
    let out = folder();
    let changed = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = fs::read(gguf("llama")).unwrap();
        let at: Vec<usize> =
            (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes())).collect();
        at.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
        let path = out.path().join("changed.gguf");
        fs::write(&path, bytes).unwrap();
        path
    };
    let archive = out.path().join("model.irpa");
    let baked = |path: PathBuf, words: &[&str]| {
        refused(&mut bare(&["bake", text(&path), "-o", text(&archive)]), 1, words);
        assert!(!archive.exists());
    };
    baked(changed("llama", "mamba"), &["architecture `mamba` is not supported", "\"gemma3\"", "\"smollm3\""]);
    // Whatever its tensors are: here some that no reader knows, as MXFP4, and no end.
    let unknown = out.path().join("unknown.gguf");
    let mut bytes = fs::read(changed("llama", "mamba")).unwrap();
    let name = b"token_embd.weight";
    let at = (0..bytes.len()).find(|&at| bytes[at..].starts_with(name)).unwrap() + name.len() + 4 + 2 * 8;
    bytes[at..at + 4].copy_from_slice(&39_u32.to_le_bytes());
    for end in [bytes.len(), bytes.len() - 100] {
        fs::write(&unknown, &bytes[..end]).unwrap();
        baked(unknown.clone(), &["architecture `mamba` is not supported"]);
    }
    baked(
        changed("block_count", "block_kount"),
        &["changed.gguf`: 1 problem(s)", "`llama.block_count` is missing, expected a positive integer"],
    );
    baked(
        changed("attn_norm", "attn_korm"),
        &["missing `model.layers.*.input_layernorm.weight`", "extra `blk.*.attn_korm.weight`"],
    );
    let cut = out.path().join("cut.gguf");
    fs::write(&cut, &fs::read(gguf("llama")).unwrap()[..900]).unwrap();
    baked(cut, &["is not a readable GGUF file: the file is cut off", "download the file again"]);
    refused(&mut bare(&["random", text(&gguf("llama")), "-o", text(out.path())]), 2, &["config.json"]);
    // A folder of them: which one?
    let folder = folder();
    fs::copy(gguf("llama"), folder.path().join("a.gguf")).unwrap();
    refused(&mut bare(&["bake", text(folder.path()), "-o", text(&archive)]), 1, &["name the file itself"]);
    refused(&mut bare(&["verify", text(&gguf("llama"))]), 1, &["no hash"]);
}

/// A real model answers a question in bf16. `tests/tests/networks/real_models.rs` compares its f32 with transformers.
#[test]
fn a_real_model_knows_the_capital_of_france() {
    let Some(model) = smollm2() else {
        eprintln!("SmolLM2 is left out: `cargo xtask setup --model smollm2` installs it");
        return;
    };
    for dtype in if is_long() { &["f32", "bf16"][..] } else { &["bf16"] } {
        // In a cache of its own: an archive has half a gigabyte.
        let cache = folder();
        let mut command = tracewright(&["generate", text(&model), "--quant", "none", "--dtype", dtype]);
        command.args(["--chat", "What is the capital of France?", "-n", "32", "--json"]);
        let ran = succeed(command.env("TRACEWRIGHT_CACHE", cache.path()));
        let answer: Value = serde_json::from_str(&ran.out).unwrap();
        assert!(answer["text"].as_str().unwrap().contains("Paris"), "{dtype}: {answer}");
        assert_eq!(answer["finish"], "stop", "{dtype}: {answer}");
    }
}
