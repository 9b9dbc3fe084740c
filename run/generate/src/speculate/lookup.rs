//! Drafts tokens by copying tokens from an earlier position of the prompt or the answer.

use std::collections::HashMap;

use super::{Certainty, Drafter};
use crate::GenerateError;

/// The drafter proposes tokens if the last `GRAM` tokens of the text also occur earlier in the
/// text.
const GRAM: usize = 3;

/// If a draft must be nearly certain, the last `LONG` tokens must also occur earlier in the text.
const LONG: usize = 8;

/// A drafter that uses prompt lookup. If the last tokens of the text also occur earlier, the draft
/// copies the tokens that follow the earlier occurrence.
///
/// ```
/// use tracewright_generate::{Certainty, Drafter, GenerateError, Lookup};
///
/// let seen = [1, 2, 3, 4, 5, 9, 1, 2, 3];
/// assert_eq!(Lookup::default().draft(&seen, 2, Certainty::Likely)?, [4, 5]);
/// # Ok::<(), GenerateError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// The tokens whose n-grams are in the index.
    indexed: Vec<u32>,
    /// For each n-gram of the text, the positions after the n-gram's last two occurrences.
    places: HashMap<[u32; GRAM], [Option<usize>; 2]>,
}

impl Lookup {
    /// Adds the new tokens of a text to the index of n-grams. If the index contains the n-grams of
    /// a different text, the function builds the index again.
    fn index(&mut self, seen: &[u32]) {
        if !seen.starts_with(&self.indexed) {
            self.indexed.clear();
            self.places.clear();
        }
        let known = self.indexed.len();
        self.indexed.extend_from_slice(&seen[known..]);
        for end in known.max(GRAM - 1) + 1..=seen.len() {
            if let Some(gram) = seen[..end].last_chunk() {
                let places = self.places.entry(*gram).or_default();
                *places = [Some(end), places[0]];
            }
        }
    }
}

impl Drafter for Lookup {
    fn draft(&mut self, seen: &[u32], most: usize, certainty: Certainty) -> Result<Vec<u32>, GenerateError> {
        self.index(seen);
        let Some(gram) = seen.last_chunk() else { return Ok(Vec::new()) };
        // The last occurrence of the n-gram is at the end of the text, so the draft uses the
        // previous occurrence.
        let Some([_, Some(place)]) = self.places.get(gram) else { return Ok(Vec::new()) };
        let least = match certainty {
            Certainty::Likely => GRAM,
            Certainty::NearlyCertain => LONG,
        };
        let earlier = seen[..*place].iter().rev();
        let shared = earlier.zip(seen.iter().rev()).take_while(|(a, b)| a == b).count();
        match shared >= least {
            true => Ok(seen[*place..].iter().take(most).copied().collect()),
            false => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(lookup: &mut Lookup, seen: &[u32], certainty: Certainty) -> Vec<u32> {
        lookup.draft(seen, 4, certainty).unwrap()
    }

    #[test]
    fn drafts_follow_the_last_place_where_the_same_tokens_were() {
        let mut lookup = Lookup::default();
        for (seen, expected) in [
            (&[1, 2][..], &[][..]),
            (&[1, 2, 3], &[]),
            (&[1, 2, 3, 9, 8, 1, 2, 3], &[9, 8, 1, 2]),
            (&[1, 2, 3, 9, 8, 1, 2, 3, 7, 1, 2, 3], &[7, 1, 2, 3]),
            // A text that differs from the indexed text.
            (&[1, 2, 3, 4], &[]),
            (&[6, 6, 6, 6], &[6]),
        ] {
            assert_eq!(drafted(&mut lookup, seen, Certainty::Likely), expected, "{seen:?}");
        }
    }

    #[test]
    fn a_draft_that_must_be_nearly_certain_follows_a_longer_repetition() {
        let once: Vec<u32> = (0..12).collect();
        let again = |length: u32| [&once[..], &(0..length).collect::<Vec<_>>()].concat();
        for (length, expected) in [(7, false), (8, true)] {
            let draft = drafted(&mut Lookup::default(), &again(length), Certainty::NearlyCertain);
            assert_eq!(draft == [8, 9, 10, 11], expected, "{length}: {draft:?}");
        }
    }
}
