//! A [`Signature`] lists the arguments and results of an entry point, and their roles for the caller.

use std::fmt;

use ops::{Attribute as _, ElementType, ParseError, Reader, TensorType};

use crate::axis::AxisName;
use crate::state::{Part, StateName};

/// The kind of data in an argument or result of an entry point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The argument or the result has no special role for the code that runs the program.
    #[default]
    Plain,
    /// The ids of S new tokens per sequence, `i32[B,S]`.
    Tokens,
    /// Vectors `[B,S,D]` in place of the embeddings of tokens, as an argument or as the result of a vision tower.
    Features,
    /// The numbers `f32[B,S,P]` of the patches of an image, which a vision tower reads.
    Patches,
    /// The tokens that each sequence already has, which is the position of its first new one: `i32[]` for a
    /// single sequence, otherwise `i32[B]`.
    Start {
        /// The most tokens of a sequence.
        context: usize,
    },
    /// The real tokens among the S new ones, 0 to S; padding follows. `i32[]` for a single sequence,
    /// otherwise `i32[B]`.
    Count,
    /// The tokens of the first of two texts, which the second text follows, `i32[B]`.
    First,
    /// 1 for a sequence of more than `original` tokens, else 0. State is only valid with the value that
    /// computed it. `i32[]` for a single sequence, otherwise `i32[B]`.
    Extended {
        /// The largest number of tokens in a sequence before the context was extended.
        original: usize,
    },
    /// State that a layer keeps between calls: before the call as an argument, after it as a result.
    State { layer: usize, part: Part },
    /// The output of an encoder: a result of the entry point that runs it, and an argument of the others.
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
    /// The narrow matrices of all adapters for one weight, in f32. The argument has the name of the weight's
    /// module, and then `.lora_A` or `.lora_B`. No call changes it.
    LowRank,
    /// The result contains the hidden states from which the network computes logits, as `f32[B,S,D]`.
    /// The hidden states are the output of the norm after the last layer.
    Hidden,
    /// `f32[B,V]` after the last real token, or `f32[B,S,V]` after each new token.
    Logits,
    /// The largest logit's token, the lowest id of equal ones: `i32[B]` after the last real token, or
    /// `i32[B,S]` after each new token.
    Token,
    /// The result contains the embedding of each text in the batch, as `f32[B,O]`.
    Embedding,
}

impl Role {
    const WORDS: [(&str, Self); 12] = [
        ("plain", Self::Plain),
        ("tokens", Self::Tokens),
        ("features", Self::Features),
        ("patches", Self::Patches),
        ("count", Self::Count),
        ("first", Self::First),
        ("sequence", Self::Sequence),
        ("low_rank", Self::LowRank),
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
                "a role: `plain`, `tokens`, `features`, `patches`, `start(…)`, `count`, `first`, `extended(…)`, `state(…)`, `memory(…)`, `sequence`, \
                 `adapter(…)`, `low_rank`, `hidden`, `logits`, `token` or `embedding`",
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
    /// Empty if unknown.
    pub axes: Vec<AxisName>,
}

impl Argument {
    /// Whether the caller passes an `i32` in host memory. The host computes offsets of slices from `start`
    /// and `count`, and would have to copy them from the device in every call.
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
