//! Options that determine how a network is built.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use tracewright::models::{Opened, check_generates};
use tracewright::numeric::{NumericOption, NumericScope};
use tracewright::quant_map::{QuantMapError, read_quant_map};
use tracewright::trace::Quantization;
use tracewright::{NumericOptions, Plan, PlanError};

use crate::error::ConsoleError;

/// Defines the flags of the numeric options in a scope.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident, $scope:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name(NumericOptions);

        impl $name {
            fn flags() -> impl Iterator<Item = &'static NumericOption> {
                NumericOption::ALL.iter().filter(|option| option.scope == NumericScope::$scope)
            }
        }

        impl Deref for $name {
            type Target = NumericOptions;

            fn deref(&self) -> &NumericOptions {
                &self.0
            }
        }

        impl DerefMut for $name {
            fn deref_mut(&mut self) -> &mut NumericOptions {
                &mut self.0
            }
        }

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                command.args(Self::flags().map(flag))
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                let mut options = NumericOptions::default();
                for option in Self::flags() {
                    if let Some(word) = matches.get_one::<String>(option.name) {
                        let invalid = |error| clap::Error::raw(ErrorKind::ValueValidation, error);
                        option.set(&mut options, word).map_err(invalid)?;
                    }
                }
                Ok(Self(options))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

flags! {
    /// The numeric options of networks.
    NumericArguments, Network
}
flags! {
    /// The numeric options of networks that generate text.
    TextArguments, Text
}
flags! {
    /// The numeric options of devices.
    NumericsArguments, Device
}

fn flag(option: &'static NumericOption) -> Arg {
    let check = |word: &str| option.set(&mut NumericOptions::default(), word).map(|()| word.to_owned());
    Arg::new(option.name).long(option.name).value_name(option.values).help(option.help).value_parser(check)
}

/// Options for building a network of any kind.
#[derive(Args, Clone)]
pub struct NetworkArguments {
    #[command(flatten)]
    pub numeric: NumericArguments,
    /// JSON file with the formats of some weight matrices, such as {"model.layers.*.mlp.down_proj.weight":
    /// "q8"}; `--quant` sets the format of all other matrices
    #[arg(long, value_name = "FILE.json", requires = "quant")]
    pub quant_map: Option<PathBuf>,
    /// Ignore a key of config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

impl NetworkArguments {
    /// Returns the numeric options, with the formats in the file of `--quant-map`.
    pub fn numeric(&self) -> Result<NumericOptions, QuantMapError> {
        let mut numeric = NumericOptions::clone(&self.numeric);
        if let (Some(base), Some(path)) = (&self.numeric.quantize, &self.quant_map) {
            numeric.quantize = Some(Quantization::mapped(base.clone(), read_quant_map(path)?));
        }
        Ok(numeric)
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
    #[command(flatten)]
    pub text: TextArguments,
}

impl ModelArguments {
    /// Returns the plan of a model for a given context.
    pub fn plan(&self, model: Opened, path: &Path, context: Option<usize>) -> Result<Plan, ConsoleError> {
        check_generates(&model.kind, path)?;
        let numeric = self.numeric().map_err(PlanError::from)?;
        Ok(numeric.plan(Plan::new(model, numeric.dtype, context, self.chunk)?))
    }

    /// Returns the numeric options of the network and of its KV cache.
    pub fn numeric(&self) -> Result<NumericOptions, QuantMapError> {
        Ok(self.network.numeric()?.or(&self.text))
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
