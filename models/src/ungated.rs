//! Feed-forward networks without a gate: a linear layer, the square of ReLU (So et al., "Primer",
//! 2021), and a second linear layer.

use dsl::nn::{dot, relu};
use dsl::{F32, Float, Tensor, model};

use crate::decoder::{FeedForward, LlamaConfig};
use crate::experts::{ExpertsConfig, mixture, route};

model! {
    /// A feed-forward network that all tokens use.
    pub UngatedMlp<T: Float>(LlamaConfig): FeedForward<T> {
        dims { D = hidden_size, A = intermediate_size }

        up_proj: Linear[D -> A](bias if mlp_bias),
        down_proj: Linear[A -> D](bias if mlp_bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(squared(self.up_proj(x)))
        }
    }
}

model! {
    /// Chosen experts and shared ones that process every token. In some networks, chosen ones read a
    /// projection to fewer features.
    pub UngatedExperts<T: Float>(ExpertsConfig): FeedForward<T> {
        dims {
            D = hidden_size,
            // X is the number of experts, and C is the number of experts that a token uses.
            X = num_experts, C = num_experts_per_tok,
            // F and Z are the features and the inputs of an expert. I is the features of the shared
            // experts.
            F = moe_intermediate_size, Z = latent_size or D, I = shared_intermediate_size or F,
        }

        gate: Linear[D -> X],
        bias: Weight<F32>[X] at "gate.e_score_correction_bias",
        up: Weight[X, F, Z] at "experts.*.up_proj.weight",
        down: Weight[X, Z, F] at "experts.*.down_proj.weight",
        shared_up: Linear[D -> I](bias if mlp_bias) at "shared_experts.up_proj",
        shared_down: Linear[I -> D](bias if mlp_bias) at "shared_experts.down_proj",
        inward: Linear[D -> Z](bias if mlp_bias) at "fc1_latent_proj",
        outward: Linear[Z -> D](bias if mlp_bias) at "fc2_latent_proj",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let config = &self.config;
            let logits = self.gate(x).to::<F32>();
            let bias = config.biased.then(|| self.bias());
            let routed = route(logits, bias, self.dim(C), &config.routing);
            let is_latent = config.latent_size.is_some();
            let y = if is_latent { self.inward(x) } else { x.rename(D, Z) };
            let mixed = mixture(y, routed, [self.up(), self.down()], |[up, down]| dot(squared(dot(y, up, Z)), down, F));
            let mixed = if is_latent { self.outward(mixed) } else { mixed.rename(Z, D) };
            match config.shared_intermediate_size {
                Some(_) => mixed + self.shared_down(squared(self.shared_up(x))),
                None => mixed,
            }
        }
    }
}

#[track_caller]
fn squared<T: Float>(x: Tensor<T>) -> Tensor<T> {
    let x = relu(x);
    x * x
}
