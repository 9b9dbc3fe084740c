//! The names of a GGUF file's tensors, and what was done to them.

use irpa::{Checkpoint, CheckpointTensor, StoredOrder};

use super::metadata::Metadata;

/// How tensors of a file become those of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Renaming {
    architecture: String,
    /// Query heads, key-value heads.
    heads: [usize; 2],
}

/// Names that most networks share, of a layer's parts.
const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.ffn_gate_exps"),
    ("ffn_up_exps", "block_sparse_moe.ffn_up_exps"),
    ("ffn_down_exps", "block_sparse_moe.ffn_down_exps"),
];

/// What else networks call a layer's parts.
const OTHERS: &[(&str, &[(&str, &str)])] = &[
    ("gemma2", &[("ffn_norm", "pre_feedforward_layernorm")]),
    ("gemma3", &[("ffn_norm", "pre_feedforward_layernorm")]),
    ("phi3", &[("ffn_up", "mlp.gate_up_proj")]),
    (
        "gpt2",
        &[
            ("attn_norm", "ln_1"),
            ("attn_qkv", "attn.c_attn"),
            ("attn_output", "attn.c_proj"),
            ("ffn_norm", "ln_2"),
            ("ffn_up", "mlp.c_fc"),
            ("ffn_down", "mlp.c_proj"),
        ],
    ),
    (
        "lfm2",
        &[
            ("attn_norm", "operator_norm"),
            ("attn_output", "self_attn.out_proj"),
            ("attn_q_norm", "self_attn.q_layernorm"),
            ("attn_k_norm", "self_attn.k_layernorm"),
            ("ffn_norm", "ffn_norm"),
            ("ffn_gate", "feed_forward.w1"),
            ("ffn_up", "feed_forward.w3"),
            ("ffn_down", "feed_forward.w2"),
            ("shortconv.conv", "conv.conv"),
            ("shortconv.in_proj", "conv.in_proj"),
            ("shortconv.out_proj", "conv.out_proj"),
        ],
    ),
];

/// The experts of a layer, all of them in one tensor.
const EXPERTS: &[(&str, &[&str])] = &[
    ("ffn_gate_exps.weight", &["experts.*.w1.weight"]),
    ("ffn_down_exps.weight", &["experts.*.w2.weight"]),
    ("ffn_up_exps.weight", &["experts.*.w3.weight"]),
];

