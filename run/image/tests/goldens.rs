//! Compares images with what Pillow, torchvision and transformers make of them (`tests/oracle/images.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

use models::config::Keys;
use pixels::{
    Filter, ImageLimits, PixelRange, Pixels, Resizer, Rounding, SmolVlmProcessor, SplitRule, pixtral_size,
    tile_grid,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/images")
}

#[derive(Deserialize)]
struct Golden<T> {
    cases: Vec<T>,
}

fn cases<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let text = fs::read_to_string(folder().join(name)).unwrap();
    serde_json::from_str::<Golden<T>>(&text).unwrap().cases
}

/// The bytes of the oracle's linear congruential generator.
fn noise(seed: u64, width: usize, height: usize, is_hard: bool) -> Pixels {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if is_hard { (state >> 63) as u8 * 255 } else { (state >> 56) as u8 }
    };
    Pixels::new(width, height, (0..width * height * 3).map(next).collect())
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Deserialize)]
struct Resized {
    seed: u64,
    hard: bool,
    from: (usize, usize),
    to: (usize, usize),
    filter: String,
    library: String,
    sha256: String,
    bytes: Option<Vec<u8>>,
}

impl Resized {
    fn found(&self) -> Pixels {
        let filter = match &*self.filter {
            "bilinear" => Filter::Bilinear,
            "bicubic" => Filter::Bicubic,
            _ => Filter::Lanczos,
        };
        let rounding = if self.library == "pillow" { Rounding::Pillow } else { Rounding::Torchvision };
        let image = noise(self.seed, self.from.0, self.from.1, self.hard);
        Resizer { filter, rounding }.resize(&image, self.to.0, self.to.1)
    }
}

#[test]
fn resized_images_have_the_bytes_of_torchvision_and_pillow() {
    let cases: Vec<Resized> = cases("resize.json");
    let name = |case: &Resized| format!("{} {} {:?} {:?}", case.library, case.filter, case.from, case.to);
    let wrong = |case: &&Resized| {
        let found = case.found();
        let differs = case.bytes.as_ref().is_some_and(|bytes| bytes != found.bytes());
        assert_eq!((found.width(), found.height()), case.to);
        differs || sha256(found.bytes()) != case.sha256
    };
    let wrong: Vec<String> = cases.iter().filter(wrong).map(name).collect();
    assert!(wrong.is_empty(), "{} of {} differ: {wrong:#?}", wrong.len(), cases.len());
}

/// The goldens tell the two libraries apart.
#[test]
fn the_wrong_rounding_is_noticed() {
    let cases: Vec<Resized> = cases("resize.json");
    let other = |case: Resized| {
        let library = if case.library == "pillow" { "torchvision" } else { "pillow" };
        let (sha256_of, case) = (case.sha256.clone(), Resized { library: library.into(), ..case });
        sha256(case.found().bytes()) != sha256_of
    };
    assert!(cases.into_iter().map(other).filter(|differs| *differs).count() > 20);
}

#[derive(Deserialize)]
struct Sized {
    width: usize,
    height: usize,
    smolvlm: Tiled,
    smolvlm_2b: Tiled,
    smolvlm_huge: Tiled,
    internvl: (usize, usize),
    internvl_few: (usize, usize),
    pixtral: (usize, usize),
    pixtral_1540: (usize, usize),
    qwen2: Option<(usize, usize)>,
    qwen3: Option<(usize, usize)>,
}

#[derive(Deserialize)]
struct Tiled {
    sizes: [(usize, usize); 2],
    rows: usize,
    columns: usize,
}

