//! Options that determine how a network is built.

use std::path::Path;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tracewright::Plan;
use tracewright::PlanError;
use tracewright::lower::Weights;
use tracewright::models::{Opened, check_generates};
use tracewright::ops::ElementType;
use tracewright::ops::format::ActivationBits;
use tracewright::quant_map::{QuantMapError, read_quant_map};
use tracewright::simplify::Rules;
use tracewright::trace::{KvFormat, Quantization};

use crate::error::ConsoleError;

/// Options for building a network of any kind.
#[derive(Args, Clone)]
pub struct NetworkArguments {
    /// Element type of weights and activations: f32, f16, bf16 [default: the checkpoint's type]
    #[arg(long)]
    pub dtype: Option<ElementType>,
    /// Rewrite rules that simplify the network: no rules (off), rules that change no bit of the
    /// results (exact), or also rules that change roundings (approximate) [default: exact]
    #[arg(long, value_name = "off|exact|approximate")]
    pub simplify: Option<Rules>,
    /// Store the weight matrices in 8 or 4 bits with one scale per group of weights (q8, q4, q4_k,
    /// mxfp4), or without quantization (none). `q4`, `q4_k` and `mxfp4` store the output head and the
    /// value matrices in `q8`; with `:pure`, they store all matrices in 4 bits [default: the format in
    /// the checkpoint]
    #[arg(long, value_name = "none|q8|q4[:pure]|q4_k[:pure]|mxfp4[:pure]")]
    pub quant: Option<Quantization>,
    /// JSON file with the formats of some weight matrices, such as
    /// {"model.layers.*.mlp.down_proj.weight": "q8"}; `--quant` sets the format of all other
    /// matrices
    #[arg(long, value_name = "FILE.json", requires = "quant")]
    pub quant_map: Option<PathBuf>,
    /// Number of bits to which activations are rounded if the weights are quantized: 8, 16, or 16
    /// in groups with outliers and 8 in all others (mixed). More bits make results more precise and
    /// prefill slower [default: mixed]
    #[arg(long, value_name = "8|mixed|16", value_parser = activation_bits)]
    pub activations: Option<ActivationBits>,
    /// Compute matmuls with Tracewright's kernels for the processor (on), or with the code that the compiler
    /// generates from StableHLO (off) [default: on]
    #[arg(long, value_name = "on|off")]
    pub kernels: Option<KernelUse>,
    /// Ignore a key of config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

impl NetworkArguments {
    /// Returns the weight formats that the options set, and whether they allow kernels. `stored` is
    /// the weight format of the checkpoint.
    ///
    /// # Errors
    /// Returns an error if the file of `--quant-map` cannot be read.
    pub fn weights(&self, stored: Quantization) -> Result<Weights, QuantMapError> {
        let kernels = self.kernels != Some(KernelUse::Off);
        let activations = self.activations.unwrap_or_default();
        Ok(Weights { quantize: self.quantization()?.unwrap_or(stored), kernels, activations })
    }

    /// Returns the weight formats that the options set, or `None` if the options set no formats.
    ///
    /// # Errors
    /// Returns an error if the file of `--quant-map` cannot be read.
    pub fn quantization(&self) -> Result<Option<Quantization>, QuantMapError> {
        Ok(match (&self.quant, &self.quant_map) {
            (Some(base), Some(path)) => Some(Quantization::mapped(base.clone(), read_quant_map(path)?)),
            (base, _) => base.clone(),
        })
    }
}

/// Options for building a language model.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// The options that apply to every network.
    #[command(flatten)]
    pub network: NetworkArguments,
    /// Maximum length of a sequence in tokens, including the prompt and the answer [default: the
    /// length that the prompt needs, 2048 in an export, 4096 in a chat]
    #[arg(short, long, visible_alias = "ctx-size", value_name = "N")]
    pub context: Option<usize>,
    /// Number of prompt tokens that the model reads per call [default: 128]
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
    /// Store the KV cache in the type of the activations (computed), or in 8 bits with one scale per head and
    /// position (q8) [default: computed]
    #[arg(long, value_name = "computed|q8", value_parser = kv_format)]
    pub kv: Option<KvFormat>,
}

impl ModelArguments {
    /// Returns the plan of a model for a given context.
    ///
    /// # Errors
    /// Returns an error if the model is not a language model, or if the context or the chunk is out
    /// of range.
    pub fn plan(&self, model: Opened, path: &Path, context: Option<usize>) -> Result<Plan, ConsoleError> {
        check_generates(&model.kind, path)?;
        let plan = Plan::new(model, self.network.dtype, context, self.chunk)?;
        let rules = self.network.simplify.unwrap_or_default();
        let weights = self.network.weights(plan.model.stored.clone()).map_err(PlanError::from)?;
        Ok(Plan { rules, weights, kv: self.kv.unwrap_or_default(), ..plan })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KernelUse {
    On,
    Off,
}

impl std::fmt::Display for KernelUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::On { "on" } else { "off" })
    }
}

/// Parses the number of bits to which activations are rounded.
pub fn activation_bits(text: &str) -> Result<ActivationBits, String> {
    let known = ActivationBits::ALL.iter().find(|bits| bits.word() == text);
    known.copied().ok_or_else(|| "expected 8, mixed or 16".into())
}

/// Parses the format of the KV cache.
pub fn kv_format(text: &str) -> Result<KvFormat, String> {
    match text {
        "computed" => Ok(KvFormat::Computed),
        "q8" => Ok(KvFormat::Q8),
        _ => Err("expected computed or q8".into()),
    }
}
