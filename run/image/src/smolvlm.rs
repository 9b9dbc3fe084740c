//! The image processor of SmolVLM and Idefics3.

use std::path::Path;

use models::Vision;
use models::config::{ConfigError, Keys};

use crate::settings::Usual;
use crate::{Filter, Normalization, Pixels, Resizer, SplitRule, TiledSize, settings};

/// The settings of `preprocessor_config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SmolVlmProcessor {
    /// The sizes of tiles.
    pub split: SplitRule,
    resizer: Resizer,
    normalization: Normalization,
}

/// An image as square tiles of patches.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTiles {
    /// The rows and columns of tiles.
    pub size: TiledSize,
    /// The patches of each tile: row by row, and last, if there are several, the image of the whole.
    pub patches: Vec<Vec<f32>>,
}

impl SmolVlmProcessor {
    /// Reads `image_processor` in the `processor_config.json` of a folder, or else `preprocessor_config.json`, and
    /// checks that the sizes are those of the tower.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the files contradict each other or the tower.
    pub fn of_folder(folder: &Path, vision: &Vision) -> Result<Self, ConfigError> {
        settings::of_folder(folder, vision, "image_seq_len", |keys| {
            let processor = Self::of(keys);
            processor.check(keys, vision);
            processor
        })
    }

    fn check(&self, keys: &Keys, vision: &Vision) {
        if self.split.tile / vision.patch_size.max(1) != vision.side {
            let expected = format!("{} patches of {} pixels", vision.side, vision.patch_size);
            keys.refuse("max_image_size", self.split.tile, expected);
        }
    }

    /// Reads the keys of a `preprocessor_config.json`.
    ///
    /// # Errors
    /// Returns an error about each key that would change pixels in another way.
    pub fn read(keys: Keys) -> Result<Self, ConfigError> {
        let processor = Self::of(&keys);
        keys.finish(&[], &[])?;
        Ok(processor)
    }

    fn of(keys: &Keys) -> Self {
        keys.always("do_convert_rgb", true);
        // All tiles have one size, so there is nothing to pad.
        keys.ignore(&["do_pad", "video_sampling", "return_row_col_info"]);
        let known = ["SmolVLMImageProcessor", "Idefics3ImageProcessor"];
        let (resizer, normalization) = settings::resizing(keys, &known, &Usual::half(Filter::Lanczos));
        let longest = settings::longest_edge(keys, "size", 4 * 364);
        let tile = settings::longest_edge(keys, "max_image_size", 364);
        let splits = keys.flag("do_image_splitting", true);
        Self { split: SplitRule { longest, tile, splits }, resizer, normalization }
    }

    /// Resizes an image, and splits it into tiles of patches with `side` pixels on each side.
    pub fn tiles(&self, image: &Pixels, side: usize) -> ImageTiles {
        let size = self.split.size(image.width(), image.height());
        let resized = |image: &Pixels, (width, height)| self.resizer.resize(image, width, height);
        let whole = resized(&resized(image, size.fitted), size.whole);
        let tile = self.split.tile;
        let places = (0..size.rows).flat_map(|row| (0..size.columns).map(move |column| (column, row)));
        let tiles = places.map(|(column, row)| whole.crop(column * tile, row * tile, tile, tile));
        let last = if size.rows == 0 { whole.clone() } else { resized(&whole, (tile, tile)) };
        let patches = tiles.chain([last]).map(|tile| self.normalization.patches(&tile, side)).collect();
        ImageTiles { size, patches }
    }
}
