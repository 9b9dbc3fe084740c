//! Adapters that sequences of one batch choose, judged by what transformers answers after `merge_and_unload` of PEFT
//! (`tests/oracle/lora.py`), and by the bits of each sequence alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::ops::ControlFlow;
use std::path::PathBuf;

use tracewright::AdapterRoom;
use tracewright::generate::{Batch, Generated, Network, Prompt, Session, TokenOptions};
use tracewright::irpa::ModelFiles;
use tracewright::lower::Weights;
use tracewright::models::{self, LoraMatrices, fit};
use tracewright::ops::WeightFormat;
use tracewright::trace::Quantization;
use tracewright_tests::built::repository;
use tracewright_tests::golden::{BOUND, BuildOptions, Comparison, Golden, Subject, build, evaluated};
use tracewright_tests::long::is_wanted;

/// Four adapters of one model. The last one is the first one as a GGUF file.
const ADAPTERS: [&str; 4] = ["llama", "llama-patterns", "llama-regex", "llama/adapter.gguf"];

const STEPS: &[&str] = &["prefill", "decode"];

fn path(name: &str) -> PathBuf {
    repository().join("tests/fixtures/lora").join(name)
}

fn golden(name: &str) -> Golden {
    let name = name.trim_end_matches("/adapter.gguf");
    Golden::within(&path(name), &repository().join("tests/fixtures/llama-untied")).unwrap()
}

fn matrices(golden: &Golden) -> Vec<LoraMatrices> {
    let files = ModelFiles::at(&golden.model);
    let fitted = fit::open(models::read, &files, &[]).unwrap();
    ADAPTERS.iter().map(|name| fitted.network.lora_matrices(&files, &path(name)).unwrap()).collect()
}

fn put<E: tracewright::generate::Executor>(
    network: &Network<E>,
    room: &AdapterRoom,
    adapters: &[Option<&LoraMatrices>],
) {
    network.set_low_rank(|name, ty| room.bytes(name, ty, adapters)).unwrap();
}

fn options() -> TokenOptions {
    TokenOptions { max_tokens: 6, keep_logits: true, ..TokenOptions::default() }
}

fn alone<E: tracewright::generate::Executor>(
    network: &Network<E>,
    prompt: &[u32],
    adapter: u32,
) -> Generated {
    let mut session = Session::new(network);
    if adapter > 0 {
        session.adapt(adapter).unwrap();
    }
    session.generate(prompt, &options(), |_| ControlFlow::Continue(())).unwrap()
}

fn judged<E: tracewright::generate::Executor>(network: &Network<E>) {
    for (index, name) in ADAPTERS.iter().enumerate() {
        let (golden, mut report) = (golden(name), Comparison::within(BOUND));
        let prompt = &golden.prompts[0];
        let found = alone(network, &prompt.prompt_tokens, index as u32 + 1);
        report.continuation(&golden.reference(0).unwrap(), 0, prompt, &found);
        assert!(report.passes(), "{name}: {report}");
        // Another adapter would not pass.
        let mut report = Comparison::within(BOUND);
        let found = alone(network, &prompt.prompt_tokens, (index as u32 + 1) % 3 + 1);
        report.continuation(&golden.reference(0).unwrap(), 0, prompt, &found);
        assert_eq!(report.passes(), (index as u32 + 1) % 3 + 1 == 1 && index == 3, "{name}: {report}");
    }
}

/// Without kernels, the compiler's operations compute the adapters.
#[test]
fn each_adapter_gives_the_logits_of_peft_without_kernels() {
    let golden = golden("llama");
    let all = matrices(&golden);
    let room = AdapterRoom::new(4, None, &all);
    let plain = Weights { kernels: false, ..Weights::default() };
    let sizes =
        BuildOptions { room: Some(room.clone()), weights: plain, batch: 2, ..BuildOptions::of(&golden) };
    evaluated(&golden.model, &sizes, STEPS, Ok, |network| {
        put(network, &room, &all.iter().map(Some).collect::<Vec<_>>());
        judged(network);
        Ok(())
    })
    .unwrap();
}

fn bits(generated: &Generated) -> Vec<u32> {
    generated.logits.iter().flatten().map(|x| x.to_bits()).collect()
}

