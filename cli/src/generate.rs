//! `tracewright generate`

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError};
use serde_json::{Value, json};
use tracewright::files::{NewFile, limits, read_stream};
use tracewright::footprint::peak_rss;
use tracewright::generate::{
    Finish, GenerateError, Generated, Logprob, Pushed, Session, StopStrings, Stream, TokenLogprobs,
    TokenOptions, Tokenizer, stop_tokens,
};
use tracewright::output;
use tracewright::own::check_output;

use crate::arguments::GenerateArguments;
use crate::error::Error;
use crate::extras::Extras;
use crate::load::{Loaded, Source, Wanted};
use crate::measure::milliseconds;
use crate::prompt::{conversation, rendered};
use crate::{Interrupt, ReadModel};

pub fn run(arguments: GenerateArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    if arguments.system.is_some() && arguments.chat.is_none() {
        return Err(Error::Usage {
            what: "`--system` belongs to `--chat`; give the message to answer with it".into(),
        });
    }
    if arguments.chat.is_none()
        && let Some(option) = arguments.template.first()
    {
        let what = format!("`{option}` belongs to `--chat`; give the message to answer with it");
        return Err(Error::Usage { what });
    }
    // What is wrong with the model is said before what is wrong with the prompt.
    let source = Source::read(&arguments.model, &arguments.run, read)?;
    let (tokenizer, prompt, options) = {
        let arguments = arguments.clone();
        interrupt.or(move || -> Result<_, Error> {
            let tokenizer = Tokenizer::load(&arguments.model)?;
            let prompt = prompt(&arguments, tokenizer.as_ref())?;
            let options = options(&arguments, tokenizer.as_ref())?;
            Ok((tokenizer, prompt, options))
        })??
    };
    let logits = arguments.save_logits.as_deref().map(|path| begin(&arguments.model, path)).transpose()?;
    let GenerateArguments { max_tokens, all_positions, .. } = arguments;
    let commands = arguments.print_commands;
    let wanted = Wanted { prompt: &prompt, new_tokens: max_tokens, all_positions, commands };
    let loaded = source.load(&arguments.model, &arguments.run, &wanted, interrupt)?;
    interrupt.check()?;
    say_ends(&options, &loaded);

    let before = loaded.runtime.transfers();
    let mut answer = Answer::new(&arguments.stop, arguments.json, tokenizer.as_ref());
    let mut session = Session::new(&loaded.network);
    let generated = answer.stream(&mut session, &prompt, &options, interrupt)?;
    let after = loaded.runtime.transfers();

    // Of an answer that was interrupted there are too few, and an older file may be whole.
    let logits = logits.filter(|_| generated.finish != Finish::Cancelled);
    if let (Some(file), Some(path)) = (logits, &arguments.save_logits) {
        let scored =
            arguments.all_positions.then(|| Session::new(&loaded.network).score(&prompt)).transpose()?;
        let logits = logits_file(&generated.logits, scored.as_deref());
        file.publish_as(&logits.map_err(|source| Error::Logits { path: path.clone(), source })?)?;
    }
    if arguments.json {
        let mut json = json!({
            "prompt_tokens": prompt,
            "tokens": generated.tokens,
            "text": if tokenizer.is_some() { answer.text.into() } else { Value::Null },
            "finish": format!("{:?}", generated.finish).to_lowercase(),
            "timings": timings(&loaded, &generated, answer.first_token),
            "transfers": {
                "host_to_device_bytes": after.host_to_device - before.host_to_device,
                "device_to_host_bytes": after.device_to_host - before.device_to_host,
            },
            "peak_rss_bytes": peak_rss(),
        });
        if arguments.logprobs.is_some() {
            json["logprobs"] = logprobs(&generated.logprobs, tokenizer.as_ref());
        }
        writeln!(io::stdout(), "{json}").map_err(Error::Output)?;
    } else {
        writeln!(io::stdout()).map_err(Error::Output)?;
        summarize(&loaded, prompt.len(), &generated, answer.first_token);
        if options.constraint.is_some() && generated.finish != Finish::Stop {
            say!("the answer is not complete: `-n N` allows more than its {} tokens", generated.tokens.len());
        }
    }
    interrupt.check()
}

