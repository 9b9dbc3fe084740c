use std::fmt;

use ops::{Attribute as _, ParseError, Reader};

use super::kv::with_slots;
use super::{Kind, KvFormat, Sizes, StateAxis};

/// Keys and values of a layer with a window, in a ring buffer. The ring has slots for the window and the
/// longest chunk. Slot t contains the last position p with p mod slots = t.
///
/// Writing position p + slots overwrites position p. The window of position `to` begins at position `to` −
/// window + 1. Therefore a sequence can go back to `to` as long as it has written no position from `to` +
/// slack on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingState {
    /// The number of positions that a query sees, including its own position.
    pub window: usize,
    /// The number of positions that a sequence can go back, which is the length of the longest chunk.
    pub slack: usize,
    /// The storage format of keys and values.
    pub format: KvFormat,
}

impl RingState {
    /// The name of the axis of slots.
    pub const AXIS: &'static str = "ring";

    /// The ring buffer for a window; `None` if the ring would have at least as many slots as the context.
    pub fn of(window: usize, format: KvFormat, sizes: Sizes) -> Option<Self> {
        let ring = Self { window, slack: sizes.chunk, format };
        (ring.length() < sizes.context).then_some(ring)
    }

    fn length(self) -> usize {
        self.window + self.slack - 1
    }
}

impl Kind for RingState {
    const NAME: &'static str = "ring";

    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
        with_slots(own, sizes.batch, (Self::AXIS.into(), self.length()))
    }

    fn format(&self) -> KvFormat {
        self.format
    }

    fn slots(&self, _: usize) -> Option<usize> {
        Some(self.length())
    }

    fn rewinds(&self, written: usize, to: usize) -> bool {
        written <= to + self.slack
    }

    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(window {}, slack {}", self.window, self.slack)?;
        match self.format {
            KvFormat::Computed => f.write_str(")"),
            format => write!(f, ", {})", format.word()),
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        reader.expect("(")?;
        reader.expect("window")?;
        let window = usize::parse(reader)?;
        reader.expect(",")?;
        reader.expect("slack")?;
        let slack = usize::parse(reader)?;
        let format = if reader.eat(",") { KvFormat::parse(reader)? } else { KvFormat::Computed };
        reader.expect(")")?;
        Ok(Self { window, slack, format })
    }
}
