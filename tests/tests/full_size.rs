//! A published network in its real size, with random weights, beside what transformers answers for the same.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::iter::once;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use tracewright::generate::Session;
use tracewright::lower::Weights;
use tracewright::models::ModelConfig;
use tracewright::ops::ElementType;
use tracewright::random::write_random;
use tracewright::runtime::Device;
use tracewright::simplify::Rules;
use tracewright::trace::{KvFormat, Parameter};
use tracewright::{Footprint, Plan};
use tracewright_tests::built::repository;
use tracewright_tests::golden::{
    BOUND, BuildOptions, Golden, Subject, build, check_within, greedy, mean, relative_error,
};
use tracewright_tests::precision::FACTOR;
use tracewright_tests::tensors::{floats, tokens};
use tracewright_tests::{level, long};

const MEBI: u64 = 1 << 20;

/// The memory that a network may use besides its weights: code, state, activations.
const SLACK: u64 = 128 * MEBI;

/// One test at a time: they look at the memory of the whole process.
static MEASURING: Mutex<()> = Mutex::new(());

/// The memory of this process that is not in any file.
#[cfg(target_os = "linux")]
fn anonymous_memory() -> u64 {
    memory("RssAnon:")
}

/// A figure of this process in `/proc/self/status`.
#[cfg(target_os = "linux")]
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The result of `work`, and the peak of this process's memory that is not in any file.
#[cfg(target_os = "linux")]
fn watched<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = 0;
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(anonymous_memory());
                std::thread::sleep(Duration::from_millis(2));
            }
            peak
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        (result, watch.join().unwrap())
    })
}

fn config() -> PathBuf {
    repository().join("models/presets/functiongemma-270m.json")
}

fn options(element: ElementType, weights: Weights, chunk: usize, context: usize) -> BuildOptions {
    BuildOptions {
        element,
        chunk,
        context,
        batch: 1,
        in_parts: false,
        rules: Rules::default(),
        weights,
        kv: KvFormat::default(),
        target: level::target(),
        device: Device::LocalSync,
        allowed_keys: Vec::new(),
        adapters: Vec::new(),
        room: None,
    }
}

/// A network's plan: a chunk that is less than the prompts here, and a context that is more.
fn plan(config: &Path, element: ElementType) -> Plan {
    Plan::new(ModelConfig::read(config, &[]).unwrap(), Some(element), Some(1024), Some(8)).unwrap()
}

/// Random weights of this type, always the same.
fn random(config: &Path, element: ElementType) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let parameters = plan(config, element).trace().unwrap().trace.parameters().unwrap();
    write_random(config, &parameters, 1, folder.path(), &|_| ControlFlow::Continue(())).unwrap();
    folder
}

/// Builds a network and has it answer, and looks at the memory of both; how it was compiled, and the bytes of its weights.
fn bakes_and_runs(
    checkpoint: &Path,
    element: ElementType,
    weights: Weights,
    answers: impl FnOnce(&Subject),
) -> (Subject, u64) {
    let plan = plan(checkpoint, element);
    let sizes = options(element, weights, plan.chunk, plan.context);
    let recorded = plan.trace().unwrap().trace;

    #[cfg(target_os = "linux")]
    let (before, all_before) = (anonymous_memory(), memory("VmRSS:"));
    let built = || build(checkpoint, &sizes, &["prefill", "decode"], Ok).unwrap();
    #[cfg(target_os = "linux")]
    let (subject, peak) = watched(built);
    #[cfg(not(target_os = "linux"))]
    let subject = built();
    answers(&subject);
    #[cfg(target_os = "linux")]
    {
        let (held, weights) = (anonymous_memory().saturating_sub(before), subject.baked.bytes);
        let what = format!("{} MiB anonymous beside {} MiB of weights", held / MEBI, weights / MEBI);
        println!("{what}, tiled: {}", subject.built.options.tiled);
        // While they are baked too, and the module is compiled, which another process does.
        let peak = peak.saturating_sub(before);
        println!("{} MiB anonymous at most while it is built", peak / MEBI);
        assert!(peak < held + SLACK, "{} MiB at the peak, {what}", peak / MEBI);
        if subject.built.options.tiled {
            // Packed at load: once.
            assert!((weights / 2..weights + SLACK).contains(&held), "{what}");
        } else {
            assert!(held < SLACK, "{what}");
        }
        // What a plan says of it before: it is read where it is mapped.
        let target = subject.built.options.target.clone();
        let plan = Plan { weights: sizes.weights, target, ..plan };
        let expanded = plan.expand(&recorded.with_entries(&["prefill", "decode"])).unwrap();
        let planned = Footprint::of(&expanded).unwrap();
        assert_eq!(planned.weight_bytes() as u64, subject.baked.bytes);
        let held = memory("VmRSS:") - all_before;
        let what = format!("{} MiB held, {} MiB planned", held / MEBI, planned.running() / MEBI);
        println!("{what}");
        assert!(held < planned.running() && held > planned.running() / 10 * 8, "{what}");
    }
    let bytes = subject.built.baked.bytes;
    (subject, bytes)
}

