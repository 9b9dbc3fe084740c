//! The vision tower of Mistral 3 and Ministral 3: Agrawal et al., "Pixtral 12B" (2024), §2.1. Names follow
//! `modeling_pixtral.py` and `modeling_mistral3.py`. An image keeps its aspect ratio, so the tower reads the row and
//! the column of each patch with the patch.

use dsl::nn::{Attend, Mask, RopeFrequencies, attend, dot, gelu, silu};
use dsl::{Float, I32, model};
use ops::ops::Sdpa;

use crate::config::{IGNORED, Keys};
use crate::decoder::LlamaConfig;
use crate::sentence::KEYS;
use crate::vision::{self, Connection, TowerDefaults, Vision, VisionFamily};

model! {
    /// Pixtral's tower with the projector of Mistral 3 (`Mistral3MultiModalProjector`).
    pub PixtralTower<T: Float>(Vision) {
        dims {
            // W is the tower's features. A square of A rows and G columns of patches has U features.
            W = hidden_size, F = intermediate_size, L = num_hidden_layers, H = num_attention_heads, E = W / H,
            D = features, C = 3, Y = patch_size, X = patch_size,
            A = scale_factor, G = scale_factor, Q = A * A, U = W * Q, V = W, Z = D,
        }
        shard { H, F over model; B over data }

        patch: Weight[W, C, Y, X] at "model.vision_model.patch_conv.weight",
        ln_pre: RmsNorm[W](eps = 1e-5) at "model.vision_model.ln_pre",
        layers: [PixtralLayer; L] at "model.vision_model.transformer.layers",
        norm: RmsNorm[W](eps = layer_norm_eps) at "model.multi_modal_projector.norm",
        merging: Weight[V, U] at "model.multi_modal_projector.patch_merger.merging_layer.weight",
        linear_1: Linear[W -> Z](bias if projector_bias) at "model.multi_modal_projector.linear_1",
        linear_2: Linear[Z -> D](bias if projector_bias) at "model.multi_modal_projector.linear_2",

        /// The features of squares. The row and the column of a patch are its last two numbers, and each Q patches that
        /// follow each other are a square. The row of padding is negative.
        fn see(patches: f32[B, S, P]) -> T[B, O, D] {
            let length = patches.extent(P) - 2;
            let place = |index| patches.narrow(P, index, 1).sum(P).to::<I32>();
            let (rows, columns) = (place(length), place(length + 1));
            let patches = patches.narrow(P, 0, length).to();
            let places = [rows, columns].map(|at| at.maximum(0.0));
            let frequencies = axial(self.dim(E), self.config.rope_theta);
            let hidden = rows.rename(S, KEYS).less(0.0).select(Sdpa::HIDDEN, 0.0);
            let at = Attend::axial(S, Mask::additive(hidden), places, &frequencies, self.config.side);
            let x = self.ln_pre(dot(patches, self.patch().merge(&[C, Y, X], P), P));
            let x = self.norm(self.layers.iter().fold(x, |x, layer| layer.forward(x, &at)));
            let parts = [W, A, G].map(|axis| axis.of(self.dim(axis)));
            let merging = self.merging().unmerge(U, &parts).permute(&[V, A, G, W]).merge(&[A, G, W], U);
            let squares = [O.of(x.extent(S) / self.dim(Q)), Q.of(self.dim(Q))];
            let x = dot(x.unmerge(S, &squares).merge(&[Q, W], U), merging, U).rename(V, W);
            self.linear_2(gelu(self.linear_1(x)))
        }
    }

    PixtralLayer {
        attention_norm: RmsNorm[W](eps = 1e-5),
        attention: PixtralAttention,
        ffn_norm: RmsNorm[W](eps = 1e-5),
        feed_forward: PixtralMlp,

        fn forward(x: T[B, S, W], at: &Attend<T>) -> T[B, S, W] {
            let x = x + self.attention(self.attention_norm(x), at);
            x + self.feed_forward(self.ffn_norm(x))
        }
    }

    PixtralAttention {
        q_proj: Linear[W -> H, E],
        k_proj: Linear[W -> H, E],
        v_proj: Linear[W -> H, E],
        o_proj: Linear[H, E -> W],

        fn forward(x: T[B, S, W], at: &Attend<T>) -> T[B, S, W] {
            let (q, k) = (at.rope(self.q_proj(x)), at.rope(self.k_proj(x)));
            self.o_proj(attend(q, k.rename(S, KEYS), self.v_proj(x).rename(S, KEYS), at))
        }
    }

    PixtralMlp {
        gate_proj: Linear[W -> F],
        up_proj: Linear[W -> F],
        down_proj: Linear[F -> W],

        fn forward(x: T[B, S, W]) -> T[B, S, W] {
            let gate = self.gate_proj(x);
            let gate = if self.config.family == (VisionFamily::Pixtral { gelu: true }) { gelu(gate) } else { silu(gate) };
            self.down_proj(gate * self.up_proj(x))
        }
    }
}

