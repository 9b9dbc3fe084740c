//! Adapters in the format of the library PEFT: `adapter_config.json` and `adapter_model.safetensors`
//! (`peft/tuners/lora/config.py`, `peft/utils/save_and_load.py`).

use std::collections::BTreeMap;
use std::path::Path;

use files::{is_there, limits, parse_json, read_text};
use irpa::Checkpoint;
use serde_json::{Map, Value};

use super::adapter::{Adapter, ModuleUpdate};
use super::error::{LoraError, LoraProblem};
use super::targets::{Layers, Names, Patterns};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const MERGE: &str = "merge the adapter with `merge_and_unload` of PEFT, and open the merged model";

/// Keys for the training, which do not change the meaning of the tensors.
const IGNORED: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
    "velora_config",
];

/// Keys that change what the tensors mean, with the reason for which Tracewright does not apply them.
const REFUSED: &[(&str, &str)] = &[
    (
        "alora_invocation_tokens",
        "Tracewright adds an adapter to the weights, so it cannot begin at a token; use PEFT",
    ),
    ("arrow_config", "Tracewright cannot choose among adapters for each token; use PEFT"),
    ("kasa_config", MERGE),
    (
        "layer_replication",
        "merge the adapter with `merge_and_unload` of PEFT, and open the model with all its layers",
    ),
    ("megatron_config", MERGE),
    ("monteclora_config", MERGE),
    ("target_parameters", MERGE),
    ("trainable_token_indices", MERGE),
    ("use_bdlora", MERGE),
];

/// Ways to begin the training that also change the weights of the model.
const CHANGES_BASE: [&str; 5] = ["corda", "loftq", "lora_ga", "olora", "pissa"];

/// The keys of the configuration that apply to all modules.
struct Config {
    rank: f64,
    alpha: f64,
    ranks: Patterns,
    alphas: Patterns,
    is_stabilized: bool,
    inputs_first: bool,
    has_magnitudes: bool,
    targets: Option<Names>,
    excluded: Option<Names>,
    layers: Option<Layers>,
    saved: Option<Names>,
}

pub(super) fn read(path: &Path) -> Result<Adapter, LoraError> {
    let config_path = path.join(CONFIG);
    if !is_there(&config_path) {
        return Err(LoraError::NoAdapter { path: path.to_owned() });
    }
    let text = read_text(&config_path, limits::CONFIG)?;
    let keys: Map<String, Value> =
        parse_json(&text).map_err(|source| LoraError::Syntax { path: config_path.clone(), source })?;
    let mut problems = Vec::new();
    let config = Config::read(&keys, &mut problems);
    let Some(config) = config.filter(|_| problems.is_empty()) else {
        return Err(LoraError::Fields { path: config_path, problems });
    };
    let weights = path.join(WEIGHTS);
    if !is_there(&weights) {
        return Err(LoraError::NoAdapter { path: path.to_owned() });
    }
    let tensors = Checkpoint::open(weights)?;
    let (mut replaced, mut factors) = (Vec::new(), BTreeMap::<&str, ModuleFactors<'_>>::new());
    for tensor in tensors.tensors() {
        match Kind::of(&tensor.name, &config) {
            Ok(Kind::Replaces(weight)) => replaced.push((tensor.name.clone(), weight)),
            Ok(Kind::Factor(module, factor)) => factors.entry(module).or_default().add(factor, &tensor.name),
            Err(problem) => problems.push(problem),
        }
    }
    let mut updates = Vec::new();
    for (module, factors) in factors {
        match config.update(module, &factors, &tensors) {
            Ok(update) => updates.push(update),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        Ok(Adapter { path: path.to_owned(), updates, replaced, tensors })
    } else {
        Err(LoraError::Tensors { path: path.to_owned(), problems })
    }
}

/// `None` is a missing key, which has its default.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(keys) => keys.is_empty(),
        _ => false,
    }
}

