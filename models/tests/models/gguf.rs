//! Variants of GGUF files that llama.cpp reads: extents of 1, missing biases, and scalings of rotary embeddings.
//! Each variant has a second file that must be the same network.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dsl::{EntryInput, EntryPoint, ExpertsMode, LogitsMode};
use irpa::{Checkpoint, Gguf};
use ops::{ElementType, TensorType, Value};
use trace::{Evaluation, Parameter, Trace, evaluate};
use tracewright_models::Opened;
use tracewright_models::gguf::{ImatrixError, config_json, read_imatrix};

#[path = "../../../irpa/tests/support/gguf_parts.rs"]
pub mod gguf_parts;

use gguf_parts::{F32, GgufParts, TEXT, text};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/gguf")
}

fn parts(name: &str) -> GgufParts {
    GgufParts::read(&fixtures().join(format!("{name}.gguf")))
}

/// A model in a temporary folder, with its trace for five tokens.
struct Model {
    _folder: tempfile::TempDir,
    model: Opened,
    checkpoint: Checkpoint,
    trace: Trace,
}

impl Model {
    fn of(parts: &GgufParts) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        parts.write(&path);
        let model = tracewright_models::read(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        let checkpoint = model.named(Checkpoint::open(&path).unwrap());
        let score = EntryPoint {
            name: "score".into(),
            batch: 1,
            chunk: TOKENS.len(),
            context: TOKENS.len() + 3,
            input: EntryInput::Tokens,
            logits: LogitsMode::All,
            hidden: false,
            kv: trace::KvFormat::Computed,
            experts: ExpertsMode::Auto,
        };
        let trace = model.trace(ElementType::F32, &[score]).unwrap().trace;
        Self { _folder: folder, model, checkpoint, trace }
    }

    /// Checks that the file contains all weights of the network, and no others.
    fn check(&self) {
        let parameters = self.trace.parameters().unwrap();
        bake::check(&self.checkpoint, &parameters, &self.model.ignorable).unwrap_or_else(|e| panic!("{e}"));
    }

    fn logits(&self) -> Vec<f64> {
        self.check();
        let inputs = self.trace.entry("score").unwrap().inputs();
        let argument = |(name, ty): (&str, &TensorType)| match name {
            "tokens" => Value::new(ty.clone(), TOKENS),
            "count" => Value::new(ty.clone(), [TOKENS.len() as f64]),
            _ => Value::from_fn(ty.clone(), |_| 0.0),
        };
        let arguments = inputs.into_iter().map(argument).collect();
        let declared = self.trace.parameters().unwrap();
        let types: BTreeMap<&str, &TensorType> = declared.iter().flat_map(Parameter::sources).collect();
        let parameters = |key: &str| bake::value(&self.checkpoint, key, types.get(key)?);
        let evaluation = Evaluation { parameters: &parameters, watch: None };
        evaluate(&self.trace, "score", arguments, evaluation).unwrap().swap_remove(0).data
    }
}

const TOKENS: [f64; 5] = [3.0, 14.0, 1.0, 5.0, 9.0];

/// Two files that are the same network, and differ from a third one.
fn same(one: &GgufParts, other: &GgufParts, different: &GgufParts) {
    let [one, other, different] = [one, other, different].map(|parts| Model::of(parts).logits());
    let off = |other: &[f64]| one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off(&other) < 1e-5 && off(&different) > 1e-2, "{} {}", off(&other), off(&different));
}

fn scaled(parts: &mut GgufParts, tensor: &str, factor: f32) {
    for word in parts.tensor(tensor).data.as_chunks_mut::<4>().0 {
        *word = (f32::from_le_bytes(*word) * factor).to_le_bytes();
    }
}

fn error(parts: &GgufParts) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    parts.write(&path);
    tracewright_models::read(&path, &[]).err().map(|error| error.to_string()).unwrap_or_default()
}

/// llama.cpp does not distinguish shapes by trailing extents of 1, and its writer removes them.
#[test]
fn extents_of_one_do_not_count() {
    let files = std::fs::read_dir(fixtures()).unwrap().map(|file| file.unwrap().path());
    let mut models = 0;
    for path in files.filter(|path| Gguf::is_at(path)) {
        if tracewright_models::read(&path, &[]).is_err() {
            continue;
        }
        let sound = GgufParts::read(&path);
        let expected = Model::of(&sound);
        expected.check();
        let all = |model: &Model| -> Vec<_> {
            let tensors = model.checkpoint.tensors();
            tensors.map(|tensor| (tensor.name.clone(), tensor.arranged, tensor.shape.clone())).collect()
        };
        for rank in [4, 3, 1] {
            let mut parts = sound.clone();
            for tensor in &mut parts.tensors {
                while tensor.extents.len() > rank && tensor.extents.last() == Some(&1) {
                    tensor.extents.pop();
                }
                while tensor.extents.len() < rank {
                    tensor.extents.push(1);
                }
            }
            let found = Model::of(&parts);
            found.check();
            assert_eq!(all(&found), all(&expected), "{path:?} {rank}");
            assert_eq!(found.model.sizes(), expected.model.sizes(), "{path:?}");
        }
        models += 1;
    }
    assert!(models > 35, "{models}");
}

