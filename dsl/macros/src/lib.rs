//! `model!` and `#[derive(TraceArg)]`. Their documentation stands where users find them: in the dsl.
//!
//! Modules name each other by `super`: `tracewright-fuzz` has them as modules of its own, since such a crate offers macros only.

mod ast;

mod causal;
mod check;
mod context;
mod derive;
mod expand;
mod extents;
mod generate;
mod keys;
mod leaf;
mod length;
mod parse;
mod paths;
mod skeleton;

use proc_macro::TokenStream;

/// Declares a network: its weights, and what it computes with them.
///
/// ```text
/// model! {
///     /// Docs.
///     pub Net<T: Float>(Config) {
///         dims { V = vocab_size, D = hidden_size, H = num_heads, L = num_layers, E = head_dim or D / H }
///         cache { L of [H, E] }
///
///         embed: Embedding[V, D],
///         layers: [Layer; L],
///         head: Linear[D -> V](bias if head_bias) = tied(embed) if tie_word_embeddings,
///
///         fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] { … }
///         fn logits(x: T[.., D]) -> f32[.., V] { self.head(x).to() }
///     }
///
///     Layer {
///         norm: RmsNorm[D](eps = norm_eps),
///         mlp: other::Mlp<T>,
///
///         fn forward(x: T[B, S, D]) -> T[B, S, D] { x + self.mlp.forward(self.norm(x)) }
///     }
/// }
/// ```
///
/// The first block is the root. It bears the element type, which all blocks share, and the type of the
/// configuration, whose fields are the *keys* below. It gets `new(&Config)`.
///
/// **`dims`** names axes and says how long they are: a key, an integer, an earlier dim, a sum, a product, an
/// exact quotient, or `key or …` where the key is an `Option`. Names of axes begin with an upper-case letter.
///
/// **Fields** are leaves (`Linear[D -> V]`, `Embedding[V, D]`, `RmsNorm[D]` over one or more axes, `LayerNorm[D]`, `Weight[D]`, each
/// with its own element type if one is written: `Linear<F32>[…]`), blocks of this `model!`, arrays of blocks, and
/// blocks from elsewhere, written with a path or their element type.
/// Leaves and blocks of this `model!` are called as methods, `self.norm(x)`; blocks from elsewhere, parameters and
/// elements of arrays by `.forward`. A block from elsewhere whose configuration is another needs `Project`. `tied(a.b)` takes
/// the weight of the leaf at that path, seen from the block where it is written.
///
/// **Keys.** The path of a field is its checkpoint key, and its place in messages and dumps. Where a checkpoint has
/// another word than Rust should, the field says so:
///
/// ```text
/// query: Linear[D -> H, E](bias) at "self.query",
/// norm: LayerNorm[D] at "LayerNorm",
/// layers: [Layer; L] at "encoder.layer",
/// ```
///
/// - *Transposed:* `Linear[D -> F](transposed)` or `(transposed if key)` is stored inputs first, as GPT-2's `Conv1D`
///   is. A square matrix has one shape either way and loads without it, to compute something else: nothing but the
///   checkpoint's own code tells.
/// - *One weight, many tensors:* `w1: Weight[X, F, D] at "experts.*.w1.weight"`. The `*` counts along the first axis,
///   and the archive has the tensors as one.
/// - *Many weights, one tensor:* a dim that is a sum, and `split` in the body.
///
///   ```text
///   dims { H = num_attention_heads, K = num_key_value_heads, P = H + K + K, … }
///   qkv: Linear[D -> P, E],
///   let [q, k, v] = self.qkv(x).split(P, [self.dim(H), self.dim(K), self.dim(K)]);
///   let (q, k, v) = (q.rename(P, H), k.rename(P, K), v.rename(P, K));
///   ```
///
///   A tensor that has them head by head (`[H, 3, E]`) is `Linear[D -> H, P, E]` with `P = 3`.
///
/// **Functions** take and return tensors (`T[B, S, D]`, `f32[B]`, `i32[]`), whose axes are checked when the body is
/// traced, and Rust types that are `TraceArg`: by value, by `&`, or by `&mut` for state. Axes that `dims` lacks
/// are free: the first argument that has one says how long it is. (One that a single place names, and that is almost
/// a dim, is taken for a slip.) `T[.., D]` may have any axes in front of D. Every axis is a constant in the body, and
/// `self.dim(D)` an extent. The body is not rewritten; `self` is the block.
///
/// Each function can be an entry point: `Net::<F32>::record(&config)?.entry("predict", Net::predict, [("B", 8)])`.
///
/// **`cache`** says what each layer remembers. With it, `forward` (features of tokens) and `logits` (of features) make
/// the root a `CausalLm`. `cache { L of [H, E] within window }`: keys and values with these heads and features; a
/// layer i for which the configuration's method `window(i) -> Option<usize>` gives a number sees that many positions,
/// and remembers no more than it must. `cache { L of [H, E] if attends, L of recurrent [C, D] if convolves }`: only
/// layers for which the method says so have keys and values, others carry a state of their own. The general form is
/// `L of name: Kind<Element>[axes]`, with a kind of `nn::states`:
/// `cache { L of delta: Recurrent<F32>[H, E], L of latent: Slots[R] }`. In `forward`,
/// `cache.state(i)` is the state that layer i declares without a name, `cache.named(i, "delta")` one with a name.
///
/// **`shard`** says which axes are divided among many devices, and along which axis of their mesh:
/// `shard { K, F, V over model; B over data }`. Every weight, state, argument and result that has one of these axes is. A mesh
/// without an axis leaves what is over it whole.
///
/// **Parameters.** A block that is made around others takes them as type parameters behind the element type, and says
/// by a trait what it asks of them; whoever can stand there says so behind its name. An inner block has the root's
/// parameters, unless it has some of its own. The configuration may be one of them, if its bounds lead to the keys by `Deref`.
///
/// ```text
/// pub trait Maps<T: Float>: Block<Config = Config> { fn forward(&self, x: Tensor<T>) -> Tensor<T>; }
///
/// Layer<T: Float, M: Maps<T> = Mlp<T>>(Config) {
///     dims { … }
///     mlp: M,
///     fn forward(x: T[B, S, D]) -> T[B, S, D] { x + self.mlp.forward(x) }
/// }
/// Mlp<T: Float>: Maps<T> { … }
/// ```
///
/// An inner block is as visible as the root, unless it says otherwise.
#[proc_macro]
pub fn model(tokens: TokenStream) -> TokenStream {
    expand::model(tokens.into()).into()
}

/// Derives `TraceArg` for a struct or enum whose parts all are: tensors become inputs of a recorded body, plain
/// data becomes part of what tells one body from another.
#[proc_macro_derive(TraceArg)]
pub fn trace_arg(tokens: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(tokens as syn::DeriveInput);
    derive::trace_arg(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
