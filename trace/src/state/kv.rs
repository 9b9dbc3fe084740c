use std::fmt;

use ops::{Attribute as _, ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

ops::words! {
    /// The format in which a program stores cached keys and values.
    #[derive(Default)]
    pub enum KvFormat {
        /// The program stores keys and values in the element type of the network.
        #[default]
        Computed = "computed",
        /// The program stores keys and values as 8-bit integers. Each head of each position has an f32 scale.
        /// The scale of a head is the largest magnitude of the head's features, divided by 127.
        Q8 = "q8",
    }
}

impl KvFormat {
    /// The suffix in the name of a tensor of scales; the rest of the name is the name of the scaled tensor.
    pub const SCALES: &'static str = "_scales";
}

/// Returns the axes of a state tensor that has slots. The first axis is the batch, and the axes that the
/// layer declares follow. The axis of slots comes directly before the last axis that the layer declares.
pub(super) fn with_slots(own: &[StateAxis], batch: usize, slots: StateAxis) -> Vec<StateAxis> {
    let mut axes = own.to_vec();
    axes.insert(own.len().saturating_sub(1), slots);
    axes.insert(0, ("B".into(), batch));
    axes
}

/// State that has a slot for each token position, such as keys and values: `[B, heads, N, features]`. Slot j
/// contains the data for the token at position j. A layer never reads a slot after the last token before the
/// layer has written the slot. Therefore a sequence can go back to any position.
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
