//! What is published builds by itself: each package has all files that its build reads.
//!
//! Whether it builds indeed, only `cargo package --workspace` can say, which takes many minutes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use cargo_metadata::MetadataCommand;
use tracewright_tests::built::repository;

/// What a command prints, line by line.
fn lines(command: &mut Command) -> Vec<String> {
    let output = command.current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// `a/b` for `a/c/../b`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => _ = path.pop(),
            component => path.push(component),
        }
        path
    })
}

/// The files that a file takes in by `include_str!` or `include_bytes!`, as it names them.
fn included(source: &str) -> Vec<&str> {
    let after = |name| source.split(name).skip(1);
    let names = after("include_str!(\"").chain(after("include_bytes!(\""));
    names.filter_map(|rest| rest.split('"').next()).collect()
}

/// Of the tracked files of a package, those that its build reads and its list lacks.
fn missing(folder: &Path, tracked: &[PathBuf], listed: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let is_read = |path: &&PathBuf| ["build.rs", "native", "src"].iter().any(|part| path.starts_with(part));
    let mut needed: BTreeSet<PathBuf> = tracked.iter().filter(is_read).cloned().collect();
    for path in needed.clone().iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        // Deleted and not committed yet.
        let Ok(source) = fs::read_to_string(folder.join(path)) else { continue };
        needed.extend(included(&source).into_iter().map(|name| normal(&path.with_file_name(name))));
    }
    needed.into_iter().filter(|path| folder.join(path).exists() && !listed.contains(path)).collect()
}

#[test]
fn every_package_has_what_its_build_reads() {
    let manifest = repository().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let mut packages = 0;
    for package in metadata.workspace_packages() {
        if package.publish.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let folder = package.manifest_path.parent().unwrap().as_std_path();
        let mut git = Command::new("git");
        let tracked: Vec<PathBuf> =
            lines(git.arg("-C").arg(folder).arg("ls-files")).into_iter().map(PathBuf::from).collect();
        // Only what is in the list matters here, committed or not.
        let list = ["package", "--list", "--offline", "--quiet", "--allow-dirty", "--package"];
        let listed = lines(Command::new(env!("CARGO")).args(list).arg(&*package.name));
        let missing = missing(folder, &tracked, &listed.into_iter().map(PathBuf::from).collect());
        assert!(missing.is_empty(), "`{}` is packaged without {missing:?}", package.name);
        packages += 1;
    }
    assert!(packages > 10, "{packages} packages");
}

/// The test itself: what is read and not listed is found, also where only a macro names it.
#[test]
fn a_file_that_is_left_out_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        PathBuf::from(name)
    };
    let lib = file("src/lib.rs", concat!("#![doc = include", "_str!(\"../README.md\")]"));
    let (shim, test, read_me) = (file("native/shim.c", ""), file("tests/one.rs", ""), file("README.md", ""));
    let tracked = [lib.clone(), shim.clone(), test, read_me.clone()];
    assert_eq!(missing(folder.path(), &tracked, &[lib.clone()].into()), [read_me.clone(), shim.clone()]);
    assert!(missing(folder.path(), &tracked, &[lib, shim, read_me].into()).is_empty());
}
