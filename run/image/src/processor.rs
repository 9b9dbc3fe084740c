//! [`ImageProcessor`] prepares images for the vision tower of any family.

use std::path::Path;

use models::config::ConfigError;
use models::{Vision, VisionFamily};

use crate::{Gemma3Processor, InternVlProcessor, Pixels, PixtralProcessor, SmolVlmProcessor};

/// The image processor of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ImageProcessor {
    /// For SmolVLM.
    SmolVlm(SmolVlmProcessor),
    /// For Gemma 3.
    Gemma3(Gemma3Processor),
    /// For InternVL.
    InternVl(InternVlProcessor),
    /// For Mistral 3 and Ministral 3.
    Pixtral(PixtralProcessor),
}

/// The text and the patches of an image, as a model reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedImage {
    /// The text in a prompt, with a placeholder for each vector.
    pub text: String,
    /// The parts of the image that the tower reads one by one.
    pub tiles: Vec<ImageTile>,
}

/// The numbers that a call of the tower reads, without padding.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTile {
    /// The numbers of all patches.
    pub numbers: Vec<f32>,
    /// The vectors that the tower makes of them.
    pub vectors: usize,
}

impl ImageProcessor {
    /// Reads the settings in a model's folder.
    ///
    /// # Errors
    /// Returns an error about a key that would change pixels in another way, or if the files contradict each other
    /// or the tower.
    pub fn of_folder(folder: &Path, vision: &Vision) -> Result<Self, ConfigError> {
        Ok(match vision.family {
            VisionFamily::SmolVlm => Self::SmolVlm(SmolVlmProcessor::of_folder(folder, vision)?),
            VisionFamily::Gemma3 => Self::Gemma3(Gemma3Processor::of_folder(folder, vision)?),
            VisionFamily::InternVl { .. } => Self::InternVl(InternVlProcessor::of_folder(folder, vision)?),
            VisionFamily::Pixtral { .. } => Self::Pixtral(PixtralProcessor::of_folder(folder, vision)?),
        })
    }

    /// The names of tokens in the text of a prompt: the placeholder of an image in a chat template, the placeholder
    /// of a vector, and others.
    pub fn tokens(&self) -> &'static [&'static str] {
        match self {
            Self::SmolVlm(_) => &["<image>", "<image>", "<fake_token_around_image>"],
            Self::Gemma3(_) => &["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
            Self::InternVl(_) => &["<IMG_CONTEXT>", "<IMG_CONTEXT>", "<img>", "</img>"],
            Self::Pixtral(_) => &["[IMG]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        }
    }

    /// Resizes an image, and divides it into patches.
    pub fn prepare(&self, image: &Pixels, vision: &Vision) -> PreparedImage {
        let (vectors, tokens) = (vision.vectors(), self.tokens());
        let (text, patches) = match self {
            Self::SmolVlm(processor) => {
                let tiles = processor.tiles(image, vision.patch_size);
                let text = tiles.size.text([tokens[2], tokens[1], "<global-img>"], vectors);
                (text, tiles.patches)
            }
            Self::Gemma3(processor) => {
                let text = Gemma3Processor::text([tokens[0], tokens[1], tokens[2]], vectors);
                (text, vec![processor.patches(image, vision.patch_size)])
            }
            Self::InternVl(processor) => {
                let patches = processor.patches(image, vision.patch_size);
                let vectors = vectors * patches.len();
                (InternVlProcessor::text([tokens[2], tokens[1], tokens[3]], vectors), patches)
            }
            Self::Pixtral(processor) => {
                let placed = processor.patches(image, vision);
                let tokens = [tokens[1], tokens[2], tokens[3]];
                (PixtralProcessor::text(tokens, placed.rows, placed.columns), vec![placed.numbers])
            }
        };
        let of_patch = vision.numbers() * vision.patches_of_vector();
        let tile = |numbers: Vec<f32>| ImageTile { vectors: numbers.len() / of_patch, numbers };
        PreparedImage { text, tiles: patches.into_iter().map(tile).collect() }
    }
}
