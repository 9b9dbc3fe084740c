//! [`Vision`] is the vision tower of a network: what a tower reads, and how its features enter the text.

use dsl::nn::{Attend, Mask, attend, dot, gelu_tanh};
use dsl::{AnyFloat, Axis, EntryPoint, F32, Float, TraceError, Traced, in_element, model};
use ops::ElementType;
use trace::{Ignorable, Role};

use crate::config::{IGNORED, Keys, read_base};
use crate::sentence::KEYS;
use crate::shape_check::DeclaredSize;
use crate::{Architecture, MtpError};

const IMAGES: Axis = Axis("B");
const PATCHES: Axis = Axis("S");
const PIXELS: Axis = Axis("P");

/// A vision tower, and the projection of its features to the width of a text network.
#[derive(Clone, Debug, PartialEq)]
pub struct Vision {
    /// The number of features of a patch in the tower.
    pub hidden_size: usize,
    /// The number of features between the linear layers of the feed-forward network.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The patches on each side of an image.
    pub side: usize,
    /// The side of a patch, in pixels.
    pub patch_size: usize,
    /// The ε of norms.
    pub layer_norm_eps: f64,
    /// A square of this side, in patches, becomes one vector of the text network.
    pub scale_factor: usize,
    /// The number of features of the text network.
    pub features: usize,
    /// The id of the token whose embedding a vector replaces.
    pub image_token: u32,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
}

impl Vision {
    /// The patches of an image.
    pub fn patches(&self) -> usize {
        self.side * self.side
    }

    /// The numbers of a patch.
    pub fn numbers(&self) -> usize {
        3 * self.patch_size * self.patch_size
    }

    /// The vectors of an image in the text.
    pub fn vectors(&self) -> usize {
        self.patches() / (self.scale_factor * self.scale_factor)
    }
}

model! {
    /// SigLIP with the connector of SmolVLM (`modeling_smolvlm.py`): Zhai et al., "Sigmoid Loss for
    /// Language Image Pre-Training" (2023).
    pub VisionTower<T: Float>(Vision) {
        dims {
            // W is the tower's features, and D those of the text network. An image has R rows and R columns of
            // patches, M in all.
            W = hidden_size, F = intermediate_size, L = num_hidden_layers, H = num_attention_heads, E = W / H,
            C = 3, Y = patch_size, X = patch_size, R = side, M = R * R, D = features,
            // I rows and J columns of squares have A rows and G columns of patches each, and U features.
            A = scale_factor, G = scale_factor, I = R / A, J = R / A, Q = A * A, U = W * Q,
        }
        shard { H, F over model; B over data }

        patch: Weight[W, C, Y, X] at "model.vision_model.embeddings.patch_embedding.weight",
        patch_bias: Weight[W] at "model.vision_model.embeddings.patch_embedding.bias",
        positions: Weight[M, W] at "model.vision_model.embeddings.position_embedding.weight",
        layers: [VisionLayer; L] at "model.vision_model.encoder.layers",
        norm: LayerNorm[W](eps = layer_norm_eps) at "model.vision_model.post_layernorm",
        projection: Linear[U -> D] at "model.connector.modality_projection.proj",

        /// The features of an image's squares, row by row. A patch has its channels, rows and columns in order.
        fn see(patches: T[B, S, P]) -> T[B, O, D] {
            let x = dot(patches, self.patch().merge(&[C, Y, X], P), P) + self.patch_bias();
            let at = Attend::bidirectional(S, Mask::all());
            let x = self.layers.iter().fold(x + self.positions().rename(M, S), |x, layer| layer.forward(x, &at));
            let squares = [I, A, J, G].map(|axis| axis.of(self.dim(axis)));
            let squares = self.norm(x).unmerge(S, &squares).permute(&[B, I, J, A, G, W]);
            self.projection(squares.merge(&[I, J], O).merge(&[A, G, W], U))
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

impl Architecture for Vision {
    /// Each entry point takes the numbers of patches, and returns vectors of the text network.
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        in_element(element, || {
            let mut recording = VisionTower::<AnyFloat>::record(self)?;
            for point in entry_points {
                recording = recording.entry_with(&point.name, |tower, entry| {
                    let dims =
                        [IMAGES.of(point.batch), PATCHES.of(self.patches()), PIXELS.of(self.numbers())];
                    let patches = entry.input::<F32>("patches", Role::Patches, &dims);
                    entry.output("features", Role::Features, tower.see(patches.to()).to::<F32>());
                })?;
            }
            Ok(recording.finish())
        })
    }

    /// The patches of an image.
    fn max_context(&self) -> usize {
        self.patches()
    }

    /// A tower reads no tokens.
    fn vocabulary(&self) -> usize {
        0
    }

    fn element(&self) -> Option<ElementType> {
        self.element
    }

    fn check_mtp(&self) -> Result<(), MtpError> {
        Err(MtpError::Family)
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        Vec::new()
    }
}

/// The text network and its head, which the checkpoint of a tower also has.
pub(crate) const TEXT_IGNORABLE: &[Ignorable] = &[
    Ignorable::Prefix("model.embed_tokens."),
    Ignorable::Prefix("model.layers."),
    Ignorable::Prefix("model.norm."),
    Ignorable::Prefix("lm_head."),
    Ignorable::Suffix(".rotary_emb.inv_freq"),
    Ignorable::Suffix("embeddings.position_ids"),
];

/// Reads `vision_config`, and the keys beside it about the connection to a text network with `features`.
pub(crate) fn read(keys: &Keys, features: usize, element: Option<ElementType>) -> Option<Vision> {
    let scale_factor = keys.optional_count("scale_factor").unwrap_or(2);
    let image_token = keys.optional_integer("image_token_id").unwrap_or(128_257);
    let inner = keys.object("vision_config")?;
    let or = |key, default| inner.optional_count(key).unwrap_or(default);
    inner.one_of("hidden_act", &["gelu_pytorch_tanh"]);
    if or("num_channels", 3) != 3 {
        inner.refuse("num_channels", or("num_channels", 3), "3");
    }
    inner.ignore(&["max_image_size", "size", "tie_word_embeddings", "use_base_siglip"]);
    let (image_size, patch_size) = (or("image_size", 224), or("patch_size", 32));
    let side = image_size / patch_size.max(1);
    // HF transformers computes the row of a position in f32. With these sides, rounding chooses other rows.
    if !(1..=32).contains(&side) || [19, 25, 29, 31].contains(&side) {
        let expected = "1 to 32 patches on a side, and not 19, 25, 29 or 31";
        inner.refuse("image_size", image_size, expected);
    }
    if scale_factor == 0 || !side.is_multiple_of(scale_factor.max(1)) {
        keys.refuse("scale_factor", scale_factor, format!("a divisor of the {side} patches on a side"));
    }
    let vision = Vision {
        hidden_size: or("hidden_size", 1152),
        intermediate_size: or("intermediate_size", 3072),
        num_hidden_layers: or("num_hidden_layers", 12),
        num_attention_heads: or("num_attention_heads", 16),
        side,
        patch_size,
        layer_norm_eps: inner.number_or("layer_norm_eps", 1e-6),
        scale_factor,
        features,
        image_token: u32::try_from(image_token).unwrap_or(u32::MAX),
        element: inner.element_type().or(element),
    };
    read_base(&inner);
    keys.close_ignoring(inner, IGNORED);
    Some(vision)
}
