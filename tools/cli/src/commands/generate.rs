//! `tracewright generate` continues a text or answers a message.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::{RunArguments, TemplateArguments, max_tokens};
use crate::sampling::SamplingArguments;

#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("input").required(true)))]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file or export
    pub model: PathBuf,
    /// Text to continue
    #[arg(short, long, group = "input", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// File with the text to continue, or `-` for stdin
    #[arg(short, long, group = "input", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Message to answer, which the model's chat template formats
    #[arg(long, group = "input", value_name = "TEXT")]
    pub chat: Option<String>,
    /// Image of the message, before its text; may be repeated
    #[arg(
        long,
        value_name = "FILE",
        requires = "chat",
        conflicts_with_all = ["prompt_cache", "all_positions", "print_commands"]
    )]
    pub image: Vec<PathBuf>,
    /// Token ids that the model continues, such as 5,17,3
    #[arg(long, group = "input", value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// System message of the chat
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT")]
    pub system: Option<String>,
    #[command(flatten)]
    pub template: TemplateArguments,
    /// Maximum number of new tokens; with -1, only the context limits the length
    /// [default: the model's, or 128]
    #[arg(
        short = 'n',
        long = "max-tokens",
        visible_alias = "n-predict",
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = max_tokens
    )]
    pub max_tokens: Option<usize>,
    /// Continue the text after an end-of-text token of the model
    #[arg(long, conflicts_with_all = ["json_schema", "grammar"])]
    pub ignore_eos: bool,
    /// End the output before this text; may be repeated
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["json_schema", "grammar"])]
    pub stop: Vec<String>,
    /// Save the tokens and the KV cache in this file; the next run with this file computes only new tokens
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,
    /// Print one JSON object on stdout instead of the text
    #[arg(long)]
    pub json: bool,
    /// Write the logits from which each new token was chosen, as an f32 tensor `logits` of shape
    /// [steps, vocab]
    #[arg(long, value_name = "FILE.safetensors")]
    pub save_logits: Option<PathBuf>,
    /// With --save-logits: also write the logits of the prompt, as a tensor `prompt_logits` of
    /// shape [prompt, vocab]
    #[arg(long, requires = "save_logits")]
    pub all_positions: bool,
    /// With --json: list the N most likely tokens at each position, computed from the model's logits before
    /// sampling
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Print the equivalent commands of IREE's own tools on stderr
    #[arg(long)]
    pub print_commands: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub run: RunArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::collections::HashMap;
    use std::path::Path;

    use console::{output, print, read_text, usage};
    use safetensors::tensor::TensorView;
    use safetensors::{Dtype, SafeTensorError};
    use serde_json::{Value, json};
    use tracewright::files::NewFile;
    use tracewright::footprint::peak_rss;
    use tracewright::generate::{Finish, GenerateError, Logprob, TokenLogprobs, Tokenizer};
    use tracewright::model::{Completion, ImagePrompt, Opening, Pieces, read_image};
    use tracewright::output_guard::check_output;
    use tracewright::{GenerateOptions, Model, ModelError};

    use super::Arguments;
    use crate::Invocation;
    use crate::arguments::{Engine, UNLIMITED};
    use crate::build::{build_times, milliseconds};
    use crate::error::Error;
    use crate::extras::{Extras, conversation};
    use crate::interrupt::Interrupt;
    use crate::load::{self, SequenceFile, drafts, say_ends};

    /// The default context of an answer without a limit, in tokens.
    const ROOM: usize = 4096;

    /// The smallest room for an answer without a limit behind a long prompt, in tokens.
    const LEAST: usize = 1024;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            self.check()?;
            // What is wrong with the model is said before what is wrong with the prompt.
            let opening = load::read(&self.model, &self.run, invocation)?;
            let (mut opening, (prompt, images, options)) = load::prepared(opening, self, interrupt, prepare)?;
            let cache = self.prompt_cache.as_deref().map(|path| SequenceFile::open(&self.model, path));
            let mut cache = cache.transpose()?;
            let logits = self.save_logits.as_deref().map(|path| begin(&self.model, path)).transpose()?;
            let (max_tokens, all_positions) = (options.max_tokens, self.all_positions);
            opening.options.speculate = self.sampling.speculate.clone();
            let known = SequenceFile::tokens(cache.as_ref());
            let new = if max_tokens == UNLIMITED {
                ROOM.saturating_sub(prompt.len()).max(LEAST)
            } else {
                max_tokens
            };
            opening.fit_context(prompt.len().saturating_add(new).max(known));
            opening.options.score = all_positions;
            opening.options.images = images.is_some();
            let limit = load::limit(&opening);
            if let Some(vocabulary) = opening.vocabulary() {
                load::check_prompt(&prompt, limit, vocabulary)?;
            }
            let model = load::open(opening, &self.run.build.compile, interrupt)?;
            load::check_prompt(&prompt, limit, model.info().vocabulary)?;
            let build = model.info().build.as_ref();
            if let Some(build) = build.filter(|_| self.print_commands) {
                load::print_commands(&self.model, build, &self.run.build.compile, &prompt, interrupt)?;
            }
            say_ends(&options, &model);

            let constrained = options.follow.is_some();
            let request = match images {
                Some(images) => model.continue_prompt(model.see(images)?),
                None => model.continue_prompt(&prompt),
            };
            let request = request.options(options);
            let request = match cache.as_mut().and_then(|cache| cache.saved.take()) {
                Some(saved) => {
                    model.load(saved)?;
                    request.reuse()
                }
                None => request,
            };
            let completion = stream(request.stream()?, self.json, interrupt)?;
            let generated = &completion.generated;
            if let Some(cache) = cache {
                cache.publish(&model.save(&[&prompt[..], &generated.tokens].concat())?)?;
            }

            // Of an answer that was interrupted there are too few, and an older file may be whole.
            let logits = logits.filter(|_| generated.finish != Finish::Cancelled);
            if let (Some(file), Some(path)) = (logits, &self.save_logits) {
                let scored = self.all_positions.then(|| model.score(&prompt)).transpose()?;
                let logits = logits_file(&generated.logits, scored.as_deref());
                file.publish_as(&logits.map_err(|source| Error::Logits { path: path.clone(), source })?)?;
            }
            if self.json {
                let json = report(self, &model, &prompt, &completion);
                print(&format!("{json}\n"))?;
            } else {
                print("\n")?;
                summarize(&model, &completion);
                if constrained && generated.finish != Finish::Stop {
                    say!(
                        "the answer is not complete: `-n N` allows more than its {} tokens",
                        generated.tokens.len()
                    );
                }
            }
            interrupt.check()
        }

        /// Checks options that need one another.
        fn check(&self) -> Result<(), Error> {
            let system = self.system.as_ref().map(|_| "--system");
            let image = self.image.first().map(|_| "--image");
            if self.chat.is_none()
                && let Some(option) = system.or(self.template.first()).or(image)
            {
                let what = format!("`{option}` belongs to `--chat`; give the message to answer with it");
                return Err(usage(what).into());
            }
            if self.print_commands && self.run.engine.engine == Engine::Xla {
                let what = "`--print-commands` is for IREE; leave it out, or leave out `--engine xla`";
                return Err(usage(what).into());
            }
            Ok(())
        }
    }

    /// Also checks whether the tokenizer supports the options.
    fn prepare(
        opening: &Opening,
        arguments: &Arguments,
    ) -> Result<(Vec<u32>, Option<ImagePrompt>, GenerateOptions), Error> {
        let images = seen(opening, arguments)?;
        let prompt = match &images {
            Some(images) => images.tokens().to_vec(),
            None => prompt(opening, arguments)?,
        };
        let options = arguments.sampling.options(&arguments.model, opening)?;
        let options = GenerateOptions {
            max_tokens: arguments.max_tokens.unwrap_or(options.max_tokens),
            max_length: options.max_length.filter(|_| arguments.max_tokens.is_none()),
            stop: [&options.stop[..], &arguments.stop].concat(),
            ignore_eos: arguments.ignore_eos,
            logprobs: arguments.logprobs,
            keep_logits: arguments.save_logits.is_some(),
            ..options
        };
        arguments.sampling.check(opening, &options)?;
        Ok((prompt, images, options))
    }

    /// The message with its images, or `None` without images.
    fn seen(opening: &Opening, arguments: &Arguments) -> Result<Option<ImagePrompt>, Error> {
        let Arguments { image, chat: Some(message), .. } = arguments else { return Ok(None) };
        if image.is_empty() {
            return Ok(None);
        }
        let images = image.iter().map(|path| read_image(path)).collect::<Result<Vec<_>, _>>()?;
        let mut messages = conversation(arguments.system.as_deref(), message);
        if let Some(message) = messages.last_mut() {
            let parts = image.iter().map(|_| json!({ "type": "image" }));
            let text = json!({ "type": "text", "text": message["content"] });
            message["content"] = parts.chain([text]).collect();
        }
        let extras = Extras::read(&arguments.template)?;
        Ok(Some(opening.chat_with_images(&extras.chat(messages), &images)?))
    }

    /// Prints the pieces unless `quiet`. Ctrl-C ends the answer after the next token.
    pub fn stream(mut pieces: Pieces, quiet: bool, interrupt: &Interrupt) -> Result<Completion, Error> {
        while let Some(piece) = pieces.next() {
            let piece = piece?;
            if !quiet {
                print(&piece)?;
            }
            if interrupt.is_set() {
                pieces.cancel();
            }
        }
        pieces.into_completion().ok_or_else(|| ModelError::Gone.into())
    }

    fn report(arguments: &Arguments, model: &Model, prompt: &[u32], completion: &Completion) -> Value {
        let Completion { text, generated, transfers, .. } = completion;
        let mut json = json!({
            "prompt_tokens": prompt,
            "tokens": generated.tokens,
            "text": model.tokenizer().map(|_| text),
            "finish": format!("{:?}", generated.finish).to_lowercase(),
            "timings": timings(model, completion),
            "transfers": {
                "host_to_device_bytes": transfers.host_to_device,
                "device_to_host_bytes": transfers.device_to_host,
            },
            "peak_rss_bytes": peak_rss(),
        });
        if arguments.logprobs.is_some() {
            json["logprobs"] = logprobs(&generated.logprobs, model.tokenizer());
        }
        json
    }

    /// Fails if `path` is a file of the model in `folder`.
    fn begin(folder: &Path, path: &Path) -> Result<NewFile, Error> {
        check_output(folder, path)?;
        Ok(NewFile::begin(path, output::LOGITS)?)
    }

    fn prompt(opening: &Opening, arguments: &Arguments) -> Result<Vec<u32>, Error> {
        let folder = &arguments.model;
        let Some(tokenizer) = opening.tokenizer() else {
            let usage = |what| Err(usage(what).into());
            return match &arguments.tokens {
                _ if !arguments.stop.is_empty() => {
                    usage(format!("`--stop` needs text, and `{}` has no tokenizer.json", folder.display()))
                }
                Some(tokens) => not_empty(tokens.clone()),
                None => usage(format!(
                    "`{}` has no tokenizer.json; give token ids with `--tokens`",
                    folder.display()
                )),
            };
        };
        let Arguments { tokens, chat, prompt, file, .. } = arguments;
        not_empty(match (tokens, chat, prompt, file) {
            (Some(tokens), ..) => tokens.clone(),
            (_, Some(message), ..) => {
                let extras = Extras::read(&arguments.template)?;
                let messages = conversation(arguments.system.as_deref(), message);
                tokenizer.encode_plain(&opening.render(&extras.chat(messages))?)?
            }
            (_, _, Some(text), _) => tokenizer.encode(text)?,
            (_, _, _, Some(path)) => tokenizer.encode(&read_text(path)?)?,
            (None, None, None, None) => Vec::new(),
        })
    }

    fn not_empty(prompt: Vec<u32>) -> Result<Vec<u32>, Error> {
        if prompt.is_empty() { Err(GenerateError::EmptyPrompt.into()) } else { Ok(prompt) }
    }

    /// Safetensors with the logits from which each token was chosen, and those after each token of the
    /// prompt.
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

    /// In the format of OpenAI and llama.cpp.
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

    fn timings(model: &Model, completion: &Completion) -> Value {
        let [load, compile] = build_times(model.info().build.as_ref());
        json!({
            "load_ms": load,
            "compile_ms": compile,
            "prefill_ms": milliseconds(completion.generated.prefill),
            "first_token_ms": completion.first_token.map(milliseconds),
            "prefill_tokens_per_s": completion.generated.prefill_rate(),
            "decode_tokens_per_s": completion.generated.decode_rate(),
            "prefill_tokens": completion.generated.prefill_tokens,
            "decode_steps": completion.generated.decode_steps,
            "drafted_tokens": completion.generated.drafted,
            "accepted_tokens": completion.generated.accepted,
        })
    }

    fn summarize(model: &Model, completion: &Completion) {
        let Completion { generated, prompt_tokens, first_token, .. } = completion;
        let [load, compile] = build_times(model.info().build.as_ref());
        let first = first_token.map(|time| format!(", first token after {:.0} ms", milliseconds(time)));
        let full = match generated.finish {
            Finish::Context => format!(", then the context of {} was full", model.info().context),
            _ => String::new(),
        };
        say!(
            "prompt {prompt_tokens} tokens in {:.0} ms ({:.1}/s){}, {} new tokens at {:.1}/s{}{full}; load {load:.0} ms, compile {compile:.0} ms",
            milliseconds(generated.prefill),
            generated.prefill_rate(),
            first.unwrap_or_default(),
            generated.tokens.len(),
            generated.decode_rate(),
            drafts(generated),
        );
    }
}
