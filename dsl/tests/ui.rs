//! Mistakes are reported at the token that is wrong. Each case marks it in a comment below its line:
//! `//   ^^^^ part of the message`; rustc's own report, kept beside the case, must point there too.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Each case gives the compiler output in its `.stderr` file (`TRYBUILD=overwrite` writes these). Valid cases
/// are in `tests/pass`, because trybuild would otherwise call cargo for each case and not once for all.
#[test]
fn cases() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/fail/*.rs");
    if !has_std_source() {
        cases.compile_fail("tests/ui/fail_quoting_std/*.rs");
    }
}

/// Whether rustc has the source of the standard library (the component `rust-src`), which it then quotes.
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

/// `^^^^ message` in a text, as column and length from 0, and what stands behind.
fn carets(text: &str) -> Option<(usize, usize, &str)> {
    let start = text.find('^')?;
    let length = text[start..].chars().take_while(|c| *c == '^').count();
    Some((text[..start].chars().count(), length, text[start + length..].trim()))
}

/// The marks of a case.
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

/// The errors that rustc reported: the whole text, the place of the primary span and the length of its underline.
fn reports(stderr: &str) -> Vec<Report> {
    let mut reports = Vec::new();
    for error in stderr.split("\n\n").filter(|part| part.starts_with("error")) {
        let Some((_, below)) = error.split_once("--> ") else { continue };
        let place = below.lines().next().unwrap_or_default();
        let mut numbers = place.rsplit(':').map(|number| number.parse::<usize>());
        let (Some(Ok(column)), Some(Ok(line))) = (numbers.next(), numbers.next()) else {
            panic!("no place in {error}");
        };
        // The underline stands below the line of code, whose number is in the margin.
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
