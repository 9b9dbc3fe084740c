//! The sizes of networks that transcribe speech.

use dsl::{EntryPoint, LogitsMode};

/// The spectrogram that a network of speech reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechConfig {
    /// The frames of a spectrogram.
    pub frames: usize,
    /// The mel bins of a frame.
    pub bins: usize,
    /// The tokens of the network.
    pub vocabulary: usize,
    /// The layers of the decoder.
    pub layers: usize,
    /// The attention heads of each layer of the decoder.
    pub heads: usize,
    /// The width of the median filter over the attention that tells the times of words, in positions of the encoder.
    pub median_filter_width: usize,
}

impl SpeechConfig {
    /// Beside `config.json` and the tokenizer; some may be missing.
    pub(crate) const FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

    /// Prompts have a few tokens, so no call reads more than that.
    const PROMPT: usize = 4;

    /// Those of a text, and `encode` for the spectrogram.
    pub(crate) fn entry_points(&self, batch: usize, chunk: usize, context: usize) -> Vec<EntryPoint> {
        let mut entries = EntryPoint::all(batch, chunk.min(Self::PROMPT), context);
        let encoder = EntryPoint::new("encode", batch, self.frames, context, LogitsMode::None);
        entries.push(encoder.of_features());
        entries
    }
}
