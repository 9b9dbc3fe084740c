//! Tests that Tracewright records all families from a configuration alone, with the names and
//! shapes in transformers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use dsl::EntryPoint;
use expect_test::{Expect, expect};
use irpa::{Checkpoint, Gguf};
use lower::{Implementations, Weights, expand, lower};
use ops::{ElementType, WeightFormat};
use serde_json::{Value, json};
use support::*;
use targets::Target;
use trace::Quantization;
use tracewright_models::presets::Preset;
use tracewright_models::{
    Architecture as _, ModelConfig, OtherSizes, RopeScaling, architectures, check_sizes,
};

/// The pattern, the shape and the number of equal parameters, as in `parameters.txt`.
type Listed = BTreeMap<(String, Vec<usize>), usize>;

/// The parameters that transformers creates for each published `config.json`
/// (`tests/oracle/shapes.py`). Each item is the name, the total and the list of parameters.
fn made_by_transformers() -> Vec<(String, usize, Listed)> {
    let text = std::fs::read_to_string(published("parameters").with_extension("txt")).unwrap();
    let mut all: Vec<(String, usize, Listed)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, total] => all.push((name.into(), total.parse().unwrap(), BTreeMap::new())),
            [pattern, shape, count] => {
                let shape = shape
                    .split('x')
                    .filter(|extent| *extent != "-")
                    .map(|extent| extent.parse().unwrap())
                    .collect();
                all.last_mut().unwrap().2.insert((pattern.into(), shape), count.parse().unwrap());
            }
            _ => panic!("{line}"),
        }
    }
    all
}

/// The pattern of a key: `model.layers.*.mlp` for `model.layers.3.mlp`.
fn pattern(key: &str) -> String {
    let segment = |segment: &str| match segment.parse::<usize>() {
        Ok(_) => "*".to_owned(),
        Err(_) => segment.to_owned(),
    };
    key.split('.').map(segment).collect::<Vec<_>>().join(".")
}

/// Each file in the folder is a preset, and `parameters.txt` contains its parameters.
#[test]
fn presets_are_the_published_sizes() {
    let mut names: Vec<&str> = Preset::all().map(|preset| preset.name).collect();
    names.sort_unstable();
    let made = made_by_transformers();
    let known: BTreeMap<&str, usize> = made.iter().map(|(name, total, _)| (name.as_str(), *total)).collect();
    assert_eq!(names, known.keys().copied().collect::<Vec<_>>());
    let files = std::fs::read_dir(published("gpt2").parent().unwrap()).unwrap();
    let is_json =
        |file: &std::fs::DirEntry| file.path().extension().is_some_and(|extension| extension == "json");
    assert_eq!(files.filter(|file| file.as_ref().is_ok_and(is_json)).count(), names.len());
    for preset in Preset::all() {
        let read = preset.read().unwrap();
        assert_eq!(read, config(&published(preset.name)), "{}", preset.name);
        let trace = read.trace(ElementType::Bf16, &EntryPoint::all(1, 8, 64)).unwrap().trace;
        assert_eq!(trace.counts().unwrap().parameter_elements, known[preset.name], "{}", preset.name);
    }
    assert_eq!(Preset::named("llama-3.2-1b").unwrap().repository, "meta-llama/Llama-3.2-1B");
    assert!(Preset::named("llama").is_none());
}

#[test]
fn s4_published_sizes_have_the_parameters_of_transformers() {
    for (name, total, listed) in made_by_transformers() {
        let config = config(&published(&name));
        let trace = config.trace(ElementType::Bf16, &EntryPoint::all(1, 128, 1024));
        let trace = trace.unwrap_or_else(|error| panic!("{name}: {error}")).trace;
        trace.verify().unwrap();
        let mut found = Listed::new();
        for (key, ty) in parameters(&trace) {
            *found.entry((pattern(&key), ty.shape)).or_default() += 1;
        }
        // If the checkpoint stores a weight in another form than the network uses, the names and
        // shapes differ.
        let made = trace.parameters().unwrap().iter().any(|parameter| parameter.recipe.is_some())
            || !config.family().stacks.is_empty();
        assert!(made || found == listed, "{name}: {found:#?}");
        assert_eq!(trace.counts().unwrap().parameter_elements, total, "{name}");
        println!("{name}: {total} parameters");
    }
}

