//! Drafts tokens by copying tokens from an earlier position of the prompt or the answer.

use std::collections::HashMap;

use super::{Certainty, Drafter};
use crate::GenerateError;

/// The drafter proposes tokens if the last `GRAM` tokens of the sequence also occur earlier in the sequence.
const GRAM: usize = 3;

/// If a draft must be nearly certain, the last `LONG` tokens must also occur earlier in the sequence.
const LONG: usize = 8;

/// A drafter that uses prompt lookup. If the last tokens of the sequence also occur earlier, the draft
/// copies the tokens that follow the earlier occurrence.
///
/// ```
/// use tracewright_generate::{Certainty, Drafter, GenerateError, Lookup};
///
/// let tokens = [1, 2, 3, 4, 5, 9, 1, 2, 3];
/// assert_eq!(Lookup::default().draft(&tokens, 2, Certainty::Likely)?, [4, 5]);
/// # Ok::<(), GenerateError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// The tokens whose n-grams are in the index.
    indexed: Vec<u32>,
    /// For each n-gram of the sequence, the positions after the n-gram's last two occurrences.
    places: HashMap<[u32; GRAM], [Option<usize>; 2]>,
}

impl Lookup {
    /// Adds new tokens to the index of n-grams, or rebuilds it for a different sequence.
    fn index(&mut self, tokens: &[u32]) {
        if !tokens.starts_with(&self.indexed) {
            self.indexed.clear();
            self.places.clear();
        }
        let known = self.indexed.len();
        self.indexed.extend_from_slice(&tokens[known..]);
        for end in known.max(GRAM - 1) + 1..=tokens.len() {
            if let Some(gram) = tokens[..end].last_chunk() {
                let places = self.places.entry(*gram).or_default();
                *places = [Some(end), places[0]];
            }
        }
    }
}

impl Drafter for Lookup {
    fn draft(
        &mut self,
        tokens: &[u32],
        most: usize,
        certainty: Certainty,
    ) -> Result<Vec<u32>, GenerateError> {
        self.index(tokens);
        let Some(gram) = tokens.last_chunk() else { return Ok(Vec::new()) };
        // The last occurrence of the n-gram is at the end of the sequence, so the draft uses the
        // previous occurrence.
        let Some([_, Some(place)]) = self.places.get(gram) else { return Ok(Vec::new()) };
        let least = match certainty {
            Certainty::Likely => GRAM,
            Certainty::NearlyCertain => LONG,
        };
        let earlier = tokens[..*place].iter().rev();
        let shared = earlier.zip(tokens.iter().rev()).take_while(|(a, b)| a == b).count();
        if shared >= least {
            Ok(tokens[*place..].iter().take(most).copied().collect())
        } else {
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(lookup: &mut Lookup, tokens: &[u32], certainty: Certainty) -> Vec<u32> {
        lookup.draft(tokens, 4, certainty).unwrap()
    }

    #[test]
    fn drafts_follow_the_last_place_where_the_same_tokens_were() {
        let mut lookup = Lookup::default();
        for (tokens, expected) in [
            (&[1, 2][..], &[][..]),
            (&[1, 2, 3], &[]),
            (&[1, 2, 3, 9, 8, 1, 2, 3], &[9, 8, 1, 2]),
            (&[1, 2, 3, 9, 8, 1, 2, 3, 7, 1, 2, 3], &[7, 1, 2, 3]),
            // A sequence that differs from the indexed sequence.
            (&[1, 2, 3, 4], &[]),
            (&[6, 6, 6, 6], &[6]),
        ] {
            assert_eq!(drafted(&mut lookup, tokens, Certainty::Likely), expected, "{tokens:?}");
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
