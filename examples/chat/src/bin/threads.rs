//! Continues four texts on four threads with one model: `cargo run -p chat --bin threads -- MODEL`.
use std::thread;

use tracewright::{Model, ModelError, OpenOptions};

const BEGINNINGS: [&str; 4] = ["Once upon a time", "The fox", "In the morning", "There was a bird"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("MODEL")?;
    let model = Model::open_with(path, OpenOptions { slots: 4, ..OpenOptions::default() })?;
    let texts: Vec<Result<String, ModelError>> = thread::scope(|scope| {
        let model = &model;
        let begin = |text| scope.spawn(move || model.generate(text)?.max_tokens(24).text());
        let threads = BEGINNINGS.map(begin);
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    for (beginning, text) in BEGINNINGS.iter().zip(texts) {
        println!("{beginning}{}", text?);
    }
    Ok(())
}
