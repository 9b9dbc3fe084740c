//! The command line `tracewright`: generate text, compute embeddings, export models, and more.
//!
//! The caller of [`main`] decides which networks the command line supports. To get a command line
//! for your own network, call [`main`] with a function that reads the network's configuration:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     tracewright_cli::main(tracewright::models::read)
//! }
//! ```
//!
//! The library crate `tracewright` has no flags, prints nothing and reads no environment variables.
#![cfg_attr(
    not(feature = "iree"),
    allow(dead_code, reason = "without IREE, the commands that use it are missing")
)]

#[macro_use]
extern crate console;

/// Runs an expression if this binary contains IREE; otherwise, returns an error.
macro_rules! with_iree {
    ($command:expr, $run:expr) => {{
        #[cfg(feature = "iree")]
        {
            $run
        }
        #[cfg(not(feature = "iree"))]
        {
            Err($crate::error::Error::WithoutIree { command: $command })
        }
    }};
}

#[cfg(test)]
#[path = "../tests/blocks.rs"]
mod blocks;
mod commands;
#[cfg(feature = "iree")]
mod limited;
mod options;

use std::ffi::OsString;
use std::process::ExitCode;

use commands::Arguments;
pub use inspect::main as trace_dump;
pub use options::error::library_help as help;
use options::interrupt::{CAUGHT, Interrupt};
use options::{arguments, checkpoint, error, interrupt, progress, sampling};
#[cfg(feature = "iree")]
use options::{build, extras, limit, load, plugins};
use tracewright::models::ReadModel;

/// The inputs that every command gets in addition to its command-line arguments.
#[derive(Clone)]
struct Invocation {
    read: ReadModel,
    interrupt: Interrupt,
    /// The words of the command that runs Tracewright's command line in another process. The list
    /// is empty if the other process runs the current program.
    #[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "commands that run networks use it"))]
    again: Vec<OsString>,
}

/// Runs the command line `tracewright`, which supports the networks that `read` can read.
pub fn main(read: ReadModel) -> ExitCode {
    run(read, std::env::args_os(), Vec::new()).into()
}

/// Runs [`main`] with a command line, program name first, and returns the exit code.
///
/// Some commands run the command line again in another process. `again` is the command that starts it, for
/// example in a Python interpreter; if empty, it is the current program.
pub fn run(read: ReadModel, words: impl IntoIterator<Item = OsString>, again: Vec<OsString>) -> u8 {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(CAUGHT) && !catches_panics() {
            usual(panic);
        }
    }));
    let arguments: Arguments = console::parsed(commands::command(), words);
    // A server runs unattended, so its warnings must leave a trace.
    let usual = matches!(arguments.command, commands::Command::Serve(_)).then_some("warn");
    if let Some(filter) = arguments.log.as_deref().or(usual) {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .init();
    }
    let invocation = Invocation { read, interrupt: Interrupt::default(), again };
    invocation.interrupt.listen();
    let result = arguments.command.run(&invocation);
    console::exit(result, invocation.interrupt.exit_code())
}

#[cfg(feature = "iree")]
use tracewright::generate::catches_panics;

