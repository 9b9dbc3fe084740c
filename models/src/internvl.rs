//! InternVL 3: Zhu et al., "InternVL3: Exploring Advanced Training and Test-Time Recipes for Open-Source Multimodal
//! Models" (2025). Names follow `modeling_internvl.py`. The text network is a Qwen2, a Qwen3 or a Llama, and the tower
//! differs from SigLIP in a class token, and in factors on what a layer adds.

use std::rc::Rc;

use dsl::nn::{Attend, Kv, Mask, attend, dot, gelu};
use dsl::{Axis, Block, BuildError, Call as _, Dim, Float, LayerNorm, RmsNorm, Scope, Tensor, model};

use crate::config::{IGNORED, Keys};
use crate::decoder::{AttentionBlock, Decoder, DecoderConfig, LlamaConfig, read_text_tower};
use crate::family::{Family, SEEING_IGNORABLE, SEEING_PREFIXES};
use crate::llama::{self, Layer, Mlp};
use crate::sentence::KEYS;
use crate::vision::{self, Connection, TowerDefaults, Vision, VisionFamily, check_layer, check_squares};
use crate::{qwen2, qwen3};

/// The text network, from token ids to logits.
pub type InternVl<T> = Decoder<T, Layer<T, Attention<T>, Mlp<T>, InternVlConfig>, InternVlConfig>;

pub(crate) const FAMILY: Family = Family {
    about: "InternVL 3: a Qwen2, Qwen3 or Llama, and an InternViT tower for images",
    prefixes: SEEING_PREFIXES,
    ignorable: SEEING_IGNORABLE,
    ..Family::of(&["InternVLForConditionalGeneration"], &["InternVLModel"], &["internvl"])
};

model! {
    /// Attention with optional norms over the features of each query and key head.
    pub Attention<T: Float>(InternVlConfig): AttentionBlock<T> {
        dims {
            D = hidden_size,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or D / H,
        }

        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[E](eps = rms_norm_eps),
        k_norm: RmsNorm[E](eps = rms_norm_eps),
        o_proj: Linear[K, G, E -> D](bias if attention_out_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let (q, k) = (self.q_proj(x), self.k_proj(x)); // [B, S, K, G, E], [B, S, K, E]
            let (q, k) = if self.config.use_qk_norm { (self.q_norm(q), self.k_norm(k)) } else { (q, k) };
            let (k, v) = kv.append(at.rope(k), self.v_proj(x), at); // [B, K, N, E]
            self.o_proj(attend(at.rope(q), k, v, at))
        }
    }
}

