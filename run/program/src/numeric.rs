//! [`NumericOptions`] contains the options that change the numbers that a network computes. Flags,
//! Python, `OpenOptions` and the comparison with an export pass them as one value.

use std::fmt::Display;
use std::str::FromStr;

use lower::Weights;
use ops::ElementType;
use ops::format::ActivationBits;
use simplify::Rules;
use targets::Numerics;
use trace::{KvFormat, Quantization};

use crate::Plan;

/// One of the [`NumericOptions`], for interfaces that set options by name.
///
/// ```
/// use tracewright_program::numeric::{NumericOption, NumericOptions};
///
/// let (kv, mut options) = (NumericOption::named("kv").unwrap(), NumericOptions::default());
/// assert!(kv.word(&options).is_none() && kv.set(&mut options, "q5").is_err());
/// kv.set(&mut options, "q8")?;
/// assert_eq!(kv.word(&options).as_deref(), Some("q8"));
/// # Ok::<(), String>(())
/// ```
pub struct NumericOption {
    /// The name of the flag without dashes, and of the argument in Python.
    pub name: &'static str,
    /// The values, for help texts.
    pub values: &'static str,
    pub scope: NumericScope,
    pub help: &'static str,
    set: fn(&mut NumericOptions, &str) -> Result<(), String>,
    word: fn(&NumericOptions) -> Option<String>,
    fill: fn(&mut NumericOptions, &NumericOptions),
}

/// The networks or devices that have an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumericScope {
    Network,
    /// Networks that generate text.
    Text,
    Device,
}

macro_rules! numeric_options {
    ($($field:ident: $ty:ty = $scope:ident $name:literal $values:literal
        ($read:expr, $word:expr) $help:literal;)*) => {
        /// Options that change the numbers that a network computes. A field with the value `None`
        /// selects the default.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct NumericOptions {
            $(
                #[doc = $help]
                pub $field: Option<$ty>,
            )*
        }

        impl NumericOption {
            pub const ALL: &'static [Self] = &[$(Self {
                name: $name,
                values: $values,
                scope: NumericScope::$scope,
                help: $help,
                set: |options, word| {
                    options.$field = Some($read(word)?);
                    Ok(())
                },
                word: |options| options.$field.as_ref().map($word),
                fill: |options, other| {
                    if options.$field.is_none() {
                        options.$field.clone_from(&other.$field);
                    }
                },
            },)*];
        }
    };
}

numeric_options! {
    dtype: ElementType = Network "dtype" "DTYPE" (parsed, ElementType::to_string)
        "Element type of weights and activations: f32, f16, bf16 [default: the checkpoint's type]";
    rules: Rules = Network "simplify" "off|exact|approximate" (parsed, Rules::to_string)
        "Rewrite rules that simplify the network: no rules (off), rules that change no bit of the \
         results (exact), or also rules that change roundings (approximate) [default: exact]";
    quantize: Quantization = Network "quant" "none|q8|q4[:pure]|q4_k[:pure]|mxfp4[:pure]" (parsed, format)
        "Store the weight matrices in 8 or 4 bits with one scale per group of weights (q8, q4, q4_k, \
         mxfp4), or without quantization (none). `q4`, `q4_k` and `mxfp4` store the output head and the \
         value matrices in `q8`; with `:pure`, they store all matrices in 4 bits [default: the format in \
         the checkpoint]";
    activations: ActivationBits = Network "activations" "8|mixed|16" (activation_bits, |bits| bits.word().into())
        "Number of bits to which activations are rounded if the weights are quantized: 8, 16, or 16 \
         in groups with outliers and 8 in all others (mixed). More bits make results more precise and \
         prefill slower [default: mixed]";
    kernels: bool = Network "kernels" "on|off" (switch, |&on| if on { "on" } else { "off" }.into())
        "Compute matmuls with Tracewright's kernels for the processor (on), or with the code that the compiler \
         generates from StableHLO (off) [default: on]";
    kv: KvFormat = Text "kv" "computed|q8" (kv_format, |kv| kv.word().into())
        "Store the KV cache in the type of the activations (computed), or in 8 bits with one scale per head and \
         position (q8) [default: computed]";
    numerics: Numerics = Device "numerics" "fast|invariant|portable" (numerics, |numerics| numerics.word().into())
        "With `invariant`, the logits have the same bits for any number of tokens per call; `invariant` makes \
         prefill slower on processors with AMX. `portable` also gives them the same bits on every processor that has \
         kernels; bf16 weights are slower on processors with bf16 instructions [default: fast]";
}

impl NumericOption {
    /// Returns the option with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|option| option.name == name)
    }

    /// Sets the option to the value that a word names.
    pub fn set(&self, options: &mut NumericOptions, word: &str) -> Result<(), String> {
        (self.set)(options, word)
    }

    /// Returns the word for the value of the option, if the options set it.
    pub fn word(&self, options: &NumericOptions) -> Option<String> {
        (self.word)(options)
    }
}

impl NumericOptions {
    /// Returns these options, and the options of `other` that these don't set.
    pub fn or(mut self, other: &Self) -> Self {
        NumericOption::ALL.iter().for_each(|option| (option.fill)(&mut self, other));
        self
    }

    /// Applies the options to a plan, except the element type, which [`Plan::new`] takes.
    pub fn plan(&self, plan: Plan) -> Plan {
        let weights = Weights {
            quantize: self.quantize.clone().unwrap_or(plan.weights.quantize),
            kernels: self.kernels.unwrap_or(true),
            activations: self.activations.unwrap_or_default(),
        };
        let mut target = plan.target;
        target.numerics = self.numerics.unwrap_or(target.numerics);
        let (rules, kv) = (self.rules.unwrap_or_default(), self.kv.unwrap_or_default());
        Plan { rules, kv, weights, target, ..plan }
    }
}

fn parsed<T: FromStr<Err: Display>>(word: &str) -> Result<T, String> {
    word.parse().map_err(|error: T::Err| error.to_string())
}

/// All formats that keep the checkpoint's numbers are the same format.
fn format(quantize: &Quantization) -> String {
    if quantize.rounds() { quantize.to_string() } else { "none".into() }
}

fn switch(word: &str) -> Result<bool, String> {
    match word {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".into()),
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

fn numerics(word: &str) -> Result<Numerics, String> {
    let known = Numerics::ALL.iter().find(|numerics| numerics.word() == word);
    let all = || Numerics::ALL.map(Numerics::word).join(", ");
    known.copied().ok_or_else(|| format!("expected one of {}", all()))
}
