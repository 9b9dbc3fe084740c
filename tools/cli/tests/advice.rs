//! Errors name the true cause and a step that works: for commands that need no IREE.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracewright::numeric::{NumericOption, NumericOptions};

use crate::server::Server;
use crate::support::*;

/// A GGUF file with these texts as keys, and with `tensors` tensors of one number.
pub fn gguf(path: &Path, keys: &[(&str, &str)], tensors: u64) {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([tensors, keys.len() as u64].map(u64::to_le_bytes).concat());
    for (key, value) in keys {
        bytes.extend([text(key), 8u32.to_le_bytes().into(), text(value)].concat());
    }
    for number in 0..tensors {
        let name = text(&format!("tensor.{number}"));
        let (rank, extent, f32) = (1u32.to_le_bytes(), 1u64.to_le_bytes(), 0u32.to_le_bytes());
        bytes.extend([&name[..], &rank, &extent, &f32, &(32 * number).to_le_bytes()].concat());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + 32 * tensors as usize, 0);
    fs::write(path, bytes).unwrap();
}

/// GGUF files that are no whole model, and words of what is said about them.
pub fn parts(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    type Keys = &'static [(&'static str, &'static str)];
    const LORA: Keys = &[
        ("general.architecture", "llama"),
        ("general.type", "adapter"),
        ("general.base_model.0.name", "Base 1B"),
    ];
    let parts: [(&str, Keys, u64, &str); 5] = [
        (
            "mmproj.gguf",
            &[("general.architecture", "clip"), ("general.type", "mmproj")],
            1,
            "is a multimodal projector (mmproj), which encodes images or sounds, expected a language model; name the GGUF",
        ),
        ("clip.gguf", &[("general.architecture", "clip")], 1, "is a multimodal projector (mmproj)"),
        (
            "lora.gguf",
            LORA,
            1,
            "is a LoRA adapter of `Base 1B`, expected a whole model; open the model, and add the adapter to it\n  help: \
             `tracewright generate MODEL --lora PATH` adds",
        ),
        (
            "imatrix.gguf",
            &[("general.type", "imatrix")],
            1,
            "is an importance matrix for quantization, expected a language model; name the GGUF file of the model\n  help: \
             `tracewright quantize MODEL --imatrix FILE -o DIR`",
        ),
        ("steer.gguf", &[("general.architecture", "controlvector")], 1, "is a control vector"),
    ];
    let made = |(name, keys, tensors, words): (&str, Keys, u64, &'static str)| {
        let path = folder.join(name);
        gguf(&path, keys, tensors);
        (path, words)
    };
    parts.map(made).into()
}

#[test]
fn a_part_of_a_model_is_named() {
    let folder = folder();
    let out = folder.path().join("out");
    for (path, words) in parts(folder.path()) {
        refused(&mut bare(&["plan", text(&path)]), 1, &["error[TW0203]", words]);
        refused(&mut bare(&["bake", text(&path), "-o", text(&out)]), 1, &["error[TW0203]", words]);
        refused(&mut trace_dump(&[text(&path)]), 1, &["error[TW0203]", words]);
    }
    let vocabulary = folder.path().join("vocabulary.gguf");
    gguf(&vocabulary, &[("general.architecture", "llama")], 0);
    refused(
        &mut bare(&["plan", text(&vocabulary)]),
        1,
        &["error[TW0203]", "is a vocabulary without weights"],
    );
    let bert = folder.path().join("bert.gguf");
    gguf(&bert, &[("general.architecture", "nomic-bert")], 1);
    let words = ["error[TW0104]", "`nomic-bert` computes embeddings", "the files of sentence-transformers"];
    refused(&mut bare(&["plan", text(&bert)]), 1, &words);
}

