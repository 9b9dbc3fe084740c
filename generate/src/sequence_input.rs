//! Everything that a text begins with, for networks that take more than tokens.

/// What a text of a batch begins with. [`Batch::join`](crate::Batch::join) is enough for tokens alone.
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
    /// Its positions, in their order.
    pub parts: Vec<InputPart<'a>>,
    /// What the encoder reads, for a network that has one.
    pub source: Option<EncoderInput<'a>>,
    /// The adapter that the text goes through; 0 is none.
    pub adapter: u32,
}

/// Positions of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputPart<'a> {
    /// One position each.
    Tokens(&'a [u32]),
    /// Features in place of tokens.
    Features {
        /// The numbers of all positions.
        numbers: &'a [f32],
        /// The token that stands for each of them in what was seen.
        placeholder: u32,
    },
}

/// What an encoder fills memory from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EncoderInput<'a> {
    /// For an encoder that takes tokens.
    Tokens(&'a [u32]),
    /// For one that takes features.
    Features(&'a [f32]),
}

impl SequenceInput<'_> {
    /// A token for each position, where a position of features has `width` numbers.
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
