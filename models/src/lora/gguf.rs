//! Adapters as GGUF files (`src/llama-adapter.cpp` and `convert_lora_to_gguf.py` in llama.cpp).

use std::path::Path;

use files::{limits, parse_json, read_text};
use irpa::{Checkpoint, Gguf, GgufPart, GgufValue, ModelFiles};
use serde_json::Value;

use super::adapter::{Adapter, ModuleUpdate};
use super::error::{LoraError, LoraProblem};
use crate::Opened;

const MERGE: &str = "name the folder that PEFT wrote instead of the GGUF file";

/// Networks whose matrices llama.cpp transposes, but not the factors of an adapter.
const TRANSPOSED: &str = "gpt2";

pub(super) fn read(path: &Path, network: &Opened, files: &ModelFiles) -> Result<Adapter, LoraError> {
    let file = Gguf::open(path)?;
    if !matches!(GgufPart::of_keys(&file), Some(GgufPart::Adapter { .. })) {
        return Err(LoraError::NoAdapter { path: path.to_owned() });
    }
    let mut problems = Vec::new();
    let text = |key: &str| file.text(key).unwrap_or("missing").to_owned();
    let architecture = text("general.architecture");
    let mut refuse = |key: &str, expected, help| {
        problems.push(LoraProblem::Field {
            key: key.to_owned(),
            found: format!("`{}`", text(key)),
            expected,
            help,
        });
    };
    if text("adapter.type") != "lora" {
        refuse("adapter.type", "`lora`", MERGE);
    }
    if architecture == TRANSPOSED {
        refuse("general.architecture", "another architecture", MERGE);
    }
    let renaming = network.naming.in_gguf(&architecture, || heads(files));
    if renaming.is_none() {
        const EXPECTED: &str = "the architecture of the model";
        refuse("general.architecture", EXPECTED, "open the model for which the adapter was trained");
    }
    let alpha = match file.get("adapter.lora.alpha") {
        Some(GgufValue::Float(alpha)) if alpha.is_finite() => Some(alpha),
        _ => None,
    };
    if alpha.is_none() {
        refuse("adapter.lora.alpha", "a number", "convert the adapter again");
    }
    if file.get("adapter.alora.invocation_tokens").is_some() {
        const HELP: &str =
            "Tracewright adds an adapter to the weights, so it cannot begin at a token; use llama.cpp";
        refuse("adapter.alora.invocation_tokens", "no value", HELP);
    }
    let (Some(renaming), Some(alpha), true) = (renaming, alpha, problems.is_empty()) else {
        return Err(LoraError::Fields { path: path.to_owned(), problems });
    };
    // The factors have the names of their weight, so the weight's name decides about the order of B's rows.
    let tensors = Checkpoint::of_gguf(&file).revised(|mut tensor| {
        let Some(weight) = tensor.name.strip_suffix(".lora_b") else { return Some(tensor) };
        tensor.arranged = renaming.order(weight, &tensor);
        Some(tensor)
    });
    let mut updates = Vec::new();
    for tensor in tensors.tensors() {
        match update(&tensor.name, alpha, &tensors, |weight| renaming.name(weight)) {
            Ok(update) => updates.extend(update),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        Ok(Adapter { path: path.to_owned(), tensors, updates, replaced: Vec::new() })
    } else {
        Err(LoraError::Tensors { path: path.to_owned(), problems })
    }
}

/// The heads of queries and of keys in `config.json`; zeros if it is missing.
fn heads(files: &ModelFiles) -> [usize; 2] {
    let path = if files.path().is_dir() { files.path().join("config.json") } else { files.path().to_owned() };
    let config: Option<Value> = read_text(&path, limits::CONFIG).ok().and_then(|text| parse_json(&text).ok());
    let count = |key: &str| {
        let config = config.as_ref()?;
        let found = config.get("text_config").and_then(|text| text.get(key)).or_else(|| config.get(key))?;
        usize::try_from(found.as_u64()?).ok()
    };
    let queries = count("num_attention_heads").unwrap_or(0);
    [queries, count("num_key_value_heads").unwrap_or(queries)]
}

/// The update of which `tensor` is A; `None` for B.
fn update(
    tensor: &str,
    alpha: f64,
    tensors: &Checkpoint,
    name: impl Fn(&str) -> Option<String>,
) -> Result<Option<ModuleUpdate>, LoraProblem> {
    let missing = |end: &str, weight: &str| LoraProblem::Incomplete {
        tensor: tensor.to_owned(),
        missing: format!("{weight}.{end}"),
    };
    if let Some(weight) = tensor.strip_suffix(".lora_b") {
        let a = tensors.get(&format!("{weight}.lora_a"));
        return a.map(|_| None).ok_or_else(|| missing("lora_a", weight));
    }
    let weight = tensor.strip_suffix(".lora_a");
    let Some(weight) = weight else { return Err(LoraProblem::Name { tensor: tensor.to_owned() }) };
    let b = tensors.get(&format!("{weight}.lora_b")).ok_or_else(|| missing("lora_b", weight))?;
    let Some(module) = name(weight) else {
        let (tensor, module) = (tensor.to_owned(), weight.to_owned());
        return Err(LoraProblem::NoModule { tensor, module, nearest: None });
    };
    // A row of A for each token, so that llama.cpp can look it up.
    let is_embedding = weight == "token_embd.weight";
    let rank = b.shape.get(1).copied().unwrap_or(0).max(1);
    Ok(Some(ModuleUpdate {
        module: module.strip_suffix(".weight").unwrap_or(&module).to_owned(),
        a: tensor.to_owned(),
        b: b.name.clone(),
        a_transposed: is_embedding,
        // As in llama.cpp, α = 0 means that the file has none.
        scale: if alpha == 0.0 { 1.0 } else { alpha / rank as f64 },
        inputs_first: is_embedding,
        magnitude: None,
    }))
}
