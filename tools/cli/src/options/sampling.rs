//! The sampling flags, which have the same names as in llama.cpp. This module converts the flags to
//! the library's options.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[cfg(feature = "iree")]
use tracewright::model::Speculation as Speculate;
/// A build without a runtime cannot propose draft tokens, so `--speculate` accepts any text.
#[cfg(not(feature = "iree"))]
type Speculate = String;

/// A sampling step, which changes or filters the logits. Sampling steps have the same names as in
/// llama.cpp.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum StepName {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    TypP,
    TopP,
    MinP,
    TopH,
    EpsilonCutoff,
    EtaCutoff,
    Xtc,
    Temperature,
}

#[derive(Args, Clone)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArguments {
    /// Sampling temperature: 0 always chooses the most likely token, and a higher temperature
    /// chooses unlikely tokens more often [default: the model's, or 0]
    #[arg(long, visible_alias = "temperature", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Keep only the K most likely tokens; 0 keeps all tokens [default: the model's, or 0]
    #[arg(long)]
    pub top_k: Option<usize>,
    /// Keep the smallest set of most likely tokens whose probabilities add up to at least this
    /// value; 1 keeps all tokens [default: the model's, or 1]
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens with at least this fraction of the highest probability; 0 keeps all tokens
    /// [default: the model's, or 0]
    #[arg(long, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Keep the tokens whose surprise (negative log probability) is nearest to the average
    /// surprise, up to this total probability; 1 keeps all tokens [default: the model's, or 1]
    #[arg(long, visible_alias = "typical-p", value_name = "P", allow_negative_numbers = true)]
    pub typical: Option<f32>,
    /// Keep tokens whose logits are at most N standard deviations below the highest logit; 0 or a
    /// negative number keeps all tokens
    #[arg(
        long,
        visible_alias = "top-n-sigma",
        value_name = "N",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub top_nsigma: f32,
    /// Number of last tokens that the repeat, frequency and presence penalties consider: 0 for no
    /// tokens, -1 for all tokens [default: 64, or -1 if the model sets a repetition penalty]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: Option<i64>,
    /// Repetition penalty: divide the positive logits of earlier tokens by this value, and multiply
    /// the negative logits of earlier tokens; 1 changes nothing [default: the model's, or 1]
    #[arg(long, visible_alias = "repetition-penalty", value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Subtract this value from a token's logit for each earlier occurrence of the token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Subtract this value once from the logit of each token that occurred earlier
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// DRY penalty: subtract X · BASE^(length - allowed length) from the logit of each token that
    /// would extend a repetition of this length; 0 turns DRY off
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// Base of the DRY penalty, the BASE in the formula of --dry-multiplier
    #[arg(long, value_name = "BASE", default_value_t = 1.75, allow_negative_numbers = true)]
    pub dry_base: f32,
    /// Length in tokens of the shortest repetition that DRY penalizes
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// Number of last tokens in which DRY searches for repetitions: 0 for no tokens, -1 for all
    /// tokens
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub dry_penalty_last_n: i64,
    /// Text at which DRY ends a repetition, or `none` for no such text; may be repeated [default:
    /// newline : " *]
    #[arg(long, value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
    /// Probability with which XTC removes the most likely candidates for a token; 0 turns XTC off
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// Probability above which a token is a candidate for XTC, which keeps only the least likely
    /// candidate; a value above 0.5 turns XTC off
    #[arg(long, value_name = "P", default_value_t = 0.1, allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Sample with Mirostat (1) or Mirostat 2.0 (2), which replaces all other sampling steps except the
    /// temperature; 0 turns Mirostat off
    #[arg(long, value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub mirostat: u8,
    /// Learning rate of Mirostat (eta)
    #[arg(long, value_name = "X", default_value_t = 0.1, allow_negative_numbers = true)]
    pub mirostat_lr: f32,
    /// Target surprise of Mirostat in bits (tau)
    #[arg(long, value_name = "BITS", default_value_t = 5.0, allow_negative_numbers = true)]
    pub mirostat_ent: f32,
    /// Number of tokens in sequences that a text contains at most once; 0 allows all sequences
    /// [default: the model's, or 0]
    #[arg(long, value_name = "N")]
    pub no_repeat_ngram_size: Option<usize>,
    /// Number of new tokens before the answer can end [default: the model's, or 0]
    #[arg(long, value_name = "N")]
    pub min_new_tokens: Option<usize>,
    /// Ids of tokens that no answer contains, such as 5,17 [default: the model's]
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub suppress_tokens: Option<Vec<u32>>,
    /// Ignore the model's `generation_config.json`, except its stop tokens
    #[arg(long)]
    pub ignore_generation_config: bool,
    /// Sampling steps, in the order in which they run; a step that you leave out is skipped [default:
    /// `penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;top_h;epsilon_cutoff;eta_cutoff;xtc;temperature`, or the
    /// order of transformers if the model sets sampling steps]
    #[arg(long, value_name = "STEPS", value_delimiter = ';', hide_possible_values = true)]
    pub samplers: Option<Vec<StepName>>,
    /// Seed of the random draws; the same seed draws the same tokens
    #[arg(short, long, default_value_t = 0)]
    pub seed: u64,
    /// Constrain the answer to JSON that matches the JSON Schema in this file
    #[arg(long, value_name = "FILE", conflicts_with = "grammar", group = "constraint")]
    pub json_schema: Option<PathBuf>,
    /// Constrain the answer to the grammar in this file, which uses llguidance's variant of the
    /// Lark syntax
    #[arg(long, value_name = "FILE", group = "constraint")]
    pub grammar: Option<PathBuf>,
    /// Propose several draft tokens, which the model verifies in one call. The draft tokens are
    /// copies of earlier text (`lookup`), or come from a smaller model with the same tokenizer
    /// (`draft=MODEL`), or from the model's own module for multi-token prediction (`mtp`). Draft
    /// tokens do not change the answer
    #[arg(long, value_name = "off|lookup|draft=MODEL|mtp", default_value = "off")]
    pub speculate: Speculate,
    /// Allow whitespace between the elements of a JSON answer; without this flag, a JSON answer
    /// contains no whitespace between elements
    #[arg(long, requires = "constraint")]
    pub whitespace_flexible: bool,
}

