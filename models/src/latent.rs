//! Networks with latent attention: DeepSeek-AI, "DeepSeek-V2" (2024), §2.1. In latent attention, a
//! layer caches one vector per token, and computes the keys and values of all heads from this
//! vector. The layers have mixtures of experts as in DeepSeek-V3.

use dsl::nn::{Attend, Cache, Position, Slots, attend, dot};
use dsl::{Float, Tensor, model};
use serde_json::Value;

use crate::config::Keys;
use crate::decoder::{Defaults, LlamaConfig};
use crate::experts::{self, Experts, ExpertsConfig};
use crate::llama::Mlp;
use crate::rope::{QueryGrowth, RopeDefaults, RopeParameters};
use crate::shape_check::DeclaredSize;

pub(crate) const GGUF_PARTS: &[(&str, &str)] = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
];

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub LatentDecoder<T: Float>(LatentConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers, H = num_attention_heads,
            // Q is the features of a compressed query. C is the features of the vector from which
            // all heads compute keys and values.
            Q = q_lora_rank or D, C = kv_lora_rank,
            // E and I are the features of a head without and with a rotary embedding, and J is
            // their sum. W is the features of a value, and P is the features of a value and of a
            // key's part E.
            E = qk_nope_head_dim, I = qk_rope_head_dim, J = E + I, W = v_head_dim, P = E + W, Z = H * P,
            // The features that a layer caches.
            M = C + I,
        }
        cache { L of latent: Slots[M] }
        shard { H, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.lm_head(x).to()
        }
    }

    /// The network without the output head: the embedding, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = self.config.rope.frequencies(self.dim(I), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let at = if self.config.rope_interleave { at.interleaved() } else { at }.scaled(self.config.scale());
            let most = self.config.max_position_embeddings;
            let at = self.config.growth.as_ref().map_or(at.clone(), |growth| growth.applied(at, most));
            let mut x = self.embed_tokens(tokens);
            for (i, layer) in self.layers.iter().enumerate() {
                let sparse = self.config.experts.is_sparse(i);
                x = layer.forward(x, &at, cache.named(i, "latent"), sparse);
            }
            self.norm(x)
        }
    }

    /// Llama's layer with latent attention, then experts or Llama's feed-forward network.
    pub Layer {
        input_layernorm: RmsNorm[D](eps = rms_norm_eps),
        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps),
        mlp: Mlp<T>,
        experts: Experts<T> at "mlp",

        fn forward(x: T[B, S, D], at: &Attend<T>, latent: &mut Slots<T>, sparse: bool) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, latent);
            let normed = self.post_attention_layernorm(x);
            x + if sparse { self.experts.forward(normed) } else { self.mlp.forward(normed) }
        }
    }

    /// Heads share one cached vector per token: C features for keys and values, I with a rotary embedding.
    /// Queries are multiplied by the key matrix, and results by the value matrix, so that no matmul reads the
    /// cache (DeepSeek-AI, "DeepSeek-V2", 2024, §2.1.2).
    pub Attention {
        q_proj: Linear[D -> H, J],
        q_a_proj: Linear[D -> Q](bias if attention_bias),
        q_a_layernorm: RmsNorm[Q](eps = 1e-6),
        q_b_proj: Linear[Q -> H, J],
        kv_a_proj_with_mqa: Linear[D -> M](bias if attention_bias),
        kv_a_layernorm: RmsNorm[C](eps = 1e-6),
        kv_b_proj: Weight[Z, C] at "kv_b_proj.weight",
        k_b_proj: Weight[H, C, E] at "k_b_proj.weight",
        v_b_proj: Weight[H, W, C] at "v_b_proj.weight",
        o_proj: Linear[H, W -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, latent: &mut Slots<T>) -> T[B, S, D] {
            let q = match self.config.q_lora_rank {
                Some(_) => self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))),
                None => self.q_proj(x),
            };
            let [plain, rotated] = q.split(J, [self.dim(E), self.dim(I)]);
            let [shared, key] = self.kv_a_proj_with_mqa(x).split(M, [self.dim(C), self.dim(I)]);
            let [keys, values] = if self.config.kv_b_split { [self.k_b_proj().permute(&[H, E, C]), self.v_b_proj()] } else {
                    let heads = self.kv_b_proj().unmerge(Z, &[H.of(self.dim(H)), P.of(self.dim(P))]);
                    let [keys, values] = heads.split(P, [self.dim(E), self.dim(W)]);
                    [keys.rename(P, E), values.rename(P, W)] // [H, E, C], [H, W, C]
                };
            let plain = dot(plain.rename(J, E), keys, E).permute(&[B, S, H, C]);
            let q = Tensor::concat(&[plain.rename(C, M), at.rope(rotated.rename(J, M))], M); // [B, S, H, M]
            let shared = self.kv_a_layernorm(shared.rename(M, C));
            let k = latent.append(Tensor::concat(&[shared.rename(C, M), at.rope(key)], M), at); // [B, N, M]
            let attended = attend(q, k, k, at).narrow(M, 0, self.dim(C)).rename(M, C); // [B, S, H, C]
            self.o_proj(dot(attended, values, C))
        }
    }
}

