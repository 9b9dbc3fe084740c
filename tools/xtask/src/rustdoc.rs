//! Stands in for rustdoc in `cargo test --doc`: writes the pages of a crate, and then runs its examples. `cargo doc`
//! would check all crates again, because it does not use crates that are built.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::chores::printed_by_rustc;
use crate::error::Error;

/// An environment variable with the path of the true rustdoc, if xtask stands in for it.
const TRUE: &str = "TRACEWRIGHT_RUSTDOC";

/// Makes `cargo test --doc` call `xtask`, the path of this program, in the place of rustdoc.
pub fn stand_in<'a>(cargo: &'a mut Command, xtask: &Path) -> Result<&'a mut Command, Error> {
    let rustdoc = PathBuf::from(printed_by_rustc("sysroot")?).join("bin/rustdoc");
    Ok(cargo.env("RUSTDOC", xtask).env(TRUE, rustdoc))
}

/// Does the work of rustdoc. `None` if this program is not called in its place.
pub fn called() -> Option<ExitCode> {
    let rustdoc = env::var_os(TRUE)?;
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let run = |arguments: Vec<OsString>| {
        let status = Command::new(&rustdoc).args(arguments).status();
        status
            .inspect_err(|error| eprintln!("cannot start rustdoc: {error}"))
            .is_ok_and(|status| status.success())
    };
    let is_done = pages(&arguments).is_none_or(run) && run(arguments);
    Some(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The arguments to write a crate's pages, from those to run its examples.
fn pages(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let mut pages: Vec<OsString> = vec!["-Dwarnings".into(), "--out-dir=target/doc".into()];
    let mut is_test = false;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.to_str() {
            Some("--test") => is_test = true,
            // With a value, which follows.
            Some("--test-args" | "--test-run-directory" | "--test-runtool") => _ = rest.next(),
            _ => pages.push(argument.clone()),
        }
    }
    is_test.then_some(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_need_no_arguments_of_tests() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let pages_of = |given: &[&str]| pages(&words(given));
        assert_eq!(pages_of(&["-vV"]), None);
        assert_eq!(
            pages_of(&["--crate-name", "a", "--test", "src/lib.rs", "--test-run-directory", "/a", "-L", "b"]),
            Some(words(&[
                "-Dwarnings",
                "--out-dir=target/doc",
                "--crate-name",
                "a",
                "src/lib.rs",
                "-L",
                "b"
            ]))
        );
    }
}
