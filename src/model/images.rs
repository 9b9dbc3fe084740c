//! Conversations with images.

use std::path::Path;
use std::sync::mpsc::channel;

use generate::{Chat, Prompt};
use pixels::{ImageLimits, Pixels};

use super::engine::reads_text;
use super::image_prompt::ImagePrompt;
use super::jobs::Job;
use super::messages::{Message, MessagePart};
use super::{Model, ModelError};

/// Reads and decodes an image for [`Opening::chat_with_images`](super::Opening::chat_with_images).
///
/// # Errors
/// Returns an error if the file is no image, or exceeds a limit.
pub fn read_image(path: &Path) -> Result<Pixels, ModelError> {
    ImageLimits::default().read(path).map_err(|source| ModelError::Image { path: path.into(), source })
}

/// Reads an image file as a part of a message, and checks that it can be decoded.
///
/// # Errors
/// Returns an error if the file is no image, or exceeds a limit.
pub fn image(path: impl AsRef<Path>) -> Result<MessagePart, ModelError> {
    let (path, limits) = (path.as_ref(), ImageLimits::default());
    let bytes = limits.bytes_of(path).and_then(|bytes| limits.decode(&bytes).map(|_| bytes));
    let bytes = bytes.map_err(|source| ModelError::Image { path: path.into(), source })?;
    Ok(MessagePart::Image(bytes.into()))
}

impl Model {
    /// Runs the vision tower, and returns a prompt for [`continue_prompt`](Self::continue_prompt). The first call
    /// builds the tower. Open the model with [`OpenOptions::images`](super::OpenOptions::images).
    pub fn see(&self, mut prompt: ImagePrompt) -> Result<Prompt, ModelError> {
        let (mut features, mut width) = (Vec::new(), 0);
        // Between two tiles, the engine continues other sequences.
        for tile in prompt.take_tiles() {
            let (answer, found) = channel();
            self.inner.ask(Job::See(tile, answer))?;
            let vectors;
            (vectors, width) = found.recv().map_err(|_| ModelError::Gone)??;
            features.extend(vectors);
        }
        Ok(prompt.with(&features, width))
    }

    /// Whether the model reads images, and was opened with [`OpenOptions::images`](super::OpenOptions::images).
    pub fn sees(&self) -> bool {
        self.inner.images.is_some()
    }

    /// Renders a conversation with images; see [`Opening::chat_with_images`](super::Opening::chat_with_images).
    ///
    /// # Errors
    /// Returns an error if the model reads no images, or the template writes another number of placeholders.
    pub fn chat_with_images(&self, chat: &Chat, images: &[Pixels]) -> Result<ImagePrompt, ModelError> {
        let text = &self.inner.text;
        let Some(reader) = &self.inner.images else { return Err(reads_text(&text.path)) };
        reader.prompt(text.tokenizer()?, chat, images, |chat| self.render(chat))
    }

    /// The prompt of a conversation, for which the vision tower reads the images in messages.
    pub(super) fn prompt(&self, messages: &[Message], chat: &Chat) -> Result<Prompt, ModelError> {
        match self.image_prompt(messages, chat)? {
            Some(images) => self.see(images),
            None => {
                let text = self.render(chat)?;
                Ok(self.inner.text.tokenizer()?.encode_plain(&text)?.into())
            }
        }
    }

    /// Decodes the images in messages, and renders the conversation; `None` without images.
    pub(super) fn image_prompt(
        &self,
        messages: &[Message],
        chat: &Chat,
    ) -> Result<Option<ImagePrompt>, ModelError> {
        let parts = messages.iter().flat_map(|message| &message.parts).filter_map(MessagePart::image);
        let decode = |(index, bytes): (usize, &[u8])| {
            let decoded = ImageLimits::default().decode(bytes);
            decoded.map_err(|source| ModelError::ImagePart { number: index + 1, source })
        };
        let images = parts.enumerate().map(decode).collect::<Result<Vec<Pixels>, _>>()?;
        if images.is_empty() { Ok(None) } else { self.chat_with_images(chat, &images).map(Some) }
    }
}