/// The answers of transformers for FunctionGemma with the random weights of these tests.
fn answered(checkpoint: &Path) -> Golden {
    Golden::open(checkpoint, &repository().join("tests/fixtures/functiongemma-270m.json")).unwrap()
}

/// How far logits in f32 may be from transformers', in units of the largest: ten times as far as those of toys of a few layers.
const MAGNIFIED: f64 = 10.0 * BOUND;

const OTHER_WEIGHTS: &str =
    "if `write_random` makes other weights now, make the golden again with tests/oracle/full_size.py";

/// The logits that the golden has of each position.
const TOP: usize = 8;

/// Logits in bf16 are no farther from those in f32 than those of transformers' own run in bf16.
fn as_near_as_transformers(golden: &Golden, subject: &Subject) {
    let file = fs::read(repository().join("tests/fixtures/functiongemma-270m.safetensors")).unwrap();
    let prompt = &golden.prompts[0];
    // Of the positions that choose a token: the prompt is read at once, the others token by token.
    let chosen = (prompt.prompt_tokens.len() - 1) * TOP;
    let [exact, theirs] = ["top_logits", "own_top_logits"]
        .map(|name| floats(&file, &format!("prompts.0.{name}")).split_off(chosen));
    let mut session = Session::new(&subject.network);
    let fed = prompt.tokens.iter().take(prompt.tokens.len() - 1);
    let rows =
        once(&prompt.prompt_tokens[..]).chain(fed.map(from_ref)).map(|tokens| session.feed(tokens).unwrap());
    let ids = tokens(&file, "prompts.0.top_ids").split_off(chosen);
    let ours: Vec<f32> = rows
        .zip(ids.chunks(TOP))
        .flat_map(|(row, ids)| ids.iter().map(move |&id| row[id as usize]))
        .collect();
    assert_eq!(ours.len(), exact.len());
    let error = |found: &[f32]| {
        let squares: Vec<f64> = found.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2)).collect();
        mean(&squares).sqrt()
    };
    let (ours, theirs) = (error(&ours), error(&theirs));
    let figures = format!("error {ours:.3}, of transformers' own run {theirs:.3}");
    println!("bf16: {figures}");
    assert!(ours > 0.0 && ours <= FACTOR * theirs, "{figures}; {OTHER_WEIGHTS}");
}

/// 18 layers of 640 features with a vocabulary of 262,144: half a gigabyte in bf16. With kernels it is packed
/// in the archive and read in place. Without kernels, the compiler packs it at load time if the processor has
/// bf16 instructions.
///
/// Baked to f32, it takes a gigabyte and gives the tokens of transformers. In bf16, random layers amplify
/// rounding until other tokens are equally likely, in transformers, too. Therefore its own run in bf16 judges
/// logits.
#[test]
fn s28_functiongemma_270m_bakes_and_says_what_transformers_says() {
    let _measuring = MEASURING.lock();
    let checkpoint = random(&config(), ElementType::Bf16);
    let golden = answered(checkpoint.path());
    assert!(golden.prompts[0].prompt_tokens.len() > golden.chunk);
    let judged = |subject: &Subject| as_near_as_transformers(&golden, subject);
    let (subject, bytes) = bakes_and_runs(checkpoint.path(), ElementType::Bf16, Weights::default(), judged);
    let packed = subject.built.module.parameters.iter().any(Parameter::is_packed);
    assert_eq!(subject.built.options.target.has_bf16() == Some(true) && !packed, subject.built.options.tiled);
    // Where no kernel adds the 1 of `1 + w`, the sum is stored, in f32.
    let weights = 2 * 268_098_176;
    assert!((weights..weights + weights / 1000).contains(&bytes), "{bytes} bytes");
    drop(subject);

    let judged = |subject: &Subject| {
        let report = check_within(&golden, subject, MAGNIFIED).unwrap();
        println!("f32: {report}");
        assert!(report.passes(), "{report}; {OTHER_WEIGHTS}");
    };
    let (_, bytes) = bakes_and_runs(checkpoint.path(), ElementType::F32, Weights::default(), judged);
    assert!((2 * weights..2 * weights + weights / 1000).contains(&bytes), "{bytes} bytes");
}

