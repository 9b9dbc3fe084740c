//! The image processor of SmolVLM and Idefics3.

use models::config::{ConfigError, Keys};

use crate::{Filter, Normalization, Pixels, Resizer, Rounding, SplitRule, TiledSize};

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
    /// Reads the keys of a `preprocessor_config.json`, or of `image_processor` in a `processor_config.json`.
    ///
    /// # Errors
    /// Returns an error about each key that would change pixels in another way.
    pub fn read(keys: Keys) -> Result<Self, ConfigError> {
        for step in ["do_convert_rgb", "do_normalize", "do_rescale", "do_resize"] {
            keys.always(step, true);
        }
        // All tiles have one size, so there is nothing to pad.
        keys.ignore(&["do_pad", "processor_class", "video_sampling", "return_row_col_info", "data_format"]);
        keys.ignore(&["input_data_format", "device", "disable_grouping", "return_tensors", "auto_map"]);
        let kind = keys.optional_text("image_processor_type").unwrap_or_default();
        let known = ["SmolVLMImageProcessor", "Idefics3ImageProcessor"];
        let rounding = match kind.strip_suffix("Pil") {
            Some(_) => Rounding::Pillow,
            None => Rounding::Torchvision,
        };
        let plain = kind.trim_end_matches("Pil").trim_end_matches("Fast");
        if !kind.is_empty() && !known.contains(&plain) {
            keys.refuse("image_processor_type", &kind, format!("one of {}", known.join(", ")));
        }
        let resizer = Resizer { filter: filter(&keys), rounding };
        let longest = longest_edge(&keys, "size", 4 * 364);
        let tile = longest_edge(&keys, "max_image_size", 364);
        let splits = keys.flag("do_image_splitting", true);
        let rescale = keys.number_or("rescale_factor", 1.0 / 255.0);
        if !(rescale.is_finite() && rescale > 0.0) {
            keys.refuse("rescale_factor", rescale, "a positive number");
        }
        let [mean, std] = ["image_mean", "image_std"].map(|key| channels(&keys, key));
        if std.contains(&0.0) {
            keys.refuse("image_std", "0", "three numbers other than 0");
        }
        keys.finish(&[], &[])?;
        let normalization = Normalization::new(mean, std, rescale);
        Ok(Self { split: SplitRule { longest, tile, splits }, resizer, normalization })
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

/// The number of a filter in Pillow.
fn filter(keys: &Keys) -> Filter {
    match keys.number_or("resample", 1.0) {
        1.0 => Filter::Lanczos,
        2.0 => Filter::Bilinear,
        3.0 => Filter::Bicubic,
        other => {
            keys.refuse("resample", other, "1 (lanczos), 2 (bilinear) or 3 (bicubic)");
            Filter::Lanczos
        }
    }
}

/// The largest side of an image in a configuration.
const MOST: usize = 1 << 14;

fn longest_edge(keys: &Keys, key: &'static str, default: usize) -> usize {
    let Some(sizes) = keys.object(key) else { return default };
    let longest = sizes.count("longest_edge");
    if !(1..=MOST).contains(&longest) {
        sizes.refuse("longest_edge", longest, format!("1 to {MOST}"));
    }
    keys.close(sizes);
    longest.clamp(1, MOST)
}

fn channels(keys: &Keys, key: &'static str) -> [f64; 3] {
    let Some(found) = keys.get(key) else { return [0.5; 3] };
    let numbers: Option<Vec<f64>> =
        found.as_array().and_then(|all| all.iter().map(|one| one.as_f64()).collect());
    numbers.and_then(|numbers| numbers.try_into().ok()).unwrap_or_else(|| {
        keys.refuse(key, found, "three numbers");
        [0.5; 3]
    })
}
