//! No file has more than 600 lines, and no function more than 80, in tests and chores as in the product.
//!
//! Only lines of code count in a function: no blank lines, no comments, and no lines inside of tables and texts, which
//! are data. `rustfmt` indents, so a function ends where a line begins with a brace below its first word.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::process::Command;

use crate::repository;

const LINES_OF_FILE: usize = 600;
const LINES_OF_FUNCTION: usize = 80;

/// For each line, whether it begins inside of a string literal.
fn in_texts(lines: &[&str]) -> Vec<bool> {
    let mut end: Option<String> = None;
    let mut inside = Vec::new();
    for line in lines {
        inside.push(end.is_some());
        let mut rest = *line;
        while !rest.is_empty() {
            match &end {
                Some(mark) if rest.starts_with(mark.as_str()) => {
                    rest = &rest[mark.len()..];
                    end = None;
                }
                Some(mark) if mark == "\"" && rest.starts_with('\\') => rest = skipped(rest, 2),
                Some(_) => rest = skipped(rest, 1),
                None if rest.starts_with("//") => break,
                None => {
                    let hashes = rest
                        .strip_prefix('r')
                        .map_or("", |raw| &raw[..raw.len() - raw.trim_start_matches('#').len()]);
                    let character =
                        ["'\"'", "'\\''", "'\\\\'"].iter().find(|quoted| rest.starts_with(**quoted));
                    if let Some(quoted) = character {
                        rest = &rest[quoted.len()..];
                    } else if !hashes.is_empty() && rest[1 + hashes.len()..].starts_with('"') {
                        end = Some(format!("\"{hashes}"));
                        rest = &rest[hashes.len() + 2..];
                    } else if rest.starts_with('"') {
                        end = Some("\"".into());
                        rest = &rest[1..];
                    } else {
                        rest = skipped(rest, 1);
                    }
                }
            }
        }
    }
    inside
}

/// The text without its first `count` characters.
fn skipped(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or("", |(at, _)| &text[at..])
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name of the function whose declaration begins on this line.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().peekable();
    let before = |word: &str| {
        word.starts_with("pub") || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
    };
    while words.next_if(|word| before(word)).is_some() {}
    words.next_if_eq(&"fn")?;
    words.next()?.split(['(', '<']).next()
}

/// The functions of a file, with their numbers of lines.
fn functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let inside = in_texts(&lines);
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|&(at, _)| !inside[at]) {
        let Some(name) = declared(line) else { continue };
        let own = indentation(line);
        let mut count = 0;
        let mut table: Option<usize> = None;
        for (place, line) in lines.iter().enumerate().skip(at).filter(|&(place, _)| !inside[place]) {
            let (trimmed, indented) = (line.trim(), indentation(line));
            if let Some(outer) = table {
                table = (indented != outer || !trimmed.starts_with(']')).then_some(outer);
                continue;
            }
            count += usize::from(!trimmed.is_empty() && !trimmed.starts_with("//"));
            table = trimmed.ends_with('[').then_some(indented);
            let is_end = indented == own
                && (trimmed.starts_with('}') || trimmed.starts_with(')') && trimmed.ends_with(';'));
            if is_end || place == at && (trimmed.ends_with(';') || trimmed.ends_with('}')) {
                break;
            }
        }
        found.push((name, count));
    }
    found
}

#[test]
fn files_and_functions_are_short() {
    let listed = Command::new("git").args(["ls-files", "*.rs"]).current_dir(repository()).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut long = Vec::new();
    let mut count = 0;
    for path in listed.lines() {
        let Ok(text) = fs::read_to_string(repository().join(path)) else { continue };
        let lines = text.lines().count();
        if lines > LINES_OF_FILE {
            long.push(format!("{path}: {lines} lines, at most {LINES_OF_FILE}"));
        }
        for (name, lines) in functions(&text) {
            count += 1;
            if lines > LINES_OF_FUNCTION {
                long.push(format!("{path}: `{name}` has {lines} lines, at most {LINES_OF_FUNCTION}"));
            }
        }
    }
    assert!(count > 5000, "{count} functions");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn lines_of_code_count() {
    let text = r##"
impl A {
    fn short(&self) -> [u8; 2];

    pub(crate) fn long(&self) {
        // A comment.
        let table = [
            1,
            2,
        ];

        let text = r#"
            fn inner() {
        "#;
    }
}

fn last() {}
"##;
    assert_eq!(functions(text), [("short", 1), ("long", 4), ("last", 1)]);
}
