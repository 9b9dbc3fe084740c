use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use tracewright::build::{ProgramOptions, build_program};
use tracewright::dsl::nn::{Attend, Cache, Kv, Position, attend, gelu_tanh};
use tracewright::errors::WithCauses;
use tracewright::generate::{Session, TokenOptions};
use tracewright::irpa::Checkpoint;
use tracewright::models::RopeParameters;
use tracewright::models::config::{ConfigError, Keys};
use tracewright::random::write_random;
use tracewright::runtime::Compiler;
use tracewright::{CausalLm, EntryPoint, F32, Float, model};

model! {
    /// A decoder whose blocks run attention and the feed-forward network side by side: x + attention(norm(x)) + mlp(norm(x)).
    pub Parallel<T: Float>(Config) {
        dims { V = vocabulary, D = width, H = heads, E = D / H, F = hidden, L = depth }
        cache { L of [H, E] }

        tokens: Embedding[V, D],
        blocks: [Block; L],
        norm: LayerNorm[D](eps = epsilon),
        head: Linear[D -> V](bias),

        fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D] {
            let rope = RopeParameters::plain(self.config.rope_base).frequencies(self.dim(E), cache.context);
            let at = Attend::rotary(at, S, tokens.extent(S), &rope, cache.context);
            let mut x = self.tokens(tokens);
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
        norm: LayerNorm[D](eps = epsilon),
        attention: Attention,
        mlp: Mlp,

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let normed = self.norm(x);
            x + self.attention(normed, at, kv) + self.mlp(normed)
        }
    }

    Attention {
        query: Linear[D -> H, E],
        key: Linear[D -> H, E],
        value: Linear[D -> H, E],
        out: Linear[H, E -> D],

        fn forward(x: T[B, S, D], at: &Attend<T>, kv: &mut Kv<T>) -> T[B, S, D] {
            let (k, v) = kv.append(at.rope(self.key(x)), self.value(x), at);
            self.out(attend(at.rope(self.query(x)), k, v, at))
        }
    }

    Mlp {
        up: Linear[D -> F](bias),
        down: Linear[F -> D](bias),

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down(gelu_tanh(self.up(x)))
        }
    }
}

/// The configuration keys that the decoder reads from config.json.
#[derive(Clone)]
pub struct Config {
    pub vocabulary: usize,
    pub width: usize,
    pub heads: usize,
    pub hidden: usize,
    pub depth: usize,
    pub context: usize,
    pub rope_base: f64,
    pub epsilon: f64,
}

impl Config {
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let keys = Keys::read(path)?;
        let config = Self {
            vocabulary: keys.count("vocabulary"),
            width: keys.count("width"),
            heads: keys.count("heads"),
            hidden: keys.count("hidden"),
            depth: keys.count("depth"),
            context: keys.count("context"),
            rope_base: keys.number("rope_base"),
            epsilon: keys.number("epsilon"),
        };
        keys.finish(&[], &[])?; // a key that nobody reads is an error
        Ok(config)
    }
}

fn main() {
    if let Err(error) = run(Path::new("model")) {
        eprintln!("error: {}", WithCauses(&*error));
        std::process::exit(1);
    }
}

fn run(folder: &Path) -> Result<(), Box<dyn Error>> {
    let config = Config::read(&folder.join("config.json"))?;
    let traced = Parallel::<F32>::trace(&config, &EntryPoint::all(1, 16, config.context))?;
    if !folder.join("model.safetensors").exists() {
        let go_on = |_| ControlFlow::Continue(());
        write_random(&folder.join("config.json"), &traced.trace.parameters()?, 1, folder, &go_on)?;
    }
    let compiler = Compiler::new("iree-compile"); // the one on PATH
    let options = ProgramOptions::new(&compiler, Path::new("cache"));
    let loaded = build_program(&traced, &Checkpoint::open(folder)?, options)?;

    let options = TokenOptions { max_tokens: 20, ..TokenOptions::default() };
    Session::new(&loaded.program.network()?).generate(&[5, 17, 3], &options, |token| {
        print!("{token} ");
        ControlFlow::Continue(())
    })?;
    println!();
    Ok(())
}
