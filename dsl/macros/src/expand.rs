//! Expands the tokens of a `model!` to Rust code or, if the declaration is invalid, to compile errors.

use proc_macro2::TokenStream;
use quote::quote;

use super::{check, context, generate, parse, skeleton};

/// Expands `model! { tokens }` to Rust code.
pub fn model(tokens: TokenStream) -> TokenStream {
    let mut errors = context::Errors::default();
    let model = parse::parse(tokens, &mut errors);
    if errors.is_empty() {
        check::check(&model, &mut errors);
    }
    match errors.check() {
        Ok(()) => generate::generate(&model),
        Err(reports) => {
            let skeleton = skeleton::skeleton(model);
            quote!(#reports #skeleton)
        }
    }
}
