//! Quantized folders of floats that are damaged, or that no library writes: each is an error that names the tensor or the key.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use irpa::Checkpoint;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value as Json, json};
use tracewright::bake::BakeOptions;
use tracewright::{Plan, models};
use tracewright_tests::built::repository;

/// Type, shape and bytes, by name.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn folder(name: &str) -> PathBuf {
    repository().join("tests/fixtures/folders").join(name)
}

/// Writes a copy of a folder with other tensors and another `quantization_config`.
fn changed(name: &str, change: impl FnOnce(&mut Tensors, &mut Json)) -> tempfile::TempDir {
    let bytes = fs::read(folder(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let copy = |(key, view): (String, TensorView<'_>)| {
        (key, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut tensors: Tensors = file.tensors().into_iter().map(copy).collect();
    let mut config: Json =
        serde_json::from_slice(&fs::read(folder(name).join("config.json")).unwrap()).unwrap();
    change(&mut tensors, &mut config["quantization_config"]);
    let views = tensors
        .iter()
        .map(|(key, (dtype, shape, data))| (key, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let temporary = tempfile::tempdir().unwrap();
    safetensors::serialize_to_file(views, None, &temporary.path().join("model.safetensors")).unwrap();
    fs::write(temporary.path().join("config.json"), config.to_string()).unwrap();
    temporary
}

/// The error of a folder that is opened, or written as an archive.
fn error(folder: &tempfile::TempDir) -> String {
    let model = folder.path();
    let text = match models::read(model, &[]) {
        Err(error) => tracewright::errors::WithCauses(&error).to_string(),
        Ok(_) => {
            let plan = Plan::new(models::read(model, &[]).unwrap(), None, Some(32), Some(8)).unwrap();
            let lowered = plan.lower(&plan.trace().unwrap().trace).unwrap();
            let checkpoint = plan.named(Checkpoint::open(model).unwrap());
            let baked = lowered.bake(&checkpoint, &model.join("model.irpa"), BakeOptions::default());
            tracewright::errors::WithCauses(&baked.unwrap_err()).to_string()
        }
    };
    text.replace(&model.display().to_string(), "FOLDER")
}

const UP: &str = "model.layers.1.mlp.up_proj";

#[test]
fn wrong_folders_are_errors() {
    let without = |end: &'static str| {
        move |tensors: &mut Tensors, _: &mut Json| {
            assert!(tensors.remove(&format!("{UP}{end}")).is_some());
        }
    };
    let set = |key: &'static str, value: Json| {
        move |_: &mut Tensors, config: &mut Json| {
            config[key] = value;
        }
    };
    let byte = |end: &'static str, place: usize, byte: u8| {
        move |tensors: &mut Tensors, _: &mut Json| {
            tensors.get_mut(&format!("{UP}{end}")).unwrap().2[place] = byte;
        }
    };
    for (folder, expected) in [
        (
            changed("fp8-blocks", without(".weight_scale_inv")),
            "has no tensor `model.layers.1.mlp.up_proj.weight_scale_inv` beside it",
        ),
        (
            changed("fp8-blocks", |tensors, _| {
                let scale = tensors.get_mut(&format!("{UP}.weight_scale_inv")).unwrap();
                scale.1.reverse();
            }),
            "has the shape [2, 1], expected [1, 2]",
        ),
        (
            changed("fp8-blocks", byte(".weight", 163, 0x7f)),
            "the number [1, 3] of the tensor `model.layers.1.mlp.up_proj.weight`",
        ),
        (
            changed("fp8-blocks", byte(".weight", 163, 0xff)),
            "the number [1, 3] of the tensor `model.layers.1.mlp.up_proj.weight`",
        ),
        (
            changed("fp8-blocks", |tensors, _| {
                let scale = tensors.get_mut(&format!("{UP}.weight_scale_inv")).unwrap();
                scale.2[..4].copy_from_slice(&f32::NAN.to_le_bytes());
            }),
            "is NaN, expected a finite number",
        ),
        (
            changed("fp8-blocks", set("activation_scheme", json!("tokens"))),
            "`quantization_config.activation_scheme` is \"tokens\"",
        ),
        (changed("fp8-blocks", set("weight_block_size", json!([64, 64]))), "expected blocks of 128 × 128"),
        (changed("fp8-blocks", set("weight_block_size", json!("128"))), "expected two extents"),
        (changed("fp8-blocks", set("fmt", json!("e5m2"))), "`quantization_config.fmt` is \"e5m2\""),
        (
            changed("float-channel", without(".weight_scale")),
            "has no tensor `model.layers.1.mlp.up_proj.weight_scale` beside it",
        ),
        (
            changed("nf4", without(".weight.absmax")),
            "has no tensor `model.layers.1.mlp.up_proj.weight.absmax` beside it",
        ),
        (
            changed("nf4", without(".weight.quant_state.bitsandbytes__nf4")),
            "has no tensor `model.layers.1.mlp.up_proj.weight.quant_state.bitsandbytes__nf4`",
        ),
        (changed("nf4", byte(".weight.quant_map", 3, 0x41)), "the number of nf4"),
        (
            changed("nf4", byte(".weight.quant_state.bitsandbytes__nf4", 0, b'[')),
            "expected the JSON of a quantized weight",
        ),
        (
            changed("nf4-nested", without(".weight.nested_quant_map")),
            "has no tensor `model.layers.1.mlp.up_proj.weight.nested_quant_map`",
        ),
        (
            changed("nf4", set("bnb_4bit_quant_type", json!("int4"))),
            "`quantization_config.bnb_4bit_quant_type` is \"int4\"",
        ),
        (changed("nf4", set("load_in_8bit", json!(true))), "use a GGUF file in Q8_0 instead"),
        (changed("nf4", set("quant_method", json!("hqq"))), "method `hqq`"),
    ] {
        let found = error(&folder);
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
    }
}
