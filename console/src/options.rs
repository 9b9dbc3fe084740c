//! Options that decide what is built of a network.

use clap::{Args, ValueEnum};
use tracewright::lower::{Quantization, Weights};
use tracewright::models::Architecture;
use tracewright::ops::format::ActivationBits;
use tracewright::ops::{ElementType, WeightFormat};
use tracewright::simplify::Rules;
use tracewright::trace::KvFormat;
use tracewright::{Plan, PlanError};

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
    /// Bits of the integers that activations become where weights are integers: with 16 a prompt is read more slowly, and less is
    /// lost [default: 8]
    #[arg(long, value_name = "8|16", value_parser = activation_bits)]
    pub activations: Option<ActivationBits>,
    /// Multiply by kernels made for the processor, or by what the compiler makes of StableHLO [default: on]
    #[arg(long, value_name = "on|off")]
    pub kernels: Option<KernelUse>,
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
        let kernels = self.kernels != Some(KernelUse::Off) && self.layout != Some(Layout::Plain);
        let activations = self.activations.unwrap_or_default();
        Weights { quantize: self.quant.map_or(stored, |Quant(format)| format.into()), kernels, activations }
    }
}

/// What is built of a language model.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// Those of any network.
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

/// Whether kernels multiply.
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

/// A format of weights, or none.
#[derive(Clone, Copy, Debug)]
pub struct Quant(pub Option<WeightFormat>);

/// A format of fewer bits, or none.
pub fn quant_or_none(text: &str) -> Result<Quant, String> {
    match text {
        "none" => Ok(Quant(None)),
        _ => quantized(text)
            .map(|format| Quant(Some(format)))
            .map_err(|_| "expected none, q8, q4 or q4_k".into()),
    }
}

/// A format of fewer bits.
fn quantized(text: &str) -> Result<WeightFormat, String> {
    let mut formats = WeightFormat::ALL.iter().copied().filter(|format| format.element().is_none());
    formats.find(|format| format.word() == text).ok_or_else(|| "expected q8, q4 or q4_k".into())
}

/// The bits of the activations' integers.
pub fn activation_bits(text: &str) -> Result<ActivationBits, String> {
    let known = ActivationBits::ALL.iter().find(|bits| bits.word() == text);
    known.copied().ok_or_else(|| "expected 8 or 16".into())
}

/// How keys and values are remembered.
pub fn kv_format(text: &str) -> Result<KvFormat, String> {
    match text {
        "computed" => Ok(KvFormat::Computed),
        "q8" => Ok(KvFormat::Q8),
        _ => Err("expected computed or q8".into()),
    }
}
