//! Answers a question: `cargo run -p chat -- MODEL "Why is the sky blue?"`. MODEL is a folder, a GGUF file or an export.
use std::io::Write as _;

use tracewright::{Model, user};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, question] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "MODEL QUESTION")?;
    for piece in Model::open(model)?.chat([user(question)])?.max_tokens(64) {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
