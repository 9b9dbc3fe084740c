//! What somebody new types and reads: the commands of the chapter "Declare your own network" print what it shows, a wrong shape
//! is shown at its line; and, in `cargo xtask newcomer`, the whole way from a clone on, with the minutes it takes.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use blocks::{CodeBlock, chapter};
use tracewright_tests::built::repository;

#[path = "../../cli/tests/blocks.rs"]
mod blocks;

/// What the chapter has its reader do, as one script, so that each block finds what the ones before it exported, and the
/// folder they went to. What its N-th block of commands prints goes to `$TMPDIR/N`.
struct Chapter {
    script: String,
    /// What is shown of some of them.
    shown: Vec<(usize, String)>,
}

impl Chapter {
    /// Of the chapter in a checkout, with commands of ours after its first block.
    fn of(checkout: &Path, ours: &str) -> Self {
        let (mut script, mut commands, mut shown) = (String::from("set -e\n"), 0, Vec::new());
        for CodeBlock { kind, text, path, .. } in chapter(checkout) {
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

/// Where IREE's runtime was built for this test: not once more for the package of the chapter.
fn native() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().and_then(Path::parent).unwrap().join("build");
    let folders = fs::read_dir(built).unwrap().map(|entry| entry.unwrap().path().join("out/native"));
    let built_at = |folder: &PathBuf| fs::metadata(folder.join("tracewright-drivers.txt"))?.modified();
    let last = folders.filter_map(|folder| Some((built_at(&folder).ok()?, folder))).max();
    last.unwrap().1
}

#[test]
fn the_chapter_s_commands_print_what_it_shows_and_a_wrong_shape_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // The user types nothing of this: cargo reads it above the package that the chapter makes. What is built is kept
    // from run to run, of the versions that are there; programs that run for a second need not be fast.
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("chapter");
    let config = format!("build.target-dir = {built:?}\nnet.offline = true\nprofile.release.opt-level = 0\n");
    fs::create_dir(folder.join(".cargo")).unwrap();
    fs::write(folder.join(".cargo/config.toml"), config).unwrap();

    // The pinned versions: what others have published since, the suite does not judge.
    let chapter = Chapter::of(&repository(), "cp \"$CHECKOUT/Cargo.lock\" .; pwd > \"$TMPDIR/package\"\n");
    let mut shell = Command::new("sh");
    shell.args(["-c", &chapter.script]).current_dir(repository()).env("TMPDIR", folder);
    shell.env("TRACEWRIGHT_NATIVE", native());
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    chapter.check(folder);

    let package = PathBuf::from(fs::read_to_string(folder.join("package")).unwrap().trim());
    let line = spoil(
        &package.join("src/main.rs"),
        "self.down(gelu_tanh(self.up(x)))",
        "self.up(gelu_tanh(self.down(x)))",
    );
    // Without what the chapter's last command added, all that it needs is built.
    let run = "cargo remove --quiet tracewright-cli && cargo run --release --bin parallel";
    let mut shell = Command::new("sh");
    shell.args(["-c", run]).current_dir(&package).env("TRACEWRIGHT_NATIVE", native());
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    for part in [&format!("src/main.rs:{line}"), "`blocks.*.mlp`", "no axis `F`"] {
        assert!(said(&output).contains(part), "`{part}` is not in\n{}", said(&output));
    }
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

    let story = fine(new.types("the demo's story", "cargo xtask demo", &[]));
    assert!(story.split_whitespace().count() > 80, "{story}");

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

    let chapter = Chapter::of(&clone, "");
    fine(new.types("three networks of one's own", &chapter.script, &[("TMPDIR", folder.path())]));
    chapter.check(folder.path());
}