/// Reads the default configurations of transformers, which are published sizes of most families
/// (`tests/oracle/defaults.py`). Tracewright knows every key, and the network has the same
/// parameters as in transformers.
#[test]
fn default_configurations_have_the_parameters_of_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/defaults.json");
    let cases: BTreeMap<String, Value> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(cases.len(), 12);
    for (name, case) in cases {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), case["config"].to_string()).unwrap();
        let read = config(folder.path());
        let trace = read.trace(ElementType::Bf16, &EntryPoint::all(1, 8, 64)).unwrap().trace;
        let counted = trace.counts().unwrap().parameter_elements;
        assert_eq!(Some(counted as u64), case["parameters"].as_u64(), "{name}");
        println!("{name}: {counted} parameters");
    }
}

/// Reads the `config.json` of `openai/gpt-oss-20b`. The checkpoint stores the experts in MXFP4.
#[test]
fn gpt_oss_is_read_as_it_is_published() {
    let layers: Vec<&str> = ["sliding_attention", "full_attention"].into_iter().cycle().take(24).collect();
    let keys = json!({
        "architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": 200_002,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": layers, "max_position_embeddings": 131_072,
        "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199_999,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
            "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-5, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
            "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
        "rope_theta": 150_000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": false, "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201_088,
    });
    let folder = tempfile::tempdir().unwrap();
    let write = |keys: &Value| std::fs::write(folder.path().join("config.json"), keys.to_string()).unwrap();
    write(&keys);
    let trace = config(folder.path()).trace(ElementType::Bf16, &EntryPoint::all(1, 8, 64)).unwrap().trace;
    assert_eq!(trace.counts().unwrap().parameter_elements, 20_914_757_184);
    let formats = config(folder.path()).stored().formats();
    assert_eq!(formats.values().collect::<Vec<_>>(), [&WeightFormat::Mxfp4; 2]);
    // Every pattern is the key of a matrix.
    let formats = formats.iter().map(|(pattern, format)| (pattern.clone(), Some(*format))).collect();
    assert!(lower::resolved(&Quantization::mapped(Quantization::Computed, formats), &trace).is_ok());
    // Another quantization method is an error.
    let mut other = keys;
    other["quantization_config"]["quant_method"] = json!("hqq");
    write(&other);
    let error = ModelConfig::read(folder.path(), &[]).unwrap_err().to_string();
    assert!(error.contains("method `hqq`"), "{error}");
}

/// Lowers the families whose other tests lower no published size.
#[test]
fn other_published_sizes_lower() {
    for name in ["gpt2", "mixtral-8x7b-v0.1", "lfm2-1.2b"] {
        let trace = config(&published(name)).trace(ElementType::Bf16, &EntryPoint::all(1, 128, 1024));
        let module = lower(&expand(&trace.unwrap().trace).unwrap(), &Target::host());
        let module = module.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(module.signatures.len(), EntryPoint::all(1, 128, 1024).len(), "{name}");
    }
}

/// Each architecture lowers completely in every element type, with kernels and without kernels. The
/// module contains no forbidden operation.
#[test]
fn m6_s19_every_family_lowers_whole_and_to_what_may_be() {
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    let mut left: BTreeSet<&str> = architectures().into_iter().collect();
    let mut folders: Vec<_> =
        std::fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    for folder in folders {
        let Ok(text) = std::fs::read_to_string(folder.join("config.json")) else { continue };
        let json: Value = serde_json::from_str(&text).unwrap();
        if !json["architectures"][0].as_str().is_some_and(|named| left.remove(named)) {
            continue;
        }
        for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
            let entries = config(&folder).kind().entry_points(1, 4, 16);
            let trace = config(&folder).trace(element, &entries).unwrap().trace;
            for kernels in [false, true] {
                let weights = Weights { kernels, ..Weights::default() };
                let module = lower(
                    &Implementations::of(&trace, &weights, &target).unwrap().expand().unwrap(),
                    &target,
                );
                let module = module.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
                assert_eq!(module.signatures.len(), entries.len());
                assert_eq!(module.text.contains("flow.dispatch"), kernels, "{}", folder.display());
                let stablehlo = module.text_without_locs.split("builtin.module").next().unwrap();
                for never in ["custom_call", "xf64", "<f64", " f64", "cosine", "sine", "chlo."] {
                    assert!(!stablehlo.contains(never), "`{never}` in {} in {element}", folder.display());
                }
                let histogram = module.histogram();
                // Kernels compute nearly all of an encoder.
                let least = if kernels { 20 } else { 50 };
                assert!(histogram.values().sum::<usize>() > least, "{histogram:?}");
                assert!(kernels || histogram.contains_key("dot_general"), "{histogram:?}");
            }
        }
    }
    assert!(left.is_empty(), "no fixture of {left:?}");
}

