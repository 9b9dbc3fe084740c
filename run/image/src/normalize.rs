//! [`Normalization`] turns bytes into the numbers that a vision tower reads.

use crate::Pixels;

/// The scale and shift of each channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    mean: [f32; 3],
    std: [f32; 3],
}

impl Normalization {
    /// A byte becomes (byte·`rescale` − mean) / std, in one step: (byte − mean/`rescale`) / (std/`rescale`).
    pub fn new(mean: [f64; 3], std: [f64; 3], rescale: f64) -> Self {
        let scaled = |numbers: [f64; 3]| numbers.map(|number| number as f32 * (1.0 / rescale) as f32);
        Self { mean: scaled(mean), std: scaled(std) }
    }

    /// Squares of `side`×`side` pixels, row by row. In a square, the numbers of a channel follow each other row
    /// by row, as in the weight `[out, channel, row, column]` of a convolution. Pixels beyond the last whole
    /// square are dropped.
    pub fn patches(&self, image: &Pixels, side: usize) -> Vec<f32> {
        let side = side.max(1);
        let (across, down) = (image.width() / side, image.height() / side);
        let (width, bytes) = (image.width(), image.bytes());
        let mut numbers = Vec::with_capacity(across * down * side * side * 3);
        for (top, left) in (0..down).flat_map(|y| (0..across).map(move |x| (y * side, x * side))) {
            for (channel, (mean, std)) in self.mean.iter().zip(&self.std).enumerate() {
                for row in top..top + side {
                    let row = &bytes[(row * width + left) * 3..(row * width + left + side) * 3];
                    let channel = row.iter().skip(channel).step_by(3);
                    numbers.extend(channel.map(|&byte| (f32::from(byte) - mean) / std));
                }
            }
        }
        numbers
    }
}
