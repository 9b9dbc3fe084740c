//! Decode and prefill speed of an export directory, beside the bandwidth at which this machine reads the same
//! archive, measured in turn in one run: `cargo run --release -p tracewright-tests --bin speed -- EXPORT_DIR`.
//!
//! The read bandwidth is what a decoded token cannot beat: every weight is read once for it.

use std::error::Error;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tracewright::export::{self, Manifest, names};
use tracewright::generate::{GenerateOptions, Network, Session};
use tracewright::irpa::Archive;
use tracewright::runtime::{Device, Runtime};

/// Rounds of bandwidth, prefill, decode.
const ROUNDS: usize = 5;
/// Tokens decoded in a round.
const DECODED: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: speed EXPORT_DIR")?;
    let folder = Path::new(&folder);
    let manifest = Manifest::read(folder)?.ok_or("no manifest.json there: export a model first")?;
    let archive = Archive::open(folder.join(names::ARCHIVE))?;
    let bytes = archive.bytes();
    let bytes: &[u8] = (*bytes).as_ref();
    let runtime = Runtime::new(Device::LocalTask { workers: 0 })?;
    let start = Instant::now();
    let program = export::open(folder, &manifest, &runtime)?;
    let network = Network::new(&runtime, &program, &manifest.signatures(folder)?, manifest.context)?;
    println!("load {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
    let prompt: Vec<u32> = (1..=network.chunk() as u32).collect();
    let options = GenerateOptions { max_tokens: DECODED + 1, ..GenerateOptions::default() };

    // The first round pays for page faults; it is not counted.
    let (mut bandwidths, mut prefills, mut decodes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let read = read_time(bytes);
        let generated = Session::new(&network).generate(&prompt, &options, |_| ControlFlow::Continue(()))?;
        let bandwidth = bytes.len() as f64 / read.as_secs_f64() / 1e9;
        println!(
            "round {round}: read {bandwidth:.1} GB/s, prefill {:.1} tokens/s, decode {:.2} tokens/s",
            generated.prefill_rate(),
            generated.decode_rate()
        );
        if round > 0 {
            bandwidths.push(bandwidth);
            prefills.push(generated.prefill_rate());
            decodes.push(generated.decode_rate());
        }
    }
    let (bandwidth, decode) = (median(&mut bandwidths), median(&mut decodes));
    let used = decode * bytes.len() as f64 / 1e9;
    println!(
        "medians of {ROUNDS}: read {bandwidth:.1} GB/s; prefill of {} tokens {:.1} tokens/s; decode {decode:.2} \
         tokens/s, which reads {used:.1} GB/s: {:.0} % of the bandwidth",
        prompt.len(),
        median(&mut prefills),
        100.0 * used / bandwidth
    );
    Ok(())
}

/// How long every core together takes to read all of `bytes`.
fn read_time(bytes: &[u8]) -> Duration {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    thread::scope(|scope| {
        for part in bytes.chunks(bytes.len().div_ceil(cores)) {
            scope.spawn(move || {
                let words = part.as_chunks::<8>().0;
                black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word))))
            });
        }
    });
    start.elapsed()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