/// At every position, the evaluator computes the same logits as transformers.
#[test]
fn m7_the_oracle_of_the_families() {
    let judged = fixtures();
    assert!(judged.len() > 30, "{judged:?}");
    // `irpa` and the test suite cover checkpoints that store several parameters in one tensor, or
    // one parameter in several tensors.
    let read_by_irpa = |name: &&String| name.ends_with("-stacked") || *name == "gpt_oss-mxfp4";
    for name in judged.iter().filter(|name| !read_by_irpa(name)) {
        judged_by_transformers(&fixture(name));
    }
}

/// Reads a `config.json` of this architecture with four layers and the additional keys `said`.
fn read(architecture: &str, said: Value) -> Result<ModelConfig, String> {
    let mut keys = json!({
        "architectures": [architecture], "vocab_size": 11, "hidden_size": 24, "intermediate_size": 10,
        "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2,
    });
    keys.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, keys.to_string()).unwrap();
    ModelConfig::read(&path, &[])
        .map_err(|error| error.to_string().replace(path.to_str().unwrap(), "config.json"))
}

/// The attention window of each layer, or 0 for a layer that sees all positions.
fn windows(architecture: &str, said: Value) -> Vec<usize> {
    let config = read(architecture, said).unwrap();
    let window = |layer| match &config {
        ModelConfig::Gemma2(config) => config.window(layer),
        ModelConfig::Mixtral(config) => config.window(layer),
        ModelConfig::SmolLm3(config) => config.window(layer),
        ModelConfig::Mistral(config) => config.window(layer),
        ModelConfig::Phi3(config) | ModelConfig::Qwen2(config) | ModelConfig::Qwen3(config) => {
            config.window(layer)
        }
        other => panic!("{other:?}"),
    };
    (0..4).map(|layer| window(layer).unwrap_or(0)).collect()
}

#[test]
fn windows_are_those_of_transformers() {
    const GEMMA2: &str = "Gemma2ForCausalLM";
    assert_eq!(windows(GEMMA2, json!({})), [4096, 0, 4096, 0]);
    let types = json!(["full_attention", "full_attention", "sliding_attention", "full_attention"]);
    assert_eq!(windows(GEMMA2, json!({"layer_types": types, "sliding_window": 5})), [0, 0, 5, 0]);

    // If the key is missing, the layers have the default window. With null, the layers have no
    // window.
    assert_eq!(windows("MistralForCausalLM", json!({})), [4096; 4]);
    assert_eq!(windows("MistralForCausalLM", json!({"sliding_window": null})), [0; 4]);
    assert_eq!(windows("MistralForCausalLM", json!({"sliding_window": 7})), [7; 4]);
    assert_eq!(windows("MixtralForCausalLM", json!({})), [0; 4]);
    assert_eq!(windows("MixtralForCausalLM", json!({"sliding_window": 7})), [7; 4]);
    assert_eq!(windows("Phi3ForCausalLM", json!({})), [0; 4]);
    assert_eq!(windows("Phi3ForCausalLM", json!({"sliding_window": 7})), [7; 4]);

    for qwen in ["Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
        let used = |said: Value| {
            let mut keys = json!({"use_sliding_window": true});
            keys.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
            windows(qwen, keys)
        };
        assert_eq!(windows(qwen, json!({"sliding_window": 7, "max_window_layers": 2})), [0; 4], "{qwen}");
        assert_eq!(used(json!({"sliding_window": 7, "max_window_layers": 3})), [0, 0, 0, 7], "{qwen}");
        assert_eq!(used(json!({"max_window_layers": 0})), [4096; 4], "{qwen}");
        assert_eq!(used(json!({"sliding_window": 7})), [0; 4], "{qwen}: the first 28 layers see all");
        assert_eq!(used(json!({"layer_types": types, "sliding_window": 7})), [0, 0, 7, 0], "{qwen}");
    }

    const SMOL: &str = "SmolLM3ForCausalLM";
    assert_eq!(windows(SMOL, json!({"sliding_window": 7})), [0; 4]);
    assert_eq!(windows(SMOL, json!({"sliding_window": 7, "use_sliding_window": true})), [0, 0, 0, 7]);
    let every_second = json!({"sliding_window": 7, "use_sliding_window": true, "no_rope_layer_interval": 2});
    assert_eq!(windows(SMOL, every_second), [0, 7, 0, 7]);
}

