//! The flags of the sampler's settings, which the list of sampling steps defines.

use clap::builder::{PossibleValuesParser, RangedI64ValueParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use tracewright::generate::{Sampling, SamplingStep, Setting};

use crate::error::Error;

const SAMPLERS: &str = "samplers";

/// The settings that the command line sets.
#[derive(Clone, Default)]
pub struct SamplerFlags {
    numbers: Vec<(&'static Setting, f64)>,
    order: Option<Vec<SamplingStep>>,
}

/// Returns the flag of a setting, without `--`.
pub fn flag(setting: &Setting) -> String {
    setting.flags.first().map_or_else(|| setting.name.replace('_', "-"), |flag| (*flag).to_owned())
}

fn argument(setting: &'static Setting) -> Arg {
    let range = setting.range;
    let parser: ValueParser = if range.is_whole {
        // The cast saturates.
        RangedI64ValueParser::<i64>::new().range(range.least as i64..=range.most as i64).into()
    } else {
        clap::value_parser!(f64).into()
    };
    let usual = setting.shown(Sampling::default().get(setting));
    let model = if setting.model_key.is_some() { "the model's, or " } else { "" };
    Arg::new(setting.name)
        .long(flag(setting))
        .visible_aliases(setting.flags.iter().skip(1))
        .value_name(setting.placeholder)
        .help(format!("{} [default: {model}{usual}]", setting.help))
        .allow_negative_numbers(range.least < 0.0 || !range.is_whole)
        .value_parser(parser)
}

impl Args for SamplerFlags {
    fn augment_args(command: Command) -> Command {
        let words: Vec<&str> = SamplingStep::ORDER.iter().map(|step| step.word()).collect();
        let help = format!(
            "Sampling steps, in the order in which they run; a step that you leave out is skipped [default: `{}`, or the \
             order of transformers if the model sets sampling steps]",
            words.join(";")
        );
        let samplers = Arg::new(SAMPLERS)
            .long(SAMPLERS)
            .value_name("STEPS")
            .value_delimiter(';')
            .num_args(1)
            .action(clap::ArgAction::Append)
            .hide_possible_values(true)
            .help(help)
            .value_parser(PossibleValuesParser::new(words));
        let mut settings: Vec<_> = Sampling::settings().collect();
        // The most common flag comes first.
        settings.sort_by_key(|setting| setting.name != "temperature");
        command.args(settings.into_iter().map(argument)).arg(samplers)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplerFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let number = |setting: &'static Setting| {
            let number = if setting.range.is_whole {
                matches.get_one::<i64>(setting.name).map(|&number| number as f64)
            } else {
                matches.get_one(setting.name).copied()
            };
            Some((setting, number?))
        };
        let words = matches.get_many::<String>(SAMPLERS);
        let order = words.map(|words| words.filter_map(|word| SamplingStep::of_word(word)).collect());
        Ok(Self { numbers: Sampling::settings().filter_map(number).collect(), order })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let Self { numbers, order } = Self::from_arg_matches(matches)?;
        numbers.into_iter().for_each(|(setting, number)| self.set(setting, number));
        self.order = order.or(self.order.take());
        Ok(())
    }
}

/// Returns the setting with this flag, or with this name in requests.
pub fn setting_of(name: &str) -> Option<&'static Setting> {
    let has_name = |setting: &&Setting| {
        let names = setting.flags.iter().chain(setting.aliases).chain([&setting.name]);
        flag(setting) == name || names.into_iter().any(|one| *one == name)
    };
    Sampling::settings().find(has_name)
}

impl SamplerFlags {
    /// Sets a number, in place of an earlier one.
    pub fn set(&mut self, setting: &'static Setting, number: f64) {
        self.numbers.retain(|(given, _)| given.name != setting.name);
        self.numbers.push((setting, number));
    }

    /// Changes the settings that the command line sets.
    pub fn apply(&self, sampling: &mut Sampling) -> Result<(), Error> {
        for (setting, number) in &self.numbers {
            sampling.set(setting, *number)?;
        }
        if let Some(order) = &self.order {
            sampling.order.clone_from(order);
        }
        Ok(())
    }

    /// Returns the flags on the command line that have no effect, because the temperature is 0.
    pub fn idle(&self, sampling: &Sampling) -> Vec<String> {
        let is_given = |setting: &&Setting| self.numbers.iter().any(|(given, _)| given.name == setting.name);
        sampling.without_effect().into_iter().filter(is_given).map(flag).collect()
    }
}
