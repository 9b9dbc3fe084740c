//! `tracewright generate`

use std::path::PathBuf;

use crate::{CompileArguments, ModelArguments};

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("input").required(true)))]
pub struct Arguments {
    /// A Hugging Face model directory, or what `export` wrote
    pub model: PathBuf,
    /// The text to continue
    #[arg(short, long, group = "input", value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A file with the text to continue
    #[arg(short, long, group = "input", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A message to answer, through the model's chat template
    #[arg(long, group = "input", value_name = "TEXT")]
    pub chat: Option<String>,
    /// The token ids to continue: 5,17,3
    #[arg(long, group = "input", value_name = "IDS", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
    /// The system message of the chat
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// At most this many new tokens
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 128)]
    pub max_tokens: usize,
    /// 0 takes the most likely token; more makes unlikely ones likelier
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub temp: f32,
    /// Only the K most likely tokens; 0 is no limit
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Only the most likely tokens with this probability together
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Only tokens with this share of the most likely one's probability
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    pub min_p: f32,
    /// The same seed draws the same tokens
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Do not stop at the model's end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Stop in front of this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Worker threads; 0 for as many as there are cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// One JSON object on stdout instead of the text
    #[arg(long)]
    pub json: bool,
    /// Write the logits that chose each token: f32 `logits` [steps, vocab]
    #[arg(long, value_name = "FILE.safetensors")]
    pub save_logits: Option<PathBuf>,
    /// With --save-logits: also `prompt_logits` [prompt, vocab]
    #[arg(long, requires = "save_logits")]
    pub all_positions: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(not(feature = "iree"))]
pub fn run(_: Arguments, _: &crate::Interrupt) -> Result<(), crate::error::Error> {
    Err(crate::error::Error::WithoutIree { command: "generate" })
}

#[cfg(feature = "iree")]
pub use with_iree::run;

#[cfg(feature = "iree")]
mod with_iree {
    use std::collections::HashMap;
    use std::fs;
    use std::io::Write as _;
    use std::ops::ControlFlow;
    use std::path::Path;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use safetensors::tensor::TensorView;
    use safetensors::{Dtype, SafeTensorError};
    use tracewright::files::NewFile;
    use tracewright::generate::{
        Chat, ChatTemplate, Finish, GenerateOptions, Pushed, Sampler, Sampling, Session, StopStrings,
        Tokenizer, stop_tokens,
    };

    use super::Arguments;
    use crate::Interrupt;
    use crate::error::Error;
    use crate::load::Source;

