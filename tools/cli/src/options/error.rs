//! Defines the errors of commands, and names the flags that can fix an error.

use std::io;
use std::path::PathBuf;

use console::CommandError;
#[cfg(feature = "iree")]
use console::usage;
use error_codes::{AnyCoded, Code, Coded};
#[cfg(feature = "iree")]
use instruments::{bench::BenchError, bisect::BisectError, tune::TuneError};
use tracewright::AdapterError;
use tracewright::errors::{LISTED, escaped};
use tracewright::export::xla::XlaError;
use tracewright::files::limits;
use tracewright::footprint::{Phase, TooLarge};
use tracewright::lower::LowerError;
use tracewright::models::{LoraError, LoraProblem};
#[cfg(feature = "iree")]
use tracewright::{
    ModelError,
    export::ExportError,
    generate::{GenerateError, Sampling},
    irpa::ArchiveError,
    pjrt::PjrtError,
    runtime::CompileError,
};

use super::limit::Limit;
#[cfg(feature = "iree")]
use super::sampler_flags::flag;

#[derive(Debug, thiserror::Error)]
#[cfg_attr(feature = "iree", allow(dead_code, reason = "only builds without a feature lack a command"))]
pub enum Error {
    /// The command needs the IREE runtime, but this binary was built without IREE.
    #[error(
        "`{command}` needs the IREE runtime, but this binary was built without the IREE runtime; \
         run `cargo xtask demo`, or run `cargo xtask setup` and then `cargo build --release --features iree`"
    )]
    WithoutIree { command: &'static str },
    /// The library returned an error, which already has an error code.
    #[error(transparent)]
    Library(AnyCoded),
    #[error("the command was interrupted")]
    Interrupted,
    /// Two variants of a network compute different values. `path` names the network fields that
    /// lead to the first node whose values differ.
    #[error("the two variants of the network compute different values; the first difference is at `{path}`")]
    Differs { path: String },
    /// The file that `verify` must check contains no hashes.
    #[error("`{}` contains no hashes, so `verify` cannot check the data", .path.display())]
    WithoutHashes { path: PathBuf },
    /// Tracewright cannot start a second Tracewright process, which would render the chat template.
    #[error("the system cannot start a process that renders the chat template")]
    Program(#[source] io::Error),
    /// An error of a second Tracewright process, with the causes of the error.
    #[error("{what}")]
    Said { code: Code, what: String, help: Vec<String> },
    /// Some checks of the Tracewright installation failed.
    #[error("{missing} of {looked_at} checks failed")]
    Missing { missing: usize, looked_at: usize },
    /// The file with messages does not contain a JSON list of messages.
    #[error("`{}` is not a JSON list of messages", .path.display())]
    Messages { path: PathBuf, source: serde_json::Error },
    /// The file for `--tools` or `--documents` does not contain a JSON list.
    #[error("`{}` is not a JSON list of {what}", .path.display())]
    NoList { path: PathBuf, what: &'static str, source: serde_json::Error },
    /// A tool or a document in a file does not have the expected structure.
    #[error("{place} in `{}` is {found}, expected {expected}", .path.display())]
    Entry {
        path: PathBuf,
        what: &'static str,
        /// The number of the invalid tool or document in the file's list, and the invalid key of
        /// this tool or document.
        place: String,
        found: String,
        expected: &'static str,
    },
    /// The chat template does not read the variable `name`. `variables` lists the variables that
    /// the template reads.
    #[error("`{}` has no effect: the chat template does not use `{name}`", option(.name))]
    Unread { name: String, variables: Vec<String> },
    /// The program cannot read the user's input from the terminal.
    #[error("Tracewright cannot read from the terminal")]
    Typed(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The chat template exceeded a limit on time or memory.
    #[error(
        "the chat template was stopped, because the template runs longer than {} s, needs more than {} MiB of memory, \
         writes more than {} MiB or nests too deep",
        limits::TEMPLATE_SECONDS, limits::TEMPLATE_MEMORY >> 20, limits::PROMPT >> 20
    )]
    Template,
    /// The operating system cannot start a thread that the command needs.
    #[error("the system cannot start a thread")]
    Thread(#[source] io::Error),
    /// An input, such as `the prompt`, has more tokens than the network can process.
    #[error("{what} has {found} tokens, expected at most {limit}")]
    TooLong { what: String, found: usize, limit: Limit },
    /// The schema or grammar in a file is invalid or not supported.
    #[error("the model cannot write an answer that follows the schema or grammar `{}`", .path.display())]
    Followed { path: PathBuf, source: AnyCoded },
    #[error("cannot write `{}`", .path.display())]
    Logits { path: PathBuf, source: safetensors::SafeTensorError },
}

impl<E: Coded + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        let error = AnyCoded::new(error);
        #[cfg(feature = "iree")]
        let error = match error.downcast() {
            Ok(error) => return in_options(*error),
            Err(other) => other,
        };
        Self::Library(error)
    }
}

