//! Each fault of IREE under docs/upstream still appears with the pinned compiler, by the commands in its file and
//! with the quoted output. If a fault no longer appears, its workaround can be removed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use targets::host_features;
use tracewright_tests::built::repository;

enum Shows {
    /// The output of the last command, or its error; and the processor feature that this needs.
    As(&'static str, Option<&'static str>),
    /// The compiler ends by a signal.
    BySignal,
    /// On a device that the suite may not have.
    Elsewhere,
}

const FAULTS: &[(&str, Shows)] = &[
    ("bitcast_sign", Shows::As("4xi32=129 0 0 0", Some("avx2"))),
    ("bytes_wrap", Shows::Elsewhere),
    ("heads_side_by_side", Shows::As("operations with large vector sizes", None)),
    ("iota_in_reduction", Shows::As("failed to legalize operation 'memref.alloc'", None)),
    ("no_terms", Shows::BySignal),
    ("odd_row", Shows::As("restricted to workgroup distributed contexts", None)),
    ("one_term", Shows::As("failed to legalize unresolved source materialization", None)),
    ("padded_tile", Shows::As("[36 40 44 48 52 56 0]", Some("avx2"))),
    ("product_beside_slice", Shows::As("exceeded stack allocation limit", None)),
    ("rank_two", Shows::As("must be statically shaped", None)),
    ("round_even", Shows::As("vpsrlvd", None)),
    ("six_nibbles", Shows::As("failed to legalize operation 'vector.maskedload'", None)),
    ("smallest_integer", Shows::As("min.s32", None)),
    ("slice_while_packing", Shows::As("exceeded stack allocation limit", None)),
    ("terms_first", Shows::As("[4 4 4 4 4][0 0 0 0 0]", Some("avx2"))),
    ("two_numbers", Shows::As("streamable op expected to be in an execution region", None)),
];

/// The comment at the head of a file, without its signs.
fn comment(text: &str) -> String {
    text.lines().map_while(|line| line.strip_prefix("//")).fold(String::new(), |all, line| all + line + "\n")
}

/// The commands of a comment: its lines that are indented, each with those that go on with it.
fn commands(comment: &str) -> Vec<String> {
    let mut commands = vec![String::new()];
    for line in comment.lines().filter_map(|line| line.strip_prefix("    ")) {
        match line.trim().strip_suffix('\\') {
            Some(begun) => commands.last_mut().unwrap().push_str(begun),
            None => {
                commands.last_mut().unwrap().push_str(line.trim());
                commands.push(String::new());
            }
        }
    }
    commands.retain(|command| !command.is_empty());
    commands
}

#[test]
fn each_fault_still_shows() {
    let folder = repository().join("docs/upstream");
    let path = [repository().join(".tracewright/venv/bin")]
        .into_iter()
        .chain(env::split_paths(&env::var_os("PATH").unwrap()))
        .collect::<Vec<_>>();
    let path = env::join_paths(path).unwrap();
    for (name, shows) in FAULTS {
        let file = folder.join(name).with_extension("mlir");
        let comment = comment(&fs::read_to_string(&file).unwrap());
        let commands = commands(&comment);
        assert!(!commands.is_empty(), "{name} has no command");
        let has = |name: &str| host_features().iter().any(|&(known, has)| has && known == name);
        // What is compiled for another processor is not run.
        let count = match shows {
            Shows::Elsewhere => continue,
            Shows::As(_, Some(feature)) if !has(feature) => 1,
            _ => commands.len(),
        };
        let here = tempfile::tempdir().unwrap();
        let mut last = None;
        for command in &commands[..count] {
            let command = command.replace("docs/upstream/", &format!("{}/", folder.display()));
            // The shell is replaced by the program, whose signal is its end.
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("exec {command}")]).env("PATH", &path).current_dir(&here);
            last = Some(shell.output().unwrap());
        }
        let last = last.unwrap();
        let said =
            [last.stdout, last.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        println!("{name}: {}: {said}", last.status);
        match shows {
            Shows::As(words, _) => {
                assert!(count < commands.len() || said.contains(words), "{name} does not show: {said}");
                assert!(comment.contains(words), "{name} does not say `{words}`");
            }
            _ => {
                // A start script of Python's gives a signal back as a negative code.
                let signal =
                    last.status.signal().is_some() || last.status.code().is_some_and(|code| code > 127);
                assert!(signal, "{name}: {}", last.status);
            }
        }
    }
}

#[test]
fn each_file_is_looked_at() {
    let files = fs::read_dir(repository().join("docs/upstream")).unwrap();
    let files = files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    let known = FAULTS.iter().map(|(name, _)| (*name).to_owned());
    assert_eq!(files.collect::<BTreeSet<_>>(), known.collect());
}
