//! XLM-RoBERTa and RoBERTa: Conneau et al., "Unsupervised Cross-lingual Representation Learning at Scale" (2020).
//! The network is a BERT whose positions start behind the padding id (`modeling_xlm_roberta.py`).

use trace::Ignorable;

use crate::bert::{Bert, BertConfig};
use crate::config::{ConfigError, Keys};
use crate::family::Family;
use crate::sentence::HeadStep;

/// The whole network, from token ids to an embedding or a score.
pub type XlmRoberta<T> = Bert<T>;

pub(crate) const FAMILY: Family = Family {
    about: "BERT whose positions start behind the padding id: multilingual e5, bge-m3 and bge-reranker",
    prefixes: &[("roberta.", "")],
    ignorable: &[
        Ignorable::Prefix("pooler."),
        Ignorable::Prefix("lm_head."),
        Ignorable::Suffix("embeddings.position_ids"),
    ],
    ..Family::of(
        &["XLMRobertaModel", "XLMRobertaForSequenceClassification"],
        &[],
        &[
            "xlm-roberta",
            "XLMRobertaForMaskedLM",
            "roberta",
            "RobertaModel",
            "RobertaForMaskedLM",
            "RobertaForSequenceClassification",
        ],
    )
};

pub(crate) fn read(keys: Keys, allowed: &[String]) -> Result<BertConfig, ConfigError> {
    let padding = |keys: &Keys| Some(keys.optional_integer("pad_token_id").unwrap_or(1));
    BertConfig::shared(keys, allowed, padding, |features| {
        vec![HeadStep::tanh("classifier.dense", features), HeadStep::linear("classifier.out_proj", 1, true)]
    })
}