/// Converts an error of the library to an error of the command line. The converted error names
/// command-line options instead of fields of the library's option structs.
#[cfg(feature = "iree")]
fn in_options(error: ModelError) -> Error {
    let usage = |what: String| Error::Library(AnyCoded::new(usage(what)));
    match error {
        ModelError::Program(error) => Error::Program(error),
        ModelError::Thread(error) => Error::Thread(error),
        ModelError::Template { code, message, help } => match code.parse() {
            Ok(code) => Error::Said { code, what: message, help },
            Err(_) => Error::Template,
        },
        ModelError::UnreadVariable { name, variables } => Error::Unread { name, variables },
        ModelError::TemplateLimit => Error::Template,
        ModelError::AsExported { option: "device", asked, exported } => {
            let kind = asked.split(':').next().unwrap_or_default();
            usage(format!(
                "`--device` is {asked}, but the model was exported for {exported}; leave the option out, or export the model again with \
                 `--target {kind}`"
            ))
        }
        ModelError::AsExported { option, asked, exported } => usage(format!(
            "`--{option}` is {asked}, but the model was exported with {exported}; leave the option out, or export the model again"
        )),
        ModelError::Compiled { option } => usage(format!(
            "`--{option}` changes the compilation, but an export is already compiled; leave the option out, or export the model again with this option"
        )),
        ModelError::NoCache => {
            usage("the system has no home folder for the cache; select a folder with `--cache`".to_owned())
        }
        error => Error::Library(AnyCoded::new(error)),
    }
}

impl CommandError for Error {
    fn code(&self) -> Code {
        match self {
            Self::WithoutIree { .. } => Code::TW0002,
            Self::Library(error) | Self::Followed { source: error, .. } => error.code(),
            Self::Said { code, .. } => *code,
            Self::Interrupted => Code::TW0005,
            Self::Differs { .. } => Code::TW1001,
            Self::WithoutHashes { .. } => Code::TW0304,
            Self::Program(_) | Self::Thread(_) => Code::TW0004,
            Self::Messages { .. } => Code::TW0810,
            Self::NoList { .. } | Self::Entry { .. } => Code::TW0820,
            Self::Unread { .. } => Code::TW0821,
            Self::Missing { .. } => Code::TW1005,
            Self::Typed(_) | Self::Logits { .. } => Code::TW0006,
            Self::Template => Code::TW0809,
            Self::TooLong { .. } => Code::TW0816,
        }
    }

    fn help(&self) -> Vec<String> {
        let help = match self {
            Self::Library(error) => return library_help(error),
            Self::Said { help, .. } => return help.clone(),
            Self::NoList { what, .. } | Self::Entry { what, .. } => match *what {
                "tools" => {
                    r#"a tool is `{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}`"#
                }
                _ => r#"a document is an object, such as `{"title": …, "text": …}`"#,
            },
            Self::Unread { name, variables } => return unread(name, variables),
            Self::WithoutHashes { .. } => "`bake` without `--no-metadata` writes the hashes into the archive",
            Self::TooLong { limit, .. } => {
                return vec![limit.raised().unwrap_or_else(|| "shorten the text".into())];
            }
            _ => return Vec::new(),
        };
        vec![help.to_owned()]
    }

    fn library(&self) -> Option<&AnyCoded> {
        match self {
            Self::Library(error) => Some(error),
            _ => None,
        }
    }

    fn is_interruption(&self) -> bool {
        match self {
            Self::Interrupted => true,
            #[cfg(feature = "iree")]
            Self::Library(error) => {
                matches!(error.find(), Some(BenchError::Stopped))
                    || matches!(error.find(), Some(BisectError::Stopped))
                    || matches!(error.find(), Some(TuneError::Stopped))
            }
            _ => false,
        }
    }
}

/// Compares an error with several patterns, and returns the help text of the first pattern that matches.
macro_rules! helps {
    ($error:ident: $($pattern:pat => $help:literal;)+) => {
        $(if matches!($error.find(), Some($pattern)) {
            return vec![$help.to_owned()];
        })+
    };
}

