//! How Gemma 3 prepares an image (`image_processing_gemma3.py`): one square, without pan and scan.

use std::path::Path;

use models::Vision;
use models::config::{ConfigError, Keys};
use serde_json::Value;

use crate::settings::Usual;
use crate::{Filter, Normalization, Pixels, Resizer, settings};

/// The settings of `preprocessor_config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemma3Processor {
    /// The side of the square, in pixels.
    side: usize,
    resizer: Resizer,
    normalization: Normalization,
}

impl Gemma3Processor {
    /// Reads `image_processor` in the `processor_config.json` of a folder, or else `preprocessor_config.json`.
    ///
    /// # Errors
    /// Returns an error about a key that would change pixels in another way, or if the files contradict each other
    /// or the tower.
    pub fn of_folder(folder: &Path, vision: &Vision) -> Result<Self, ConfigError> {
        settings::of_folder(folder, vision, "image_seq_length", |keys| Self::of(keys, vision.image_size))
    }

    fn of(keys: &Keys, side: usize) -> Self {
        let (resizer, normalization) =
            settings::resizing(keys, &["Gemma3ImageProcessor"], &Usual::half(Filter::Bilinear));
        // Null takes the value of the processor of texts and images, which is true.
        if keys.get("do_convert_rgb") == Some(&Value::Bool(false)) {
            keys.refuse("do_convert_rgb", false, "true");
        }
        if let Some(found) =
            keys.get("do_pan_and_scan").filter(|found| !matches!(found, Value::Null | Value::Bool(false)))
        {
            keys.refuse(
                "do_pan_and_scan",
                found,
                "null or false: Tracewright does not cut images for Gemma 3",
            );
        }
        let scan = ["pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops"];
        keys.ignore(&scan);
        keys.ignore(&["pan_and_scan_min_ratio_to_activate", "do_pad", "default_to_square"]);
        settings::check_square(keys, side, 224);
        Self { side, resizer, normalization }
    }

    /// Resizes an image to a square of patches with `patch` pixels on each side.
    pub fn patches(&self, image: &Pixels, patch: usize) -> Vec<f32> {
        self.normalization.patches(&self.resizer.resize(image, self.side, self.side), patch)
    }

    /// The text of an image in a prompt (`processing_gemma3.py`): `image` stands `vectors` times between the tokens of
    /// its begin and its end.
    pub fn text([begin, image, end]: [&str; 3], vectors: usize) -> String {
        format!("\n\n{begin}{}{end}\n\n", image.repeat(vectors))
    }
}
