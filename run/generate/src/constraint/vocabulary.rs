//! Passes the tokens of a model to the library llguidance.

use std::sync::Arc;

use llguidance::toktrie::{TokTrie, TokenId, TokenizerEnv};

use crate::Tokenizer;

/// Encodes a text without special tokens, or returns `None` if the tokenizer cannot encode the text.
pub type Encode = Arc<dyn Fn(&str) -> Option<Vec<u32>> + Send + Sync>;

pub fn encoder(tokenizer: &Tokenizer) -> Encode {
    let tokenizer = tokenizer.clone();
    Arc::new(move |text| tokenizer.encode_plain(text).ok())
}

/// The bytes of all tokens, and the tokenizer. If the grammar requires a text, the tokenizer
/// encodes this text.
pub struct Vocabulary {
    trie: TokTrie,
    encode: Encode,
    /// Whether the vocabulary contains a token for every byte. Without a token for every byte, some
    /// texts cannot be encoded, and the model itself must choose the tokens.
    has_all_bytes: bool,
}

impl Vocabulary {
    pub fn new(trie: TokTrie, encode: Encode) -> Self {
        let has_all_bytes = (0..=u8::MAX).all(|byte| trie.token_id(&[byte]).is_some());
        Self { trie, encode, has_all_bytes }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Encodes bytes with the tokenizer if the tokens decode to exactly these bytes. The tokens
    /// decode to bytes that differ from the input if the tokenizer adds a space in front, or
    /// interprets the name of a special token. If the tokens do not decode to exactly the input
    /// bytes, the function uses the longest matching token at each position.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| (self.encode)(text));
        let spells = |tokens: &Vec<TokenId>| self.trie.decode_raw(tokens) == bytes;
        tokens.filter(spells).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.has_all_bytes
    }
}
