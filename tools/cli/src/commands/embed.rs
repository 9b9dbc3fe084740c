//! `tracewright embed` computes embeddings of texts.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use console::NetworkArguments;

use crate::arguments::{
    CompileArguments, DeviceArguments, EngineArguments, LoraArguments, MeshArguments, TuningArguments, batch,
};

#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("input").required(true).multiple(true)))]
pub struct Arguments {
    /// Hugging Face model directory that contains the files of sentence-transformers
    pub model: PathBuf,
    /// Text to embed; may be repeated
    #[arg(short = 'p', long = "text", group = "input", value_name = "TEXT")]
    pub texts: Vec<String>,
    /// File with one text per line, to embed after the texts of `--text`, or `-` for stdin; may be repeated. A
    /// line of a `.jsonl` file is a JSON string, or an object with a string `text`
    #[arg(short, long = "file", group = "input", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Token ids of a single text, including special tokens, such as 2,17,1
    #[arg(long, group = "input", value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["texts", "files", "prompt_name"])]
    pub tokens: Option<Vec<u32>>,
    /// Name of one of the model's prompts, which `embed` adds before each text [default: the
    /// model's default prompt]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    #[command(flatten)]
    pub encoder: EncoderArguments,
    /// Print one JSON object on stdout instead of a line of numbers for each text
    #[arg(long, conflicts_with = "json_lines")]
    pub json: bool,
    /// Print one JSON object for each text, with its tokens and its embedding
    #[arg(long)]
    pub json_lines: bool,
    /// Write the embeddings to this NumPy file, as float32 [texts, features], and print none
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "json_lines"])]
    pub npy: Option<PathBuf>,
}

/// The options of commands that read whole texts.
#[derive(Args, Clone)]
pub struct EncoderArguments {
    /// Number of tokens to which each text is padded or cut [default: its own length, rounded up to 24, 32, 48,
    /// 64, 96, 128 and so on; texts are cut at the model's limit]
    #[arg(long, value_name = "N")]
    pub length: Option<usize>,
    /// Number of texts that a call embeds in parallel. With 1, a call on the CPU embeds several short texts, if
    /// there are so many
    #[arg(long, value_name = "N", value_parser = batch, default_value = "1")]
    pub batch: NonZeroUsize,
    /// Number of worker threads; 0 uses all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub mesh: MeshArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub lora: LoraArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
pub use run::lines;

#[cfg(feature = "iree")]
mod run {
    use std::iter::zip;
    use std::path::Path;

    use console::{print, read_text, usage};
    use serde_json::{Value, json};
    use tracewright::embed::{EmbedError, check_texts};
    use tracewright::files::{FileKind, NewFile};
    use tracewright::footprint::peak_rss;
    use tracewright::generate::Tokenizer;
    use tracewright::model::{Embedded, Opening};
    use tracewright::models::{SentenceConfig, check_embeds};
    use tracewright::{ModelError, OpenOptions, PlanError};

    use super::{Arguments, EncoderArguments};
    use crate::Invocation;
    use crate::build::{build_times, milliseconds};
    use crate::error::Error;
    use crate::limit::{Limit, SetBy};
    use crate::load::{self, Tools};
    use crate::plugins;

    /// Tokens between two checks for an interrupt: so many that most calls embed texts of similar length.
    const TOKENS: usize = 4096;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let opening = self.encoder.read(&self.model, invocation)?;
            let (mut opening, (texts, longest)) = load::prepared(opening, self, interrupt, prepare)?;
            let length = self.encoder.limit(longest)?;
            let limit = Limit { tokens: length, longest: Some(longest), set_by: SetBy::Flag("--length") };
            check_texts(&texts.tokens, length, opening.vocabulary().unwrap_or(usize::MAX)).map_err(
                |error| match error {
                    EmbedError::TooLong { text, found, .. } => Error::TooLong {
                        what: format!("text {} of {}", text + 1, texts.tokens.len()),
                        found,
                        limit,
                    },
                    error => error.into(),
                },
            )?;
            texts.tell_cut();
            opening.options.context = self.encoder.length;
            // The network is built by the first call.
            let mut tools = Some(Tools::find(&mut opening, &self.encoder.compile, interrupt)?);
            let model = opening.build()?;

