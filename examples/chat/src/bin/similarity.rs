//! Embeds two texts and compares the embeddings: `cargo run -p chat --bin similarity -- MODEL TEXT TEXT`.
use tracewright::Model;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [model, first, second] =
        std::env::args().skip(1).collect::<Vec<_>>().try_into().map_err(|_| "MODEL TEXT TEXT")?;
    let embeddings = Model::open(model)?.embed(&[&first, &second], None)?;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let [a, b] = [&embeddings[0], &embeddings[1]];
    println!("cosine similarity {:.4}", dot(a, b) / (dot(a, a) * dot(b, b)).sqrt());
    Ok(())
}
