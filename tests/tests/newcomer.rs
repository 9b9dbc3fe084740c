//! Follows the steps of a newcomer from a clone on, and measures the minutes (`cargo xtask newcomer`). The steps are
//! the demo, a page, the commands of the pages about own networks, and wrong shapes with their messages. The suite runs the networks of these pages as examples (`own_architecture`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use blocks::{CodeBlock, own_network};
use tracewright_tests::built::repository;

#[path = "../../tools/cli/tests/blocks.rs"]
mod blocks;

/// The commands of the chapter as one script, so that each block finds the exports and the folder of the
/// blocks before. The output of the N-th block of commands goes to `$TMPDIR/N`.
struct Chapter {
    script: String,
    /// The output that the chapter shows for some blocks.
    shown: Vec<(usize, String)>,
}

impl Chapter {
    /// The script of the chapter in a checkout. The commands in `ours` follow its first block.
    fn of(checkout: &Path, ours: &str) -> Self {
        let (mut script, mut commands, mut shown) = (String::from("set -e\n"), 0, Vec::new());
        for CodeBlock { kind, text, path, .. } in own_network(checkout) {
            match (&*kind, path) {
                ("sh", _) => {
                    commands += 1;
                    script += &format!("{{\n{text}}} > \"$TMPDIR/{commands}\"\n");
                    script += if commands == 1 { ours } else { "" };
                }
                ("text", _) => shown.push((commands, text)),
                (_, Some(path)) => script += &format!("cat > {path} << 'END OF FILE'\n{text}END OF FILE\n"),
                ("rust,ignore", None) => {} // examples/parallel-cli has the rest of it
                (kind, None) => panic!("a block of `{kind}` that is neither run nor written nor printed"),
            }
        }
        assert_eq!(shown.len(), 3, "each network prints something");
        Self { script, shown }
    }

    /// Whether each block printed what is shown.
    fn check(&self, folder: &Path) {
        for (command, text) in &self.shown {
            let printed = fs::read_to_string(folder.join(command.to_string())).unwrap();
            assert_eq!(printed.trim(), text.trim(), "the chapter's commands {command}");
        }
    }
}

/// Makes one line of a file wrong and gives its number.
fn spoil(file: &Path, right: &str, wrong: &str) -> usize {
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(right).count(), 1, "{}", file.display());
    fs::write(file, text.replace(right, wrong)).unwrap();
    1 + text.lines().position(|line| line.contains(right)).unwrap()
}

/// Says something at once, which output of tests is not.
fn show(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The folder in which a checkout has built IREE's runtime.
fn native(checkout: &Path) -> PathBuf {
    let folders = fs::read_dir(checkout.join("target/debug/build")).unwrap();
    let mut folders = folders.map(|entry| entry.unwrap().path().join("out/native"));
    folders.find(|folder| folder.join("tracewright-drivers.txt").exists()).unwrap()
}

/// A clone and what was done in it.
struct Newcomer {
    checkout: PathBuf,
    start: Instant,
}

impl Newcomer {
    /// Runs a command in the clone, as it runs in a shell in which nothing of the suite is set, and says how long that took.
    fn types(&self, what: &str, line: &str, envs: &[(&str, &Path)]) -> Output {
        let mut shell = Command::new("sh");
        shell.args(["-ec", line]).current_dir(&self.checkout);
        for (name, _) in std::env::vars().filter(|(name, _)| name != "CARGO_HOME") {
            if ["CARGO", "TRACEWRIGHT", "RUST_"].iter().any(|prefix| name.starts_with(prefix)) {
                shell.env_remove(name);
            }
        }
        let start = Instant::now();
        let output = shell.envs(envs.iter().copied()).output().unwrap();
        let minutes = |since: Instant| since.elapsed().as_secs_f64() / 60.0;
        let (took, so_far) = (minutes(start), minutes(self.start));
        show(format_args!("{what}: {took:.1} min, {so_far:.1} since the clone"));
        output
    }
}

#[test]
#[ignore = "builds everything in a clone: `cargo xtask newcomer`"]
fn the_way_of_somebody_new() {
    let folder = tempfile::tempdir().unwrap();
    let clone = folder.path().join("tracewright");
    let cloned = Command::new("git").args(["clone", "--quiet"]).arg(repository()).arg(&clone).status();
    assert!(cloned.unwrap().success());
    let new = Newcomer { checkout: clone.clone(), start: Instant::now() };
    let fine = |output: Output| {
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };

    // SmolLM2 in 120 tokens, or the shipped model in 200.
    let answer = fine(new.types("the demo's answer", "cargo xtask demo", &[]));
    assert!(answer.split_whitespace().count() > 60, "{answer}");

    let page = "cargo run --bin trace-dump -- gemma-3-1b --emit html -o page.html";
    assert!(fs::read_to_string(clone.join("README.md")).unwrap().contains(page));
    fine(new.types("a page", page, &[]));
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let browser = browsers.iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    match browser {
        Some(browser) => {
            let open = format!(
                "{browser} --headless --no-sandbox --disable-gpu --dump-dom \"file://$PWD/page.html\""
            );
            let shown = fine(new.types("opened", &open, &[]));
            for part in ["self_attn", "input_layernorm", "999.9 million parameters"] {
                assert!(shown.contains(part), "`{part}` is not on the page");
            }
        }
        None => {
            writeln!(std::io::stderr(), "left out: to open it, there is no {}", browsers.join(", ")).unwrap()
        }
    }

    let right = "self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))";
    let wrong = "self.up_proj(silu(self.gate_proj(x)) * self.down_proj(x))";
    let llama = clone.join("models/src/llama.rs");
    let line = spoil(&llama, right, wrong);
    let refused = new.types("a wrong shape", "cargo run --bin trace-dump -- demo", &[]);
    assert_eq!(refused.status.code(), Some(1));
    for part in ["error[TW", &format!("models/src/llama.rs:{line}"), wrong, ".mlp", "^"] {
        assert!(said(&refused).contains(part), "`{part}` is not in\n{}", said(&refused));
    }
    spoil(&llama, wrong, right);

    let chapter = Chapter::of(&clone, "pwd > \"$TMPDIR/package\"\n");
    fine(new.types("three networks of one's own", &chapter.script, &[("TMPDIR", folder.path())]));
    chapter.check(folder.path());

    let package = PathBuf::from(fs::read_to_string(folder.path().join("package")).unwrap().trim());
    let right = "self.down(gelu_tanh(self.up(x)))";
    let line = spoil(&package.join("src/main.rs"), right, "self.up(gelu_tanh(self.down(x)))");
    // Without what the chapter's last command added, all that it needs is built; IREE's runtime is that of the clone.
    let run = format!("cd {}; cargo remove tracewright-cli; cargo run --release", package.display());
    let built = native(&clone);
    let envs = [("TRACEWRIGHT_NATIVE", &*built)];
    let refused = new.types("a wrong shape of one's own", &(run + " --bin parallel"), &envs);
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    for part in [&format!("src/main.rs:{line}"), "`blocks.*.mlp`", "no axis `F`"] {
        assert!(said(&refused).contains(part), "`{part}` is not in\n{}", said(&refused));
    }
}
