//! What is said on the command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use jiff::SignedDuration;
use tracewright::files::limits;
use tracewright::lower::{Quantization, Weights};
use tracewright::models::Architecture;
use tracewright::ops::{ElementType, WeightFormat};
use tracewright::simplify::Rules;
use tracewright::targets::{DeviceName, Mesh, NamedMachine, ShardRule, Target};
use tracewright::trace::KvFormat;
use tracewright::{Plan, PlanError};

use crate::error::Error;
use crate::sampling::SamplingArguments;

/// Declare a language model in Rust, lower it to StableHLO, run it through IREE.
#[derive(Parser)]
#[command(name = "tracewright", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    /// What to log to stderr, as `debug` or `tracewright=trace`
    #[arg(long, global = true, env = "TRACEWRIGHT_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// The command line, with a variable of the environment for each flag: `--top-p` is `TRACEWRIGHT_TOP_P`.
pub fn command() -> clap::Command {
    with_variables(Arguments::command())
}

fn with_variables(command: clap::Command) -> clap::Command {
    let named = |argument: clap::Arg| match argument.get_long() {
        Some(long) if argument.get_env().is_none() => {
            let name = format!("{VARIABLES}{}", long.to_uppercase().replace('-', "_"));
            argument.env(name)
        }
        _ => argument,
    };
    command.mut_args(named).mut_subcommands(with_variables)
}

/// What the variables of the environment begin with.
pub const VARIABLES: &str = "TRACEWRIGHT_";

#[derive(Subcommand)]
pub enum Command {
    /// Generate text from a model or an export directory
    Generate(GenerateArguments),
    /// Talk with a model
    Chat(ChatArguments),
    /// Print the text that a chat becomes, by the model's chat template
    Prompt(PromptArguments),
    /// Make vectors of texts
    Embed(EmbedArguments),
    /// Write module, archive, tokenizer and manifest to a directory that runs without Python and compiler
    Export(ExportArguments),
    /// Write the parameters of a checkpoint as an IREE parameter archive
    Bake(BakeArguments),
    /// Compare an archive or an export directory with the hashes that it carries
    Verify(VerifyArguments),
    /// Run two forms of a model side by side, and name the first operation whose numbers differ
    Bisect(BisectArguments),
    /// Say what a model will hold in memory, without reading a weight
    Plan(PlanArguments),
    /// Measure speed: variants in turn, beside what the memory gives
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Find out how kernels are fastest on this machine; what builds a model here uses that from then on
    Tune(TuneArguments),
    /// Write random weights for a configuration
    Random(RandomArguments),
    /// Look at all that is needed: compiler, processor, runtime, cache, memory; say what to do about what is missing
    Doctor(DoctorArguments),
    /// List the devices that models can run on, and say what others lack
    Devices {
        /// One JSON object on stdout instead of a line for each device
        #[arg(long)]
        json: bool,
    },
    /// Say more of an error: what it means, an example, and what to do
    Explain {
        /// Its code, as TW0201; without one all are listed
        code: Option<String>,
        /// One JSON object on stdout instead of the text
        #[arg(long)]
        json: bool,
    },
    /// Print what a shell reads to complete commands and options
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write manual pages: one for the program, one for each command
    Man {
        /// The directory to write
        #[arg(short, long, value_name = "DIR")]
        out: PathBuf,
    },
}