            let mut embedded = Embedded::default();
            for texts in parts(&texts.tokens) {
                interrupt.check()?;
                let new = model.embed_tokens(texts.to_vec());
                let new = new.map_err(|error| match tools.take() {
                    Some(tools) => tools.error(error),
                    None => error.into(),
                })?;
                if embedded.build.is_none() {
                    load::report_build(new.build.as_ref());
                }
                for (tokens, vector) in zip(texts, &new.embeddings).filter(|_| self.prints_lines()) {
                    let object = || json!({ "tokens": tokens, "embedding": vector });
                    print(&if self.json_lines { format!("{}\n", object()) } else { line(vector) })?;
                }
                embedded.embeddings.extend(new.embeddings);
                embedded.time += new.time;
                embedded.build = new.build;
            }
            if self.json {
                let text = |i: usize| json!({ "tokens": texts.tokens[i], "cut_from": texts.cut_from[i], "embedding": embedded.embeddings[i] });
                let json = json!({
                    "texts": (0..embedded.embeddings.len()).map(text).collect::<Value>(),
                    "timings": timings(&embedded, texts.count()),
                    "peak_rss_bytes": peak_rss(),
                });
                print(&format!("{json}\n"))?;
            } else {
                if let Some(path) = &self.npy {
                    NewFile::write(path, FileKind::NEW, &npy(&embedded.embeddings))?;
                }
                summarize(&embedded, &texts);
            }
            interrupt.check()
        }

