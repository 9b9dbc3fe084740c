//! The image processor of Pixtral and Mistral 3 (`image_processing_pixtral.py`), with the sizes that `PixtralProcessor`
//! sets.

use std::path::Path;

use models::Vision;
use models::config::{ConfigError, Keys};

use crate::settings::Usual;
use crate::{Filter, Normalization, Pixels, Resizer, pixtral_size, settings};

/// The settings of `preprocessor_config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PixtralProcessor {
    /// The most pixels of the longer side.
    longest: usize,
    resizer: Resizer,
    normalization: Normalization,
}

/// The patches of an image, in squares that become vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedPatches {
    /// The rows of squares.
    pub rows: usize,
    /// The columns of squares.
    pub columns: usize,
    /// Each patch is followed by its row and its column.
    pub numbers: Vec<f32>,
}

impl PixtralProcessor {
    /// Reads `image_processor` in the `processor_config.json` of a folder, or else `preprocessor_config.json`.
    ///
    /// # Errors
    /// Returns an error about a key that would change pixels in another way, or if the files contradict each other
    /// or the tower.
    pub fn of_folder(folder: &Path, vision: &Vision) -> Result<Self, ConfigError> {
        let check = |keys: &Keys| check(keys, vision);
        settings::read_folder(folder, check, |keys| Self::of(keys, vision))
    }

    fn of(keys: &Keys, vision: &Vision) -> Self {
        keys.always("do_convert_rgb", true);
        keys.always("do_center_crop", false);
        // The processor of texts and images sets the size of a patch. Padding belongs to batches.
        keys.ignore(&["patch_size", "crop_size", "do_pad", "default_to_square"]);
        let usual = Usual::clip(Filter::Bicubic);
        let (resizer, normalization) = settings::resizing(keys, &["PixtralImageProcessor"], &usual);
        let longest = settings::longest_edge(keys, "size", 1024);
        if longest > vision.image_size {
            let expected =
                format!("a `longest_edge` of at most {}, as in `vision_config`", vision.image_size);
            keys.refuse("size", longest, expected);
        }
        Self { longest, resizer, normalization }
    }

    /// Resizes an image, and divides it into squares of patches.
    pub fn patches(&self, image: &Pixels, vision: &Vision) -> PlacedPatches {
        let (side, squares) = (vision.patch_size, vision.scale_factor);
        let (width, height) = pixtral_size(image.width(), image.height(), self.longest, side * squares);
        let patches = self.normalization.patches(&self.resizer.resize(image, width, height), side);
        let across = width / side;
        let (rows, columns) = (height / side / squares, across / squares);
        let of_square = (0..squares * squares).map(|one| (one / squares, one % squares)).collect::<Vec<_>>();
        let mut numbers = Vec::with_capacity(patches.len() + 2 * across * rows * squares);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
            for (down, right) in &of_square {
                let (row, column) = (row * squares + down, column * squares + right);
                let length = 3 * side * side;
                let start = (row * across + column) * length;
                numbers.extend_from_slice(&patches[start..start + length]);
                numbers.extend([row as f32, column as f32]);
            }
        }
        PlacedPatches { rows, columns, numbers }
    }

    /// The text of an image in a prompt (`processing_pixtral.py`): rows of `image` with `row_end` between them.
    pub fn text([image, row_end, end]: [&str; 3], rows: usize, columns: usize) -> String {
        vec![image.repeat(columns); rows].join(row_end) + end
    }
}

/// Checks the settings of the processor of texts and images.
fn check(keys: &Keys, vision: &Vision) {
    let sizes = [("patch_size", vision.patch_size, 16), ("spatial_merge_size", vision.scale_factor, 1)];
    for (key, expected, usual) in sizes {
        let found = keys.optional_count(key).unwrap_or(usual);
        if found != expected {
            keys.refuse(key, found, format!("{expected}, as in `config.json`"));
        }
    }
    for (key, name) in
        [("image_token", "[IMG]"), ("image_break_token", "[IMG_BREAK]"), ("image_end_token", "[IMG_END]")]
    {
        keys.one_of(key, &[name]);
    }
}
