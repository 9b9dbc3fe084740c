//! `cargo xtask bless` renews the texts that tests expect, and lists the files that changed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use errors::WithPath as _;

use crate::chores::{cargo, setup};
use crate::error::Error;
use crate::step::{start_error, step};

/// Arguments of `cargo test` for each test of an expected text; not those that other programs compute.
const GOLDENS: &[&[&str]] = &[
    &[
        "--package",
        "tracewright-lower",
        "--package",
        "tracewright-models",
        "--package",
        "tracewright-inspect",
    ],
    &["--package", "tracewright-dsl", "--package", "tracewright-console"],
    &["--package", "tracewright-cli", "--test", "plain"],
    &["--package", "tracewright-cli", "--test", "cli", "documents::"],
    &["--package", "tracewright-tests", "--test", "graphs", "manifest::"],
];

/// Runs each test in a mode in which the test overwrites the expected text with its result.
pub fn bless(root: &Path) -> Result<(), Error> {
    let tools = setup(root)?;
    let before = tracked(root)?;
    for tests in GOLDENS {
        let mut command = cargo(root, &["test", "--quiet", "--all-features"]);
        command
            .args(*tests)
            .env("PATH", &tools.path)
            .envs([("UPDATE_EXPECT", "1"), ("TRYBUILD", "overwrite")]);
        step("goldens", &mut command)?;
    }
    let after = tracked(root)?;
    let changed: Vec<&PathBuf> =
        after.iter().filter(|(path, text)| before.get(*path) != Some(*text)).map(|(path, _)| path).collect();
    match changed.len() {
        0 => eprintln!("every test finds what it expects"),
        count => eprintln!("{count} files changed; read each change before you commit it"),
    }
    changed.iter().for_each(|path| println!("{}", path.display()));
    Ok(())
}

/// Returns the contents of all files that git tracks, and of all untracked files that git doesn't ignore.
fn tracked(root: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, Error> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let output = git.output().map_err(|source| start_error(&git, source))?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut files = BTreeMap::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        let file = root.join(path);
        // A file that was deleted, or a link to a folder.
        if file.is_file() {
            files.insert(PathBuf::from(path), fs::read(&file).with_path("read", &file)?);
        }
    }
    Ok(files)
}
