//! [`Prompt`] is the whole input of a sequence.

use trace::Role;

use crate::entry::{ArgBinding, EntryKind};
use crate::executor::Executor;
use crate::features::{FeatureBlocks, Features};
use crate::network::check_tokens;
use crate::sequence::{EncoderSource, SequenceInput};
use crate::{GenerateError, Network};

/// The input of a sequence. A prompt of token ids alone can be made from a list of them.
///
/// ```
/// use tracewright_generate::{EncoderInput, Features, Prompt, PromptPart};
///
/// // Two positions have features instead of tokens, and a token follows them.
/// let image = Features { numbers: vec![0.5; 8], width: 4 };
/// let prompt = Prompt {
///     parts: vec![PromptPart::Features(image, 0), PromptPart::Tokens(vec![5])],
///     ..Prompt::default()
/// };
/// assert_eq!(prompt.tokens(), [0, 0, 5]);
///
/// // The network's encoder reads three tokens, and the sequence begins with token 0.
/// let source = Some(EncoderInput::Tokens(vec![5, 17, 3]));
/// assert_eq!(Prompt { source, ..Prompt::from([0]) }.tokens(), [0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// The parts in the order of their positions.
    pub parts: Vec<PromptPart>,
    /// The input of the encoder, for a network that has one.
    pub source: Option<EncoderInput>,
    /// The index of the adapter for the whole sequence. The index 0 selects no adapter.
    pub adapter: u32,
    /// Whether the sequence can reuse the state (such as the KV cache) of an earlier sequence that
    /// begins with the same tokens and has the same adapter. A sequence with a source reuses none.
    pub reuse: bool,
}

/// Consecutive positions of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptPart {
    /// One token id for each position.
    Tokens(Vec<u32>),
    /// Vectors in place of embeddings, and the token id that penalties see at their positions. One call of the
    /// network computes a part that fits into a call, because the vectors of an image can see each other.
    Features(Features, u32),
}

/// The input that an encoder reads.
#[derive(Clone, Debug, PartialEq)]
pub enum EncoderInput {
    /// Token ids, for an encoder that takes tokens.
    Tokens(Vec<u32>),
    /// The features of all positions, for an encoder that takes features.
    Features(Features),
}

impl<T: AsRef<[u32]>> From<T> for Prompt {
    fn from(tokens: T) -> Self {
        Self { parts: vec![PromptPart::Tokens(tokens.as_ref().to_vec())], ..Self::default() }
    }
}

impl Prompt {
    /// The same prompt, with [`reuse`](Self::reuse) set.
    #[must_use]
    pub fn reusing(self) -> Self {
        Self { reuse: true, ..self }
    }

    /// The token id of each position.
    pub fn tokens(&self) -> Vec<u32> {
        let of_part = |part: &PromptPart| match part {
            PromptPart::Tokens(tokens) => tokens.clone(),
            PromptPart::Features(features, placeholder) => vec![*placeholder; features.positions()],
        };
        self.parts.iter().flat_map(of_part).collect()
    }
}

impl<E: Executor> Network<E> {
    /// Checks a prompt, and returns its token ids and the rest of its input.
    pub(crate) fn read(&self, prompt: Prompt) -> Result<(Vec<u32>, SequenceInput), GenerateError> {
        let mut features = FeatureBlocks::default();
        let mut tokens = Vec::new();
        for part in prompt.parts {
            match part {
                PromptPart::Tokens(part) => tokens.extend(part),
                PromptPart::Features(part, placeholder) => {
                    part.check(self.features()?, self.context())?;
                    let first = tokens.len();
                    tokens.resize(first + part.positions(), placeholder);
                    features.push(first, part);
                }
            }
        }
        self.check(&tokens, 0)?;
        self.check_adapter(prompt.adapter)?;
        let source = match prompt.source {
            Some(input) => Some(self.source(input)?),
            None if self.reads_memory() => return Err(GenerateError::NoMemory),
            None => None,
        };
        let reuse = prompt.reuse && source.is_none();
        Ok((tokens, SequenceInput { features, source, adapter: prompt.adapter, reuse }))
    }

    /// Checks the index of an adapter.
    pub(crate) fn check_adapter(&self, adapter: u32) -> Result<(), GenerateError> {
        if adapter == 0 {
            return Ok(());
        }
        match self.adapters() {
            None => Err(GenerateError::NoEntryPoint { role: Role::Adapter { count: 0 } }),
            Some(count) if adapter as usize > count => Err(GenerateError::Adapter { adapter, count }),
            Some(_) => Ok(()),
        }
    }

    /// The number of adapters, or `None` if no entry point takes the index of an adapter.
    fn adapters(&self) -> Option<usize> {
        self.step(1, 1, false).ok()?.arguments.iter().find_map(|bound| match bound {
            ArgBinding::Adapter(_, count) => Some(*count),
            _ => None,
        })
    }

    /// Checks the input of the encoder.
    pub(crate) fn source(&self, input: EncoderInput) -> Result<EncoderSource, GenerateError> {
        let entry = self.only(EntryKind::Encoder).map_err(|_| GenerateError::NoEncoder)?;
        match (entry.features(), input) {
            (None, EncoderInput::Tokens(tokens)) if tokens.is_empty() => Err(GenerateError::EmptyPrompt),
            (None, EncoderInput::Tokens(tokens)) => {
                check_tokens(&tokens, 0, entry.chunk, self.vocabulary())?;
                Ok(EncoderSource { tokens, numbers: Vec::new() })
            }
            (Some(width), EncoderInput::Features(features)) => {
                features.check(width, entry.chunk)?;
                Ok(EncoderSource { tokens: vec![0; features.positions()], numbers: features.numbers })
            }
            (None, EncoderInput::Features(_)) => Err(GenerateError::SourceKind { takes: "tokens" }),
            (Some(_), EncoderInput::Tokens(_)) => Err(GenerateError::SourceKind { takes: "features" }),
        }
    }
}
