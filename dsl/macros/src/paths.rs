//! Finds the path by which the user's crate refers to the dsl crate.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// `tracewright-dsl` if the user's crate depends on it, otherwise the module of `tracewright`.
pub fn dsl() -> TokenStream {
    let named = |name: &str| Ident::new(name, Span::call_site());
    match crate_name("tracewright-dsl") {
        Ok(FoundCrate::Name(name)) => {
            let name = named(&name);
            return quote!(::#name);
        }
        // The tests and examples of the dsl crate, and the dsl crate itself, use this name.
        Ok(FoundCrate::Itself) => return quote!(::tracewright_dsl),
        Err(_) => {}
    }
    let facade = match crate_name("tracewright") {
        Ok(FoundCrate::Name(name)) => named(&name),
        Ok(FoundCrate::Itself) | Err(_) => named("tracewright"),
    };
    quote!(::#facade::dsl)
}