#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("input").required(true)))]
pub struct GenerateArguments {
    /// A Hugging Face model directory, a GGUF file, or what `export` wrote
    pub model: PathBuf,
    /// The text to continue
    #[arg(short, long, group = "input", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A file with the text to continue
    #[arg(short, long, group = "input", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A message to answer, through the model's chat template
    #[arg(long, group = "input", value_name = "TEXT")]
    pub chat: Option<String>,
    /// The token ids to continue: 5,17,3
    #[arg(long, group = "input", value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// The system message of the chat
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub template: TemplateArguments,
    /// At most this many new tokens
    #[arg(
        short = 'n',
        long = "max-tokens",
        visible_alias = "n-predict",
        value_name = "N",
        default_value_t = 128
    )]
    pub max_tokens: usize,
    /// Do not stop at the model's end-of-text tokens
    #[arg(long, conflicts_with_all = ["json_schema", "grammar"])]
    pub ignore_eos: bool,
    /// Stop in front of this text; may be repeated
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["json_schema", "grammar"])]
    pub stop: Vec<String>,
    /// One JSON object on stdout instead of the text
    #[arg(long)]
    pub json: bool,
    /// Write the logits that chose each token: f32 `logits` [steps, vocab]
    #[arg(long, value_name = "FILE.safetensors")]
    pub save_logits: Option<PathBuf>,
    /// With --save-logits: also `prompt_logits` [prompt, vocab]
    #[arg(long, requires = "save_logits")]
    pub all_positions: bool,
    /// With --json: the N most likely tokens at each place, by the model's own logits, before anything of the sampling
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Say on stderr which commands of IREE's own programs do the same
    #[arg(long)]
    pub print_commands: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub run: RunArguments,
}

#[derive(Args, Clone)]
pub struct ChatArguments {
    /// A Hugging Face model directory, or what `export` wrote
    pub model: PathBuf,
    /// The system message of the chat
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub template: TemplateArguments,
    /// At most this many new tokens in an answer
    #[arg(
        short = 'n',
        long = "max-tokens",
        visible_alias = "n-predict",
        value_name = "N",
        default_value_t = 1024
    )]
    pub max_tokens: usize,
    /// Stop an answer in front of this text; may be repeated
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["json_schema", "grammar"])]
    pub stop: Vec<String>,
    /// Keep what is typed at a terminal to this chat
    #[arg(long)]
    pub no_history: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub run: RunArguments,
}

/// What a chat template sees beside the messages.
#[derive(Args, Clone)]
pub struct TemplateArguments {
    /// Functions that the model may call: a file with a JSON list of tools in OpenAI's form, for the chat template
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// Texts that the model answers from: a file with a JSON list of objects, such as `{"title": …, "text": …}`, for the
    /// chat template
    #[arg(long, value_name = "FILE")]
    pub documents: Option<PathBuf>,
    /// Let the model think before it answers, or not: sets `enable_thinking` of the chat template [default: the template's]
    #[arg(long, value_name = "on|off")]
    pub thinking: Option<Thinking>,
    /// Set a variable of the chat template, as `reasoning_effort="low"`; may be repeated
    #[arg(long, value_name = "NAME=JSON")]
    pub template_var: Vec<TemplateVariable>,
}

impl TemplateArguments {
    /// The first option that is given.
    #[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "only `generate` asks"))]
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            ("--tools", self.tools.is_some()),
            ("--documents", self.documents.is_some()),
            ("--thinking", self.thinking.is_some()),
            ("--template-var", !self.template_var.is_empty()),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

/// Whether a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    On,
    Off,
}

/// A variable of a chat template.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "no template is rendered"))]
pub struct TemplateVariable {
    pub name: String,
    pub value: serde_json::Value,
}

impl FromStr for TemplateVariable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once('=') else {
            return Err("expected NAME=JSON, as `reasoning_effort=\"low\"`".into());
        };
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        if !name.chars().all(is_part) || name.is_empty() || name.starts_with(|c: char| c.is_numeric()) {
            return Err(format!("`{name}` is no name of a variable, expected letters, digits and `_`"));
        }
        match name {
            "tools" | "documents" => return Err(format!("`--{name} FILE` sets `{name}`")),
            "messages" | "add_generation_prompt" | "strftime_now" => {
                return Err(format!("`{name}` is set by this program"));
            }
            _ => {}
        }
        let value = serde_json::from_str(value).map_err(|error| {
            format!("the value is not JSON ({error}); write a text in quotes, as `{name}=\"low\"`")
        })?;
        Ok(Self { name: name.to_owned(), value })
    }
}

