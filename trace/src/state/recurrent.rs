use ops::{ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

/// State `[B, …]` of a recurrence or a causal convolution. It has no separate data for earlier tokens, so a
/// sequence can go back only to position 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecurrentState;

impl Kind for RecurrentState {
    const NAME: &'static str = "recurrent";

    fn axes(&self, own: &[StateAxis], sizes: Sizes) -> Vec<StateAxis> {
        [&[("B".into(), sizes.batch)], own].concat()
    }

    fn slots(&self, _: usize) -> Option<usize> {
        None
    }

    fn rewinds(&self, _: usize, _: usize) -> bool {
        false
    }

    fn parse(_: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self)
    }
}