/// The even frequencies of a head rotate by the row of a patch, and the odd ones by the column.
fn axial(features: usize, theta: f64) -> [RopeFrequencies; 2] {
    let inverse = |pair: usize| {
        // As torch computes it in f32.
        1.0 / (theta as f32).powf(pair as f32 * 2.0 / features as f32)
    };
    [0, 1].map(|first| {
        RopeFrequencies::new(
            (first..features / 2).step_by(2).map(|pair| f64::from(inverse(pair))).collect(),
            1.0,
        )
    })
}

/// Keys beside the text network that change no number.
pub(crate) const BESIDE_TEXT: &[&str] = key_names![architectures model_type transformers_version];

pub(crate) fn read(keys: &Keys, text: &LlamaConfig) -> Option<Vision> {
    let image_token = keys.agreed(
        ("image_token_index", keys.optional_integer("image_token_index")),
        ("image_token_id", keys.optional_integer("image_token_id")),
    );
    let projector_bias = keys.flag("multimodal_projector_bias", false);
    let scale_factor = keys.optional_count("spatial_merge_size").unwrap_or(2);
    keys.one_of("projector_hidden_act", &["gelu"]);
    vision::check_layer(keys);
    let inner = keys.object("vision_config")?;
    let act = inner.optional_text("hidden_act");
    let gelu = act.as_deref().unwrap_or("gelu") == "gelu";
    let rope_theta = read_rope(&inner);
    let defaults = TowerDefaults { hidden_act: if gelu { "gelu" } else { "silu" }, ..PIXTRAL };
    let connection = Connection {
        features: text.hidden_size,
        image_token: image_token.unwrap_or(10),
        element: text.element,
    };
    let vision = vision::read(&inner, VisionFamily::Pixtral { gelu }, &defaults, &connection);
    let head_dim = vision.hidden_size / vision.num_attention_heads.max(1);
    if let Some(found) = inner.optional_count("head_dim").filter(|found| *found != head_dim) {
        inner.refuse("head_dim", found, head_dim.to_string());
    }
    if !head_dim.is_multiple_of(4) {
        inner.refuse("hidden_size", vision.hidden_size, "four times a whole number of features in each head");
    }
    let square = vision.patch_size * scale_factor.clamp(1, 16);
    let side = vision.image_size.div_ceil(square.max(1)) * scale_factor.clamp(1, 16);
    if scale_factor > 16 {
        keys.refuse("spatial_merge_size", scale_factor, "at most 16");
    }
    if side > vision::MOST {
        inner.refuse("image_size", vision.image_size, format!("at most {} patches on a side", vision::MOST));
    }
    let layer_norm_eps = text.rms_norm_eps;
    keys.close_ignoring(inner, IGNORED);
    Some(Vision { side, scale_factor, layer_norm_eps, projector_bias, rope_theta, ..vision })
}

/// From `rope_parameters` in files of HF transformers 5, or from `rope_theta`.
fn read_rope(inner: &Keys) -> f64 {
    let plain = inner.optional_number("rope_theta");
    let Some(rope) = inner.object("rope_parameters") else { return plain.unwrap_or(1e4) };
    rope.one_of("rope_type", &["axial", "default"]);
    let theta = rope.optional_number("rope_theta");
    let theta = rope.agreed(("rope_theta", theta), ("rope_theta", plain));
    inner.close(rope);
    theta.unwrap_or(1e4)
}

/// The defaults of the `vision_config` of `Mistral3Config` in HF transformers.
const PIXTRAL: TowerDefaults = TowerDefaults {
    hidden_act: "gelu",
    hidden_size: 1024,
    intermediate_size: 4096,
    num_hidden_layers: 24,
    num_attention_heads: 16,
    image_size: 1024,
    patch_size: 16,
};
