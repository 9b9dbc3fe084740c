//! Parses command lines whose options can also come from environment variables. An option on the command
//! line takes precedence over a variable.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::sync::OnceLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Error, FromArgMatches, Id};
use error_codes::Code;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Variable {
    id: Id,
    name: String,
    option: String,
    /// How clap writes the option in the context of an error.
    shown: String,
}

static SET: OnceLock<Vec<Variable>> = OnceLock::new();

/// Program name first. Prints an error and ends the process if the arguments are invalid.
pub fn parsed<A: FromArgMatches>(command: Command, words: impl IntoIterator<Item = OsString>) -> A {
    let words: Vec<OsString> = words.into_iter().collect();
    let (error, named) = match read(with_negative_numbers(command), &words) {
        Ok((read, set)) => {
            // A process parses one command line.
            let _ = SET.set(set);
            return read;
        }
        Err(refused) => refused,
    };
    if !error.use_stderr() {
        error.exit();
    }
    let text = error.render().ansi().to_string();
    let coded = format!("error[{}]:", Code::TW0001);
    // If writing to stderr fails, the exit code still reports the error.
    let _ = write!(anstream::stderr(), "{}", text.replacen("error:", &coded, 1));
    help(&named).iter().for_each(|help| say!("  help: {help}"));
    std::process::exit(error.exit_code())
}

/// Names the variables that are set: they can contradict options of the command line.
pub fn variables_help() -> Vec<String> {
    help(SET.get().map_or(&[], Vec::as_slice))
}

fn help(variables: &[Variable]) -> Vec<String> {
    // These options contradict no other option.
    const APART: [&str; 3] = ["--cache", "--iree-compile", "--log"];
    let help = |variable: &Variable| {
        let Variable { name, option, .. } = variable;
        format!("the environment variable `{name}` sets `{option}`")
    };
    variables.iter().filter(|variable| !APART.contains(&&*variable.option)).map(help).collect()
}

/// Variables that conflict with options on the command line have no effect. An error comes with the variables
/// that it concerns.
fn read<A: FromArgMatches>(
    mut command: Command,
    words: &[OsString],
) -> Result<(A, Vec<Variable>), (Error, Vec<Variable>)> {
    loop {
        let error = match command.clone().try_get_matches_from(words) {
            Ok(matches) => {
                let set = variables(command, &matches);
                return A::from_arg_matches(&matches)
                    .map(|read| (read, set))
                    .map_err(|error| (error, Vec::new()));
            }
            Err(error) => error,
        };
        // The values are there even if they contradict each other.
        let lenient = command.clone().ignore_errors(true).try_get_matches_from(words);
        let set = lenient.map_or_else(|_| Vec::new(), |matches| variables(command.clone(), &matches));
        let concerned = concerned(&error);
        let named: Vec<Variable> = match error.kind() {
            // The missing option is one that a variable's option needs.
            ErrorKind::MissingRequiredArgument => set,
            _ => set.into_iter().filter(|variable| concerned.contains(&variable.shown)).collect(),
        };
        let is_overridden = error.kind() == ErrorKind::ArgumentConflict && named.len() < concerned.len();
        if named.is_empty() || !is_overridden {
            return Err((error, named));
        }
        let ids: BTreeSet<&Id> = named.iter().map(|variable| &variable.id).collect();
        command = without_variables(command, &ids);
    }
}

fn concerned(error: &Error) -> BTreeSet<String> {
    let named = [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| match error.get(kind) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(several)) => several.clone(),
        _ => Vec::new(),
    });
    named.into_iter().flatten().collect()
}

fn variables(mut command: Command, matches: &ArgMatches) -> Vec<Variable> {
    command.build();
    let (mut command, mut matches) = (&command, matches);
    let mut found: Vec<Variable> = Vec::new();
    loop {
        let is_set = |argument: &&Arg| {
            // `--help` has no value.
            let known = matches.try_contains_id(argument.get_id().as_str()).is_ok();
            known && matches.value_source(argument.get_id().as_str()) == Some(ValueSource::EnvVariable)
        };
        for argument in command.get_arguments().filter(is_set) {
            let (Some(name), Some(long)) = (argument.get_env(), argument.get_long()) else { continue };
            let (id, name) = (argument.get_id().clone(), name.to_string_lossy().into_owned());
            let variable = Variable { id, name, option: format!("--{long}"), shown: argument.to_string() };
            if !found.contains(&variable) {
                found.push(variable);
            }
        }
        let Some((name, inner)) = matches.subcommand() else { return found };
        let Some(subcommand) = command.find_subcommand(name) else { return found };
        (command, matches) = (subcommand, inner);
    }
}

