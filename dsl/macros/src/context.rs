//! Collects all errors of one macro invocation, and reports these errors together.

use std::fmt::Display;

use proc_macro2::TokenStream;
use quote::ToTokens;

/// Errors with the user's tokens. Call [`check`](Errors::check) at the end, or a wrong network compiles.
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
    /// Adds an error at the location of `tokens`.
    pub fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.found.push(syn::Error::new_spanned(tokens, message));
    }

    /// Adds a syntax error that the parser `syn` returned.
    pub fn push(&mut self, error: syn::Error) {
        self.found.push(error);
    }

    /// Whether this list contains no errors.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns `Ok` if there are no errors; otherwise returns one `compile_error!` for each error.
    pub fn check(mut self) -> Result<(), TokenStream> {
        self.checked = true;
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.found.iter().map(syn::Error::to_compile_error).collect())
        }
    }
}

/// `; did you mean …?` for a similar name, or else the known ones.
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

/// Joins names for an error message: `` `a`, `b` and `c` ``.
pub fn list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