        fn prints_lines(&self) -> bool {
            !self.json && self.npy.is_none()
        }
    }

    /// Each part has [`TOKENS`] tokens, or a few more.
    fn parts(mut texts: &[Vec<u32>]) -> impl Iterator<Item = &[Vec<u32>]> {
        std::iter::from_fn(move || {
            let mut tokens = 0;
            let whole = texts.iter().position(|text| {
                tokens += text.len();
                tokens >= TOKENS
            });
            let (part, rest) = texts.split_at(whole.map_or(texts.len(), |last| last + 1));
            texts = rest;
            (!part.is_empty()).then_some(part)
        })
    }

    /// The tokens of the texts, and the maximum number of tokens per text that the model supports.
    fn prepare(opening: &Opening, arguments: &Arguments) -> Result<(Texts, usize), Error> {
        let Some(network) = opening.network() else {
            let path = arguments.model.clone();
            return Err(ModelError::Kind { path, does: "continues text", asked: "embed it" }.into());
        };
        let sentence = check_embeds(&network.kind, &arguments.model)?;
        Ok((Texts::read(arguments, opening.tokenizer(), sentence)?, sentence.max_tokens))
    }

    impl EncoderArguments {
        /// Reads the files of a model that computes embeddings or scores.
        pub fn read(&self, model: &Path, invocation: &Invocation) -> Result<Opening, Error> {
            let &Invocation { read, ref interrupt, .. } = invocation;
            let Self { network, batch, threads, .. } = self;
            let mut options = load::network_options(network, &self.device, &self.tuning)?;
            let unused =
                [("--threads", *threads != 0), ("--tuning", self.tuning.source.is_some())].into_iter();
            let unused = unused.chain(plugins::of_network(network));
            plugins::check_mesh(&self.mesh, &self.engine, &self.device)?;
            let plugin = plugins::plugin(&self.engine, &self.device, unused)?;
            match plugin {
                Some(_) => options.device = self.device.device,
                None => load::choose(&mut options, &self.device)?,
            }
            let options = OpenOptions {
                lora: self.lora.lora.clone(),
                plugin,
                xla_flags: plugins::flags(),
                mesh: self.mesh.mesh.clone(),
                shard: self.mesh.sharding(),
                slots: batch.get(),
                threads: *threads,
                read,
                watch: Some(load::watch(interrupt)),
                ..options
            };
            let path = model.to_owned();
            let opening = interrupt.or(move || Opening::read(path, options))??;
            console::warn(opening.warnings());
            Ok(opening)
        }

        /// The most tokens of a text, of a model that reads at most `longest`.
        pub fn limit(&self, longest: usize) -> Result<usize, Error> {
            let found = self.length.unwrap_or(longest);
            if (1..=longest).contains(&found) {
                Ok(found)
            } else {
                Err(PlanError::Length { found, longest }.into())
            }
        }
    }

    /// The lines of files, or the texts of JSON lines.
    pub fn lines(path: &Path) -> Result<Vec<String>, Error> {
        let text = read_text(path)?;
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            return Ok(text.lines().map(str::to_owned).collect());
        }
        let read = |(number, line): (usize, &str)| {
            let value: Option<Value> = serde_json::from_str(line).ok();
            let text =
                value.as_ref().and_then(|value| value.as_str().or_else(|| value.get("text")?.as_str()));
            text.map(str::to_owned).ok_or_else(|| {
                let path = path.display();
                usage(format!(
                    "line {number} of `{path}` is no JSON string, and no object with a string `text`"
                ))
            })
        };
        let lines = zip(1.., text.lines()).filter(|(_, line)| !line.trim().is_empty());
        Ok(lines.map(read).collect::<Result<_, _>>()?)
    }

    /// In version 1.0 of NumPy's format: magic, header padded to a multiple of 64 bytes, numbers.
    fn npy(vectors: &[Vec<f32>]) -> Vec<u8> {
        let (texts, features) = (vectors.len(), vectors.first().map_or(0, Vec::len));
        let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({texts}, {features}), }}");
        let length = (10 + head.len() + 1).next_multiple_of(64) - 10;
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend(format!("{head:<width$}\n", width = length - 1).bytes());
        bytes.extend(vectors.iter().flatten().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    struct Texts {
        tokens: Vec<Vec<u32>>,
        /// The original number of tokens, if the text was cut.
        cut_from: Vec<Option<usize>>,
    }

    impl Texts {
        fn read(
            arguments: &Arguments,
            tokenizer: Option<&Tokenizer>,
            sentence: &SentenceConfig,
        ) -> Result<Self, Error> {
            if let Some(tokens) = &arguments.tokens {
                return Ok(Self { tokens: vec![tokens.clone()], cut_from: vec![None] });
            }
            let prompt = sentence.prompt(arguments.prompt_name.as_deref())?;
            let folder = &arguments.model;
            let tokenizer = tokenizer.ok_or_else(|| {
                usage(format!("`{}` has no tokenizer.json; give token ids with `--tokens`", folder.display()))
            })?;
            let files = arguments.files.iter().map(|file| lines(file)).collect::<Result<Vec<_>, _>>()?;
            let given = arguments.texts.iter().chain(files.iter().flatten());
            let limit = arguments.encoder.length.unwrap_or(sentence.max_tokens);
            let mut texts = Self { tokens: Vec::new(), cut_from: Vec::new() };
            for text in given {
                let (tokens, whole) = tokenizer.encode_within(&format!("{prompt}{text}"), limit)?;
                texts.cut_from.push((tokens.len() < whole).then_some(whole));
                texts.tokens.push(tokens);
            }
            if texts.tokens.is_empty() {
                Err(usage("there is no text: the file is empty").into())
            } else {
                Ok(texts)
            }
        }

        fn count(&self) -> usize {
            self.tokens.iter().map(Vec::len).sum()
        }

        fn tell_cut(&self) {
            for (number, (tokens, cut_from)) in zip(1.., zip(&self.tokens, &self.cut_from)) {
                if let Some(whole) = cut_from {
                    let (texts, kept) = (self.tokens.len(), tokens.len());
                    say!("text {number} of {texts} is cut from {whole} tokens to {kept}");
                }
            }
        }
    }

    fn line(vector: &[f32]) -> String {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        format!("{}\n", numbers.join(" "))
    }

    fn timings(embedded: &Embedded, tokens: usize) -> Value {
        let [load, compile] = build_times(embedded.build.as_ref());
        json!({
            "load_ms": load,
            "compile_ms": compile,
            "embed_ms": milliseconds(embedded.time),
            "tokens_per_s": tokens as f64 / embedded.time.as_secs_f64(),
        })
    }

    fn summarize(embedded: &Embedded, texts: &Texts) {
        let [load, compile] = build_times(embedded.build.as_ref());
        say!(
            "{} texts, {} tokens in {:.0} ms ({:.1}/s), {} numbers each; load {load:.0} ms, compile {compile:.0} ms",
            texts.tokens.len(),
            texts.count(),
            milliseconds(embedded.time),
            texts.count() as f64 / embedded.time.as_secs_f64(),
            embedded.embeddings.first().map_or(0, Vec::len),
        );
    }
}
