//! Mixtures of experts. A router chooses some experts for each token, and the result is the
//! weighted sum of these experts' outputs.

use std::rc::Rc;

use dsl::nn::{Attend, Kv, dot, silu, softmax, topk};
use dsl::{Axis, Block, BuildError, Dim, ExpertsMode, F32, Float, I32, Scope, Tensor, experts_mode, model};
use ops::format::PANEL;

use crate::config::Keys;
use crate::decoder::{AttentionBlock, DecoderConfig, FeedForward, LlamaConfig};
use crate::family::Stacks;
use crate::shape_check::DeclaredSize;

const B: Axis = Axis("B");
const S: Axis = Axis("S");
const D: Axis = Axis("D");
const F: Axis = Axis("F");
/// All experts, and those that a token chooses.
const X: Axis = Axis("X");
const C: Axis = Axis("C");

/// How experts are scored, chosen and weighted.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// The function that computes scores from the router's logits.
    pub scores: Scores,
    /// Groups of experts, and those from which a token chooses. A group's score is the sum of its two
    /// largest.
    pub groups: Option<[usize; 2]>,
    /// The divisor of the chosen experts' scores. With `None`, the router does not divide the scores.
    pub divisor: Option<Divisor>,
    /// The factor by which the weights of the chosen experts are multiplied.
    pub factor: f64,
}

/// A function that computes scores from the logits of all experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
}

/// The divisor of the chosen experts' scores. The divisor depends on the sum of the chosen experts' scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divisor {
    /// The divisor is the sum of the scores plus this number, which avoids a division by 0.
    SumPlus(f64),
    /// The divisor is the sum of the scores or this number, whichever is larger.
    SumAtLeast(f64),
}

impl Routing {
    pub(crate) fn normalized(scores: Scores) -> Self {
        Self { divisor: Some(Divisor::SumPlus(0.0)), ..Self::plain(scores) }
    }

