//! [`Features`] are vectors in place of the embeddings of tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::GenerateError;

/// Vectors of `width` numbers, one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// The numbers of all vectors.
    pub numbers: Vec<f32>,
    /// The length of a vector.
    pub width: usize,
}

/// The vectors of positions, in blocks. The vectors of a block can see each other, so one call computes a block
/// that fits into a call, and sequences share a block as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeatureBlocks(BTreeMap<usize, Features>);

impl Features {
    /// The number of vectors.
    pub fn positions(&self) -> usize {
        self.numbers.len().checked_div(self.width).unwrap_or_default()
    }

    /// Checks that there are 1 to `most` vectors of `width` numbers.
    pub(crate) fn check(&self, width: usize, most: usize) -> Result<(), GenerateError> {
        let positions = self.positions();
        if self.width == width && positions * width == self.numbers.len() && (1..=most).contains(&positions) {
            return Ok(());
        }
        Err(GenerateError::Features { found: self.numbers.len(), width: self.width, expected: width, most })
    }
}

impl FeatureBlocks {
    /// Adds a block, whose first position is `first`.
    pub fn push(&mut self, first: usize, features: Features) {
        self.0.insert(first, features);
    }

    fn ranges(&self) -> impl DoubleEndedIterator<Item = (Range<usize>, &Features)> {
        self.0.iter().map(|(&first, features)| (first..first + features.positions(), features))
    }

    /// The positions of the block that has `position`.
    pub fn around(&self, position: usize) -> Option<Range<usize>> {
        let (&first, features) = self.0.range(..=position).next_back()?;
        Some(first..first + features.positions()).filter(|block| block.contains(&position))
    }

    /// The first position of a block from `position` on.
    pub fn next(&self, position: usize) -> Option<usize> {
        self.0.range(position..).next().map(|(&first, _)| first)
    }

    /// The vectors of positions that one block has.
    pub fn numbers(&self, range: &Range<usize>) -> Vec<f32> {
        let Some((&first, features)) = self.0.range(..=range.start).next_back() else { return Vec::new() };
        let (from, to) = (range.start - first, range.end - first);
        features.numbers.get(from * features.width..to * features.width).unwrap_or_default().to_vec()
    }

    /// Keeps the vectors of the first `length` positions.
    pub fn truncate(&mut self, length: usize) {
        self.0.split_off(&length);
        if let Some((first, features)) = self.0.iter_mut().next_back() {
            features.numbers.truncate((length - first) * features.width);
        }
    }

    /// How many of the first `length` positions have the same vectors in both sequences, without a part of a block.
    pub fn shared(&self, other: &Self, length: usize) -> usize {
        let until = |one: &Self, other: &Self| {
            let differs = |(block, features): &(Range<usize>, &Features)| {
                block.end > length || other.0.get(&block.start) != Some(*features)
            };
            one.ranges().find(differs).map_or(length, |(block, _)| block.start)
        };
        until(self, other).min(until(other, self)).min(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(all: &[(usize, &[f32])]) -> FeatureBlocks {
        let mut blocks = FeatureBlocks::default();
        for &(first, numbers) in all {
            blocks.push(first, Features { numbers: numbers.to_vec(), width: 1 });
        }
        blocks
    }

    #[test]
    fn sequences_share_whole_blocks() {
        let two = blocks(&[(2, &[1.0, 2.0]), (6, &[3.0, 4.0, 5.0])]);
        assert_eq!((two.around(1), two.around(3), two.around(4)), (None, Some(2..4), None));
        assert_eq!((two.next(3), two.next(6), two.next(7)), (Some(6), Some(6), None));
        assert_eq!(two.numbers(&(7..9)), [4.0, 5.0]);
        for (length, shared) in [(1, 1), (3, 2), (4, 4), (5, 5), (8, 6), (9, 9), (12, 12)] {
            assert_eq!(two.shared(&two, length), shared);
        }
        // The last vector of the second block differs, or there are tokens instead of it.
        for other in [blocks(&[(2, &[1.0, 2.0]), (6, &[3.0, 4.0, 6.0])]), blocks(&[(2, &[1.0, 2.0])])] {
            assert_eq!((two.shared(&other, 12), other.shared(&two, 12)), (6, 6));
        }
        let mut cut = two.clone();
        cut.truncate(8);
        assert_eq!((cut.around(7), cut.around(8)), (Some(6..8), None));
        assert_eq!(cut.numbers(&(6..8)), [3.0, 4.0]);
    }
}