impl Config {
    fn read(keys: &Map<String, Value>, problems: &mut Vec<LoraProblem>) -> Option<Self> {
        let known = [
            "alpha_pattern",
            "bias",
            "exclude_modules",
            "fan_in_fan_out",
            "init_lora_weights",
            "layers_pattern",
            "layers_to_transform",
            "loftq_config",
            "corda_config",
            "lora_ga_config",
            "lora_alpha",
            "lora_bias",
            "modules_to_save",
            "peft_type",
            "r",
            "rank_pattern",
            "target_modules",
            "use_dora",
            "use_qalora",
            "use_rslora",
        ];
        for (key, value) in keys {
            let name = key.as_str();
            let help = REFUSED.iter().find_map(|(refused, help)| (*refused == name).then_some(*help));
            match help {
                Some(help) if !is_off(value) => problems.push(field(name, value, "null", help)),
                Some(_) => {}
                None if known.contains(&name) || IGNORED.contains(&name) || is_off(value) => {}
                None => problems.push(LoraProblem::Unknown { key: key.clone(), found: shown(value) }),
            }
        }
        Self::refuse_values(keys, problems);
        let mut kept = |result: Result<Option<Names>, LoraProblem>| {
            result.unwrap_or_else(|problem| {
                problems.push(problem);
                None
            })
        };
        let [targets, excluded, saved] = ["target_modules", "exclude_modules", "modules_to_save"]
            .map(|key| kept(Names::read(key, keys.get(key))));
        let rank = Self::number("r", keys, 8.0, problems);
        let alpha = Self::number("lora_alpha", keys, 8.0, problems);
        let patterns = ["rank_pattern", "alpha_pattern"]
            .map(|key| Patterns::read(key, keys.get(key)).map_err(|problem| problems.push(problem)).ok());
        let layers = Layers::read(keys).map_err(|problem| problems.push(problem)).ok()?;
        let [ranks, alphas] = patterns;
        let flag = |key: &str| keys.get(key).and_then(Value::as_bool).unwrap_or(false);
        Some(Self {
            rank: rank?,
            alpha: alpha?,
            ranks: ranks?,
            alphas: alphas?,
            is_stabilized: flag("use_rslora"),
            inputs_first: flag("fan_in_fan_out"),
            has_magnitudes: flag("use_dora"),
            targets,
            excluded,
            layers,
            saved,
        })
    }

    /// Values of known keys that Tracewright does not apply.
    fn refuse_values(keys: &Map<String, Value>, problems: &mut Vec<LoraProblem>) {
        const TRAIN: &str =
            "train the adapter with `bias=\"none\"`, or merge it with `merge_and_unload` of PEFT";
        let mut refuse = |key: &str, expected, help| {
            keys.get(key).into_iter().for_each(|found| problems.push(field(key, found, expected, help)));
        };
        let text = |key: &str| keys.get(key).and_then(Value::as_str);
        if text("peft_type") != Some("LORA") {
            refuse("peft_type", "\"LORA\"", MERGE);
        }
        if !matches!(keys.get("bias"), None | Some(Value::Null)) && text("bias") != Some("none") {
            refuse("bias", "\"none\"", TRAIN);
        }
        for key in ["lora_bias", "use_qalora"] {
            if keys.get(key).is_some_and(|value| !is_off(value)) {
                refuse(key, "false", MERGE);
            }
        }
        for key in ["use_rslora", "use_dora", "fan_in_fan_out"] {
            if !matches!(keys.get(key), None | Some(Value::Null | Value::Bool(_))) {
                refuse(key, "true or false", "save the adapter again with PEFT");
            }
        }
        if text("init_lora_weights").is_some_and(|way| CHANGES_BASE.iter().any(|word| way.starts_with(word)))
        {
            refuse(
                "init_lora_weights",
                "a value that does not change the model's own weights",
                "save the adapter with `path_initial_model_for_weight_conversion` of PEFT",
            );
        }
    }

    fn number(
        key: &str,
        keys: &Map<String, Value>,
        default: f64,
        problems: &mut Vec<LoraProblem>,
    ) -> Option<f64> {
        let Some(value) = keys.get(key).filter(|value| !value.is_null()) else { return Some(default) };
        let number = value.as_f64().filter(|number| *number > 0.0);
        if number.is_none() {
            problems.push(field(key, value, "a positive number", "save the adapter again with PEFT"));
        }
        number
    }

    /// Checks that the configuration selects the module of a tensor.
    fn select(&self, tensor: &str, module: &str) -> Result<(), LoraProblem> {
        let refuse = |key| Err(LoraProblem::NotTargeted { tensor: tensor.to_owned(), key });
        if self.excluded.as_ref().is_some_and(|names| names.matches(module)) {
            return refuse("exclude_modules");
        }
        match &self.targets {
            Some(names) if !names.matches(module) => return refuse("target_modules"),
            Some(Names::List(names)) if names.iter().any(|name| name == module) => return Ok(()),
            _ => {}
        }
        match &self.layers {
            Some(layers) if !layers.contain(module) => refuse("layers_to_transform"),
            _ => Ok(()),
        }
    }

