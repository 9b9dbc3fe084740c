//! [`Vision`] is the vision tower of a network: what a tower reads, and how its features enter the text.

use dsl::nn::{Attend, Mask, attend, dot, gelu_tanh};
use dsl::{Float, model};
use files::limits;
use ops::ElementType;
use serde_json::Value;
use trace::Ignorable;

use crate::config::{Keys, read_base};
use crate::sentence::KEYS;

/// A vision tower, and the projection of its features to the width of a text network.
#[derive(Clone, Debug, PartialEq)]
pub struct Vision {
    /// The projection, and the images that the tower reads.
    pub family: VisionFamily,
    /// The number of features of a patch in the tower.
    pub hidden_size: usize,
    /// The number of features between the linear layers of the feed-forward network.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The side of an image, or the longest side, in pixels.
    pub image_size: usize,
    /// The whole patches on each side of an image, or the most on a side if images keep their aspect ratio.
    pub side: usize,
    /// The side of a patch, in pixels.
    pub patch_size: usize,
    /// The ε of norms.
    pub layer_norm_eps: f64,
    /// Whether the linear layers of queries, keys and values have biases.
    pub attention_bias: bool,
    /// Whether the linear layers of the projection have biases, in a family with a choice.
    pub projector_bias: bool,
    /// The base of the rotary embedding, in a family that has one.
    pub rope_theta: f64,
    /// A square of this side, in patches, becomes one vector of the text network.
    pub scale_factor: usize,
    /// The number of features of the text network.
    pub features: usize,
    /// The id of the token whose embedding a vector replaces.
    pub image_token: u32,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
}

/// A family of networks that read images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionFamily {
    /// An image becomes square tiles.
    SmolVlm,
    /// An image becomes one square, whose vectors see each other in the text network.
    Gemma3,
    /// An image becomes square tiles, and a small image of the whole.
    InternVl {
        /// Whether attention normalizes queries and keys.
        use_qk_norm: bool,
        /// Whether the norms of layers are RMS norms.
        rms_norms: bool,
    },
    /// An image keeps its aspect ratio. Tokens separate its rows.
    Pixtral {
        /// Whether the feed-forward networks have GELU instead of SiLU.
        gelu: bool,
    },
}

impl Vision {
    /// The patches of an image, or the most.
    pub fn patches(&self) -> usize {
        self.side * self.side
    }

    /// Whether images have different numbers of patches.
    pub fn varies(&self) -> bool {
        matches!(self.family, VisionFamily::Pixtral { .. })
    }

    /// The numbers of a patch. With images of different sizes, the last two are its row and its column.
    pub fn numbers(&self) -> usize {
        3 * self.patch_size * self.patch_size + if self.varies() { 2 } else { 0 }
    }

    /// The patches that become one vector.
    pub fn patches_of_vector(&self) -> usize {
        self.scale_factor * self.scale_factor
    }

    /// The vectors of an image in the text, or the most.
    pub fn vectors(&self) -> usize {
        self.patches() / self.patches_of_vector()
    }

    /// The most vectors that follow each other in the text.
    pub fn vectors_together(&self) -> usize {
        if self.varies() { self.side / self.scale_factor } else { self.vectors() }
    }

    /// The patches of each entry point, in descending order. An image with fewer patches is padded.
    pub fn calls(&self) -> Vec<usize> {
        let of = |part: usize| self.vectors().div_ceil(part) * self.patches_of_vector();
        let mut calls: Vec<usize> =
            if self.varies() { [1, 2, 4, 8].map(of).into() } else { vec![self.patches()] };
        calls.dedup();
        calls
    }

    /// The name of an entry point, and the numbers that it reads: those of an image, with padding behind them.
    pub fn call(&self, mut numbers: Vec<f32>) -> (String, Vec<f32>) {
        let count = numbers.len() / self.numbers();
        let patches = self.calls().into_iter().filter(|patches| *patches >= count).min().unwrap_or(count);
        let mut padding = vec![0.0; self.numbers()];
        // The row of padding.
        if let Some(row) = padding.iter_mut().rev().nth(1).filter(|_| self.varies()) {
            *row = -1.0;
        }
        numbers.extend(padding.repeat(patches.saturating_sub(count)));
        (entry_name(patches), numbers)
    }
}

