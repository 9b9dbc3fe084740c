//! The state that a layer keeps between calls. The list of kinds is closed, and each kind has its own source file.
//!
//! All kinds of state satisfy two rules. The functions that write state guarantee both rules, and the code
//! that runs a network relies on them:
//!
//! - **Only real tokens change state.** A chunk may contain padding, and a sequence without new tokens
//!   (`count` 0) keeps its state at any position.
//! - **Position 0 is empty.** A sequence whose `start` is 0 reads nothing from its buffers. Therefore a new
//!   sequence can reuse the buffers of an old sequence without clearing them.
//!
//! The kinds differ in the shapes of their tensors, and in how far back a sequence can go.

mod kv;
mod name;
mod recurrent;
mod ring;

use std::fmt;

use ops::{ParseError, Reader};

pub use kv::KvFormat;
pub use name::StateName;

use crate::axis::AxisName;

/// The sizes of a program, which determine the sizes of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    /// The largest number of new tokens per sequence.
    pub chunk: usize,
    pub context: usize,
}

pub type StateAxis = (AxisName, usize);

/// The facts that each kind of state declares.
trait Kind: Sized {
    /// The name of the kind in the text of a trace.
    const NAME: &'static str;
    /// All axes of a tensor of this state. The layer declares only the axes `own`, and the kind adds the others.
    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis>;

    /// The storage format of the state's tensors.
    fn format(&self) -> KvFormat {
        KvFormat::Computed
    }

    /// The number of slots in a program with this context; `None` if this kind of state has no slots.
    fn slots(&self, context: usize) -> Option<usize>;

    /// Whether a sequence that has written all positions below `written` can go back to position `to`.
    fn rewinds(&self, written: usize, to: usize) -> bool;

    /// Prints the parameters of this kind of state, after its name.
    fn print(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    /// Parses the output of `print`.
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
            /// All axes of a tensor of this state. The layer declares only the axes `own`, and the kind adds
            /// the others. A tensor of scales lacks the last axis.
            pub fn axes(self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
                match self { $(Self::$name(kind) => kind.axes(own, sizes),)+ }
            }

            /// The storage format of the state's tensors.
            pub fn format(self) -> KvFormat {
                match self { $(Self::$name(kind) => kind.format(),)+ }
            }

            /// The number of slots in a program with this context; `None` if this kind of state has no slots.
            pub fn slots(self, context: usize) -> Option<usize> {
                match self { $(Self::$name(kind) => kind.slots(context),)+ }
            }

            /// Whether a sequence that has written all positions below `written` can go back to position `to`
            /// and continue there. A sequence can always go back to position 0.
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
    /// The tensor's name, unique within the layer.
    pub name: StateName,
}

impl Part {
    /// The number of slots of the tensor in a program with this context, and the index of the slot axis among
    /// `rank` axes. `None` if the tensor has no slots.
    pub fn slots(self, context: usize, rank: usize) -> Option<(usize, usize)> {
        let is_scales = self.kind.format() == KvFormat::Q8 && self.name.as_str().ends_with(KvFormat::SCALES);
        let features = if is_scales { 0 } else { 1 };
        Some((self.kind.slots(context)?, rank.checked_sub(1 + features)?))
    }

    /// Parses the output of `Display`: `ring(8).keys`.
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
