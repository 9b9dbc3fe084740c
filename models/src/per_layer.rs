//! The decoder of the Gemma 4 networks (`modeling_gemma4.py`), whose layers differ from each other.
//! Layers with an attention window and layers without an attention window have different head sizes.
//! The last layers attend to the keys and values of earlier layers. Each layer can have an additional
//! embedding table for the tokens.

mod config;

use dsl::nn::{Attend, Cache, Kv, Position, attend, dot, gelu_tanh, rms_norm};
use dsl::{F32, Float, Tensor, model};

use crate::experts::{Routing, Scores, mixture, route};
use crate::gemma::{Mlp, soft_cap};
use crate::rope::RopeParameters;

pub use config::{LayerConfig, PerLayerConfig};
pub(crate) use config::{OwnDefaults, read};

model! {
    /// The whole network, from token ids `[B, S]` to logits over the vocabulary.
    pub PerLayerDecoder<T: Float>(PerLayerConfig) {
        dims {
            V = vocab_size, D = hidden_size, L = num_hidden_layers,
            // The number of key-value heads and the number of features of a head are K and E in
            // layers with an attention window. In layers without a window, the two numbers are W
            // and J.
            K = num_key_value_heads, E = head_dim or 1, W = global_key_value_heads, J = global_head_dim,
            // The vocabulary of the per-layer embeddings, the features for a layer, and the
            // features for all layers.
            U = vocab_size_per_layer_input, P = per_layer_features, Z = L * P,
        }
        cache { L of [K, E] within window if caches_window, L of [K = W, E = J] if caches_all }
        shard { K, F, V over model; X over expert; B over data }

        model: BaseModel,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            soft_cap(self.lm_head(x), self.config.final_logit_softcapping).to()
        }
    }

    /// The network without the output head: the scaled embeddings, the layers and the final norm.
    pub BaseModel {
        embed_tokens: Embedding[V, D],
        embed_tokens_per_layer: Embedding[U, Z],
        per_layer_model_projection: Linear[D -> L, P],
        per_layer_projection_norm: RmsNorm[P](eps = rms_norm_eps, style = wide),
        layers: [Layer<T>; L],
        norm: RmsNorm[D](eps = rms_norm_eps, style = wide),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let attention = |rope: &RopeParameters, features| {
                let frequencies = rope.frequencies(features, cache.context);
                Attend::rotary(at, S, tokens.extent(S), &frequencies, cache.context).scaled(1.0)
            };
            let global = attention(&self.config.rope, self.dim(J));
            let local = self.config.local_rope.as_ref().map(|rope| attention(rope, self.dim(E)));
            let mut x = self.embed_tokens(tokens) * Tensor::scalar((self.dim(D) as f64).sqrt());
            let beside = self.config.has_per_layer.then(|| self.beside(tokens, x));
            for (i, layer) in self.layers.iter().enumerate() {
                let at = local.as_ref().filter(|_| self.config.window(i).is_some()).unwrap_or(&global);
                let at = &at.clone().windowed(self.config.window(i));
                let beside = beside.map(|all| all.narrow(Z, i * self.dim(P), self.dim(P)).rename(Z, P));
                x = match self.config.source(i) {
                    source if source == i => layer.forward(x, beside, at, cache.state(i)),
                    source => layer.share(x, beside, at, cache.state(source)),
                };
            }
            self.norm(x)
        }

        /// Each layer's additional input: a per-layer embedding plus a projection of the main one.
        fn beside(tokens: i32[B, S], x: T[B, S, D]) -> T[B, S, Z] {
            let (scale, own_scale) = ((self.dim(D) as f64).powf(-0.5), (self.dim(P) as f64).sqrt());
            let projected = self.per_layer_projection_norm(self.per_layer_model_projection(x) * scale);
            let own = self.embed_tokens_per_layer(tokens) * Tensor::scalar(own_scale);
            (projected.merge(&[L, P], Z) + own) * 2f64.powf(-0.5)
        }
    }
}

