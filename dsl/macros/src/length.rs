//! Limits the length of declarations. A Rust parser recurses for each nested type and expression,
//! so a long declaration could overflow the compiler's stack.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{Error, Result};

/// Tokens between two commas, brackets with what precedes them. Real ones have about a dozen.
const LONGEST: usize = 256;

/// Bodies are not parsed, so they can have any length. Fails at the first token beyond `LONGEST`.
pub fn check(tokens: TokenStream) -> Result<()> {
    within(tokens, 0)
}

/// `before` tokens since the last comma.
fn within(tokens: TokenStream, before: usize) -> Result<()> {
    let (mut length, mut angles, mut is_function) = (before, 0_usize, false);
    let mut tokens = tokens.into_iter().peekable();
    let mut last = ' ';
    while let Some(token) = tokens.next() {
        length += 1;
        if length > LONGEST {
            let message = format!(
                "expected at most {LONGEST} tokens between two commas; give parts of this names of their own"
            );
            return Err(Error::new(token.span(), message));
        }
        match &token {
            TokenTree::Ident(word) => is_function |= word == "fn",
            TokenTree::Punct(punct) => {
                match (punct.as_char(), last) {
                    ('<', _) => angles += 1,
                    ('>', before) if before != '-' => angles = angles.saturating_sub(1),
                    (',' | ';', _) if angles == 0 => (length, is_function) = (before, false),
                    // Doc comments and other attributes do not count, so they can have any length.
                    ('#', _) if tokens.next_if(is_brackets).is_some() => length -= 1,
                    _ => {}
                }
                last = punct.as_char();
                continue;
            }
            // Braces within `<…>` contain a constant argument and not the body of a block.
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && angles == 0 => {
                if !is_function {
                    within(group.stream(), length)?;
                }
                (length, is_function) = (before, false);
            }
            TokenTree::Group(group) => within(group.stream(), length)?,
            TokenTree::Literal(_) => {}
        }
        last = ' ';
    }
    Ok(())
}

fn is_brackets(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket)
}