    pub(crate) fn plain(scores: Scores) -> Self {
        Self { scores, groups: None, divisor: None, factor: 1.0 }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Routed {
    /// For outputs, `[B, S, X]`; 0 for experts that the token did not choose.
    share: Tensor<F32>,
    /// 1 for chosen experts, else 0, `[B, S, X]`.
    chosen: Tensor<F32>,
    count: usize,
}

impl Routed {
    /// `factors` has the shape `[X]`.
    #[track_caller]
    pub(crate) fn weighted(self, factors: Tensor<F32>) -> Self {
        Self { share: self.share * factors, ..self }
    }
}

/// Chooses by logits `[B, S, X]`. The `bias` `[X]` changes the choice, but not the weights (Wang et al.,
/// "Auxiliary-Loss-Free Load Balancing", 2024).
#[track_caller]
pub(crate) fn route(
    logits: Tensor<F32>,
    bias: Option<Tensor<F32>>,
    count: usize,
    routing: &Routing,
) -> Routed {
    let scores = match routing.scores {
        Scores::Softmax => softmax(logits, X),
        Scores::Sigmoid => logits.logistic(),
    };
    let rank = bias.map_or(scores, |bias| scores + bias);
    let rank = routing.groups.map_or(rank, |groups| within_groups(rank, groups));
    let chosen = among(topk(rank, X, count).1.rename(X, C), scores.extent(X));
    let chosen = chosen.select(1.0, 0.0).sum(C); // [B, S, X]
    let share = scores * chosen;
    let share = match routing.divisor {
        Some(Divisor::SumPlus(0.0)) => share / share.sum(X),
        Some(Divisor::SumPlus(number)) => share / (share.sum(X) + number),
        Some(Divisor::SumAtLeast(number)) => share / share.sum(X).maximum(number),
        None => share,
    };
    let share = if routing.factor == 1.0 { share } else { share * routing.factor };
    Routed { share, chosen, count }
}

/// Indices `[…, C]` to a mask `[…, C, X]`, which is true at the index.
#[track_caller]
fn among(indices: Tensor<I32>, experts: usize) -> Tensor<dsl::Bool> {
    let expert = Tensor::<I32>::iota(X, experts);
    indices.broadcast(expert).equals(expert.broadcast(indices))
}

/// Replaces scores `[B, S, X]` outside of the best groups by −∞ (DeepSeek-AI, "DeepSeek-V3 Technical Report",
/// 2024, §2.1.2).
#[track_caller]
fn within_groups(scores: Tensor<F32>, [groups, chosen]: [usize; 2]) -> Tensor<F32> {
    const GROUP: Axis = Axis("Group");
    const MEMBER: Axis = Axis("Member");
    let members = scores.extent(X) / groups;
    let grouped = scores.unmerge(X, &[GROUP.of(groups), MEMBER.of(members)]);
    let best = topk(grouped, MEMBER, members.min(2)).0.sum(MEMBER); // [B, S, GROUP]
    let group = Tensor::<I32>::iota(GROUP, groups);
    let best = topk(best, GROUP, chosen).1.rename(GROUP, C); // [B, S, C]
    let allowed = best.broadcast(group).equals(group.broadcast(best));
    let allowed: Tensor<F32> = allowed.select(1.0, 0.0).sum(C);
    let allowed = allowed.filled(0.0).less(allowed).broadcast(grouped).permute(&[B, S, GROUP, MEMBER]);
    allowed.select(grouped, f64::NEG_INFINITY).merge(&[GROUP, MEMBER], X)
}

/// The weighted sum of `expert` for `x` `[B, S, D]`; the first axis of `weights` is the expert.
///
/// [`ExpertsMode`] decides whether a token computes its chosen experts, or all with weight 0 for the others.
/// Outputs are always added in the order of experts, so the bits are the same. Matrices that no kernel reads
/// (rows not a multiple of 16) are not copied for many tokens.
///
/// Experts on several devices are summed over devices; a choice would exchange their weights.
#[track_caller]
pub(crate) fn mixture<T: Float, const N: usize>(
    x: Tensor<T>,
    routed: Routed,
    weights: [Tensor<T>; N],
    expert: impl Fn([Tensor<T>; N]) -> Tensor<T>,
) -> Tensor<T> {
    let Routed { share, chosen, count } = routed;
    let all = share.extent(X);
    let few = x.extent(B) * x.extent(S) * count < all;
    let packed = |weight: &Tensor<T>| match weight.shape()[..] {
        [_, rows, _] => rows.is_multiple_of(PANEL),
        _ => true,
    };
    let chooses = match experts_mode() {
        ExpertsMode::Auto => few,
        ExpertsMode::Chosen => few || weights.iter().all(packed),
        ExpertsMode::All => false,
    };
    let (weights, share, experts) = if chooses {
        // The expert with the lowest index comes first.
        let order = -Tensor::<I32>::iota(X, all).to::<F32>() + all as f64;
        let first = topk(chosen * order, X, count).1.rename(X, C); // [B, S, C]
        let share = among(first, all).select(share.broadcast(first), 0.0).sum(X);
        (weights.map(|weight| weight.take(X, first)), share, C)
    } else {
        (weights, share, X)
    };
    let each = expert(weights);
    (each.to::<F32>() * share.broadcast(each)).sum(experts).to()
}

/// Gate and up `[X, F, D]`, down `[X, D, F]`.
#[track_caller]
pub(crate) fn swiglu<T: Float>(x: Tensor<T>, [gate, up, down]: [Tensor<T>; 3]) -> Tensor<T> {
    dot(silu(dot(x, gate, D)) * dot(x, up, D), down, F)
}

/// The configuration of a network in which some layers have experts.
pub trait Sparse: DecoderConfig {
    /// The settings of the experts, and the list of layers that contain experts.
    fn experts(&self) -> &ExpertsConfig;
}

/// A layer that is either sparse (with experts) or dense.
#[derive(Clone, Debug)]
pub enum EitherLayer<S, Y> {
    /// A layer with experts.
    Sparse(S),
    /// A layer with a dense feed-forward network.
    Dense(Y),
}

impl<S: Block<Config: Sparse>, Y: Block<Config = S::Config>> Block for EitherLayer<S, Y> {
    type Config = S::Config;

    fn build(scope: Scope, config: &Rc<S::Config>) -> Result<Self, BuildError> {
        if scope.index().is_some_and(|layer| config.experts().is_sparse(layer)) {
            S::build(scope, config).map(Self::Sparse)
        } else {
            Y::build(scope, config).map(Self::Dense)
        }
    }

    fn declared_axes(&self) -> Vec<Dim> {
        match self {
            Self::Sparse(layer) => layer.declared_axes(),
            Self::Dense(layer) => layer.declared_axes(),
        }
    }
}

impl<T, S, Y> AttentionBlock<T> for EitherLayer<S, Y>
where
    T: Float,
    S: AttentionBlock<T, Config: Sparse>,
    Y: AttentionBlock<T, Config = S::Config>,
{
    #[track_caller]
    fn forward(&self, x: Tensor<T>, at: &Attend<T>, kv: &mut Kv<T>) -> Tensor<T> {
        match self {
            Self::Sparse(layer) => layer.forward(x, at, kv),
            Self::Dense(layer) => layer.forward(x, at, kv),
        }
    }
}

/// Llama's layer with the attention `A`. The layer contains [`Experts`] or Llama's feed-forward network.
pub type ExpertsLayer<T, A, M = Experts<T>, C = ExpertsConfig> =
    EitherLayer<crate::llama::Layer<T, A, M, C>, crate::llama::Layer<T, A, crate::llama::Mlp<T>, C>>;

model! {
    /// A mixture of the experts that a router chooses, and of shared experts that process every token.
    pub Experts<T: Float>(ExpertsConfig): FeedForward<T> {
        dims {
            D = hidden_size, F = moe_intermediate_size,
            // The number of experts, and the number of experts that a token uses.
            X = num_experts, C = num_experts_per_tok,
        }

        gate: Linear[D -> X],
        bias: Weight<F32>[X] at "gate.e_score_correction_bias",
        gate_proj: Weight[X, F, D] at "experts.*.gate_proj.weight",
        up_proj: Weight[X, F, D] at "experts.*.up_proj.weight",
        down_proj: Weight[X, D, F] at "experts.*.down_proj.weight",
        shared_experts: Shared<T>,

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let bias = self.config.biased.then(|| self.bias());
            let routed = route(self.gate(x).to::<F32>(), bias, self.dim(C), &self.config.routing);
            let weights = [self.gate_proj(), self.up_proj(), self.down_proj()];
            let mixed = mixture(x, routed, weights, |weights| swiglu(x, weights));
            match self.config.shared_intermediate_size {
                Some(_) => mixed + self.shared_experts.forward(x),
                None => mixed,
            }
        }
    }
}

model! {
    /// The shared experts of a layer, which form a feed-forward network that processes every token.
    pub Shared<T: Float>(ExpertsConfig): FeedForward<T> {
        dims { D = hidden_size, F = moe_intermediate_size, W = shared_intermediate_size or F }

        gate_proj: Linear[D -> W],
        up_proj: Linear[D -> W],
        down_proj: Linear[W -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

/// The configuration of a network with experts.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// The configuration keys that the network shares with Llama.
    pub llama: LlamaConfig,
    /// The number of experts in each sparse layer.
    pub num_experts: usize,
    /// The number of experts that each token chooses.
    pub num_experts_per_tok: usize,
    /// The number of features between the linear layers of an expert.
    pub moe_intermediate_size: usize,
    /// `None` without shared experts.
    pub shared_intermediate_size: Option<usize>,
    /// The features that chosen experts read, if they read a projection.
    pub latent_size: Option<usize>,
    /// Whether each layer has experts.
    pub sparse: Vec<bool>,
    /// Whether the router adds a bias to the scores before it chooses experts.
    pub biased: bool,
    /// The settings of the router, which chooses the experts of a token.
    pub routing: Routing,
    /// The family's keys for `num_experts` and `moe_intermediate_size`, for errors.
    pub keys: [&'static str; 2],
}

descends!(ExpertsConfig from llama: LlamaConfig);

impl DecoderConfig for ExpertsConfig {}

impl Sparse for ExpertsConfig {
    fn experts(&self) -> &ExpertsConfig {
        self
    }
}

impl ExpertsConfig {
    /// Whether a layer has experts. A layer without experts has a dense feed-forward network.
    pub fn is_sparse(&self, layer: usize) -> bool {
        self.sparse.get(layer).copied().unwrap_or_default()
    }

    /// Returns the configured sizes that Tracewright compares with the tensor shapes in the checkpoint.
    pub fn sizes(&self) -> Vec<DeclaredSize> {
        let mut sizes = self.llama.sizes();
        if !self.sparse.contains(&true) {
            return sizes;
        }
        // `intermediate_size` is the size of dense layers, not of experts.
        sizes.retain(|size| size.key != "intermediate_size");
        let ([experts, features], routers) = (self.keys, ROUTERS);
        sizes.push(DeclaredSize::extent(experts, self.num_experts, routers));
        sizes.push(DeclaredSize::extent(features, self.moe_intermediate_size, DOWN_PROJECTIONS));
        sizes
    }

    /// Experts in place of each feed-forward network. The caller sets their numbers.
    pub(crate) fn like_llama(llama: LlamaConfig, routing: Routing) -> Self {
        Self {
            num_experts: 1,
            num_experts_per_tok: 1,
            moe_intermediate_size: llama.intermediate_size,
            shared_intermediate_size: None,
            latent_size: None,
            sparse: vec![true; llama.num_hidden_layers],
            biased: false,
            routing,
            keys: ["num_experts", "moe_intermediate_size"],
            llama,
        }
    }
}

/// Tensors with an axis of experts, and its index.
const ROUTERS: &[(&str, usize)] = &[
    ("model.layers.*.mlp.gate.weight", 0),
    ("model.layers.*.block_sparse_moe.gate.weight", 0),
    ("model.layers.*.feed_forward.gate.weight", 0),
    ("model.layers.*.mixer.gate.weight", 0),
];

/// Each pair contains a tensor with an axis of an expert's features, and the index of this axis.
const DOWN_PROJECTIONS: &[(&str, usize)] = &[
    ("model.layers.*.mlp.experts.*.down_proj.weight", 1),
    ("model.layers.*.block_sparse_moe.experts.*.w2.weight", 1),
    ("model.layers.*.feed_forward.experts.*.w2.weight", 1),
    ("model.layers.*.block_sparse_moe.experts.*.down_proj.weight", 1),
    ("model.layers.*.mixer.experts.*.down_proj.weight", 1),
];

/// HF transformers stacks all experts of a layer, but published files do not.
pub(crate) const STACKS: Stacks = &[
    ("mlp.experts.gate_up_proj", &["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"]),
    ("mlp.experts.down_proj", &["mlp.experts.*.down_proj.weight"]),
    ("mlp.experts.gate_proj.weight", &["mlp.experts.*.gate_proj.weight"]),
    ("mlp.experts.up_proj.weight", &["mlp.experts.*.up_proj.weight"]),
    ("mlp.experts.down_proj.weight", &["mlp.experts.*.down_proj.weight"]),
];

/// In GGUF files, which stack all experts of a layer, and in the network.
pub(crate) const GGUF_PARTS: &[(&str, &str)] = &[
    ("ffn_gate_inp", "mlp.gate"),
    ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_latent_down", "mlp.fc1_latent_proj"),
    ("ffn_latent_up", "mlp.fc2_latent_proj"),
];

/// The keys of experts in a `config.json` and in a GGUF file's metadata.
pub(crate) const GGUF_KEYS: &[(&str, &str)] = &[
    ("num_experts", "expert_count"),
    ("n_routed_experts", "expert_count"),
    ("num_local_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("n_group", "expert_group_count"),
    ("topk_group", "expert_group_used_count"),
    ("n_shared_experts", "expert_shared_count"),
    ("first_k_dense_replace", "leading_dense_block_count"),
    ("routed_scaling_factor", "expert_weights_scale"),
];

/// HF transformers 5 saves `published` as `num_local_experts`.
pub(crate) fn count(keys: &Keys, published: &'static str, default: usize) -> usize {
    let [published, saved] = [published, "num_local_experts"].map(|key| (key, keys.optional_count(key)));
    keys.agreed(published, saved).unwrap_or(default)
}

/// At most `experts`.
pub(crate) fn chosen(keys: &Keys, key: &'static str, default: usize, experts: usize) -> usize {
    let chosen = keys.optional_count(key).unwrap_or(default);
    if chosen > experts {
        keys.refuse(key, chosen, format!("at most {experts}, the experts there are"));
    }
    chosen
}

/// DeepSeek-V3 and later: sigmoid scores, groups, a bias, shared experts, and none in the first layers. The
/// arguments are defaults: experts, chosen ones and their features, groups and chosen ones, the factor of
/// weights, and layers without experts.
pub(crate) fn deepseek(
    keys: &Keys,
    llama: LlamaConfig,
    [all, chosen, features]: [usize; 3],
    ([groups, chosen_groups], factor, dense): ([usize; 2], f64, usize),
) -> ExpertsConfig {
    let number = |key, default| keys.optional_count(key).unwrap_or(default);
    let num_experts = count(keys, "n_routed_experts", all);
    let groups = [number("n_group", groups), number("topk_group", chosen_groups)];
    if !num_experts.is_multiple_of(groups[0]) {
        keys.refuse("n_group", groups[0], format!("a divisor of {num_experts}, the number of experts"));
    }
    if groups[1] > groups[0] {
        keys.refuse("topk_group", groups[1], format!("at most {}, the groups there are", groups[0]));
    }
    let routing = Routing {
        groups: (groups[0] > 1).then_some(groups),
        divisor: keys.flag("norm_topk_prob", true).then_some(Divisor::SumPlus(1e-20)),
        factor: keys.number_or("routed_scaling_factor", factor),
        ..Routing::plain(Scores::Sigmoid)
    };
    let moe_intermediate_size = number("moe_intermediate_size", features);
    let shared = keys.optional_integer("n_shared_experts").unwrap_or(1);
    let dense = keys.optional_integer("first_k_dense_replace").unwrap_or(dense);
    ExpertsConfig {
        num_experts,
        num_experts_per_tok: self::chosen(keys, "num_experts_per_tok", chosen, num_experts),
        moe_intermediate_size,
        shared_intermediate_size: (shared > 0).then_some(shared * moe_intermediate_size),
        sparse: (0..llama.num_hidden_layers).map(|layer| layer >= dense).collect(),
        biased: true,
        keys: ["n_routed_experts", "moe_intermediate_size"],
        ..ExpertsConfig::like_llama(llama, routing)
    }
}

/// Keys of multi-token prediction layers, which Tracewright ignores.
pub(crate) const FURTHER_LAYERS: &[&str] = &["num_mtp_layers", "num_nextn_predict_layers"];

/// Configuration keys that only training reads, which Tracewright ignores.
pub(crate) const IGNORED: &[&str] = &["output_router_logits", "router_aux_loss_coef", "router_jitter_noise"];
