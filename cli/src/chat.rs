//! `tracewright chat`: messages from a terminal or from stdin, and answers.
//!
//! The session keeps what the network has seen. Of each turn only the text is read that the chat template adds; where the
//! template writes anew what came before, as those do that leave out old thoughts, the session goes back to where the
//! tokens part.

use std::fs;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use etcetera::BaseStrategy as _;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use serde_json::{Value, json};
use tracewright::files::{NewFile, limits};
use tracewright::generate::{
    Finish, GenerateError, Generated, Session, TokenOptions, Tokenizer, stop_tokens,
};
use tracewright::output;
use tracewright::own::check_output;

use crate::arguments::ChatArguments;
use crate::error::{self, Error};
use crate::extras::Extras;
use crate::generate::{Answer, say_ends};
use crate::load::{Loaded, Source, Wanted};
use crate::measure::milliseconds;
use crate::prompt::{conversation, rendered};
use crate::{Interrupt, ReadModel};

/// Tokens that a chat has room for, unless somebody says otherwise.
const ROOM: usize = 4096;

/// What is said with a slash, and what it does.
const COMMANDS: [(&str, &str); 6] = [
    ("/help", "list the commands"),
    ("/reset", "begin a new chat, with the same system message"),
    ("/system TEXT", "begin a new chat with this system message, or with none"),
    ("/save FILE", "write the chat as JSON, which `tracewright prompt --messages FILE` reads"),
    ("/exit", "end, as Ctrl-D does"),
    ("//…", "a message that begins with a slash"),
];

pub fn run(arguments: &ChatArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let model = &arguments.model;
    let source = Source::read(model, &arguments.run, read)?;
    let (tokenizer, options, extras) = {
        let arguments = arguments.clone();
        interrupt.or(move || -> Result<_, Error> {
            let model = &arguments.model;
            let Some(tokenizer) = Tokenizer::load(model)? else {
                let what = format!("a chat needs text, and `{}` has no tokenizer.json", model.display());
                return Err(Error::Usage { what });
            };
            // A model without a template, or with one that fails, is known before anything slow begins.
            let extras = Extras::read(&arguments.template)?;
            rendered(model, conversation(None, "Hello"), &extras)?;
            let stop_tokens = stop_tokens(model)?;
            let options = TokenOptions {
                max_tokens: arguments.max_tokens,
                sampling: arguments.sampling.sampling(Some(&tokenizer))?,
                constraint: arguments.sampling.constraint(model, Some(&tokenizer), &stop_tokens)?,
                stop_tokens,
                ..TokenOptions::default()
            };
            Ok((Arc::new(tokenizer), options, extras))
        })??
    };
    let wanted = Wanted { prompt: &[], new_tokens: ROOM, all_positions: false, commands: false };
    let loaded = source.load(model, &arguments.run, &wanted, interrupt)?;
    interrupt.check()?;
    say_ends(&options, &loaded);
    if options.stop_tokens.is_empty() && arguments.stop.is_empty() {
        let most = arguments.max_tokens;
        say!(
            "the model names no token that ends an answer (`eos_token_id`): each has {most} tokens, or use `--stop`"
        );
    }

    let mut input = Input::open(arguments.no_history)?;
    if matches!(input, Input::Terminal(..)) {
        say!("a context of {} tokens; /help lists the commands, Ctrl-D ends", loaded.network.context());
    }
    let mut chat = Chat {
        arguments,
        interrupt,
        tokenizer,
        options,
        extras,
        session: Session::new(&loaded.network),
        loaded: &loaded,
        system: arguments.system.clone(),
        turns: Vec::new(),
        shown: None,
    };
    loop {
        interrupt.wait(true);
        let line = input.read()?;
        interrupt.wait(false);
        let Some(line) = line else { return Ok(()) };
        match (line.strip_prefix("//"), line.strip_prefix('/')) {
            (Some(message), _) => chat.answer(&format!("/{message}"))?,
            (None, Some(command)) => match chat.command(command) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => error::tell(&error),
            },
            (None, None) if line.trim().is_empty() => {}
            (None, None) => chat.answer(&line)?,
        }
    }
}

struct Chat<'a> {
    arguments: &'a ChatArguments,
    interrupt: &'a Interrupt,
    tokenizer: Arc<Tokenizer>,
    options: TokenOptions,
    /// What the template sees at every turn beside the messages.
    extras: Extras,
    loaded: &'a Loaded,
    session: Session<'a>,
    system: Option<String>,
    /// The messages of both sides.
    turns: Vec<Value>,
    /// The text whose tokens are exactly those of the session, where that is known.
    shown: Option<String>,
}

