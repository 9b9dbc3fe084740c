//! Checks published packages: each contains all files that its build reads.
//!
//! Only `cargo package --workspace` proves that packages build, but it takes many minutes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use crate::repository;

/// cargo's metadata of the packages in the workspace.
fn metadata() -> Metadata {
    let manifest = repository().join("Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap()
}

/// The lines that a command prints.
fn lines(command: &mut Command) -> Vec<String> {
    let output = command.current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// A path without `..`: `a/b` for `a/c/../b`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => _ = path.pop(),
            component => path.push(component),
        }
        path
    })
}

/// The files that a file includes by `include_str!` or `include_bytes!`, as it names them.
fn included(source: &str) -> Vec<&str> {
    let after = |name| source.split(name).skip(1);
    let names = after("include_str!(\"").chain(after("include_bytes!(\""));
    names.filter_map(|rest| rest.split('"').next()).collect()
}

/// The tracked files of a package that its build reads and its list lacks.
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
    let metadata = metadata();
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

/// Every published package has the metadata that a registry requires, and depends only on published packages.
#[test]
fn every_package_says_what_it_is() {
    let metadata = metadata();
    let packages = metadata.workspace_packages();
    let is_published = |package: &Package| !package.publish.as_ref().is_some_and(Vec::is_empty);
    let published: BTreeSet<&str> =
        packages.iter().filter(|package| is_published(package)).map(|package| &**package.name).collect();
    assert!(published.contains("tracewright") && published.contains("tracewright-cli"), "{published:?}");
    for package in packages.iter().filter(|package| is_published(package)) {
        let name = &package.name;
        assert!(
            package.description.as_ref().is_some_and(|said| said.len() > 10),
            "`{name}` has no description"
        );
        assert_eq!(package.license.as_deref(), Some("Apache-2.0 OR MIT"), "`{name}`");
        assert!(package.rust_version.is_some(), "`{name}` says no version of Rust");
        assert_eq!(package.version, packages[0].version, "`{name}` has another version");
        for needed in package.dependencies.iter().filter(|needed| needed.path.is_some()) {
            let dependency = &needed.name;
            // What is needed by tests alone is left out when a package is published.
            if needed.kind == DependencyKind::Development && needed.req.comparators.is_empty() {
                continue;
            }
            assert!(
                published.contains(&**dependency),
                "`{name}` needs `{dependency}`, which is not published"
            );
            assert!(needed.req.matches(&package.version), "`{name}` needs `{dependency}` {}", needed.req);
            assert!(!needed.req.comparators.is_empty(), "`{name}` needs `{dependency}` of no version");
        }
    }
}

/// A library that declares to have no unit tests has none. Such a library is not built a second time, and no
/// test is overlooked.
#[test]
fn no_test_stands_where_none_is_run() {
    let metadata = metadata();
    let mut untested = 0;
    for package in metadata.workspace_packages() {
        for target in package.targets.iter().filter(|target| !target.test && !target.is_custom_build()) {
            let root = target.src_path.as_std_path();
            // A program here is one file; a library is what lies beside its root.
            let sources = if target.is_bin() {
                vec![root.to_owned()]
            } else {
                let mut git = Command::new("git");
                let tracked = lines(git.arg("-C").arg(root.parent().unwrap()).args(["ls-files", "*.rs"]));
                tracked.into_iter().map(|path| root.with_file_name(path)).collect()
            };
            for path in sources.iter().filter(|path| path.exists()) {
                let text = fs::read_to_string(path).unwrap();
                assert!(!text.contains("#[test]"), "`{}` has a test that nobody runs", path.display());
            }
            untested += 1;
        }
    }
    assert!(untested > 10, "{untested}");
}

