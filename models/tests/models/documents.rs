//! Tables of the documentation that list families.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use expect_test::expect_file;
use tracewright_models::FAMILIES;

use crate::support::fixture;

/// The reference documentation has a row for each family. Families with the same description share
/// a row. `UPDATE_EXPECT=1` writes the table.
#[test]
fn the_reference_lists_the_families() {
    let mut table = "| `architectures` in `config.json` | network |\n|---|---|\n".to_owned();
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    for family in FAMILIES {
        let names = family.architectures.iter().map(|name| format!("`{name}`"));
        assert!(!family.about.is_empty(), "{:?}", family.architectures);
        match rows.iter_mut().find(|(about, _)| *about == family.about) {
            Some((_, row)) => row.extend(names),
            None => rows.push((family.about, names.collect())),
        }
    }
    for (about, names) in rows {
        table += &format!("| {} | {about} |\n", names.join(", "));
    }
    let file = "docs/reference/architectures.md";
    expect_file!["../../../docs/reference/architectures.md"].assert_eq(&with_architectures(file, &table));
}

/// Replaces the text between the anchors `architectures` of a document.
fn with_architectures(document: &str, table: &str) -> String {
    let (begin, end) = ("<!-- ANCHOR: architectures -->\n", "<!-- ANCHOR_END: architectures -->");
    let text = std::fs::read_to_string(fixture("").join("../..").join(document)).unwrap();
    let (before, rest) = text.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    format!("{before}{begin}{table}{end}{after}")
}
