//! The steps from the features of tokens to an embedding or a score, as `modules.json` of
//! sentence-transformers and sequence classifiers of transformers describe them.

use std::path::PathBuf;

use irpa::ModelFiles;
use serde_json::Value;

use crate::config::{ConfigError, Keys, parse, text_within};

pub(crate) const MODULES: &str = "modules.json";

/// How the features of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Those of the first token.
    Cls,
    /// The largest value of each feature.
    Max,
    /// The mean of all tokens.
    Mean,
    /// The sum, divided by the square root of the number of tokens.
    MeanSqrtLen,
    /// The mean, in which the token at position i (from 0) counts i + 1 times.
    WeightedMean,
    /// Those of the last token.
    LastToken,
}

/// In the order in which sentence-transformers joins the vectors of keys that are true.
const POOLING: [(&str, &str, Pooling); 6] = [
    ("cls", "pooling_mode_cls_token", Pooling::Cls),
    ("max", "pooling_mode_max_tokens", Pooling::Max),
    ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pooling::LastToken),
];

/// The function after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// The layer's output itself.
    Identity,
    /// The hyperbolic tangent.
    Tanh,
    /// GELU with the error function.
    Gelu,
    /// The positive part.
    Relu,
    /// The logistic function.
    Sigmoid,
}

const ACTIVATIONS: [(&str, Activation); 5] = [
    ("torch.nn.modules.linear.Identity", Activation::Identity),
    ("torch.nn.modules.activation.Tanh", Activation::Tanh),
    ("torch.nn.modules.activation.GELU", Activation::Gelu),
    ("torch.nn.modules.activation.ReLU", Activation::Relu),
    ("torch.nn.modules.activation.Sigmoid", Activation::Sigmoid),
];

impl Activation {
    /// The torch class at a key, or `default`.
    pub(crate) fn read(keys: &Keys, key: &'static str, default: Self) -> Self {
        keys.one_of(key, &ACTIVATIONS.map(|(name, _)| name));
        let name = keys.optional_text(key);
        let known = ACTIVATIONS.iter().find(|(known, _)| Some(*known) == name.as_deref());
        known.map_or(default, |(_, activation)| *activation)
    }
}

/// A step between the pooling and the result.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadStep {
    /// A linear layer with its activation function.
    Linear {
        /// The path of the weights in the checkpoint.
        path: String,
        /// The number of features that the layer gives.
        outputs: usize,
        /// Whether the layer has a bias.
        bias: bool,
        /// The function after the layer.
        activation: Activation,
    },
    /// A norm of mean and variance.
    LayerNorm {
        /// The path of the weights in the checkpoint.
        path: String,
        /// The ε that is added to the variance.
        epsilon: f64,
        /// Whether the norm has a bias.
        bias: bool,
    },
    /// Division by the vector's length.
    Normalize,
}

impl HeadStep {
    pub(crate) fn linear(path: &str, outputs: usize, bias: bool) -> Self {
        Self::Linear { path: path.into(), outputs, bias, activation: Activation::Identity }
    }

    pub(crate) fn tanh(path: &str, outputs: usize) -> Self {
        Self::Linear { path: path.into(), outputs, bias: true, activation: Activation::Tanh }
    }
}

/// The modules after the transformer.
pub(super) struct Modules {
    pub pooling: Vec<Pooling>,
    pub steps: Vec<HeadStep>,
    /// Those that have a `config.json`.
    pub folders: Vec<String>,
    /// Those of `folders` that have weights.
    pub weights: Vec<String>,
}

/// Type, without the Python module's path, and folder.
fn module(module: &Value) -> (&str, &str) {
    let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or("nothing");
    let kind = text("type");
    (kind.rsplit_once('.').map_or(kind, |(_, last)| last), text("path"))
}

/// With the path of the file.
fn listed(folder: &ModelFiles) -> Result<(PathBuf, Vec<Value>), ConfigError> {
    let path = folder.path().join(MODULES);
    match parse(&path, &text_within(folder, MODULES, &path)?)? {
        Value::Array(listed) => Ok((path, listed)),
        _ => Ok((path, Vec::new())),
    }
}

