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
mod name;
mod recurrent;
mod ring;

use std::fmt;

use ops::{ParseError, Reader};

pub use kv::KvFormat;
pub use name::StateName;

use crate::axis::AxisName;

/// The sizes of a program that state is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub batch: usize,
    /// New tokens of each row, at most.
    pub chunk: usize,
    pub context: usize,
}

/// An axis of a state's tensor, and its extent.
pub type StateAxis = (AxisName, usize);

/// What each kind says of itself.
trait Kind: Sized {
    /// Its name in the text form.
    const NAME: &'static str;
    /// The axes of a tensor of which the layer declares `own`.
    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis>;

    /// How its tensors are remembered.
    fn format(&self) -> KvFormat {
        KvFormat::Computed
    }

    /// How many slots its tensors have in a program of this context; `None` if they have no slots.
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
    ($($name:ident: $file:ident::$kind:ident),+) => {
        $(pub use $file::$kind;)+

        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum StateKind {
            $(#[doc = concat!("See [`", stringify!($kind), "`].")] $name($kind),)+
        }

        impl StateKind {
            /// The axes of a tensor of which the layer declares `own`. The scales of a tensor lack the last one.
            pub fn axes(self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
                match self { $(Self::$name(kind) => kind.axes(own, sizes),)+ }
            }

            /// How its tensors are remembered.
            pub fn format(self) -> KvFormat {
                match self { $(Self::$name(kind) => kind.format(),)+ }
            }

            /// How many slots its tensors have in a program of this context; `None` if they have no slots.
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

kinds! { Kv: kv::KvState, Ring: ring::RingState, Recurrent: recurrent::RecurrentState }

/// One tensor of a layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    pub kind: StateKind,
    /// The tensor's name, which no other one of the layer has.
    pub name: StateName,
}

impl Part {
    /// How many slots the tensor has in a program of this context, and on which of `rank` axes; `None` if it has no slots.
    pub fn slots(self, context: usize, rank: usize) -> Option<(usize, usize)> {
        let is_scales = self.kind.format() == KvFormat::Q8 && self.name.as_str().ends_with(KvFormat::SCALES);
        let features = if is_scales { 0 } else { 1 };
        Some((self.kind.slots(context)?, rank.checked_sub(1 + features)?))
    }

    /// Reads what `Display` wrote: `ring(8).keys`.
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
