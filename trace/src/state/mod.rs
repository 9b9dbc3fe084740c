//! What a layer remembers from one call to the next: a closed list of kinds, one file each.
//!
//! All kinds keep two promises, which whoever declares a network has from the functions that write state, and
//! whoever runs one relies on:
//!
//! - **A call changes what its real tokens change, and nothing else.** A chunk may be padded, and a row without new
//!   tokens (`count` 0) stays as it was, wherever it stands.
//! - **Position 0 is empty.** A row whose `start` is 0 sees nothing of what its buffers hold: so a row is emptied by
//!   beginning again, without touching the state.
//!
//! They differ in the shape of their tensors and in how far a row can go back.

mod kv;
mod recurrent;
mod ring;

use std::fmt;

use ops::{ParseError, Reader};

pub use kv::{KvFormat, KvState};
pub use recurrent::RecurrentState;
pub use ring::RingState;

use crate::axis::AxisName;

/// The sizes of a program that state is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows at once.
    pub batch: usize,
    /// New tokens of each row, at most.
    pub chunk: usize,
    /// The longest sequence.
    pub context: usize,
}

/// An axis of a state's tensor, and its extent.
pub type StateAxis = (AxisName, usize);

/// What each kind says of itself.
trait Kind: Sized {
    /// Its name in the text form.
    const NAME: &'static str;
    /// The tensors that a layer has of it.
    fn parts(&self) -> &'static [&'static str];

    /// The axes of one of its tensors, `own` being those that the layer declares.
    fn axes(&self, part: usize, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis>;

    /// How many slots its tensors have in a program of this context, on their third axis; `None` if they have no slots.
    fn slots(&self, context: usize) -> Option<usize>;

    /// Whether a row can go back to position `to` after positions below `written` were written.
    fn rewinds(&self, written: usize, to: usize) -> bool;

    /// Its numbers, behind its name in the text form.
    fn print(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }

    /// Reads what `print` wrote.
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
}

macro_rules! kinds {
    ($($name:ident: $kind:ident),+) => {
        /// A kind of state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum StateKind {
            $(#[doc = concat!("See [`", stringify!($kind), "`].")] $name($kind),)+
        }

        impl StateKind {
            /// The tensors that a layer has of it.
            pub fn parts(self) -> &'static [&'static str] {
                match self { $(Self::$name(kind) => kind.parts(),)+ }
            }

            /// The axes of one of its tensors, `own` being those that the layer declares.
            pub fn axes(self, part: usize, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
                match self { $(Self::$name(kind) => kind.axes(part, own, sizes),)+ }
            }

            /// How many slots its tensors have in a program of this context, on their third axis; `None` if they have
            /// no slots.
            pub fn slots(self, context: usize) -> Option<usize> {
                match self { $(Self::$name(kind) => kind.slots(context),)+ }
            }

            /// Whether a row can go back to position `to`, to go on from there, after positions below `written` were
            /// written since it began. To begin again, at 0, it always can.
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

kinds! { Kv: KvState, Ring: RingState, Recurrent: RecurrentState }

/// One tensor of a layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    /// The kind of state.
    pub kind: StateKind,
    /// Which of the kind's tensors.
    pub index: usize,
}

impl Part {
    /// Reads what `Display` wrote: `ring(8).keys`.
    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let kind = StateKind::parse(reader)?;
        reader.expect(".")?;
        let ahead = reader.clone().word();
        match kind.parts().iter().position(|part| ahead.as_ref() == Ok(part)) {
            Some(index) => reader.word().map(|_| Self { kind, index }),
            None => reader.error(format!("one of {:?}", kind.parts())),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.kind.parts().get(self.index).unwrap_or(&"?"))
    }
}