model! {
    /// SigLIP without a projection (`modeling_siglip.py`): Zhai et al., "Sigmoid Loss for Language Image Pre-Training"
    /// (2023).
    pub Siglip<T: Float>(Vision) {
        dims {
            // W is the tower's features. An image has R rows and R columns of patches, M in all.
            W = hidden_size, F = intermediate_size, L = num_hidden_layers, H = num_attention_heads, E = W / H,
            C = 3, Y = patch_size, X = patch_size, R = side, M = R * R,
        }

        patch: Weight[W, C, Y, X] at "embeddings.patch_embedding.weight",
        patch_bias: Weight[W] at "embeddings.patch_embedding.bias",
        positions: Weight[M, W] at "embeddings.position_embedding.weight",
        layers: [VisionLayer; L] at "encoder.layers",
        norm: LayerNorm[W](eps = layer_norm_eps) at "post_layernorm",

        /// The features of patches, row by row. A patch has its channels, rows and columns in order.
        fn forward(patches: T[B, S, P]) -> T[B, S, W] {
            let x = dot(patches, self.patch().merge(&[C, Y, X], P), P) + self.patch_bias();
            let at = Attend::bidirectional(S, Mask::all());
            self.norm(self.layers.iter().fold(x + self.positions().rename(M, S), |x, layer| layer.forward(x, &at)))
        }
    }

    VisionLayer {
        layer_norm1: LayerNorm[W](eps = layer_norm_eps),
        self_attn: VisionAttention,
        layer_norm2: LayerNorm[W](eps = layer_norm_eps),
        mlp: VisionMlp,

        fn forward(x: T[B, S, W], at: &Attend<T>) -> T[B, S, W] {
            let x = x + self.self_attn(self.layer_norm1(x), at);
            x + self.mlp(self.layer_norm2(x))
        }
    }

    VisionAttention {
        q_proj: Linear[W -> H, E](bias),
        k_proj: Linear[W -> H, E](bias),
        v_proj: Linear[W -> H, E](bias),
        out_proj: Linear[H, E -> W](bias),

        fn forward(x: T[B, S, W], at: &Attend<T>) -> T[B, S, W] {
            let (k, v) = (self.k_proj(x).rename(S, KEYS), self.v_proj(x).rename(S, KEYS));
            self.out_proj(attend(self.q_proj(x), k, v, at))
        }
    }

    VisionMlp {
        fc1: Linear[W -> F](bias),
        fc2: Linear[F -> W](bias),

        fn forward(x: T[B, S, W]) -> T[B, S, W] {
            self.fc2(gelu_tanh(self.fc1(x)))
        }
    }
}

model! {
    /// The tower of SmolVLM with its connector (`modeling_smolvlm.py`).
    pub SmolVlmTower<T: Float>(Vision) {
        dims {
            // D is the features of the text network. I rows and J columns of squares have A rows and G columns of
            // patches each, and U features.
            W = hidden_size, D = features, R = side,
            A = scale_factor, G = scale_factor, I = R / A, J = R / A, Q = A * A, U = W * Q,
        }
        shard { H, F over model; B over data }

        siglip: Siglip<T> at "model.vision_model",
        projection: Linear[U -> D] at "model.connector.modality_projection.proj",

        /// The features of an image's squares, row by row.
        fn see(patches: T[B, S, P]) -> T[B, O, D] {
            let squares = [I, A, J, G].map(|axis| axis.of(self.dim(axis)));
            let squares = self.siglip.forward(patches).unmerge(S, &squares).permute(&[B, I, J, A, G, W]);
            self.projection(squares.merge(&[I, J], O).merge(&[A, G, W], U))
        }
    }
}

model! {
    /// The tower of Gemma 3 with its projector (`modeling_gemma3.py`).
    pub Gemma3Tower<T: Float>(Vision) {
        dims {
            // As in the tower of SmolVLM. A square has Q patches.
            W = hidden_size, D = features, R = side,
            A = scale_factor, G = scale_factor, I = R / A, J = R / A, Q = A * A,
        }
        shard { H, F over model; B over data }

        siglip: Siglip<T> at "model.vision_model",
        norm: RmsNorm[W](eps = layer_norm_eps, style = one_plus) at "model.multi_modal_projector.mm_soft_emb_norm",
        projection: Weight[W, D] at "model.multi_modal_projector.mm_input_projection_weight",

        /// The features of an image's squares, row by row.
        fn see(patches: T[B, S, P]) -> T[B, O, D] {
            let squares = [I, A, J, G].map(|axis| axis.of(self.dim(axis)));
            let squares = self.siglip.forward(patches).unmerge(S, &squares).permute(&[B, I, J, A, G, W]);
            let means = squares.merge(&[I, J], O).merge(&[A, G], Q).mean(Q);
            dot(self.norm(means), self.projection(), W)
        }
    }
}

/// The name of the entry point for a number of patches.
pub(crate) fn entry_name(patches: usize) -> String {
    format!("see_{patches}")
}

/// The tensors of towers and projections.
pub(crate) const TOWER: &[&str] =
    &["model.vision_model.", "model.connector.", "model.multi_modal_projector."];

