//! Installs HTTP clients, with which tests call `tracewright serve`.

use std::fs;
use std::path::Path;
use std::process::Command;

use errors::WithPath as _;

use crate::error::Error;
use crate::python;
use crate::step::{starts, step};

/// A client, a browser, and what `tools/cli/tests/serving/page.mjs` uses it with.
const NPM: [&str; 4] =
    ["openai@7.59.0", "@sparticuz/chromium@147.0.0", "puppeteer-core@24.43.1", "axe-core@4.14.1"];

/// lm-eval, which only the long form of the tests runs.
pub fn install_lm_eval(root: &Path) -> Result<(), Error> {
    let (folder, pins) = (root.join(".tracewright/lm-eval"), root.join("tests/oracle/lm-eval.txt"));
    python::install(&folder, &pins, "150 MB").map(drop)
}

/// Python packages, and npm packages if node exists.
pub fn install(root: &Path) -> Result<(), Error> {
    let (folder, pins) = (root.join(".tracewright/clients"), root.join("tests/oracle/clients.txt"));
    python::install(&folder, &pins, "60 MB")?;
    let folder = root.join(".tracewright/clients-js");
    let stamp = folder.join("installed.txt");
    let pins = NPM.join("\n");
    if starts("npm").is_err() || fs::read_to_string(&stamp).is_ok_and(|installed| installed == pins) {
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
    npm.arg("--prefix").arg(&folder).args(NPM);
    match step("install a JavaScript client and a browser (70 MB)", &mut npm) {
        Ok(()) => Ok(fs::write(&stamp, pins).with_path("write", &stamp)?),
        Err(Error::Interrupted) => Err(Error::Interrupted),
        // The registry of npm is not a part of the set-up contract.
        Err(error) => {
            eprintln!("tests leave out the JavaScript client and the chat page: {error}");
            Ok(())
        }
    }
}
