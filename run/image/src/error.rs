//! The errors of reading images.

use errors::FileError;

/// Why an image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// No format of an image begins with these bytes.
    #[error("the data is no image in a known format, expected PNG, JPEG, WebP, GIF or BMP")]
    Format,
    /// The data is damaged, or has a variant of its format that cannot be read.
    #[error(
        "the {format} image is damaged or has an unsupported variant\nhelp: save the image as a PNG file with 8 bits per channel"
    )]
    Decode {
        /// The name of the format.
        format: &'static str,
        /// The decoder's error.
        #[source]
        source: image::ImageError,
    },
    /// The file is too large.
    #[error(
        "the image has {bytes} bytes, expected at most {most}\nhelp: save the image with fewer pixels or stronger compression"
    )]
    Bytes {
        /// The number of bytes.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// The header declares too many pixels.
    #[error(
        "the image has {width}×{height} pixels, expected at most {most} in all\nhelp: save the image with fewer pixels"
    )]
    Pixels {
        /// The number of columns.
        width: u32,
        /// The number of rows.
        height: u32,
        /// The limit.
        most: u64,
    },
    /// One side is much longer than the other, or no side has a length.
    #[error(
        "the image has {width}×{height} pixels, expected a longer side of at most {most} times the shorter side\nhelp: cut the image"
    )]
    Ratio {
        /// The number of columns.
        width: u32,
        /// The number of rows.
        height: u32,
        /// The limit.
        most: u32,
    },
}
