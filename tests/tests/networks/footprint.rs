//! Compares the memory in a plan with archives, programs and the compiler's own statistics.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use tracewright::build::{LoadError, ProgramOptions, build_program, compile};
use tracewright::footprint::{Phase, WeightStorage};
use tracewright::irpa::Checkpoint;
use tracewright::lower::{DenseReason, Weights};
use tracewright::models::ModelConfig;
use tracewright::ops::format::ActivationBits;
use tracewright::ops::{ElementType, WeightFormat};
use tracewright::runtime::{CompileOptions, Device};
use tracewright::trace::Quantization;
use tracewright::{Expanded, Footprint, Memory, Plan};
use tracewright_tests::built::{Built, compiler, repository};
use tracewright_tests::{level, long};

const CHUNK: usize = 8;
const CONTEXT: usize = 64;

fn model(name: &str) -> std::path::PathBuf {
    repository().join("tests/fixtures").join(name)
}

fn plan(model: &Path, element: ElementType, batch: usize, weights: Weights) -> Plan {
    let config = ModelConfig::read(model, &[]).unwrap();
    let plan = Plan::new(config, Some(element), Some(CONTEXT), Some(CHUNK)).unwrap();
    let target = compiler().unwrap().resolve(&level::target()).unwrap();
    Plan { batch, weights, target, ..plan }
}

fn expanded(plan: &Plan, entries: &[&str]) -> Expanded {
    plan.expand(&plan.trace().unwrap().trace.with_entries(entries)).unwrap()
}

const WITHOUT_KERNELS: Weights =
    Weights { quantize: Quantization::Computed, kernels: false, activations: ActivationBits::Eight };
const Q4: Weights = Weights {
    quantize: Quantization::All(WeightFormat::Q4),
    kernels: true,
    activations: ActivationBits::Eight,
};

/// K4: the bytes of weights and of state equal those of the archive and of the program's own arguments.
#[test]
fn k4_weights_and_state_are_planned_to_the_byte() {
    for (name, weights, batch) in [
        ("llama-tied", Weights::default(), 1),
        ("llama-untied", Q4, 1),
        ("gemma3-a", WITHOUT_KERNELS, 3),
        ("lfm2", Weights::default(), 3),
    ] {
        let path = model(name);
        let plan = plan(&path, ElementType::Bf16, batch, weights);
        // What a prompt is read with has the same weights and state, and takes as long to compile again.
        let entries = if long::is_wanted() { &["prefill", "decode"][..] } else { &["decode"] };
        let expanded = expanded(&plan, entries);
        let planned = Footprint::of(&expanded).unwrap();
        let lowered = expanded.lower(plan.model.ignorable.clone()).unwrap();
        let checkpoint = plan.named(Checkpoint::open(&path).unwrap());
        let built =
            Built::new(lowered, &plan.trace().unwrap().trace, &checkpoint, Device::LocalSync).unwrap();
        assert_eq!(planned.weight_bytes() as u64, built.baked.bytes, "{name}");
        let keys: usize = planned.weights.values().map(|stored| stored.keys.len()).sum();
        assert_eq!(keys, built.archive.entries().len(), "{name}");

        // As IREE spells the type of `decode`: what goes in as state comes out again.
        let decode = built.program.function("decode").unwrap();
        let (_, arguments) = decode.declaration().split_once('(').unwrap();
        let (arguments, _) = arguments.split_once("->").unwrap();
        let tensors = arguments.split("tensor<").skip(1).map(|rest| rest.split('>').next().unwrap());
        let stored = tensors.filter(|ty| ty.ends_with("xbf16")).map(|ty| {
            let extents = ty.split('x').filter_map(|extent| extent.parse::<usize>().ok());
            2 * extents.product::<usize>()
        });
        assert_eq!(planned.state_bytes(), stored.sum::<usize>(), "{name}: {arguments}");
    }
}