model! {
    /// InternViT with its projector (`InternVLMultiModalProjector`).
    pub InternVlTower<T: Float>(Vision) {
        dims {
            // W is the tower's features. An image has R rows and R columns of patches, M in all, and N positions with
            // the class token. I rows and J columns of squares have A rows and G columns of patches each, and U features.
            W = hidden_size, F = intermediate_size, L = num_hidden_layers, H = num_attention_heads, E = W / H,
            D = features, C = 3, Y = patch_size, X = patch_size, R = side, M = R * R, N = M + 1, K = 1, V = 1,
            A = scale_factor, G = scale_factor, I = R / A, J = R / A, Q = A * A, U = W * Q, Z = D,
        }
        shard { H, F over model; B over data }

        class: Weight[K, V, W] at "model.vision_model.embeddings.cls_token",
        patch: Weight[W, C, Y, X] at "model.vision_model.embeddings.patch_embeddings.projection.weight",
        patch_bias: Weight[W] at "model.vision_model.embeddings.patch_embeddings.projection.bias",
        positions: Weight[K, N, W] at "model.vision_model.embeddings.position_embeddings",
        layers: [InternVitLayer; L] at "model.vision_model.encoder.layer",
        // The norm has the default ε of torch.
        norm: LayerNorm[U](eps = 1e-5) at "model.multi_modal_projector.layer_norm",
        linear_1: Linear[U -> Z](bias) at "model.multi_modal_projector.linear_1",
        linear_2: Linear[Z -> D](bias) at "model.multi_modal_projector.linear_2",

        /// The features of an image's squares, row by row.
        fn see(patches: T[B, S, P]) -> T[B, O, D] {
            let x = dot(patches, self.patch().merge(&[C, Y, X], P), P) + self.patch_bias();
            let class = self.class().merge(&[K, V], S).broadcast(x.narrow(S, 0, 1));
            let x = Tensor::concat(&[class, x], S) + self.positions().merge(&[K, N], S);
            let at = Attend::bidirectional(S, Mask::all());
            let x = self.layers.iter().fold(x, |x, layer| layer.forward(x, &at));
            let squares = [I, A, J, G].map(|axis| axis.of(self.dim(axis)));
            let x = x.narrow(S, 1, self.dim(M)).unmerge(S, &squares).permute(&[B, I, J, A, G, W]);
            let x = x.merge(&[I, J], O).merge(&[A, G, W], U);
            self.linear_2(gelu(self.linear_1(self.norm(x))))
        }
    }

    InternVitLayer {
        layernorm_before: InternVitNorm<T>,
        attention: InternVitAttention,
        scale_1: Weight[W] at "lambda_1",
        layernorm_after: InternVitNorm<T>,
        mlp: InternVitMlp,
        scale_2: Weight[W] at "lambda_2",

        fn forward(x: T[B, S, W], at: &Attend<T>) -> T[B, S, W] {
            let x = x + self.attention(self.layernorm_before.forward(x), at) * self.scale_1();
            x + self.mlp(self.layernorm_after.forward(x)) * self.scale_2()
        }
    }

    InternVitAttention {
        q_proj: Linear[W -> H, E](bias if attention_bias),
        k_proj: Linear[W -> H, E](bias if attention_bias),
        v_proj: Linear[W -> H, E](bias if attention_bias),
        // These norms have the default ε of their class.
        q_norm: RmsNorm[H, E](eps = 1e-6),
        k_norm: RmsNorm[H, E](eps = 1e-6),
        projection_layer: Linear[H, E -> W](bias),

        fn forward(x: T[B, S, W], at: &Attend<T>) -> T[B, S, W] {
            let (q, k) = (self.q_proj(x), self.k_proj(x));
            let (q, k) = match self.config.family {
                VisionFamily::InternVl { use_qk_norm: true, .. } => (self.q_norm(q), self.k_norm(k)),
                _ => (q, k),
            };
            self.projection_layer(attend(q, k.rename(S, KEYS), self.v_proj(x).rename(S, KEYS), at))
        }
    }

    InternVitMlp {
        fc1: Linear[W -> F](bias),
        fc2: Linear[F -> W](bias),

        fn forward(x: T[B, S, W]) -> T[B, S, W] {
            self.fc2(gelu(self.fc1(x)))
        }
    }
}

/// A norm of a layer of the tower, whose kind the configuration selects.
#[derive(Clone, Debug)]
pub struct InternVitNorm<T: Float> {
    kind: NormKind<T>,
    features: Dim,
}

#[derive(Clone, Debug)]
enum NormKind<T: Float> {
    Layer(LayerNorm<T>),
    Rms(RmsNorm<T>),
}

impl<T: Float> Block for InternVitNorm<T> {
    type Config = Vision;

    fn build(scope: Scope, config: &Rc<Vision>) -> Result<Self, BuildError> {
        let (features, eps) = (Axis("W").of(config.hidden_size), config.layer_norm_eps);
        let kind = match config.family {
            VisionFamily::InternVl { rms_norms: true, .. } => {
                NormKind::Rms(RmsNorm::build(scope, &[features]).eps(eps))
            }
            _ => NormKind::Layer(LayerNorm::build(scope, &[features]).eps(eps)),
        };
        Ok(Self { kind, features })
    }

    fn declared_axes(&self) -> Vec<Dim> {
        vec![self.features]
    }
}

