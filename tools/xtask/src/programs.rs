//! Runs cargo's test programs, two programs at a time. `cargo test` runs one program after another,
//! so many cores are idle while a single long test runs. The tool cargo-nextest would also use idle
//! cores, but building cargo-nextest takes longer than the time that it saves.

use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Instant;
use std::{iter, thread};

use serde_json::Value as Json;

use crate::error::Error;
use crate::step::{Step, check, human, start_error};

/// They share the cores of the machine.
pub const AT_ONCE: usize = 2;

/// Measured on two cores. They start first, so that no long program runs alone at the end.
const LONGEST: [&str; 17] = [
    "cli",
    "serving",
    "kernels",
    "same_bits",
    "precision",
    "bisect",
    "mesh",
    "token_exact",
    "composites",
    "xla_quantized",
    "families",
    "xla",
    "short",
    "planted_faults",
    "simplify",
    "devices",
    "constraint",
];

#[derive(Clone, Debug, PartialEq)]
pub struct TestProgram {
    /// For `--test`, or the package.
    pub name: String,
    path: PathBuf,
    pub folder: PathBuf,
    arguments: Vec<String>,
    envs: Vec<(&'static str, String)>,
}

impl TestProgram {
    /// From a message of cargo.
    fn named(line: &str) -> Option<Self> {
        let message: Json = serde_json::from_str(line).ok()?;
        let text = |pointer: &str| message.pointer(pointer)?.as_str();
        let is_test = message.pointer("/profile/test").is_some_and(|test| *test == true);
        let path = text("/executable").filter(|_| is_test)?.into();
        let folder = Path::new(text("/manifest_path")?).parent()?.to_owned();
        let name = text("/target/name")?.to_owned();
        Some(Self { name, path, folder, arguments: Vec::new(), envs: Vec::new() })
    }

    /// Returns a copy of the test program that runs with an environment variable and skips some tests.
    pub fn with(&self, (variable, value): (&'static str, &str), skipped: &[&str]) -> Self {
        let skipped = skipped.iter().flat_map(|test| ["--skip", test]);
        Self {
            name: format!("{} on {value}", self.name),
            arguments: self.arguments.iter().cloned().chain(skipped.map(str::to_owned)).collect(),
            envs: vec![(variable, value.to_owned())],
            ..self.clone()
        }
    }

    /// Each module runs in its own process, if all tests are in modules.
    pub fn by_module(self, start: &dyn Fn(&Path) -> Command) -> Vec<Self> {
        let output = self.command(start).args(["--list", "--format=terse"]).output();
        let listed =
            output.map_or(String::new(), |output| String::from_utf8_lossy(&output.stdout).into_owned());
        let modules = listed.lines().map(|test| Some(test.split_once("::")?.0));
        match modules.collect::<Option<BTreeSet<&str>>>() {
            Some(modules) if !modules.is_empty() => {
                let module = |name: &str| Self {
                    name: name.to_owned(),
                    arguments: vec![format!("{name}::")],
                    ..self.clone()
                };
                modules.into_iter().map(module).collect()
            }
            _ => vec![self],
        }
    }

    /// Returns the command that runs the test program with the same folder and variables as `cargo test`.
    fn command(&self, start: &dyn Fn(&Path) -> Command) -> Command {
        let mut command = start(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command.args(&self.arguments).envs(self.envs.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        command
    }

    /// 0 if unknown.
    fn tests(&self, start: &dyn Fn(&Path) -> Command) -> usize {
        let listed = self.command(start).args(["--list", "--format=terse"]).output();
        listed.map_or(0, |output| output.stdout.split(|&byte| byte == b'\n').count())
    }

    /// The last place starts first: [`LONGEST`], then those with most tests.
    fn order(&self, start: &dyn Fn(&Path) -> Command) -> (usize, usize) {
        let place = LONGEST.iter().position(|name| *name == self.name);
        (place.map_or(0, |place| LONGEST.len() - place), self.tests(start))
    }

    /// Whether all tests passed.
    fn run(&self, start: &dyn Fn(&Path) -> Command, threads: usize) -> Result<bool, Error> {
        let mut command = self.command(start);
        let begun = Instant::now();
        let output = command.arg(format!("--test-threads={threads}")).output();
        let Output { status, stdout, stderr } = output.map_err(|source| start_error(&command, source))?;
        check(status)?;
        let said = String::from_utf8_lossy(&stdout);
        if !status.success() {
            eprintln!("{said}{}", String::from_utf8_lossy(&stderr));
        }
        let result = said.lines().rev().find_map(|line| line.strip_prefix("test result: "));
        let took = human(begun.elapsed());
        eprintln!("    {} ({took}): {}", self.name, result.unwrap_or("it did not come to an end"));
        Ok(status.success())
    }
}

/// `cargo` is a `cargo test` command.
pub fn build(name: &str, cargo: &mut Command) -> Result<Vec<TestProgram>, Error> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let step = Step::begin(name, cargo);
    let output = cargo.stderr(Stdio::inherit()).output().map_err(|source| start_error(cargo, source))?;
    step.end(output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(TestProgram::named).collect())
}

/// The longest first, `at_once` in parallel. Prints the whole output of a failed program. `start` makes a
/// program's command.
pub fn run(
    name: &str,
    at_once: usize,
    mut programs: Vec<TestProgram>,
    start: &(dyn Fn(&Path) -> Command + Sync),
) -> Result<(), Error> {
    if programs.is_empty() {
        return Err(Error::NoTests { step: name.to_owned() });
    }
    eprintln!("==> {name}: {} programs, {at_once} at once", programs.len());
    let begun = Instant::now();
    programs.sort_by_cached_key(|program| program.order(start));
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(at_once));
    let left = Mutex::new(programs);
    let next = || left.lock().ok()?.pop();
    let worker = || {
        let mut failed = Vec::new();
        for program in iter::from_fn(next) {
            if !program.run(start, threads)? {
                failed.push(program.name);
            }
        }
        Ok(failed)
    };
    let failed: Result<Vec<_>, Error> = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    let failed = failed?.concat();
    if !failed.is_empty() {
        return Err(Error::Tests { step: name.to_owned(), failed });
    }
    eprintln!("<== {name}: {}", human(begun.elapsed()));
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    fn script(name: &str, text: &str) -> TestProgram {
        TestProgram {
            name: name.into(),
            path: text.into(),
            folder: std::env::temp_dir(),
            arguments: Vec::new(),
            envs: Vec::new(),
        }
    }

    fn shell(script: &Path) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg("sh");
        command
    }

