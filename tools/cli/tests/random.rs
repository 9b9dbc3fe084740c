//! `tracewright random`: weights for any configuration.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::*;

fn random(config: &Path, out: &Path, more: &[&str]) -> std::process::Command {
    let mut command = bare(&["random", text(config), "-o", text(out)]);
    command.args(more);
    command
}

#[test]
fn k11_the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let (config, out) = (fixture("llama-untied"), folder());
    let [a, b, c] = ["a", "b", "c"].map(|name| out.path().join(name));
    succeed(&mut random(&config, &a, &["--seed", "1"]));
    succeed(&mut random(&config.join("config.json"), &b, &["--seed", "1"]));
    succeed(&mut random(&config, &c, &["--seed", "2"]));
    let read = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(read(&a), read(&b));
    assert_ne!(read(&a), read(&c));
    assert_eq!(fs::read(a.join("config.json")).unwrap(), fs::read(config.join("config.json")).unwrap());
    let made = tensors(&a.join("model.safetensors"));
    let given = tensors(&config.join("model.safetensors"));
    let shapes =
        |t: &Tensors| t.iter().map(|(name, (_, shape, _))| (name.clone(), shape.clone())).collect::<Vec<_>>();
    assert_eq!(shapes(&made), shapes(&given));
    let weight = floats(&made, "model.embed_tokens.weight");
    let mean = weight.iter().sum::<f32>() / weight.len() as f32;
    let deviation = (weight.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / weight.len() as f32).sqrt();
    let expected = 1.0 / (made["model.embed_tokens.weight"].1[1] as f32).sqrt();
    assert!(mean.abs() < 0.05 * expected && (deviation / expected - 1.0).abs() < 0.05, "{mean} {deviation}");
}

/// Options that do not affect weights are rejected. If the configuration has no element type, the command
/// requires one.
#[test]
fn only_what_weights_depend_on_is_an_option() {
    let (config, out) = (fixture("llama-untied"), folder());
    let target = out.path().join("a");
    for option in ["--quant", "--kernels", "--kv", "--simplify"] {
        refused(&mut random(&config, &target, &[option, "off"]), 2, &[option]);
    }
    let same = succeed(&mut random(&config, &target, &["--dtype", "f32"])).err;
    assert!(!same.contains("is needed"), "{same}");
    let other = succeed(&mut random(&config, &out.path().join("b"), &["--dtype", "f16"])).err;
    assert!(other.contains("its config.json declares f32: pass `--dtype f16`"), "{other}");
}

/// A tensor is made whole: where there is no memory for one, nothing begins.
#[test]
fn a_tensor_that_is_more_than_memory() {
    let (model, out) = (copied("llama-tied"), folder());
    edit_config(model.path(), |config| {
        for (key, value) in [("vocab_size", 1 << 24), ("hidden_size", 1 << 24)] {
            config.insert(key.into(), json!(value));
        }
    });
    let target = out.path().join("new/of/many");
    refused(
        &mut random(model.path(), &target, &[]),
        1,
        &["bytes, which is more than the memory of the machine"],
    );
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

#[test]
fn what_is_there_is_not_replaced() {
    let (config, out) = (fixture("llama-tied"), folder());
    let target = out.path().join("a");
    succeed(&mut random(&config, &target, &[]));
    let before = listing(out.path());
    refused(
        &mut random(&config, &target, &["--seed", "5"]),
        1,
        &["model.safetensors` exists", "write to another folder"],
    );
    fs::remove_file(target.join("model.safetensors")).unwrap();
    // The weights of one configuration beside another would be a trap.
    refused(&mut random(&fixture("llama-mha"), &target, &[]), 1, &["config.json` exists"]);
    succeed(&mut random(&config, &target, &[]));
    assert_eq!(listing(out.path()), before);
}

#[cfg(unix)]
#[test]
fn a_full_disk_or_ctrl_c_leaves_nothing() {
    let out = folder();
    let target = out.path().join("new");
    refused(
        &mut limited(&random(&fixture("llama-tied"), &target, &[]), 50),
        1,
        &["model.safetensors", "File too large"],
    );
    assert!(!target.exists());

    // 4 GB in many small tensors: seconds, of which a few milliseconds are used.
    let model = copied("llama-tied");
    edit_config(model.path(), |config| {
        for (key, value) in [("hidden_size", 512), ("intermediate_size", 1024), ("num_hidden_layers", 400)] {
            config.insert(key.into(), json!(value));
        }
    });
    let mut child = spawn(&mut random(model.path(), &target, &[]));
    wait_while_runs(&mut child, "a part of the weights", || {
        listing(&target).iter().any(|(_, size)| *size > 0)
    });
    interrupt(&child);
    interrupted(child);
    assert!(!target.exists());
}
