//! Whisper: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022). An encoder of
//! a log-mel spectrogram, and a decoder that attends to the encoder's output. Field names follow the Hugging
//! Face checkpoint (`modeling_whisper.py`).

use dsl::nn::{Attend, Cache, Encoded, Kv, Mask, Position, attend, conv1d, gelu, positions_within};
use dsl::{Axis, F32, Float, model};
use ops::ElementType;
use trace::Ignorable;

use crate::config::Keys;
use crate::family::Family;
use crate::shape_check::DeclaredSize;
use crate::speech::SpeechConfig;

pub(crate) const FAMILY: Family = Family {
    about: "encoder of a log-mel spectrogram and a decoder, for transcription and translation of speech",
    prefixes: &[("encoder.", "model.encoder."), ("decoder.", "model.decoder.")],
    embedding: "model.decoder.embed_tokens.weight",
    ignorable: &[Ignorable::Prefix("proj_out.")],
    ..Family::of(&["WhisperForConditionalGeneration"], &[], &["whisper", "WhisperModel"])
};

/// The keys of the encoder's attention.
const SOURCE: Axis = Axis("M");

model! {
    /// The whole network, from a spectrogram `[B, S, C]` and token ids to logits over the vocabulary.
    pub Whisper<T: Float>(WhisperConfig) {
        dims {
            V = vocab_size, D = d_model, A = D, C = num_mel_bins, J = taps,
            X = encoder_layers, Y = encoder_attention_heads, U = D / Y, W = encoder_ffn_dim,
            L = num_hidden_layers, H = decoder_attention_heads, E = D / H, F = decoder_ffn_dim,
            N = max_source_positions, P = max_position_embeddings,
        }
        cache {
            L of [H, E],
            L of keys: Encoded[H, N, E],
            L of values: Encoded[H, N, E],
        }
        shard { H, Y, F, W over model; B over data }

        conv1: Weight[D, C, J] at "model.encoder.conv1.weight",
        conv1_bias: Weight[D] at "model.encoder.conv1.bias",
        conv2: Weight[A, D, J] at "model.encoder.conv2.weight",
        conv2_bias: Weight[A] at "model.encoder.conv2.bias",
        source_positions: Weight[N, D] at "model.encoder.embed_positions.weight",
        encoder: [EncoderLayer; X] at "model.encoder.layers",
        encoder_norm: LayerNorm[D] at "model.encoder.layer_norm",

        tokens: Embedding[V, D] at "model.decoder.embed_tokens",
        positions: Embedding[P, D] at "model.decoder.embed_positions",
        layers: [Layer; L] at "model.decoder.layers",
        norm: LayerNorm[D] at "model.decoder.layer_norm",
        head: Linear[D -> V] = tied(tokens),

        /// The features of each pair of frames. The convolutions see unrounded numbers.
        fn listen(mel: f32[B, S, C]) -> T[B, N, D] {
            let x = conv1d(mel, S, self.conv1().to::<F32>(), [C, J], 1, 1);
            let x = gelu(x + self.conv1_bias().to::<F32>());
            let x = conv1d(x, S, self.conv2().to::<F32>(), [D, J], 2, 1).rename(A, D).rename(S, N);
            let x = gelu(x + self.conv2_bias().to::<F32>().rename(A, D)).to::<T>() + self.source_positions();
            let at = Attend::bidirectional(N, Mask::all());
            let x = self.encoder.iter().fold(x, |x, layer| layer.forward(x, &at));
            self.encoder_norm(x)
        }

        /// All frames are real: zeros follow short clips before the spectrogram is computed.
        fn encode_features(mel: f32[B, S, C], _count: i32[B], cache: &mut Cache<T>) -> () {
            let x = self.listen(mel);
            for (i, layer) in self.layers.iter().enumerate() {
                let (k, v) = layer.keys(x);
                cache.named::<Encoded<T>>(i, "keys").fill(k);
                cache.named::<Encoded<T>>(i, "values").fill(v);
            }
        }

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            positions_within(self.dims.dim(P), cache.context);
            let mut x = self.tokens(tokens) + self.positions(at.positions(S, tokens.extent(S)));
            let (causal, cross) = (Attend::causal(at, S), Attend::bidirectional(S, Mask::all()));
            for (i, layer) in self.layers.iter().enumerate() {
                let k = cache.named::<Encoded<T>>(i, "keys").read();
                let v = cache.named::<Encoded<T>>(i, "values").read();
                x = layer.forward(x, &causal, cache.state(i), &cross, k, v);
            }
            self.norm(x)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.head(x).to()
        }
    }

    EncoderLayer {
        norm: LayerNorm[D] at "self_attn_layer_norm",
        query: Linear[D -> Y, U](bias) at "self_attn.q_proj",
        key: Linear[D -> Y, U] at "self_attn.k_proj",
        value: Linear[D -> Y, U](bias) at "self_attn.v_proj",
        out: Linear[Y, U -> D](bias) at "self_attn.out_proj",
        mlp_norm: LayerNorm[D] at "final_layer_norm",
        up: Linear[D -> W](bias) at "fc1",
        down: Linear[W -> D](bias) at "fc2",

        fn forward(x: T[B, N, D], at: &Attend<T>) -> T[B, N, D] {
            let normed = self.norm(x);
            let [k, v] = [self.key(normed), self.value(normed)].map(|part| part.rename(N, SOURCE));
            let x = x + self.out(attend(self.query(normed), k, v, at));
            x + self.down(gelu(self.up(self.mlp_norm(x))))
        }
    }

    /// A layer of the decoder, with attention to earlier tokens and to the encoder's output.
    Layer {
        norm: LayerNorm[D] at "self_attn_layer_norm",
        query: Linear[D -> H, E](bias) at "self_attn.q_proj",
        key: Linear[D -> H, E] at "self_attn.k_proj",
        value: Linear[D -> H, E](bias) at "self_attn.v_proj",
        out: Linear[H, E -> D](bias) at "self_attn.out_proj",
        cross_norm: LayerNorm[D] at "encoder_attn_layer_norm",
        cross_query: Linear[D -> H, E](bias) at "encoder_attn.q_proj",
        cross_key: Linear[D -> H, E] at "encoder_attn.k_proj",
        cross_value: Linear[D -> H, E](bias) at "encoder_attn.v_proj",
        cross_out: Linear[H, E -> D](bias) at "encoder_attn.out_proj",
        mlp_norm: LayerNorm[D] at "final_layer_norm",
        up: Linear[D -> F](bias) at "fc1",
        down: Linear[F -> D](bias) at "fc2",

        /// The keys and values of the encoder's output.
        fn keys(x: T[B, N, D]) -> (T[B, H, N, E], T[B, H, N, E]) {
            let order = [B, H, N, E];
            (self.cross_key(x).permute(&order), self.cross_value(x).permute(&order))
        }
        fn forward(
            x: T[B, S, D], causal: &Attend<T>, kv: &mut Kv<T>, cross: &Attend<T>, k: T[B, H, N, E], v: T[B, H, N, E],
        ) -> T[B, S, D] {
            let normed = self.norm(x);
            let (own_k, own_v) = kv.append(self.key(normed), self.value(normed), causal);
            let x = x + self.out(attend(self.query(normed), own_k, own_v, causal));
            let x = x + self.cross_out(attend(self.cross_query(self.cross_norm(x)), k, v, cross));
            x + self.down(gelu(self.up(self.mlp_norm(x))))
        }
    }
}

