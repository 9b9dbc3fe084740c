//! The command line: generate text, make vectors of texts, export a model, bake a checkpoint, make random weights, show a trace.
//!
//! Which networks there are is said by who calls it. A network of your own gets a command line by a `main` that reads
//! its configuration:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     tracewright_cli::main(tracewright::models::read)
//! }
//! ```
//!
//! Everything else is a library: `tracewright` itself knows no flag, prints nothing and reads no environment.

/// Says something on stderr, as `eprintln` does. That nobody can hear it ends nothing, and no name in a file that is
/// talked about moves the terminal.
macro_rules! say {
    ($($words:tt)*) => { $crate::say(&format!($($words)*)) };
}

mod arguments;
mod bake;
#[cfg(feature = "iree")]
mod bench;
#[cfg(feature = "iree")]
mod bisect;
#[cfg(test)]
#[path = "../tests/blocks.rs"]
mod blocks;
#[cfg(feature = "iree")]
mod build;
#[cfg(feature = "iree")]
mod chat;
mod commands;
#[cfg(feature = "iree")]
mod device;
mod diff;
#[cfg(feature = "iree")]
mod doctor;
mod dump;
#[cfg(feature = "iree")]
mod embed;
mod error;
mod explain;
#[cfg(feature = "iree")]
mod export;
#[cfg(feature = "iree")]
mod extras;
#[cfg(feature = "iree")]
mod generate;
#[cfg(feature = "iree")]
mod limit;
mod lint;
#[cfg(feature = "iree")]
mod load;
mod manual;
#[cfg(feature = "iree")]
mod measure;
mod model_path;
mod ops;
pub mod output;
mod plan;
mod progress;
#[cfg(feature = "iree")]
mod prompt;
mod random;
mod sampling;
mod share;
mod source;
mod stats;
#[cfg(feature = "iree")]
mod tune;
mod verify;
mod xla;

use std::io::{ErrorKind, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "iree")]
use std::sync::mpsc::{self, RecvTimeoutError};
#[cfg(feature = "iree")]
use std::thread;
#[cfg(feature = "iree")]
use std::time::Duration;

use arguments::{Arguments, Command, Engine};
use clap::CommandFactory as _;
use error::Error;
use tracewright::errors::escaped;
use tracewright::irpa::{ArchiveError, Checkpoint, Gguf};
use tracewright::models::config::ConfigError;
use tracewright::models::presets::Preset;
use tracewright::models::{Architecture, ReadModel, UntiedHead, check_sizes};

/// The name of threads on which panics are caught and become errors.
const CAUGHT: &str = "text";

/// The command line `tracewright` for the networks that `read` knows.
pub fn main(read: ReadModel) -> ExitCode {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(CAUGHT) && !catches_panics() {
            usual(panic);
        }
    }));
    let arguments: Arguments = error::parsed(arguments::command());
    if let Some(filter) = &arguments.log {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .init();
    }
    let interrupt = Interrupt::default();
    interrupt.listen();
    error::exit(run(arguments.command, read, &interrupt), &interrupt)
}

#[cfg(feature = "iree")]
use tracewright::generate::catches_panics;

#[cfg(not(feature = "iree"))]
fn catches_panics() -> bool {
    false
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", escaped(text));
}

/// The model in a folder and its checkpoint. What is wrong with the configuration is said first; but weights in another
/// format rarely have one. Sizes of other weights are refused before a network of them is recorded.
fn open(
    read: ReadModel,
    folder: &Path,
    allowed_keys: &[String],
) -> Result<(Box<dyn Architecture>, Checkpoint), Error> {
    match read(folder, allowed_keys) {
        Err(ConfigError::File(missing)) if missing.source.kind() == ErrorKind::NotFound => {
            Checkpoint::open(folder)?;
            Err(missing.into())
        }
        model => {
            let (mut model, checkpoint) = (model?, open_checkpoint(folder)?);
            warn_of_head(fit(&mut *model, checkpoint.clone())?);
            Ok((model, checkpoint))
        }
    }
}

/// A checkpoint; says so where there is another one in its folder.
fn open_checkpoint(path: &Path) -> Result<Checkpoint, ArchiveError> {
    let checkpoint = Checkpoint::open(path)?;
    tell_passed_over(&checkpoint);
    Ok(checkpoint)
}

fn tell_passed_over(checkpoint: &Checkpoint) {
    if let Some(other) = checkpoint.passed_over() {
        say!("warning: {other}");
    }
}

/// The network that is meant, of which no weight is needed. A folder or a file of a preset's name comes before it.
fn network(read: ReadModel, model: &Path, allowed_keys: &[String]) -> Result<Box<dyn Architecture>, Error> {
    if let Some(preset) = preset(model) {
        return Ok(Box::new(preset.read()?));
    }
    read(model, allowed_keys).map_err(|error| match error {
        ConfigError::File(missing) if missing.source.kind() == ErrorKind::NotFound => Error::NoModel(missing),
        error => error.into(),
    })
}

