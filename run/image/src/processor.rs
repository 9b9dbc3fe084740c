//! [`ImageProcessor`] prepares images for the vision tower of any family.

use std::path::Path;

use models::config::ConfigError;
use models::{Vision, VisionFamily};

use crate::{Gemma3Processor, InternVlProcessor, Pixels, SmolVlmProcessor};

/// The image processor of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ImageProcessor {
    /// For SmolVLM.
    SmolVlm(SmolVlmProcessor),
    /// For Gemma 3.
    Gemma3(Gemma3Processor),
    /// For InternVL.
    InternVl(InternVlProcessor),
}

/// The text and the patches of an image, as a model reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedImage {
    /// The text in a prompt, with a placeholder for each vector.
    pub text: String,
    /// The patches that each call of the tower reads.
    pub patches: Vec<Vec<f32>>,
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
        })
    }

    /// The names of tokens in the text of a prompt: the placeholder of an image in a chat template, the placeholder
    /// of a vector, and others.
    pub fn tokens(&self) -> &'static [&'static str] {
        match self {
            Self::SmolVlm(_) => &["<image>", "<image>", "<fake_token_around_image>"],
            Self::Gemma3(_) => &["<start_of_image>", "<image_soft_token>", "<end_of_image>"],
            Self::InternVl(_) => &["<IMG_CONTEXT>", "<IMG_CONTEXT>", "<img>", "</img>"],
        }
    }

    /// Resizes an image, and divides it into patches.
    pub fn prepare(&self, image: &Pixels, vision: &Vision) -> PreparedImage {
        let (vectors, tokens) = (vision.vectors(), self.tokens());
        match self {
            Self::SmolVlm(processor) => {
                let tiles = processor.tiles(image, vision.patch_size);
                let text = tiles.size.text([tokens[2], tokens[1], "<global-img>"], vectors);
                PreparedImage { text, patches: tiles.patches }
            }
            Self::Gemma3(processor) => {
                let patches = vec![processor.patches(image, vision.patch_size)];
                PreparedImage {
                    text: Gemma3Processor::text([tokens[0], tokens[1], tokens[2]], vectors),
                    patches,
                }
            }
            Self::InternVl(processor) => {
                let patches = processor.patches(image, vision.patch_size);
                let vectors = vectors * patches.len();
                PreparedImage {
                    text: InternVlProcessor::text([tokens[2], tokens[1], tokens[3]], vectors),
                    patches,
                }
            }
        }
    }
}
