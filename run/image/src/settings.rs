//! The keys of image processors that several families share.

use std::path::Path;

use models::Vision;
use models::config::{ConfigError, Keys};

use crate::{Filter, Normalization, Resizer, Rounding};

/// Like [`read_folder`]. `vectors` is the key of the vectors of an image.
pub(crate) fn of_folder<P: PartialEq>(
    folder: &Path,
    vision: &Vision,
    vectors: &'static str,
    read: impl Fn(&Keys) -> P,
) -> Result<P, ConfigError> {
    let check = |keys: &Keys| {
        let found = keys.optional_count(vectors);
        if let Some(found) = found.filter(|&found| found != vision.vectors()) {
            keys.refuse(vectors, found, vision.vectors().to_string());
        }
    };
    let read = |keys: &Keys| {
        check(keys);
        read(keys)
    };
    read_folder(folder, check, read)
}

/// Reads the settings of a family from `image_processor` in the `processor_config.json` of a folder, or else from
/// `preprocessor_config.json`. `check` reads the keys of the processor of texts and images.
///
/// # Errors
/// Returns an error about a key that would change pixels in another way, or if the files contradict each other or
/// the tower.
pub(crate) fn read_folder<P: PartialEq>(
    folder: &Path,
    check: impl Fn(&Keys),
    read: impl Fn(&Keys) -> P,
) -> Result<P, ConfigError> {
    let at = |name: &str| folder.join(name);
    let open = |path: &Path| Keys::parse(path, &files::read_json(path)?);
    let (whole, plain) = (at("processor_config.json"), at("preprocessor_config.json"));
    let of_plain = || -> Result<P, ConfigError> {
        let keys = open(&plain)?;
        let processor = read(&keys);
        keys.finish(&[], &[])?;
        Ok(processor)
    };
    if !files::is_there(&whole) {
        // HF transformers takes the defaults of the class.
        let missing = Keys::parse(&whole, "{}")?;
        check(&missing);
        missing.finish(&[], &[])?;
        return of_plain();
    }
    let keys = open(&whole)?;
    check(&keys);
    keys.ignore(&["chat_template", "processor_class", "video_processor", "auto_map"]);
    let Some(inner) = keys.object("image_processor") else {
        keys.finish(&[], &[])?;
        return of_plain();
    };
    let processor = read(&inner);
    keys.close(inner);
    if files::is_there(&plain) && of_plain()? != processor {
        let what = "other settings than `preprocessor_config.json`";
        keys.refuse("image_processor", what, "the same settings");
    }
    keys.finish(&[], &[])?;
    Ok(processor)
}

/// The values of a family's class in HF transformers for missing keys.
pub(crate) struct Usual {
    pub filter: Filter,
    pub mean: [f64; 3],
    pub std: [f64; 3],
}

impl Usual {
    /// With numbers from −1 to 1.
    pub fn half(filter: Filter) -> Self {
        Self { filter, mean: [0.5; 3], std: [0.5; 3] }
    }

    /// With the statistics of the images that trained CLIP.
    pub fn clip(filter: Filter) -> Self {
        let mean = [0.481_454_66, 0.457_827_5, 0.408_210_73];
        Self { filter, mean, std: [0.268_629_54, 0.261_302_58, 0.275_777_11] }
    }
}

/// Reads how an image is resized and normalized. `known` are the family's classes.
pub(crate) fn resizing(keys: &Keys, known: &[&str], usual: &Usual) -> (Resizer, Normalization) {
    for step in ["do_normalize", "do_rescale", "do_resize"] {
        keys.always(step, true);
    }
    keys.ignore(&["processor_class", "data_format", "input_data_format", "device", "disable_grouping"]);
    keys.ignore(&["return_tensors", "auto_map"]);
    let kind = keys.optional_text("image_processor_type").unwrap_or_default();
    let rounding = match kind.strip_suffix("Pil") {
        Some(_) => Rounding::Pillow,
        None => Rounding::Torchvision,
    };
    let plain = kind.trim_end_matches("Pil").trim_end_matches("Fast");
    if !kind.is_empty() && !known.contains(&plain) {
        keys.refuse("image_processor_type", &kind, format!("one of {}", known.join(", ")));
    }
    let resizer = Resizer { filter: filter(keys, usual.filter), rounding };
    let rescale = keys.number_or("rescale_factor", 1.0 / 255.0);
    if !(rescale.is_finite() && rescale > 0.0) {
        keys.refuse("rescale_factor", rescale, "a positive number");
    }
    let mean = channels(keys, "image_mean", usual.mean);
    let std = channels(keys, "image_std", usual.std);
    if std.contains(&0.0) {
        keys.refuse("image_std", "0", "three numbers other than 0");
    }
    (resizer, Normalization::new(mean, std, rescale))
}

/// The number of a filter in Pillow.
fn filter(keys: &Keys, usual: Filter) -> Filter {
    match keys.optional_number("resample") {
        None => usual,
        Some(1.0) => Filter::Lanczos,
        Some(2.0) => Filter::Bilinear,
        Some(3.0) => Filter::Bicubic,
        Some(other) => {
            keys.refuse("resample", other, "1 (lanczos), 2 (bilinear) or 3 (bicubic)");
            usual
        }
    }
}

fn channels(keys: &Keys, key: &'static str, usual: [f64; 3]) -> [f64; 3] {
    let Some(found) = keys.get(key) else { return usual };
    let numbers: Option<Vec<f64>> =
        found.as_array().and_then(|all| all.iter().map(|one| one.as_f64()).collect());
    numbers.and_then(|numbers| numbers.try_into().ok()).unwrap_or_else(|| {
        keys.refuse(key, found, "three numbers");
        usual
    })
}

/// Checks that an image becomes the square of the tower, whose side is `side`. `usual` is the side of the class.
pub(crate) fn check_square(keys: &Keys, side: usize, usual: usize) {
    let Some(size) = keys.object("size") else {
        if side != usual {
            keys.refuse("size", "missing", format!("a height and a width of {side}, as in `vision_config`"));
        }
        return;
    };
    for key in ["height", "width"] {
        let found = size.count(key);
        if found != side {
            size.refuse(key, found, format!("{side}, as in `vision_config`"));
        }
    }
    keys.close(size);
}

/// The largest side of an image in a configuration.
const MOST: usize = 1 << 14;

/// The key `longest_edge` of an object.
pub(crate) fn longest_edge(keys: &Keys, key: &'static str, default: usize) -> usize {
    let Some(sizes) = keys.object(key) else { return default };
    let longest = sizes.count("longest_edge");
    if !(1..=MOST).contains(&longest) {
        sizes.refuse("longest_edge", longest, format!("1 to {MOST}"));
    }
    keys.close(sizes);
    longest.clamp(1, MOST)
}
