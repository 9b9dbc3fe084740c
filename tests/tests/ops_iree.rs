//! Every good example of every operation, through IREE: within the operation's bound of the evaluator.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use support::built;
use tracewright_tests::calls::examples;

#[test]
fn every_example_in_iree() {
    let examples = examples();
    let built = built(&examples.trace);
    let violations = built.load(&examples.weights).violations(&examples);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}
