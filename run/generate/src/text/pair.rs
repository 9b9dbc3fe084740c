//! Encodes two texts together, as models that compare texts read them.

use tokenizers::{PostProcessor as _, TruncationParams, truncate_encodings};

use super::{Tokenizer, tokenize, unpanicked};
use crate::GenerateError;

/// Two texts as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPair {
    /// The tokens of both texts.
    pub tokens: Vec<u32>,
    /// The tokens before those of type 1.
    pub first: usize,
    /// The number of tokens, had nothing been cut.
    pub whole: usize,
}

impl Tokenizer {
    /// Encodes two texts with the special tokens around them, to at most `limit` tokens: cuts the end of the
    /// longer text, and keeps the special tokens.
    pub fn encode_pair_within(
        &self,
        first: &str,
        second: &str,
        limit: usize,
    ) -> Result<EncodedPair, GenerateError> {
        let encoded = unpanicked(|| {
            let [first, second] = [first, second].map(|text| self.inner.encode_fast(text, false));
            let (first, second) = (first?, second?);
            let added = self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
            let whole = first.len() + second.len() + added;
            let to = TruncationParams { max_length: limit.saturating_sub(added), ..Default::default() };
            let (first, second) = truncate_encodings(first, Some(second), &to)?;
            let encoding = self.inner.post_process(first, second, true)?;
            let tokens = encoding.get_ids().to_vec();
            let first = encoding.get_type_ids().iter().position(|&kind| kind > 0).unwrap_or(tokens.len());
            Ok(EncodedPair { tokens, first, whole })
        });
        encoded.map_err(tokenize("encode these texts"))
    }
}
