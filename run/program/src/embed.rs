//! Computes embeddings of texts by calling a loaded program with token ids.

use ops::{Array, ArrayError};
use trace::{Role, Signature};

use crate::{CallError, Program};

/// A power of two, or the middle of two powers, so that only a few modules are compiled; at least 24, and at most
/// `longest`.
pub fn length_for(tokens: usize, longest: usize) -> usize {
    let above = tokens.checked_next_power_of_two().unwrap_or(longest);
    let middle = above / 4 * 3;
    (if tokens <= middle { middle } else { above }).max(24).min(longest)
}

/// Finds a program's arguments and results by their roles.
pub struct Embedder<'a> {
    program: &'a Program,
    signature: &'a Signature,
    vocabulary: usize,
    batch: usize,
    length: usize,
    features: usize,
    result: usize,
}

/// The reason why embeddings cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The program has no entry point that computes embeddings from token ids.
    #[error(
        "the program has no entry point that takes tokens and their counts and returns embeddings; its entry \
        points are {entries:?}"
    )]
    NoEntryPoint { entries: Vec<String> },
    #[error("text {text} has no tokens, expected at least one")]
    Empty {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
    },
    #[error(
        "text {text} has {found} tokens, expected at most {length}; build the program with a longer `length`"
    )]
    TooLong {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
        found: usize,
        length: usize,
    },
    #[error("token {index} of text {text} has the id {token}, expected an id below {vocabulary}")]
    Token {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
        /// From 0.
        index: usize,
        token: u32,
        vocabulary: usize,
    },
    #[error("number {index} in the embedding of text {text} is {found}, expected a finite number")]
    Number {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
        /// From 0.
        index: usize,
        found: f32,
    },
    /// The type of an argument or a result differs from the type that the entry point declares.
    #[error(transparent)]
    Array(#[from] ArrayError),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl<'a> Embedder<'a> {
    /// `vocabulary` is the number of token ids.
    pub fn new(program: &'a Program, vocabulary: usize) -> Result<Self, EmbedError> {
        let bound = program.signatures().iter().find_map(|signature| {
            let roles: Vec<Role> = signature.arguments.iter().map(|argument| argument.role).collect();
            let tokens = roles.iter().position(|&role| role == Role::Tokens)?;
            let result = signature.results.iter().position(|result| result.role == Role::Embedding)?;
            let &[batch, length] = &signature.arguments[tokens].ty.shape[..] else { return None };
            let &[_, features] = &signature.results[result].ty.shape[..] else { return None };
            let known = [Role::Tokens, Role::First, Role::Count];
            let complete = roles.iter().all(|role| known.contains(role)) && roles.contains(&Role::Count);
            let complete = complete && batch > 0 && features > 0;
            complete.then_some(Self { program, signature, vocabulary, batch, length, features, result })
        });
        let names = || program.signatures().iter().map(|signature| signature.name.clone()).collect();
        bound.ok_or_else(|| EmbedError::NoEntryPoint { entries: names() })
    }

    /// Texts per call.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens of a text.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Numbers of an embedding.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Calls the program as often as its batch requires.
    pub fn embed(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EmbedError> {
        self.embed_pairs(texts, &[])
    }

    /// Each list has the tokens of two texts; the first text has as many tokens as `first` contains. Without a
    /// number, all tokens belong to it.
    pub fn embed_pairs(&self, texts: &[Vec<u32>], first: &[usize]) -> Result<Vec<Vec<f32>>, EmbedError> {
        check_texts(texts, self.length, self.vocabulary)?;
        let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(texts.len());
        for (index, texts) in texts.chunks(self.batch).enumerate() {
            let first = first.get(index * self.batch..).unwrap_or_default();
            let found = self.call(texts, first)?.to_vec::<f32>()?;
            vectors.extend(found.chunks(self.features).take(texts.len()).map(<[f32]>::to_vec));
        }
        for (text, vector) in vectors.iter().enumerate() {
            if let Some(index) = vector.iter().position(|number| !number.is_finite()) {
                return Err(EmbedError::Number { text, index, found: vector[index] });
            }
        }
        Ok(vectors)
    }

    /// Unused sequences of the batch get a text of one token, because the mean over none would be NaN.
    fn call(&self, texts: &[Vec<u32>], first: &[usize]) -> Result<Array, EmbedError> {
        let row = |row: usize| texts.get(row).map_or(&[0][..], Vec::as_slice);
        let padded = |tokens: &[u32]| {
            let mut padded: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            padded.resize(self.length, 0);
            padded
        };
        let argument = |argument: &trace::Argument| {
            let numbers: Vec<i32> = match argument.role {
                Role::Tokens => (0..self.batch).flat_map(|i| padded(row(i))).collect(),
                Role::First => {
                    let first = |i| first.get(i).copied().unwrap_or(row(i).len());
                    (0..self.batch).map(|i| first(i) as i32).collect()
                }
                _ => (0..self.batch).map(|i| row(i).len() as i32).collect(),
            };
            Array::from_slice(&numbers, argument.ty.shape.clone())
        };
        let arguments: Vec<Array> =
            self.signature.arguments.iter().map(argument).collect::<Result<_, _>>()?;
        Ok(self.program.call(&self.signature.name, &arguments)?.swap_remove(self.result))
    }
}

/// At most `length` tokens, and ids below `vocabulary`.
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