/// The programs of a release are built by the commands in the README, and tried before they are packed.
#[test]
fn the_release_is_built_as_the_readme_says() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).unwrap();
    let (workflow, readme) = (read(".github/workflows/release.yml"), read("README.md"));
    for command in [
        "cargo xtask setup",
        "export PATH=\"$PWD/.tracewright/venv/bin:$PATH\"",
        "cargo build --release --features iree",
    ] {
        let says = |text: &str| text.lines().any(|line| line.trim().starts_with(command));
        assert!(says(&workflow) && says(&readme), "`{command}`");
    }
    // What it packs and tries is there.
    let copies = workflow.lines().filter_map(|line| line.trim().strip_prefix("cp "));
    let words = copies.flat_map(str::split_whitespace).map(|word| word.trim_matches('"'));
    let files: Vec<&str> = words.filter(|word| !word.contains("target/") && !word.contains('$')).collect();
    assert!(files.len() >= 7, "{files:?}");
    files.iter().for_each(|file| assert!(repository().join(file).is_file(), "`{file}` is packed"));
    for program in ["tracewright", "trace-dump"] {
        assert!(workflow.contains(&format!("target/release/{program} ")), "`{program}` is tried");
    }
    for platform in ["x86_64-unknown-linux", "aarch64-unknown-linux", "aarch64-apple-darwin"] {
        assert!(workflow.contains(&format!("target: {platform}")), "{platform}");
    }
}

/// The packages of a build with their features.
fn built(arguments: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--format", "{p} {f}"];
    let built = lines(Command::new(env!("CARGO")).args(tree).args(arguments));
    built.into_iter().map(|line| line.replace(" (*)", "")).collect()
}

/// `cargo xtask demo` builds xtask and the command line. A package that both need is built once, with the same features.
#[test]
fn xtask_shares_its_dependencies_with_the_command_line() {
    let command_line = built(&["--package", "tracewright-cli", "--features", "iree"]);
    assert!(command_line.len() > 150, "{} packages", command_line.len());
    let chores = built(&["--package", "xtask"]);
    let twice: Vec<&String> =
        chores.difference(&command_line).filter(|package| !package.starts_with("xtask ")).collect();
    assert!(
        twice.is_empty(),
        "the command line has other features: add them to `tools/xtask/Cargo.toml` for {twice:?}"
    );
}

/// `cargo binstall` finds the archives under the names that the workflow gives them.
#[test]
fn binstall_finds_what_a_release_packs() {
    let metadata = metadata();
    let package = metadata.packages.iter().find(|package| *package.name == "tracewright-cli").unwrap();
    let binstall = &package.metadata["binstall"];
    let value = |key: &str| binstall[key].as_str().unwrap().to_owned();
    let workflow = fs::read_to_string(repository().join(".github/workflows/release.yml")).unwrap();
    // A tag is `v` and the version.
    let named =
        |text: &str| text.replace("$GITHUB_REF_NAME", "v{ version }").replace("$TARGET", "{ target }");
    let pack = workflow.split("name=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    assert_eq!(
        value("pkg-url"),
        format!("{{ repo }}/releases/download/v{{ version }}/{}.tar.gz", named(pack))
    );
    assert_eq!(value("bin-dir"), format!("{}/{{ bin }}{{ binary-ext }}", named(pack)));
    assert!(workflow.contains("tar -czf \"$name.tar.gz\" \"$name\""));
}

/// The image is built with the workspace's Rust, runs as a user, and asks the server's health.
#[test]
fn the_image_runs_as_a_user() {
    let file = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let metadata = metadata();
    let rust = metadata.packages[0].rust_version.as_ref().unwrap();
    assert!(file.contains(&format!("FROM rust:{}.{}-", rust.major, rust.minor)), "{rust}");
    let last = file.rsplit("\nFROM ").next().unwrap();
    let user = last.lines().find_map(|line| line.strip_prefix("USER ")).unwrap();
    assert!(last.contains(&format!("--uid 10001 --create-home --home-dir /data {user}\n")), "{user}");
    assert!(last.contains("GET /health ") && last.contains("ENTRYPOINT [\"tracewright\"]"));
    // What it builds is what the guide installs.
    assert!(
        file.contains("RUN cargo xtask setup\n")
            && file.contains("--package tracewright-cli --features iree")
    );
}

/// The test finds a file that is read but not listed, even if only a macro names it.
#[test]
fn a_file_that_is_left_out_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        PathBuf::from(name)
    };
    let lib = file("src/lib.rs", concat!("#![doc = include", "_str!(\"../../README.md\")]"));
    let (shim, test, read_me) = (file("native/shim.c", ""), file("tests/one.rs", ""), file("README.md", ""));
    let tracked = [lib.clone(), shim.clone(), test, read_me.clone()];
    assert_eq!(missing(folder.path(), &tracked, &[lib.clone()].into()), [read_me.clone(), shim.clone()]);
    assert!(missing(folder.path(), &tracked, &[lib, shim, read_me].into()).is_empty());
}
