//! `tracewright plan`: what a model will hold in memory.

use std::fs;

use serde_json::Value;

use crate::support::*;

#[test]
fn a_plan_reads_a_configuration_alone() {
    let folder = folder();
    let config = folder.path().join("config.json");
    fs::copy(demo().join("config.json"), &config).unwrap();
    let ran = succeed(bare(&["plan", text(&config), "--json"]).args(SMALL));
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    let bytes = |name: &str| plan[name].as_u64().unwrap();
    // Keys and values of each layer: context × heads × features, two bytes each.
    let config: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let number = |name: &str| config[name].as_u64().unwrap();
    let state = 2 * 2 * 40 * number("num_key_value_heads") * number("head_dim") * number("num_hidden_layers");
    assert_eq!(plan["state_bytes"]["kv"].as_u64().unwrap(), state);
    assert!(bytes("running_bytes") > bytes("weight_bytes") + state);
    assert_eq!(plan["fits"], true);

    let table = succeed(bare(&["plan", text(folder.path())]).args(SMALL));
    for word in
        ["weights", "no matrix: model.layers.0.input_layernorm.weight", "state", "context 40", "running"]
    {
        assert!(table.out.contains(word), "`{word}` is not in\n{}", table.out);
    }
    assert_eq!(listing(folder.path()).len(), 1);
}

/// Keys and values of a hundred million positions: refused by all, and at once.
#[test]
fn what_cannot_fit_is_refused() {
    let folder = copied("llama-untied");
    edit_config(folder.path(), |config| {
        config.insert("max_position_embeddings".into(), 1_000_000_000.into());
    });
    let model = text(folder.path());
    let words = ["the network needs", "state", "--context"];
    let ran = refused(bare(&["plan", model, "--context", "1000000000"]).args(["--chunk", "8"]), 1, &words);
    assert!(ran.out.contains("running"), "{}", ran.out);
    #[cfg(feature = "iree")]
    {
        let cache = folder.path().join("cache");
        let generate =
            ["generate", model, "--tokens", "1", "--context", "1000000000", "--cache", text(&cache)];
        refused(&mut tracewright(&generate), 1, &words);
        assert!(!cache.exists());
    }
}
