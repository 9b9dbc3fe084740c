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

/// Calls the vision tower with the patches of one tile.
pub(super) fn see(tower: &Program, vision: &Vision, patches: &[f32]) -> Result<Vec<f32>, ModelError> {
    let patches =
        Array::from_slice(patches, [1, vision.patches(), vision.numbers()]).map_err(EmbedError::from)?;
    let found = tower.call("see", &[patches]).map_err(EmbedError::from)?;
    let found = found.first().map(Array::to_vec::<f32>).transpose().map_err(EmbedError::from)?;
    Ok(found.unwrap_or_default())
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