#[test]
fn attention_can_lack_the_bias_of_its_output_and_have_no_other() {
    let parts = |biased: &[&str], zero: bool| {
        let mut parts = parts("llama-bias");
        let is_of = |name: &str| {
            ["attn_q", "attn_k", "attn_v", "attn_output"]
                .iter()
                .find(|part| name.ends_with(&format!(".{part}.bias")))
                .copied()
        };
        for tensor in &mut parts.tensors {
            if is_of(&tensor.name).is_some_and(|part| zero && !biased.contains(&part)) {
                tensor.data.fill(0);
            }
        }
        parts.tensors.retain(|tensor| zero || is_of(&tensor.name).is_none_or(|part| biased.contains(&part)));
        parts
    };
    for biased in [&["attn_q", "attn_k", "attn_v"][..], &["attn_output"], &[]] {
        same(&parts(biased, false), &parts(biased, true), &parts(&["attn_q", "attn_output"], true));
    }
    // A bias of only one of the three others is no network of this family.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    parts(&["attn_q"], false).write(&path);
    let model = Model::of(&parts(&["attn_q"], false));
    let parameters = model.trace.parameters().unwrap();
    let error = bake::check(&model.checkpoint, &parameters, &model.model.ignorable).unwrap_err();
    assert!(error.to_string().contains("missing `model.layers.*.self_attn.k_proj.bias`"), "{error}");
}

