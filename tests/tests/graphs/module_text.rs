//! The module text of all presets is the text that the whole suite compiled and compared. A change of the text on purpose
//! renews `goldens/modules.txt`, and asks for `cargo xtask test --long`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;

use tracewright_tests::{long, modules};

/// Every fifth text in the short form, on any machine; all in the long form, or to write the file with `UPDATE_EXPECT=1`.
#[test]
fn the_module_text_of_presets_is_as_before() {
    let golden = expect_test::expect_file!["../../goldens/modules.txt"];
    let all = long::is_wanted() || std::env::var_os("UPDATE_EXPECT").is_some();
    let found = modules::hashes(all).unwrap();
    if all {
        return golden.assert_eq(&(found.join("\n") + "\n"));
    }
    let text = golden.data();
    let known: BTreeSet<&str> = text.lines().collect();
    let other: Vec<&String> = found.iter().filter(|line| !known.contains(line.as_str())).collect();
    assert!(found.len() > 30 && other.is_empty(), "other text than in goldens/modules.txt: {other:#?}");
}
