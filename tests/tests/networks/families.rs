//! Every family, judged by what Hugging Face transformers answered: random networks whose configurations are odd, and
//! whose prompts and continuations leave their windows many times behind.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;

use tracewright::runtime::Device;
use tracewright_tests::built::compiler;
use tracewright_tests::golden::{BOUND, BuildOptions, Golden, STEPS, build, check, check_evaluated};
use tracewright_tests::long;

/// Compares tokens and logits for prompts with lengths around the chunk and up to the context. The device is
/// the default, all threads of this machine.
fn judge(fixture: &str) {
    if long::is_left_out(fixture) {
        return judge_configuration(fixture);
    }
    let golden = golden(fixture);
    let tracewright::build::ProgramOptions { device, .. } =
        tracewright::build::ProgramOptions::new(&compiler().unwrap(), Path::new("cache"));
    assert_eq!(device, Device::LocalTask { workers: 0 });
    let sizes = BuildOptions { device, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
    let report = check(&golden, &subject).unwrap();
    let _ = writeln!(std::io::stderr(), "{fixture}: {report}");
    assert!(report.passes(), "{fixture}: {report}");
}

/// Compares a network whose operations another network covers, and which differs only in its configuration.
/// The evaluator runs it; the long form also runs it in IREE.
fn judge_configuration(fixture: &str) {
    if long::is_wanted() {
        return judge(fixture);
    }
    let golden = golden(fixture);
    let report = check_evaluated(&golden, &BuildOptions::of(&golden), STEPS, BOUND, Ok).unwrap();
    let _ = writeln!(std::io::stderr(), "{fixture}, evaluated: {report}");
    assert!(report.passes(), "{fixture}, evaluated: {report}");
}

fn golden(fixture: &str) -> Golden {
    let golden = Golden::fixture(fixture).unwrap();
    let (c, n) = (golden.chunk, golden.context);
    let lengths: Vec<usize> = golden.prompts.iter().map(|p| p.prompt_tokens.len()).collect();
    assert!(lengths.ends_with(&[c - 1, c, c + 1, 2 * c, n - 1, n]), "{fixture}: {lengths:?}");
    let distinct = golden.prompts.iter().map(|p| p.tokens.iter().collect::<BTreeSet<_>>().len()).max();
    assert!(distinct >= Some(10), "{fixture}: a loop judges nothing");
    golden
}

/// A test in each line, of the fixture that it names.
macro_rules! judged {
    ($($test:ident: $judge:ident($fixture:literal),)+) => {
        $(
            #[test]
            fn $test() {
                $judge($fixture);
            }
        )+
    };
}

// Of the fixtures that are there (`build.rs`).
include!(concat!(env!("OUT_DIR"), "/families.rs"));
