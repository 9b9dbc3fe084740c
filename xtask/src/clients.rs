//! Installs the HTTP clients with which tests call `tracewright serve`.

use std::fs;
use std::path::Path;
use std::process::Command;

use errors::WithPath as _;

use crate::error::Error;
use crate::python;
use crate::step::{starts, step};

/// Clients that tests of `tracewright serve` run: Python packages, and one of npm where node is.
pub fn install(root: &Path) -> Result<(), Error> {
    const OPENAI: &str = "openai@7.59.0";
    let (folder, pins) = (root.join(".tracewright/clients"), root.join("tests/oracle/clients.txt"));
    python::install(&folder, &pins, "60 MB")?;
    let folder = root.join(".tracewright/clients-js");
    let stamp = folder.join("installed.txt");
    if starts("npm").is_err() || fs::read_to_string(&stamp).is_ok_and(|installed| installed == OPENAI) {
        return Ok(());
    }
    fs::create_dir_all(&folder).with_path("create", &folder)?;
    let mut npm = Command::new("npm");
    npm.args([
        "install",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=1",
        "--fetch-timeout=30000",
    ]);
    npm.arg("--prefix").arg(&folder).arg(OPENAI);
    match step("install a JavaScript client", &mut npm) {
        Ok(()) => Ok(fs::write(&stamp, OPENAI).with_path("write", &stamp)?),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        // The registry of npm is not a part of the set-up contract.
        Err(error) => {
            eprintln!("tests leave out the JavaScript client: {error}");
            Ok(())
        }
    }
}
