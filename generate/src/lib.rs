//! Tokenizer, chat template, sampling, the token loop.
