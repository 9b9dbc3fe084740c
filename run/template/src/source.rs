//! The original text of a template. Error messages show parts of the original template instead of
//! parts of the rewritten template.

use std::error::Error as _;
use std::iter::successors;
use std::path::PathBuf;

use errors::{escaped, shortened};
use files::limits;
use minijinja::{Error, ErrorKind};

use crate::rewrite::{self, Tag, Translated};
use crate::{TemplateError, TemplatePlace, engine};

/// The name of the default template.
pub const DEFAULT: &str = "default";

/// An error message shows at most this number of characters of a tag.
const TAG: usize = 80;

/// An error message shows at most this number of characters of a message from minijinja or the template.
const WHY: usize = 300;

/// A template together with its name and its file.
#[derive(Debug)]
pub struct Source {
    /// The file of the template, if the template came from a file.
    file: Option<PathBuf>,
    /// The name of the template among the model's templates.
    pub name: String,
    text: String,
    /// The tags of the template, with the positions in the original and the rewritten template.
    pub tags: Vec<Tag>,
}

impl Source {
    /// Reads a template, and rewrites the template for minijinja.
    pub fn read(
        file: Option<PathBuf>,
        name: String,
        text: &str,
    ) -> Result<(Self, Translated), TemplateError> {
        let mut source = Self { file, name, text: String::new(), tags: Vec::new() };
        if text.len() as u64 > limits::TEMPLATE {
            let why = format!("it has {} bytes, expected at most {}", text.len(), limits::TEMPLATE);
            return Err(TemplateError::Syntax { at: source.whole().into(), why });
        }
        source.text = text.replace("\r\n", "\n").replace('\r', "\n");
        let (translated, tags) = rewrite::translate(&source.text);
        source.tags = tags;
        for tag in &source.tags {
            let why = match &tag.unknown {
                _ if tag.operators > limits::TEMPLATE_OPERATORS => {
                    let most = limits::TEMPLATE_OPERATORS;
                    format!("a tag has {} operators, expected at most {most}", tag.operators)
                }
                Some(unknown) => words(unknown),
                None => continue,
            };
            return Err(TemplateError::Syntax { at: source.at(tag).into(), why });
        }
        Ok((source, translated))
    }

    /// Whether any tag can read a variable.
    pub fn reads(&self, name: &str) -> bool {
        self.tags.iter().any(|tag| rewrite::reads(&self.text[tag.from.clone()], name))
    }

    /// The place of an error that concerns the whole template and no single tag.
    pub fn whole(&self) -> TemplatePlace {
        let name = (self.name != DEFAULT).then(|| one_line(&self.name, TAG));
        TemplatePlace { file: self.file.clone(), name, line: None, tag: None }
    }

    pub fn at(&self, tag: &Tag) -> TemplatePlace {
        let text = one_line(&self.text[tag.from.clone()], TAG);
        TemplatePlace { tag: Some(text), ..self.at_byte(tag.from.start) }
    }

    /// The place in the original template to which a minijinja error refers.
    pub fn place(&self, error: &Error) -> TemplatePlace {
        let Some(line) = error.line() else { return self.whole() };
        let start = error.range().map(|range| range.start);
        // For some errors, minijinja knows only the line, which can contain several tags.
        let behind = |tag: &Tag| start.map_or(tag.line > line, |start| tag.to.start > start);
        let Some(before) = self.tags.partition_point(|tag| !behind(tag)).checked_sub(1) else {
            return TemplatePlace { line: Some(line), ..self.whole() };
        };
        let (tag, earlier) = (&self.tags[before], &self.tags[..before]);
        match start {
            Some(start) if start < tag.to.end => self.at(tag),
            // The rewriting does not change the text between tags.
            Some(start) => self.at_byte(tag.from.end + (start - tag.to.end)),
            None if earlier.last().is_some_and(|other| other.line == tag.line) => {
                self.at_byte(tag.from.start)
            }
            None => self.at(tag),
        }
    }

    /// The error for a template that minijinja rejects. Users do not know the rewritten template,
    /// so the error contains minijinja's message about the original template. If the messages about
    /// the original and the rewritten template concern different tags, the error contains the
    /// message about the rewritten template.
    pub fn syntax_error(&self, error: &Error) -> TemplateError {
        let at = self.place(error);
        let plain = engine::plain().and_then(|engine| engine.template_from_str(&self.text).map(drop)).err();
        let plain = plain.filter(|plain| {
            let start = plain.range().map(|range| range.start);
            let tag = self.tags.iter().find(|tag| start.is_some_and(|start| tag.from.contains(&start)));
            tag.is_some_and(|tag| self.at(tag) == at)
        });
        TemplateError::Syntax { at: at.into(), why: why(plain.as_ref().unwrap_or(error)) }
    }

    fn at_byte(&self, byte: usize) -> TemplatePlace {
        let before = &self.text.as_bytes()[..byte.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        TemplatePlace { line: Some(line), ..self.whole() }
    }
}

/// minijinja's error message without the place of the error, because this place refers to the
/// rewritten template.
pub fn why(error: &Error) -> String {
    let said = |error: &Error| match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (ErrorKind::OutOfFuel, _) => "it takes too many steps".to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    let causes = successors(error.source(), |&cause| cause.source());
    let causes = causes.map(|cause| cause.downcast_ref().map_or_else(|| cause.to_string(), said));
    let all: Vec<_> = std::iter::once(said(error)).chain(causes).collect();
    one_line(&all.join(": "), WHY)
}

/// Escapes and shortens an untrusted text for an error message.
pub fn words(text: &str) -> String {
    escaped(&shortened(text.to_owned(), WHY))
}

/// Formats an untrusted text on one line with at most `most` characters.
fn one_line(text: &str, most: usize) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    escaped(&shortened(words.join(" "), most))
}
