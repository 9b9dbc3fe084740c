//! `tracewright bench` measures the speed of models and of single operations.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use console::{KernelUse, activation_bits, kv_format};
use tracewright::ops::ElementType;
use tracewright::ops::format::ActivationBits;
use tracewright::simplify::Rules;
use tracewright::trace::{KvFormat, Quantization};

use crate::arguments::{
    CompileArguments, DeviceArguments, EngineArguments, MeshArguments, TuningOption, batch,
};

#[derive(Subcommand)]
pub enum Arguments {
    /// Measure decode calls, which compute one new token per sequence
    Decode(DecodeBench),
    /// Measure prefill: the time from the prompt to the first new token
    Prefill(PrefillBench),
    /// Measure a matmul of an [M, K] input with an [N, K] weight matrix
    Matmul(MatmulBench),
    /// Measure causal attention over cached keys and values
    Attention(AttentionBench),
    /// Measure the time to compile prefill and decode with an empty cache
    Compile(ModelBench),
    /// Measure the time to record, simplify and expand a network, and to write its module text
    Trace(ModelBench),
    /// Measure the time to write the weights of a checkpoint into an archive
    Bake(ModelBench),
    /// Run five benchmarks of a model: prefill, decode, trace, compile and bake
    Suite(ModelBench),
}

impl Arguments {
    /// The path of the model, or `None` if the benchmark measures a single operation.
    pub fn model(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Decode(DecodeBench { of, .. }) | Self::Prefill(PrefillBench { of, .. }) => {
                Some(&mut of.model)
            }
            Self::Compile(of) | Self::Trace(of) | Self::Bake(of) | Self::Suite(of) => Some(&mut of.model),
            Self::Matmul(_) | Self::Attention(_) => None,
        }
    }
}

#[derive(Args)]
pub struct DecodeBench {
    /// Number of tokens in the KV cache before the first measured token; separate several values with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<usize>,
    /// Number of tokens to decode per round
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub tokens: usize,
    /// Also measure each variant while another thread keeps one core busy
    #[arg(long, conflicts_with = "trace")]
    pub neighbour: bool,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub mesh: MeshArguments,
    #[command(flatten)]
    pub of: ModelBench,
}

#[derive(Args)]
pub struct PrefillBench {
    /// Number of tokens in the prompt; separate several values with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub tokens: Vec<usize>,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub mesh: MeshArguments,
    #[command(flatten)]
    pub of: ModelBench,
}

/// A model, and the options of its measurement.
#[derive(Args)]
pub struct ModelBench {
    /// Hugging Face model directory, GGUF file, or config.json; with a config.json, `bench` uses
    /// random weights
    pub model: PathBuf,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct MatmulBench {
    /// Number of rows M of the input matrix; separate several values with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub m: Vec<usize>,
    /// Number of output features N of the weight matrix
    #[arg(long, value_name = "N")]
    pub n: usize,
    /// Number of input features K of the weight matrix, which the matmul sums over
    #[arg(long, value_name = "N")]
    pub k: usize,
    /// Element types of the matmul: f32, f16, bf16; separate several values with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Formats of the weight matrix: none, q8, q4, q4_k, mxfp4; separate several values with commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',')]
    pub quant: Vec<Quantization>,
    /// Number of bits to which activations are rounded if the weights are quantized: 8, mixed, 16;
    /// separate several values with commas
    #[arg(long, value_name = "BITS", value_delimiter = ',', value_parser = activation_bits, default_value = "mixed")]
    pub activations: Vec<ActivationBits>,
    /// Compute the matmul with Tracewright's kernels (on), with code that IREE's compiler generates
    /// (off), or measure the two variants (on,off)
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct AttentionBench {
    /// Number of queries per head
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queries: usize,
    /// Number of key-value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub heads: usize,
    /// Number of query heads per key-value head
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub groups: usize,
    /// Number of features per head
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub features: usize,
    /// Number of positions in the KV cache; separate several values with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub context: Vec<usize>,
    /// Position of the first query in the KV cache [default: the last position at which all queries fit]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Element types of the attention: f32, f16, bf16; separate several values with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Compute attention with Tracewright's kernels (on), with code that IREE's compiler generates
    /// (off), or measure the two variants (on,off)
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

/// The option that writes the time of each dispatch to a file.
#[derive(Args)]
pub struct ProfileArguments {
    /// Write the time of each dispatch to a file, which Perfetto, chrome://tracing and
    /// `trace-dump --profile` can show; the benchmark must have a single variant
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// The options that define the variants of a model. A benchmark of a model measures each
/// combination of the values that these options have.
#[derive(Args)]
pub struct VariantArguments {
    /// Element types of weights and activations: f32, f16, bf16; separate several values with
    /// commas [default: the checkpoint's type]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtype: Vec<ElementType>,
    /// Formats of the weight matrices: none, q8, q4[:pure], q4_k[:pure], mxfp4[:pure]; separate
    /// several values with commas [default: none]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',')]
    pub quant: Vec<Quantization>,
    /// Number of bits to which activations are rounded if the weights are quantized: 8, mixed, 16;
    /// separate several values with commas
    #[arg(long, value_name = "BITS", value_delimiter = ',', value_parser = activation_bits, default_value = "mixed")]
    pub activations: Vec<ActivationBits>,
    /// Compute matmuls with Tracewright's kernels (on), with code that IREE's compiler generates
    /// (off), or measure the two variants (on,off)
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    /// Rewrite rules that simplify the network: off, exact, approximate; separate several values with commas
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "exact")]
    pub simplify: Vec<Rules>,
    /// Kernel settings, as for `generate --tuning`: on, off, or the path of a file; separate
    /// several values with commas
    #[arg(long, value_name = "on|off|FILE", value_delimiter = ',', default_value = "on")]
    pub tuning: Vec<TuningOption>,
    /// Formats of the KV cache: computed (the type of the activations), q8, or both (computed,q8)
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = kv_format, default_value = "computed")]
    pub kv: Vec<KvFormat>,
    /// Maximum length of a sequence in tokens; separate several values with commas [default: 512,
    /// or a lower limit of the model]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub context: Vec<usize>,
    /// Number of sequences that a call computes in parallel; separate several values with commas
    #[arg(long, value_name = "N", value_parser = batch, value_delimiter = ',', default_value = "1")]
    pub batch: Vec<NonZeroUsize>,
    /// Number of prompt tokens that the model reads per call; separate several values with commas
    /// [default: 128]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub chunk: Vec<usize>,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Ignore a key of config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

#[derive(Args)]
pub struct BenchArguments {
    /// Number of measured rounds; every variant runs once in each round
    #[arg(long, value_name = "N", default_value = "7")]
    pub rounds: NonZeroUsize,
    /// Number of worker threads; 0 uses all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Seed of the random weights; the same seed gives the same weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write all measurements as JSON to a file; docs/reference/json.md describes the format
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw a chart of the measurements, and write the chart to an SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
mod run;
