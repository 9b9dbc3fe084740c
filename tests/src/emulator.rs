//! Programs for AArch64 on a machine of another kind: IREE's own tool for it, in QEMU's user mode.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracewright::ops::{TensorType, Value};

use crate::built::{Result, repository};

/// The folder with libraries for AArch64 on Debian and its descendants.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// QEMU, and what it runs.
pub struct Emulator {
    qemu: PathBuf,
    tool: PathBuf,
}

impl Emulator {
    /// The one of this machine, if it has one: `cargo xtask test` brings the tool where QEMU is on PATH.
    pub fn find() -> Option<Self> {
        let tool = "lib/python3/site-packages/iree/_runtime_libs/iree-run-module";
        let tool = repository().join(".tracewright/aarch64").join(tool);
        let path = env::var_os("PATH")?;
        let names = ["qemu-aarch64", "qemu-aarch64-static"];
        let mut programs =
            env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)).into_iter());
        let qemu = programs.find(|program| program.is_file())?;
        (tool.is_file() && Path::new(LIBRARIES).is_dir()).then_some(Self { qemu, tool })
    }

    /// Calls the function `main` of a compiled module, which gives results of these types.
    ///
    /// # Errors
    /// If the tool fails: what it said.
    pub fn call_main(&self, vmfb: &[u8], arguments: &[Value], results: &[TensorType]) -> Result<Vec<Value>> {
        let folder = tempfile::tempdir()?;
        let file = |name: &str| folder.path().join(name);
        fs::write(file("module.vmfb"), vmfb)?;
        let mut command = Command::new(&self.qemu);
        command.args(["-cpu", "max", "-L", LIBRARIES]).arg(&self.tool);
        command.arg(format!("--module={}", file("module.vmfb").display()));
        command.args(["--device=local-sync", "--function=main"]);
        for (i, argument) in arguments.iter().enumerate() {
            let path = file(&format!("{i}.bin"));
            fs::write(&path, argument.to_bytes())?;
            let ty = argument.ty.mlir();
            let ty = ty.trim_start_matches("tensor<").trim_end_matches('>');
            command.arg(format!("--input={ty}=@{}", path.display()));
        }
        // One after the other, as they are asked for.
        let found = file("results.bin");
        command.args(results.iter().map(|_| format!("--output=+{}", found.display())));
        let output = command.output()?;
        if !output.status.success() {
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into());
        }
        let bytes = fs::read(&found)?;
        let (expected, length) = (results.iter().map(TensorType::bytes).sum::<usize>(), bytes.len());
        if length != expected {
            return Err(format!("the results have {length} bytes, expected {expected}").into());
        }
        let mut rest = &bytes[..];
        let value = |ty: &TensorType| {
            let (own, after) = rest.split_at(ty.bytes());
            rest = after;
            Value::from_bytes(ty.clone(), own)
        };
        Ok(results.iter().map(value).collect())
    }
}