/// The configuration of a Whisper.
#[derive(Clone, Debug, PartialEq)]
pub struct WhisperConfig {
    /// The number of token ids in the vocabulary.
    pub vocab_size: usize,
    /// The number of features of a position.
    pub d_model: usize,
    /// The mel bins of a frame.
    pub num_mel_bins: usize,
    /// The taps of each convolution, 3 in all published models.
    pub taps: usize,
    /// The number of layers of the encoder.
    pub encoder_layers: usize,
    /// The number of layers of the decoder.
    pub num_hidden_layers: usize,
    /// The number of attention heads of the encoder.
    pub encoder_attention_heads: usize,
    /// The number of attention heads of the decoder.
    pub decoder_attention_heads: usize,
    /// The features between the linear layers of the encoder's feed-forward networks.
    pub encoder_ffn_dim: usize,
    /// The features between the linear layers of the decoder's feed-forward networks.
    pub decoder_ffn_dim: usize,
    /// The positions of the encoder's output, half as many as frames.
    pub max_source_positions: usize,
    /// The most tokens of prompt and answer.
    pub max_position_embeddings: usize,
    /// The element type of the checkpoint's weights, if the configuration contains this type.
    pub element: Option<ElementType>,
    /// The width of the median filter over the attention that tells the times of words, an odd number.
    pub median_filter_width: usize,
    /// Always true: the head has the weight of the token embedding.
    pub tie_word_embeddings: bool,
}