#[test]
fn sizes_are_those_of_the_image_processors() {
    let cases: Vec<Sized> = cases("sizes.json");
    assert!(cases.iter().any(|case| case.qwen2.is_none()) && cases.iter().any(|case| case.qwen3.is_some()));
    for case in cases {
        let (width, height) = (case.width, case.height);
        let of = |longest, tile| {
            let size = SplitRule { longest, tile, splits: true }.size(width, height);
            ([size.fitted, size.whole], size.rows, size.columns)
        };
        for (tiled, found) in [
            (&case.smolvlm, of(2048, 512)),
            (&case.smolvlm_2b, of(1536, 384)),
            (&case.smolvlm_huge, of(6000, 364)),
        ] {
            assert_eq!(found, (tiled.sizes, tiled.rows, tiled.columns), "{width}×{height}");
        }
        assert_eq!(tile_grid(width, height, 448, [1, 12]), case.internvl, "{width}×{height}");
        assert_eq!(tile_grid(width, height, 224, [2, 6]), case.internvl_few, "{width}×{height}");
        // Transformers leaves no pixel of some thin images.
        let least = |(width, height): (usize, usize), patch| (width.max(patch), height.max(patch));
        let (small, large) = (least(case.pixtral, 16), least(case.pixtral_1540, 28));
        assert_eq!(pixtral_size(width, height, 1024, 16), small, "{width}×{height}");
        assert_eq!(pixtral_size(width, height, 1540, 28), large, "{width}×{height}");
        let qwen2 = PixelRange { factor: 28, least: 56 * 56, most: 28 * 28 * 1280 };
        let qwen3 = PixelRange { factor: 32, least: 65_536, most: 16_777_216 };
        assert_eq!(qwen2.size(width, height).ok(), case.qwen2, "{width}×{height}");
        assert_eq!(qwen3.size(width, height).ok(), case.qwen3, "{width}×{height}");
    }
}

#[derive(Deserialize)]
struct SmolVlmCase {
    splits: bool,
    seed: u64,
    width: usize,
    height: usize,
    rows: usize,
    columns: usize,
    text: String,
    shape: [usize; 4],
    sha256: String,
}

fn processor(changes: &[(&str, serde_json::Value)]) -> Result<SmolVlmProcessor, String> {
    let mut keys = serde_json::json!({
        "do_convert_rgb": true, "do_image_splitting": true, "do_normalize": true, "do_pad": true,
        "do_rescale": true, "do_resize": true, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "image_processor_type": "SmolVLMImageProcessor", "max_image_size": { "longest_edge": 32 },
        "resample": 1, "rescale_factor": 0.00392156862745098, "size": { "longest_edge": 96 },
    });
    for (key, value) in changes {
        keys[*key] = value.clone();
    }
    let keys = Keys::parse(Path::new("preprocessor_config.json"), &keys.to_string()).unwrap();
    SmolVlmProcessor::read(keys).map_err(|error| error.to_string())
}

/// Transformers gives `[tile, channel, row, column]`; with patches of one row and one column, ours gives
/// `[tile, row, column, channel]`.
#[test]
fn smolvlm_pixels_equal_those_of_transformers() {
    for case in cases::<SmolVlmCase>("smolvlm.json") {
        let processor = processor(&[("do_image_splitting", case.splits.into())]).unwrap();
        let image = noise(case.seed, case.width, case.height, false);
        let tiles = processor.tiles(&image, 1);
        assert_eq!((tiles.size.rows, tiles.size.columns), (case.rows, case.columns));
        assert_eq!(tiles.patches.len(), case.shape[0]);
        assert_eq!(tiles.size.text(["<fake>", "<image>", "<global>"], 3), case.text);
        let planes = |tile: &Vec<f32>| {
            let channel =
                |channel: usize| tile.iter().copied().skip(channel).step_by(3).collect::<Vec<f32>>();
            (0..3).flat_map(channel).collect::<Vec<f32>>()
        };
        let numbers = tiles.patches.iter().flat_map(planes).flat_map(f32::to_le_bytes);
        let name = format!("{}×{}, splits {}", case.width, case.height, case.splits);
        assert_eq!(sha256(&numbers.collect::<Vec<u8>>()), case.sha256, "{name}");
    }
}

/// A patch has the order of a convolution's weight.
#[test]
fn patches_have_channels_then_rows_then_columns() {
    let processor = processor(&[]).unwrap();
    let image = noise(3, 32, 32, false);
    let (small, large) = (processor.tiles(&image, 1), processor.tiles(&image, 8));
    assert_eq!(large.patches[0].len(), 3 * 32 * 32);
    for (patch, channel, row, column) in [(0, 0, 0, 0), (1, 2, 3, 4), (6, 1, 7, 0), (15, 2, 7, 7)] {
        let (y, x) = (patch / 4 * 8 + row, patch % 4 * 8 + column);
        let found = large.patches[0][patch * 192 + channel * 64 + row * 8 + column];
        assert_eq!(found, small.patches[0][(y * 32 + x) * 3 + channel]);
    }
}