/// The compiler's own account of a call.
fn execution(plan: &Plan, entry: &str) -> serde_json::Value {
    let lowered = expanded(plan, &[entry]).lower(plan.model.ignorable.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let statistics = folder.path().join("statistics.json");
    // Weights as they are, so that packing them at load is no part of it.
    let mut options = CompileOptions::new(plan.target.clone(), false);
    // They are told before kernels become machine code, which is most of the work.
    options.flags.push("--compile-to=stream".into());
    options.flags.push("--iree-scheduling-dump-statistics-format=json".into());
    options.flags.push(format!("--iree-scheduling-dump-statistics-file={}", statistics.display()));
    compile(&lowered.module, &compiler().unwrap(), &options, folder.path()).unwrap();
    let statistics: serde_json::Value = serde_json::from_slice(&fs::read(statistics).unwrap()).unwrap();
    statistics["stream-aggregate"]["execution"].clone()
}

#[test]
fn activations_are_no_more_than_planned() {
    for (name, weights, batch) in [
        ("llama-tied", Weights::default(), 1),
        ("llama-tied", WITHOUT_KERNELS, 1),
        ("llama-tied", Weights::default(), 3),
        ("gemma3-a", Q4, 1),
    ] {
        let plan = plan(&model(name), ElementType::F32, batch, weights.clone());
        let planned = Footprint::of(&expanded(&plan, &["prefill", "decode"])).unwrap();
        for (entry, planned) in &planned.activations {
            let found = execution(&plan, entry)["transient-memory-size"].as_u64().unwrap() as usize;
            let what = format!("{name} × {batch}, {weights:?}, `{entry}`: {found} of {planned}");
            println!("{what}");
            // IREE begins each value at a multiple of 64 bytes, which shows where all are as small as here.
            assert!(found <= planned + (16 << 10), "{what}");
            // Without kernels a chunk is appended as slices of lengths that IREE does not know: it leaves out what it
            // allocates together with them.
            let known = entry == "decode" || weights.kernels;
            assert!(found > planned / 4 || !known, "{what}");
        }
    }
}

#[test]
fn what_layers_remember_is_updated_where_it_is() {
    // In the short form caches with kernels and without.
    let cases = [
        ("llama-tied", Weights::default(), 1),
        ("llama-tied", WITHOUT_KERNELS, 1),
        ("llama-tied", Weights::default(), 3),
        ("gemma3-a", Weights::default(), 1),
    ];
    for (name, weights, batch) in long::first(cases, 2) {
        let plan = plan(&model(name), ElementType::Bf16, batch, weights.clone());
        let plan = Plan { chunk: 64, context: 128, ..plan };
        for entry in plan.entry_points() {
            let copies = execution(&plan, &entry.name)["copy-count"].as_u64();
            assert_eq!(copies, Some(0), "{name} × {batch}, {weights:?}, `{}`", entry.name);
        }
    }
}

#[test]
fn each_weight_that_is_not_packed_has_a_reason() {
    let plan = plan(&model("llama-untied"), ElementType::Bf16, 1, Q4);
    let planned = Footprint::of(&expanded(&plan, &["decode"])).unwrap();
    let keys = |stored_as| &planned.weights[&stored_as].keys;
    let norms = keys(WeightStorage::Plain(ElementType::Bf16, DenseReason::NoMatrix));
    assert!(norms.iter().all(|key| key.contains("norm")), "{norms:?}");
    let packed = keys(WeightStorage::Packed(WeightFormat::Q4));
    assert!(packed.iter().any(|key| key == "lm_head.weight"), "{packed:?}");
    // Of the embedding a call reads rows; of the head, which is as large, all.
    let parameters = expanded(&plan, &["decode"]).trace.parameters().unwrap();
    let embedding = parameters.iter().find(|p| p.key == "model.embed_tokens.weight").unwrap().ty.bytes();
    assert_eq!(planned.streamed, planned.weight_bytes() - embedding);
}

#[test]
fn what_cannot_fit_is_refused_before_anything_is_read_or_compiled() {
    let path = model("llama-tied");
    let plan = plan(&path, ElementType::Bf16, 1, Weights::default());
    let planned = Footprint::of(&expanded(&plan, &["decode"])).unwrap();
    let just = Memory { total: planned.running().max(planned.compile as u64), available: 0 };
    assert_eq!(planned.check(just), Ok(()));
    let less = Memory { total: planned.running() - 1, available: 0 };
    let refused = planned.check(less).unwrap_err();
    assert_eq!((refused.what, refused.needs), (Phase::Running, planned.running()));

    let traced = plan.trace().unwrap();
    let (compiler, cache) = (compiler().unwrap(), tempfile::tempdir().unwrap());
    let options = ProgramOptions { memory: Some(less), ..ProgramOptions::new(&compiler, cache.path()) };
    let refused = build_program(&traced, &Checkpoint::open(&path).unwrap(), options).err().unwrap();
    assert!(matches!(refused, LoadError::TooLarge(_)), "{refused}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
}
