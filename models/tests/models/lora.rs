//! Adapters that do not fit: every problem has a message that names the key or the tensor, and what to do.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use expect_test::expect;
use irpa::{Checkpoint, ModelFiles};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};
use tracewright_models::{LoraFile, fit};

use crate::support::fixture;

/// Tensors of f32, by name.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

const Q: &str = "base_model.model.model.layers.0.self_attn.q_proj";

/// The adapter `tests/fixtures/lora/llama`, of rank 4 for `q_proj`, `k_proj` and `down_proj`.
fn adapter() -> (Map<String, Value>, Tensors) {
    let folder = fixture("lora/llama");
    let config = serde_json::from_slice(&fs::read(folder.join("adapter_config.json")).unwrap()).unwrap();
    let checkpoint = Checkpoint::open(folder.join("adapter_model.safetensors")).unwrap();
    let tensor = |tensor: &irpa::CheckpointTensor| {
        let mut numbers = vec![0.0; tensor.shape.iter().product()];
        checkpoint.numbers(&tensor.name).unwrap().read(0, &mut numbers);
        (tensor.name.clone(), (tensor.shape.clone(), numbers))
    };
    (config, checkpoint.tensors().map(tensor).collect())
}

fn write(folder: &Path, config: &Map<String, Value>, tensors: &Tensors) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("adapter_config.json"), Value::Object(config.clone()).to_string()).unwrap();
    let bytes: BTreeMap<&String, Vec<u8>> = tensors
        .iter()
        .map(|(name, (_, numbers))| (name, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let view = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap())
    };
    let views: Vec<_> = tensors.iter().map(view).collect();
    safetensors::serialize_to_file(views, None, &folder.join("adapter_model.safetensors")).unwrap();
}

/// The message for a model and adapters.
fn refused_all(model: &str, adapters: &[LoraFile]) -> String {
    let files = ModelFiles::at(fixture(model));
    let fitted = fit::open(tracewright_models::read, &files, &[]).unwrap();
    let added = fitted.with_adapters(&files, adapters);
    added.err().map_or_else(|| "no error".to_owned(), |error| error.to_string())
}

/// The message for a model and an adapter, with short paths.
fn refused(model: &str, adapter: &Path) -> String {
    let said = refused_all(model, &[LoraFile { path: adapter.into(), scale: 1.0 }]);
    said.replace(adapter.to_str().unwrap(), "adapter")
}

/// Damages a good adapter.
type Edit = fn(&mut Map<String, Value>, &mut Tensors);

const EDITS: &[Edit] = &[
    |config, _| drop(config.insert("bias".into(), json!("all"))),
    |config, _| drop(config.insert("target_parameters".into(), json!(["mlp.experts.gate_up_proj"]))),
    |config, _| drop(config.insert("layer_replication".into(), json!([[0, 2], [1, 2]]))),
    |config, _| drop(config.insert("alora_invocation_tokens".into(), json!([1, 2]))),
    |config, _| drop(config.insert("use_qalora".into(), json!(true))),
    |config, _| drop(config.insert("lora_bias".into(), json!(true))),
    |config, _| drop(config.insert("trainable_token_indices".into(), json!([7]))),
    |config, _| drop(config.insert("init_lora_weights".into(), json!("pissa_niter_4"))),
    |config, _| drop(config.insert("peft_type".into(), json!("LOHA"))),
    |config, _| drop(config.insert("new_kind_of_scale".into(), json!(2))),
    |config, _| drop(config.insert("r".into(), json!(-4))),
    |config, _| drop(config.insert("target_modules".into(), json!("(q_proj"))),
    // Peers multiplied by another rank than that of the factors.
    |config, _| drop(config.insert("r".into(), json!(8))),
    |config, _| drop(config.insert("target_modules".into(), json!(["k_proj", "down_proj"]))),
    |config, _| drop(config.insert("layers_to_transform".into(), json!(1))),
    |config, _| drop(config.insert("use_dora".into(), json!(true))),
    |_, tensors| drop(tensors.remove(&format!("{Q}.lora_B.weight"))),
    |_, tensors| {
        let tensor = tensors.remove(&format!("{Q}.lora_B.weight")).unwrap();
        tensors.insert(format!("{Q}.lora_B.weight"), (vec![tensor.0[0] / 2, 8], tensor.1));
    },
    |_, tensors| {
        let a = tensors.get_mut(&format!("{Q}.lora_A.weight")).unwrap();
        *a = (vec![4, 59], a.1[..4 * 59].to_vec());
    },
    |_, tensors| {
        for end in ["A", "B"] {
            let tensor = tensors.remove(&format!("{Q}.lora_{end}.weight")).unwrap();
            tensors.insert(format!("{}.lora_{end}.weight", Q.replace(".0.", ".30.")), tensor);
        }
    },
    |_, tensors| drop(tensors.insert("model.norm.weight".into(), (vec![60], vec![1.0; 60]))),
    |_, tensors| {
        drop(tensors.insert("base_model.model.lm_head.weight".into(), (vec![515, 60], vec![1.0; 515 * 60])))
    },
    |_, tensors| tensors.get_mut(&format!("{Q}.lora_A.weight")).unwrap().1[61] = f32::NAN,
    |_, tensors| tensors.clear(),
];

