//! A [`Signature`] lists the arguments and results of an entry point, and the role of each argument
//! and result for the caller.

use std::fmt;

use ops::{Attribute as _, ElementType, ParseError, Reader, TensorType};

use crate::axis::AxisName;
use crate::state::{Part, StateName};

/// The role of an argument or a result of an entry point. By these roles, the code that runs a
/// program knows which argument or result contains what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The argument or result has no special role.
    #[default]
    Plain,
    /// The ids of the new tokens, `i32[B,S]`: S new tokens for each sequence.
    Tokens,
    /// Vectors `[B,S,D]` that replace the embeddings of tokens: S new positions for each sequence.
    Features,
    /// The number of tokens that a sequence already has. This number is also the position of the
    /// sequence's first new token. The type is `i32[]` for a single sequence, and otherwise
    /// `i32[B]`.
    Start {
        /// The largest number of tokens that a sequence can have.
        context: usize,
    },
    /// The number of real tokens among the S new tokens of a sequence, from 0 to S. The new tokens
    /// after the real tokens are padding. The type is `i32[]` for a single sequence, and otherwise
    /// `i32[B]`.
    Count,
    /// A tensor of the state that a layer keeps between calls. As an argument, the tensor contains
    /// the state before the call; as a result, it contains the state after the call.
    State {
        layer: usize,
        /// The name of the state's tensor, and the kind of state.
        part: Part,
    },
    /// The output of an encoder, which a layer reads. The entry point that runs the encoder returns
    /// this output as a result. All other entry points only take the output as an argument.
    Memory {
        layer: usize,
        /// The name of the tensor, which is unique among the encoder outputs for the layer.
        name: StateName,
    },
    /// For each slot of the batch, the index of the sequence that runs in this slot, `i32[B]`.
    Sequence,
    /// For each slot of the batch, the index of the adapter, `i32[B]`. Index 0 selects no adapter.
    Adapter,
    /// The logits of all tokens in the vocabulary. The type is `f32[B,V]` after the last real
    /// token, or `f32[B,S,V]` after each new token.
    Logits,
    /// The token with the largest logit, or the lowest id among tokens with equal logits. The type
    /// is `i32[B]` after the last real token, or `i32[B,S]` after each new token.
    Token,
    /// The embedding of each text in the batch, as `f32[B,O]`.
    Embedding,
}

impl Role {
    const WORDS: [(&str, Self); 9] = [
        ("plain", Self::Plain),
        ("tokens", Self::Tokens),
        ("features", Self::Features),
        ("count", Self::Count),
        ("sequence", Self::Sequence),
        ("adapter", Self::Adapter),
        ("logits", Self::Logits),
        ("token", Self::Token),
        ("embedding", Self::Embedding),
    ];

    /// Parses the output of `Display`: `tokens`, `state(kv.keys, layer 3)`.
    ///
    /// # Errors
    /// Returns an error if the text is not the name of a role.
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        if reader.eat("start(") {
            reader.expect("context")?;
            let context = usize::parse(reader)?;
            reader.expect(")")?;
            return Ok(Self::Start { context });
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
                "a role: `plain`, `tokens`, `features`, `start(…)`, `count`, `state(…)`, `memory(…)`, `sequence`, `adapter`, \
                 `logits`, `token` or `embedding`",
            ),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { context } => write!(f, "start(context {context})"),
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
    /// The names of the axes; the list is empty if the names are unknown.
    pub axes: Vec<AxisName>,
}

impl Argument {
    /// Whether the caller passes the argument as an `i32` in host memory. The host computes offsets
    /// in tensors from this argument. If the argument were in device memory, the host would have to
    /// read it from the device in every call.
    pub fn is_host_scalar(&self) -> bool {
        let position = matches!(self.role, Role::Start { .. } | Role::Count);
        position && self.ty.rank() == 0 && self.ty.element == ElementType::I32
    }
}

/// Prints an argument, for example `start: i32[] (start)`.
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)?;
        match self.role {
            Role::Plain => Ok(()),
            role => write!(f, " ({role})"),
        }
    }
}

/// The arguments and results of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    pub arguments: Vec<Argument>,
    pub results: Vec<Argument>,
}
