//! `tracewright tokenize` prints the tokens of texts.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file or export
    pub model: PathBuf,
    /// Texts to tokenize
    #[arg(value_name = "TEXT", required_unless_present = "file")]
    texts: Vec<String>,
    /// File with a single text, or `-` for stdin
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// Add no special tokens, such as the beginning-of-text token; special tokens inside a text are kept
    #[arg(long)]
    plain: bool,
    /// Print one JSON object on stdout instead of a line for each token
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "iree")]
mod run {
    use std::fs;
    use std::path::Path;

    use console::{print, read_text, usage};
    use serde_json::{Value, json};
    use tracewright::errors::{WithPath as _, escaped};
    use tracewright::generate::Tokenizer;

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let texts = match &self.file {
                Some(path) => vec![read_text(path)?],
                None => self.texts.clone(),
            };
            let (model, plain) = (self.model.clone(), self.plain);
            // A tokenizer is somebody else's work, and may take long.
            let (texts, pieces) = invocation.interrupt.or(move || tokenize(&model, texts, plain))??;
            let text =
                if self.json { format!("{}\n", json(&texts, &pieces)) } else { lines(&texts, &pieces) };
            Ok(print(&text)?)
        }
    }

    type Tokenized = (String, Vec<u32>);

    fn tokenize(
        model: &Path,
        texts: Vec<String>,
        plain: bool,
    ) -> Result<(Vec<Tokenized>, Vec<Vec<u8>>), Error> {
        fs::metadata(model).with_path("open", model)?;
        let tokenizer = Tokenizer::load(model)?
            .ok_or_else(|| usage(format!("`{}` has no tokenizer.json", model.display())))?;
        let mut tokenized = Vec::new();
        for text in texts {
            let tokens = if plain { tokenizer.encode_plain(&text) } else { tokenizer.encode(&text) }?;
            tokenized.push((text, tokens));
        }
        Ok((tokenized, tokenizer.pieces()))
    }

    fn piece(id: u32, pieces: &[Vec<u8>]) -> &[u8] {
        pieces.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// One line for each token, with escaped control characters, and an empty line between texts.
    fn lines(texts: &[Tokenized], pieces: &[Vec<u8>]) -> String {
        let line = |id: &u32| {
            let bytes = piece(*id, pieces);
            let piece = match std::str::from_utf8(bytes) {
                Ok(text) => format!("{text:?}"),
                // A part of a character.
                Err(_) => format!("\"{}\"", bytes.escape_ascii()),
            };
            format!("{id:>7}  {}\n", escaped(&piece))
        };
        let blocks: Vec<String> = texts.iter().map(|(_, ids)| ids.iter().map(line).collect()).collect();
        blocks.join("\n")
    }

    fn json(texts: &[Tokenized], pieces: &[Vec<u8>]) -> Value {
        let token = |id: &u32| {
            let bytes = piece(*id, pieces);
            json!({ "id": id, "piece": String::from_utf8_lossy(bytes), "bytes": bytes })
        };
        let text = |(text, ids): &Tokenized| json!({ "text": text, "tokens": ids.iter().map(token).collect::<Value>() });
        json!({ "texts": texts.iter().map(text).collect::<Value>() })
    }
}
