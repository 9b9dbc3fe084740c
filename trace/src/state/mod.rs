//! The state that a layer keeps between calls, such as a KV cache. The list of kinds of state is
//! closed, and each kind has its own source file.
//!
//! All kinds of state follow the same two rules. The operations that update state guarantee the two
//! rules, and the code that runs a network relies on the rules:
//!
//! - **Only real tokens change state.** A call may contain padding tokens, and a sequence without
//!   new tokens (`count` 0) keeps its state, whatever its `start` is.
//! - **Position 0 is empty.** If the `start` of a sequence is 0, the sequence reads nothing from
//!   its state buffers. Therefore a new sequence can use the buffers of an old sequence, and the
//!   program does not have to clear the buffers.
//!
//! The kinds of state differ in the shapes of their tensors. The kinds of state differ in the
//! earliest position to which a sequence can go back.

mod kv;
mod name;
mod recurrent;
mod ring;

use std::fmt;

use ops::{ParseError, Reader};

pub use kv::KvFormat;
pub use name::StateName;

use crate::axis::AxisName;

/// The sizes of a program, from which Tracewright computes the sizes of the state tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    /// The largest number of new tokens per sequence in a call.
    pub chunk: usize,
    pub context: usize,
}

pub type StateAxis = (AxisName, usize);

/// The properties that each kind of state declares.
trait Kind: Sized {
    /// The name of this kind of state in the text of a trace.
    const NAME: &'static str;
    /// Returns all axes of a tensor that contains this kind of state. The layer declares only the
    /// axes `own`, and the kind of state adds the other axes.
    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis>;

    /// Returns the storage format of the state tensors.
    fn format(&self) -> KvFormat {
        KvFormat::Computed
    }

    /// Returns the number of slots in a program with the given context length; `None` if this kind
    /// of state has no slots.
    fn slots(&self, context: usize) -> Option<usize>;

    /// Whether a sequence can go back to position `to`, if it has written all positions below `written`.
    fn rewinds(&self, written: usize, to: usize) -> bool;

    /// Prints the parameters of this kind of state, after its name.
    fn print(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    /// Parses the parameters of this kind of state from the text that `print` appends.
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
}

macro_rules! kinds {
    ($($name:ident: $file:ident::$kind:ident),+) => {
        $(pub use $file::$kind;)+

        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum StateKind {
            $(#[doc = concat!("See [`", stringify!($kind), "`].")] $name($kind),)+
        }

        impl StateKind {
            /// Returns all axes of a tensor that contains this kind of state. The layer declares
            /// only the axes `own`, and the kind of state adds the other axes. A tensor of scales
            /// does not have the last axis of `own`.
            pub fn axes(self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
                match self { $(Self::$name(kind) => kind.axes(own, sizes),)+ }
            }

            /// Returns the storage format of the state tensors.
            pub fn format(self) -> KvFormat {
                match self { $(Self::$name(kind) => kind.format(),)+ }
            }

            /// Returns the number of slots in a program with the given context length; `None` if
            /// this kind of state has no slots.
            pub fn slots(self, context: usize) -> Option<usize> {
                match self { $(Self::$name(kind) => kind.slots(context),)+ }
            }

            /// Whether a sequence can go back to position `to` and continue from this position, if
            /// it has written all positions below `written`. Every sequence can go back to position
            /// 0.
            pub fn rewinds(self, written: usize, to: usize) -> bool {
                to == 0 || match self { $(Self::$name(kind) => kind.rewinds(written, to),)+ }
            }

            fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
                $(if reader.eat($kind::NAME) {
                    return Ok(Self::$name($kind::parse(reader)?));
                })+
                reader.error(concat!("a kind of state", $(", ", stringify!($name)),+))
            }
        }

        impl fmt::Display for StateKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name(kind) => {
                        f.write_str($kind::NAME)?;
                        kind.print(f)
                    })+
                }
            }
        }
    };
}

kinds! { Kv: kv::KvState, Ring: ring::RingState, Recurrent: recurrent::RecurrentState }

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    pub kind: StateKind,
    /// The name of the state tensor, which is unique within the layer.
    pub name: StateName,
}

impl Part {
    /// Returns the number of slots of the state tensor in a program with the given context length,
    /// and the index of the slot axis among the `rank` axes. The function returns `None` if the
    /// state tensor has no slots.
    pub fn slots(self, context: usize, rank: usize) -> Option<(usize, usize)> {
        let is_scales = self.kind.format() == KvFormat::Q8 && self.name.as_str().ends_with(KvFormat::SCALES);
        let features = if is_scales { 0 } else { 1 };
        Some((self.kind.slots(context)?, rank.checked_sub(1 + features)?))
    }

    /// Parses the kind and the name of a state tensor from the text that `Display` prints: `ring(8).keys`.
    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let kind = StateKind::parse(reader)?;
        reader.expect(".")?;
        Ok(Self { kind, name: StateName::parse(reader)? })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.name)
    }
}
