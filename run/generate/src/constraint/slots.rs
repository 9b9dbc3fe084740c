//! Gives lexemes of a compiled grammar other regular expressions.

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::derivre::RegexAst;
use llguidance::earley::Grammar;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::TokEnv;

use super::schema::Slot;

/// Compiles a grammar, and replaces the lexeme of each slot by the slot's regular expression.
pub fn filled(
    grammar: TopLevelGrammar,
    slots: Vec<Slot>,
    tokens: &TokEnv,
    limits: &ParserLimits,
) -> Result<GrammarInit, String> {
    if slots.is_empty() {
        return Ok(GrammarInit::Serialized(grammar));
    }
    let compile = || -> Result<(Grammar, LexerSpec), _> {
        GrammarInit::Serialized(grammar).to_internal(Some(tokens.clone()), limits.clone())
    };
    let compiled = catch_unwind(std::panic::AssertUnwindSafe(compile));
    let (grammar, mut lexer) = compiled.map_err(|why| why.to_string())?;
    for slot in slots {
        fill(&mut lexer, slot)?;
    }
    Ok(GrammarInit::Internal(grammar, lexer))
}

fn fill(lexer: &mut LexerSpec, slot: Slot) -> Result<(), String> {
    let text = format!("\"{}\"", slot.name);
    let is_of_slot = |at: &usize| lexer.has_forced_bytes(&lexer.lexemes[*at], text.as_bytes());
    // A reference to the slot in an unsatisfiable branch is not compiled.
    let Some(index) = (0..lexer.lexemes.len()).find(is_of_slot) else { return Ok(()) };
    let (class, has_max_tokens) = (lexer.current_class, lexer.has_max_tokens);
    lexer.current_class = lexer.lexemes[index].class();
    let after = lexer.lexemes.split_off(index + 1);
    lexer.lexemes.pop();
    let mut add = |texts: RegexAst, most| {
        lexer.add_greedy_lexeme(String::new(), texts, false, None, most).map_err(|why| why.to_string())
    };
    // A lexeme of the grammar can have the same regular expression, and a lexeme is added only if it
    // differs. A limit that no text reaches makes the lexemes differ.
    let mut added = add(slot.texts.clone(), usize::MAX)?;
    if added.as_usize() != index {
        added = add(slot.texts, usize::MAX - 1)?;
    }
    let is_added = added.as_usize() == index;
    lexer.lexemes.extend(after);
    lexer.current_class = class;
    lexer.has_max_tokens = has_max_tokens;
    is_added.then_some(()).ok_or_else(|| "two numbers of the schema share one place".to_owned())
}
