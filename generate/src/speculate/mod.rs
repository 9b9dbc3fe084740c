//! Speculation: several tokens are drafted cheaply, and one call of the network verifies them all.
//!
//! The sampler runs at each position with the logits and the random numbers that it would have had without a draft. So a draft
//! changes the number of calls, and no token.

mod governor;
mod lookup;
mod model;

pub(crate) use governor::Governor;
pub use lookup::Lookup;
pub use model::DraftModel;

use crate::GenerateError;

/// How sure a drafter must be of its draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// A guess is worth its call.
    Likely,
    /// Recent drafts were wrong: only a draft that is nearly certain is worth its call.
    NearlyCertain,
}

/// Guesses how a text goes on.
///
/// ```
/// use tracewright_generate::{Certainty, Drafter, GenerateError};
///
/// /// Expects the last token again.
/// struct Echo;
///
/// impl Drafter for Echo {
///     fn draft(&mut self, seen: &[u32], most: usize, _: Certainty) -> Result<Vec<u32>, GenerateError> {
///         Ok(seen.last().map_or_else(Vec::new, |&token| vec![token; most]))
///     }
/// }
///
/// assert_eq!(Echo.draft(&[5, 17], 2, Certainty::Likely)?, [17, 17]);
/// # Ok::<(), GenerateError>(())
/// ```
pub trait Drafter {
    /// At most `most` tokens that may follow the tokens of `seen`. None where there is nothing to guess by.
    ///
    /// # Errors
    /// If the drafter fails; then the text fails.
    fn draft(&mut self, seen: &[u32], most: usize, certainty: Certainty) -> Result<Vec<u32>, GenerateError>;
}

impl<T: Drafter + ?Sized> Drafter for Box<T> {
    fn draft(&mut self, seen: &[u32], most: usize, certainty: Certainty) -> Result<Vec<u32>, GenerateError> {
        (**self).draft(seen, most, certainty)
    }
}
