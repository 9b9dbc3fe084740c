//! Computes embeddings of texts by calling a loaded program with token ids.

use ops::{Array, ArrayError};
use trace::{Role, Signature};

use crate::plan::rounded_up;
use crate::{CallError, Program};

/// Returns the padded length for texts that have at most `tokens` tokens. The padded length is a
/// power of two, but at most `longest`. Because padded lengths are powers of two, Tracewright
/// compiles only a few different modules.
pub fn length_for(tokens: usize, longest: usize) -> usize {
    rounded_up(tokens, 32, longest)
}

/// Computes embeddings with a loaded program. The embedder finds the program's arguments and
/// results by their roles, such as the role of the tokens.
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
    NoEntryPoint {
        /// The names of the program's entry points.
        entries: Vec<String>,
    },
    /// A text has no tokens.
    #[error("text {text} has no tokens, expected at least one")]
    Empty {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
    },
    /// A text has more tokens than the program can process.
    #[error(
        "text {text} has {found} tokens, expected at most {length}; build the program with a longer `length`"
    )]
    TooLong {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
        /// The number of tokens in the text that is too long.
        found: usize,
        /// The largest number of tokens that the program can process.
        length: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token {index} of text {text} has the id {token}, expected an id below {vocabulary}")]
    Token {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
        /// The index of the token in its text, counted from 0.
        index: usize,
        /// The token's id, which is out of range.
        token: u32,
        /// The number of token ids in the vocabulary.
        vocabulary: usize,
    },
    /// An embedding contains a number that is not finite.
    #[error("number {index} in the embedding of text {text} is {found}, expected a finite number")]
    Number {
        /// The index of the text in the caller's list, counted from 0.
        text: usize,
        /// The index of the number in the embedding, counted from 0.
        index: usize,
        /// The number that is not finite.
        found: f32,
    },
    /// The type of an argument or a result differs from the type that the entry point declares.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The call of the entry point failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl<'a> Embedder<'a> {
    /// Finds the entry point for embeddings in a loaded program. `vocabulary` is the number of token ids of
    /// the model.
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

    /// Returns the number of texts that one call of the program processes.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Returns the largest number of tokens in a text.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of f32 values in an embedding.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Computes the embedding of each text. A text is a list of token ids. If the batch of the
    /// program is smaller than the number of texts, the function calls the program several times.
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

    /// Computes the embeddings in one call of the program. If the batch has unused sequences, the
    /// function fills these sequences with a text of one token, and ignores their results. The fill
    /// text needs a token, because the mean over zero tokens would be NaN.
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

/// Checks that a program can process the given texts. Each text must have at most `length` tokens,
/// and each token id must be below `vocabulary`.
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
