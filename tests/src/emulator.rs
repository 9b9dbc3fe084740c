//! Programs for AArch64 on a machine of another kind: IREE's own tool for it, in QEMU's user mode.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tracewright::ops::{TensorType, Value};

use crate::built::{Result, repository};
use crate::long;

/// The folder with libraries for AArch64 on Debian and its descendants.
const LIBRARIES: &str = "usr/aarch64-linux-gnu";

/// The folder of the repository into which `cargo xtask test --long` unpacks QEMU and the libraries.
const UNPACKED: &str = ".tracewright/qemu";

/// QEMU, and what it runs.
pub struct Emulator {
    qemu: PathBuf,
    libraries: PathBuf,
    tool: PathBuf,
}

impl Emulator {
    /// The one of this machine, if it has one: `cargo xtask test` brings the tool where QEMU is on PATH. The long form
    /// also takes the unpacked one.
    pub fn find() -> Option<Self> {
        let tool = "lib/python3/site-packages/iree/_runtime_libs/iree-run-module";
        let tool = repository().join(".tracewright/aarch64").join(tool);
        let path = env::var_os("PATH")?;
        let names = ["qemu-aarch64", "qemu-aarch64-static"];
        let mut programs =
            env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)).into_iter());
        let of_system = programs.find(|program| program.is_file()).map(|qemu| (qemu, PathBuf::from("/")));
        let own = repository().join(UNPACKED);
        let own = long::is_wanted().then(|| (own.join("usr/bin/qemu-aarch64-static"), own));
        [of_system, own].into_iter().flatten().find_map(|(qemu, root)| {
            let (libraries, tool) = (root.join(LIBRARIES), tool.clone());
            (qemu.is_file() && tool.is_file() && libraries.is_dir()).then_some(Self { qemu, libraries, tool })
        })
    }

    /// Calls the function `main` of a compiled module, which gives results of these types.
    ///
    /// # Errors
    /// If the tool fails: what it said.
    pub fn call_main(&self, vmfb: &[u8], arguments: &[Value], results: &[TensorType]) -> Result<Vec<Value>> {
        self.call(("main", vmfb), None, arguments, results)
    }

    /// Calls a function of a compiled module, which gives results of these types and may read an archive.
    ///
    /// # Errors
    /// If the tool fails: the message of the tool.
    pub fn call(
        &self,
        (function, vmfb): (&str, &[u8]),
        archive: Option<&Path>,
        arguments: &[Value],
        results: &[TensorType],
    ) -> Result<Vec<Value>> {
        let folder = tempfile::tempdir()?;
        let file = |name: &str| folder.path().join(name);
        fs::write(file("module.vmfb"), vmfb)?;
        let mut command = Command::new(&self.qemu);
        command.args(["-cpu", "max", "-L"]).arg(&self.libraries).arg(&self.tool);
        command.arg(format!("--module={}", file("module.vmfb").display()));
        command.args(["--device=local-sync", &format!("--function={function}")]);
        command.args(archive.map(|archive| format!("--parameters=model={}", archive.display())));
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