#[cfg(feature = "iree")]
mod wanted {
    use std::path::Path;

    use console::{read_text_within, usage};
    use error_codes::AnyCoded;
    use tracewright::files::limits;
    use tracewright::generate::{
        Breakers, Dry, GenerationDefaults, LogitRules, Mirostat, MirostatVersion, Penalties, Sampler,
        Sampling, SamplingStep, Tokenizer, Xtc,
    };
    use tracewright::model::Opening;
    use tracewright::{Follow, GenerateOptions};

    use super::{SamplingArguments, StepName};
    use crate::error::Error;

    impl From<StepName> for SamplingStep {
        fn from(step: StepName) -> Self {
            match step {
                StepName::Penalties => Self::Penalties,
                StepName::Dry => Self::Dry,
                StepName::TopNSigma => Self::TopNSigma,
                StepName::TopK => Self::TopK,
                StepName::TypP => Self::TypicalP,
                StepName::TopP => Self::TopP,
                StepName::MinP => Self::MinP,
                StepName::TopH => Self::TopH,
                StepName::EpsilonCutoff => Self::EpsilonCutoff,
                StepName::EtaCutoff => Self::EtaCutoff,
                StepName::Xtc => Self::Xtc,
                StepName::Temperature => Self::Temperature,
            }
        }
    }

    impl SamplingArguments {
        /// Returns the sampling settings of the model, with those that the flags set. The function
        /// checks the settings before the slow compilation begins.
        fn sampling(&self, model: &Sampling) -> Result<Sampling, Error> {
            // -1 is all of them, as in llama.cpp.
            let last_n = |n: i64| usize::try_from(n).ok();
            let version = match self.mirostat {
                1 => Some(MirostatVersion::One),
                2 => Some(MirostatVersion::Two),
                _ => None,
            };
            let (target, rate) = (self.mirostat_ent, self.mirostat_lr);
            let sampling = Sampling {
                temperature: self.temp.unwrap_or(model.temperature),
                top_k: self.top_k.unwrap_or(model.top_k),
                top_p: self.top_p.unwrap_or(model.top_p),
                min_p: self.min_p.unwrap_or(model.min_p),
                typical_p: self.typical.unwrap_or(model.typical_p),
                top_n_sigma: self.top_nsigma,
                rules: self.rules(&model.rules),
                penalties: Penalties {
                    last_n: self.repeat_last_n.map_or(model.penalties.last_n, last_n),
                    repeat: self.repeat_penalty.unwrap_or(model.penalties.repeat),
                    frequency: self.frequency_penalty,
                    presence: self.presence_penalty,
                },
                dry: Dry {
                    multiplier: self.dry_multiplier,
                    base: self.dry_base,
                    allowed_length: self.dry_allowed_length,
                    last_n: last_n(self.dry_penalty_last_n),
                    breakers: Breakers::default(),
                },
                xtc: Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold },
                mirostat: version.map(|version| Mirostat { version, target, rate }),
                order: match &self.samplers {
                    Some(steps) => steps.iter().copied().map(SamplingStep::from).collect(),
                    None => model.order.clone(),
                },
                seed: self.seed,
                ..model.clone()
            };
            Sampler::new(&sampling)?;
            Ok(sampling)
        }

        /// Returns the model's rules for tokens, with those that the flags set.
        fn rules(&self, model: &LogitRules) -> LogitRules {
            LogitRules {
                no_repeat_ngram_size: self.no_repeat_ngram_size.unwrap_or(model.no_repeat_ngram_size),
                min_new_tokens: self.min_new_tokens.unwrap_or(model.min_new_tokens),
                suppress_tokens: self.suppress_tokens.as_ref().unwrap_or(&model.suppress_tokens).clone(),
                ..model.clone()
            }
        }