#[test]
fn settings_that_change_pixels_are_errors() {
    let check = |key, value, expected: &str| {
        let error = processor(&[(key, value)]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    check("resample", 0.into(), "`resample`");
    check("do_resize", false.into(), "`do_resize`");
    check("do_center_crop", true.into(), "`do_center_crop`");
    check("image_std", serde_json::json!([0.5, 0.5]), "`image_std`");
    check("image_std", serde_json::json!([0.5, 0.5, 0.0]), "`image_std`");
    check("rescale_factor", 0.into(), "`rescale_factor`");
    check("size", serde_json::json!({ "longest_edge": 96, "height": 3 }), "`size.height`");
    check("max_image_size", serde_json::json!({ "longest_edge": 0 }), "`max_image_size.longest_edge`");
    check("image_processor_type", "Qwen2VLImageProcessor".into(), "`image_processor_type`");
}

#[derive(Deserialize)]
struct Decoded {
    file: String,
    width: usize,
    height: usize,
    sha256: String,
    bytes: Option<Vec<u8>>,
}

#[test]
fn files_have_the_pixels_that_pillow_reads() {
    for case in cases::<Decoded>("files.json") {
        let image = ImageLimits::default().read(&folder().join(&case.file));
        let image = image.unwrap_or_else(|error| panic!("{}: {error}", case.file));
        assert_eq!((image.width(), image.height()), (case.width, case.height), "{}", case.file);
        match case.bytes {
            None => assert_eq!(sha256(image.bytes()), case.sha256, "{}", case.file),
            // Decoders of lossy formats round differently.
            Some(bytes) => {
                let differences = bytes.iter().zip(image.bytes()).map(|(a, b)| a.abs_diff(*b));
                let largest = differences.max().unwrap_or_default();
                assert!(largest <= 4, "{}: {largest}", case.file);
            }
        }
    }
}

fn message(bytes: &[u8]) -> String {
    ImageLimits::default().decode(bytes).unwrap_err().to_string()
}

#[test]
fn hostile_data_is_an_error() {
    let png = fs::read(folder().join("rgb.png")).unwrap();
    // The header's width and height are at these places, and a decoder may check the header's sum first.
    let sized = |width: u32, height: u32| {
        let mut bytes = fs::read(folder().join("rgb.bmp")).unwrap();
        bytes[18..22].copy_from_slice(&width.to_le_bytes());
        bytes[22..26].copy_from_slice(&height.to_le_bytes());
        bytes
    };
    for bytes in [&b""[..], b"GIF8", b"<svg xmlns='http://www.w3.org/2000/svg'/>", &png[1..]] {
        assert!(message(bytes).starts_with("the data is no image in a known format"), "{}", message(bytes));
    }
    let limits = ImageLimits { bytes: 99, ..ImageLimits::default() };
    let error = limits.decode(&png).unwrap_err().to_string();
    assert!(error.starts_with("the image has 438 bytes, expected at most 99"), "{error}");
    let error = limits.read(&folder().join("rgb.png")).unwrap_err().to_string();
    assert!(error.starts_with("the image has 100 bytes, expected at most 99"), "{error}");
    let check = |bytes: &[u8], expected: &str| {
        let found = message(bytes);
        assert!(found.starts_with(expected), "{found}");
    };
    check(&sized(30_000, 30_000), "the image has 30000×30000 pixels, expected at most 134217728");
    check(&sized(1, 10_000), "the image has 1×10000 pixels, expected a longer side of at most 200");
    check(&sized(1, 100_000), "the BMP image is damaged or has an unsupported variant");
    let file = |name| fs::read(folder().join(name)).unwrap();
    check(&file("bomb.png"), "the image has 30000×30000 pixels, expected at most 134217728");
    check(&file("thin.png"), "the image has 1×100000 pixels, expected a longer side of at most 200");
    for file in fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        if path.extension().is_some_and(|extension| extension != "json") {
            for length in (0..bytes.len()).step_by(7) {
                // A truncated file may still have all pixels, but never stops the program.
                let _ = ImageLimits::default().decode(&bytes[..length]);
            }
            let mut state = 7_usize;
            for _ in 0..200 {
                let mut bytes = bytes.clone();
                for _ in 0..3 {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    let place = (state >> 20) % bytes.len();
                    bytes[place] = (state >> 55) as u8;
                }
                let _ = ImageLimits::default().decode(&bytes);
            }
        }
    }
}