    fn update(
        &self,
        module: &str,
        factors: &ModuleFactors<'_>,
        tensors: &Checkpoint,
    ) -> Result<ModuleUpdate, LoraProblem> {
        let missing = |tensor: &str, missing: &str| LoraProblem::Incomplete {
            tensor: tensor.to_owned(),
            missing: format!("{PREFIX}{module}.{missing}"),
        };
        let (names, inputs_first) = match (factors.embedding_a, factors.embedding_b) {
            (None, None) => (["lora_A.weight", "lora_B.weight"], self.inputs_first),
            _ => (["lora_embedding_A", "lora_embedding_B"], true),
        };
        let [a, b] = if factors.is_embedding() {
            [factors.embedding_a, factors.embedding_b]
        } else {
            [factors.a, factors.b]
        };
        let any = a.or(b).or(factors.magnitude).unwrap_or_default();
        let (a, b) = (a.ok_or_else(|| missing(any, names[0]))?, b.ok_or_else(|| missing(any, names[1]))?);
        self.select(a, module)?;
        let shape = |name: &str| tensors.get(name).map_or_else(Vec::new, |tensor| tensor.shape.clone());
        let (rank, found) = (self.ranks.of(module).unwrap_or(self.rank), shape(a));
        if found.len() == 2 && found[0] as f64 != rank {
            let (tensor, expected) = (a.to_owned(), vec![rank as usize, found[1]]);
            let because = format!("`{CONFIG}` sets the rank {rank} for `{module}`");
            return Err(LoraProblem::Shape { tensor, found, expected, because });
        }
        match (self.has_magnitudes, factors.magnitude) {
            (true, None) => return Err(missing(a, "lora_magnitude_vector")),
            (false, Some(tensor)) => {
                return Err(LoraProblem::NotTargeted { tensor: tensor.to_owned(), key: "use_dora" });
            }
            _ => {}
        }
        let outputs = shape(b).first().copied().unwrap_or(0);
        if let Some(tensor) = factors.magnitude
            && shape(tensor).iter().product::<usize>() != outputs
        {
            let because = format!("`{b}` has {outputs} outputs");
            let (tensor, found) = (tensor.to_owned(), shape(tensor));
            return Err(LoraProblem::Shape { tensor, found, expected: vec![outputs], because });
        }
        let alpha = self.alphas.of(module).unwrap_or(self.alpha);
        let scale = alpha / if self.is_stabilized { rank.sqrt() } else { rank };
        Ok(ModuleUpdate {
            module: module.to_owned(),
            a: a.to_owned(),
            b: b.to_owned(),
            a_transposed: false,
            scale,
            inputs_first,
            magnitude: factors.magnitude.map(str::to_owned),
        })
    }
}

fn field(key: &str, found: &Value, expected: &'static str, help: &'static str) -> LoraProblem {
    LoraProblem::Field { key: key.to_owned(), found: shown(found), expected, help }
}

fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    errors::shortened(value.to_string(), MOST)
}

/// The beginning of all names in the file.
const PREFIX: &str = "base_model.model.";

/// The tensors of a module.
#[derive(Default)]
struct ModuleFactors<'a> {
    a: Option<&'a str>,
    b: Option<&'a str>,
    embedding_a: Option<&'a str>,
    embedding_b: Option<&'a str>,
    magnitude: Option<&'a str>,
}

#[derive(Clone, Copy)]
enum Factor {
    A,
    B,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
}

/// The end of a tensor's name.
const FACTORS: &[(&str, Factor)] = &[
    (".lora_A.weight", Factor::A),
    (".lora_B.weight", Factor::B),
    (".lora_embedding_A", Factor::EmbeddingA),
    (".lora_embedding_B", Factor::EmbeddingB),
    (".lora_magnitude_vector", Factor::Magnitude),
    (".lora_magnitude_vector.weight", Factor::Magnitude),
];

impl<'a> ModuleFactors<'a> {
    fn add(&mut self, factor: Factor, tensor: &'a str) {
        let place = match factor {
            Factor::A => &mut self.a,
            Factor::B => &mut self.b,
            Factor::EmbeddingA => &mut self.embedding_a,
            Factor::EmbeddingB => &mut self.embedding_b,
            Factor::Magnitude => &mut self.magnitude,
        };
        *place = Some(tensor);
    }

    fn is_embedding(&self) -> bool {
        self.embedding_a.is_some() || self.embedding_b.is_some()
    }
}

/// What a tensor is.
enum Kind<'a> {
    /// It takes the place of the weight.
    Replaces(String),
    /// Of a module.
    Factor(&'a str, Factor),
}

impl<'a> Kind<'a> {
    fn of(tensor: &'a str, config: &Config) -> Result<Self, LoraProblem> {
        let unknown = || LoraProblem::Name { tensor: tensor.to_owned() };
        let path = tensor.strip_prefix(PREFIX).ok_or_else(unknown)?;
        let factor = FACTORS.iter().find_map(|(end, factor)| Some((path.strip_suffix(end)?, *factor)));
        if let Some((module, factor)) = factor {
            return Ok(Self::Factor(module, factor));
        }
        // PEFT also saves the original weight of an embedding with an adapter.
        if let Some(module) = path.strip_suffix(".base_layer.weight") {
            return Ok(Self::Replaces(format!("{module}.weight")));
        }
        let module = path.rsplit_once('.').map(|(module, _)| module).ok_or_else(unknown)?;
        match &config.saved {
            Some(names) if names.save(module) => Ok(Self::Replaces(path.to_owned())),
            _ if path.ends_with(".weight") || path.ends_with(".bias") => {
                Err(LoraProblem::NotTargeted { tensor: tensor.to_owned(), key: "modules_to_save" })
            }
            _ => Err(unknown()),
        }
    }
}