/// Fits a network to the weights beside its configuration, where there are some.
fn fit_weights(network: &mut dyn Architecture, model: &Path) -> Result<Option<UntiedHead>, Error> {
    if !model.is_dir() && !Gguf::is_at(model) {
        return Ok(None);
    }
    match open_checkpoint(model) {
        Ok(checkpoint) => fit(network, checkpoint),
        Err(ArchiveError::NoCheckpoint { .. }) => Ok(None),
        // A configuration alone is enough, whatever is beside it.
        Err(ArchiveError::Foreign { path, .. }) if path == model => Ok(None),
        Err(damaged) => Err(damaged.into()),
    }
}

/// Compares the sizes of a network with those of a checkpoint, and takes the checkpoint's head where it has one of its own.
fn fit(network: &mut dyn Architecture, checkpoint: Checkpoint) -> Result<Option<UntiedHead>, Error> {
    let named = network.named(checkpoint);
    check_sizes(&network.sizes(), &named)?;
    Ok(network.settle_head(&named))
}

/// Warns of a head that is not the embedding.
fn warn_of_head(untied: Option<UntiedHead>) {
    if let Some(untied) = untied {
        say!("warning: {untied}");
        say!("  help: set `tie_word_embeddings` to false in the configuration, or remove `lm_head.weight`");
    }
}

/// The published size that is meant, if that is what is named.
fn preset(model: &Path) -> Option<&'static Preset> {
    if model.exists() { None } else { model.to_str().and_then(Preset::named) }
}

