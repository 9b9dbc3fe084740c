//! The problems of one invocation, collected so that all of them are reported at once.

use std::fmt::Display;

use proc_macro2::TokenStream;
use quote::ToTokens;

/// Every problem found so far, each with the user's tokens that it is about. Whoever makes one must
/// [`check`](Errors::check) it: a problem that nobody reports would be a wrong network.
#[derive(Default)]
pub struct Errors {
    found: Vec<syn::Error>,
    checked: bool,
}

impl Drop for Errors {
    fn drop(&mut self) {
        assert!(self.checked || std::thread::panicking(), "the problems of a declaration were not checked");
    }
}

impl Errors {
    /// Adds a problem at these tokens.
    pub fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.found.push(syn::Error::new_spanned(tokens, message));
    }

    /// Adds a problem of the parser's.
    pub fn push(&mut self, error: syn::Error) {
        self.found.push(error);
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether there is none; else one `compile_error!` for each.
    pub fn check(mut self) -> Result<(), TokenStream> {
        self.checked = true;
        match self.is_empty() {
            true => Ok(()),
            false => Err(self.found.iter().map(syn::Error::to_compile_error).collect()),
        }
    }
}

/// `; did you mean …?` if one of the names is near, else the names that there are.
pub fn suggestion<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let distance = |name: &str| strsim::damerau_levenshtein(&unknown.to_lowercase(), &name.to_lowercase());
    match known.iter().map(|name| (distance(name), *name)).min_by_key(|(distance, _)| *distance) {
        None => String::new(),
        Some((distance, name)) if distance <= 1 + unknown.len() / 3 && distance < unknown.len() => {
            format!("; did you mean `{name}`?")
        }
        Some(_) => format!("; known are {}", list(&known)),
    }
}

/// `` `a`, `b` and `c` ``.
pub fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