/// Without kernels, weights in f32 are packed at load time on every processor. The test uses one layer and a
/// quarter of the vocabulary, and in the long form a layer of each kind.
#[test]
fn packed_weights_are_in_memory_once() {
    let text = fs::read_to_string(config()).unwrap();
    let mut small: serde_json::Value = serde_json::from_str(&text).unwrap();
    let kinds: Vec<_> = long::first(["sliding_attention", "full_attention"], 1).collect();
    small["num_hidden_layers"] = kinds.len().into();
    small["layer_types"] = kinds.into();
    small["vocab_size"] = 65_536.into();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, small.to_string()).unwrap();
    let weights = Weights { kernels: false, ..Weights::default() };
    let _measuring = MEASURING.lock();
    let checkpoint = random(&path, ElementType::F32);
    // More than a chunk.
    let prompt: Vec<u32> = (0..11u32).map(|i| i * 7919 % 65_536).collect();
    let answers = |subject: &Subject| {
        let generated = greedy(&subject.network, &prompt, 4, false).unwrap();
        assert_eq!(generated.tokens.len(), 4);
        assert!(generated.tokens.iter().all(|token| *token < 65_536));
        assert_eq!(generated.tokens, greedy(&subject.network, &prompt, 4, true).unwrap().tokens);
    };
    let (subject, bytes) = bakes_and_runs(checkpoint.path(), ElementType::F32, weights, answers);
    assert!(subject.built.options.tiled);
    assert!(bytes > SLACK, "else the bound says nothing");
}

/// Integers that are mixed until they look random, as numbers of bf16: those of `tests/oracle/layer.py`.
fn numbers() -> Vec<u8> {
    const PERIOD: u32 = 1_000_003;
    let mixed = |i: u32| {
        let x = i.wrapping_mul(2_654_435_761);
        let x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
        x ^ (x >> 13)
    };
    let number = |i| ((f64::from(mixed(i)) / f64::from(1_u32 << 31) - 1.0) * 0.03125) as f32;
    (0..PERIOD).flat_map(|i| half::bf16::from_f32(number(i)).to_le_bytes()).collect()
}

/// Weights of these numbers: the tensors one after the other, each from another number on; norms have 1 more.
fn write_weights(parameters: &[Parameter], path: &Path) {
    let numbers = numbers();
    let mut parameters: Vec<&Parameter> = parameters.iter().collect();
    parameters.sort_by_key(|parameter| parameter.key.clone());
    let of = |(index, parameter): (usize, &&Parameter)| {
        let (start, bytes) = (index * 104_729 * 2 % numbers.len(), 2 * parameter.ty.count());
        let mut data = Vec::with_capacity(bytes + numbers.len());
        data.extend_from_slice(&numbers[start..]);
        while data.len() < bytes {
            data.extend_from_slice(&numbers);
        }
        data.truncate(bytes);
        if parameter.ty.rank() == 1 {
            for number in data.as_chunks_mut().0 {
                *number =
                    half::bf16::from_f32(half::bf16::from_le_bytes(*number).to_f32() + 1.0).to_le_bytes();
            }
        }
        (parameter.key.clone(), parameter.ty.shape.clone(), data)
    };
    let tensors: Vec<_> = parameters.iter().enumerate().map(of).collect();
    let views = tensors
        .iter()
        .map(|(key, shape, data)| (key, TensorView::new(Dtype::BF16, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// One layer with the extents of Llama 3.1 8B, 226 million weights, computes what it does in torch: in one pass and token by
/// token.
#[test]
fn a_layer_of_8b_computes_what_torch_does() {
    const BOUND: f64 = 3e-5;
    let _measuring = MEASURING.lock();
    let folder = tempfile::tempdir().unwrap();
    let fixtures = repository().join("tests/fixtures");
    fs::copy(fixtures.join("layer.json"), folder.path().join("config.json")).unwrap();
    let options = options(ElementType::F32, Weights::default(), 16, 32);
    let config = ModelConfig::read(folder.path(), &[]).unwrap();
    let plan = Plan::new(config, Some(options.element), Some(options.context), Some(options.chunk)).unwrap();
    let parameters = plan.trace().unwrap().trace.parameters().unwrap();
    assert_eq!(parameters.iter().map(|p| p.ty.count()).sum::<usize>(), 226_504_704);
    write_weights(&parameters, &folder.path().join("model.safetensors"));
    let subject = build(folder.path(), &options, &["prefill", "decode"], Ok).unwrap();

    let file = fs::read(fixtures.join("layer.safetensors")).unwrap();
    let (prompt, chosen) = (tokens(&file, "prompt"), tokens(&file, "tokens"));
    assert_eq!(greedy(&subject.network, &prompt, chosen.len(), true).unwrap().tokens, chosen);
    let logits = floats(&file, "logits");
    let rows: Vec<&[f32]> = logits.chunks(subject.network.vocabulary()).collect();
    let fed = [&prompt[..], &chosen[..chosen.len() - 1]].concat();
    assert_eq!(rows.len(), fed.len());
    let mut worst = 0_f64;
    for first in [prompt.len(), 1] {
        let mut session = Session::new(&subject.network);
        for end in first..=fed.len() {
            let found = session.feed(&fed[session.tokens().len()..end]).unwrap();
            worst = worst.max(relative_error(rows[end - 1], &found));
        }
    }
    println!("logits differ by {worst:.1e} of the largest");
    assert!(worst > 0.0 && worst < BOUND, "{worst:e}");
}
