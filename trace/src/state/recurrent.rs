use ops::{ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

/// What a recurrence or a causal convolution carries from one token to the next, `[B, …]`. It holds nothing of the
/// tokens before the last, so a row cannot go back: it begins again.
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