/// A head that pools an image to one vector, for other uses of SigLIP.
pub(crate) const POOLING_HEAD: &str = "model.vision_model.head.";

/// The text network and its head, which the checkpoint of a tower also has.
pub(crate) const TEXT_IGNORABLE: &[Ignorable] = &[
    Ignorable::Prefix("model.embed_tokens."),
    Ignorable::Prefix("model.layers."),
    Ignorable::Prefix("model.norm."),
    Ignorable::Prefix("lm_head."),
    Ignorable::Suffix(".rotary_emb.inv_freq"),
    Ignorable::Suffix("embeddings.position_ids"),
    Ignorable::Prefix(POOLING_HEAD),
];

/// How a text network uses a tower.
pub(crate) struct Connection {
    /// The number of features of the text network.
    pub features: usize,
    pub image_token: usize,
    /// The element type of the text network.
    pub element: Option<ElementType>,
}

/// A family's defaults for missing keys of `vision_config`.
pub(crate) struct TowerDefaults {
    pub hidden_act: &'static str,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub image_size: usize,
    pub patch_size: usize,
}

/// The defaults of `SiglipVisionConfig` in HF transformers.
pub(crate) const SIGLIP: TowerDefaults = TowerDefaults {
    hidden_act: "gelu_pytorch_tanh",
    hidden_size: 768,
    intermediate_size: 3072,
    num_hidden_layers: 12,
    num_attention_heads: 12,
    image_size: 224,
    patch_size: 16,
};

/// Reads the keys of a `vision_config`, without the squares of patches that become one vector.
pub(crate) fn read(
    inner: &Keys,
    family: VisionFamily,
    defaults: &TowerDefaults,
    text: &Connection,
) -> Vision {
    let or = |key, default| inner.optional_count(key).unwrap_or(default);
    inner.one_of("hidden_act", &[defaults.hidden_act]);
    if or("num_channels", 3) != 3 {
        inner.refuse("num_channels", or("num_channels", 3), "3");
    }
    let image_size = square(inner, "image_size", defaults.image_size);
    let patch_size = square(inner, "patch_size", defaults.patch_size);
    let vision = Vision {
        family,
        hidden_size: or("hidden_size", defaults.hidden_size),
        intermediate_size: or("intermediate_size", defaults.intermediate_size),
        num_hidden_layers: or("num_hidden_layers", defaults.num_hidden_layers),
        num_attention_heads: or("num_attention_heads", defaults.num_attention_heads),
        image_size,
        side: image_size / patch_size.max(1),
        patch_size,
        layer_norm_eps: inner.number_or("layer_norm_eps", 1e-6),
        attention_bias: true,
        projector_bias: false,
        rope_theta: 1e4,
        scale_factor: 1,
        features: text.features,
        image_token: u32::try_from(text.image_token).unwrap_or(u32::MAX),
        element: inner.element_type().or(text.element),
    };
    read_base(inner);
    vision
}

/// The side of a square: a number, or a list of its height and its width.
fn square(inner: &Keys, key: &'static str, default: usize) -> usize {
    let Some(Value::Array(sides)) = inner.get(key) else {
        return inner.optional_count(key).unwrap_or(default);
    };
    let side = sides.first().and_then(Value::as_u64).filter(|_| sides.len() == 2 && sides[0] == sides[1]);
    let side =
        side.and_then(|side| usize::try_from(side).ok()).filter(|side| (1..=limits::EXTENT).contains(side));
    side.unwrap_or_else(|| {
        inner.refuse(key, Value::from(sides.clone()), "a positive integer, or a list of two equal ones");
        default
    })
}

/// The most patches on a side.
pub(crate) const MOST: usize = 128;

/// Checks the number of patches on a side.
pub(crate) fn check_side(inner: &Keys, vision: &Vision) {
    if !(1..=MOST).contains(&vision.side) {
        inner.refuse("image_size", vision.image_size, format!("1 to {MOST} patches on a side"));
    }
}

/// Checks that the text network reads the vectors of the last layer.
pub(crate) fn check_layer(keys: &Keys) {
    if let Some(found) = keys.get("vision_feature_layer").filter(|found| **found != -1) {
        keys.refuse("vision_feature_layer", found, "-1, the last layer");
    }
}

/// Checks that a square of patches becomes one vector.
pub(crate) fn check_squares(inner: &Keys, vision: &Vision, keys: (&Keys, &str, String)) {
    check_side(inner, vision);
    let (keys, key, found) = keys;
    if vision.scale_factor == 0 || !vision.side.is_multiple_of(vision.scale_factor) {
        keys.refuse(key, found, format!("a divisor of the {} patches on a side", vision.side));
    }
}
