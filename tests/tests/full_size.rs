//! A published network in its real size, with random weights.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::ops::ControlFlow;

use tracewright::Plan;
use tracewright::models::ModelConfig;
use tracewright::ops::ElementType;
use tracewright::random::write_random;
use tracewright::simplify::Rules;
use tracewright_tests::golden::{Sizes, build, greedy, repository};

const MEBI: u64 = 1 << 20;

/// What this process holds that is in no file.
#[cfg(target_os = "linux")]
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// 18 layers of 640 features under a vocabulary of 262,144: half a gigabyte of bf16.
#[test]
fn s28_functiongemma_270m_bakes_and_runs() {
    let config = repository().join("models/tests/configs/functiongemma-270m.json");
    let folder = tempfile::tempdir().unwrap();
    let sizes =
        Sizes { element: ElementType::Bf16, chunk: 8, context: 1024, batch: 1, rules: Rules::default() };
    let plan = Box::new(ModelConfig::read(&config, &[]).unwrap());
    let plan = Plan::new(plan, Some(sizes.element), Some(sizes.context), Some(sizes.chunk)).unwrap();
    let parameters = plan.trace().unwrap().trace.parameters().unwrap();
    write_random(&config, &parameters, 1, folder.path(), &|_| ControlFlow::Continue(())).unwrap();

    #[cfg(target_os = "linux")]
    let before = anonymous_memory();
    let subject = build(folder.path(), &sizes, &["prefill", "decode"], Ok).unwrap();
    // `1 + w` is stored in f32.
    let weights = 2 * 268_098_176;
    assert!(weights < subject.baked.bytes && subject.baked.bytes * 1000 < weights * 1001);
    // More than a chunk.
    let prompt: Vec<u32> = (0..11u32).map(|i| i * 7919 % 262_144).collect();
    let generated = greedy(&subject.network, &prompt, 4, false).unwrap();
    assert_eq!(generated.tokens.len(), 4);
    assert!(generated.tokens.iter().all(|token| *token < 262_144));
    assert_eq!(generated.tokens, greedy(&subject.network, &prompt, 4, true).unwrap().tokens);
    #[cfg(target_os = "linux")]
    {
        let held = anonymous_memory() - before;
        println!("{} MiB anonymous beside {} MiB of weights", held / MEBI, subject.baked.bytes / MEBI);
        assert!(held < 128 * MEBI, "{held} bytes");
    }
}
