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

/// The bytes of all tokens, and the tokenizer, which encodes texts that the grammar requires.
pub struct Vocabulary {
    trie: TokTrie,
    encode: Encode,
    /// Whether every byte has a token. Otherwise the model itself must choose tokens for some texts.
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

    /// Encodes bytes with the tokenizer if the tokens decode to the same bytes. The tokenizer can add a
    /// space, or interpret the name of a special token. In this case, the function takes the longest token at
    /// each position.
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