impl Chat<'_> {
    /// Does what was said with a slash, and says whether the chat goes on.
    fn command(&mut self, command: &str) -> Result<bool, Error> {
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" => COMMANDS.iter().for_each(|(name, what)| say!("{name:13} {what}")),
            "reset" => {
                self.turns.clear();
                say!("a new chat");
            }
            "system" => {
                self.system = (!rest.is_empty()).then(|| rest.to_owned());
                self.turns.clear();
                say!("a new chat with {} system message", if rest.is_empty() { "no" } else { "this" });
            }
            "save" if rest.is_empty() => say!("/save needs the name of a file"),
            "save" => {
                let path = Path::new(rest);
                check_output(&self.arguments.model, path)?;
                NewFile::write(
                    path,
                    output::MESSAGES,
                    format!("{:#}\n", Value::from(self.messages())).as_bytes(),
                )?;
                say!("wrote {} messages to `{rest}`", self.messages().len());
            }
            "exit" | "quit" => return Ok(false),
            _ => say!("there is no command `/{name}`; /help lists them, `//` begins a message with a slash"),
        }
        Ok(true)
    }

    /// The whole chat.
    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        system.chain(self.turns.iter().cloned()).collect()
    }

    /// Answers a message. What is wrong with it alone is said, and the chat goes on without it.
    fn answer(&mut self, message: &str) -> Result<(), Error> {
        self.interrupt.clear();
        self.turns.push(json!({ "role": "user", "content": message }));
        match self.generate() {
            Ok(()) => return Ok(()),
            Err(Error::Interrupted) => self.interrupt.clear(),
            Err(Error::Generate(GenerateError::TooLong { length, .. })) => {
                let limit = self.loaded.limit;
                say!(
                    "the message is not answered: the chat has {length} tokens, expected at most {limit}; {}",
                    self.room()
                );
            }
            Err(
                error @ (Error::Said { .. }
                | Error::Template
                | Error::Generate(GenerateError::Tokenize { .. })),
            ) => {
                error::tell(&error);
            }
            Err(error) => return Err(error),
        }
        self.turns.pop();
        Ok(())
    }

    fn generate(&mut self) -> Result<(), Error> {
        let text = rendered(&self.arguments.model, self.messages(), &self.extras)?;
        let prompt = self.new_tokens(&text)?;
        let before = self.session.tokens().len();
        let tokenizer = self.tokenizer.clone();
        let mut answer = Answer::new(&self.arguments.stop, false, Some(&tokenizer));
        let generated = answer.stream(&mut self.session, &prompt, &self.options, self.interrupt)?;
        writeln!(io::stdout()).map_err(Error::Output)?;
        self.interrupt.clear();
        self.summarize(before, &generated);
        let answered = answer.text;
        // What the template will write of this answer, if all tokens of it were seen and have a text.
        let seen = before + prompt.len() + generated.tokens.len();
        let has_text = !generated.tokens.iter().any(|&token| tokenizer.is_special(token));
        let known = seen == self.session.tokens().len() && has_text;
        self.shown = known.then(|| text + &answered);
        match answered.is_empty() && generated.finish == Finish::Cancelled {
            true => drop(self.turns.pop()),
            false => self.turns.push(json!({ "role": "assistant", "content": answered })),
        }
        Ok(())
    }

    /// Goes back to where the chat, of which this is the text, parts from what the session has seen, and gives the tokens
    /// that follow.
    fn new_tokens(&mut self, text: &str) -> Result<Vec<u32>, Error> {
        let added = self.shown.take().and_then(|shown| text.strip_prefix(&shown).map(str::to_owned));
        let goes_on = added.is_some();
        let tokenizer = self.tokenizer.clone();
        let encoded = added.unwrap_or_else(|| text.to_owned());
        let mut tokens = self.interrupt.or(move || tokenizer.encode_plain(&encoded))??;
        if goes_on && !tokens.is_empty() {
            return Ok(tokens);
        }
        let same = tokens.iter().zip(self.session.tokens()).take_while(|(new, seen)| new == seen).count();
        // The last one is shown in any case: its logits choose the next.
        let same = same.min(tokens.len().saturating_sub(1));
        self.session.truncate(same);
        tokens.drain(..same);
        Ok(tokens)
    }

    /// How to have room for more.
    fn room(&self) -> String {
        let raised = self.loaded.limit.raised().map(|raised| format!("; {raised}"));
        format!("/reset begins a new chat{}", raised.unwrap_or_default())
    }

    /// What an answer took, on stderr.
    fn summarize(&self, before: usize, generated: &Generated) {
        let new = generated.prefill_tokens;
        say!(
            "prompt {} tokens, {new} of them new, in {:.0} ms ({:.1}/s); {} new tokens at {:.1}/s",
            before + new,
            milliseconds(generated.prefill),
            generated.prefill_rate(),
            generated.tokens.len(),
            generated.decode_rate(),
        );
        match generated.finish {
            Finish::Context => {
                say!("the context of {} tokens is full: {}", self.loaded.limit.tokens, self.room());
            }
            Finish::Length => {
                say!("the answer is cut: `-n N` allows more than {} tokens", generated.tokens.len())
            }
            Finish::Cancelled => say!("stopped; Ctrl-D ends the chat"),
            Finish::Stop => {}
        }
    }
}