/// Generates all prompts in one batch, which sequences join one after the other.
fn together(network: &Network, prompts: &[Prompt]) -> Vec<Generated> {
    let mut batch = Batch::new(network);
    let mut answers: Vec<Option<Generated>> = vec![None; prompts.len()];
    let mut of = Vec::new();
    while answers.iter().any(Option::is_none) {
        for _ in 0..2 {
            if of.len() < prompts.len() && batch.free() > 0 {
                of.push(batch.join(prompts[of.len()].clone(), &options()).unwrap());
            }
        }
        for (index, generated) in batch.step(|_, _| ControlFlow::Continue(())).unwrap() {
            answers[of.iter().rposition(|&taken| taken == index).unwrap()] = Some(generated);
        }
    }
    answers.into_iter().flatten().collect()
}

/// Eight sequences, with four adapters and without one.
fn sequences(golden: &Golden) -> Vec<Prompt> {
    let tokens = &golden.prompts[0].prompt_tokens;
    let prompt = |index: usize, adapter: u32| {
        let shifted = tokens.iter().map(|token| (token + index as u32) % golden.vocab_size as u32);
        Prompt { adapter, ..Prompt::from(shifted.collect::<Vec<_>>()) }
    };
    [1, 0, 3, 2, 4, 0, 1, 3].into_iter().enumerate().map(|(index, adapter)| prompt(index, adapter)).collect()
}

fn built(sizes: BuildOptions, golden: &Golden) -> Subject {
    build(&golden.model, &BuildOptions { in_parts: true, ..sizes }, STEPS, Ok).unwrap()
}

fn compare_bits(sizes: impl Fn() -> BuildOptions, golden: &Golden, all: &[LoraMatrices]) -> Subject {
    let room = AdapterRoom::new(4, None, all);
    let base = built(sizes(), golden);
    let subject = built(BuildOptions { room: Some(room.clone()), batch: 8, ..sizes() }, golden);
    put(&subject.network, &room, &all.iter().map(Some).collect::<Vec<_>>());
    let prompts = sequences(golden);
    for (prompt, found) in prompts.iter().zip(together(&subject.network, &prompts)) {
        let tokens = prompt.tokens();
        let own = alone(&subject.network, &tokens, prompt.adapter);
        assert_eq!(bits(&own), bits(&found), "adapter {}", prompt.adapter);
        let is_base = bits(&alone(&base.network, &tokens, 0)) == bits(&found);
        assert_eq!(is_base, prompt.adapter == 0, "adapter {}", prompt.adapter);
    }
    subject
}

#[test]
fn sequences_of_a_batch_choose_adapters() {
    let golden = golden("llama");
    let all = matrices(&golden);
    let subject = compare_bits(|| BuildOptions::of(&golden), &golden, &all);
    judged(&subject.network);
    reuses_no_prefix_of_another_adapter(&subject.network, &golden, &all);
}

fn reuses_no_prefix_of_another_adapter(network: &Network, golden: &Golden, all: &[LoraMatrices]) {
    let room = AdapterRoom::new(4, None, all);
    let tokens = &golden.prompts[0].prompt_tokens;
    let mut batch = Batch::new(network).keep_prefixes();
    let generate = |batch: &mut Batch<'_>, adapter: u32| {
        batch.join(Prompt { adapter, ..Prompt::from(tokens) }.reusing(), &options()).unwrap();
        loop {
            if let Some((_, generated)) = batch.step(|_, _| ControlFlow::Continue(())).unwrap().pop() {
                return generated;
            }
        }
    };
    for (adapter, computed) in
        [(1, tokens.len()), (2, tokens.len()), (1, 1), (0, tokens.len()), (2, 1), (0, 1)]
    {
        let found = generate(&mut batch, adapter);
        assert_eq!(found.prefill_tokens, computed, "adapter {adapter}");
        assert_eq!(bits(&found), bits(&alone(network, tokens, adapter)), "adapter {adapter}");
    }
    // Another adapter takes the place of adapter 1. The prefix of the old one gives other logits.
    let replaced = [&all[2], &all[1], &all[2], &all[3]].map(Some);
    put(network, &room, &replaced);
    let expected = bits(&alone(network, tokens, 1));
    assert_ne!(bits(&generate(&mut batch, 1)), expected);
    batch.forget_adapter(1);
    let found = generate(&mut batch, 1);
    assert_eq!((found.prefill_tokens, bits(&found)), (tokens.len(), expected));
    assert_eq!(generate(&mut batch, 2).prefill_tokens, 1);
}

/// A long test, because it compiles two more programs.
#[test]
fn base_sequences_have_the_bits_of_the_base_with_quantized_weights() {
    if !is_wanted() {
        return;
    }
    let golden = golden("llama");
    let weights = || Weights { quantize: Quantization::All(WeightFormat::Q8), ..Weights::default() };
    let sizes = || BuildOptions { weights: weights(), ..BuildOptions::of(&golden) };
    compare_bits(sizes, &golden, &matrices(&golden));
}
