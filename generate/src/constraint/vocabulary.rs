//! The tokens of a model in the form that llguidance needs.

use llguidance::toktrie::{TokTrie, TokenId, TokenizerEnv};

use crate::Tokenizer;

/// The bytes of all tokens, and the tokenizer, which splits texts that a grammar forces into tokens.
pub struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
    /// Whether the vocabulary contains a token for every byte. Otherwise some texts have no tokens, and the
    /// model itself must choose the tokens.
    has_all_bytes: bool,
}

impl Vocabulary {
    pub fn new(trie: TokTrie, tokenizer: Tokenizer) -> Self {
        let has_all_bytes = (0..=u8::MAX).all(|byte| trie.token_id(&[byte]).is_some());
        Self { trie, tokenizer, has_all_bytes }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// Splits bytes into the tokenizer's own tokens, if these tokens decode to exactly these bytes. The
    /// tokenizer may add a space in front, or interpret the name of a special token. The function then uses
    /// the longest token that fits at each position.
    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let text = std::str::from_utf8(bytes).ok();
        let tokens = text.and_then(|text| self.tokenizer.encode_plain(text).ok());
        let spells = |tokens: &Vec<TokenId>| self.trie.decode_raw(tokens) == bytes;
        tokens.filter(spells).unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.has_all_bytes
    }
}