fn without_variables(command: Command, ids: &BTreeSet<&Id>) -> Command {
    let without = |argument: Arg| {
        if ids.contains(argument.get_id()) { argument.env(None::<&'static str>) } else { argument }
    };
    command.mut_args(without).mut_subcommands(|inner| without_variables(inner, ids))
}

/// Takes `-1` as a value for the option's own parser, and not as an unknown flag.
fn with_negative_numbers(command: Command) -> Command {
    let takes = |argument: Arg| {
        let takes = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes)
    };
    command.mut_args(takes).mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, ArgGroup};

    use super::*;

    fn command() -> Command {
        let variable = |name: &'static str| {
            Arg::new(name).long(name).action(ArgAction::Set).env(match name {
                "file" => "CONSOLE_TEST_FILE",
                "chat" => "CONSOLE_TEST_CHAT",
                "target" => "CONSOLE_TEST_TARGET",
                _ => "CONSOLE_TEST_DEVICE",
            })
        };
        let run = Command::new("run")
            .args(["file", "chat", "device"].map(variable))
            .arg(variable("target").requires("device"))
            .group(ArgGroup::new("input").args(["file", "chat"]).required(true));
        Command::new("program").subcommand(run)
    }

    /// The source of the options that are set, or the variables that the error concerns.
    fn read_with(names: &[&str], words: &[&str]) -> Result<String, Vec<String>> {
        let ids: Vec<Id> = ["file", "chat", "target", "device"].map(Id::from).into();
        let is_set = |id: &&Id| names.contains(&id.as_str());
        let unset: BTreeSet<&Id> = ids.iter().filter(|id| !is_set(id)).collect();
        // A default value with the source of a variable needs a variable of the process, so the test
        // uses one that every process has.
        let command = without_variables(command(), &unset).mut_subcommands(|inner| {
            inner.mut_args(|argument| match argument.get_env() {
                Some(_) => argument.env("PATH"),
                None => argument,
            })
        });
        let words: Vec<OsString> = ["program", "run"].iter().chain(words).map(OsString::from).collect();
        let read = read::<Sources>(with_negative_numbers(command), &words);
        read.map(|(Sources(text), _)| text)
            .map_err(|(_, named)| named.into_iter().map(|variable| variable.option).collect())
    }

    struct Sources(String);

    impl FromArgMatches for Sources {
        fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
            let (_, run) = matches.subcommand().expect("a subcommand");
            let source = |id: &&str| Some(format!("{id}={:?}", run.value_source(id)?));
            let all = ["file", "chat", "target", "device"];
            Ok(Self(all.iter().filter_map(source).collect::<Vec<_>>().join(" ")))
        }

        fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
            *self = Self::from_arg_matches(matches)?;
            Ok(())
        }
    }

    #[test]
    fn the_command_line_takes_precedence_over_variables() {
        let named = |options: &[&str]| Err(options.iter().map(|&option| option.to_owned()).collect());
        type Case<'a> = (&'a [&'a str], &'a [&'a str], Result<String, Vec<String>>);
        let cases: &[Case<'_>] = &[
            (&["file"], &[], Ok("file=EnvVariable".into())),
            (&["file"], &["--chat", "a"], Ok("chat=CommandLine".into())),
            (&["chat"], &["--file", "a"], Ok("file=CommandLine".into())),
            (&["file", "chat"], &[], named(&["--file", "--chat"])),
            (&["file"], &["--chat", "-1"], Ok("chat=CommandLine".into())),
            (&["target"], &["--chat", "a"], named(&["--target"])),
            (
                &["target"],
                &["--chat", "a", "--device", "d"],
                Ok("chat=CommandLine target=EnvVariable device=CommandLine".into()),
            ),
            (&[], &["--chat", "a", "--file", "b"], named(&[])),
            (&["target"], &["--unknown", "a"], named(&[])),
        ];
        for (variables, words, expected) in cases {
            assert_eq!(&read_with(variables, words), expected, "{variables:?} {words:?}");
        }
    }
}