#[test]
fn malformed_adapters_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut said = String::new();
    for edit in EDITS {
        let (mut config, mut tensors) = adapter();
        edit(&mut config, &mut tensors);
        let path = folder.path().join("adapter");
        write(&path, &config, &tensors);
        said += &refused("llama-untied", &path);
        said += "\n\n";
    }
    expect![[r#"
        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `bias` is "all", expected "none"; train the adapter with `bias="none"`, or merge it with `merge_and_unload` of PEFT

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `target_parameters` is ["mlp.experts.gate_up_proj"], expected null; merge the adapter with `merge_and_unload` of PEFT, and open the merged model

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `layer_replication` is [[0,2],[1,2]], expected null; merge the adapter with `merge_and_unload` of PEFT, and open the model with all its layers

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `alora_invocation_tokens` is [1,2], expected null; Tracewright adds an adapter to the weights, so it cannot begin at a token; use PEFT

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `use_qalora` is true, expected false; merge the adapter with `merge_and_unload` of PEFT, and open the merged model

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `lora_bias` is true, expected false; merge the adapter with `merge_and_unload` of PEFT, and open the merged model

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `trainable_token_indices` is [7], expected null; merge the adapter with `merge_and_unload` of PEFT, and open the merged model

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `init_lora_weights` is "pissa_niter_4", expected a value that does not change the model's own weights; save the adapter with `path_initial_model_for_weight_conversion` of PEFT

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `peft_type` is "LOHA", expected "LORA"; merge the adapter with `merge_and_unload` of PEFT, and open the merged model

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `new_kind_of_scale` is 2, but Tracewright does not know this key; merge the adapter with `merge_and_unload` of PEFT, and open the merged model

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `r` is -4, expected a positive number; save the adapter again with PEFT

        the adapter `adapter/adapter_config.json`: 1 problem(s)
          `target_modules` is "(q_proj", expected a list of names, or a regular expression; save the adapter again with PEFT

        the adapter `adapter` does not fit: 6 problem(s)
          the tensor `base_model.model.model.layers.0.mlp.down_proj.lora_A.weight` has the shape [4, 90], expected [8, 90] because `adapter_config.json` sets the rank 8 for `model.layers.0.mlp.down_proj`
          the tensor `base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight` has the shape [4, 60], expected [8, 60] because `adapter_config.json` sets the rank 8 for `model.layers.0.self_attn.k_proj`
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` has the shape [4, 60], expected [8, 60] because `adapter_config.json` sets the rank 8 for `model.layers.0.self_attn.q_proj`
          the tensor `base_model.model.model.layers.1.mlp.down_proj.lora_A.weight` has the shape [4, 90], expected [8, 90] because `adapter_config.json` sets the rank 8 for `model.layers.1.mlp.down_proj`
          the tensor `base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight` has the shape [4, 60], expected [8, 60] because `adapter_config.json` sets the rank 8 for `model.layers.1.self_attn.k_proj`
          the tensor `base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight` has the shape [4, 60], expected [8, 60] because `adapter_config.json` sets the rank 8 for `model.layers.1.self_attn.q_proj`

        the adapter `adapter` does not fit: 2 problem(s)
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is of a module that `target_modules` does not select; save the adapter again with PEFT
          the tensor `base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight` is of a module that `target_modules` does not select; save the adapter again with PEFT

        the adapter `adapter` does not fit: 3 problem(s)
          the tensor `base_model.model.model.layers.0.mlp.down_proj.lora_A.weight` is of a module that `layers_to_transform` does not select; save the adapter again with PEFT
          the tensor `base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight` is of a module that `layers_to_transform` does not select; save the adapter again with PEFT
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is of a module that `layers_to_transform` does not select; save the adapter again with PEFT

        the adapter `adapter` does not fit: 6 problem(s)
          the tensor `base_model.model.model.layers.0.mlp.down_proj.lora_magnitude_vector` is missing, which belongs to `base_model.model.model.layers.0.mlp.down_proj.lora_A.weight`; download or save the adapter again
          the tensor `base_model.model.model.layers.0.self_attn.k_proj.lora_magnitude_vector` is missing, which belongs to `base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight`; download or save the adapter again
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector` is missing, which belongs to `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`; download or save the adapter again
          the tensor `base_model.model.model.layers.1.mlp.down_proj.lora_magnitude_vector` is missing, which belongs to `base_model.model.model.layers.1.mlp.down_proj.lora_A.weight`; download or save the adapter again
          the tensor `base_model.model.model.layers.1.self_attn.k_proj.lora_magnitude_vector` is missing, which belongs to `base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight`; download or save the adapter again
          the tensor `base_model.model.model.layers.1.self_attn.q_proj.lora_magnitude_vector` is missing, which belongs to `base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight`; download or save the adapter again

        the adapter `adapter` does not fit: 1 problem(s)
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight` is missing, which belongs to `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`; download or save the adapter again

        the adapter `adapter` does not fit: 1 problem(s)
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight` has the shape [42, 8], expected [42, 4] because `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` has the rank 4

        the adapter `adapter` does not fit: 1 problem(s)
          the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` has the shape [4, 59], expected [4, 60] because `model.layers.0.self_attn.q_proj.weight` has the shape [84, 60]

        the adapter `adapter` does not fit: 1 problem(s)
          the network has no weight `model.layers.30.self_attn.q_proj` for the tensor `base_model.model.model.layers.30.self_attn.q_proj.lora_B.weight`; the most similar weight is `model.layers.0.self_attn.q_proj.weight`

        the adapter `adapter` does not fit: 1 problem(s)
          the tensor `model.norm.weight` is no part of an adapter, expected names such as `base_model.model.….q_proj.lora_A.weight`

        the adapter `adapter` does not fit: 1 problem(s)
          the tensor `base_model.model.lm_head.weight` is of a module that `modules_to_save` does not select; save the adapter again with PEFT

        `adapter/adapter_model.safetensors`: the number [1, 1] of the tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` is NaN, expected a finite number; download or convert the model again

        the adapter `adapter` does not fit: 1 problem(s)
          the adapter has no tensors, so it changes nothing; save the adapter again

    "#]].assert_eq(&said);
}

/// A network for text can be a part of one that also sees.
#[test]
fn paths_with_a_language_model_fit() {
    let folder = tempfile::tempdir().unwrap();
    for before in ["model.", "model.language_model.", "language_model.model.", "language_model."] {
        let (config, tensors) = adapter();
        let renamed = |(name, tensor): (String, _)| {
            (name.replace(".model.layers.", &format!(".{before}layers.")), tensor)
        };
        let path = folder.path().join("adapter");
        write(&path, &config, &tensors.into_iter().map(renamed).collect());
        assert_eq!(refused("llama-untied", &path), "no error", "{before}");
    }
}

/// PEFT changes one use of the weight, and both once the adapter is merged.
#[test]
fn other_adapters_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let tied = refused("llama-tied", &fixture("lora/llama-embeddings"));
    let said = [
        refused("llama-untied", &missing),
        refused("llama-untied", &fixture("demo.json")),
        refused("llama-untied", &fixture("gguf/llama-f16.gguf")),
        refused("qwen3", &fixture("lora/llama/adapter.gguf")),
        tied,
    ];
    expect![[r#"
        `adapter` is no adapter, expected a folder with `adapter_config.json` and `adapter_model.safetensors`, or a GGUF file

        `adapter` is no adapter, expected a folder with `adapter_config.json` and `adapter_model.safetensors`, or a GGUF file

        `adapter` is no adapter, expected a folder with `adapter_config.json` and `adapter_model.safetensors`, or a GGUF file

        the adapter `adapter`: 1 problem(s)
          `general.architecture` is `llama`, expected the architecture of the model; open the model for which the adapter was trained

        the adapter `adapter` does not fit: 4 problem(s)
          the tensor `base_model.model.lm_head.base_layer.weight` changes the embedding or the head, but the model uses one weight for both; merge the adapter with `merge_and_unload` of PEFT, and open the merged model
          the tensor `base_model.model.model.embed_tokens.base_layer.weight` changes the embedding or the head, but the model uses one weight for both; merge the adapter with `merge_and_unload` of PEFT, and open the merged model
          the tensor `base_model.model.lm_head.lora_B.weight` changes the embedding or the head, but the model uses one weight for both; merge the adapter with `merge_and_unload` of PEFT, and open the merged model
          the tensor `base_model.model.model.embed_tokens.lora_embedding_B` changes the embedding or the head, but the model uses one weight for both; merge the adapter with `merge_and_unload` of PEFT, and open the merged model"#]].assert_eq(&said.join("\n\n"));
}

/// A part that does not add has the scale 1, and only one adapter can have it.
#[test]
fn only_sums_have_a_scale_and_a_second_adapter() {
    let of = |name: &str, scale: f32| LoraFile { path: fixture(&format!("lora/{name}")), scale };
    let refused = |adapters: &[LoraFile]| refused_all("llama-untied", adapters);
    assert_eq!(refused(&[of("llama", 0.5), of("llama", 2.0)]), "no error");
    // Both save the embedding as it was before training.
    assert_eq!(refused(&[of("llama-embeddings", 0.5), of("llama-embeddings", 1.0)]), "no error");
    let dora = refused(&[of("llama-dora", 0.5)]);
    assert!(dora.contains("the scale is 0.5, expected 1") && dora.contains("(DoRA)"), "{dora}");
    let whole = refused(&[of("llama-layers", 0.5)]);
    assert!(whole.contains("the scale is 0.5, expected 1") && whole.contains("replaces a weight"), "{whole}");
    let twice = refused(&[of("llama-layers", 1.0), of("llama-layers", 1.0)]);
    assert!(twice.contains("which another adapter changes"), "{twice}");
}