        /// Warns of flags that have no effect because of the values of other flags.
        fn say_idle(&self, wanted: &Sampling) {
            let usual = Sampling::default();
            let greedy = wanted.temperature == 0.0;
            let idle = [
                ("--top-k", greedy && self.top_k.is_some_and(|k| k != usual.top_k), "--temp"),
                ("--top-p", greedy && self.top_p.is_some_and(|p| p != usual.top_p), "--temp"),
                ("--min-p", greedy && self.min_p.is_some_and(|p| p != usual.min_p), "--temp"),
                ("--typical", greedy && self.typical.is_some_and(|p| p != usual.typical_p), "--temp"),
                ("--top-nsigma", greedy && wanted.top_n_sigma != usual.top_n_sigma, "--temp"),
                ("--xtc-probability", greedy && wanted.xtc.probability != 0.0, "--temp"),
                ("--mirostat", greedy && wanted.mirostat.is_some(), "--temp"),
                ("--seed", greedy && wanted.seed != usual.seed, "--temp"),
                (
                    "--dry-sequence-breaker",
                    wanted.dry.multiplier == 0.0 && !self.dry_sequence_breaker.is_empty(),
                    "--dry-multiplier",
                ),
            ];
            for (flag, _, other) in idle.iter().filter(|(_, is_idle, _)| *is_idle) {
                say!("`{flag}` does nothing without `{other}`");
            }
        }

        /// The texts at which DRY ends a repetition; `None` selects the default texts.
        fn breakers(&self, tokenizer: Option<&Tokenizer>) -> Result<Option<Vec<String>>, Error> {
            let given = &self.dry_sequence_breaker;
            match tokenizer {
                _ if given.is_empty() => Ok(None),
                _ if given.iter().all(|text| text == "none") => Ok(Some(Vec::new())),
                Some(_) => Ok(Some(given.clone())),
                None => {
                    let what = "`--dry-sequence-breaker` needs text, and the model has no tokenizer.json";
                    Err(usage(what).into())
                }
            }
        }

        /// Returns the schema or grammar that the answer must follow, or `None` if no flag sets a
        /// schema or grammar.
        fn follow(&self, model: &Path, tokenizer: Option<&Tokenizer>) -> Result<Option<Follow>, Error> {
            let (flag, path, follow): (_, _, fn(String) -> Follow) = match (&self.json_schema, &self.grammar)
            {
                (Some(path), _) => ("json-schema", path, Follow::JsonSchema),
                (None, Some(path)) => ("grammar", path, Follow::Grammar),
                (None, None) => return Ok(None),
            };
            if tokenizer.is_none() {
                let what = format!("`--{flag}` needs text, and `{}` has no tokenizer.json", model.display());
                return Err(usage(what).into());
            }
            Ok(Some(follow(read_text_within(path, limits::GRAMMAR)?)))
        }

        /// Returns the generation options that the model and the flags set.
        pub fn options(&self, model: &Path, opening: &Opening) -> Result<GenerateOptions, Error> {
            let tokenizer = opening.tokenizer();
            let options = self.over(opening.defaults())?;
            self.say_idle(&options.sampling);
            let repeats = options.sampling.dry.multiplier != 0.0;
            Ok(GenerateOptions {
                dry_breakers: if repeats { self.breakers(tokenizer)? } else { None },
                follow: self.follow(model, tokenizer)?,
                whitespace_flexible: self.whitespace_flexible,
                ..options
            })
        }

        /// Returns the options that a model sets for its texts, with those that the flags set.
        pub fn over(&self, model: &GenerationDefaults) -> Result<GenerateOptions, Error> {
            let model = self.of_model(model);
            let sampling = self.sampling(&model.options.sampling)?;
            Ok(GenerateOptions { sampling, ..model.options })
        }

        /// Returns the options that a model sets, unless a flag ignores these options.
        pub fn of_model(&self, model: &GenerationDefaults) -> GenerationDefaults {
            match self.ignore_generation_config {
                true => GenerationDefaults::default(),
                false => model.clone(),
            }
        }

        /// Checks whether a model supports the generation options, and prints the parts of a schema that
        /// an answer can violate. An error or a note about a schema or a grammar contains the path of the
        /// file.
        pub fn check(&self, opening: &Opening, options: &GenerateOptions) -> Result<(), Error> {
            let path = self.json_schema.as_ref().or(self.grammar.as_ref());
            let notes = opening.check_options(options).map_err(|source| match path {
                Some(path) => Error::Followed { path: path.clone(), source: AnyCoded::new(source) },
                None => source.into(),
            })?;
            for (note, path) in notes.iter().zip(path.into_iter().cycle()) {
                console::say(&format!("`{}`: {note}", path.display()));
            }
            Ok(())
        }
    }
}