fn float(number: f32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// `rope.scaling.attn_factor` multiplies queries and keys, so its square multiplies the scores.
#[test]
fn a_factor_of_the_rotary_embedding_applies_without_yarn() {
    let sound = parts("llama");
    let with = |scaling: &[(&str, u32, Vec<u8>)], squared: f32| {
        let mut parts = sound.clone();
        for (key, kind, value) in scaling {
            parts.set(&format!("llama.rope.{key}"), *kind, value.clone());
        }
        (0..2).for_each(|layer| scaled(&mut parts, &format!("blk.{layer}.attn_q.weight"), squared));
        parts
    };
    let loud = ("scaling.attn_factor", F32, float(2.0));
    let factor = ("scaling.factor", F32, float(4.0));
    let kind = |kind: &str| ("scaling.type", TEXT, text(kind));
    same(&with(std::slice::from_ref(&loud), 1.0), &with(&[], 4.0), &sound);
    same(
        &with(&[loud.clone(), factor.clone()], 1.0),
        &with(std::slice::from_ref(&factor), 4.0),
        &with(std::slice::from_ref(&factor), 1.0),
    );
    // The type `none` ignores the other factor only.
    let none = [loud.clone(), factor.clone(), kind("none")];
    same(&with(&none, 1.0), &with(&[], 4.0), &with(std::slice::from_ref(&factor), 4.0));
    same(&with(&[kind("longrope"), factor.clone()], 1.0), &with(std::slice::from_ref(&factor), 1.0), &sound);
    // Beside a tensor with factors, too.
    let rope3 = |factor: Option<f32>, squared: f32| {
        let mut parts = parts("llama-rope3");
        factor.iter().for_each(|&x| parts.set("llama.rope.scaling.attn_factor", F32, float(x)));
        (0..2).for_each(|layer| scaled(&mut parts, &format!("blk.{layer}.attn_q.weight"), squared));
        parts
    };
    same(&rope3(Some(0.5), 4.0), &rope3(None, 1.0), &rope3(None, 4.0));
}

/// A linear scaling multiplies the divisors of a tensor.
#[test]
fn a_linear_scaling_applies_beside_factors() {
    for kind in [None, Some("linear"), Some("longrope")] {
        let mut both = parts("llama-rope3");
        both.set("llama.rope.scaling.factor", F32, float(2.0));
        kind.iter().for_each(|kind| both.set("llama.rope.scaling.type", TEXT, text(kind)));
        let mut tensor = parts("llama-rope3");
        scaled(&mut tensor, "rope_freqs.weight", 2.0);
        same(&both, &tensor, &parts("llama-rope3"));
    }
    let mut tensor = parts("llama");
    tensor.add("rope_freqs.weight", &[4], 0, [4.0f32; 4].iter().flat_map(|x| x.to_le_bytes()).collect());
    let mut linear = parts("llama");
    linear.set("llama.rope.scaling.factor", F32, float(4.0));
    same(&linear, &tensor, &parts("llama"));
    // llama.cpp writes 0 for a factor that is not set, and then does not look for the old key.
    let mut unset = parts("llama");
    unset.set("llama.rope.scaling.factor", F32, float(0.0));
    unset.set("llama.rope.scale_linear", F32, float(4.0));
    same(&unset, &parts("llama"), &linear);
}

#[test]
fn scalings_that_no_configuration_describes_are_refused() {
    let mut both = parts("llama-rope3");
    both.set("llama.rope.scaling.factor", F32, float(4.0));
    both.set("llama.rope.scaling.type", TEXT, text("yarn"));
    let said = error(&both);
    let expected = "`llama.rope.scaling.type` is \"yarn\", expected none, linear or longrope beside a tensor";
    assert!(said.contains(expected), "{said}");
    let mut gemma = parts("gemma3");
    gemma.set("gemma3.rope.scaling.attn_factor", F32, float(2.0));
    assert!(
        error(&gemma).contains("`gemma3.rope.scaling.attn_factor` is 2, expected 1"),
        "{}",
        error(&gemma)
    );
    // OLMo 3 has the architecture of OLMo 2, and a window in most layers.
    let mut olmo = parts("olmo2");
    olmo.set("olmo2.attention.sliding_window", gguf_parts::U32, 4096u32.to_le_bytes().to_vec());
    let said = error(&olmo);
    assert!(said.contains("`olmo2.attention.sliding_window` is 4096, expected no such key"), "{said}");
    let mut nan = parts("llama-rope3");
    nan.tensor("rope_freqs.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(error(&nan).contains("`rope_freqs.weight` is NaN"), "{}", error(&nan));
}

/// Values that llama.cpp writes for settings that a network does not have.
#[test]
fn settings_without_effect_are_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let config = |parts: &GgufParts| {
        let path = folder.path().join("model.gguf");
        parts.write(&path);
        config_json(&path).unwrap_or_else(|error| panic!("{error}"))
    };
    let mut parts = parts("llama");
    let expected = config(&parts);
    for (key, kind, value) in [
        ("logit_scale", F32, float(0.0)),
        ("residual_scale", F32, float(1.0)),
        ("attention.clamp_kqv", F32, float(0.0)),
        ("attention.max_alibi_bias", F32, float(0.0)),
        ("use_parallel_residual", gguf_parts::BOOL, vec![0]),
        ("rescale_every_n_layers", gguf_parts::U32, vec![0; 4]),
        ("expert_gating_func", gguf_parts::U32, vec![1, 0, 0, 0]),
    ] {
        parts.set(&format!("llama.{key}"), kind, value);
    }
    assert_eq!(config(&parts), expected);
}

/// An importance matrix with numbers that are no mean squares would select arbitrary scales.
#[test]
fn an_importance_matrix_has_finite_numbers() {
    let model = fixtures().join("llama.gguf");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("imatrix.gguf");
    let written = |sums: &[f32], count: f32| {
        let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut parts = GgufParts::default();
        parts.add("blk.0.attn_q.weight.in_sum2", &[sums.len() as u64, 1], 0, bytes(sums));
        parts.add("blk.0.attn_q.weight.counts", &[1, 1], 0, bytes(&[count]));
        parts.write(&path);
        read_imatrix(&path, &model, &[])
    };
    let sound = written(&[1.0, 4.0, 0.0], 2.0).unwrap();
    let squares = &sound["model.layers.0.self_attn.q_proj.weight"];
    assert_eq!((squares[..2].to_vec(), squares[2] > 0.0), (vec![0.5, 2.0], true));
    for (sums, count, tensor, index) in [
        ([1.0, f32::NAN, 0.0], 2.0, "blk.0.attn_q.weight.in_sum2", 1),
        ([1.0, 4.0, f32::INFINITY], 2.0, "blk.0.attn_q.weight.in_sum2", 2),
        ([-1.0, 4.0, 0.0], 2.0, "blk.0.attn_q.weight.in_sum2", 0),
        ([1.0, 4.0, 0.0], f32::NAN, "blk.0.attn_q.weight.counts", 0),
    ] {
        match written(&sums, count) {
            Err(ImatrixError::Number { tensor: found, index: at, .. }) => {
                assert_eq!((&*found, at), (tensor, index))
            }
            other => panic!("{other:?}"),
        }
    }
}