impl<T: Float> InternVitNorm<T> {
    #[track_caller]
    fn forward(&self, x: Tensor<T>) -> Tensor<T> {
        match &self.kind {
            NormKind::Layer(norm) => norm.call(x),
            NormKind::Rms(norm) => norm.call(x),
        }
    }
}

/// A text network and its vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct InternVlConfig {
    /// The keys of the text network.
    pub llama: LlamaConfig,
    /// Whether the text network's attention normalizes queries and keys.
    pub use_qk_norm: bool,
    /// The tower, if the configuration has one.
    pub vision: Option<Vision>,
}

descends!(InternVlConfig from llama: LlamaConfig);

impl DecoderConfig for InternVlConfig {}

/// Keys of published files that change no number. The processor's files have the vectors of an image.
const BESIDE_TEXT: &[&str] = key_names![architectures image_seq_length model_type transformers_version];

pub(crate) fn read(keys: &Keys) -> InternVlConfig {
    let config = read_text_tower(keys, true, BESIDE_TEXT, read_text);
    let vision = read_vision(keys, &config);
    InternVlConfig { vision, ..config }
}

fn read_text(keys: &Keys) -> InternVlConfig {
    let (llama, use_qk_norm) = match keys.optional_text("model_type").as_deref() {
        None | Some("qwen2") => (LlamaConfig { attention_bias: true, ..qwen2::read(keys) }, false),
        Some("qwen3") => {
            let llama = qwen3::read(keys);
            (LlamaConfig { attention_out_bias: llama.attention_bias, ..llama }, true)
        }
        found => {
            if found != Some("llama") {
                keys.refuse("model_type", found.unwrap_or_default(), "qwen2, qwen3 or llama");
            }
            (llama::read(keys), false)
        }
    };
    InternVlConfig { llama, use_qk_norm, vision: None }
}

/// Keys of a `vision_config` for training.
const FOR_TRAINING: &[&str] = key_names![
    dropout hidden_dropout_prob initializer_factor layer_scale_init_value projection_dropout
];

fn read_vision(keys: &Keys, text: &LlamaConfig) -> Option<Vision> {
    let image_token = keys.optional_integer("image_token_id").unwrap_or(151_667);
    let ratio = keys.number_or("downsample_ratio", 0.5);
    keys.one_of("projector_hidden_act", &["gelu"]);
    keys.one_of("vision_feature_select_strategy", &["default"]);
    check_layer(keys);
    let inner = keys.object("vision_config")?;
    inner.ignore(FOR_TRAINING);
    inner.always("use_absolute_position_embeddings", true);
    inner.always("use_mask_token", false);
    inner.always("use_mean_pooling", true);
    inner.one_of("norm_type", &["layer_norm", "rms_norm"]);
    let rms_norms = inner.optional_text("norm_type").as_deref() == Some("rms_norm");
    let family = VisionFamily::InternVl { use_qk_norm: inner.flag("use_qk_norm", false), rms_norms };
    let attention_bias = inner.flag("attention_bias", false);
    let connection = Connection { features: text.hidden_size, image_token, element: text.element };
    let vision = vision::read(&inner, family, &INTERN_VIT, &connection);
    let scale_factor = [1, 2, 4].into_iter().find(|&factor| ratio * factor as f64 == 1.0).unwrap_or(0);
    let vision = Vision { attention_bias, scale_factor, ..vision };
    if scale_factor == 0 {
        keys.refuse("downsample_ratio", ratio, "1, 0.5 or 0.25");
    } else {
        check_squares(&inner, &vision, (keys, "downsample_ratio", ratio.to_string()));
    }
    keys.close_ignoring(inner, IGNORED);
    Some(Vision { scale_factor: scale_factor.max(1), ..vision })
}

/// The defaults of `InternVLVisionConfig` in HF transformers.
const INTERN_VIT: TowerDefaults = TowerDefaults {
    hidden_act: "gelu",
    hidden_size: 1024,
    intermediate_size: 4096,
    num_hidden_layers: 24,
    num_attention_heads: 16,
    image_size: 448,
    patch_size: 14,
};
