//! The JSON Schema of `manifest.json`, made from the Rust types: what is published is what the types declare.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use tracewright::export::Manifest;

/// `UPDATE_EXPECT=1` writes it again.
#[test]
fn the_schema_is_that_of_the_types() {
    let schema = schemars::schema_for!(Manifest);
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    expect_test::expect_file!["../../../docs/manifest.schema.json"].assert_eq(&text);
    // The Python package validates manifests by this copy.
    expect_test::expect_file!["../../../tools/python/tracewright_xla/manifest.schema.json"].assert_eq(&text);
}
