//! Every good example of every operation, through IREE: within the operation's bound of the evaluator.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use runtime::CompileOptions;
use support::compiler;
use tracewright_tests::calls::examples;
use tracewright_tests::in_iree::try_built_with;
use tracewright_tests::level;

#[test]
fn every_example_in_iree() {
    let mut examples = examples();
    // Where the processor has no masked loads, iree-compile 3.13 does not convert six i4
    // (docs/upstream/six_nibbles.mlir).
    let target = compiler().resolve(&level::target()).unwrap();
    let masked = target.features.iter().flatten().any(|feature| feature == "avx2");
    if cfg!(target_arch = "x86_64") && !masked {
        examples.calls.retain(|call| !call.text.contains("i4[6]"));
        let names: Vec<&str> = examples.calls.iter().map(|call| call.name.as_str()).collect();
        examples.trace = examples.trace.with_entries(&names);
    }
    // What whole models are spared: that the compiler looks whether all is well after each of its passes.
    let options = CompileOptions { verified: true, ..CompileOptions::new(target, true) };
    let built = try_built_with(&examples.trace, &options).unwrap_or_else(|error| panic!("{error}"));
    let violations = built.load(&examples.weights).violations(&examples);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}
