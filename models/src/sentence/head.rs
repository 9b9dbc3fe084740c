//! The heads of networks that compute the score of two texts.

use crate::config::Keys;

use super::{HeadStep, Pairs, Pooling};

/// The head of a sequence classifier, which follows its transformer.
pub(crate) struct Head {
    pub pooling: Pooling,
    pub steps: Vec<HeadStep>,
    pub pairs: Pairs,
}

impl Head {
    /// For a class such as `BertForSequenceClassification`; `None` for a network without such a head. `marks`:
    /// whether the network is told which tokens belong to the first text.
    pub fn read(
        keys: &Keys,
        pooling: Pooling,
        marks: bool,
        steps: impl FnOnce() -> Vec<HeadStep>,
    ) -> Option<Self> {
        let names = keys.get("architectures").and_then(|names| names.as_array()?.first()?.as_str());
        if !names.is_some_and(|name| name.ends_with("ForSequenceClassification")) {
            return None;
        }
        let labels = keys.get("id2label").and_then(|labels| labels.as_object()).map(serde_json::Map::len);
        let labels = labels.or(keys.optional_count("num_labels")).unwrap_or(2);
        if labels != 1 {
            keys.refuse(
                "id2label",
                format!("{labels} labels"),
                "1 label, whose logit is the score of two texts",
            );
        }
        let mut is_probability = is_sigmoid(keys, "sbert_ce_default_activation_function").unwrap_or(true);
        if let Some(own) = keys.object("sentence_transformers") {
            is_probability = is_sigmoid(&own, "activation_fn").unwrap_or(is_probability);
            own.ignore(&["version"]);
            keys.close(own);
        }
        Some(Self { pooling, steps: steps(), pairs: Pairs { marks, is_probability } })
    }
}

/// Whether a torch class is the sigmoid; `None` if the key is missing.
fn is_sigmoid(keys: &Keys, key: &'static str) -> Option<bool> {
    const SIGMOID: &str = "torch.nn.modules.activation.Sigmoid";
    keys.one_of(key, &["torch.nn.modules.linear.Identity", SIGMOID]);
    Some(keys.optional_text(key)? == SIGMOID)
}