impl Modules {
    /// A network with a head of its own needs no module but the transformer.
    pub fn check_bare(folder: &ModelFiles) -> Result<(), ConfigError> {
        let (path, listed) = listed(folder)?;
        match listed.get(1).map(module) {
            None => Ok(()),
            Some((kind, place)) => {
                let (found, expected) =
                    (format!("{kind} at `{place}`"), "no module behind the transformer".into());
                Err(ConfigError::Modules { path, index: 1, found, expected })
            }
        }
    }

    /// `features` are those of a token.
    pub fn read(folder: &ModelFiles, features: usize) -> Result<Self, ConfigError> {
        let (path, listed) = listed(folder)?;
        let mut modules =
            Self { pooling: Vec::new(), steps: Vec::new(), folders: Vec::new(), weights: Vec::new() };
        let mut features = features;
        for index in 0..listed.len().max(2) {
            let (kind, place) = listed.get(index).map_or(("missing", ""), module);
            let keys = || Keys::within(folder, &format!("{place}/config.json"));
            let is_inside = !place.is_empty() && !place.contains(['/', '\\', '.']);
            match (index, kind) {
                (0, "Transformer") if place.is_empty() => continue,
                (1, "Pooling") if is_inside => {
                    modules.pooling = pooling(keys()?, features)?;
                    features *= modules.pooling.len();
                }
                (2.., "Dense") if is_inside => {
                    let step = dense(keys()?, place, features)?;
                    if let HeadStep::Linear { outputs, .. } = step {
                        features = outputs;
                    }
                    modules.steps.push(step);
                    modules.weights.push(place.to_owned());
                }
                (2.., "Normalize") => {
                    modules.steps.push(HeadStep::Normalize);
                    continue;
                }
                _ => {
                    let expected = match index {
                        0 => "Transformer at ``",
                        1 => "Pooling in a folder of the model",
                        _ => "Normalize, or Dense in a folder of the model",
                    };
                    let (found, expected) = (format!("{kind} at `{place}`"), expected.to_owned());
                    return Err(ConfigError::Modules { path, index, found, expected });
                }
            }
            modules.folders.push(place.to_owned());
        }
        Ok(modules)
    }
}

/// Several modes give vectors that are joined.
fn pooling(keys: Keys, features: usize) -> Result<Vec<Pooling>, ConfigError> {
    for key in ["embedding_dimension", "word_embedding_dimension"] {
        if let Some(found) = keys.optional_count(key).filter(|&found| found != features) {
            keys.refuse(key, found, format!("{features}, the `hidden_size`"));
        }
    }
    let flags: Vec<Pooling> =
        POOLING.into_iter().filter(|(_, key, _)| keys.flag(key, false)).map(|(_, _, mode)| mode).collect();
    let named = keys.get("pooling_mode").map(|value| {
        let names = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice).iter();
        let mode = |name: &Value| {
            POOLING.iter().find(|(known, ..)| name.as_str() == Some(known)).map(|(_, _, mode)| *mode)
        };
        names.map(mode).collect::<Option<Vec<Pooling>>>().filter(|modes| !modes.is_empty()).unwrap_or_else(
            || {
                let known = POOLING.map(|(name, ..)| name);
                keys.refuse("pooling_mode", value, format!("one or several of {known:?}"));
                Vec::new()
            },
        )
    });
    keys.always("include_prompt", true);
    keys.finish(&[], &[])?;
    Ok(named.unwrap_or(if flags.is_empty() { vec![Pooling::Mean] } else { flags }))
}

fn dense(keys: Keys, place: &str, inputs: usize) -> Result<HeadStep, ConfigError> {
    let found = keys.count("in_features");
    if found != inputs {
        keys.refuse("in_features", found, format!("{inputs}, the features that come in"));
    }
    let activation = Activation::read(&keys, "activation_function", Activation::Tanh);
    keys.always("use_residual", false);
    for key in ["module_input_name", "module_output_name"] {
        keys.one_of(key, &["sentence_embedding"]);
    }
    let (outputs, bias) = (keys.count("out_features"), keys.flag("bias", true));
    keys.finish(&[], &[])?;
    Ok(HeadStep::Linear { path: format!("{place}.linear"), outputs, bias, activation })
}
