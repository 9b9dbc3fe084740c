use std::{error::Error, ops::ControlFlow, path::Path};

use tracewright::build::{ProgramOptions, build_program};
use tracewright::dsl::nn::{Attend, Cache, Kv, Position, attend, gelu_tanh, positions_within};
use tracewright::generate::{Session, TokenOptions};
use tracewright::irpa::Checkpoint;
use tracewright::models::config::{ConfigError, IGNORED, Keys};
use tracewright::runtime::Compiler;
use tracewright::trace::Ignorable;
use tracewright::{CausalLm, EntryPoint, F32, Float, model};

model! {
    /// GPT-2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
    pub Gpt2<T: Float>(Config) {
        dims {
            V = vocab_size, N = n_positions, L = n_layer,
            D = n_embd, F = 4 * D, H = n_head, E = D / H, P = 3 * H,
        }
        cache { L of [H, E] }

        tokens: Embedding[V, D] at "wte",
        positions: Embedding[N, D] at "wpe",
        blocks: [Block; L] at "h",
        norm: LayerNorm[D](eps = layer_norm_epsilon) at "ln_f",
        head: Linear[D -> V] = tied(tokens),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            positions_within(self.dims.dim(N), cache.context);
            let mut x = self.tokens(tokens) + self.positions(at.positions(S, tokens.extent(S)));
            let at = Attend::causal(at, S);
            for (i, block) in self.blocks.iter().enumerate() {
                x = block.forward(x, &at, cache.state(i));
            }
            self.norm(x)
        }
        fn logits(x: T[.., D]) -> f32[.., V] {
            self.head(x).to()
        }
    }

    Block {
        first_norm: LayerNorm[D](eps = layer_norm_epsilon) at "ln_1",
        query_key_value: Linear[D -> P, E](transposed, bias) at "attn.c_attn",
        out: Linear[H, E -> D](transposed, bias) at "attn.c_proj",
        second_norm: LayerNorm[D](eps = layer_norm_epsilon) at "ln_2",
        up: Linear[D -> F](transposed, bias) at "mlp.c_fc",
        down: Linear[F -> D](transposed, bias) at "mlp.c_proj",

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let parts = self.query_key_value(self.first_norm(x)).split(P, [self.dim(H); 3]);
            let [q, k, v] = parts.map(|part| part.rename(P, H));
            let (k, v) = kv.append(k, v, at);
            let x = x + self.out(attend(q, k, v, at));
            x + self.down(gelu_tanh(self.up(self.second_norm(x))))
        }
    }
}

/// The configuration keys that GPT-2 reads from config.json, which are also the names of this
/// struct's fields.
#[derive(Clone)]
pub struct Config {
    pub vocab_size: usize,
    pub n_positions: usize,
    pub n_embd: usize,
    pub n_head: usize,
    pub n_layer: usize,
    pub layer_norm_epsilon: f64,
}

impl Config {
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let keys = Keys::read(path)?;
        keys.one_of("activation_function", &["gelu_new"]);
        let config = Self {
            vocab_size: keys.count("vocab_size"),
            n_positions: keys.count("n_positions"),
            n_embd: keys.count("n_embd"),
            n_head: keys.count("n_head"),
            n_layer: keys.count("n_layer"),
            layer_norm_epsilon: keys.number("layer_norm_epsilon"),
        };
        // Keys that do not matter for this network. `IGNORED` lists those that matter for none.
        keys.ignore(&["attn_pdrop", "embd_pdrop", "resid_pdrop", "n_ctx", "torch_dtype"]);
        keys.ignore(&["summary_activation", "summary_first_dropout", "summary_proj_to_labels"]);
        keys.ignore(&["summary_type", "summary_use_proj", "task_specific_params"]);
        keys.finish(IGNORED, &[])?;
        Ok(config)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder with a GPT-2")?;
    let config = Config::read(Path::new(&folder))?;
    let traced = Gpt2::<F32>::trace(&config, &EntryPoint::all(1, 16, config.n_positions))?;
    // Some files call it `transformer.wte.weight`, and some hold the masks of the attention too.
    let checkpoint = Checkpoint::open(&folder)?.renamed(&[("transformer.", "")]);
    let ignorable = [".attn.bias", ".attn.masked_bias"].map(Ignorable::Suffix).to_vec();
    let compiler = Compiler::new("iree-compile");
    let options = ProgramOptions { ignorable, ..ProgramOptions::new(&compiler, Path::new("cache")) };
    let loaded = build_program(&traced, &checkpoint, options)?;

    let options = TokenOptions { max_tokens: 20, ..TokenOptions::default() };
    let prompt = [19, 88, 73, 22, 130, 88, 100];
    Session::new(&loaded.program.network()?).generate(&prompt, &options, |token| {
        print!("{token} ");
        ControlFlow::Continue(())
    })?;
    println!();
    Ok(())
}
