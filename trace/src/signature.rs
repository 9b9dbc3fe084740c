//! What the arguments and results of an entry point are to whoever calls it.

use std::fmt;

use ops::{Attribute as _, ElementType, ParseError, Reader, TensorType};

use crate::axis::AxisName;
use crate::state::{Part, StateName};

/// What an argument or a result is: the protocol between who declares a program and who runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A tensor of the network's own.
    #[default]
    Plain,
    /// Token ids `i32[B,S]`: S new ones of each row.
    Tokens,
    /// What stands in place of the embeddings of tokens, `[B,S,D]`: S new positions of each row.
    Features,
    /// How many tokens a row has seen, which is the position of its first new one: `i32[]` for a single row, else
    /// `i32[B]`.
    Start {
        /// How many tokens a row can have at most.
        context: usize,
    },
    /// How many of a row's new tokens are real, from none to S; the rest pads. `i32[B]`, or `i32[]` for a single row.
    Count,
    /// What a layer remembers: as an argument, before the call; as a result, after it.
    State {
        layer: usize,
        /// Which tensor of which kind of state.
        part: Part,
    },
    /// What an encoder gives a layer: as a result, filled by this entry point; as an argument, read by it and not returned.
    Memory {
        layer: usize,
        /// The tensor's name, which no other one of the layer's memory has.
        name: StateName,
    },
    /// `i32[B]`: which of the sequences that run a row belongs to.
    Sequence,
    /// `i32[B]`: which adapter a row goes through; 0 is none.
    Adapter,
    /// Logits over the vocabulary: `f32[B,V]` after the last real token, or `f32[B,S,V]` after each.
    Logits,
    /// The token that the logits favour, the lowest id where several do: `i32[B]` after the last real token, or `i32[B,S]`
    /// after each.
    Token,
    /// `f32[B,O]`: a vector for each row.
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

    /// Reads what `Display` wrote: `tokens`, `state(kv.keys, layer 3)`.
    ///
    /// # Errors
    /// If it is no role.
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

/// An argument or a result of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    pub name: String,
    pub role: Role,
    pub ty: TensorType,
    /// The names of its axes; empty where nobody gave any.
    pub axes: Vec<AxisName>,
}

impl Argument {
    /// Whether the argument is passed as an `i32` of the host: offsets are resolved there, and a tensor of the device
    /// would be read back at every call.
    pub fn is_host_scalar(&self) -> bool {
        let position = matches!(self.role, Role::Start { .. } | Role::Count);
        position && self.ty.rank() == 0 && self.ty.element == ElementType::I32
    }
}

/// `start: i32[] (start)`
impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.ty)?;
        match self.role {
            Role::Plain => Ok(()),
            role => write!(f, " ({role})"),
        }
    }
}

/// How an entry point is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    /// The arguments in order.
    pub arguments: Vec<Argument>,
    /// The results in order.
    pub results: Vec<Argument>,
}
