//! [`Pixels`] is a decoded image.

use std::fs::File;
use std::io::{Cursor, Read as _};
use std::path::Path;

use errors::WithPath as _;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder as _, ImageFormat, ImageReader, Limits};

use crate::ImageError;

/// An image of 8-bit RGB pixels, row by row. Both sides have at least one pixel.
#[derive(Clone, PartialEq, Eq)]
pub struct Pixels {
    width: usize,
    bytes: Vec<u8>,
}

/// The largest images that are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// The bytes of a file.
    pub bytes: u64,
    /// The pixels in the header of a file.
    pub pixels: u64,
    /// The longer side divided by the shorter one.
    pub ratio: u32,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { bytes: 32 << 20, pixels: 1 << 27, ratio: 200 }
    }
}

impl ImageLimits {
    /// Reads and decodes a file.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), or if the file cannot be read.
    pub fn read(self, path: &Path) -> Result<Pixels, ImageError> {
        self.decode(&self.bytes_of(path)?)
    }

    /// Reads a file, of which [`decode`](Self::decode) refuses one byte more than the limit.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn bytes_of(self, path: &Path) -> Result<Vec<u8>, ImageError> {
        let file = File::open(path).with_path("read", path)?;
        let mut bytes = Vec::new();
        // The length of a pipe is unknown, and the length of a file can change.
        file.take(self.bytes + 1).read_to_end(&mut bytes).with_path("read", path)?;
        Ok(bytes)
    }

    /// Decodes a PNG, JPEG, WebP, GIF or BMP image: the first picture of an animation, turned as its EXIF data
    /// tells, with transparent pixels over white.
    ///
    /// # Errors
    /// Returns an error if the image is damaged or exceeds a limit.
    pub fn decode(self, bytes: &[u8]) -> Result<Pixels, ImageError> {
        let length = bytes.len() as u64;
        if length > self.bytes {
            return Err(ImageError::Bytes { bytes: length, most: self.bytes });
        }
        let format = image::guess_format(bytes).ok().and_then(|format| Some((format, name(format)?)));
        let (format, name) = format.ok_or(ImageError::Format)?;
        let failed = |source| ImageError::Decode { format: name, source };
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        reader.limits(self.of_decoder());
        let mut decoder = reader.into_decoder().map_err(failed)?;
        let (width, height) = decoder.dimensions();
        self.check(width, height)?;
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut image = DynamicImage::from_decoder(decoder).map_err(failed)?;
        image.apply_orientation(orientation);
        Ok(Pixels::over_white(&image))
    }

    fn check(self, width: u32, height: u32) -> Result<(), ImageError> {
        if u64::from(width) * u64::from(height) > self.pixels {
            return Err(ImageError::Pixels { width, height, most: self.pixels });
        }
        let (short, long) = (width.min(height), width.max(height));
        if short == 0 || u64::from(long) > u64::from(short) * u64::from(self.ratio) {
            return Err(ImageError::Ratio { width, height, most: self.ratio });
        }
        Ok(())
    }

    /// A decoder needs at most 16 bytes per pixel beside its result.
    fn of_decoder(self) -> Limits {
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(self.pixels.saturating_mul(16));
        limits
    }
}

fn name(format: ImageFormat) -> Option<&'static str> {
    Some(match format {
        ImageFormat::Png => "PNG",
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::WebP => "WebP",
        ImageFormat::Gif => "GIF",
        ImageFormat::Bmp => "BMP",
        _ => return None,
    })
}

impl Pixels {
    /// Creates an image from three bytes per pixel. Missing bytes are black, and further ones are ignored.
    pub fn new(width: usize, height: usize, mut bytes: Vec<u8>) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        bytes.resize(width * height * 3, 0);
        Self { width, bytes }
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The number of rows.
    pub fn height(&self) -> usize {
        self.bytes.len() / 3 / self.width
    }

    /// Red, green and blue of each pixel, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The rectangle whose upper left corner is `(x, y)`, as far as it lies in the image.
    #[must_use]
    pub fn crop(&self, x: usize, y: usize, width: usize, height: usize) -> Self {
        let (x, y) = (x.min(self.width - 1), y.min(self.height() - 1));
        let (width, height) = (width.clamp(1, self.width - x), height.clamp(1, self.height() - y));
        let rows = self.bytes.chunks_exact(self.width * 3).skip(y).take(height);
        let bytes = rows.flat_map(|row| &row[x * 3..(x + width) * 3]).copied().collect();
        Self::new(width, height, bytes)
    }

    /// As Pillow's `alpha_composite` on an opaque white image.
    fn over_white(image: &DynamicImage) -> Self {
        let (width, height) = (image.width() as usize, image.height() as usize);
        if !image.color().has_alpha() {
            return Self::new(width, height, image.to_rgb8().into_raw());
        }
        let over = |pixel: &image::Rgba<u8>| {
            let [red, green, blue, alpha] = pixel.0.map(u32::from);
            [red, green, blue].map(|color| ((2 * (color * alpha + 255 * (255 - alpha)) + 255) / 510) as u8)
        };
        Self::new(width, height, image.to_rgba8().pixels().flat_map(over).collect())
    }
}

impl std::fmt::Debug for Pixels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pixels({}×{})", self.width, self.height())
    }
}