/// The configuration of a network with latent attention.
#[derive(Clone, Debug, PartialEq)]
pub struct LatentConfig {
    /// The configuration keys that the network shares with other networks with experts.
    pub experts: ExpertsConfig,
    /// The number of features of a compressed query, or `None` if queries are not compressed.
    pub q_lora_rank: Option<usize>,
    /// The number of cached features from which the layer computes keys and values.
    pub kv_lora_rank: usize,
    /// The number of a query head's features that the rotary embedding does not rotate.
    pub qk_nope_head_dim: usize,
    /// The number of a query head's features that the rotary embedding rotates.
    pub qk_rope_head_dim: usize,
    /// The number of features of a value head.
    pub v_head_dim: usize,
    /// Whether the rotary embedding rotates pairs of neighbouring features.
    pub rope_interleave: bool,
    /// Whether the checkpoint stores the matrices of keys and of values separately, as GGUF files do.
    pub kv_b_split: bool,
    /// The square of yarn's factor for long contexts, by which scores are multiplied, beside 1/√(features).
    pub loudness: f64,
    /// The factor by which attention multiplies the queries. With `None`, the factor is 1.
    pub growth: Option<QueryGrowth>,
}

descends!(LatentConfig from experts.llama: LlamaConfig, through experts: ExpertsConfig);

impl LatentConfig {
    fn scale(&self) -> f64 {
        self.loudness / ((self.qk_nope_head_dim + self.qk_rope_head_dim) as f64).sqrt()
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let mut sizes = self.experts.sizes();
        sizes.retain(|size| !size.key.contains("head_dim"));
        let compressed = &[
            ("model.layers.*.self_attn.kv_b_proj.weight", 1),
            ("model.layers.*.self_attn.v_b_proj.weight", 2),
        ];
        sizes.push(DeclaredSize::extent("kv_lora_rank", self.kv_lora_rank, compressed));
        sizes
    }
}

/// The defaults of keys that differ between the families with latent attention.
pub(crate) struct LatentDefaults {
    /// Defaults, as in [`Defaults::sizes`](crate::decoder::Defaults::sizes).
    pub sizes: [usize; 5],
    pub rope: RopeDefaults,
    pub rms_norm_eps: f64,
    /// Defaults of `q_lora_rank`, `kv_lora_rank`, `qk_nope_head_dim`, `qk_rope_head_dim` and `v_head_dim`.
    pub heads: [usize; 5],
    /// The defaults of `n_routed_experts`, `num_experts_per_tok` and `moe_intermediate_size`.
    pub experts: [usize; 3],
    /// The defaults of `n_group`, `topk_group`, `routed_scaling_factor` and `first_k_dense_replace`.
    pub routing: ([usize; 2], f64, usize),
}

pub(crate) fn read(keys: &Keys, own: &LatentDefaults) -> LatentConfig {
    keys.ignore(experts::IGNORED);
    keys.ignore(experts::FURTHER_LAYERS);
    keys.one_of("scoring_func", &["sigmoid"]);
    keys.one_of("topk_method", &["noaux_tc"]);
    if let Some(found) = keys.optional_count("pretraining_tp").filter(|&tp| tp != 1) {
        keys.refuse("pretraining_tp", found, "1");
    }
    let count = |key, default| keys.optional_count(key).unwrap_or(default);
    let [q_lora_rank, kv_lora_rank, plain, rotated, values] = own.heads;
    let qk_rope_head_dim = count("qk_rope_head_dim", rotated);
    let defaults = Defaults {
        sizes: Some(own.sizes),
        head_dim: Some(qk_rope_head_dim),
        rms_norm_eps: own.rms_norm_eps,
        ..Defaults::of(own.rope.clone())
    };
    let mut loudness = 1.0;
    let llama = LlamaConfig::with_rope(keys, defaults, |keys, defaults| {
        let nested = keys.object("rope_parameters").or_else(|| keys.object("rope_scaling"));
        if let Some(nested) = nested {
            let kind = nested.optional_text("rope_type").or_else(|| nested.optional_text("type"));
            let scale = nested
                .optional_number("mscale_all_dim")
                .filter(|_| kind.is_some_and(|kind| kind != "default"));
            let factor = nested.optional_number("factor").filter(|&factor| factor > 1.0);
            if let (Some(scale), Some(factor)) = (scale, factor) {
                loudness = (0.1 * scale * libm::log(factor) + 1.0).powi(2);
            }
        }
        RopeParameters::read(keys, defaults)
    });
    let llama = LlamaConfig { attention_bias: keys.flag("attention_bias", false), ..llama };
    // A key read from a GGUF file is never null.
    let compressed = keys.get("q_lora_rank").and_then(Value::as_u64) != Some(0);
    let qk_nope_head_dim = count("qk_nope_head_dim", plain);
    let both = qk_nope_head_dim + qk_rope_head_dim;
    if let Some(found) = keys.optional_count("qk_head_dim").filter(|&found| found != both) {
        keys.refuse("qk_head_dim", found, format!("{both}, `qk_nope_head_dim` + `qk_rope_head_dim`"));
    }
    LatentConfig {
        experts: experts::deepseek(keys, llama, own.experts, own.routing),
        q_lora_rank: compressed.then(|| keys.nullable_count("q_lora_rank", Some(q_lora_rank))).flatten(),
        kv_lora_rank: count("kv_lora_rank", kv_lora_rank),
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim: count("v_head_dim", values),
        rope_interleave: keys.flag("rope_interleave", true),
        kv_b_split: keys.flag("kv_b_split", false),
        loudness,
        growth: None,
    }
}
