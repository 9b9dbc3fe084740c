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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    /// The largest number of new tokens per sequence in a call.
    pub chunk: usize,
    pub context: usize,
}

pub type StateAxis = (AxisName, usize);

trait Kind: Sized {
    const NAME: &'static str;
    /// All axes of a tensor; the layer declares only `own`.
    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis>;

    fn format(&self) -> KvFormat {
        KvFormat::Computed
    }

    /// `None` if this kind of state has no slots.
    fn slots(&self, context: usize) -> Option<usize>;

    /// Whether a sequence can go back to position `to`, if it has written all positions below `written`.
    fn rewinds(&self, written: usize, to: usize) -> bool;

    fn print(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

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
            /// All axes of a tensor; the layer declares only `own`. Scales lack the last of them.
            pub fn axes(self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
                match self { $(Self::$name(kind) => kind.axes(own, sizes),)+ }
            }

            pub fn format(self) -> KvFormat {
                match self { $(Self::$name(kind) => kind.format(),)+ }
            }

            /// `None` if this kind of state has no slots.
            pub fn slots(self, context: usize) -> Option<usize> {
                match self { $(Self::$name(kind) => kind.slots(context),)+ }
            }

            /// Whether a sequence that has written all positions below `written` can continue from `to`.
            /// Every one can from 0.
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
    /// Unique within the layer.
    pub name: StateName,
}

impl Part {
    /// The slots, and the index of their axis among `rank` axes.
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
