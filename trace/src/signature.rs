//! [`Signature`] lists the arguments and results of an entry point, with their roles for the caller.

use std::fmt;

use ops::{Attribute as _, ElementType, ParseError, Reader, TensorType};

use crate::axis::AxisName;
use crate::state::{Part, StateName};

/// The role of an argument or a result. Roles are the protocol between the network in a program and the code
/// that runs the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The tensor has no special role.
    #[default]
    Plain,
    /// The token ids `i32[B,S]`: S new tokens of each sequence.
    Tokens,
    /// The vectors `[B,S,D]` that replace the tokens' embeddings: S new positions of each sequence.
    Features,
    /// The number of tokens that a sequence already has, which is the position of its first new token:
    /// `i32[]` for a single sequence, otherwise `i32[B]`.
    Start {
        /// The largest number of tokens in a sequence.
        context: usize,
    },
    /// The number of a sequence's new tokens that are real, from 0 to S. All further tokens are padding. The
    /// type is `i32[B]`, or `i32[]` for a single sequence.
    Count,
    /// The state of a layer. An argument contains the state before the call, and a result contains the state
    /// after the call.
    State {
        layer: usize,
        /// The tensor of the state, and the kind of state.
        part: Part,
    },
    /// The output of an encoder for a layer. The entry point that runs the encoder returns this output. All
    /// other entry points only take this output as an argument.
    Memory {
        layer: usize,
        /// The tensor's name, unique among the encoder outputs of the layer.
        name: StateName,
    },
    /// The index of the running sequence for each row of the batch, `i32[B]`.
    Sequence,
    /// The index of the adapter for each row of the batch, `i32[B]`. Index 0 means no adapter.
    Adapter,
    /// The logits over the vocabulary: `f32[B,V]` after the last real token, or `f32[B,S,V]` after each token.
    Logits,
    /// The token with the largest logit, or the lowest id among equal logits: `i32[B]` after the last real
    /// token, or `i32[B,S]` after each token.
    Token,
    /// The embedding of each text in the batch, `f32[B,O]`.
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
    /// Returns an error if the text is not a role.
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
    /// Whether the argument is passed as an `i32` in host memory. The host computes offsets from this
    /// argument. If the argument were on the device, the host would have to read it back in every call.
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
