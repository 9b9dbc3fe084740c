//! The macros `model!` and `#[derive(TraceArg)]`. You use these macros through the dsl crate, which
//! re-exports them.
//!
//! Modules refer to each other with `super`, because `tracewright-fuzz` includes the same files as its own
//! modules. A proc-macro crate can export nothing but macros.

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

/// Declares a network: its weights and its operations.
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
/// The first block of the declaration is the root block. Its first type parameter is the element type, which
/// all blocks share. The type in parentheses is the configuration, and the *keys* below are its fields. The
/// macro gives the root a function `new(&Config)`.
///
/// **`dims`** names axes and sets their extents. An extent is a key, an integer, an earlier dim, a sum, a
/// product, an exact quotient, or `key or …` if the key is an `Option`. Names of axes begin with an
/// upper-case letter.
///
/// **Fields** are leaves, blocks of this `model!`, arrays of blocks, and blocks from elsewhere. The leaves
/// are `Linear[D -> V]`, `Embedding[V, D]`, `RmsNorm[D]` over one or more axes, `LayerNorm[D]` and
/// `Weight[D]`. `RmsNorm[D](eps = key, style = one_plus)` multiplies by 1 + w; the other styles are `scale`
/// and `wide`. A `LayerNorm` has a bias unless you write `LayerNorm[D](bias = false)`. A leaf can have an
/// element type of its own: `Linear<F32>[…]`. You write a block from elsewhere with a path or with its
/// element type. If this block's configuration has another type, implement `Project`. If the sizes of an
/// array's elements differ, also implement its function `project_at`. You call leaves and blocks of this `model!` as methods, `self.norm(x)`. You call blocks from elsewhere, type parameters and
/// elements of arrays with `.forward`. `tied(a.b)` uses the weight of the leaf at the path `a.b`, relative to
/// the block that contains the field.
///
/// **Keys.** The path of a field is its checkpoint key, and its name in messages and dumps. If the checkpoint
/// uses another name, add `at`:
///
/// ```text
/// query: Linear[D -> H, E](bias) at "self.query",
/// norm: LayerNorm[D] at "LayerNorm",
/// layers: [Layer; L] at "encoder.layer",
/// ```
///
/// - *Transposed:* `Linear[D -> F](transposed)` or `(transposed if key)` reads a matrix whose first axis is
///   the inputs, like GPT-2's `Conv1D`. The shape of a square matrix does not reveal the order of its axes:
///   without `transposed`, the weight loads but the results are wrong. Only the code that wrote the
///   checkpoint shows which order is right.
/// - *One weight, many tensors:* `w1: Weight[X, F, D] at "experts.*.w1.weight"`. The `*` is replaced by the
///   index along the first axis. The archive contains one stacked tensor.
/// - *Many weights, one tensor:* declare a dim that is a sum, and call `split` in the body of the function.
///
///   ```text
///   dims { H = num_attention_heads, K = num_key_value_heads, P = H + K + K, … }
///   qkv: Linear[D -> P, E],
///   let [q, k, v] = self.qkv(x).split(P, [self.dim(H), self.dim(K), self.dim(K)]);
///   let (q, k, v) = (q.rename(P, H), k.rename(P, K), v.rename(P, K));
///   ```
///
/// If the tensor interleaves the weights by head (`[H, 3, E]`), write `Linear[D -> H, P, E]` with `P = 3`.
///
/// **Functions** take and return tensors (`T[B, S, D]`, `f32[B]`, `i32[]`) and Rust types that implement
/// `TraceArg`. Tracing the body checks the axes of the tensors. Values of other types are passed by value, by
/// `&`, or by `&mut` for state. An axis that `dims` does not declare is free: the first argument with this
/// axis sets its extent. (The macro rejects a free axis if only one place names it and its name is almost
/// that of a dim.) `T[.., D]` may have any axes before D. In the body of the function, every axis is a
/// constant, `self.dim(D)` is its extent, and `self` is the block. The macro does not change the body.
///
/// Each function can become an entry point: `Net::<F32>::record(&config)?.entry("predict", Net::predict,
/// [("B", 8)])`.
///
/// **`cache`** declares the state of each layer. A root with a `cache`, a function `forward` (tokens to
/// features) and a function `logits` (features to logits) implements `CausalLm`. `cache { L of [H, E] within
/// window }` declares keys and values with H heads and E features. The configuration's method `window(i) ->
/// Option<usize>` returns the number of positions that layer i sees, and the cache of that layer stores no
/// more than it needs. In `cache { L of [H, E] if attends, L of recurrent [C, D] if recurs }`, the
/// configuration's methods `attends(i)` and `recurs(i)` decide whether layer i has keys and values or a
/// recurrent state. The general form is `L of name: Kind<Element>[axes]`, where the kind is a type in
/// `nn::states`: `cache { L of delta: Recurrent<F32>[H, E], L of latent: Slots[R] }`. In `forward`,
/// `cache.state(i)` is the state of layer i without a name, and `cache.named(i, "delta")` is a state with a
/// name. If layers of two kinds have heads of different sizes, `L of [K = W, E = J] if …` gives the axes K and
/// E the extents of the dims W and J. A layer that attends to keys and values of layer j takes `&Kv<T>`,
/// gets `cache.state(j)`, and calls `Kv::read`.
///
/// **`shard`** declares which axes are partitioned over the axes of a device mesh: `shard { K, F, V over
/// model; B over data }`. The rule partitions every weight, state, argument and result that has one of these
/// axes. If a mesh has no axis `model` or `data`, the rule for this axis has no effect.
///
/// **Parameters.** A block can take other blocks as type parameters after the element type. A trait bound
/// declares what such a block must offer. A block declares the trait that its `forward` implements after its
/// own name. An inner block has the root's parameters, unless it declares its own. The configuration can also
/// be a type parameter if its bounds lead to the keys by `Deref`.
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
/// An inner block has the visibility of the root block, unless you declare another visibility.
#[proc_macro]
pub fn model(tokens: TokenStream) -> TokenStream {
    expand::model(tokens.into()).into()
}

/// Derives `TraceArg` for a struct or enum whose fields all implement `TraceArg`. Tensors become inputs of a
/// recorded body. Plain data becomes part of the key that decides whether two calls share one body.
#[proc_macro_derive(TraceArg)]
pub fn trace_arg(tokens: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(tokens as syn::DeriveInput);
    derive::trace_arg(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
