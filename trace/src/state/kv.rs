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
    pub(super) fn parts(self) -> &'static [&'static str] {
        match self {
            Self::Computed => &["keys", "values"],
            Self::Q8 => &["keys", "key_scales", "values", "value_scales"],
        }
    }

    /// The axes of a part, `own` being a layer's heads and features, with the batch in front and the slots behind the
    /// heads.
    pub(super) fn axes(
        self,
        part: usize,
        own: &[StateAxis],
        batch: usize,
        slots: StateAxis,
    ) -> Vec<StateAxis> {
        let mut axes = own.to_vec();
        axes.insert(own.len().saturating_sub(1), slots);
        axes.insert(0, ("B".into(), batch));
        if self == Self::Q8 && part % 2 == 1 {
            axes.pop();
        }
        axes
    }
}

/// Keys and values of all positions, `[B, heads, N, features]` each: slot j holds position j. Slots behind the last
/// token are never looked at before they are written, so a row can go back anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvState {
    /// How they are remembered.
    pub format: KvFormat,
}

impl Kind for KvState {
    const NAME: &'static str = "kv";

    fn parts(&self) -> &'static [&'static str] {
        self.format.parts()
    }

    fn axes(&self, part: usize, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
        self.format.axes(part, own, sizes.batch, ("N".into(), sizes.context))
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
