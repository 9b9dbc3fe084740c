//! `tracewright embed`

use std::fs;
use std::io::{self, Write as _};
use std::iter::zip;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracewright::embed::{EmbedError, Embedder, EmbeddingPlan, check_texts};
use tracewright::errors::WithPath as _;
use tracewright::files::{limits, read_stream};
use tracewright::footprint::peak_rss;
use tracewright::generate::Tokenizer;
use tracewright::load::{LoadOptions, Loaded, load};
use tracewright::lower::Quantization;
use tracewright::models::{EmbeddingGemmaConfig, SentenceConfig, check_sizes};
use tracewright::targets::Target;

use crate::arguments::EmbedArguments;
use crate::build::Tunings;
use crate::error::Error;
use crate::limit::{Limit, SetBy};
use crate::measure::milliseconds;
use crate::{Interrupt, build, tell_passed_over};

pub fn run(arguments: &EmbedArguments, interrupt: &Interrupt) -> Result<(), Error> {
    let EmbedArguments { model: folder, network, length, batch, .. } = arguments;
    fs::read_dir(folder).with_path("open the model directory", folder)?;
    let config = EmbeddingGemmaConfig::read(folder, &network.allow_config_key)?;
    let texts = {
        let (arguments, sentence) = (arguments.clone(), config.sentence.clone());
        interrupt.or(move || Texts::read(&arguments, &sentence))??
    };
    let length =
        length.unwrap_or_else(|| EmbeddingPlan::length_for(texts.longest(), config.sentence.max_tokens));
    let plan = EmbeddingPlan::new(config, network.dtype, length, batch.get())?;
    let limit = Limit {
        tokens: plan.length,
        longest: Some(plan.config.sentence.max_tokens),
        set_by: SetBy::Flag("--length"),
    };
    check_texts(&texts.tokens, plan.length, plan.config.vocab_size).map_err(|error| match error {
        EmbedError::TooLong { text, found, .. } => {
            Error::TooLong { what: format!("text {} of {}", text + 1, texts.tokens.len()), found, limit }
        }
        error => error.into(),
    })?;
    texts.tell_cut();
    let place = arguments.device.choose(arguments.threads)?;
    let checkpoint = plan.checkpoint(folder)?;
    tell_passed_over(&checkpoint);
    check_sizes(&plan.config.tower.sizes(), &checkpoint)?;
    let traced = plan.trace()?;
    let loaded = build::load(&arguments.compile, place, interrupt, |options| {
        let (rules, ignorable) = (network.simplify.unwrap_or_default(), plan.config.ignorable());
        let LoadOptions { tools, target, .. } = &options;
        let source = arguments.tuning.source.as_ref();
        let tuning = Tunings::read(source, target, (tools.compiler, tools.cache))?.of(None)?;
        let target = Target { tuning, ..target.clone() };
        let weights = network.weights(Quantization::Computed);
        Ok(load(&traced, &checkpoint, LoadOptions { target, rules, weights, ignorable, ..options })?)
    })?;

    let embedder = Embedder::new(&loaded.program, plan.config.vocab_size)?;
    let start = Instant::now();
    let mut vectors = Vec::with_capacity(texts.tokens.len());
    for texts in texts.tokens.chunks(embedder.batch()) {
        interrupt.check()?;
        let new = embedder.embed(texts)?;
        if !arguments.json {
            new.iter().try_for_each(|vector| print(vector)).map_err(Error::Output)?;
        }
        vectors.extend(new);
    }
    let took = start.elapsed();
    if arguments.json {
        let text = |i: usize| json!({ "tokens": texts.tokens[i], "cut_from": texts.cut_from[i], "embedding": vectors[i] });
        let json = json!({
            "texts": (0..vectors.len()).map(text).collect::<Value>(),
            "timings": timings(&loaded, took, texts.count()),
            "peak_rss_bytes": peak_rss(),
        });
        writeln!(io::stdout(), "{json}").map_err(Error::Output)?;
    } else {
        summarize(&loaded, took, &texts, embedder.features());
    }
    interrupt.check()
}

/// Texts as the network takes them.
struct Texts {
    tokens: Vec<Vec<u32>>,
    /// How many tokens each had, if it was cut.
    cut_from: Vec<Option<usize>>,
}

impl Texts {
    /// The texts that the arguments give, with their prompt and within the length.
    fn read(arguments: &EmbedArguments, sentence: &SentenceConfig) -> Result<Self, Error> {
        if let Some(tokens) = &arguments.tokens {
            return Ok(Self { tokens: vec![tokens.clone()], cut_from: vec![None] });
        }
        let prompt = sentence.prompt(arguments.prompt_name.as_deref())?;
        let folder = &arguments.model;
        let tokenizer = Tokenizer::load(folder)?.ok_or_else(|| Error::Usage {
            what: format!("`{}` has no tokenizer.json; give token ids with `--tokens`", folder.display()),
        })?;
        let file = arguments.file.as_deref();
        let file = file.map(|path| read_stream(path, limits::PROMPT)).transpose()?;
        let given = arguments.texts.iter().map(String::as_str);
        let given = given.chain(file.iter().flat_map(|file| file.lines()));
        let limit = arguments.length.unwrap_or(sentence.max_tokens);
        let mut texts = Self { tokens: Vec::new(), cut_from: Vec::new() };
        for text in given {
            let (tokens, whole) = tokenizer.encode_within(&format!("{prompt}{text}"), limit)?;
            texts.cut_from.push((tokens.len() < whole).then_some(whole));
            texts.tokens.push(tokens);
        }
        match texts.tokens.is_empty() {
            true => Err(Error::Usage { what: "there is no text: the file is empty".into() }),
            false => Ok(texts),
        }
    }

    /// Tokens of all texts.
    fn count(&self) -> usize {
        self.tokens.iter().map(Vec::len).sum()
    }

    /// Tokens of the longest text.
    fn longest(&self) -> usize {
        self.tokens.iter().map(Vec::len).max().unwrap_or_default()
    }

    /// Says on stderr which texts were cut.
    fn tell_cut(&self) {
        for (number, (tokens, cut_from)) in zip(1.., zip(&self.tokens, &self.cut_from)) {
            if let Some(whole) = cut_from {
                let (texts, kept) = (self.tokens.len(), tokens.len());
                say!("text {number} of {texts} is cut from {whole} tokens to {kept}");
            }
        }
    }
}

/// A line with the numbers of a vector, which a reader may have while others are made.
fn print(vector: &[f32]) -> io::Result<()> {
    let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
    writeln!(io::stdout(), "{}", numbers.join(" "))
}

fn timings(loaded: &Loaded, took: Duration, tokens: usize) -> Value {
    json!({
        "load_ms": milliseconds(loaded.load),
        "compile_ms": milliseconds(loaded.compile),
        "embed_ms": milliseconds(took),
        "tokens_per_s": tokens as f64 / took.as_secs_f64(),
    })
}

/// One line for a reader, on stderr.
fn summarize(loaded: &Loaded, took: Duration, texts: &Texts, features: usize) {
    say!(
        "{} texts, {} tokens in {:.0} ms ({:.1}/s), {features} numbers each; load {:.0} ms, compile {:.0} ms",
        texts.tokens.len(),
        texts.count(),
        milliseconds(took),
        texts.count() as f64 / took.as_secs_f64(),
        milliseconds(loaded.load),
        milliseconds(loaded.compile),
    );
}
