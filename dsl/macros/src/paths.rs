//! Finds the path of the dsl crate in the crate that calls a macro.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

/// The path of the dsl crate: `tracewright-dsl` if the caller depends on it, otherwise a module of the facade
/// crate.
pub fn dsl() -> TokenStream {
    let named = |name: &str| Ident::new(name, Span::call_site());
    match crate_name("tracewright-dsl") {
        Ok(FoundCrate::Name(name)) => {
            let name = named(&name);
            return quote!(::#name);
        }
        // The crate's tests and examples know it by this name, and so does the crate itself.
        Ok(FoundCrate::Itself) => return quote!(::tracewright_dsl),
        Err(_) => {}
    }
    let facade = match crate_name("tracewright") {
        Ok(FoundCrate::Name(name)) => named(&name),
        Ok(FoundCrate::Itself) | Err(_) => named("tracewright"),
    };
    quote!(::#facade::dsl)
}
