//! `model!` and `#[derive(TraceArg)]`. Their documentation stands where users find them: in the dsl.

mod ast;
mod check;
mod context;
mod derive;
mod generate;
mod leaf;
mod parse;
mod paths;

use proc_macro::TokenStream;

/// Declares a network: see the documentation of the dsl crate.
#[proc_macro]
pub fn model(tokens: TokenStream) -> TokenStream {
    let mut errors = context::Errors::default();
    let model = parse::parse(tokens.into(), &mut errors);
    if errors.is_empty() {
        check::check(&model, &mut errors);
    }
    match errors.is_empty() {
        true => generate::generate(&model).into(),
        false => errors.into_tokens().into(),
    }
}

/// Derives `TraceArg` for a struct or enum whose parts all are: tensors become inputs of a recorded body, plain
/// data becomes part of what tells one body from another.
#[proc_macro_derive(TraceArg)]
pub fn trace_arg(tokens: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(tokens as syn::DeriveInput);
    derive::trace_arg(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
