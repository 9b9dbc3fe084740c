//! Unloading frees everything, a text that goes on does not need more memory, and two threads do not disturb each
//! other.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::sync::{Barrier, Mutex};
use std::thread;

use tracewright::Plan;
use tracewright::build::{Build, BuildTools};
use tracewright::generate::{Network, Session, TokenOptions};
use tracewright::irpa::{Archive, Checkpoint};
use tracewright::models::ModelConfig;
use tracewright::ops::ElementType::F32;
use tracewright::runtime::{Device, Runtime};
use tracewright::trace::Signature;
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::golden::{BuildOptions, Golden, build, greedy};
use tracewright_tests::level;

/// One test at a time: they look at the whole process.
static MEASURING: Mutex<()> = Mutex::new(());

/// How often a model is loaded and let go of.
const ROUNDS: usize = 1000;

/// The resources of this process: bytes of memory that is not in any file, threads, open files.
#[derive(Clone, Copy, Debug)]
struct Held {
    memory: f64,
    threads: f64,
    files: f64,
}

impl Held {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| -> f64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let files = fs::read_dir("/proc/self/fd").unwrap().count() as f64;
        Self { memory: number("RssAnon:") * 1024.0, threads: number("Threads:"), files }
    }
}

/// The average growth per round, after some rounds that fill caches.
fn left_by(rounds: usize, mut round: impl FnMut()) -> Held {
    (0..20).for_each(|_| round());
    let before = Held::now();
    (0..rounds).for_each(|_| round());
    let after = Held::now();
    let left = |of: fn(&Held) -> f64| (of(&after) - of(&before)) / rounds as f64;
    Held {
        memory: left(|held| held.memory),
        threads: left(|held| held.threads),
        files: left(|held| held.files),
    }
}

/// The bytes that a round may leave: less than any of its objects. The allocator gives back when it likes.
const LEFT: f64 = 2048.0;

/// Loads a model again and again, as a program does that serves one after the other.
fn loads(let_go: impl Fn(Session<'_>), rounds: usize) -> Held {
    let golden = Golden::fixture("gemma3-a").unwrap();
    let config = ModelConfig::read(&golden.model, &[]).unwrap();
    let plan = Plan::new(config, Some(F32), Some(golden.context), Some(golden.chunk)).unwrap();
    let trace = plan.record(&plan.steps()).unwrap().trace;
    let (compiler, cache) = (compiler().unwrap(), repository().join(".tracewright/cache"));
    let plan = Plan { target: compiler.resolve(&level::target()).unwrap(), ..plan };
    let checkpoint = plan.named(Checkpoint::open(&golden.model).unwrap());
    let lowered = plan.lower(&trace).unwrap();
    let mut build = Build::new(lowered, &trace, &checkpoint, BuildTools::new(&compiler, &cache)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.irpa");
    build.bake(&path).unwrap();
    let signatures: Vec<Signature> = build.lowered.module.signatures.clone();
    let prompt = &golden.prompts[0];
    left_by(rounds, || {
        let runtime = Runtime::new(Device::LocalTask { workers: 2 }).unwrap();
        let archive = Archive::open(&path).unwrap();
        let module = build.instantiate(&runtime, &archive).unwrap();
        let network = Network::new(&runtime, &module, &signatures).unwrap();
        let mut session = Session::new(&network);
        let options = TokenOptions { max_tokens: 4, ..TokenOptions::default() };
        let generated =
            session.generate(&prompt.prompt_tokens, &options, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(generated.tokens, prompt.tokens[..4]);
        let_go(session);
    })
}

#[test]
fn a_model_that_is_loaded_again_and_again_leaves_nothing() {
    let _measuring = MEASURING.lock();
    let left = loads(|session| drop(session), ROUNDS);
    let _ = writeln!(std::io::stderr(), "each of {ROUNDS} rounds leaves {left:?}");
    assert!(left.memory < LEFT && left.threads <= 0.0 && left.files <= 0.0, "{left:?}");
}

/// The check itself: a session that is forgotten, and with it the threads of its device, is found.
#[test]
fn a_session_that_is_forgotten_is_found() {
    let _measuring = MEASURING.lock();
    let left = loads(|session| std::mem::forget(session), 10);
    assert!(left.memory > 2.0 * LEFT && left.threads >= 2.0, "{left:?}");
}

/// Ten thousand tokens of a text, the first thousand of which fill what is kept anyway.
#[test]
fn a_text_that_goes_on_needs_no_more_memory() {
    let _measuring = MEASURING.lock();
    let model = repository().join("tests/fixtures/long-ring");
    let golden = Golden::fixture("gemma3-a").unwrap();
    let sizes = BuildOptions { chunk: 32, context: 10_240, ..BuildOptions::of(&golden) };
    let subject = build(&model, &sizes, &["prefill", "decode"], Ok).unwrap();
    let options = TokenOptions { max_tokens: 10_000, ..TokenOptions::default() };
    let mut held = Vec::new();
    let mut count = 0;
    let on_token = |_| {
        count += 1;
        if count % 1000 == 0 {
            held.push(Held::now().memory);
        }
        ControlFlow::Continue(())
    };
    let prompt: Vec<u32> = (0..150).map(|i| i * 7 % 61).collect();
    Session::new(&subject.network).generate(&prompt, &options, on_token).unwrap();
    let _ = writeln!(
        std::io::stderr(),
        "KiB after each thousand: {:?}",
        held.iter().map(|h| h / 1024.0).collect::<Vec<_>>()
    );
    // The layer that sees everything has a cache, whose pages the system gives when they are written: 61 KiB per thousand.
    let (cache, slack) = (9000.0 * 2.0 * 8.0 * 4.0, 262_144.0);
    assert!(held[9] < held[0] + cache + slack, "{held:?}");
}

/// Two threads with a device, a network and a session each, at the same time: each gets what it gets alone.
#[test]
fn two_sessions_in_two_threads_give_the_tokens_of_single_ones() {
    let _measuring = MEASURING.lock();
    for device in [Device::LocalTask { workers: 0 }, Device::LocalSync] {
        let together = Barrier::new(2);
        thread::scope(|scope| {
            for first in [0, 1] {
                let together = &together;
                scope.spawn(move || {
                    let golden = Golden::fixture("gemma3-a").unwrap();
                    let sizes = BuildOptions { device, ..BuildOptions::of(&golden) };
                    let subject = build(&golden.model, &sizes, &["prefill", "decode"], Ok).unwrap();
                    together.wait();
                    for turn in 0..20 {
                        let prompt = &golden.prompts[(first + turn) % golden.prompts.len()];
                        let steps = prompt.tokens.len();
                        let found = greedy(&subject.network, &prompt.prompt_tokens, steps, turn % 2 == 0);
                        assert_eq!(found.unwrap().tokens, prompt.tokens);
                    }
                });
            }
        });
    }
}
