//! Speculative decoding: a drafter proposes tokens cheaply, and one network call verifies them all. The
//! sampler uses the same logits and random numbers at each position, so drafts never change the chosen
//! tokens.

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
    /// Returns at most `most` tokens that may follow, possibly none. An error of the drafter ends the
    /// sequence.
    fn draft(&mut self, tokens: &[u32], most: usize, certainty: Certainty)
    -> Result<Vec<u32>, GenerateError>;

    /// Receives the hidden states from `start` on, `[S, D]`, after each call of a network that returns them.
    /// They replace those received earlier.
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
