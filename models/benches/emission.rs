//! From a configuration to the text of a module: how long it takes, layers as functions and inlined.

use std::path::Path;

use criterion::{Criterion, criterion_group, criterion_main};
use dsl::EntryPoint;
use lower::{Module, expand, lower};
use ops::ElementType::Bf16;
use trace::Trace;
use tracewright_models::ModelConfig;

fn config(name: &str) -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs").join(format!("{name}.json"));
    ModelConfig::read(&path, &[]).expect("a configuration of ours")
}

fn traced(config: &ModelConfig, entries: &[EntryPoint]) -> Trace {
    config.trace(Bf16, entries).expect("a configuration of ours").trace
}

fn lowered(trace: &Trace) -> Module {
    lower(&expand(trace).expect("sound")).expect("sound")
}

fn emission(c: &mut Criterion) {
    for (name, file) in [("1B", "llama-3.2-1b"), ("8B", "llama-3.1-8b"), ("405B", "llama-3.1-405b")] {
        let config = config(file);
        for context in [512, 2048] {
            let all = EntryPoint::all(1, 128, context);
            let decode = &all[1..2];
            let mut group = c.benchmark_group(format!("{name}, context {context}"));
            let module = lowered(&traced(&config, decode));
            let inlined = lowered(&traced(&config, decode).inlined());
            println!(
                "{name}, context {context}: decode {} bytes of text, inlined {} bytes",
                module.text.len(),
                inlined.text.len()
            );
            group.bench_function("trace", |b| b.iter(|| traced(&config, decode)));
            group.bench_function("decode", |b| b.iter(|| lowered(&traced(&config, decode))));
            group.bench_function("decode, inlined", |b| {
                b.iter(|| lowered(&traced(&config, decode).inlined()))
            });
            group.bench_function("prefill, decode and score", |b| b.iter(|| lowered(&traced(&config, &all))));
        }
    }
}

criterion_group!(benches, emission);
criterion_main!(benches);
