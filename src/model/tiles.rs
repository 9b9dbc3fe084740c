//! [`KnownTiles`] keeps the vectors of images, so that each turn of a conversation runs the tower on new images only.

use std::collections::VecDeque;

use blake3::Hash;
use models::Vision;
use ops::Array;
use program::Program;

use super::ModelError;
use crate::embed::EmbedError;

/// The vectors of the tiles that a vision tower has read last, by the hash of their patches.
#[derive(Debug, Default)]
pub(super) struct KnownTiles(VecDeque<(Hash, Vec<f32>)>);

/// The most numbers of all vectors, 64 MiB.
const MOST: usize = 1 << 24;

impl KnownTiles {
    /// The vectors of a tile, which `see` computes unless they are known.
    pub fn get_or(
        &mut self,
        patches: &[f32],
        see: impl FnOnce() -> Result<Vec<f32>, ModelError>,
    ) -> Result<Vec<f32>, ModelError> {
        let bytes: Vec<u8> = patches.iter().copied().flat_map(f32::to_le_bytes).collect();
        let hash = blake3::hash(&bytes);
        let known = self.0.iter().position(|(known, _)| *known == hash);
        let vectors = match known.and_then(|index| self.0.remove(index)) {
            Some((_, vectors)) => vectors,
            None => see()?,
        };
        self.0.push_back((hash, vectors.clone()));
        while self.0.iter().map(|(_, vectors)| vectors.len()).sum::<usize>() > MOST {
            self.0.pop_front();
        }
        Ok(vectors)
    }
}

/// Calls the vision tower with the numbers of one tile.
pub(super) fn see(tower: &Program, vision: &Vision, numbers: &[f32]) -> Result<Vec<f32>, ModelError> {
    let of_vector = (vision.numbers() * vision.patches_of_vector()).max(1);
    let vectors = numbers.len() / of_vector;
    let (entry, padded) = vision.call(numbers.to_vec());
    let shape = [1, padded.len() / vision.numbers(), vision.numbers()];
    let patches = Array::from_slice(&padded, shape).map_err(EmbedError::from)?;
    let found = tower.call(&entry, &[patches]).map_err(EmbedError::from)?;
    let found = found.first().map(Array::to_vec::<f32>).transpose().map_err(EmbedError::from)?;
    let mut found = found.unwrap_or_default();
    found.truncate(vectors * vision.features);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_tile_is_not_computed_again() {
        let mut known = KnownTiles::default();
        let mut computed = 0;
        for patches in [[1.0, 2.0], [1.0, 3.0], [1.0, 2.0], [1.0, 3.0], [-0.0, 0.0], [0.0, 0.0]] {
            let vectors = known.get_or(&patches, || {
                computed += 1;
                Ok(vec![patches[1]; MOST / 4])
            });
            assert_eq!(vectors.unwrap()[0], patches[1]);
        }
        assert_eq!((computed, known.0.len()), (4, 4));
        for last in [5.0, 6.0] {
            known.get_or(&[last], || Ok(vec![last; MOST / 2])).unwrap();
        }
        assert_eq!(known.0.len(), 2);
    }
}
