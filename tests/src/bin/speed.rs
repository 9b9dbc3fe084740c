//! Decode and prefill speed of export directories, beside the bandwidth at which this machine reads the same archive,
//! measured in turn in one run: `cargo run -p tracewright-tests --bin speed -- [ROUNDS] EXPORT_DIR…`. The first directory
//! is the reference of the others.
//!
//! The read bandwidth is what a decoded token cannot beat: every weight is read once for it.

use std::error::Error;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tracewright::export::{self, Manifest, names};
use tracewright::generate::{GenerateOptions, Network, Session};
use tracewright::irpa::Archive;
use tracewright::runtime::{Device, Runtime};

/// Rounds of bandwidth, prefill, decode, unless another number is given.
const ROUNDS: usize = 7;
/// Tokens decoded in a round.
const DECODED: usize = 16;

/// An export that is loaded, and what was measured of it.
struct Subject {
    name: String,
    network: Network,
    archive: Arc<dyn AsRef<[u8]> + Send + Sync>,
    /// GB/s, of each round.
    bandwidths: Vec<f64>,
    /// Tokens/s, of each round.
    prefills: Vec<f64>,
    /// Milliseconds, of each token: what slows a machine down for a moment meets some of them only.
    decodes: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(Device::LocalTask { workers: 0 })?;
    let mut subjects = Vec::new();
    let mut arguments = std::env::args().skip(1).peekable();
    let given = arguments.peek().and_then(|first| first.parse().ok());
    let rounds: usize = given.unwrap_or(ROUNDS);
    for name in arguments.skip(usize::from(given.is_some())) {
        let folder = Path::new(&name);
        let manifest = Manifest::read(folder)?.ok_or("no manifest.json there: export a model first")?;
        let archive = Archive::open(folder.join(names::ARCHIVE))?.bytes();
        let start = Instant::now();
        let program = export::open(folder, &manifest, &runtime)?;
        let network = Network::new(&runtime, &program, &manifest.signatures(folder)?, manifest.context)?;
        println!("{name}: load {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        let (bandwidths, prefills, decodes) = (Vec::new(), Vec::new(), Vec::new());
        subjects.push(Subject { name, network, archive, bandwidths, prefills, decodes });
    }
    if subjects.is_empty() {
        return Err("usage: speed [ROUNDS] EXPORT_DIR…".into());
    }

    // The first round pays for page faults; it is not counted.
    for round in 0..=rounds {
        for subject in &mut subjects {
            let prompt: Vec<u32> = (1..=subject.network.chunk() as u32).collect();
            let options = GenerateOptions { max_tokens: DECODED + 1, ..GenerateOptions::default() };
            let bytes: &[u8] = (*subject.archive).as_ref();
            let read = read_time(bytes);
            let mut session = Session::new(&subject.network);
            let mut times = Vec::with_capacity(DECODED + 1);
            let generated = session.generate(&prompt, &options, |_| {
                times.push(Instant::now());
                ControlFlow::Continue(())
            })?;
            let tokens: Vec<f64> = times.windows(2).map(|of| (of[1] - of[0]).as_secs_f64() * 1e3).collect();
            let bandwidth = bytes.len() as f64 / read.as_secs_f64() / 1e9;
            println!(
                "round {round}: read {bandwidth:.1} GB/s, prefill {:.1} tokens/s, decode {:.1} ms a token",
                generated.prefill_rate(),
                median(&tokens)
            );
            if round > 0 {
                subject.bandwidths.push(bandwidth);
                subject.prefills.push(generated.prefill_rate());
                subject.decodes.extend(tokens);
            }
        }
    }

    let mut first = None;
    for subject in &subjects {
        let bytes = (*subject.archive).as_ref().len() as f64;
        let [bandwidth, prefill, decode] =
            [&subject.bandwidths, &subject.prefills, &subject.decodes].map(|of| median(of));
        let used = bytes / decode / 1e6;
        println!(
            "{}: medians of {rounds}: read {bandwidth:.1} GB/s; prefill of {} tokens {prefill:.1} tokens/s; decode \
             {decode:.1} ms a token, {:.2} tokens/s, which reads {used:.1} GB/s: {:.0} % of the bandwidth",
            subject.name,
            subject.network.chunk(),
            1e3 / decode,
            100.0 * used / bandwidth
        );
        match first {
            None => first = Some((prefill, decode)),
            Some((first_prefill, first_decode)) => println!(
                "  against the first: prefill {:.3} of its time, decode {:.3} of its time",
                first_prefill / prefill,
                decode / first_decode
            ),
        }
    }
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

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
