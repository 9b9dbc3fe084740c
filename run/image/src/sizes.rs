//! The sizes that families of vision-language models resize an image to, as `(width, height)`.

use crate::ImageError;

/// How SmolVLM and Idefics3 fit an image (`image_processing_smolvlm.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRule {
    /// The length of the longer side after the first resizing.
    pub longest: usize,
    /// The side of a tile.
    pub tile: usize,
    /// Whether an image becomes tiles and a small image of the whole, or only one tile.
    pub splits: bool,
}

/// The sizes of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledSize {
    /// After the first resizing, which keeps the aspect ratio.
    pub fitted: (usize, usize),
    /// After the second resizing, a multiple of the tile.
    pub whole: (usize, usize),
    /// The rows of tiles, or 0 if the image is one tile.
    pub rows: usize,
    /// The columns of tiles, or 0 if the image is one tile.
    pub columns: usize,
}

/// The longest side after the first resizing.
const LONGEST: usize = 4096;

impl TiledSize {
    /// The text of an image in a prompt (`processing_smolvlm.py`): `image` stands `vectors` times for each tile.
    /// A `fake` token and the place of the tile, or `global` for the image of the whole, precede it.
    pub fn text(&self, [fake, image, global]: [&str; 3], vectors: usize) -> String {
        let vectors = image.repeat(vectors);
        let mut text = String::new();
        for row in 1..=self.rows {
            for column in 1..=self.columns {
                text += &format!("{fake}<row_{row}_col_{column}>{vectors}");
            }
            text.push('\n');
        }
        let before = if self.rows == 0 { "" } else { "\n" };
        text + &format!("{before}{fake}{global}{vectors}{fake}")
    }
}

impl SplitRule {
    /// Both sides of the image have at least one pixel.
    pub fn size(&self, width: usize, height: usize) -> TiledSize {
        // The shorter side becomes even; the longest side of all is applied after that.
        let (width, height) = scaled(width, height, self.longest, |side| side + side % 2);
        let (width, height) = if width.max(height) > LONGEST {
            scaled(width, height, LONGEST, |side| side)
        } else {
            (width, height)
        };
        let fitted = (width, height);
        if !self.splits {
            return TiledSize { fitted, whole: (self.tile, self.tile), rows: 0, columns: 0 };
        }
        let up = |side: usize| side.max(1).div_ceil(self.tile) * self.tile;
        let (width, height) = scaled(width, height, up(width.max(height)), up);
        let tiles = (height / self.tile, width / self.tile);
        let (rows, columns) = if tiles == (1, 1) { (0, 0) } else { tiles };
        TiledSize { fitted, whole: (width, height), rows, columns }
    }
}

/// With a longer side of `longest`; `finish` changes the shorter one. Rounds as Python does there: the ratio is
/// always width / height.
fn scaled(width: usize, height: usize, longest: usize, finish: impl Fn(usize) -> usize) -> (usize, usize) {
    let ratio = width as f64 / height as f64;
    let (width, height) = if width >= height {
        (longest, finish((longest as f64 / ratio) as usize))
    } else {
        (finish((longest as f64 * ratio) as usize), longest)
    };
    (width.max(1), height.max(1))
}

/// The limits of an image in Qwen's models, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PixelRange {
    /// The side of a merged patch, of which both sides become multiples.
    pub factor: usize,
    /// The fewest pixels.
    pub least: usize,
    /// The most pixels.
    pub most: usize,
}

impl PixelRange {
    /// The size of Qwen2-VL to Qwen3.5 (`smart_resize` in `image_processing_qwen2_vl.py`).
    ///
    /// # Errors
    /// Returns an error if one side is more than 200 times the other.
    pub fn size(&self, width: usize, height: usize) -> Result<(usize, usize), ImageError> {
        const MOST: u32 = 200;
        let (short, long) = (width.min(height), width.max(height));
        if short == 0 || long as f64 / short as f64 > f64::from(MOST) {
            let [width, height] = [width, height].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
            return Err(ImageError::Ratio { width, height, most: MOST });
        }
        let factor = self.factor as f64;
        let round = |side: usize| (side as f64 / factor).round_ties_even() as usize * self.factor;
        let (across, down) = (round(width), round(height));
        let pixels = (width * height) as f64;
        Ok(if across * down > self.most {
            let shrink = (pixels / self.most as f64).sqrt();
            let floor = |side: usize| (side as f64 / shrink / factor).floor() as usize * self.factor;
            (floor(width).max(self.factor), floor(height).max(self.factor))
        } else if across * down < self.least {
            let grow = (self.least as f64 / pixels).sqrt();
            let ceil = |side: usize| (side as f64 * grow / factor).ceil() as usize * self.factor;
            (ceil(width), ceil(height))
        } else {
            (across, down)
        })
    }
}

/// The size in Pixtral and Mistral 3 (`image_processing_pixtral.py`): the longer side is at most `longest`, and
/// both are multiples of `patch`.
pub fn pixtral_size(width: usize, height: usize, longest: usize, patch: usize) -> (usize, usize) {
    let ratio = (height as f64 / longest as f64).max(width as f64 / longest as f64);
    let fit = |side: usize| if ratio > 1.0 { (side as f64 / ratio).floor() as usize } else { side };
    let up = |side: usize| fit(side).saturating_sub(1) / patch * patch + patch;
    (up(width), up(height))
}

/// The columns and rows of square tiles of an image in InternVL (`image_processing_got_ocr2.py`): the grid of `least` to
/// `most` tiles with the nearest aspect ratio. If several are equally near, the largest that the image fills by more than
/// a half.
pub fn tile_grid(width: usize, height: usize, tile: usize, [least, most]: [usize; 2]) -> (usize, usize) {
    let in_range = |(columns, rows): &(usize, usize)| (least..=most).contains(&(columns * rows));
    let mut grids: Vec<(usize, usize)> = (1..=most)
        .flat_map(|columns| (1..=most / columns).map(move |rows| (columns, rows)))
        .filter(in_range)
        .collect();
    grids.sort_by_key(|(columns, rows)| columns * rows);
    let ratio = width as f64 / height as f64;
    let (mut nearest, mut best) = (f64::INFINITY, (1, 1));
    for grid in grids {
        let distance = (ratio - grid.0 as f64 / grid.1 as f64).abs();
        let area = (tile as f64).powi(2) * (grid.0 * grid.1) as f64;
        let is_filled = (width * height) as f64 > 0.5 * area;
        if distance < nearest || distance == nearest && is_filled {
            (nearest, best) = (distance, grid);
        }
    }
    best
}