/// What is called so in a `config.json`, and so in metadata behind the name of the architecture.
const KEYS: &[(&str, &str)] = &[
    ("num_hidden_layers", "block_count"),
    ("n_layer", "block_count"),
    ("hidden_size", "embedding_length"),
    ("n_embd", "embedding_length"),
    ("max_position_embeddings", "context_length"),
    ("n_positions", "context_length"),
    ("intermediate_size", "feed_forward_length"),
    ("n_inner", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("n_head", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("sliding_window", "attention.sliding_window"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("norm_eps", "attention.layer_norm_rms_epsilon"),
    ("layer_norm_epsilon", "attention.layer_norm_epsilon"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("conv_L_cache", "shortconv.l_cache"),
    ("rope_theta", "rope.freq_base"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    ("rope_scaling.factor", "rope.scaling.factor"),
    ("rope_scaling.attention_factor", "rope.scaling.attn_factor"),
    ("rope_scaling.beta_fast", "rope.scaling.yarn_beta_fast"),
    ("rope_scaling.beta_slow", "rope.scaling.yarn_beta_slow"),
    ("rope_scaling.original_max_position_embeddings", "rope.scaling.original_context_length"),
    ("original_max_position_embeddings", "rope.scaling.original_context_length"),
];

/// What belongs to the configuration.
const CONFIGURATION: &[&str] =
    &["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];

impl Renaming {
    pub(super) fn new(metadata: &Metadata<'_>) -> Self {
        let heads = ["attention.head_count", "attention.head_count_kv"].map(|key| metadata.most(key));
        let queries = heads[0].unwrap_or(0);
        Self {
            architecture: metadata.architecture().to_owned(),
            heads: [queries, heads[1].unwrap_or(queries)],
        }
    }

    /// What metadata call a key, or a product of some, that a `config.json` calls so.
    pub(super) fn key(&self, key: &str) -> String {
        let own = |key: &str| {
            let found = KEYS.iter().find(|(theirs, _)| *theirs == key);
            found.map_or_else(|| key.to_owned(), |(_, own)| format!("{}.{own}", self.architecture))
        };
        key.split(" × ").map(own).collect::<Vec<_>>().join(" × ")
    }

    /// A file's tensors as those of the network. What has no name in a network keeps its own.
    pub(super) fn apply(&self, checkpoint: Checkpoint) -> Checkpoint {
        checkpoint.revised(|tensor| self.revise(tensor)).apart(EXPERTS)
    }

    fn revise(&self, mut tensor: CheckpointTensor) -> Option<CheckpointTensor> {
        if CONFIGURATION.contains(&tensor.name.as_str()) {
            return None;
        }
        let Some((before, end)) = tensor.name.rsplit_once('.') else { return Some(tensor) };
        let end = end.to_owned();
        let (part, name) = match before.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => (part.to_owned(), self.in_layer(layer, part)),
            None => (before.to_owned(), self.outside(before)),
        };
        let name = name.map(|name| format!("{name}.{end}"));
        self.arrange(&part, &end, &mut tensor);
        tensor.name = name.unwrap_or(tensor.name);
        Some(tensor)
    }

    fn in_layer(&self, layer: &str, part: &str) -> Option<String> {
        let own = OTHERS.iter().find(|(architecture, _)| *architecture == self.architecture);
        let mut names = own.into_iter().flat_map(|(_, names)| *names).chain(LAYER);
        let (_, name) = names.find(|(theirs, _)| *theirs == part)?;
        let layers = if self.architecture == "gpt2" { "h" } else { "model.layers" };
        Some(format!("{layers}.{layer}.{name}"))
    }

    fn outside(&self, part: &str) -> Option<String> {
        let name = match (self.architecture.as_str(), part) {
            (_, "output") => "lm_head",
            ("gpt2", "token_embd") => "wte",
            ("gpt2", "position_embd") => "wpe",
            ("gpt2", "output_norm") => "ln_f",
            // Of either name: the norm behind the last layer.
            ("lfm2", "token_embd_norm" | "output_norm") => "model.embedding_norm",
            (_, "token_embd") => "model.embed_tokens",
            (_, "output_norm") => "model.norm",
            _ => return None,
        };
        Some(name.to_owned())
    }

    /// What conversion did to a tensor (`conversion/*.py` in llama.cpp).
    fn arrange(&self, part: &str, end: &str, tensor: &mut CheckpointTensor) {
        let [queries, keys] = self.heads;
        tensor.arranged = match (self.architecture.as_str(), part) {
            ("llama" | "smollm3", "attn_q") if has_heads(tensor, queries) => {
                StoredOrder::PermutedRope { heads: queries }
            }
            ("llama" | "smollm3", "attn_k") if has_heads(tensor, keys) => {
                StoredOrder::PermutedRope { heads: keys }
            }
            ("gemma2" | "gemma3", _) if part.ends_with("norm") && end == "weight" => StoredOrder::PlusOne,
            ("gpt2", "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down") if tensor.shape.len() == 2 => {
                tensor.shape.reverse();
                StoredOrder::Transposed
            }
            // The axis of a single input was dropped.
            ("lfm2", "shortconv.conv") if tensor.shape.len() == 2 => {
                tensor.shape.insert(1, 1);
                StoredOrder::Same
            }
            _ => StoredOrder::Same,
        };
    }
}

/// Whether rows of a tensor are those of so many heads, each of which has pairs of rows.
fn has_heads(tensor: &CheckpointTensor, heads: usize) -> bool {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    heads > 0 && rows > 0 && rows.is_multiple_of(2 * heads)
}
