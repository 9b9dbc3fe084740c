//! Measures the time from a configuration to the text of a module, with layers as functions or
//! inlined, and with or without simplification.
//!
//! The benchmark measures the processor time of the thread, because other processes on the machine
//! hardly change this time.

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use criterion::{Bencher, Criterion, criterion_group, criterion_main};
use dsl::EntryPoint;
use lower::{Module, expand, lower};
use ops::ElementType::Bf16;
use rustix::time::{ClockId, clock_gettime};
use simplify::{Options, simplify};
use targets::Target;
use trace::Trace;
use tracewright_models::{Architecture as _, ModelConfig};

const CONFIGS: [(&str, &str); 3] =
    [("1B", "llama-3.2-1b.json"), ("8B", "llama-3.1-8b.json"), ("405B", "llama-3.1-405b.json")];

fn traced(config: &ModelConfig, entries: &[EntryPoint]) -> Trace {
    config.trace(Bf16, entries).expect("a configuration of ours").trace
}

fn lowered(trace: &Trace) -> Module {
    lower(&expand(trace).expect("sound"), &Target::host()).expect("sound")
}

/// Simplifies the trace, expands composites, and simplifies the result again.
fn simplified(trace: &Trace) -> Trace {
    let options = Options::default();
    simplify(&expand(&simplify(trace, &options).0).expect("sound"), &options).0
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn measure<T>(b: &mut Bencher<'_>, mut run: impl FnMut() -> T) {
    b.iter_custom(|times| {
        let start = processor_time();
        (0..times).for_each(|_| drop(black_box(run())));
        processor_time() - start
    });
}

fn emission(c: &mut Criterion) {
    for (name, file) in CONFIGS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets").join(file);
        let config = ModelConfig::read(&path, &[]).expect("a configuration of ours");
        for context in [512, 2048] {
            let entries = |names: &[&str]| -> Vec<EntryPoint> {
                let mut entries = EntryPoint::all(1, 128, context);
                entries.retain(|entry| names.contains(&entry.name.as_str()));
                entries
            };
            let (decode, three) = (entries(&["decode"]), entries(&["prefill", "decode", "score"]));
            let (decode, three) = (&decode[..], &three[..]);
            let functions = lowered(&traced(&config, decode)).text.len();
            let inlined = lowered(&traced(&config, decode).inlined()).text.len();
            println!(
                "{name}, context {context}: decode is {functions} bytes of text, {inlined} with layers inlined"
            );

            let mut group = c.benchmark_group(format!("{name}, context {context}"));
            group.bench_function("decode, traced only", |b| measure(b, || traced(&config, decode)));
            group.bench_function("decode", |b| measure(b, || lowered(&traced(&config, decode))));
            group.bench_function("decode, inlined", |b| {
                measure(b, || lowered(&traced(&config, decode).inlined()));
            });
            group.bench_function("prefill, decode, score", |b| {
                measure(b, || lowered(&traced(&config, three)))
            });
            for (name, entries) in [("decode", decode), ("prefill, decode, score", three)] {
                let trace = traced(&config, entries);
                let name = format!("{name}: simplified, both passes");
                group.bench_function(name, |b| measure(b, || simplified(&trace)));
            }
        }
    }
}

criterion_group!(benches, emission);
criterion_main!(benches);