#[test]
fn layers_without_rope() {
    let rotary = |said: Value| match read("SmolLM3ForCausalLM", said).unwrap() {
        ModelConfig::SmolLm3(config) => config.rotary,
        other => panic!("{other:?}"),
    };
    assert_eq!(rotary(json!({})), [true, true, true, false]);
    assert_eq!(rotary(json!({"no_rope_layer_interval": 2})), [true, false, true, false]);
    assert_eq!(rotary(json!({"no_rope_layers": [0, 1, 1, 0]})), [false, true, true, false]);
}

/// A missing key in `config.json` gets the default of the family's configuration in transformers.
#[test]
fn defaults_are_those_of_transformers() {
    for (architecture, heads, features, epsilon, tied, longest, theta) in [
        ("Gemma2ForCausalLM", 4, Some(256), 1e-6, true, 8192, 1e4),
        ("MistralForCausalLM", 8, None, 1e-6, false, 131_072, 1e4),
        ("MixtralForCausalLM", 8, None, 1e-5, false, 131_072, 1e6),
        ("Olmo2ForCausalLM", 6, None, 1e-5, false, 2048, 1e4),
        ("Phi3ForCausalLM", 6, None, 1e-5, false, 4096, 1e4),
        ("Qwen2ForCausalLM", 32, None, 1e-6, false, 32_768, 1e4),
        ("Qwen3ForCausalLM", 32, Some(128), 1e-6, false, 32_768, 1e4),
        ("SmolLM3ForCausalLM", 4, None, 1e-6, true, 32_768, 2e6),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let keys = json!({
            "architectures": [architecture], "vocab_size": 11, "hidden_size": 24, "intermediate_size": 10,
            "num_hidden_layers": 4, "num_attention_heads": 6,
        });
        std::fs::write(folder.path().join("config.json"), keys.to_string()).unwrap();
        let llama = match config(folder.path()) {
            ModelConfig::Gemma2(config) => config.llama,
            ModelConfig::Mixtral(config) => config.llama,
            ModelConfig::SmolLm3(config) => config.llama,
            ModelConfig::Mistral(config) => config.llama,
            ModelConfig::Olmo2(config)
            | ModelConfig::Phi3(config)
            | ModelConfig::Qwen2(config)
            | ModelConfig::Qwen3(config) => config,
            other => panic!("{other:?}"),
        };
        assert_eq!((llama.num_key_value_heads, llama.head_dim), (heads, features), "{architecture}");
        assert_eq!((llama.rms_norm_eps, llama.tie_word_embeddings), (epsilon, tied), "{architecture}");
        assert_eq!((llama.max_position_embeddings, llama.rope.theta), (longest, theta), "{architecture}");
    }
}

/// The published configuration of the smallest GPT-2 contains few keys.
#[test]
fn gpt_2_is_the_small_one_unless_said() {
    let small = |said: Value| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), said.to_string()).unwrap();
        match config(folder.path()) {
            ModelConfig::Gpt2(config) => config,
            other => panic!("{other:?}"),
        }
    };
    let config = small(json!({"model_type": "gpt2"}));
    assert_eq!((config.vocab_size, config.max_position_embeddings), (50_257, 1024));
    assert_eq!((config.hidden_size, config.intermediate_size), (768, 3072));
    assert_eq!((config.num_hidden_layers, config.num_attention_heads), (12, 12));
    assert!(config.tie_word_embeddings && config.scale_attn_weights);
    let wide = small(json!({"model_type": "gpt2", "n_embd": 1024, "n_inner": null}));
    assert_eq!(wide.intermediate_size, 4096);
    let trace = |context| {
        let config = ModelConfig::Gpt2(config.clone());
        config.trace(ElementType::F32, &EntryPoint::all(1, 8, context))
    };
    assert!(trace(1024).is_ok());
    let error = trace(1025).unwrap_err().to_string();
    assert!(error.contains("1024") && error.contains("1025"), "{error}");
}

