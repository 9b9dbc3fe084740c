//! Texts to vectors: a program that was built, called with tokens.
//!
//! ```no_run
//! # use std::error::Error;
//! # use std::path::Path;
//! use tracewright::Plan;
//! use tracewright::embed::Embedder;
//! use tracewright::generate::Tokenizer;
//! use tracewright::build::{ProgramOptions, build_program};
//! use tracewright::models::{self, check_embeds, fit};
//! use tracewright::runtime::Compiler;
//!
//! # fn main() -> Result<(), Box<dyn Error>> {
//! let folder = Path::new("embeddinggemma-300m");
//! let fitted = fit::open(models::read, folder, &[])?;
//! let sentence = check_embeds(&*fitted.network, folder)?;
//! let text = format!("{}Why is the sky blue?", sentence.prompt(Some("query"))?);
//! let tokenizer = Tokenizer::load(folder)?.ok_or("there is no tokenizer.json")?;
//! let (tokens, _) = tokenizer.encode_within(&text, sentence.max_tokens)?;
//!
//! let plan = Plan::new(fitted.network, None, Some(128), None)?;
//! let compiler = Compiler::new("iree-compile"); // the one on PATH
//! let options = ProgramOptions::new(&compiler, Path::new("cache"));
//! let options = ProgramOptions { ignorable: plan.model.ignorable(), ..options };
//! let loaded = build_program(&plan.trace()?, &fitted.checkpoint, options)?;
//! let vectors = Embedder::new(&loaded.program, plan.model.vocabulary())?.embed(&[tokens])?;
//! # Ok(())
//! # }
//! ```

use ops::{Array, ArrayError};
use trace::{Role, Signature};

use crate::plan::rounded_up;
use crate::program::{CallError, Program};

/// The length that texts of up to `tokens` tokens are padded to: a power of two, so that few different modules are compiled,
/// and at most `longest`.
pub fn length_for(tokens: usize, longest: usize) -> usize {
    rounded_up(tokens, 32, longest)
}

/// A program that makes vectors of tokens. Everything in it is known by its role.
pub struct Embedder<'a> {
    program: &'a Program,
    signature: &'a Signature,
    vocabulary: usize,
    batch: usize,
    length: usize,
    features: usize,
    result: usize,
}

/// Why there are no vectors.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// A program without an entry point that makes vectors of tokens.
    #[error(
        "the program has no entry point that takes tokens and counts, and gives embeddings; there are {entries:?}"
    )]
    NoEntryPoint {
        /// The names there are.
        entries: Vec<String>,
    },
    /// A text without tokens.
    #[error("text {text} has no tokens, expected at least one")]
    Empty {
        /// Which text, from 0.
        text: usize,
    },
    /// A text with more tokens than the program takes.
    #[error(
        "text {text} has {found} tokens, expected at most {length}; build the program with a longer `length`"
    )]
    TooLong {
        /// Which text, from 0.
        text: usize,
        /// How many tokens it has.
        found: usize,
        /// How many the program takes.
        length: usize,
    },
    /// A token id out of range.
    #[error("token {index} of text {text} has the id {token}, expected one below {vocabulary}")]
    Token {
        /// Which text, from 0.
        text: usize,
        /// Which of its tokens, from 0.
        index: usize,
        /// Its id.
        token: u32,
        /// The number of ids.
        vocabulary: usize,
    },
    /// A vector that is none.
    #[error("number {index} of the vector of text {text} is {found}, expected a finite number")]
    Number {
        /// Which text, from 0.
        text: usize,
        /// Which number, from 0.
        index: usize,
        /// What it is.
        found: f32,
    },
    /// An argument or a result is not of the type that its role has.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl<'a> Embedder<'a> {
    /// What makes vectors in a loaded program, of tokens below `vocabulary`.
    ///
    /// # Errors
    /// If the program has no entry point that takes tokens and counts and nothing else, and gives embeddings.
    pub fn new(program: &'a Program, vocabulary: usize) -> Result<Self, EmbedError> {
        let bound = program.signatures().iter().find_map(|signature| {
            let roles: Vec<Role> = signature.arguments.iter().map(|argument| argument.role).collect();
            let tokens = roles.iter().position(|&role| role == Role::Tokens)?;
            let result = signature.results.iter().position(|result| result.role == Role::Embedding)?;
            let &[batch, length] = &signature.arguments[tokens].ty.shape[..] else { return None };
            let &[_, features] = &signature.results[result].ty.shape[..] else { return None };
            let complete = roles.len() == 2 && roles.contains(&Role::Count) && batch > 0 && features > 0;
            complete.then_some(Self { program, signature, vocabulary, batch, length, features, result })
        });
        let names = || program.signatures().iter().map(|signature| signature.name.clone()).collect();
        bound.ok_or_else(|| EmbedError::NoEntryPoint { entries: names() })
    }

    /// Texts that one call takes.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens of a text at most.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Numbers of a vector.
    pub fn features(&self) -> usize {
        self.features
    }

    /// The vector of each text, which is given as its tokens.
    ///
    /// # Errors
    /// If a text has no tokens, too many, or one that is not of the vocabulary; if a call fails, or gives what is no vector.
    pub fn embed(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        check_texts(texts, self.length, self.vocabulary)?;
        let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(texts.len());
        for texts in texts.chunks(self.batch) {
            let found = self.call(texts)?.to_vec::<f32>()?;
            vectors.extend(found.chunks(self.features).take(texts.len()).map(<[f32]>::to_vec));
        }
        for (text, vector) in vectors.iter().enumerate() {
            if let Some(index) = vector.iter().position(|number| !number.is_finite()) {
                return Err(EmbedError::Number { text, index, found: vector[index] });
            }
        }
        Ok(vectors)
    }

    /// The result of a call with these texts. Rows that are left over are texts of one token, which nobody looks at: a mean
    /// of none is no number.
    fn call(&self, texts: &[Vec<u32>]) -> Result<Array, EmbedError> {
        let row = |row: usize| texts.get(row).map_or(&[0][..], Vec::as_slice);
        let padded = |tokens: &[u32]| {
            let mut padded: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            padded.resize(self.length, 0);
            padded
        };
        let argument = |argument: &trace::Argument| {
            let numbers: Vec<i32> = match argument.role {
                Role::Tokens => (0..self.batch).flat_map(|i| padded(row(i))).collect(),
                _ => (0..self.batch).map(|i| row(i).len() as i32).collect(),
            };
            Array::from_slice(&numbers, argument.ty.shape.clone())
        };
        let arguments: Vec<Array> =
            self.signature.arguments.iter().map(argument).collect::<Result<_, _>>()?;
        Ok(self.program.call(&self.signature.name, &arguments)?.swap_remove(self.result))
    }
}

/// Whether a program for texts of `length` tokens below `vocabulary` takes these.
///
/// # Errors
/// The first text that it does not take.
pub fn check_texts(texts: &[Vec<u32>], length: usize, vocabulary: usize) -> Result<(), EmbedError> {
    texts.iter().enumerate().try_for_each(|(text, tokens)| {
        let outside = |&(_, &token): &(usize, &u32)| token as usize >= vocabulary;
        match (tokens.len(), tokens.iter().enumerate().find(outside)) {
            (0, _) => Err(EmbedError::Empty { text }),
            (found, _) if found > length => Err(EmbedError::TooLong { text, found, length }),
            (_, Some((index, &token))) => Err(EmbedError::Token { text, index, token, vocabulary }),
            (_, None) => Ok(()),
        }
    })
}
