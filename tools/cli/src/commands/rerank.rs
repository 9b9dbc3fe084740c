//! `tracewright rerank` orders texts by their scores for a query.

use std::path::PathBuf;

use clap::Args;

use super::embed::EncoderArguments;

#[derive(Args, Clone)]
#[command(group(clap::ArgGroup::new("documents").required(true).multiple(true)))]
pub struct Arguments {
    /// Hugging Face model directory of a reranker, such as bge-reranker
    pub model: PathBuf,
    /// Text for which the documents are scored
    pub query: String,
    /// Files with one document per line, or `-` for stdin. A line of a `.jsonl` file is a JSON string, or an
    /// object with a string `text`
    #[arg(group = "documents", value_name = "FILES")]
    pub files: Vec<PathBuf>,
    /// Document to score before those of files; may be repeated
    #[arg(short = 'p', long = "text", group = "documents", value_name = "TEXT")]
    pub texts: Vec<String>,
    /// Number of documents to print, the best first [default: all]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Print one JSON object on stdout instead of a line for each document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub encoder: EncoderArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::iter::zip;

    use console::{print, usage};
    use serde_json::{Value, json};
    use tracewright::ModelError;
    use tracewright::footprint::peak_rss;
    use tracewright::model::Opening;
    use tracewright::models::check_reranks;

    use super::Arguments;
    use crate::Invocation;
    use crate::build::{build_times, milliseconds};
    use crate::commands::embed::lines;
    use crate::error::Error;
    use crate::load::{self, Tools};

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let opening = self.encoder.read(&self.model, invocation)?;
            let (mut opening, documents) = load::prepared(opening, self, interrupt, prepare)?;
            opening.options.context = self.encoder.length;
            // The network is built by the first call.
            let tools = Tools::find(&mut opening, &self.encoder.compile, interrupt)?;
            let model = opening.build()?;
            let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
            let reranked = model.rank(&self.query, &texts).map_err(|error| tools.error(error))?;
            let embedded = &reranked.embedded;
            load::report_build(embedded.build.as_ref());
            for (number, cut) in zip(1.., &reranked.cut_from) {
                if let Some(whole) = cut {
                    say!("document {number} is cut: with the query it has {whole} tokens");
                }
            }
            let shown = reranked.ranked.iter().take(self.top.unwrap_or(usize::MAX));
            let [load, compile] = build_times(embedded.build.as_ref());
            if self.json {
                let result = |one: &tracewright::model::Ranked| json!({ "index": one.index, "score": one.score, "text": documents[one.index] });
                let timings = json!({ "load_ms": load, "compile_ms": compile, "score_ms": milliseconds(embedded.time) });
                let results: Value = shown.map(result).collect();
                let json = json!({
                    "results": results,
                    "tokens": reranked.tokens,
                    "timings": timings,
                    "peak_rss_bytes": peak_rss(),
                });
                print(&format!("{json}\n"))?;
            } else {
                for one in shown {
                    print(&format!("{}\t{}\n", one.score, documents[one.index]))?;
                }
                let time = milliseconds(embedded.time);
                let count = documents.len();
                say!(
                    "{count} documents, {} tokens in {time:.0} ms; load {load:.0} ms, compile {compile:.0} ms",
                    reranked.tokens
                );
            }
            interrupt.check()
        }
    }

    /// The documents, of a model that scores them.
    fn prepare(opening: &Opening, arguments: &Arguments) -> Result<Vec<String>, Error> {
        let path = &arguments.model;
        let Some(network) = opening.network() else {
            let (path, does) = (path.clone(), "continues text");
            return Err(ModelError::Kind { path, does, asked: "score pairs of texts" }.into());
        };
        check_reranks(&network.kind, path)?;
        arguments.encoder.limit(network.max_context())?;
        let files = arguments.files.iter().map(|file| lines(file)).collect::<Result<Vec<_>, _>>()?;
        let documents: Vec<String> =
            arguments.texts.iter().cloned().chain(files.into_iter().flatten()).collect();
        if documents.is_empty() {
            Err(usage("there is no document: the files are empty").into())
        } else {
            Ok(documents)
        }
    }
}
