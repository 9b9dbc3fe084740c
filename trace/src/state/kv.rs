use std::fmt;

use ops::{Attribute as _, ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

ops::words! {
    /// The storage format of cached keys and values.
    #[derive(Default)]
    pub enum KvFormat {
        /// Keys and values are stored in the element type of the network.
        #[default]
        Computed = "computed",
        /// Keys and values are stored as integers of 8 bits, with an f32 scale for each head of each
        /// position. The scale is the largest magnitude of the head's features divided by 127.
        Q8 = "q8",
    }
}

impl KvFormat {
    /// The suffix of the name of a tensor's scales.
    pub const SCALES: &'static str = "_scales";
}

/// The axes of a tensor with slots. The batch comes first, then the layer's own axes. The axis of slots is
/// before the last of the layer's axes.
pub(super) fn with_slots(own: &[StateAxis], batch: usize, slots: StateAxis) -> Vec<StateAxis> {
    let mut axes = own.to_vec();
    axes.insert(own.len().saturating_sub(1), slots);
    axes.insert(0, ("B".into(), batch));
    axes
}

/// State with a slot for each position, such as keys and values: `[B, heads, N, features]`. Slot j contains
/// the data of position j. A layer always writes a slot after the last token before it reads this slot, so a
/// sequence can go back to any position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvState {
    pub format: KvFormat,
}

impl Kind for KvState {
    const NAME: &'static str = "kv";

    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
        with_slots(own, sizes.batch, ("N".into(), sizes.context))
    }

    fn format(&self) -> KvFormat {
        self.format
    }

    fn slots(&self, context: usize) -> Option<usize> {
        Some(context)
    }

    fn rewinds(&self, _: usize, _: usize) -> bool {
        true
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.format {
            KvFormat::Computed => Ok(()),
            format => write!(f, "({})", format.word()),
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let mut format = KvFormat::Computed;
        if reader.eat("(") {
            format = KvFormat::parse(reader)?;
            reader.expect(")")?;
        }
        Ok(Self { format })
    }
}
