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

/// An export that is loaded.
struct Subject {
    name: String,
    network: Network,
    archive: Arc<dyn AsRef<[u8]> + Send + Sync>,
}

/// What was measured of it.
#[derive(Clone, Default)]
struct Measured {
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
        let network = Network::new(&runtime, &program, &manifest.signatures(folder)?)?;
        println!("{name}: load {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        subjects.push(Subject { name, network, archive });
    }
    if subjects.is_empty() {
        return Err("usage: speed [ROUNDS] EXPORT_DIR…".into());
    }

    let options = GenerateOptions { max_tokens: 1, ..GenerateOptions::default() };
    let mut all = vec![Measured::default(); subjects.len()];
    // The first round pays for page faults; it is not counted.
    for round in 0..=rounds {
        let mut sessions = Vec::with_capacity(subjects.len());
        for (subject, measured) in subjects.iter().zip(&mut all) {
            let bytes: &[u8] = (*subject.archive).as_ref();
            measured.bandwidths.push(bytes.len() as f64 / read_time(bytes).as_secs_f64() / 1e9);
            let prompt: Vec<u32> = (1..=subject.network.chunk() as u32).collect();
            let mut session = Session::new(&subject.network);
            let generated = session.generate(&prompt, &options, |_| ControlFlow::Continue(()))?;
            measured.prefills.push(generated.prefill_rate());
            sessions.push((session, generated.tokens));
        }
        // In turn token by token, each time another one first: a machine with neighbours changes within a round.
        for token in 0..DECODED {
            for i in 0..sessions.len() {
                let i = (i + token) % sessions.len();
                let (session, next) = &mut sessions[i];
                let generated = session.generate(next, &options, |_| ControlFlow::Continue(()))?;
                all[i].decodes.push(generated.prefill.as_secs_f64() * 1e3);
                *next = generated.tokens;
            }
        }
        for Measured { bandwidths, prefills, decodes } in &all {
            println!(
                "round {round}: read {:.1} GB/s, prefill {:.1} tokens/s, decode {:.1} ms a token",
                bandwidths[bandwidths.len() - 1],
                prefills[prefills.len() - 1],
                median(&decodes[decodes.len() - DECODED..])
            );
        }
        if round == 0 {
            all.fill(Measured::default());
        }
    }

    for (subject, Measured { bandwidths, prefills, decodes }) in subjects.iter().zip(&all) {
        let bytes = (*subject.archive).as_ref().len() as f64;
        let [bandwidth, prefill, decode] = [bandwidths, prefills, decodes].map(|of| median(of));
        let used = bytes / decode / 1e6;
        println!(
            "{}: medians of {rounds}: read {bandwidth:.1} GB/s; prefill of {} tokens {prefill:.1} tokens/s; decode \
             {decode:.1} ms a token, {:.2} tokens/s, which reads {used:.1} GB/s: {:.0} % of the bandwidth",
            subject.name,
            subject.network.chunk(),
            1e3 / decode,
            100.0 * used / bandwidth
        );
    }
    let (first, others) = all.split_at(1);
    for (other, subject) in others.iter().zip(&subjects[1..]) {
        // Rates of prefill, times of decode.
        let prefill = ratios(&first[0].prefills, &other.prefills);
        let decode = ratios(&other.decodes, &first[0].decodes);
        println!(
            "{}: against the first, medians of pairs: prefill {prefill:.3} of its time, decode {decode:.3} of its time",
            subject.name
        );
    }
    Ok(())
}

/// The median of the ratios of what was measured side by side.
fn ratios(a: &[f64], b: &[f64]) -> f64 {
    median(&a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>())
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