#[test]
fn a_file_is_known_by_its_first_bytes() {
    let folder = folder();
    let at = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    };
    let source = fixture("gguf").join("q4_0.gguf");
    let plan = |path: &Path| {
        let plan = succeed(bare(&["plan", text(path)]).args(SMALL)).out;
        plan.split_once("\nmachine ").unwrap().0.replace(text(path), "MODEL")
    };
    let expected = plan(&source);
    for name in ["model.bin", "model", "model.pth", "model.safetensors"] {
        fs::copy(&source, at(name)).unwrap();
        assert_eq!(plan(&at(name)), expected, "{name}");
    }
    fs::copy(&source, at("folder/ggml-model.bin")).unwrap();
    let words = ["is a folder with GGUF files", "name the file itself, `ggml-model.bin`"];
    refused(&mut bare(&["plan", text(&at("folder"))]), 1, &words);
    fs::copy(&source, at("named/model.safetensors")).unwrap();
    fs::copy(fixture("llama-untied").join("config.json"), at("named/config.json")).unwrap();
    let words = ["model.safetensors` is a GGUF file, expected safetensors; name the file itself"];
    refused(&mut bare(&["plan", text(&at("named"))]), 1, &words);
    for magic in ["tjgg", "lmgg", "fmgg"] {
        fs::write(at("old.bin"), [magic.as_bytes(), &[0; 64]].concat()).unwrap();
        let words = ["is a file in a format that llama.cpp had before GGUF, expected safetensors or GGUF"];
        refused(&mut bare(&["plan", text(&at("old.bin"))]), 1, &words);
    }
    // A pickle is refused still, and safetensors are read by any name.
    fs::write(at("pickle.bin"), b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
    refused(&mut bare(&["plan", text(&at("pickle.bin"))]), 1, &["is a pickled PyTorch checkpoint"]);
    fs::copy(fixture("llama-untied").join("model.safetensors"), at("tensors.bin")).unwrap();
    succeed(&mut bare(&["bake", text(&at("tensors.bin")), "-o", text(&at("out.irpa"))]));
}

/// `models/bsae` is `models/base` misspelled, and nothing to ask a server for.
#[test]
fn a_misspelled_path_is_no_name_on_the_hub() {
    let (server, home, here) = (Server::of("org/name", Vec::new()), folder(), folder());
    let base = here.path().join("models/base");
    fs::create_dir_all(&base).unwrap();
    for (path, _) in listing(&demo()) {
        fs::copy(&path, base.join(path.file_name().unwrap())).unwrap();
    }
    fs::copy(fixture("gguf").join("q4_0.gguf"), here.path().join("small.gguf")).unwrap();
    let online = |mut command: Command| {
        command
            .env_remove("HF_HUB_OFFLINE")
            .env("HF_ENDPOINT", server.endpoint())
            .env("HF_HOME", home.path());
        command.current_dir(here.path());
        command
    };
    for (path, near) in [
        ("models/bsae", "models/base"),
        ("model/base", "models/base"),
        ("./models/bsae", "./models/base"),
        ("models/bsae/", "models/base"),
        ("smal.gguf", "small.gguf"),
    ] {
        let words = format!("`{path}` does not exist, expected a model\n  help: did you mean `{near}`?");
        for command in [bare(&["plan", path]), bare(&["bake", path, "-o", "x.irpa"]), trace_dump(&[path])] {
            refused(&mut online(command), 1, &["error[TW0006]", &words]);
        }
    }
    let words = [
        "  help: did you mean `models/base`?\n  help: `hf://models/bsae` names a model on the Hugging Face hub",
    ];
    refused(&mut online(bare(&["plan", "models/bsae"])), 1, &words);
    assert_eq!(server.requests(), 0);
    // Nothing is near, or the address is one of the hub.
    for name in ["org/nam", "hf://models/bsae"] {
        refused(&mut online(bare(&["plan", name])), 1, &["error[TW1102]", "does not list a model"]);
    }
    let mut unreachable = online(bare(&["plan", "org/nam"]));
    let words = [
        "error[TW1104]",
        "cannot ask the hub at http://127.0.0.1:9 for the model `org/nam`",
        "there is no `org/nam` here",
    ];
    let ran = refused(unreachable.env("HF_ENDPOINT", "http://127.0.0.1:9"), 1, &words);
    assert!(!ran.err.contains("interrupted download"), "{}", ran.err);
}

