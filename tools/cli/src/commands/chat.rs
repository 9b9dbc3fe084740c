//! `tracewright chat` reads messages from a terminal or from stdin, and prints answers.
//!
//! [`Conversation`] keeps the state of the network between messages.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::{RunArguments, TemplateArguments, max_tokens};
use crate::sampling::SamplingArguments;

#[derive(Args, Clone)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file or export
    pub model: PathBuf,
    /// System message of the chat
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT")]
    pub system: Option<String>,
    /// Image before the text of the first message; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "session")]
    pub image: Vec<PathBuf>,
    #[command(flatten)]
    pub template: TemplateArguments,
    /// Maximum number of new tokens per answer; with -1, only the context limits the length
    /// [default: the model's, or 1024]
    #[arg(
        short = 'n',
        long = "max-tokens",
        visible_alias = "n-predict",
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = max_tokens
    )]
    pub max_tokens: Option<usize>,
    /// End an answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["json_schema", "grammar"])]
    pub stop: Vec<String>,
    /// Save the chat and the KV cache in this file; the next run with this file continues the chat
    #[arg(long, value_name = "FILE")]
    pub session: Option<PathBuf>,
    /// Do not save a history of the lines that you type
    #[arg(long)]
    pub no_history: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub run: RunArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::fs;
    use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
    use std::path::{Path, PathBuf};

    use console::{CommandError as _, output, print, take_stdin, usage};
    use error_codes::AnyCoded;
    use etcetera::BaseStrategy as _;
    use rustyline::error::ReadlineError;
    use rustyline::{Config, DefaultEditor};
    use serde_json::Value;
    use tracewright::files::{NewFile, limits};
    use tracewright::generate::{Finish, GenerateError};
    use tracewright::model::{Completion, Conversation, Message, MessagePart, Opening, image};
    use tracewright::output_guard::check_output;
    use tracewright::{GenerateOptions, ModelError, system, user};

    use super::Arguments;
    use crate::Invocation;
    use crate::arguments::UNLIMITED;
    use crate::build::milliseconds;
    use crate::error::Error;
    use crate::extras::{Extras, conversation};
    use crate::interrupt::Interrupt;
    use crate::limit::Limit;
    use crate::load::{self, SequenceFile, drafts, say_ends};

    const ROOM: usize = 4096;

    const COMMANDS: [(&str, &str); 7] = [
        ("/help", "list the commands"),
        ("/reset", "begin a new chat, with the same system message"),
        ("/system TEXT", "begin a new chat with this system message, or with none"),
        ("/image FILE", "send this image before the text of the next message"),
        ("/save FILE", "write the chat as JSON, which `tracewright prompt --messages FILE` reads"),
        ("/exit", "end, as Ctrl-D does"),
        ("//…", "a message that begins with a slash"),
    ];

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            // The messages may come from stdin.
            take_stdin()?;
            let opening = load::read(&self.model, &self.run, invocation)?;
            let (mut opening, (extras, options, images)) = load::prepared(opening, self, interrupt, prepare)?;
            opening.options.images = opening.network().is_some_and(|network| network.vision.is_some());
            opening.options.speculate = self.sampling.speculate.clone();
            let session = self.session.as_deref().map(|path| SequenceFile::open(&self.model, path));
            let mut session = session.transpose()?;
            let known = SequenceFile::tokens(session.as_ref());
            opening.fit_context(ROOM.max(known));
            let limit = load::limit(&opening);
            let model = load::open(opening, &self.run.build.compile, interrupt)?;
            say_ends(&options, &model);
            if model.stop_tokens().is_empty() && options.stop.is_empty() {
                let length = match options.max_tokens {
                    UNLIMITED => "fills the context".to_owned(),
                    most => format!("has {most} tokens"),
                };
                say!(
                    "the model has no token that ends an answer (`eos_token_id`): each answer {length}; \
                     `--stop` ends it sooner"
                );
            }

            let mut input = Input::open(self.no_history)?;
            if matches!(input, Input::Terminal(..)) {
                say!("a context of {} tokens; /help lists the commands, Ctrl-D ends", model.info().context);
            }
            let (mut conversation, sees) = (model.conversation(), model.sees());
            conversation.options = options;
            (conversation.tools, conversation.variables) = extras.into_parts();
            let mut chat =
                Chat { arguments: self, interrupt, limit, system: None, sees, images: vec![], conversation };
            chat.begin(self.system.clone());
            chat.images = images;
            if let Some(saved) = session.as_mut().and_then(|session| session.saved.take()) {
                chat.conversation.resume(saved)?;
                say!("the chat goes on behind {} messages", chat.conversation.messages.len());
            }
            let talked = chat.talk(&mut input);
            if let Some(session) = session {
                session.publish(&chat.conversation.save()?)?;
            }
            talked
        }
    }

    /// Checks the chat template and the sampling options before the slow compilation begins.
    fn prepare(
        opening: &Opening,
        arguments: &Arguments,
    ) -> Result<(Extras, GenerateOptions, Vec<MessagePart>), Error> {
        let model = &arguments.model;
        if opening.tokenizer().is_none() {
            let what = format!("a chat needs text, and `{}` has no tokenizer.json", model.display());
            return Err(usage(what).into());
        }
        let extras = Extras::read(&arguments.template)?;
        let hello = extras.clone().chat(conversation(None, "Hello"));
        opening.render(&hello)?;
        if !arguments.image.is_empty() {
            // Fails for a model that reads no images.
            opening.chat_with_images(&hello, &[])?;
        }
        let images = arguments.image.iter().map(image).collect::<Result<_, _>>()?;
        let options = arguments.sampling.options(model, opening)?;
        let of_model = arguments.sampling.of_model(opening.defaults()).max_new_tokens;
        let options = GenerateOptions {
            max_tokens: arguments.max_tokens.or(of_model).unwrap_or(1024),
            max_length: options.max_length.filter(|_| arguments.max_tokens.is_none()),
            stop: [&options.stop[..], &arguments.stop].concat(),
            ..options
        };
        arguments.sampling.check(opening, &options)?;
        Ok((extras, options, images))
    }

    struct Chat<'a> {
        arguments: &'a Arguments,
        interrupt: &'a Interrupt,
        limit: Limit,
        system: Option<String>,
        /// Whether the model reads images.
        sees: bool,
        /// The images of the next message.
        images: Vec<MessagePart>,
        conversation: Conversation,
    }

    impl Chat<'_> {
        /// Until the input ends or a command ends the chat.
        fn talk(&mut self, input: &mut Input) -> Result<(), Error> {
            loop {
                self.interrupt.wait(true);
                let line = input.read()?;
                self.interrupt.wait(false);
                let Some(line) = line else { return Ok(()) };
                match (line.strip_prefix("//"), line.strip_prefix('/')) {
                    (Some(message), _) => self.answer(&format!("/{message}"))?,
                    (None, Some(command)) => match self.command(command) {
                        Ok(true) => {}
                        Ok(false) => return Ok(()),
                        Err(error) => console::tell(&error),
                    },
                    (None, None) if line.trim().is_empty() => {}
                    (None, None) => self.answer(&line)?,
                }
            }
        }

        fn command(&mut self, command: &str) -> Result<bool, Error> {
            let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
            let rest = rest.trim();
            match name {
                "help" => COMMANDS.iter().for_each(|(name, what)| say!("{name:13} {what}")),
                "reset" => {
                    self.begin(self.system.clone());
                    say!("a new chat");
                }
                "system" => {
                    self.begin((!rest.is_empty()).then(|| rest.to_owned()));
                    say!("a new chat with {} system message", if rest.is_empty() { "no" } else { "this" });
                }
                "image" if !self.sees => say!("the model reads only text, and cannot read images"),
                "image" if self.arguments.session.is_some() => {
                    say!("a chat with `--session` takes no images")
                }
                "image" if rest.is_empty() => say!("/image needs the name of a file"),
                "image" => {
                    self.images.push(image(rest)?);
                    say!("the next message begins with {} images", self.images.len());
                }
                "save" if rest.is_empty() => say!("/save needs the name of a file"),
                "save" => {
                    let path = Path::new(rest);
                    check_output(&self.arguments.model, path)?;
                    NewFile::write(
                        path,
                        output::MESSAGES,
                        format!(
                            "{:#}\n",
                            self.conversation.messages.iter().map(Message::json).collect::<Value>()
                        )
                        .as_bytes(),
                    )?;
                    say!("wrote {} messages to `{rest}`", self.conversation.messages.len());
                }
                "exit" | "quit" => return Ok(false),
                _ => say!(
                    "there is no command `/{name}`; /help lists them, `//` begins a message with a slash"
                ),
            }
            Ok(true)
        }

        fn begin(&mut self, message: Option<String>) {
            self.images.clear();
            self.conversation.messages = message.iter().map(system).collect();
            self.system = message;
        }

        /// An error about the message alone is printed, and the chat continues without it.
        fn answer(&mut self, message: &str) -> Result<(), Error> {
            self.interrupt.clear();
            let Err(error) = self.generate(message) else { return self.interrupt.check() };
            match (&error, error.library().and_then(AnyCoded::find)) {
                (Error::Interrupted, _) => self.interrupt.clear(),
                (_, Some(GenerateError::TooLong { length, .. })) => {
                    let limit = self.limit;
                    say!(
                        "the message is not answered: the chat has {length} tokens, expected at most {limit}; {}",
                        self.room()
                    );
                }
                (Error::Said { .. } | Error::Template, _) | (_, Some(GenerateError::Tokenize { .. })) => {
                    console::tell(&error);
                }
                // Building what reads images can be interrupted too.
                _ if self.interrupt.is_set() => self.interrupt.clear(),
                _ => return Err(error),
            }
            // A signal that ends the process also ends the chat.
            self.interrupt.check()
        }

        fn generate(&mut self, message: &str) -> Result<(), Error> {
            let message = user(message).after(self.images.clone());
            let conversation = self.conversation.clone();
            let prepared = self.interrupt.or(move || conversation.prepare_message(message))??;
            let messages = self.conversation.messages.len();
            let mut turn = self.conversation.begin(prepared)?;
            while let Some(piece) = turn.next() {
                print(&piece?)?;
                if self.interrupt.is_set() {
                    turn.cancel();
                }
            }
            let completion = turn.finish().ok_or(ModelError::Gone)?;
            // An answer that was stopped before its first piece leaves the question open.
            if self.conversation.messages.len() > messages {
                self.images.clear();
            }
            print("\n")?;
            self.interrupt.clear();
            self.summarize(&completion);
            Ok(())
        }

        /// Returns a text that recommends a new chat or a larger context.
        fn room(&self) -> String {
            let raised = self.limit.raised().map(|raised| format!("; {raised}"));
            format!("/reset begins a new chat{}", raised.unwrap_or_default())
        }

        /// Prints the time and the tokens per second of an answer on stderr.
        fn summarize(&self, completion: &Completion) {
            let Completion { generated, prompt_tokens, .. } = completion;
            let new = generated.prefill_tokens;
            say!(
                "prompt {prompt_tokens} tokens, {new} of them new, in {:.0} ms ({:.1}/s); {} new tokens at {:.1}/s{}",
                milliseconds(generated.prefill),
                generated.prefill_rate(),
                generated.tokens.len(),
                generated.decode_rate(),
                drafts(generated),
            );
            match generated.finish {
                Finish::Context => {
                    say!("the context of {} tokens is full: {}", self.limit.tokens, self.room());
                }
                Finish::Length => {
                    say!("the answer is cut: `-n N` allows more than {} tokens", generated.tokens.len())
                }
                Finish::Cancelled => say!("stopped; Ctrl-D ends the chat"),
                Finish::Stop => {}
            }
        }
    }

    enum Input {
        /// The path is that of the history file, if any.
        Terminal(Box<DefaultEditor>, Option<PathBuf>),
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
                say!("cannot save the history in `{}`: {error}", path.display());
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
                    // A file that a shell redirects can begin with a byte order mark.
                    let line = line.strip_prefix('\u{feff}').unwrap_or(line);
                    Ok(if count == 0 { Typed::End } else { Typed::Line(line.to_owned()) })
                }
            }
        }
    }

    fn check_message(bytes: usize) -> Result<(), Error> {
        let most = limits::PROMPT;
        if bytes as u64 > most {
            let what = format!("the message is too long, expected at most {most} bytes");
            Err(Error::Typed(what.into()))
        } else {
            Ok(())
        }
    }

    const REMEMBERED: usize = 1000;

    /// In the user's state folder, or else in the data folder; `None` without a home folder.
    fn history_file() -> Option<PathBuf> {
        let strategy = etcetera::choose_base_strategy().ok()?;
        let folder = strategy.state_dir().unwrap_or_else(|| strategy.data_dir());
        Some(folder.join("tracewright").join("chat-history"))
    }

    /// Only the owner can read it. Two chats in parallel both append their messages.
    fn keep(editor: &mut DefaultEditor, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(editor.append_history(path)?)
    }

    enum Typed {
        Line(String),
        Nothing,
        End,
    }

    fn typed(error: ReadlineError) -> Error {
        Error::Typed(error.into())
    }
}
