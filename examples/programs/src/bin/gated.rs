//! Records, compiles and calls the first network of the README.
use std::{error::Error, path::Path};

use tracewright::build::{ProgramOptions, build_program};
use tracewright::dsl::nn::silu;
use tracewright::irpa::Checkpoint;
use tracewright::runtime::Compiler;
use tracewright::{Array, F32, Float, model};

#[derive(Clone)]
pub struct GatedConfig {
    pub hidden_size: usize,
    pub intermediate_size: usize,
}

model! {
    /// A feed-forward block with SwiGLU (Shazeer, 2020).
    pub Gated<T: Float>(GatedConfig) {
        dims { D = hidden_size, F = intermediate_size }
        gate_proj: Linear[D -> F],
        up_proj: Linear[D -> F],
        down_proj: Linear[F -> D],

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder with `model.safetensors`")?;
    let config = GatedConfig { hidden_size: 4, intermediate_size: 6 };
    let sizes = [("B", 1), ("S", 2)];
    let traced = Gated::<F32>::record(&config)?.entry("forward", Gated::forward, sizes)?.finish();
    let compiler = Compiler::new("iree-compile"); // the one on PATH
    let options = ProgramOptions::new(&compiler, Path::new("cache"));
    let loaded = build_program(&traced, &Checkpoint::open(Path::new(&folder))?, options)?;
    let x = Array::from_slice(&[0.5f32, -1.0, 2.0, 0.0, 1.0, 1.5, -0.5, 3.0], [1, 2, 4])?;
    let results = loaded.program.call("forward", &[x])?;
    println!("{:?}", results[0].to_vec::<f32>()?);
    Ok(())
}
