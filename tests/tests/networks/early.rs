//! A program that starts before all of its entry points are compiled computes the same bits, and reports the errors of
//! later compilations.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tracewright::Plan;
use tracewright::build::{BuiltProgram, ProgramOptions, build_program};
use tracewright::generate::{Executor as _, GenerateError, Network, Patience, Session};
use tracewright::irpa::Checkpoint;
use tracewright::models::ModelConfig;
use tracewright::runtime::{CompileError, Compiler};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::level;

/// A compiler that compiles `decode` at once. It compiles other modules when the file `go` exists, and fails if `fail`
/// does.
fn held(folder: &Path) -> Compiler {
    let (path, real) = (folder.join("iree-compile"), compiler().unwrap().path);
    let script = format!(
        "#!/bin/sh\n\
         [ \"$1\" = - ] || exec {real} \"$@\"\n\
         cat >{folder}/$$.mlir\n\
         if ! grep -q 'func.func @decode(' {folder}/$$.mlir; then\n\
         until [ -e {folder}/go ] || [ -e {folder}/fail ]; do sleep 0.05; done\n\
         [ ! -e {folder}/fail ] || exit 1\n\
         fi\n\
         exec {real} \"$@\" <{folder}/$$.mlir\n",
        real = real.display(),
        folder = folder.display()
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    Compiler::new(path)
}

fn plan() -> Plan {
    let plan = Plan::new(ModelConfig::read(demo(), &[]).unwrap(), None, Some(256), Some(64)).unwrap();
    Plan { target: level::target(), ..plan }
}

fn demo() -> PathBuf {
    repository().join("demo")
}

fn built(compiler: &Compiler, cache: &Path, starts_early: bool) -> BuiltProgram {
    let plan = plan();
    let checkpoint = plan.named(Checkpoint::open(demo()).unwrap());
    let traced = plan.record(&plan.entry_points()).unwrap();
    let ignorable = plan.model.ignorable.clone();
    let (target, weights) = (plan.target, plan.weights);
    let options = ProgramOptions::new(compiler, cache);
    build_program(
        &traced,
        &checkpoint,
        ProgramOptions { target, weights, ignorable, starts_early, ..options },
    )
    .unwrap()
}

fn is_ready(network: &Network, entry: &str) -> bool {
    network.executor().is_ready(entry, Patience::Idle)
}

fn tokens() -> Vec<u32> {
    (0..100).map(|i| 300 + i * 7 % 400).collect()
}

#[test]
fn an_early_start_changes_no_bit() {
    if level::target().processor.contains("v2") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let compiler = held(folder.path());
    let program = built(&compiler, &folder.path().join("cache"), true).program;
    let early = program.network().unwrap();
    assert!(is_ready(&early, "decode") && !is_ready(&early, "prefill"), "only `decode` is compiled");
    let first = Session::new(&early).feed(&tokens()[..20]).unwrap();
    let (mut session, mut alone) = (Session::new(&early), Vec::new());
    for token in tokens() {
        alone = session.feed(&[token]).unwrap();
    }
    assert!(!is_ready(&early, "prefill_short"), "the compiler waits");
    fs::write(folder.path().join("go"), "").unwrap();
    // `score` is the last module that is compiled, so the call waits for all of them.
    let scored = Session::new(&early).score(&tokens()).unwrap();
    assert!(["prefill", "prefill_short", "score"].iter().all(|entry| is_ready(&early, entry)));
    let fed = Session::new(&early).feed(&tokens()).unwrap();

    let whole = built(&compiler, &folder.path().join("whole"), false).program;
    let whole = whole.network().unwrap();
    assert_eq!(Session::new(&whole).feed(&tokens()[..20]).unwrap(), first);
    assert_eq!(Session::new(&whole).feed(&tokens()).unwrap(), fed);
    assert_eq!(alone, fed);
    assert_eq!(Session::new(&whole).score(&tokens()).unwrap(), scored);

    // The cache has all modules, so the second program starts with all entry points.
    let again = built(&compiler, &folder.path().join("cache"), true).program;
    let again = again.network().unwrap();
    assert!(is_ready(&again, "prefill"));
    assert_eq!(Session::new(&again).feed(&tokens()).unwrap(), fed);
}

#[test]
fn a_failed_compilation_fails_the_call_and_a_dropped_program_stops_it() {
    if level::target().processor.contains("v2") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let compiler = held(folder.path());
    let program = built(&compiler, &folder.path().join("cache"), true).program;
    let network = program.network().unwrap();
    fs::write(folder.path().join("fail"), "").unwrap();
    let failed = Session::new(&network).score(&tokens()).unwrap_err();
    assert!(matches!(failed, GenerateError::Compile(CompileError::Failed { .. })), "{failed}");
    // `decode` still answers short prompts.
    Session::new(&network).feed(&tokens()[..20]).unwrap();
    drop((network, program));

    fs::remove_file(folder.path().join("fail")).unwrap();
    let program = built(&compiler, &folder.path().join("cache"), true).program;
    let network = program.network().unwrap();
    // A long prompt begins the compilation, which waits for the file `go`.
    Session::new(&network).feed(&tokens()).unwrap();
    thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    drop((network, program));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}
