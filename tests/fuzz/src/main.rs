//! `tracewright-fuzz TARGET FILE…` runs a target on files: its corpus, or inputs that `cargo xtask fuzz` found.
//! With `--cfg fuzzing` this is the program of that command: libFuzzer with the target in `TRACEWRIGHT_FUZZ_TARGET`
//! at build time.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    use std::sync::LazyLock;
    use tracewright_fuzz::{FuzzRun, FuzzTarget};

    // A constant: libFuzzer looks at every place of the program after each input, so only what this target reaches is linked.
    const TARGET: FuzzTarget = match FuzzTarget::named(env!("TRACEWRIGHT_FUZZ_TARGET")) {
        Some(target) => target,
        None => panic!("`TRACEWRIGHT_FUZZ_TARGET` names no target"),
    };
    static RUN: LazyLock<FuzzRun> = LazyLock::new(|| TARGET.start());
    if let Err(failure) = RUN.check(bytes) {
        eprintln!("error: {failure}");
        std::process::abort();
    }
});

#[cfg(not(fuzzing))]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;
    use tracewright_fuzz::{FuzzTarget, TARGETS};

    let mut arguments = std::env::args().skip(1);
    let Some(target) = arguments.next().and_then(|name| FuzzTarget::named(&name)) else {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("usage: tracewright-fuzz {} FILE…", names.join("|"));
        return ExitCode::from(2);
    };
    let run = target.start();
    let mut ended = ExitCode::SUCCESS;
    for path in arguments {
        let failure = match std::fs::read(&path) {
            Ok(bytes) => run.check(&bytes).err().map(|failure| failure.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(failure) = failure {
            eprintln!("error: `{path}`: {failure}");
            ended = ExitCode::FAILURE;
        }
    }
    ended
}
