//! A regression model with three input numbers and one output number.
use std::{error::Error, path::Path};

use tracewright::build::{ProgramOptions, build_program};
use tracewright::dsl::nn::relu;
use tracewright::irpa::Checkpoint;
use tracewright::runtime::Compiler;
use tracewright::{Array, F32, Float, model};

#[derive(Clone)]
pub struct Sizes {
    pub inputs: usize,
    pub hidden: usize,
}

model! {
    pub Mlp<T: Float>(Sizes) {
        dims { D = inputs, F = hidden, O = 1 }
        up: Linear[D -> F](bias),
        down: Linear[F -> O](bias),

        fn predict(x: T[B, D]) -> T[B, O] {
            self.down(relu(self.up(x)))
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder with `model.safetensors`")?;
    let sizes = Sizes { inputs: 3, hidden: 4 };
    let traced = Mlp::<F32>::record(&sizes)?.entry("predict", Mlp::predict, [("B", 2)])?.finish();
    let compiler = Compiler::new("iree-compile");
    let options = ProgramOptions::new(&compiler, Path::new("cache"));
    let program = build_program(&traced, &Checkpoint::open(Path::new(&folder))?, options)?.program;
    let x = Array::from_slice(&[0.5f32, -1.0, 2.0, 1.0, 0.25, -0.75], [2, 3])?;
    println!("{:?}", program.call("predict", &[x])?[0].to_vec::<f32>()?);
    Ok(())
}
