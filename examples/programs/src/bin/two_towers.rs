//! A two-tower network computes the embedding of a user, and scores how well each item matches the user.
use std::{error::Error, path::Path};

use tracewright::build::{ProgramOptions, build_program};
use tracewright::irpa::Checkpoint;
use tracewright::runtime::Compiler;
use tracewright::{Array, F32, Float, dsl::dot, model};

#[derive(Clone)]
pub struct Towers {
    pub ages: usize,
    pub words: usize,
    pub features: usize,
}

model! {
    pub TwoTowers<T: Float>(Towers) {
        dims { A = ages, W = words, D = features }
        user: Linear[A -> D](bias),
        item: Linear[W -> D],

        fn matching(user: T[B, A], item: T[I, W]) -> (T[B, I], T[B, D]) {
            let vector = self.user(user).tanh();
            (dot(vector, self.item(item).tanh(), D), vector)
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder with `model.safetensors`")?;
    let (towers, sizes) = (Towers { ages: 2, words: 3, features: 4 }, [("B", 1), ("I", 2)]);
    let traced = TwoTowers::<F32>::record(&towers)?.entry("matching", TwoTowers::matching, sizes)?.finish();
    let (compiler, data) = (Compiler::new("iree-compile"), Checkpoint::open(Path::new(&folder))?);
    let program = build_program(&traced, &data, ProgramOptions::new(&compiler, Path::new("cache")))?.program;
    let item = Array::from_slice(&[1.0f32, 0.5, -1.0, 0.0, 2.0, 0.25], [2, 3])?.with_axes(&["I", "W"])?;
    let arguments = [("item", item), ("user", Array::from_slice(&[0.5f32, -1.0], [1, 2])?)];
    let results = program.call_named("matching", &arguments)?;
    println!("{:?}\n{:?}", results[0].to_vec::<f32>()?, results[1].to_vec::<f32>()?);
    Ok(())
}
