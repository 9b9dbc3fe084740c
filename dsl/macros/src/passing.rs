//! Generates how arguments reach the body of a declared function.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;
use syn::{Ident, Type};

use super::ast::{Function, SignatureType};

/// How a declared function's arguments pass through its recording.
#[derive(Default)]
pub struct Passing<'a> {
    pub passed: Vec<TokenStream>,
    pub bound: Vec<TokenStream>,
    pub lent: Vec<TokenStream>,
    pub states: Vec<&'a Ident>,
    pub kept: Vec<Ident>,
}

impl<'a> Passing<'a> {
    pub fn of(function: &'a Function) -> Self {
        let mut all = Self::default();
        for argument in &function.arguments {
            let name = &argument.name;
            let SignatureType::Rust(Type::Reference(reference)) = &argument.ty else {
                for list in [&mut all.passed, &mut all.bound, &mut all.lent] {
                    list.push(quote!(#name));
                }
                continue;
            };
            let owned = &reference.elem;
            all.passed.push(quote_spanned!(owned.span()=> <#owned as ::core::clone::Clone>::clone(#name)));
            if reference.mutability.is_some() {
                all.bound.push(quote!(mut #name));
                all.lent.push(quote!(&mut #name));
                all.states.push(name);
                all.kept.push(format_ident!("__{}", name));
            } else {
                all.bound.push(quote!(#name));
                all.lent.push(quote!(&#name));
            }
        }
        all
    }
}
