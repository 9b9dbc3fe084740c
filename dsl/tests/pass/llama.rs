//! A network like Llama, with every kind of field, dim, setting and argument.

use tracewright_dsl::{
    Attend, Bf16, BuildError, Cache, CausalLm, EntryPoint, F32, Float, Kv, Position, attend,
};
use tracewright_dsl::{TraceArg, model, nn};

#[derive(Clone)]
pub struct Config {
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: Option<usize>,
    pub rms_norm_eps: f64,
    pub tie_word_embeddings: bool,
    pub attention_bias: bool,
}

model! {
    /// A small network.
    pub Small<T: Float>(Config) {
        dims {
            V = vocab_size, D = hidden_size, F = intermediate_size, L = num_hidden_layers,
            H = num_attention_heads, K = num_key_value_heads, G = H / K,
            E = head_dim or D / H,
        }
        cache { L of [K, E] }

        model: Model,
        lm_head: Linear[D -> V] = tied(model.embed_tokens) if tie_word_embeddings,

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            self.model(tokens, at, cache)
        }

        fn logits(x: T[.., D]) -> f32[.., V] {
            let logits = self.lm_head(x);
            return logits.to::<F32>();
        }
    }

    Model {
        embed_tokens: Embedding[V, D],
        layers: [Layer; L],
        norm: RmsNorm[D](eps = rms_norm_eps),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let mut x = self.embed_tokens(tokens);
            let rope = nn::RopeFrequencies::new(vec![1.0, 0.5], 1.0);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            for (i, layer) in self.layers.iter().enumerate() {
                x = layer.forward(x, &at, cache.state(i));
            }
            self.norm(x)
        }
    }

    /// One layer.
    Layer {
        self_attn: Attention,
        mlp: Mlp,
        input_layernorm: RmsNorm[D](eps = rms_norm_eps, style = one_plus),
        post_attention_layernorm: LayerNorm[D](eps = 1e-5, bias),

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let x = x + self.self_attn(self.input_layernorm(x), at, kv);
            x + self.mlp(self.post_attention_layernorm(x))
        }
    }

    Attention {
        q_proj: Linear[D -> K, G, E](bias if attention_bias),
        k_proj: Linear[D -> K, E](bias if attention_bias),
        v_proj: Linear[D -> K, E](bias if attention_bias),
        /// A doc comment of a field.
        o_proj: Linear[K, G, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let q = at.rope(self.q_proj(x));
            let (k, v) = kv.append(at.rope(self.k_proj(x)), self.v_proj(x), at);
            self.o_proj(attend(q, k, v, at))
        }
    }

    Mlp {
        gate_proj: Linear[D -> F],
        up_proj: Linear[D -> F],
        down_proj: Linear<F32>[F -> D],
        scale: Weight[D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let hidden = nn::silu(self.gate_proj(x)) * self.up_proj(x);
            assert_eq!(self.dim(F), 7);
            self.down_proj(hidden.to::<F32>()).to::<T>() * self.scale()
        }
    }
}

fn config() -> Config {
    Config {
        vocab_size: 11,
        hidden_size: 8,
        intermediate_size: 7,
        num_hidden_layers: 5,
        num_attention_heads: 6,
        num_key_value_heads: 3,
        head_dim: Some(4),
        rms_norm_eps: 1e-6,
        tie_word_embeddings: true,
        attention_bias: true,
    }
}

fn is_argument<A: TraceArg>() {}

#[test]
fn a_small_llama() {
    is_argument::<Kv<F32>>();
    let entries = EntryPoint::all(2, 3, 9);
    let traced = Small::<Bf16>::trace(&config(), &entries).unwrap_or_else(|error| panic!("{error}"));
    // `prefill` and `score` share a recorded body of the layers. `decode` has another extent of S.
    assert_eq!(traced.body_runs, 2);
    let text = traced.trace.to_string();
    assert!(text.contains("model.embed_tokens.weight"), "{text}");
    assert!(text.contains("model.layers.*.mlp.scale"), "{text}");
    assert!(!text.contains("lm_head.weight"), "the head is tied: {text}");

    let untied = Config { tie_word_embeddings: false, ..config() };
    let traced = Small::<F32>::trace(&untied, &entries).unwrap_or_else(|error| panic!("{error}"));
    assert!(traced.trace.to_string().contains("lm_head.weight"));

    let odd = Config { num_attention_heads: 7, head_dim: None, ..config() };
    let error = Small::<F32>::new(&odd).err().map(|error: BuildError| error.to_string());
    let expected = "`num_attention_heads` (7) is not a multiple of `num_key_value_heads` (3)";
    assert!(error.as_ref().is_some_and(|error| error.starts_with(expected)), "{error:?}");

    let derived = Config { num_attention_heads: 6, head_dim: None, ..config() };
    let error = Small::<F32>::new(&derived).err().map(|error| error.to_string());
    let expected = "`hidden_size` (8) is not a multiple of `num_attention_heads` (6)";
    assert!(error.as_ref().is_some_and(|error| error.starts_with(expected)), "{error:?}");
}