    pub fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<(), Error> {
        let folder = &arguments.model;
        if arguments.system.is_some() && arguments.chat.is_none() {
            return Err(Error::Usage {
                what: "`--system` belongs to `--chat`; give the message to answer with it".into(),
            });
        }
        // What is wrong with the model is said before what is wrong with the prompt.
        let source = Source::read(&arguments)?;
        let tokenizer = Tokenizer::load(folder)?;
        if tokenizer.is_none() && !arguments.stop.is_empty() {
            return Err(Error::Usage {
                what: format!("`--stop` needs text, and `{}` has no tokenizer.json", folder.display()),
            });
        }
        let prompt = prompt(&arguments, tokenizer.as_ref())?;
        if prompt.is_empty() {
            return Err(tracewright::generate::Error::EmptyPrompt.into());
        }
        let options = GenerateOptions {
            max_tokens: arguments.max_tokens,
            sampling: Sampling {
                temperature: arguments.temp,
                top_k: arguments.top_k,
                top_p: arguments.top_p,
                min_p: arguments.min_p,
                seed: arguments.seed,
            },
            stop_tokens: if arguments.ignore_eos { Vec::new() } else { stop_tokens(folder)? },
            keep_logits: arguments.save_logits.is_some(),
        };
        Sampler::new(&options.sampling)?;
        let file_error = |action, path: &Path| {
            let path = path.to_owned();
            move |source| Error::File { action, path, source }
        };
        let saved = arguments.save_logits.as_deref();
        let saved = saved.map(|path| NewFile::begin(path).map_err(file_error("create", path))).transpose()?;
        let loaded = source.load(&arguments, &prompt, interrupt)?;
        if interrupt.load(Ordering::SeqCst) {
            return Err(Error::Interrupted);
        }

        let mut stream = tokenizer.as_ref().map(Tokenizer::stream);
        let mut stops = StopStrings::new(&arguments.stop);
        let mut text = String::new();
        let (mut stopped, mut failed) = (false, None);
        let quiet = arguments.json;
        let emit = |piece: &str, text: &mut String| {
            text.push_str(piece);
            let mut out = std::io::stdout().lock();
            if quiet { Ok(()) } else { out.write_all(piece.as_bytes()).and_then(|()| out.flush()) }
        };
        let before = loaded.runtime.transfers();
        let mut session = Session::new(&loaded.network);
        let mut generated = session.generate(&prompt, &options, |token| {
            let mut push = || -> Result<bool, Error> {
                let piece = match &mut stream {
                    Some(stream) => stream.push(token)?,
                    None => format!("{token} "),
                };
                let piece = match stops.push(&piece) {
                    Pushed::Text(piece) => piece,
                    Pushed::Stop(piece) => {
                        stopped = true;
                        piece
                    }
                };
                emit(&piece, &mut text).map_err(Error::Output)?;
                Ok(stopped || interrupt.load(Ordering::SeqCst))
            };
            match push() {
                Ok(false) => ControlFlow::Continue(()),
                Ok(true) => ControlFlow::Break(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if generated.finish != Finish::Cancelled {
            // What the detokenizer or a possible stop string held back.
            let rest = stream.map(|s| s.finish()).transpose()?.unwrap_or_default();
            let rest = match stops.push(&rest) {
                Pushed::Text(rest) => rest + &stops.finish(),
                Pushed::Stop(rest) => rest,
            };
            emit(&rest, &mut text).map_err(Error::Output)?;
        }
        if stopped {
            generated.finish = Finish::Stop;
        }
        let after = loaded.runtime.transfers();

        if let (Some(file), Some(path)) = (saved, &arguments.save_logits) {
            let scored = match arguments.all_positions {
                true => Some(Session::new(&loaded.network).score(&prompt)?),
                false => None,
            };
            save_logits(file.partial(), &generated.logits, scored.as_deref())
                .map_err(|source| Error::Logits { path: path.clone(), source })?;
            file.publish().map_err(file_error("publish", path))?;
        }
        let timings = serde_json::json!({
            "load_ms": milliseconds(loaded.load),
            "compile_ms": milliseconds(loaded.compile),
            "prefill_ms": milliseconds(generated.prefill),
            "prefill_tokens_per_s": generated.prefill_rate(),
            "decode_tokens_per_s": generated.decode_rate(),
        });
        if arguments.json {
            let json = serde_json::json!({
                "prompt_tokens": prompt,
                "tokens": generated.tokens,
                "text": if tokenizer.is_some() { text.into() } else { serde_json::Value::Null },
                "finish": format!("{:?}", generated.finish).to_lowercase(),
                "timings": timings,
                "transfers": {
                    "host_to_device_bytes": after.host_to_device - before.host_to_device,
                    "device_to_host_bytes": after.device_to_host - before.device_to_host,
                },
                "peak_rss_bytes": peak_rss(),
            });
            writeln!(std::io::stdout(), "{json}").map_err(Error::Output)?;
        } else {
            writeln!(std::io::stdout()).map_err(Error::Output)?;
            let full = match generated.finish {
                Finish::Context => format!(", then the context of {} was full", loaded.network.context()),
                _ => String::new(),
            };
            eprintln!(
                "prompt {} tokens in {:.0} ms ({:.1}/s), {} new tokens at {:.1}/s{full}; load {:.0} ms, compile {:.0} ms",
                prompt.len(),
                milliseconds(generated.prefill),
                generated.prefill_rate(),
                generated.tokens.len(),
                generated.decode_rate(),
                milliseconds(loaded.load),
                milliseconds(loaded.compile),
            );
        }
        match interrupt.load(Ordering::SeqCst) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    fn milliseconds(time: Duration) -> f64 {
        time.as_secs_f64() * 1e3
    }

    /// The token ids that the arguments ask to continue.
    fn prompt(arguments: &Arguments, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        if let Some(tokens) = &arguments.tokens {
            return Ok(tokens.clone());
        }
        let missing = || Error::Usage {
            what: format!(
                "`{}` has no tokenizer.json; give token ids with `--tokens`",
                arguments.model.display()
            ),
        };
        let tokenizer = tokenizer.ok_or_else(missing)?;
        if let Some(message) = &arguments.chat {
            let system = arguments.system.iter().map(|text| ("system", text));
            let messages = system.chain([("user", message)]);
            let chat = Chat {
                messages: messages
                    .map(|(role, text)| serde_json::json!({ "role": role, "content": text }))
                    .collect(),
                add_generation_prompt: true,
                ..Chat::default()
            };
            let text = ChatTemplate::load(&arguments.model)?.render(&chat)?;
            return Ok(tokenizer.encode_plain(&text)?);
        }
        let text = match (&arguments.prompt, &arguments.file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => fs::read_to_string(path).map_err(|source| Error::File {
                action: "read",
                path: path.clone(),
                source,
            })?,
            (None, None) => String::new(),
        };
        Ok(tokenizer.encode(&text)?)
    }

    fn save_logits(
        path: &Path,
        logits: &[Vec<f32>],
        scored: Option<&[Vec<f32>]>,
    ) -> Result<(), SafeTensorError> {
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
        safetensors::serialize_to_file(views, None, path)
    }

    /// The most memory this process ever held, where the system tells.
    fn peak_rss() -> Option<u64> {
        let status = fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    }
}
