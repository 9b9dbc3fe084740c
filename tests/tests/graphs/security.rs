//! The page of limits has those of the code.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;

use tracewright_tests::built::repository;

/// The constants of a source: name, and value in the words of the table.
fn constants(source: &str) -> Vec<(String, String)> {
    let constant = |line: &str| {
        let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
        let (ty, value) = rest.strip_suffix(';')?.split_once(" = ")?;
        let number: u64 = match value.split_once(" << ") {
            Some((mantissa, shift)) => mantissa.parse::<u64>().unwrap() << shift.parse::<u32>().unwrap(),
            None => value.parse().unwrap(),
        };
        let words = match (ty, number) {
            ("u64", bytes) if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            ("u64", seconds) => format!("{seconds} s"),
            (_, number) => number.to_string(),
        };
        Some((name.to_owned(), words))
    };
    source.lines().filter_map(constant).collect()
}

#[test]
fn the_table_has_the_limits_of_the_code() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let table = read("docs/reference/limits.md");
    let mut limits = constants(&read("irpa/files/src/limits.rs"));
    limits.extend(constants(&read("irpa/errors/src/lib.rs")));
    assert!(limits.len() > 10, "{limits:?}");
    for (name, value) in &limits {
        let row = table.lines().find(|line| line.contains(&format!("| `{name}`")));
        let row = row.unwrap_or_else(|| panic!("the page has no row for `{name}`"));
        assert!(row.ends_with(&format!(" {value} |")), "`{name}` is {value}, and the page has\n{row}");
    }
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains('`')).count();
    assert_eq!(rows, limits.len(), "the page has limits that the code has not");
}
