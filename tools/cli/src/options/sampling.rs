//! The sampling flags, which have the same names as in llama.cpp. This module converts the flags to
//! the library's options. The list of sampling steps in the library defines most flags, so builds without a
//! runtime lack these flags.

use std::path::PathBuf;

use clap::Args;

#[cfg(feature = "iree")]
use super::sampler_flags::SamplerFlags;
#[cfg(feature = "iree")]
use tracewright::model::Speculation as Speculate;
/// A build without a runtime cannot propose draft tokens, so `--speculate` accepts any text.
#[cfg(not(feature = "iree"))]
type Speculate = String;

#[derive(Args, Clone)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArguments {
    #[cfg(feature = "iree")]
    #[command(flatten)]
    pub sampler: SamplerFlags,
    /// Text at which DRY ends a repetition, or `none` for no such text; may be repeated [default:
    /// newline : " *]
    #[arg(long, value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
    /// Ids of tokens that no answer contains, such as 5,17 [default: the model's]
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub suppress_tokens: Option<Vec<u32>>,
    /// Ignore the model's `generation_config.json`, except its stop tokens
    #[arg(long)]
    pub ignore_generation_config: bool,
    /// Seed of the random draws; the same seed draws the same tokens
    #[arg(short, long, default_value_t = 0)]
    pub seed: u64,
    /// Constrain the answer to JSON that matches the JSON Schema in this file
    #[arg(long, value_name = "FILE", conflicts_with = "grammar", group = "constraint")]
    pub json_schema: Option<PathBuf>,
    /// Constrain the answer to the grammar in this file, which uses llguidance's variant of the Lark syntax
    #[arg(long, value_name = "FILE", group = "constraint")]
    pub grammar: Option<PathBuf>,
    /// Propose several draft tokens, which the model verifies in one call. The draft tokens are copies of
    /// earlier text (`lookup`), or come from a smaller model with the same tokenizer (`draft=MODEL`), or from
    /// the model's own module for multi-token prediction (`mtp`). Draft tokens do not change the answer
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
    use tracewright::generate::{GenerationDefaults, Sampler, Sampling, Tokenizer};
    use tracewright::model::Opening;
    use tracewright::{Follow, GenerateOptions};

    use super::SamplingArguments;
    use crate::error::Error;

    impl SamplingArguments {
        /// Returns the sampling settings of the model, with those that the flags set. The function
        /// checks the settings before the slow compilation begins.
        fn sampling(&self, model: &Sampling) -> Result<Sampling, Error> {
            let mut sampling = Sampling { seed: self.seed, ..model.clone() };
            self.sampler.apply(&mut sampling)?;
            if let Some(tokens) = &self.suppress_tokens {
                sampling.rules.suppress_tokens.clone_from(tokens);
            }
            Sampler::new(&sampling)?;
            Ok(sampling)
        }

        /// Warns of flags that have no effect because of the values of other flags.
        fn say_idle(&self, wanted: &Sampling) {
            for flag in self.sampler.idle(wanted) {
                say!("`--{flag}` does nothing without `--temp`");
            }
            if wanted.temperature == 0.0 && wanted.seed != 0 {
                say!("`--seed` does nothing without `--temp`");
            }
            if wanted.dry.multiplier == 0.0 && !self.dry_sequence_breaker.is_empty() {
                say!("`--dry-sequence-breaker` does nothing without `--dry-multiplier`");
            }
        }

        /// The texts at which DRY ends a repetition; `None` selects the default texts.
        pub fn given_breakers(&self) -> Option<Vec<String>> {
            let given = &self.dry_sequence_breaker;
            let is_none = given.iter().all(|text| text == "none");
            (!given.is_empty()).then(|| if is_none { Vec::new() } else { given.clone() })
        }

        fn breakers(&self, tokenizer: Option<&Tokenizer>) -> Result<Option<Vec<String>>, Error> {
            let given = self.given_breakers();
            if tokenizer.is_none() && given.as_ref().is_some_and(|texts| !texts.is_empty()) {
                let what = "`--dry-sequence-breaker` needs text, and the model has no tokenizer.json";
                return Err(usage(what).into());
            }
            Ok(given)
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
            if self.ignore_generation_config { GenerationDefaults::default() } else { model.clone() }
        }

        /// Checks whether a model supports the generation options, and prints the parts of a schema that an
        /// answer can violate. An error or a note about a schema or a grammar contains the path of the file.
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