/// Returns help texts that name the command-line options that can fix an error.
pub fn library_help(error: &AnyCoded) -> Vec<String> {
    if let Some(error) = error.find() {
        return smaller(error);
    }
    helps! { error:
        AdapterError::Weight { .. } => "`--lora PATH` adds the adapter to the weights, for all requests";
        AdapterError::Unchanged { .. } | AdapterError::Rank { .. } => "`--max-lora-rank RANK` sets the largest rank of adapters, for all linear layers";
        LowerError::NumericsWithoutKernels(_) => "leave out `--kernels off`; on a processor without kernels, leave out `--numerics`";
        XlaError::Shard(_) => "`--shard AXES=MESH_AXIS` divides tensor axes along an axis of the mesh, `--shard AXES=none` does not divide the tensor axes";
    }
    if let Some(LoraError::Tensors { problems, .. }) = error.find()
        && problems.iter().any(|problem| matches!(problem, LoraProblem::Merged { .. }))
    {
        return vec!["`--lora PATH` adds the adapter to the weights, for all requests".to_owned()];
    }
    #[cfg(feature = "iree")]
    helps! { error:
        BenchError::Chunks { .. } => "`--tokens N` sets the length of the prompt, `--chunk N` sets the size of a chunk";
        BenchError::NotWatched => "leave out `--device`";
        BenchError::Depth { .. } => "`--depth N` sets the depth, `--context N` sets the context, up to the model's own limit";
        ExportError::Architecture { .. } | ExportError::Cpu { .. } => "run `export` on this machine, or on another machine with `--target` for this machine";
        ModelError::AdapterRoom { .. } => "`--max-loras N` sets the number of adapters";
        ModelError::Cached(ArchiveError::Content { .. }) => "remove the damaged file: the next run writes the file again";
        CompileError::NotFound { .. } => "`--iree-compile PATH` sets the path of the compiler; `cargo xtask setup` installs the compiler into the checkout, in `.tracewright/venv/bin`";
        CompileError::TimedOut { .. } => "`--compile-timeout SECONDS` sets the time limit of the compiler";
        PjrtError::Library { .. } | PjrtError::Cut { .. } | PjrtError::NoApi { .. } | PjrtError::Version { .. } | PjrtError::Missing { .. } => "`--plugin PATH` selects another plugin; `tracewright devices` lists the plugins in Python packages";
        PjrtError::OutOfMemory { .. } => "`--context N`, `--chunk N` and `--dtype bf16` reduce the memory of the network; `tracewright plan` reports this memory";
        PjrtError::FewDevices { .. } => "`tracewright devices` lists the devices; choose a `--mesh` with fewer devices";
        PjrtError::NoPlugin { .. } => "`--plugin PATH` selects a plugin; `cargo xtask setup --xla` installs the plugin for the CPU into the checkout, and prints its path";
    }
    #[cfg(feature = "iree")]
    if let Some(GenerateError::Setting { name, .. }) = error.find() {
        let setting = Sampling::settings().find(|setting| setting.name == *name);
        return setting
            .map(|setting| format!("`--{}` sets this option", flag(setting)))
            .into_iter()
            .collect();
    }
    console::help(error)
}

/// Returns the command-line option that sets the variable `name` of the chat template.
fn option(name: &str) -> String {
    match name {
        "tools" | "documents" => format!("--{name}"),
        "enable_thinking" => "--thinking".to_owned(),
        name => format!("--template-var {name}"),
    }
}

/// Explains how to fix the error that the chat template does not read the variable `name`.
fn unread(name: &str, variables: &[String]) -> Vec<String> {
    let others =
        variables.iter().filter(|name| !matches!(name.as_str(), "messages" | "add_generation_prompt"));
    let others: Vec<_> = others.take(LISTED).map(|name| format!("`{}`", escaped(name))).collect();
    let leave_out = format!("leave out `{}`", option(name));
    if others.is_empty() {
        vec![leave_out]
    } else {
        vec![leave_out, format!("the template uses {}", others.join(", "))]
    }
}

/// Names the flags that reduce the memory that a network needs.
fn smaller(error: &TooLarge) -> Vec<String> {
    match error.state + error.activations > error.weights {
        true => vec!["`--context N` sets a shorter context, `--chunk N` sets a smaller chunk".to_owned()],
        false if error.what == Phase::Device => {
            vec!["a `--mesh` with more devices needs less memory on each device".to_owned()]
        }
        false => vec!["`--quant q8` or `--quant q4` stores weights in fewer bits".to_owned()],
    }
}
