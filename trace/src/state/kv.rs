use std::fmt;

use ops::{Attribute as _, ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

ops::words! {
    /// How keys and values are remembered.
    #[derive(Default)]
    pub enum KvFormat {
        /// As the network computes with them.
        #[default]
        Computed = "computed",
        /// Integers of 8 bits, and for each head of each position a scale in f32: the largest of its features is ±127
        /// scales.
        Q8 = "q8",
    }
}

impl KvFormat {
    /// How the name of the scales of a tensor ends.
    pub const SCALES: &'static str = "_scales";
}

/// The axes of a tensor with slots: the batch in front of the layer's own axes, the slots before the last of them.
pub(super) fn with_slots(own: &[StateAxis], batch: usize, slots: StateAxis) -> Vec<StateAxis> {
    let mut axes = own.to_vec();
    axes.insert(own.len().saturating_sub(1), slots);
    axes.insert(0, ("B".into(), batch));
    axes
}

/// One slot for each position, as keys and values have: `[B, heads, N, features]`. Slot j holds position j. Slots behind the
/// last token are never read before they are written, so a row can go back anywhere.
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
