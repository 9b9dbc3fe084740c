use ops::{ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

/// Keys and values of all positions, `[B, heads, N, features]` each: slot j holds position j. Slots behind the last
/// token are never looked at before they are written, so a row can go back anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KvState;

impl Kind for KvState {
    const NAME: &'static str = "kv";
    const PARTS: &'static [&'static str] = &["keys", "values"];

    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
        slots(own, sizes.batch, ("N".into(), sizes.context))
    }

    fn rewinds(&self, _: usize, _: usize) -> bool {
        true
    }

    fn parse(_: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self)
    }
}

/// A layer's heads and features with the batch in front and the slots between them.
pub(super) fn slots(own: &[StateAxis], batch: usize, slots: StateAxis) -> Vec<StateAxis> {
    let mut axes = own.to_vec();
    axes.insert(own.len().saturating_sub(1), slots);
    axes.insert(0, ("B".into(), batch));
    axes
}