/// Where messages come from.
enum Input {
    /// Somebody types, with a history of what was typed, and the file that keeps it, if one does.
    Terminal(Box<DefaultEditor>, Option<PathBuf>),
    /// Lines of stdin.
    Lines(io::Stdin),
}

impl Input {
    fn open(no_history: bool) -> Result<Self, Error> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Ok(Self::Lines(io::stdin()));
        }
        let remembers = Config::builder().max_history_size(REMEMBERED).map_err(typed)?.build();
        let mut editor = DefaultEditor::with_config(remembers).map_err(typed)?;
        let file = if no_history { None } else { history_file() };
        if let Some(path) = &file {
            // One that is not there, or is none, is no history.
            let _ = editor.load_history(path);
        }
        Ok(Self::Terminal(Box::new(editor), file))
    }

    /// The next message; lines that end with `\` go on. `None` at the end.
    fn read(&mut self) -> Result<Option<String>, Error> {
        let mut message = String::new();
        loop {
            let line = match self.line(if message.is_empty() { "> " } else { ". " })? {
                Typed::Line(line) => line,
                Typed::Nothing => return Ok(Some(String::new())),
                Typed::End if message.is_empty() => return Ok(None),
                Typed::End => break,
            };
            check_message(message.len() + line.len())?;
            match line.strip_suffix('\\') {
                Some(part) => message.extend([part, "\n"]),
                None => {
                    message.push_str(&line);
                    break;
                }
            }
        }
        if let Self::Terminal(editor, file) = self
            && editor.add_history_entry(&message).map_err(typed)?
            && let Some(path) = file
            && let Err(error) = keep(editor, path)
        {
            // Nobody chats to fill a history.
            say!("`{}` does not keep what is typed: {error}", path.display());
            *file = None;
        }
        Ok(Some(message))
    }

    fn line(&mut self, prompt: &str) -> Result<Typed, Error> {
        match self {
            Self::Terminal(editor, _) => match editor.readline(prompt) {
                Ok(line) => Ok(Typed::Line(line)),
                Err(ReadlineError::Interrupted) => {
                    say!("Ctrl-D ends the chat");
                    Ok(Typed::Nothing)
                }
                Err(ReadlineError::Eof) => Ok(Typed::End),
                Err(error) => Err(typed(error)),
            },
            Self::Lines(stdin) => {
                let mut line = Vec::new();
                let count = stdin.lock().take(limits::PROMPT + 1).read_until(b'\n', &mut line);
                let count = count.map_err(|error| Error::Typed(error.into()))?;
                check_message(line.len())?;
                let line = String::from_utf8(line).map_err(|error| Error::Typed(error.into()))?;
                let line = line.strip_suffix('\n').unwrap_or(&line);
                let line = line.strip_suffix('\r').unwrap_or(line);
                Ok(if count == 0 { Typed::End } else { Typed::Line(line.to_owned()) })
            }
        }
    }
}

/// Whether a message may have so many bytes.
fn check_message(bytes: usize) -> Result<(), Error> {
    let most = limits::PROMPT;
    match bytes as u64 > most {
        true => {
            let what = format!("a message has more bytes than are read, at most {most}");
            Err(Error::Typed(what.into()))
        }
        false => Ok(()),
    }
}

/// Messages that the file of the history holds at most.
const REMEMBERED: usize = 1000;

/// Where what is typed is kept: beside what other programs remember from one run to the next, or where the system has no such
/// folder, with their data. `None` without a home folder.
fn history_file() -> Option<PathBuf> {
    let strategy = etcetera::choose_base_strategy().ok()?;
    let folder = strategy.state_dir().unwrap_or_else(|| strategy.data_dir());
    Some(folder.join("tracewright").join("chat-history"))
}

/// Adds the last message to the file, which only its owner reads. Chats that run side by side do not lose each other's.
fn keep(editor: &mut DefaultEditor, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(editor.append_history(path)?)
}

/// What one line was.
enum Typed {
    Line(String),
    /// Taken back.
    Nothing,
    End,
}

fn typed(error: ReadlineError) -> Error {
    Error::Typed(error.into())
}
