use std::fmt;

use ops::{Attribute as _, ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

ops::words! {
    #[derive(Default)]
    pub enum KvFormat {
        #[default]
        Computed = "computed",
        /// 8-bit integers with an f32 scale for each head and position: the largest magnitude divided by 127.
        Q8 = "q8",
    }
}

impl KvFormat {
    /// The suffix of a scaled tensor's name.
    pub const SCALES: &'static str = "_scales";
}

/// The batch, then the declared axes, with the slots before the last one.
pub(super) fn with_slots(own: &[StateAxis], batch: usize, slots: StateAxis) -> Vec<StateAxis> {
    let mut axes = own.to_vec();
    axes.insert(own.len().saturating_sub(1), slots);
    axes.insert(0, ("B".into(), batch));
    axes
}

/// A slot for each position, as for keys and values: `[B, heads, N, features]`. A layer never reads a slot
/// after the last token before it has written it, so a sequence can go back to any position.
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