model! {
    /// Norms around attention and feed-forward network, and a factor from the checkpoint at the end.
    pub Layer<T: Float>(LayerConfig) {
        dims {
            D = hidden_size, P = per_layer_features, I = 1,
            H = num_attention_heads, K = num_key_value_heads, G = H / K, E = head_dim or 1,
            // X is the number of experts, and M is the number of features of an expert.
            X = num_experts, M = moe_intermediate_size,
        }

        input_layernorm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        self_attn: Attention,
        post_attention_layernorm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        pre_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        // The number of features F of the feed-forward network can differ between layers.
        mlp: Mlp<T>,
        post_feedforward_layernorm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        per_layer_input_gate: Linear[D -> P],
        per_layer_projection: Linear[P -> D],
        post_per_layer_input_norm: RmsNorm[D](eps = rms_norm_eps, style = wide),
        layer_scalar: Weight[I],
        router: Router,
        gate_proj: Weight[X, M, D] at "experts.*.gate_proj.weight",
        up_proj: Weight[X, M, D] at "experts.*.up_proj.weight",
        down_proj: Weight[X, D, M] at "experts.*.down_proj.weight",
        post_feedforward_layernorm_1: RmsNorm[D](eps = rms_norm_eps, style = wide),
        post_feedforward_layernorm_2: RmsNorm[D](eps = rms_norm_eps, style = wide),
        pre_feedforward_layernorm_2: RmsNorm[D](eps = rms_norm_eps, style = wide),

        fn forward(x: T[B, S, D], beside: Option<Tensor<T>>, at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let y = self.self_attn(self.input_layernorm(x), at, kv);
            self.feed_forward(x + self.post_attention_layernorm(y), beside)
        }

        /// Attends to keys and values of an earlier layer.
        fn share(x: T[B, S, D], beside: Option<Tensor<T>>, at: &Attend<T>, kv: &Kv<T>) -> T[B, S, D] {
            let y = self.self_attn.share(self.input_layernorm(x), at, kv);
            self.feed_forward(x + self.post_attention_layernorm(y), beside)
        }

        fn feed_forward(x: T[B, S, D], beside: Option<Tensor<T>>) -> T[B, S, D] {
            let y = self.mlp.forward(self.pre_feedforward_layernorm(x));
            let y = if self.config.has_experts { self.post_feedforward_layernorm_1(y) + self.mixed(x) } else { y };
            let mut x = x + self.post_feedforward_layernorm(y);
            if let Some(beside) = beside {
                let y = self.per_layer_projection(gelu_tanh(self.per_layer_input_gate(x)) * beside);
                x = x + self.post_per_layer_input_norm(y);
            }
            x * self.layer_scalar().reshape(&[])
        }

        /// Computes the weighted sum of the outputs of the experts that each token chooses.
        fn mixed(x: T[B, S, D]) -> T[B, S, D] {
            let routing = Routing::normalized(Scores::Softmax);
            let routed = route(self.router(x).to::<F32>(), None, self.config.top_k_experts, &routing);
            let routed = routed.weighted(self.router.per_expert_scale());
            let x = self.pre_feedforward_layernorm_2(x);
            let weights = [self.gate_proj(), self.up_proj(), self.down_proj()];
            let mixed = mixture(x, routed, weights, |[gate, up, down]| {
                dot(gelu_tanh(dot(x, gate, D)) * dot(x, up, D), down, M)
            });
            self.post_feedforward_layernorm_2(mixed)
        }
    }

    /// Its norm multiplies by a trained scale and by 1/√D, and not by a weight.
    pub Router {
        scale: Weight[D],
        proj: Linear[D -> X],
        per_expert_scale: Weight<F32>[X],

        fn forward(x: T[B, S, D]) -> T[B, S, X] {
            let normed = rms_norm(x, &[D], self.config.rms_norm_eps);
            self.proj(normed * self.scale() * (self.dim(D) as f64).powf(-0.5))
        }
    }

    /// Normalizes queries, keys and values. Without a window, some have one matrix for keys and values.
    pub Attention {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        q_norm: RmsNorm[E](eps = rms_norm_eps, style = wide),
        k_norm: RmsNorm[E](eps = rms_norm_eps, style = wide),
        o_proj: Linear[K, G, E -> D](bias if attention_bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let k = self.k_proj(x);
            let v = if self.config.keys_are_values { k } else { self.v_proj(x) };
            let v = rms_norm(v, &[E], self.config.rms_norm_eps);
            kv.append(at.rope(self.k_norm(k)), v, at); // [B, K, N, E]
            self.share(x, at, kv)
        }

        fn share(x: T[B, S, D], at: &Attend<T>, kv: &Kv<T>) -> T[B, S, D] {
            let (k, v) = kv.read();
            self.o_proj(attend(at.rope(self.q_norm(self.q_proj(x))), k, v, at))
        }
    }
}
