//! Speculative decoding: a drafter proposes several tokens cheaply, and one call of the network
//! verifies all these tokens.
//!
//! At each position, the sampler uses the same logits and the same random numbers as without a
//! draft. A draft changes the number of network calls, but does not change the chosen tokens.

mod governor;
mod lookup;
mod model;
mod mtp;

pub(crate) use governor::Governor;
pub use lookup::Lookup;
pub use model::DraftModel;
pub use mtp::MtpDrafter;

use crate::GenerateError;

/// How certain a drafter must be about the tokens that the drafter proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// The drafter may propose tokens that are only likely.
    Likely,
    /// Recent drafts were wrong, so the drafter must be nearly certain.
    NearlyCertain,
}

/// Proposes tokens that may continue a sequence.
///
/// ```
/// use tracewright_generate::{Certainty, Drafter, GenerateError};
///
/// /// Expects the last token again.
/// struct Echo;
///
/// impl Drafter for Echo {
///     fn draft(&mut self, tokens: &[u32], most: usize, _: Certainty) -> Result<Vec<u32>, GenerateError> {
///         Ok(tokens.last().map_or_else(Vec::new, |&token| vec![token; most]))
///     }
/// }
///
/// assert_eq!(Echo.draft(&[5, 17], 2, Certainty::Likely)?, [17, 17]);
/// # Ok::<(), GenerateError>(())
/// ```
pub trait Drafter {
    /// Returns at most `most` tokens that may follow the tokens in `tokens`. If the drafter has no
    /// proposal, the returned list is empty.
    ///
    /// # Errors
    /// Returns an error if the drafter fails. An error of the drafter ends the sequence.
    fn draft(&mut self, tokens: &[u32], most: usize, certainty: Certainty)
    -> Result<Vec<u32>, GenerateError>;

    /// Receives the hidden states of the positions from `start` on, `[S, D]`, after each call of a
    /// network that returns hidden states. The hidden states of positions from `start` on that the
    /// drafter received earlier are no longer valid.
    fn observe(&mut self, _start: usize, _hidden: &[f32]) {}
}

impl<T: Drafter + ?Sized> Drafter for Box<T> {
    fn draft(
        &mut self,
        tokens: &[u32],
        most: usize,
        certainty: Certainty,
    ) -> Result<Vec<u32>, GenerateError> {
        (**self).draft(tokens, most, certainty)
    }

    fn observe(&mut self, start: usize, hidden: &[f32]) {
        (**self).observe(start, hidden);
    }
}
