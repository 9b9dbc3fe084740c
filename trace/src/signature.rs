//! A [`Signature`] lists the arguments and results of an entry point, and their roles for the caller.

use std::fmt;

use ops::{Attribute as _, ElementType, ParseError, Reader, TensorType};

use crate::axis::AxisName;
use crate::state::{Part, StateName};

/// The role of an argument or a result of an entry point. The role tells the code that runs a
/// program which kind of data the argument or the result contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The argument or the result has no special role for the code that runs the program.
    #[default]
    Plain,
    /// The argument contains the ids of the new tokens, `i32[B,S]`. A call of the entry point has S
    /// new tokens for each sequence.
    Tokens,
    /// The argument contains vectors `[B,S,D]` that replace the embeddings of tokens. The argument
    /// has S vectors for each sequence.
    Features,
    /// The argument contains the number of tokens that each sequence already has. The number of
    /// earlier tokens is also the position of the sequence's first new token. The argument has the
    /// type `i32[]` for a single sequence, and otherwise `i32[B]`.
    Start {
        /// The largest number of tokens that a sequence can have in the program.
        context: usize,
    },
    /// The argument contains the number of real tokens among the S new tokens of a sequence, from 0
    /// to S. The new tokens that follow the real tokens are padding. The argument has the type
    /// `i32[]` for a single sequence, and otherwise `i32[B]`.
    Count,
    /// The argument is 1 for a sequence that has more than `original` tokens, and 0 for a shorter
    /// sequence. The state of a sequence is only valid with the value that computed the state. The
    /// argument has the type `i32[]` for a single sequence, and otherwise `i32[B]`.
    Extended {
        /// The largest number of tokens in a sequence before the context was extended.
        original: usize,
    },
    /// The argument or the result is a tensor of the state that a layer keeps between calls. As an
    /// argument, the tensor contains the state before the call; as a result, the tensor contains
    /// the state after the call.
    State {
        layer: usize,
        /// The name of the state tensor, and the kind of state.
        part: Part,
    },
    /// The tensor is the output of an encoder, which a layer reads. The entry point that runs the
    /// encoder returns the tensor as a result. All entry points that do not run the encoder take
    /// the tensor as an argument.
    Memory {
        layer: usize,
        /// The name of the tensor, which is unique among the encoder outputs that the layer reads.
        name: StateName,
    },
    /// For each slot of the batch, the argument contains the index of the sequence in this slot, `i32[B]`.
    Sequence,
    /// For each slot of the batch, the argument contains the index of the adapter, `i32[B]`. The
    /// index 0 selects no adapter.
    Adapter {
        /// The number of adapters, which is the largest index.
        count: usize,
    },
    /// The result contains the hidden states from which the network computes logits, as `f32[B,S,D]`.
    /// The hidden states are the output of the norm after the last layer.
    Hidden,
    /// The result contains the logits of all tokens in the vocabulary. The result has the type `f32[B,V]` for
    /// the logits after the last real token, or `f32[B,S,V]` for the logits after each new token.
    Logits,
    /// The result contains the token with the largest logit; among tokens with equal logits, the
    /// token with the lowest id. The result has the type `i32[B]` for the token after the last real
    /// token, or `i32[B,S]` for a token after each new token.
    Token,
    /// The result contains the embedding of each text in the batch, as `f32[B,O]`.
    Embedding,
}

impl Role {
    const WORDS: [(&str, Self); 9] = [
        ("plain", Self::Plain),
        ("tokens", Self::Tokens),
        ("features", Self::Features),
        ("count", Self::Count),
        ("sequence", Self::Sequence),
        ("hidden", Self::Hidden),
        ("logits", Self::Logits),
        ("token", Self::Token),
        ("embedding", Self::Embedding),
    ];

    /// Parses a role from the text that `Display` prints: `tokens`, `state(kv.keys, layer 3)`.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if reader.eat("start(") {
            reader.expect("context")?;
            let context = usize::parse(reader)?;
            reader.expect(")")?;
            return Ok(Self::Start { context });
        }
        if reader.eat("adapter(") {
            reader.expect("count")?;
            let count = usize::parse(reader)?;
            reader.expect(")")?;
            return Ok(Self::Adapter { count });
        }
        if reader.eat("extended(") {
            reader.expect("original")?;
            let original = usize::parse(reader)?;
            reader.expect(")")?;
            return Ok(Self::Extended { original });
        }
        if reader.eat("state(") {
            let part = Part::parse(reader)?;
            reader.expect(",")?;
            reader.expect("layer")?;
            let layer = usize::parse(reader)?;
            reader.expect(")")?;
            return Ok(Self::State { layer, part });
        }
        if reader.eat("memory(") {
            let name = StateName::parse(reader)?;
            reader.expect(",")?;
            reader.expect("layer")?;
            let layer = usize::parse(reader)?;
            reader.expect(")")?;
            return Ok(Self::Memory { layer, name });
        }
        let ahead = reader.clone().word();
        match Self::WORDS.into_iter().find(|(word, _)| ahead.as_ref() == Ok(word)) {
            Some((_, role)) => reader.word().map(|_| role),
            None => reader.error(
                "a role: `plain`, `tokens`, `features`, `start(…)`, `count`, `extended(…)`, `state(…)`, `memory(…)`, `sequence`, \
                 `adapter(…)`, `hidden`, `logits`, `token` or `embedding`",
            ),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { context } => write!(f, "start(context {context})"),
            Self::Adapter { count } => write!(f, "adapter(count {count})"),
            Self::Extended { original } => write!(f, "extended(original {original})"),
            Self::State { layer, part } => write!(f, "state({part}, layer {layer})"),
            Self::Memory { layer, name } => write!(f, "memory({name}, layer {layer})"),
            role => {
                let word = Self::WORDS.iter().find(|(_, known)| known == role);
                f.write_str(word.map_or("plain", |(word, _)| word))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub role: Role,
    pub ty: TensorType,
    /// The names of the tensor's axes; the list is empty if the names are unknown.
    pub axes: Vec<AxisName>,
}

impl Argument {
    /// Whether the caller passes the argument as an `i32` in host memory. The host computes the
    /// offsets of slices from `start` and `count`. In device memory, the host would have to copy
    /// them from the device in every call.
    pub fn is_host_scalar(&self) -> bool {
        let position = matches!(self.role, Role::Start { .. } | Role::Count | Role::Extended { .. });
        position && self.ty.rank() == 0 && self.ty.element == ElementType::I32
    }
}

/// Prints an argument with its type and its role, for example `start: i32[] (start)`.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)?;
        match self.role {
            Role::Plain => Ok(()),
            role => write!(f, " ({role})"),
        }
    }
}

/// The types and roles of the arguments and results of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub arguments: Vec<Argument>,
    pub results: Vec<Argument>,
}