/// Some editors begin UTF-8 files with a mark. Others write UTF-16.
#[test]
fn a_byte_order_mark_is_no_content() {
    const MARK: &str = "\u{feff}";
    let model = copied("llama-untied");
    let plan = |model: &Path, more: &[&str]| {
        let plan = succeed(bare(&["plan", text(model)]).args(SMALL).args(more)).out;
        plan.split_once("\nmachine ").unwrap().0.to_owned()
    };
    let expected = plan(&fixture("llama-untied"), &[]);
    let config = model.path().join("config.json");
    let plain = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{MARK}{plain}")).unwrap();
    assert_eq!(plan(model.path(), &[]).lines().count(), expected.lines().count());
    let map = model.path().join("map.json");
    fs::write(&map, format!("{MARK}{{\"model.layers.*.mlp.down_proj.weight\": \"q8\"}}")).unwrap();
    plan(model.path(), &["--quant", "q4", "--quant-map", text(&map)]);
    let wide: Vec<u8> = "\u{feff}{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    fs::write(&config, wide).unwrap();
    let words = ["config.json", "it is UTF-16 text, expected UTF-8; save the file as UTF-8"];
    refused(&mut bare(&["plan", text(model.path())]), 1, &words);
}

/// A variable is a default: what the command line has wins, and an error names the variables.
#[test]
fn an_error_names_the_variables_behind_it() {
    let model = fixture("llama-untied");
    let command = |command: &str, more: &[&str], variables: &[(&str, &str)]| {
        let mut command = bare(&[command, text(&model)]);
        command.args(SMALL).args(more).envs(variables.iter().copied());
        command
    };
    let plan = |more: &[&str], variables: &[(&str, &str)]| command("plan", more, variables);
    let generate = |more: &[&str], variables: &[(&str, &str)]| {
        command("generate", &[&["--tokens", "5"], more].concat(), variables)
    };
    succeed(&mut plan(&["--kernels", "off"], &[("TRACEWRIGHT_KERNELS", "f99")]));
    let schema = ["--json-schema", "missing.json"];
    let ran = refused(&mut generate(&schema, &[("TRACEWRIGHT_GRAMMAR", "g.lark")]), 2, &["`generate` needs"]);
    assert!(!ran.err.contains("cannot be used with"), "{}", ran.err);
    let named = |name: &str, flag: &str| format!("  help: the environment variable `{name}` sets `{flag}`");
    let [json, grammar, map, dtype] = [
        named("TRACEWRIGHT_JSON_SCHEMA", "--json-schema"),
        named("TRACEWRIGHT_GRAMMAR", "--grammar"),
        named("TRACEWRIGHT_QUANT_MAP", "--quant-map"),
        named("TRACEWRIGHT_DTYPE", "--dtype"),
    ];
    let both = [("TRACEWRIGHT_JSON_SCHEMA", "s.json"), ("TRACEWRIGHT_GRAMMAR", "g.lark")];
    refused(&mut generate(&[], &both), 2, &["cannot be used with", &json, &grammar]);
    refused(&mut plan(&[], &[("TRACEWRIGHT_QUANT_MAP", "m.json")]), 2, &["--quant ", &map]);
    refused(&mut plan(&[], &[("TRACEWRIGHT_DTYPE", "f99")]), 2, &["f99", &dtype]);
    let said = ["--json-schema", "s.json", "--grammar", "g.lark"];
    let ran = refused(&mut generate(&said, &both), 2, &["cannot be used with"]);
    assert!(!ran.err.contains("environment"), "{}", ran.err);
}

#[test]
fn each_numeric_option_takes_the_values_that_its_help_names() {
    for option in NumericOption::ALL.iter().filter(|option| option.values != "DTYPE") {
        for word in option.values.split('|') {
            let pure = word.strip_suffix("[:pure]").map(|word| format!("{word}:pure"));
            for word in pure.into_iter().chain([word.replace("[:pure]", "")]) {
                let mut options = NumericOptions::default();
                option.set(&mut options, &word).unwrap();
                assert_eq!(option.word(&options).as_deref(), Some(&*word), "{}", option.name);
                assert_eq!(NumericOptions::default().or(&options), options);
            }
        }
        assert!(option.set(&mut NumericOptions::default(), "x").is_err(), "{}", option.name);
    }
}

/// A negative number is a value of the flag before it, which the flag can refuse.
#[test]
fn a_negative_number_is_no_flag() {
    let model = fixture("llama-untied");
    for (flag, value) in [("--context", "-1"), ("--chunk", "-8")] {
        let words = format!("invalid value '{value}' for '{flag} <N>'");
        refused(&mut bare(&["plan", text(&model), flag, value]), 2, &[&words]);
    }
}