impl WhisperConfig {
    /// The features of a head of the decoder.
    pub(crate) fn head_features(&self) -> usize {
        self.d_model / self.decoder_attention_heads.max(1)
    }

    /// The spectrogram that the encoder reads.
    pub(crate) fn speech(&self) -> SpeechConfig {
        let (frames, bins) = (2 * self.max_source_positions, self.num_mel_bins);
        SpeechConfig {
            frames,
            bins,
            vocabulary: self.vocab_size,
            layers: self.num_hidden_layers,
            heads: self.decoder_attention_heads,
            median_filter_width: self.median_filter_width,
        }
    }

    /// For comparison with the shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let extent = DeclaredSize::extent;
        vec![
            DeclaredSize::numbers("encoder_layers", self.encoder_layers, "model.encoder.layers."),
            DeclaredSize::numbers("decoder_layers", self.num_hidden_layers, "model.decoder.layers."),
            extent("vocab_size", self.vocab_size, &[("model.decoder.embed_tokens.weight", 0)]),
            extent("d_model", self.d_model, &[("model.decoder.embed_tokens.weight", 1)]),
            extent("num_mel_bins", self.num_mel_bins, &[("model.encoder.conv1.weight", 1)]),
            extent("encoder_ffn_dim", self.encoder_ffn_dim, &[("model.encoder.layers.*.fc1.weight", 0)]),
            extent("decoder_ffn_dim", self.decoder_ffn_dim, &[("model.decoder.layers.*.fc1.weight", 0)]),
            extent(
                "max_source_positions",
                self.max_source_positions,
                &[("model.encoder.embed_positions.weight", 0)],
            ),
            extent(
                "max_target_positions",
                self.max_position_embeddings,
                &[("model.decoder.embed_positions.weight", 0)],
            ),
        ]
    }
}

pub(crate) fn read(keys: &Keys) -> WhisperConfig {
    keys.one_of("activation_function", &["gelu"]);
    keys.always("scale_embedding", false);
    keys.always("tie_word_embeddings", true);
    keys.always("is_encoder_decoder", true);
    // Dropout and masks of the training, losses, and settings of `generate`.
    keys.ignore(&[
        "activation_dropout",
        "apply_spec_augment",
        "classifier_proj_size",
        "decoder_layerdrop",
        "dropout",
        "encoder_layerdrop",
        "forced_decoder_ids",
        "init_std",
        "mask_feature_length",
        "mask_feature_min_masks",
        "mask_feature_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_time_prob",
        "num_hidden_layers",
        "use_weighted_layer_sum",
    ]);
    let median_filter_width = keys.optional_count("median_filter_width").unwrap_or(7);
    if median_filter_width.is_multiple_of(2) {
        keys.refuse("median_filter_width", median_filter_width, "an odd number");
    }
    WhisperConfig {
        vocab_size: keys.count("vocab_size"),
        d_model: keys.count("d_model"),
        num_mel_bins: keys.count("num_mel_bins"),
        taps: 3,
        encoder_layers: keys.count("encoder_layers"),
        num_hidden_layers: keys.count("decoder_layers"),
        encoder_attention_heads: keys.count("encoder_attention_heads"),
        decoder_attention_heads: keys.count("decoder_attention_heads"),
        encoder_ffn_dim: keys.count("encoder_ffn_dim"),
        decoder_ffn_dim: keys.count("decoder_ffn_dim"),
        max_source_positions: keys.count("max_source_positions"),
        max_position_embeddings: keys.count("max_target_positions"),
        element: keys.element_type(),
        median_filter_width,
        tie_word_embeddings: true,
    }
}