/// How a model is made ready to be called.
#[derive(Args, Clone)]
#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "only text is generated"))]
pub struct RunArguments {
    /// Worker threads; 0 for as many as there are cores
    #[arg(short, long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// First compare all weights with the hashes that their archive carries
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

/// Where a model runs.
#[derive(Args, Clone)]
#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "nothing runs"))]
pub struct DeviceArguments {
    /// Where it runs: cpu, or another device, with its number if it is not the first, as `vulkan:1`; `devices` lists them
    /// [default: cpu; of an export what it was made for]
    #[arg(long, value_name = "cpu|vulkan|cuda[:N]")]
    pub device: Option<DeviceName>,
    /// With --device: what is compiled for, as `vulkan:rdna3` or `cuda:sm_86` [default: what the device says of itself]
    #[arg(long, value_name = "DEVICE:PROCESSOR[:FEATURES]", requires = "device")]
    pub target: Option<Target>,
}

#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("input").required(true).multiple(true)))]
pub struct EmbedArguments {
    /// A Hugging Face model directory with the files of sentence-transformers
    pub model: PathBuf,
    /// A text; may be repeated
    #[arg(short = 'p', long = "text", group = "input", value_name = "TEXT")]
    pub texts: Vec<String>,
    /// A file with a text on each line, behind the others
    #[arg(short, long, group = "input", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The token ids of a single text, special ones included: 2,17,1
    #[arg(long, group = "input", value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["texts", "file", "prompt_name"])]
    pub tokens: Option<Vec<u32>>,
    /// The prompt that stands in front of each text, one of the model's [default: the model's]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Tokens of a text at most; longer ones are cut [default: what the longest text needs, up to the model's own]
    #[arg(long, value_name = "N")]
    pub length: Option<usize>,
    /// Texts at once
    #[arg(long, value_name = "N", value_parser = batch, default_value = "1")]
    pub batch: NonZeroUsize,
    /// Worker threads; 0 for as many as there are cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// One JSON object on stdout instead of a line of numbers for each text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[derive(Args)]
pub struct PromptArguments {
    /// A Hugging Face model directory, a GGUF file, or what `export` wrote
    pub model: PathBuf,
    /// The message to answer
    #[arg(long, value_name = "TEXT", required_unless_present = "messages")]
    pub chat: Option<String>,
    /// The system message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    pub system: Option<String>,
    /// A file with the whole chat, `-` for stdin: a JSON list of objects with `role` and `content`, as `/save` of `chat`
    /// writes it
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    pub messages: Option<PathBuf>,
    #[command(flatten)]
    pub template: TemplateArguments,
    /// Render here, and let the system end this process where that takes too much
    #[arg(long, hide = true)]
    pub limited: bool,
}

#[derive(Args)]
pub struct ExportArguments {
    /// A Hugging Face model directory, or a GGUF file
    pub model: PathBuf,
    /// The directory to write
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// What to compile for: `host`, a processor LLVM knows, PLATFORM:PROCESSOR[:FEATURES], as
    /// `aarch64-linux-gnu:generic:+neon`, or another device, DEVICE[:PROCESSOR[:FEATURES]], as `vulkan`, `cuda:sm_86`,
    /// `hip:gfx942`, `metal`
    #[arg(long, default_value = "host")]
    pub target: Target,
    /// What runs it: IREE, or XLA on one device or many, by the Python package `tracewright_xla`
    #[arg(long, value_enum, default_value = "iree")]
    pub engine: Engine,
    /// One JSON object on stdout instead of a summary on stderr
    #[arg(long)]
    pub json: bool,
    /// Say on stderr which commands of IREE's own programs do the same
    #[arg(long)]
    pub print_commands: bool,
    #[command(flatten)]
    pub xla: XlaArguments,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

/// What runs an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    Iree,
    Xla,
}

/// Devices, and what is divided among them.
#[derive(Args, Clone)]
pub struct MeshArguments {
    /// For XLA: devices in a grid with named axes, as `model=4,data=2` [default: one device]
    #[arg(long, value_name = "AXIS=DEVICES,…")]
    pub mesh: Option<Mesh>,
    /// For XLA: axes of the network that are divided along an axis of the mesh, as `K,F,V=model`, or along none, as
    /// `V=none`, beside what the network declares; may be repeated
    #[arg(long, value_name = "AXES=MESH_AXIS")]
    pub shard: Vec<ShardRule>,
}

/// What is said to XLA alone.
#[derive(Args, Clone)]
pub struct XlaArguments {
    #[command(flatten)]
    pub mesh: MeshArguments,
    /// For XLA: sequences at once [default: 1]
    #[arg(long, value_name = "N", value_parser = batch)]
    pub batch: Option<NonZeroUsize>,
}

#[derive(Args)]
pub struct BakeArguments {
    /// A model directory or a GGUF file (its parameters are checked and written as the module reads them), or a
    /// .safetensors file (written as it is)
    pub checkpoint: PathBuf,
    /// The archive to write
    #[arg(short, long, value_name = "FILE.irpa")]
    pub out: PathBuf,
    /// Write neither types nor hashes, as IREE's own tool does
    #[arg(long)]
    pub no_metadata: bool,
    /// Say on stderr which commands of IREE's own programs do the same
    #[arg(long)]
    pub print_commands: bool,
    #[command(flatten)]
    pub model: ModelArguments,
}

#[derive(Args)]
pub struct VerifyArguments {
    /// An archive, or what `export` wrote
    #[arg(value_name = "FILE.irpa|EXPORT_DIR")]
    pub path: PathBuf,
    /// One JSON object on stdout instead of a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct BisectArguments {
    /// A Hugging Face model directory, or a GGUF file
    pub model: PathBuf,
    /// The token ids to read: 5,17,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// What the compiled model is compared with: the reference evaluator; itself unsimplified, without kernels, or with
    /// weights that are not rounded; or what transformers computed, as tests/oracle/activations.py writes it
    #[arg(
        long,
        value_name = "evaluator|unsimplified|no-kernels|dense|FILE.safetensors",
        default_value = "evaluator"
    )]
    pub against: Against,
    /// One JSON object on stdout instead of a report
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[derive(Args)]
pub struct PlanArguments {
    /// A Hugging Face model directory, its config.json, a GGUF file, or a published size by name (`trace-dump presets` lists
    /// them)
    pub model: PathBuf,
    #[command(flatten)]
    pub mesh: MeshArguments,
    /// For XLA: what each device is, for how long a call takes at least: a name, or its bytes, its operations and its bytes
    /// over links in a second, as 3e12:200e12:300e9
    #[arg(long, value_name = NamedMachine::FORMS)]
    pub machine: Option<NamedMachine>,
    /// Sequences at once
    #[arg(long, value_name = "N", value_parser = batch, default_value = "1")]
    pub batch: NonZeroUsize,
    /// One JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
}

#[derive(Args)]
pub struct TuneArguments {
    /// A Hugging Face model directory, its config.json, or a GGUF file
    pub model: PathBuf,
    /// Try no more after this time; another run goes on where this one stopped
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub budget: Duration,
    /// Say what is known, and measure nothing
    #[arg(long)]
    pub show: bool,
    /// One JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[derive(Args)]
#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "what is looked at runs"))]
pub struct DoctorArguments {
    /// One JSON object on stdout instead of a line for each thing
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[derive(Args)]
pub struct RandomArguments {
    /// A config.json
    pub config: PathBuf,
    /// The model directory to write
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// The same seed gives the same bytes
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Type of weights: f32, f16, bf16 [default: the configuration's]
    #[arg(long)]
    pub dtype: Option<ElementType>,
    /// Proceed although config.json has this unknown key; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Steps of decoding, one token for each row
    Decode(DecodeBench),
    /// Reading a prompt, up to the first new token
    Prefill(PrefillBench),
    /// A product with a weight: [M, K] and [N, K] give [M, N]
    Matmul(MatmulBench),
    /// Causal attention over keys and values
    Attention(AttentionBench),
    /// Compiling prefill and decode, with an empty cache
    Compile(ModelBench),
    /// Recording a network, simplifying and expanding it, writing its text
    Trace(ModelBench),
    /// Writing the archive of a checkpoint
    Bake(ModelBench),
    /// All of a model: prefill, decode, trace, compile, bake
    Suite(ModelBench),
}

#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "what is measured runs"))]
impl BenchCommand {
    /// How it is measured.
    pub fn bench(&self) -> &BenchArguments {
        match self {
            Self::Decode(arguments) => &arguments.bench,
            Self::Prefill(arguments) => &arguments.bench,
            Self::Matmul(arguments) => &arguments.bench,
            Self::Attention(arguments) => &arguments.bench,
            Self::Compile(arguments)
            | Self::Trace(arguments)
            | Self::Bake(arguments)
            | Self::Suite(arguments) => &arguments.bench,
        }
    }
}

#[derive(Args)]
pub struct DecodeBench {
    /// A Hugging Face model directory, a GGUF file, or a config.json, which gets random weights
    pub model: PathBuf,
    /// Tokens before the first one that is measured; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<usize>,
    /// Tokens of a round
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub tokens: usize,
    /// Measure each variant once more while another thread keeps one core busy
    #[arg(long, conflicts_with = "trace")]
    pub neighbour: bool,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct PrefillBench {
    /// A Hugging Face model directory, a GGUF file, or a config.json, which gets random weights
    pub model: PathBuf,
    /// Tokens of the prompt; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub tokens: Vec<usize>,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct ModelBench {
    /// A Hugging Face model directory, a GGUF file, or a config.json, which gets random weights
    pub model: PathBuf,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct MatmulBench {
    /// Rows; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub m: Vec<usize>,
    /// Outputs
    #[arg(long, value_name = "N")]
    pub n: usize,
    /// What is summed over
    #[arg(long, value_name = "N")]
    pub k: usize,
    /// Types to compute with: f32, f16, bf16; several with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Formats of the weight: none, q8, q4, q4_k; several with commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = quant_or_none)]
    pub quant: Vec<Quant>,
    /// Who multiplies: on, off, or both with a comma
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<Kernels>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct AttentionBench {
    /// Queries of each head
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queries: usize,
    /// Key-value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub heads: usize,
    /// Query heads for each of them
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub groups: usize,
    /// Features of a head
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub features: usize,
    /// Slots of keys and values; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub context: Vec<usize>,
    /// The position of the first query [default: the last one that fits]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Types to compute with: f32, f16, bf16; several with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Who computes it: on, off, or both with a comma
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<Kernels>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

/// What becomes of the time of each dispatch.
#[derive(Args)]
pub struct ProfileArguments {
    /// Write the time of each dispatch of one variant, for Perfetto, chrome://tracing and `trace-dump --profile`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// What is measured of a model: each combination of these.
#[derive(Args)]
pub struct VariantArguments {
    /// Types of weights and activations: f32, f16, bf16; several with commas [default: the checkpoint's]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtype: Vec<ElementType>,
    /// Formats of the weights of products: none, q8, q4, q4_k; several with commas [default: none]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = quant_or_none)]
    pub quant: Vec<Quant>,
    /// Who multiplies: on, off, or both with a comma
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<Kernels>,
    /// Which rules simplify the network: off, exact, approximate; several with commas
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "exact")]
    pub simplify: Vec<Rules>,
    /// Who says how kernels cut their work, as for `generate`: on, off, a file; several with commas
    #[arg(long, value_name = "on|off|FILE", value_delimiter = ',', default_value = "on")]
    pub tuning: Vec<TuningSource>,
    /// How keys and values are remembered: computed, q8, or both with a comma
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = kv_format, default_value = "computed")]
    pub kv: Vec<KvFormat>,
    /// The longest sequence, at most the model's own; several with commas [default: 512, or the model's own limit]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub context: Vec<usize>,
    /// Sequences at once; several with commas
    #[arg(long, value_name = "N", value_parser = batch, value_delimiter = ',', default_value = "1")]
    pub batch: Vec<NonZeroUsize>,
    /// Tokens that one prefill takes; several with commas [default: 128]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub chunk: Vec<usize>,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Proceed although config.json has this unknown key; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

/// How it is measured.
#[derive(Args)]
pub struct BenchArguments {
    /// Rounds that count; in each, every variant runs once
    #[arg(long, value_name = "N", default_value = "7")]
    pub rounds: NonZeroUsize,
    /// Worker threads; 0 for as many as there are cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// The same seed gives the same random weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write everything that was measured, as docs/reference/json.md explains it
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw it
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub compile: CompileArguments,
}

/// What is built of any network.
#[derive(Args, Clone)]
pub struct NetworkArguments {
    /// Type of weights and activations: f32, f16, bf16 [default: the checkpoint's]
    #[arg(long)]
    pub dtype: Option<ElementType>,
    /// Which rules simplify the network: those that hold bit for bit, or also those that change how results are
    /// rounded [default: exact]
    #[arg(long, value_name = "off|exact|approximate")]
    pub simplify: Option<Rules>,
    /// Store the weights of products in fewer bits, in groups of 32 with a scale, or number by number [default: as they are]
    #[arg(long, value_name = "none|q8|q4|q4_k", value_parser = quant_or_none)]
    pub quant: Option<Quant>,
    /// Multiply by kernels made for the processor, or by what the compiler makes of StableHLO [default: on]
    #[arg(long, value_name = "on|off")]
    pub kernels: Option<Kernels>,
    /// Store weights as kernels read them, or in the order of the checkpoint for StableHLO alone, without kernels
    /// [default: kernels, where there are any]
    #[arg(long, value_name = "kernels|plain", conflicts_with = "kernels")]
    pub layout: Option<Layout>,
    /// Proceed although config.json has this unknown key; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

impl NetworkArguments {
    /// How weights are stored, which a checkpoint stores like this, and who multiplies with them.
    pub fn weights(&self, stored: Quantization) -> Weights {
        let kernels = self.kernels != Some(Kernels::Off) && self.layout != Some(Layout::Plain);
        Weights { quantize: self.quant.map_or(stored, |Quant(format)| format.into()), kernels }
    }
}

/// How what is compiled cuts its work.
#[derive(Args, Clone)]
pub struct TuningArguments {
    /// Cut the work of kernels as `tune` found it to be fastest here, as usual, or as a file says: JSON, as `tuning` in a
    /// manifest [default: on]
    #[arg(long = "tuning", value_name = "on|off|FILE")]
    pub source: Option<TuningSource>,
}

/// What is built of a language model.
#[derive(Args, Clone)]
pub struct ModelArguments {
    #[command(flatten)]
    pub network: NetworkArguments,
    /// The longest sequence, prompt and answer together [default: what the prompt needs; 2048 in an export; 4096 in a chat]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N")]
    pub context: Option<usize>,
    /// Tokens that one prefill takes [default: 128]
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
    /// Remember keys and values as the network computes them, or as integers of 8 bits with a scale for each head of each
    /// position [default: computed]
    #[arg(long, value_name = "computed|q8", value_parser = kv_format)]
    pub kv: Option<KvFormat>,
}

impl ModelArguments {
    /// The plan for a model and a context.
    pub fn plan(&self, model: Box<dyn Architecture>, context: Option<usize>) -> Result<Plan, PlanError> {
        let plan = Plan::new(model, self.network.dtype, context, self.chunk)?;
        let rules = self.network.simplify.unwrap_or_default();
        let weights = self.network.weights(plan.model.stored());
        Ok(Plan { rules, weights, kv: self.kv.unwrap_or_default(), ..plan })
    }
}

impl MeshArguments {
    /// Whether something is said of devices.
    pub fn is_said(&self) -> bool {
        self.mesh.is_some() || !self.shard.is_empty()
    }

    /// The mesh, and what is divided otherwise than the network declares.
    pub fn rules(&self) -> Result<Option<(&Mesh, &[ShardRule])>, Error> {
        for axis in self.shard.iter().flat_map(|rule| &rule.axes) {
            let of_axis = self.shard.iter().filter(|rule| rule.axes.contains(axis));
            let (whole, divided): (Vec<_>, Vec<_>) = of_axis.partition(|rule| rule.over == "none");
            if !whole.is_empty() && !divided.is_empty() {
                let what = format!("`--shard` says of `{axis}` that it is divided, and that it is not");
                return Err(Error::Usage { what });
            }
        }
        match &self.mesh {
            Some(mesh) => Ok(Some((mesh, &self.shard))),
            None if self.shard.is_empty() => Ok(None),
            None => Err(Error::Usage {
                what: "`--shard` says what is divided among the devices of a mesh; name it with `--mesh`"
                    .into(),
            }),
        }
    }
}

/// Whether kernels multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kernels {
    On,
    Off,
}

impl std::fmt::Display for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}

/// What a compiled model is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    Evaluator,
    Unsimplified,
    NoKernels,
    Dense,
    Activations(PathBuf),
}

impl From<&str> for Against {
    fn from(text: &str) -> Self {
        match text {
            "evaluator" => Self::Evaluator,
            "unsimplified" => Self::Unsimplified,
            "no-kernels" => Self::NoKernels,
            "dense" => Self::Dense,
            path => Self::Activations(path.into()),
        }
    }
}

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    Kernels,
    Plain,
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Kernels { "kernels" } else { "plain" })
    }
}

/// What says how kernels cut their work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TuningSource {
    Measured,
    Usual,
    File(PathBuf),
}

