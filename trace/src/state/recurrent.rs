use ops::{ParseError, Reader};

use super::{Kind, Sizes, StateAxis};

/// A state tensor `[B, …]` that a recurrence or a causal convolution passes from one token to the
/// next token. The state tensor contains no separate data for earlier tokens. Therefore a sequence
/// cannot go back to an earlier position, except to position 0.
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