#[cfg(not(feature = "iree"))]
fn catches_panics() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use clap::Parser as _;
    use console::CommandError as _;
    use error_codes::Code;
    use options::error::Error;
    use tracewright::EntryPoint;
    use tracewright::dsl::{TraceError, Traced};
    use tracewright::irpa::ModelFiles;
    #[cfg(feature = "iree")]
    use tracewright::irpa::counts;
    use tracewright::models::config::ConfigError;
    use tracewright::models::{Architecture, DeclaredSize, ModelConfig, MtpError, Opened};
    use tracewright::ops::ElementType;

    use super::*;

    /// Recorded traces; a test that reads it locks `COUNTING`.
    static TRACED: AtomicUsize = AtomicUsize::new(0);
    static COUNTING: Mutex<()> = Mutex::new(());

    /// A model that counts how often Tracewright records the model's trace.
    struct Counted(ModelConfig);

    impl Architecture for Counted {
        fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
            TRACED.fetch_add(1, Ordering::SeqCst);
            self.0.trace(element, entry_points)
        }

        fn max_context(&self) -> usize {
            self.0.max_context()
        }

        fn vocabulary(&self) -> usize {
            self.0.vocabulary()
        }

        fn element(&self) -> Option<ElementType> {
            None
        }

        fn check_mtp(&self) -> Result<(), MtpError> {
            self.0.check_mtp()
        }

        fn sizes(&self) -> Vec<DeclaredSize> {
            self.0.sizes()
        }
    }

    fn read(model: ModelFiles, allowed: &[String]) -> Result<Opened, ConfigError> {
        let config = ModelConfig::read(model.path(), allowed)?;
        Ok(Opened { ignorable: config.ignorable(), ..Opened::text(Counted(config)) })
    }

    fn invocation() -> Invocation {
        Invocation { read, interrupt: Interrupt::default(), again: Vec::new() }
    }

    /// Runs a command, and returns how often the command records the trace of its model.
    fn recorded(words: &[&str]) -> usize {
        let _counting = COUNTING.lock().unwrap();
        TRACED.store(0, Ordering::SeqCst);
        let arguments = Arguments::try_parse_from([&["tracewright"], words].concat()).unwrap();
        arguments.command.run(&invocation()).unwrap();
        TRACED.load(Ordering::SeqCst)
    }

    /// A small checkpoint can declare a huge network, which would take long to record.
    #[test]
    fn sizes_that_the_weights_do_not_have_are_refused_before_recording() {
        let _counting = COUNTING.lock().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama-untied");
        let folder = tempfile::tempdir().unwrap();
        let weights = "model.safetensors";
        std::fs::copy(fixture.join(weights), folder.path().join(weights)).unwrap();
        let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
        let model = folder.path().to_str().unwrap();
        let commands: &[&[&str]] = &[
            &["bake", model, "-o", "never.irpa"],
            &["plan", model],
            #[cfg(feature = "iree")]
            &["export", model, "-o", "never"],
            #[cfg(feature = "iree")]
            &["generate", model, "--tokens", "5,17"],
        ];
        for (key, value) in [
            ("num_hidden_layers", "4096"),
            ("vocab_size", "16777216"),
            ("hidden_size", "16777208"),
            ("intermediate_size", "16777216"),
            ("head_dim", "4096"),
        ] {
            let mut config: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&config).unwrap();
            config.insert(key.into(), serde_json::from_str(value).unwrap());
            let config = serde_json::Value::from(config).to_string();
            std::fs::write(folder.path().join("config.json"), config).unwrap();
            for words in commands {
                TRACED.store(0, Ordering::SeqCst);
                let arguments = Arguments::try_parse_from([&["tracewright"], *words].concat()).unwrap();
                let error = arguments.command.run(&invocation()).unwrap_err();
                assert_eq!(
                    (error.code(), TRACED.load(Ordering::SeqCst)),
                    (Code::TW0211, 0),
                    "{words:?} {key}: {error}"
                );
                let said = error.to_string();
                assert!(said.contains(key) && said.contains("the checkpoint has"), "{said}");
            }
        }
    }

    #[cfg(feature = "iree")]
    #[test]
    fn a_gguf_file_is_parsed_once_and_its_tensors_are_renamed_once() {
        let _counting = COUNTING.lock().unwrap();
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let [tokens, model] = ["tokens-spm.gguf", "llama.gguf"]
            .map(|name| checkout.join("tests/fixtures/gguf").join(name).display().to_string());
        let folder = tempfile::tempdir().unwrap();
        let [archive, rounded, export, cache] = ["a.irpa", "rounded", "export", "cache"]
            .map(|name| folder.path().join(name).display().to_string());
        let mut commands = vec![
            (0, vec!["tokenize", &tokens, "a"]),
            (1, vec!["plan", &model]),
            (1, vec!["bench", "trace", &model, "--quant", "none,q8", "--rounds", "1"]),
            (1, vec!["bake", &model, "-o", &archive]),
            (1, vec!["quantize", &model, "-o", &rounded]),
        ];
        let folders = ["bin", "Scripts"].map(|folder| checkout.join(".tracewright/venv").join(folder));
        let compiler = tracewright::runtime::Compiler::find(None, &folders).unwrap();
        let compiler = compiler.path.display().to_string();
        for mut words in [
            vec!["generate", &model, "--tokens", "5,17", "-n", "2"],
            vec!["export", &model, "-o", &export, "--context", "40"],
        ] {
            words.extend(["--iree-compile", &compiler, "--cache", &cache]);
            commands.push((1, words));
        }
        for (renamings, words) in commands {
            let read = |counter: &AtomicUsize| counter.swap(0, Ordering::SeqCst);
            _ = (read(&counts::GGUF_PARSES), read(&counts::GGUF_RENAMINGS));
            let arguments = Arguments::try_parse_from([&["tracewright"], &words[..]].concat()).unwrap();
            let invocation = Invocation { read: tracewright::models::read, ..invocation() };
            arguments.command.run(&invocation).unwrap();
            let found = (read(&counts::GGUF_PARSES), read(&counts::GGUF_RENAMINGS));
            assert_eq!(found, (1, renamings), "{words:?}");
        }
    }

    #[test]
    fn a_command_that_the_binary_lacks_ends_with_code_2() {
        let lacking = Error::WithoutIree { command: "generate" };
        assert_eq!((lacking.code(), console::exit(Err(lacking), None)), (Code::TW0002, 2));
    }

    /// Splits the first shell command on a line of an example into words.
    #[cfg(feature = "iree")]
    fn words(line: &str) -> Vec<&str> {
        let command = line.split([';', '&', '>', '|']).next().unwrap_or_default();
        command.split_whitespace().map(|word| word.trim_matches('"')).collect()
    }

    /// Without IREE, the flags of the sampler are missing.
    #[cfg(feature = "iree")]
    #[test]
    fn examples_of_explanations_are_commands() {
        let mut count = 0;
        for &code in Code::ALL {
            for line in code.explanation().lines().filter_map(|line| line.strip_prefix("    ")) {
                let parsed = match words(line) {
                    words if words.first() == Some(&"tracewright") => {
                        Arguments::try_parse_from(words).map(drop)
                    }
                    words if words.first() == Some(&"trace-dump") => {
                        inspect::command().try_get_matches_from(words).map(drop)
                    }
                    _ => continue,
                };
                count += 1;
                let is_usage = code == Code::TW0001;
                assert!(
                    parsed.is_ok() != is_usage,
                    "{code}: {line}: {:?}",
                    parsed.map_err(|e| e.to_string())
                );
            }
        }
        assert!(count > 30, "{count} commands");
    }

    /// Also commands that a test cannot run. `cargo xtask` is checked there.
    #[cfg(feature = "iree")]
    #[test]
    fn commands_of_documents_are_commands() {
        const OTHERS: [&str; 15] = [
            "cd",
            "cp",
            "curl",
            "docker",
            "echo",
            "git",
            "mkdir",
            "export",
            "ln",
            "pip",
            "printf",
            "python",
            "python3",
            "iree-run-module",
            "tests/benches/gpu/run",
        ];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut count = 0;
        for block in
            blocks::blocks(&root).iter().filter(|block| ["sh", blocks::FIGURE].contains(&&*block.kind))
        {
            for command in block.commands() {
                let words = blocks::words(command.split(['>', '|', '&']).next().unwrap());
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let parsed = match &words[..] {
                    ["tracewright" | "target/release/tracewright", rest @ ..] => {
                        Arguments::try_parse_from([&["tracewright"], rest].concat()).map(drop)
                    }
                    ["trace-dump", rest @ ..] => {
                        inspect::command().try_get_matches_from([&["trace-dump"], rest].concat()).map(drop)
                    }
                    ["cargo", "run", .., "tracewright" | "trace-dump", "--"] => {
                        panic!("{command} does nothing")
                    }
                    ["cargo", "run", rest @ ..] if rest.contains(&"--bin") => {
                        let at = rest.iter().position(|word| *word == "--bin").unwrap();
                        let inner: Vec<&str> =
                            rest[at + 1..].iter().copied().filter(|word| *word != "--").collect();
                        match inner[0] {
                            "tracewright" => Arguments::try_parse_from(inner).map(drop),
                            "trace-dump" => inspect::command().try_get_matches_from(inner).map(drop),
                            _ => continue, // The book's own programs.
                        }
                    }
                    ["cargo", ..] => continue,
                    [program, ..] if OTHERS.contains(program) => continue,
                    _ => panic!("{}:{}: whose command is `{command}`?", block.document, block.line),
                };
                count += 1;
                let said = parsed.map_err(|error| error.to_string());
                assert_eq!(said, Ok(()), "{}:{}: {command}", block.document, block.line);
            }
        }
        assert!(count > 60, "{count} commands");
    }

    #[test]
    fn a_model_is_recorded_once_for_each_command() {
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let model = checkout.join("tests/fixtures/gemma3-a");
        let folder = tempfile::tempdir().unwrap();
        let [random, archive] = ["random", "model.irpa"].map(|name| folder.path().join(name));
        let [model, random, archive] = [&model, &random, &archive].map(|path| path.to_str().unwrap());
        let small = ["--context", "40", "--chunk", "8"];
        assert_eq!(recorded(&["random", model, "-o", random]), 1);
        assert_eq!(recorded(&[&["bake", random, "-o", archive][..], &small].concat()), 1);
        #[cfg(feature = "iree")]
        {
            let folders = ["bin", "Scripts"].map(|folder| checkout.join(".tracewright/venv").join(folder));
            let compiler = tracewright::runtime::Compiler::find(None, &folders).unwrap();
            let [out, cache] = ["out", "cache"].map(|name| folder.path().join(name));
            let compile =
                ["--iree-compile", compiler.path.to_str().unwrap(), "--cache", cache.to_str().unwrap()];
            let rest = [small, compile].concat();
            assert_eq!(recorded(&[&["export", random, "-o", out.to_str().unwrap()][..], &rest].concat()), 1);
            let generate = ["generate", random, "--tokens", "5,17", "-n", "2"];
            assert_eq!(recorded(&[&generate[..], &rest].concat()), 1);
        }
    }
}