impl From<&str> for TuningSource {
    fn from(text: &str) -> Self {
        match text {
            "on" => Self::Measured,
            "off" => Self::Usual,
            path => Self::File(path.into()),
        }
    }
}

/// A time as people write it.
fn time(text: &str) -> Result<Duration, String> {
    let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.ok_or_else(|| "expected a time, as 90s or 5m".into())
}

/// A format of fewer bits.
fn quantized(text: &str) -> Result<WeightFormat, String> {
    let mut formats = WeightFormat::ALL.iter().copied().filter(|format| format.element().is_none());
    formats.find(|format| format.word() == text).ok_or_else(|| "expected q8, q4 or q4_k".into())
}

/// How keys and values are remembered.
pub fn kv_format(text: &str) -> Result<KvFormat, String> {
    match text {
        "computed" => Ok(KvFormat::Computed),
        "q8" => Ok(KvFormat::Q8),
        _ => Err("expected computed or q8".into()),
    }
}

/// A format of weights, or none.
#[derive(Clone, Copy, Debug)]
pub struct Quant(pub Option<WeightFormat>);

/// Sequences at once, as many as there is any use for.
fn batch(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().filter(|count: &NonZeroUsize| count.get() <= limits::BATCH);
    count.ok_or_else(|| format!("expected a number from 1 to {}", limits::BATCH))
}

/// A format of fewer bits, or none.
pub fn quant_or_none(text: &str) -> Result<Quant, String> {
    match text {
        "none" => Ok(Quant(None)),
        _ => quantized(text)
            .map(|format| Quant(Some(format)))
            .map_err(|_| "expected none, q8, q4 or q4_k".into()),
    }
}

/// How it is compiled.
#[derive(Args, Clone)]
pub struct CompileArguments {
    /// The iree-compile to use [default: the one on PATH]
    #[arg(long, value_name = "PATH", env = "TRACEWRIGHT_IREE_COMPILE")]
    pub iree_compile: Option<PathBuf>,
    /// Give up compiling after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub compile_timeout: u64,
    /// Where compiled modules and baked archives are kept [default: the user's cache folder]
    #[arg(long, value_name = "DIR", env = "TRACEWRIGHT_CACHE")]
    pub cache: Option<PathBuf>,
}
