//! `tracewright-fuzz TARGET FILE…` has a target read files: the corpus, or what `cargo xtask fuzz` found. Built with
//! `--cfg fuzzing` it is what that command runs: libFuzzer, and the target that `TRACEWRIGHT_FUZZ_TARGET` names.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    use std::sync::LazyLock;
    use tracewright_fuzz::{FuzzRun, FuzzTarget};

    static RUN: LazyLock<Option<FuzzRun>> = LazyLock::new(|| {
        let name = std::env::var("TRACEWRIGHT_FUZZ_TARGET").ok()?;
        Some(FuzzTarget::named(&name)?.start())
    });
    let Some(run) = &*RUN else {
        eprintln!("error: `TRACEWRIGHT_FUZZ_TARGET` names no target");
        std::process::exit(2);
    };
    if let Err(failure) = run.check(bytes) {
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
