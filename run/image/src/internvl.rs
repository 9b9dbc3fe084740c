//! The image processor of InternVL, `GotOcr2ImageProcessor` with the settings of `InternVLProcessor`.

use std::path::Path;

use models::Vision;
use models::config::{ConfigError, Keys};

use crate::settings::Usual;
use crate::{Filter, Normalization, Pixels, Resizer, settings, tile_grid};

/// The settings of `preprocessor_config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InternVlProcessor {
    /// The side of a tile, in pixels.
    tile: usize,
    /// The fewest and the most tiles.
    tiles: [usize; 2],
    resizer: Resizer,
    normalization: Normalization,
}

/// The largest number of tiles in a configuration.
const MOST: usize = 256;

impl InternVlProcessor {
    /// Reads `image_processor` in the `processor_config.json` of a folder, or else `preprocessor_config.json`.
    ///
    /// # Errors
    /// Returns an error about a key that would change pixels in another way, or if the files contradict each other
    /// or the tower.
    pub fn of_folder(folder: &Path, vision: &Vision) -> Result<Self, ConfigError> {
        settings::of_folder(folder, vision, "image_seq_length", |keys| Self::of(keys, vision.image_size))
    }

    fn of(keys: &Keys, tile: usize) -> Self {
        keys.always("do_convert_rgb", true);
        keys.always("do_center_crop", false);
        // The processor of texts and images always sets this key to true.
        keys.ignore(&["crop_to_patches", "crop_size", "do_pad", "default_to_square"]);
        let usual = Usual::clip(Filter::Bicubic);
        let (resizer, normalization) = settings::resizing(keys, &["GotOcr2ImageProcessor"], &usual);
        settings::check_square(keys, tile, 384);
        let most = keys.optional_count("max_patches").unwrap_or(12);
        if most > MOST {
            keys.refuse("max_patches", most, format!("at most {MOST}"));
        }
        let most = most.min(MOST);
        let least = keys.optional_count("min_patches").unwrap_or(1);
        if least > most {
            keys.refuse("min_patches", least, format!("at most {most}, which is `max_patches`"));
        }
        Self { tile, tiles: [least, most], resizer, normalization }
    }

    /// Resizes an image, and divides it into tiles with patches of `side` pixels: row by row, and last, if there are
    /// several, the image of the whole.
    pub fn patches(&self, image: &Pixels, side: usize) -> Vec<Vec<f32>> {
        let tile = self.tile;
        let (columns, rows) = tile_grid(image.width(), image.height(), tile, self.tiles);
        let whole = self.resizer.resize(image, columns * tile, rows * tile);
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let tiles = places.map(|(column, row)| whole.crop(column * tile, row * tile, tile, tile));
        let last = (columns * rows > 1).then(|| self.resizer.resize(image, tile, tile));
        tiles.chain(last).map(|tile| self.normalization.patches(&tile, side)).collect()
    }

    /// The text of an image in a prompt (`processing_internvl.py`): `image` stands `vectors` times for each tile.
    pub fn text([begin, image, end]: [&str; 3], vectors: usize) -> String {
        format!("{begin}{}{end}", image.repeat(vectors))
    }
}
