//! `tracewright embed` computes embeddings of texts.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use console::NetworkArguments;

use crate::arguments::{
    CompileArguments, DeviceArguments, EngineArguments, MeshArguments, TuningArguments, batch,
};

#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("input").required(true).multiple(true)))]
pub struct Arguments {
    /// Hugging Face model directory that contains the files of sentence-transformers
    pub model: PathBuf,
    /// Text to embed; may be repeated
    #[arg(short = 'p', long = "text", group = "input", value_name = "TEXT")]
    pub texts: Vec<String>,
    /// File with one text per line, to embed after the texts of `--text`, or `-` for stdin
    #[arg(short, long, group = "input", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Token ids of a single text, including special tokens, such as 2,17,1
    #[arg(long, group = "input", value_name = "IDS", value_delimiter = ',', conflicts_with_all = ["texts", "file", "prompt_name"])]
    pub tokens: Option<Vec<u32>>,
    /// Name of one of the model's prompts, which `embed` adds before each text [default: the
    /// model's default prompt]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Maximum number of tokens per text; longer texts are cut [default: the length of the longest text, up
    /// to the model's limit]
    #[arg(long, value_name = "N")]
    pub length: Option<usize>,
    /// Number of texts that a call embeds in parallel
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
    /// Print one JSON object on stdout instead of a line of numbers for each text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::iter::zip;

    use console::{print, read_text, usage};
    use serde_json::{Value, json};
    use tracewright::embed::{EmbedError, check_texts, length_for};
    use tracewright::footprint::peak_rss;
    use tracewright::generate::Tokenizer;
    use tracewright::model::{Embedded, Opening};
    use tracewright::models::{SentenceConfig, check_embeds};
    use tracewright::{ModelError, OpenOptions, PlanError};

    use super::Arguments;
    use crate::Invocation;
    use crate::build::{build_times, milliseconds};
    use crate::error::Error;
    use crate::limit::{Limit, SetBy};
    use crate::load::{self, Tools};
    use crate::plugins;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let batch = self.batch;
            let opening = read(self, invocation)?;
            let (mut opening, (texts, longest)) = load::prepared(opening, self, interrupt, prepare)?;
            let length = self.length.unwrap_or_else(|| length_for(texts.longest(), longest));
            if !(1..=longest).contains(&length) {
                return Err(PlanError::Length { found: length, longest }.into());
            }
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
            opening.options.context = Some(length);
            // The network is built by the first call.
            let mut tools = Some(Tools::find(&mut opening, &self.compile, interrupt)?);
            let model = opening.build()?;

            let mut embedded = Embedded::default();
            for texts in texts.tokens.chunks(batch.get()) {
                interrupt.check()?;
                let new = model.embed_tokens(texts.to_vec());
                let new = new.map_err(|error| match tools.take() {
                    Some(tools) => tools.error(error),
                    None => error.into(),
                })?;
                if embedded.build.is_none() {
                    load::report_build(new.build.as_ref());
                }
                if !self.json {
                    new.embeddings.iter().try_for_each(|vector| print(&line(vector)))?;
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
                summarize(&embedded, &texts);
            }
            interrupt.check()
        }
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

    fn read(arguments: &Arguments, invocation: &Invocation) -> Result<Opening, Error> {
        let &Invocation { read, ref interrupt, .. } = invocation;
        let Arguments { model, network, batch, threads, .. } = arguments;
        let mut options = load::network_options(network, &arguments.device, &arguments.tuning)?;
        let unused =
            [("--threads", *threads != 0), ("--tuning", arguments.tuning.source.is_some())].into_iter();
        let unused = unused.chain(plugins::of_network(network));
        plugins::check_mesh(&arguments.mesh, &arguments.engine, &arguments.device)?;
        let plugin = plugins::plugin(&arguments.engine, &arguments.device, unused)?;
        match plugin {
            Some(_) => options.device = arguments.device.device,
            None => load::choose(&mut options, &arguments.device)?,
        }
        let options = OpenOptions {
            plugin,
            xla_flags: plugins::flags(),
            mesh: arguments.mesh.mesh.clone(),
            shard: arguments.mesh.sharding(),
            slots: batch.get(),
            threads: *threads,
            read,
            watch: Some(load::watch(interrupt)),
            ..options
        };
        let path = model.clone();
        let opening = interrupt.or(move || Opening::read(path, options))??;
        console::warn(opening.warnings());
        Ok(opening)
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
            let file = arguments.file.as_deref();
            let file = file.map(read_text).transpose()?;
            let given = arguments.texts.iter().map(String::as_str);
            let given = given.chain(file.iter().flat_map(|file| file.lines()));
            let limit = arguments.length.unwrap_or(sentence.max_tokens);
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

        fn longest(&self) -> usize {
            self.tokens.iter().map(Vec::len).max().unwrap_or_default()
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