/// Says which tokens would end an answer if they were ones of the network.
pub fn say_ends(options: &TokenOptions, loaded: &Loaded) {
    let count = loaded.network.vocabulary();
    for end in options.stop_tokens.iter().filter(|end| **end as usize >= count) {
        say!("no answer ends at token {end}, which `eos_token_id` names: the network has {count} tokens");
    }
}

/// A new file that is made from the model in `folder`, and is none of it.
fn begin(folder: &Path, path: &Path) -> Result<NewFile, Error> {
    check_output(folder, path)?;
    Ok(NewFile::begin(path, output::LOGITS)?)
}

/// The token ids that the arguments ask to continue.
fn prompt(arguments: &GenerateArguments, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
    let folder = &arguments.model;
    let Some(tokenizer) = tokenizer else {
        let usage = |what| Err(Error::Usage { what });
        return match &arguments.tokens {
            _ if !arguments.stop.is_empty() => {
                usage(format!("`--stop` needs text, and `{}` has no tokenizer.json", folder.display()))
            }
            Some(tokens) => not_empty(tokens.clone()),
            None => {
                usage(format!("`{}` has no tokenizer.json; give token ids with `--tokens`", folder.display()))
            }
        };
    };
    let GenerateArguments { tokens, chat, prompt, file, .. } = arguments;
    not_empty(match (tokens, chat, prompt, file) {
        (Some(tokens), ..) => tokens.clone(),
        (_, Some(message), ..) => {
            let extras = Extras::read(&arguments.template)?;
            let messages = conversation(arguments.system.as_deref(), message);
            tokenizer.encode_plain(&rendered(folder, messages, &extras)?)?
        }
        (_, _, Some(text), _) => tokenizer.encode(text)?,
        (_, _, _, Some(path)) => tokenizer.encode(&read_stream(path, limits::PROMPT)?)?,
        (None, None, None, None) => Vec::new(),
    })
}

fn not_empty(prompt: Vec<u32>) -> Result<Vec<u32>, Error> {
    if prompt.is_empty() { Err(GenerateError::EmptyPrompt.into()) } else { Ok(prompt) }
}

/// How tokens are chosen, and when that ends.
fn options(arguments: &GenerateArguments, tokenizer: Option<&Tokenizer>) -> Result<TokenOptions, Error> {
    let GenerateArguments { model, sampling, .. } = arguments;
    let stop_tokens = if arguments.ignore_eos { Vec::new() } else { stop_tokens(model)? };
    Ok(TokenOptions {
        max_tokens: arguments.max_tokens,
        sampling: sampling.sampling(tokenizer)?,
        constraint: sampling.constraint(model, tokenizer, &stop_tokens)?,
        stop_tokens,
        keep_logits: arguments.save_logits.is_some(),
        logprobs: arguments.logprobs,
    })
}

/// The text of the answer, printed piece by piece unless all of it goes into JSON.
pub struct Answer<'a> {
    /// Makes text of tokens; without a tokenizer their ids are the text.
    detokenizer: Option<Stream<'a>>,
    stops: StopStrings,
    stopped: bool,
    quiet: bool,
    pub text: String,
    /// From the prompt to the first new token.
    pub first_token: Option<Duration>,
}

impl<'a> Answer<'a> {
    /// An answer that ends in front of `stop`, and is not printed where it is quiet.
    pub fn new(stop: &[String], quiet: bool, tokenizer: Option<&'a Tokenizer>) -> Self {
        Self {
            detokenizer: tokenizer.map(Tokenizer::stream),
            stops: StopStrings::new(stop),
            stopped: false,
            quiet,
            text: String::new(),
            first_token: None,
        }
    }

    /// Generates until a limit, a stop or Ctrl-C.
    pub fn stream(
        &mut self,
        session: &mut Session<'_>,
        prompt: &[u32],
        options: &TokenOptions,
        interrupt: &Interrupt,
    ) -> Result<Generated, Error> {
        let mut pushed = Ok(());
        let start = Instant::now();
        let mut generated = session.generate(prompt, options, |token| {
            self.first_token.get_or_insert_with(|| start.elapsed());
            pushed = self.push(token);
            if pushed.is_err() || self.stopped { ControlFlow::Break(()) } else { interrupt.go_on() }
        })?;
        pushed?;
        if generated.finish != Finish::Cancelled {
            self.finish()?;
        }
        if self.stopped {
            generated.finish = Finish::Stop;
        }
        Ok(generated)
    }