    #[test]
    fn messages_name_programs() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/a/cli/Cargo.toml","target":{"name":"plain"},"profile":{"test":true},"executable":"/t/plain-1"}"#;
        let program = TestProgram::named(line).unwrap();
        assert_eq!((&*program.name, program.folder.to_str()), ("plain", Some("/a/cli")));
        let lower = program.with(("LEVEL", "low"), &["slow"]);
        assert_eq!(
            (&*lower.name, lower.arguments),
            ("plain on low", ["--skip", "slow"].map(str::to_owned).to_vec())
        );
        assert_eq!(lower.envs, [("LEVEL", "low".to_owned())]);
        for other in [
            line.replace("\"test\":true", "\"test\":false"),
            line.replace("\"/t/plain-1\"", "null"),
            "".into(),
        ] {
            assert_eq!(TestProgram::named(&other), None, "{other}");
        }
    }

    #[test]
    fn modules_run_alone() {
        let list = |tests: &str| script("all", &format!("printf '{tests}'")).by_module(&shell);
        let names = |all: &[TestProgram]| all.iter().map(|program| program.name.clone()).collect::<Vec<_>>();
        let modules = list("b::one: test\\na::b::two: test\\nb::three: test\\n");
        assert_eq!(names(&modules), ["a", "b"]);
        assert_eq!(modules[1].arguments, ["b::"]);
        assert_eq!(modules[1].with(("LEVEL", "low"), &["slow"]).arguments, ["b::", "--skip", "slow"]);
        for other in ["b::one: test\\ntwo: test\\n", ""] {
            assert_eq!(names(&list(other)), ["all"], "{other}");
        }
    }

    #[test]
    fn each_runs_once_and_those_that_fail_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let run_of = |name: &str, end: &str| {
            let log = folder.path().join("log");
            let list = "case \"$*\" in *--list*) echo one: test; exit;; esac";
            script(name, &format!("{list}; echo {name} $* >> '{}'; {end}", log.display()))
        };
        let all = vec![
            run_of("a", "exit 0"),
            run_of("b", "exit 101"),
            run_of("c", "exit 0"),
            run_of("d", "kill -9 $$"),
            run_of(LONGEST[1], "exit 0"),
            run_of(LONGEST[0], "exit 0"),
        ];
        let mut sorted = all.clone();
        sorted.sort_by_cached_key(|program| program.order(&shell));
        let last: Vec<&str> = sorted[4..].iter().map(|program| &*program.name).collect();
        assert_eq!(last, [LONGEST[1], LONGEST[0]], "the longest starts first");
        let error = run("tests", AT_ONCE, all, &shell).unwrap_err();
        let Error::Tests { mut failed, .. } = error else { panic!("{error}") };
        failed.sort();
        assert_eq!(failed, ["b", "d"]);
        let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
        let mut names: Vec<&str> = log.lines().filter_map(|line| line.split(' ').next()).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "c", LONGEST[0], "d", LONGEST[1]]);
        assert!(log.lines().all(|line| line.contains(" --test-threads=")), "{log}");
        assert!(run("tests", AT_ONCE, vec![run_of("e", "exit 0")], &shell).is_ok());
        assert!(matches!(
            run("tests", AT_ONCE, vec![run_of("f", "exit 130")], &shell),
            Err(Error::Interrupted)
        ));
        assert!(matches!(run("tests", 1, vec![], &shell), Err(Error::NoTests { .. })));
    }
}
