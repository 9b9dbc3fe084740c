//! [`SequenceInput`] is the beginning of a text that contains more than tokens, such as features or
//! an encoder's input.

/// The beginning of a text in a batch. For a text that begins only with tokens, call
/// [`Batch::join`](crate::Batch::join) instead.
///
/// ```
/// use tracewright_generate::{EncoderInput, InputPart, SequenceInput};
///
/// // The network's encoder reads three tokens; the text begins with token 0 and goes through the second adapter.
/// let input = SequenceInput {
///     parts: vec![InputPart::Tokens(&[0])],
///     source: Some(EncoderInput::Tokens(&[5, 17, 3])),
///     adapter: 2,
/// };
/// assert_eq!(input.tokens(4), [0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceInput<'a> {
    /// The parts of the text in the order of their positions; each part contains tokens or
    /// features.
    pub parts: Vec<InputPart<'a>>,
    /// The input of the encoder, if the network has an encoder.
    pub source: Option<EncoderInput<'a>>,
    /// The index of the adapter for the whole text. The index 0 selects no adapter.
    pub adapter: u32,
}

/// A part of a text: consecutive positions with tokens, or consecutive positions with features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputPart<'a> {
    /// Token ids; each token id is at one position of the text.
    Tokens(&'a [u32]),
    /// Feature vectors that replace the embeddings of tokens.
    Features {
        /// The feature values of all positions, one position after another.
        numbers: &'a [f32],
        /// The token id that represents each position with features in the text.
        placeholder: u32,
    },
}

/// The input that an encoder reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EncoderInput<'a> {
    /// Token ids, for an encoder that takes tokens.
    Tokens(&'a [u32]),
    /// The features of all positions, for an encoder that takes features.
    Features(&'a [f32]),
}

impl SequenceInput<'_> {
    /// Returns the token id of each position. `width` is the number of features per position. The
    /// token id of a position with features is the placeholder.
    pub fn tokens(&self, width: usize) -> Vec<u32> {
        let of_part = |part: &InputPart<'_>| match *part {
            InputPart::Tokens(tokens) => tokens.to_vec(),
            InputPart::Features { numbers, placeholder } => {
                vec![placeholder; numbers.len().checked_div(width).unwrap_or_default()]
            }
        };
        self.parts.iter().flat_map(of_part).collect()
    }
}
