//! The image processor of SmolVLM and Idefics3.

use std::path::Path;

use models::Vision;
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
    /// Reads `image_processor` in the `processor_config.json` of a folder, or else `preprocessor_config.json`, and
    /// checks that the sizes are those of the tower.
    ///
    /// # Errors
    /// As [`read`](Self::read), or if the files contradict each other or the tower.
    pub fn of_folder(folder: &Path, vision: &Vision) -> Result<Self, ConfigError> {
        let at = |name: &str| folder.join(name);
        let open = |path: &Path| Keys::parse(path, &files::read_json(path)?);
        let (whole, plain) = (at("processor_config.json"), at("preprocessor_config.json"));
        let plain = || -> Result<Self, ConfigError> {
            let keys = open(&plain)?;
            let processor = Self::of(&keys);
            processor.check(&keys, vision);
            keys.finish(&[], &[])?;
            Ok(processor)
        };
        if !files::is_there(&whole) {
            return plain();
        }
        let keys = open(&whole)?;
        let vectors = keys.optional_count("image_seq_len");
        if let Some(found) = vectors.filter(|&found| found != vision.vectors()) {
            keys.refuse("image_seq_len", found, vision.vectors().to_string());
        }
        keys.ignore(&["chat_template", "processor_class", "video_processor", "auto_map"]);
        let Some(inner) = keys.object("image_processor") else {
            keys.finish(&[], &[])?;
            return plain();
        };
        let processor = Self::of(&inner);
        processor.check(&inner, vision);
        keys.close(inner);
        if files::is_there(&at("preprocessor_config.json")) && plain()? != processor {
            let what = "other settings than `preprocessor_config.json`";
            keys.refuse("image_processor", what, "the same settings");
        }
        keys.finish(&[], &[])?;
        Ok(processor)
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
        let resizer = Resizer { filter: filter(keys), rounding };
        let longest = longest_edge(keys, "size", 4 * 364);
        let tile = longest_edge(keys, "max_image_size", 364);
        let splits = keys.flag("do_image_splitting", true);
        let rescale = keys.number_or("rescale_factor", 1.0 / 255.0);
        if !(rescale.is_finite() && rescale > 0.0) {
            keys.refuse("rescale_factor", rescale, "a positive number");
        }
        let [mean, std] = ["image_mean", "image_std"].map(|key| channels(keys, key));
        if std.contains(&0.0) {
            keys.refuse("image_std", "0", "three numbers other than 0");
        }
        let normalization = Normalization::new(mean, std, rescale);
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
