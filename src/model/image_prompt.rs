//! [`ImagePrompt`] is a conversation with images, of which the vision tower replaces the embeddings of placeholder
//! tokens.

use generate::{Chat, Features, Prompt, PromptPart, Tokenizer};
use irpa::ModelFiles;
use models::Vision;
use pixels::{ImageProcessor, Pixels};
use serde_json::Value;

use super::ModelError;

/// The tokens of a conversation with images, which the vision tower has not read yet.
#[derive(Clone, Debug)]
pub struct ImagePrompt {
    tokens: Vec<u32>,
    /// Whether a vector of an image replaces the token.
    is_replaced: Vec<bool>,
    placeholder: u32,
    /// The text of the tokens.
    text: String,
    /// The vectors of each tile.
    vectors: Vec<usize>,
    /// The numbers that each call of the tower reads.
    tiles: Vec<Vec<f32>>,
}

/// A model's vision tower, as far as prompts need it.
#[derive(Clone, Debug)]
pub(super) struct ImageReader {
    files: ModelFiles,
    vision: Vision,
}

impl ImagePrompt {
    /// The numbers that each call of the tower reads, which are no longer in the prompt then.
    pub(super) fn take_tiles(&mut self) -> Vec<Vec<f32>> {
        std::mem::take(&mut self.tiles)
    }

    /// The tokens, in which placeholders stand for images.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The text of the whole conversation, with the names of all placeholders.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The indices of the tokens that vectors of images replace.
    pub fn replaced(&self) -> impl Iterator<Item = usize> + '_ {
        self.is_replaced.iter().enumerate().filter(|(_, is)| **is).map(|(index, _)| index)
    }

    /// The prompt with the vectors of all tiles, one after another.
    pub(super) fn with(self, features: &[f32], width: usize) -> Prompt {
        let (mut parts, mut start) = (Vec::new(), 0);
        let mut vectors = features.chunks(width.max(1));
        let mut of_tiles = self.vectors.iter().copied().filter(|count| *count > 0);
        let mut of_tile = of_tiles.next().unwrap_or_default();
        for part in self.is_replaced.chunk_by(|a, b| a == b) {
            let tokens = &self.tokens[start..start + part.len()];
            start += part.len();
            if !part[0] {
                parts.push(PromptPart::Tokens(tokens.to_vec()));
                continue;
            }
            let mut left = part.len();
            // Tokens can divide the vectors of a tile, and tiles can follow each other.
            while left > 0 && of_tile > 0 {
                let count = left.min(of_tile);
                let numbers = vectors.by_ref().take(count).flatten().copied().collect();
                parts.push(PromptPart::Features(Features { numbers, width }, self.placeholder));
                left -= count;
                of_tile -= count;
                if of_tile == 0 {
                    of_tile = of_tiles.next().unwrap_or_default();
                }
            }
        }
        Prompt { parts, ..Prompt::default() }
    }
}

impl ImageReader {
    pub fn new(files: &ModelFiles, vision: &Vision) -> Self {
        Self { files: files.clone(), vision: vision.clone() }
    }

    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        chat: &Chat,
        images: &[Pixels],
        render: impl Fn(&Chat) -> Result<String, ModelError>,
    ) -> Result<ImagePrompt, ModelError> {
        let vision = &self.vision;
        let processor = ImageProcessor::of_folder(self.files.path(), vision)?;
        let names = processor.tokens();
        let (marker, placeholder) = (names[0], names[1]);
        for &name in names {
            let (found, token) = (tokenizer.special_token(name), Some(vision.image_token));
            if found.is_none() || name == placeholder && found != token {
                let token = token.filter(|_| name == placeholder);
                return Err(ModelError::ImageToken { path: self.files.path().into(), name, token });
            }
        }
        let images: Vec<_> = images.iter().map(|image| processor.prepare(image, vision)).collect();
        // The template must not see the placeholders in the text of a user.
        let hidden = hidden(&chat.messages);
        let [of_marker, of_placeholder] = ["\u{e0a3}", "\u{e0a4}"].map(|end| format!("{hidden}{end}"));
        let of_marker = if marker == placeholder { &of_placeholder } else { &of_marker };
        let messages = chat
            .messages
            .iter()
            .map(|message| replaced(&replaced(message, placeholder, &of_placeholder), marker, of_marker));
        let rendered = render(&Chat { messages: messages.collect(), ..chat.clone() })?;
        let found = rendered.matches(marker).count();
        if found != images.len() {
            return Err(ModelError::Placeholders { found, expected: images.len() });
        }
        let mut text = String::new();
        let mut is_image = Vec::new();
        for (index, part) in rendered.split(marker).enumerate() {
            if let Some(image) = index.checked_sub(1).and_then(|index| images.get(index)) {
                text += &image.text;
                is_image.extend(image.tiles.iter().flat_map(|tile| vec![true; tile.vectors]));
            }
            is_image.extend(part.matches(&of_placeholder).map(|_| false));
            text += &part.replace(&of_placeholder, placeholder).replace(of_marker, marker);
        }
        let tokens = tokenizer.encode_plain(&text)?;
        let mut is_image = is_image.into_iter();
        let is_replaced: Vec<bool> = tokens
            .iter()
            .map(|&token| token == vision.image_token && is_image.next().unwrap_or_default())
            .collect();
        let tiles = images.into_iter().flat_map(|image| image.tiles);
        let (vectors, tiles): (Vec<usize>, Vec<Vec<f32>>) =
            tiles.map(|tile| (tile.vectors, tile.numbers)).unzip();
        let (found, expected) = (is_replaced.iter().filter(|is| **is).count(), vectors.iter().sum());
        if found != expected {
            return Err(ModelError::Placeholders { found, expected });
        }
        let placeholder = vision.image_token;
        Ok(ImagePrompt { tokens, is_replaced, placeholder, text, vectors, tiles })
    }
}

/// A text of private-use characters that no message contains.
fn hidden(messages: &[Value]) -> String {
    let all = Value::from(messages.to_vec()).to_string();
    let mut hidden = "\u{e0a1}\u{e0a2}".to_owned();
    while all.contains(&hidden) {
        hidden.push('\u{e0a2}');
    }
    hidden
}

/// The same value with another text in all of its texts.
fn replaced(value: &Value, from: &str, to: &str) -> Value {
    match value {
        Value::String(text) => text.replace(from, to).into(),
        Value::Array(all) => all.iter().map(|one| replaced(one, from, to)).collect(),
        Value::Object(all) => all.iter().map(|(key, one)| (key.clone(), replaced(one, from, to))).collect(),
        other => other.clone(),
    }
}
