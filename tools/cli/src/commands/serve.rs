//! `tracewright serve` answers requests over HTTP, with the interfaces of OpenAI, Anthropic and Ollama.

#[cfg(feature = "iree")]
mod config;
#[cfg(feature = "iree")]
mod run;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use tracewright::NamedAdapter;

use crate::arguments::{RunArguments, batch};
use crate::sampling::SamplingArguments;

#[derive(Args, Clone)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file, export, or name of a model on the Hugging Face hub.
    /// The server loads the first model when the server starts, and each other model when a request
    /// names the model. `NAME=` before a model sets the name that requests use
    #[arg(required_unless_present = "config", value_name = "[NAME=]MODEL")]
    pub models: Vec<NamedModel>,
    /// TOML file with a table `[[model]]` for each model, in place of MODEL; the keys are `path`, `name`, `aliases` and
    /// flags without `--`. SIGHUP makes the server read the file again
    #[arg(long, value_name = "FILE", conflicts_with = "models")]
    pub config: Option<PathBuf>,
    /// Address to listen on; 0.0.0.0 selects all addresses of this machine
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 selects any free port
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Number of answers that each model generates in parallel; further requests wait
    #[arg(long, visible_alias = "parallel", value_name = "N", value_parser = batch, default_value = "4")]
    pub slots: NonZeroUsize,
    /// Serve a LoRA adapter of the model, a folder that PEFT wrote or a GGUF file, under a name of its own; may be
    /// repeated
    #[arg(long, value_name = "NAME=PATH")]
    pub lora_adapter: Vec<NamedAdapter>,
    /// Number of adapters that the model can have at a time [default: those of --lora-adapter]
    #[arg(long, value_name = "N")]
    pub max_loras: Option<NonZeroUsize>,
    /// Largest rank of adapters for all linear layers [default: that of --lora-adapter, or 16]
    #[arg(long, value_name = "RANK")]
    pub max_lora_rank: Option<NonZeroUsize>,
    /// File with one API key on each line; the server rejects requests without one of these keys
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Allow web pages of this origin to use the server, such as `http://localhost:5173`, or `*`
    /// for all origins; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Accept requests to this host name, such as the name that a proxy in front of the server keeps, or `*` for all
    /// names; may be repeated
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Time in seconds without requests after which the server unloads a model; the next request loads it again
    #[arg(long, value_name = "SECONDS")]
    pub keep_alive: Option<u32>,
    /// Most memory that all loaded models may need together, such as `8GB`; before a model is loaded, the server unloads
    /// those that are idle for the longest time
    #[arg(long, value_name = "BYTES")]
    pub memory_limit: Option<ByteCount>,
    /// Time in seconds that running answers have after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u32,
    /// Let answers have keys that a JSON schema does not declare, unless the schema or `strict` forbids them
    #[arg(long)]
    pub open_objects: bool,
    /// Maximum size of the body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_body: u32,
    /// Render each chat template in a separate process, for models that you do not trust
    #[arg(long)]
    pub isolate_templates: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub run: RunArguments,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedModel {
    name: Option<String>,
    path: PathBuf,
}

impl FromStr for NamedModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
        match named {
            Some(("", _)) => Err("expected a name in front of `=`".into()),
            Some((_, "")) => Err("expected a model behind `=`".into()),
            Some((name, path)) => Ok(Self { name: Some(name.into()), path: path.into() }),
            None => Ok(Self { name: None, path: text.into() }),
        }
    }
}

/// A number of bytes, such as `4GB`, `4GiB` or `4000000000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteCount(pub u64);

impl FromStr for ByteCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const UNITS: [(&str, u32, u32); 10] = [
            ("KIB", 2, 10),
            ("MIB", 2, 20),
            ("GIB", 2, 30),
            ("TIB", 2, 40),
            ("KB", 10, 3),
            ("MB", 10, 6),
            ("GB", 10, 9),
            ("TB", 10, 12),
            ("B", 10, 0),
            ("", 10, 0),
        ];
        let upper = text.trim().to_ascii_uppercase();
        let of_unit = |(unit, base, exponent): (&str, u32, u32)| {
            let number: f64 = upper.strip_suffix(unit)?.trim_end().parse().ok()?;
            let bytes = number * f64::from(base).powi(exponent.try_into().ok()?);
            (1.0..u64::MAX as f64).contains(&bytes).then_some(Self(bytes as u64))
        };
        let refuse = || "expected a number of bytes, such as 8GB, 512MiB or 8000000000".to_owned();
        UNITS.into_iter().find_map(of_unit).ok_or_else(refuse)
    }
}
