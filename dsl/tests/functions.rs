//! The table in the documentation of the crate contains each method of `Tensor` and each `nn`
//! function once.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// The names of a file's public functions, in the form of the table. The list contains the methods
/// of `Tensor` and, if `free` is true, the functions of `nn`.
fn functions(text: &str, free: bool) -> Vec<String> {
    let mut of_tensor = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("impl") {
            of_tensor = line.contains("> Tensor<T> {") || line.starts_with("impl Tensor<");
        }
        let name = |line: &str| line.split(['(', '<']).next().unwrap().to_owned();
        match (line.strip_prefix("    pub fn "), line.strip_prefix("pub fn ")) {
            (Some(method), _) if of_tensor => found.push(format!("Tensor::{}", name(method))),
            (_, Some(function)) if free => found.push(format!("nn::{}", name(function))),
            _ => {}
        }
    }
    found
}

/// The methods that a macro generates from the list of operations.
macro_rules! generated {
    ($($method:ident::$op:ident,)*) => { [$(concat!("Tensor::", stringify!($method))),*] };
}

#[test]
fn the_table_is_complete() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let of =
        |path: &PathBuf| functions(&fs::read_to_string(path).unwrap(), path.starts_with(source.join("nn")));
    let mut declared: Vec<String> = sources(&source).iter().flat_map(of).collect();
    let table = fs::read_to_string(source.join("functions.md")).unwrap();
    let named = |line: &str| Some(line.strip_prefix("| [`")?.split('`').next().unwrap().to_owned());
    let mut listed: Vec<String> = table.lines().filter_map(named).collect();
    declared.extend(ops::float_functions!(generated).map(str::to_owned));
    declared.sort();
    listed.sort();
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(listed, declared);
}