fn run(mut command: Command, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    model_path::resolve(&mut command)?;
    match command {
        #[cfg(feature = "iree")]
        Command::Generate(arguments) => generate::run(arguments, read, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Generate(_) => Err(Error::WithoutIree { command: "generate" }),
        #[cfg(feature = "iree")]
        Command::Chat(arguments) => chat::run(&arguments, read, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Chat(_) => Err(Error::WithoutIree { command: "chat" }),
        #[cfg(feature = "iree")]
        Command::Prompt(arguments) => prompt::run(&arguments),
        #[cfg(not(feature = "iree"))]
        Command::Prompt(_) => Err(Error::WithoutIree { command: "prompt" }),
        #[cfg(feature = "iree")]
        Command::Embed(arguments) => embed::run(&arguments, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Embed(_) => Err(Error::WithoutIree { command: "embed" }),
        Command::Export(arguments) if arguments.engine == Engine::Xla => {
            xla::run(&arguments, read, interrupt)
        }
        #[cfg(feature = "iree")]
        Command::Export(arguments) => export::run(arguments, read, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Export(_) => Err(Error::WithoutIree { command: "export" }),
        Command::Bake(arguments) => bake::run(arguments, read, interrupt),
        Command::Verify(arguments) => verify::run(&arguments, interrupt),
        #[cfg(feature = "iree")]
        Command::Bisect(arguments) => bisect::run(&arguments, read, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Bisect(_) => Err(Error::WithoutIree { command: "bisect" }),
        #[cfg(feature = "iree")]
        Command::Bench(command) => bench::run(&command, read, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Bench(_) => Err(Error::WithoutIree { command: "bench" }),
        #[cfg(feature = "iree")]
        Command::Tune(arguments) => tune::run(&arguments, read, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Tune(_) => Err(Error::WithoutIree { command: "tune" }),
        Command::Plan(arguments) => plan::run(&arguments, read),
        Command::Random(arguments) => random::run(arguments, read, interrupt),
        #[cfg(feature = "iree")]
        Command::Doctor(arguments) => doctor::run(&arguments, interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Doctor(_) => Err(Error::WithoutIree { command: "doctor" }),
        #[cfg(feature = "iree")]
        Command::Devices { json } => device::run(json),
        #[cfg(not(feature = "iree"))]
        Command::Devices { .. } => Err(Error::WithoutIree { command: "devices" }),
        Command::Explain { code, json } => explain::run(code.as_deref(), json),
        Command::Completions { shell } => manual::completions(shell),
        Command::Man { out } => manual::pages(&out),
    }
}

/// The command line `trace-dump` for the networks that `read` knows.
pub fn trace_dump(read: ReadModel) -> ExitCode {
    error::exit(dump::run(&error::parsed(dump::Arguments::command()), read), &Interrupt::default())
}

/// Set by Ctrl-C: whatever takes long looks at it.
#[derive(Clone, Default)]
struct Interrupt {
    asked: Arc<AtomicBool>,
    /// Nothing is being done that could stop by itself.
    idle: Arc<AtomicBool>,
}

impl Interrupt {
    /// The first Ctrl-C asks to stop; the second ends the process at once.
    fn listen(&self) {
        let interrupt = self.clone();
        let handler = ctrlc::set_handler(move || {
            if interrupt.asked.swap(true, Ordering::SeqCst) || interrupt.idle.load(Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        if let Err(error) = handler {
            tracing::warn!("Ctrl-C is not handled: {error}");
        }
    }

    fn is_set(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// What was asked to stop has stopped, and something else goes on.
    #[cfg(feature = "iree")]
    fn clear(&self) {
        self.asked.store(false, Ordering::SeqCst);
    }

    /// Says whether somebody is waited for.
    #[cfg(feature = "iree")]
    fn wait(&self, idle: bool) {
        self.idle.store(idle, Ordering::SeqCst);
    }

    /// For whoever asks whether to go on.
    fn go_on(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// What `work` gives, unless Ctrl-C comes first: for what cannot be asked to stop, and what text that somebody else
    /// wrote may lead deep. It has a thread of its own, with room.
    #[cfg(feature = "iree")]
    fn or<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        const ROOM: usize = 256 << 20;
        const LOOK: Duration = Duration::from_millis(50);
        let (send, receive) = mpsc::channel();
        let work = move || drop(send.send(work()));
        let worker =
            thread::Builder::new().name(CAUGHT.into()).stack_size(ROOM).spawn(work).map_err(Error::Thread)?;
        loop {
            match receive.recv_timeout(LOOK) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) => self.check()?,
                Err(RecvTimeoutError::Disconnected) => match worker.join() {
                    // One that nobody caught, and of which nothing was said.
                    Err(panic) => match panic.downcast::<String>() {
                        Ok(words) => panic!("{words}"),
                        Err(panic) => panic!("{}", panic.downcast_ref::<&str>().unwrap_or(&"on a thread")),
                    },
                    Ok(()) => unreachable!("it sends before it ends"),
                },
            }
        }
    }

    /// For what stops by an error.
    #[cfg(feature = "iree")]
    fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use clap::Parser as _;
    use error_codes::{Code, Coded as _};
    use tracewright::EntryPoint;
    use tracewright::bake::Ignorable;
    use tracewright::dsl::{TraceError, Traced};
    use tracewright::models::{DeclaredSize, ModelConfig};
    use tracewright::ops::ElementType;

    use super::*;

    /// How often models were recorded; whoever counts holds the lock.
    static TRACED: AtomicUsize = AtomicUsize::new(0);
    static COUNTING: Mutex<()> = Mutex::new(());

    /// A model that knows how often it was recorded.
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

        fn ignorable(&self) -> Vec<Ignorable> {
            self.0.ignorable()
        }

        fn sizes(&self) -> Vec<DeclaredSize> {
            self.0.sizes()
        }
    }

    fn read(model: &Path, allowed: &[String]) -> Result<Box<dyn Architecture>, ConfigError> {
        Ok(Box::new(Counted(ModelConfig::read(model, allowed)?)))
    }

    /// How often a command records its model.
    fn recorded(words: &[&str]) -> usize {
        let _counting = COUNTING.lock().unwrap();
        TRACED.store(0, Ordering::SeqCst);
        let arguments = Arguments::try_parse_from([&["tracewright"], words].concat()).unwrap();
        run(arguments.command, read, &Interrupt::default()).unwrap();
        TRACED.load(Ordering::SeqCst)
    }

    /// What a few words of a `config.json` turn into a network that takes long to record, beside a small checkpoint.
    #[test]
    fn sizes_that_the_weights_do_not_have_are_refused_before_recording() {
        let _counting = COUNTING.lock().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/llama-untied");
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
                let error = run(arguments.command, read, &Interrupt::default()).unwrap_err();
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

    /// The words of a command in an example, up to the next one.
    fn words(line: &str) -> Vec<&str> {
        let command = line.split([';', '&', '>', '|']).next().unwrap_or_default();
        command.split_whitespace().map(|word| word.trim_matches('"')).collect()
    }

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
                        dump::Arguments::try_parse_from(words).map(drop)
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

    /// Each command that a document tells to type is one, whatever it takes to run it; `cargo xtask` reads its own.
    #[test]
    fn commands_of_documents_are_commands() {
        const OTHERS: [&str; 9] =
            ["cd", "cp", "mkdir", "export", "pip", "python", "python3", "iree-run-module", "benches/gpu/run"];
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
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
                        dump::Arguments::try_parse_from([&["trace-dump"], rest].concat()).map(drop)
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
                            "trace-dump" => dump::Arguments::try_parse_from(inner).map(drop),
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
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
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