/// Tests the different keys of an LFM2 for the same sizes and layers.
#[test]
fn lfm_2_says_in_several_ways_what_it_is_made_of() {
    let lfm2 = |said: Value| match read("Lfm2ForCausalLM", said).unwrap() {
        ModelConfig::Lfm2(config) => config,
        other => panic!("{other:?}"),
    };
    assert_eq!(lfm2(json!({})).attention, [true; 4]);
    assert_eq!(lfm2(json!({"full_attn_idxs": [1, 3]})).attention, [false, true, false, true]);
    let types = json!(["conv", "conv", "full_attention", "conv"]);
    let both = json!({"layer_types": types, "full_attn_idxs": [0]});
    assert_eq!(lfm2(both).attention, [false, false, true, false]);

    let width = |said: Value| lfm2(said).intermediate_size;
    assert_eq!(width(json!({"block_ff_dim": 6656})), 4608);
    assert_eq!(width(json!({"intermediate_size": 12_288})), 8192);
    assert_eq!(width(json!({"block_ff_dim": 6656, "block_auto_adjust_ff_dim": false})), 6656);
    assert_eq!(
        width(json!({"intermediate_size": 70, "block_ffn_dim_multiplier": 1.3, "block_multiple_of": 7})),
        63
    );

    assert!(lfm2(json!({})).tie_word_embeddings);
    assert!(!lfm2(json!({"tie_word_embeddings": true, "tie_embedding": false})).tie_word_embeddings);
    assert_eq!(lfm2(json!({})).rope.theta, 1e6);
}

/// Tests all spellings of the rotary embedding in published Phi-3 configurations.
#[test]
fn phi_3_has_longrope() {
    let factors = json!([1.0, 2.0]);
    let new = json!({"rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": factors,
        "long_factor": factors, "original_max_position_embeddings": 4096}, "max_position_embeddings": 131_072});
    let old = |name: &str| {
        json!({"rope_theta": 10000.0, "original_max_position_embeddings": 4096, "max_position_embeddings": 131_072,
            "rope_scaling": {"type": name, "short_factor": factors, "long_factor": factors}})
    };
    let read = |said: Value| match read("Phi3ForCausalLM", said).unwrap() {
        ModelConfig::Phi3(config) => config.rope,
        other => panic!("{other:?}"),
    };
    let rope = read(new);
    assert!(
        matches!(rope.scaling, RopeScaling::LongRope { attention_factor, .. } if attention_factor > 1.19)
    );
    assert_eq!(read(old("longrope")), rope);
    assert_eq!(read(old("su")), rope);
    let partial = read(json!({"partial_rotary_factor": 0.5}));
    assert_eq!((partial.partial_rotary_factor, partial.frequencies(8, 1).inv_freq.len()), (0.5, 2));
}

fn check(architecture: &str, said: Value, expected: Expect) {
    expected.assert_eq(&read(architecture, said).expect_err("an error"));
}

