//! The macros `model!` and `#[derive(TraceArg)]`. You use these macros through the dsl crate, which
//! re-exports them.
//!
//! A proc-macro crate can export only macros, so the crate `tracewright-fuzz` includes the files of
//! this crate as modules. The files refer to each other with `super`, which is valid in this crate
//! and in `tracewright-fuzz`.

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
mod passing;
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
/// The first block of the declaration is the root block. The first type parameter of the root block
/// is the element type, which all blocks share. The type in parentheses is the type of the
/// configuration. In this text, a *key* is a field of the configuration. The macro generates a
/// function `new(&Config)` for the root block.
///
/// **`dims`** names axes and sets their extents. The extent of an axis is a configuration key, an
/// integer, an earlier dim, a sum, a product, or an exact quotient. If the configuration key is an
/// `Option`, the extent can also be `key or …`. Names of axes begin with an upper-case letter.
///
/// **Fields** are leaves (built-in layers), blocks of this `model!`, arrays of blocks, and blocks that are
/// declared elsewhere. The leaves are `Linear[D -> V]`, `Embedding[V, D]`, `RmsNorm[D]` over one or more
/// axes, `LayerNorm[D]` and `Weight[D]`. `RmsNorm[D](eps = key, style = one_plus)` multiplies by 1 + w, where
/// w is the weight. The other styles of an `RmsNorm` are `scale` and `wide`. A `LayerNorm` has a bias unless
/// you write `LayerNorm[D](bias = false)`. A leaf can have another element type than the model:
/// `Linear<F32>[…]`. To use a block that is declared elsewhere, write its path or its generic arguments, as
/// in `other::Mlp<T>`. If the configuration of a block from elsewhere has another type, implement `Project`.
/// If the sizes differ between the elements of a block array, also implement `Project::project_at`. You call
/// leaves and blocks of this `model!` as methods, as in `self.norm(x)`. You call the function `forward` of
/// blocks from elsewhere, of type parameters and of array elements, as in `self.mlp.forward(x)`. `tied(a.b)`
/// uses the weight of the leaf at the path `a.b`, relative to the block that contains the field.
///
/// **Keys.** The path of a field is also the key of the field's weight in the checkpoint, and the
/// name of the field in messages and dumps. If the checkpoint uses another key, add `at`:
///
/// ```text
/// query: Linear[D -> H, E](bias) at "self.query",
/// norm: LayerNorm[D] at "LayerNorm",
/// layers: [Layer; L] at "encoder.layer",
/// ```
///
/// - *Transposed:* `Linear[D -> F](transposed)` or `(transposed if key)` reads a matrix whose first
///   axis is the axis of the inputs, like GPT-2's `Conv1D`. The shape of a square matrix does not
///   reveal the order of the axes. If you forget `transposed`, a square weight loads, but the
///   results are wrong. Only the code that wrote the checkpoint shows the order of the axes.
/// - *One weight, many tensors:* `w1: Weight[X, F, D] at "experts.*.w1.weight"`. Tracewright
///   replaces the `*` by the index along the first axis. In the IRPA archive, all tensors that
///   match the pattern form one stacked tensor.
/// - *Many weights, one tensor:* declare a dim that is a sum, and call `split` in the body of the function.
///
///   ```text
///   dims { H = num_attention_heads, K = num_key_value_heads, P = H + K + K, … }
///   qkv: Linear[D -> P, E],
///   let [q, k, v] = self.qkv(x).split(P, [self.dim(H), self.dim(K), self.dim(K)]);
///   let (q, k, v) = (q.rename(P, H), k.rename(P, K), v.rename(P, K));
///   ```
///
/// If the tensor interleaves the query, key and value weights of each head (`[H, 3, E]`), write
/// `Linear[D -> H, P, E]` with `P = 3`.
///
/// **Functions** take and return tensors (`T[B, S, D]`, `f32[B]`, `i32[]`) and Rust types that implement
/// `TraceArg`. Tracewright checks the axes of the tensors when it traces the body. You pass a tensor by
/// value, a state that the function changes by `&mut`, and any other value by value or by `&`. An axis that
/// `dims` does not declare is free. The first argument with a free axis sets the extent of this axis. The
/// macro rejects a free axis as misspelt if only one tensor type names the axis and a dim has almost the same
/// name. A tensor of the type `T[.., D]` may have any axes before D. In the body of a function, every axis is
/// a constant, `self.dim(D)` is the extent of the axis D, and `self` is the block. The macro does not change
/// the bodies of functions.
///
/// You can record each function of a block as an entry point of the compiled module:
/// `Net::<F32>::record(&config)?.entry("predict", Net::predict, [("B", 8)])`.
///
/// **`cache`** declares the state of each layer. The root block implements `CausalLm` if it has a `cache`, a
/// function `forward` (tokens to features) and a function `logits` (features to logits). `cache { L of [H, E]
/// within window }` declares a KV cache with H heads and E features for each of L layers. The configuration's
/// method `window(i) -> Option<usize>` returns the number of positions that layer i sees. The cache of layer
/// i stores only the positions that the window of layer i needs. In `cache { L of [H, E] if attends, L of
/// recurrent [C, D] if recurs }`, the configuration's methods `attends(i)` and `recurs(i)` decide whether
/// layer i has a KV cache or a recurrent state. The full syntax of a state is `L of name:
/// Kind<Element>[axes]`. `Kind` is a type in `nn::states`: `cache { L of delta: Recurrent<F32>[H, E], L of
/// latent: Slots[R] }`. In `forward`, `cache.state(i)` returns the state of layer i that has no name.
/// `cache.named(i, "delta")` returns the state of layer i with the name `delta`. Two kinds of layers can have
/// attention heads of different sizes. For example, `L of [K = W, E = J] if …` gives the axes K and E the
/// extents of the dims W and J. A layer can also attend to the keys and values of another layer j. To read
/// the keys and values of layer j, the function of the attending layer takes a `&Kv<T>` and calls `Kv::read`.
/// The function `forward` passes `cache.state(j)` to the attending layer. A state with `for draft`, such as
/// `M of [H, E] if drafts for draft`, belongs to a layer for multi-token prediction, which only the function
/// `draft` calls.
///
/// **`shard`** declares which axes are partitioned over the axes of a device mesh: `shard { K, F, V
/// over model; B over data }`. In this example, Tracewright partitions every weight, state,
/// argument and result that has the axis K, F, V or B. A rule such as `B over data` has no effect
/// on a mesh without the axis `data`.
///
/// **Parameters.** A block can take other blocks as type parameters after the element type. A trait
/// bound on a type parameter declares the functions that the block must have. If a block's function
/// `forward` implements a trait, write this trait after the name and parameters of the block. An
/// inner block without its own type parameters has the type parameters of the root block. The type
/// of the configuration can also be a type parameter. The bounds of the configuration's type
/// parameter must include a `Deref` to a struct that has the configuration keys as fields.
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

/// Derives `TraceArg` for a struct or enum whose fields all implement `TraceArg`. The tensors in a
/// value of the derived type become inputs of a recorded function body. Two calls share one
/// recorded function body only if the plain data in their arguments is equal.
#[proc_macro_derive(TraceArg)]
pub fn trace_arg(tokens: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(tokens as syn::DeriveInput);
    derive::trace_arg(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
