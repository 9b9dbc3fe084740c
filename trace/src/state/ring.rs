use std::fmt;

use ops::{Attribute as _, ParseError, Reader};

use super::kv::with_slots;
use super::{Kind, KvFormat, Sizes, StateAxis};

/// A ring buffer for a sliding window. It has slots for the window and the longest call. Slot t has the last
/// position p with p mod slots = t.
///
/// Position p + slots overwrites p, and the window of `to` begins at `to` − window + 1. So a sequence can go
/// back to `to` if it has written nothing from `to` + slack on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingState {
    /// The number of positions that a query sees, which includes the query's own position.
    pub window: usize,
    /// The positions by which a sequence can go back: the most new tokens of a call.
    pub slack: usize,
    pub format: KvFormat,
}

impl RingState {
    pub const AXIS: &'static str = "ring";

    /// `None` if the ring would have at least as many slots as the context.
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