#[test]
fn m19_what_a_family_cannot_use_is_named() {
    check(
        "Qwen2ForCausalLM",
        json!({"attention_bias": true}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `attention_bias` is not a known key"#]],
    );
    check(
        "Qwen3ForCausalLM",
        json!({"use_sliding_window": true, "sliding_window": null, "layer_types": ["sliding_attention",
            "full_attention", "full_attention", "full_attention"]}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `sliding_window` is null, expected a positive integer: some layers look through a window"#]],
    );
    check(
        "SmolLM3ForCausalLM",
        json!({"no_rope_layers": [1, 1, 0]}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `no_rope_layers` is [1,1,0], expected a list of 0 or 1 for each of 4 layers"#]],
    );
    check(
        "SmolLM3ForCausalLM",
        json!({"no_rope_layers": [1, 1, 2, 0]}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `no_rope_layers` is [1,1,2,0], expected a list of 0 or 1 for each of 4 layers"#]],
    );
    check(
        "Phi3ForCausalLM",
        json!({"rope_scaling": {"type": "linear", "factor": 2.0}}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `rope_scaling` is of another type, expected null or of type longrope"#]],
    );
    check(
        "Phi3ForCausalLM",
        json!({"partial_rotary_factor": 1.5}),
        expect![[r#"
            `config.json`: 1 problem(s)
              `partial_rotary_factor` is 1.5, expected at most 1"#]],
    );
    check(
        "Gemma2ForCausalLM",
        json!({"use_bidirectional_attention": true, "attn_logit_softcapping": 0}),
        expect![[r#"
            `config.json`: 2 problem(s)
              `use_bidirectional_attention` is true, expected false
              `attn_logit_softcapping` is 0, expected a positive number"#]],
    );
    let longrope = json!({"rope_type": "longrope", "short_factor": [9.0], "long_factor": [9.0],
        "original_max_position_embeddings": 64});
    check(
        "Gemma3ForCausalLM",
        json!({"head_dim": 8, "rope_scaling": longrope}),
        expect![[r#"
        `config.json`: 2 problem(s)
          `short_factor` is 1 numbers, expected 4, one for each pair of the 8 rotated features
          `long_factor` is 1 numbers, expected 4, one for each pair of the 8 rotated features"#]],
    );
    check(
        "Olmo2ForCausalLM",
        json!({"sliding_window": 7, "layer_types": ["full_attention"]}),
        expect![[r#"
        `config.json`: 2 problem(s)
          `sliding_window` is not a known key
          `layer_types` is not a known key"#]],
    );
    check(
        "GPT2LMHeadModel",
        json!({"activation_function": "quick_gelu", "add_cross_attention": true}),
        expect![[r#"
            `config.json`: 7 problem(s)
              `activation_function` is "quick_gelu", expected one of ["gelu_new", "gelu_pytorch_tanh", "gelu", "relu", "silu"]
              `add_cross_attention` is true, expected false: the network is a decoder alone
              `hidden_size` is not a known key
              `intermediate_size` is not a known key
              `num_hidden_layers` is not a known key
              `num_attention_heads` is not a known key
              `num_key_value_heads` is not a known key"#]],
    );
    check(
        "MixtralForCausalLM",
        json!({"num_local_experts": 2, "num_experts_per_tok": 3, "attention_bias": true}),
        expect![[r#"
            `config.json`: 2 problem(s)
              `num_experts_per_tok` is 3, expected at most 2, the experts there are
              `attention_bias` is not a known key"#]],
    );
    check(
        "Lfm2ForCausalLM",
        json!({"full_attn_idxs": [1, 4], "conv_L_cache": 1}),
        expect![[r#"
        `config.json`: 2 problem(s)
          `conv_L_cache` is 1, expected at least 2
          `full_attn_idxs` is [1,4], expected a list of layers, from 0 to 3"#]],
    );
    check(
        "Lfm2ForCausalLM",
        json!({"layer_types": ["conv", "conv", "sliding_attention", "conv"], "rms_norm_eps": 1e-5}),
        expect![[r#"
            `config.json`: 2 problem(s)
              `layer_types` is ["conv","conv","sliding_attention","conv"], expected a list of 4 of `full_attention` and `conv`
              `rms_norm_eps` is not a known key"#]],
    );
    check(
        "LlamaForCausalLM",
        json!({"rope_interleaved": true}),
        expect![[r#"
        `config.json`: 1 problem(s)
          `rope_interleaved` is true, expected false"#]],
    );
}

/// The checkpoints of a family confirm each declared size, and a wrong size is an error. The
/// checkpoints have published names, names of models with other towers, and names of GGUF files.
#[test]
fn what_is_claimed_is_what_checkpoints_show() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let folders = [fixtures.clone(), fixtures.join("gguf")];
    let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let paths = files.map(|file| file.unwrap().path());
    let is_model = |path: &PathBuf| Gguf::is_at(path) || path.join("model.safetensors").exists();
    let mut models = 0;
    for path in paths.filter(is_model) {
        // Some fixtures compute embeddings, and some fixtures contain only a tokenizer.
        let Ok(model) = tracewright_models::read(&path, &[]) else { continue };
        let checkpoint = model.named(Checkpoint::open(&path).unwrap());
        let claims = model.sizes();
        check_sizes(&claims, &checkpoint).unwrap();
        let mut shown = 0;
        for i in 0..claims.len() {
            let mut other = claims.clone();
            other[i].value += 1;
            let Err(OtherSizes { problems, .. }) = check_sizes(&other, &checkpoint) else { continue };
            let [problem] = &problems[..] else { panic!("{path:?}: {problems:?}") };
            assert_eq!((&problem.key, problem.found), (&claims[i].key, claims[i].value), "{path:?}");
            shown += 1;
        }
        // A Phi-3 checkpoint stores the query, key and value matrices in one tensor.
        assert!(shown >= 4 && shown >= claims.len() - 1, "{path:?}: {shown} of {claims:?}");
        models += 1;
    }
    assert!(models > 40, "{models}");
}