    fn push(&mut self, token: u32) -> Result<(), Error> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(token)?,
            None => format!("{token} "),
        };
        let piece = match self.stops.push(&piece) {
            Pushed::Text(piece) => piece,
            Pushed::Stop(piece) => {
                self.stopped = true;
                piece
            }
        };
        self.print(&piece)
    }

    /// Prints what the detokenizer or a possible stop string held back.
    fn finish(&mut self) -> Result<(), Error> {
        let rest = self.detokenizer.take().map(Stream::finish).transpose()?.unwrap_or_default();
        let rest = match self.stops.push(&rest) {
            Pushed::Text(rest) => rest + &self.stops.finish(),
            Pushed::Stop(rest) => {
                self.stopped = true;
                rest
            }
        };
        self.print(&rest)
    }

    fn print(&mut self, piece: &str) -> Result<(), Error> {
        self.text.push_str(piece);
        if self.quiet {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(piece.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
    }
}

/// A safetensors file of the logits that chose each token, and those after each token of the prompt.
fn logits_file(logits: &[Vec<f32>], scored: Option<&[Vec<f32>]>) -> Result<Vec<u8>, SafeTensorError> {
    let mut tensors: Vec<(&str, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, rows) in [("logits", Some(logits)), ("prompt_logits", scored)] {
        let Some(rows) = rows else { continue };
        let bytes = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        tensors.push((name, vec![rows.len(), rows.first().map_or(0, Vec::len)], bytes));
    }
    let mut views = HashMap::new();
    for (name, shape, bytes) in &tensors {
        views.insert(*name, TensorView::new(Dtype::F32, shape.clone(), bytes)?);
    }
    safetensors::serialize(views, None)
}

/// What was likely at each place, in the form of OpenAI's and llama.cpp's `logprobs`.
fn logprobs(logprobs: &[TokenLogprobs], tokenizer: Option<&Tokenizer>) -> Value {
    let pieces = tokenizer.map(Tokenizer::pieces).unwrap_or_default();
    let one = |Logprob { token, logprob }: &Logprob| {
        let piece = pieces.get(*token as usize);
        json!({
            "id": token,
            "token": piece.map(|piece| String::from_utf8_lossy(piece)),
            "bytes": piece,
            "logprob": logprob,
        })
    };
    let all = |TokenLogprobs { chosen, top }: &TokenLogprobs| {
        let mut object = one(chosen);
        object["top_logprobs"] = top.iter().map(one).collect();
        object
    };
    json!({ "content": logprobs.iter().map(all).collect::<Vec<_>>() })
}

fn timings(loaded: &Loaded, generated: &Generated, first_token: Option<Duration>) -> Value {
    json!({
        "load_ms": milliseconds(loaded.load),
        "compile_ms": milliseconds(loaded.compile),
        "prefill_ms": milliseconds(generated.prefill),
        "first_token_ms": first_token.map(milliseconds),
        "prefill_tokens_per_s": generated.prefill_rate(),
        "decode_tokens_per_s": generated.decode_rate(),
    })
}

/// One line for a reader, on stderr.
fn summarize(loaded: &Loaded, prompt: usize, generated: &Generated, first_token: Option<Duration>) {
    let first = first_token.map(|time| format!(", first token after {:.0} ms", milliseconds(time)));
    let full = match generated.finish {
        Finish::Context => format!(", then the context of {} was full", loaded.network.context()),
        _ => String::new(),
    };
    say!(
        "prompt {prompt} tokens in {:.0} ms ({:.1}/s){}, {} new tokens at {:.1}/s{full}; load {:.0} ms, compile {:.0} ms",
        milliseconds(generated.prefill),
        generated.prefill_rate(),
        first.unwrap_or_default(),
        generated.tokens.len(),
        generated.decode_rate(),
        milliseconds(loaded.load),
        milliseconds(loaded.compile),
    );
}
