//! Tests that the macro reports each error at the wrong token. Each case marks this token in a
//! comment below the line: `// ^^^^ part of the message`. The output of rustc in the `.stderr` file
//! next to the case must point to the same token.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The compiler output of each case must be equal to the case's `.stderr` file, which
/// `TRYBUILD=overwrite` writes. Valid cases are in `tests/pass`, because trybuild would otherwise
/// call cargo once for each case.
#[test]
fn cases() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/fail/*.rs");
    if !has_std_source() {
        cases.compile_fail("tests/ui/fail_quoting_std/*.rs");
    }
}

/// Whether the component `rust-src` is installed. rustc then quotes the source code of the standard
/// library.
fn has_std_source() -> bool {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().unwrap().stdout;
    Path::new(String::from_utf8_lossy(&sysroot).trim()).join("lib/rustlib/src").exists()
}

/// A line and columns, counted from 1, with a message.
#[derive(Debug)]
struct Report {
    line: usize,
    column: usize,
    length: usize,
    message: String,
}

impl Report {
    fn place(&self) -> (usize, usize, usize) {
        (self.line, self.column, self.length)
    }
}

/// Finds `^^^^ message` in a line. Returns the column of the carets, from 0, their number, and the
/// message.
fn carets(text: &str) -> Option<(usize, usize, &str)> {
    let start = text.find('^')?;
    let length = text[start..].chars().take_while(|c| *c == '^').count();
    Some((text[..start].chars().count(), length, text[start + length..].trim()))
}

/// The expected errors of a case, from the comments with carets.
fn marks(source: &str) -> Vec<Report> {
    let mut code = 0;
    let mut marks = Vec::new();
    for (index, line) in source.lines().enumerate() {
        match carets(line).filter(|_| line.trim_start().starts_with("//")) {
            Some((column, length, message)) => {
                marks.push(Report { line: code, column: column + 1, length, message: message.into() });
            }
            None => code = index + 1,
        }
    }
    marks
}

/// The errors that rustc reported. Each error has the whole text, the place of the primary span and
/// the length of the underline.
fn reports(stderr: &str) -> Vec<Report> {
    let mut reports = Vec::new();
    for error in stderr.split("\n\n").filter(|part| part.starts_with("error")) {
        let Some((_, below)) = error.split_once("--> ") else { continue };
        let place = below.lines().next().unwrap_or_default();
        let mut numbers = place.rsplit(':').map(|number| number.parse::<usize>());
        let (Some(Ok(column)), Some(Ok(line))) = (numbers.next(), numbers.next()) else {
            panic!("no place in {error}");
        };
        // The underline is below the line of code with this number in the margin.
        let numbered =
            |text: &&str| text.split_once('|').is_some_and(|(margin, _)| margin.trim() == line.to_string());
        let code = below.lines().position(|text| numbered(&text)).unwrap_or_default();
        let underline = below.lines().skip(code + 1).find_map(carets);
        let length = underline.map_or(0, |(_, length, _)| length);
        reports.push(Report { line, column, length, message: error.into() });
    }
    reports
}

#[test]
fn reports_stand_at_the_marks() {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let folders = ["fail", "fail_quoting_std"].map(|folder| fs::read_dir(ui.join(folder)).unwrap());
    let mut cases: Vec<_> = folders.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    cases.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    cases.sort();
    assert!(cases.len() >= 25, "{} cases", cases.len());
    let mut wrong = Vec::new();
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let marks = marks(&fs::read_to_string(&case).unwrap());
        let reports = reports(&fs::read_to_string(case.with_extension("stderr")).unwrap());
        if marks.is_empty() {
            wrong.push(format!("{name} marks nothing"));
        }
        let matches = |mark: &Report, report: &Report| {
            mark.place() == report.place() && report.message.contains(&mark.message)
        };
        for mark in marks.iter().filter(|mark| !reports.iter().any(|report| matches(mark, report))) {
            wrong.push(format!("{name}: no report is {mark:?}"));
        }
        for report in reports.iter().filter(|report| !marks.iter().any(|mark| matches(mark, report))) {
            wrong.push(format!("{name}: no mark is {report:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
