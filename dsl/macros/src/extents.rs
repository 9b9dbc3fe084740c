//! Generates code that computes the extents of the axes in `dims { … }`.

use proc_macro2::TokenStream;
use quote::quote;

use super::ast::*;
use super::generate::{Generator, config, local};

impl Generator<'_> {
    /// Part of `__dims`, where `extents` stores the first error.
    pub(super) fn extent(&self, extent: &Extent) -> TokenStream {
        match extent {
            Extent::Key(key) => config(key),
            Extent::Dim(name) => {
                let local = local(name);
                quote!(#local)
            }
            Extent::Integer(literal) => {
                let value = literal.base10_digits().parse::<usize>().unwrap_or_default();
                quote!(#value)
            }
            Extent::Sum(a, b) | Extent::Product(a, b) => {
                let (key, a, b) = (self.text(extent), self.extent(a), self.extent(b));
                let checked = match extent {
                    Extent::Sum(..) => quote!(checked_add),
                    _ => quote!(checked_mul),
                };
                quote! {{
                    let extent = usize::#checked(#a, #b);
                    extents.counted(#key, extent)
                }}
            }
            Extent::Quotient(a, b) => {
                let (dividend, divisor) = (self.text(a), self.text(b));
                let (a, b) = (self.extent(a), self.extent(b));
                quote! {{
                    let (dividend, divisor) = (#a, #b);
                    extents.divide((#dividend, dividend), (#divisor, divisor))
                }}
            }
            Extent::Or(key, default) => {
                let (key, default) = (config(key), self.extent(default));
                quote! {
                    match #key {
                        ::core::option::Option::Some(extent) => extent,
                        ::core::option::Option::None => #default,
                    }
                }
            }
        }
    }

    /// Formats an extent for error messages. The formatted text contains configuration keys instead of dims.
    pub(super) fn text(&self, extent: &Extent) -> String {
        let factor = |extent: &Extent| match extent {
            Extent::Sum(..) | Extent::Product(..) | Extent::Quotient(..) | Extent::Or(..) => {
                format!("({})", self.text(extent))
            }
            Extent::Dim(_) | Extent::Key(_) | Extent::Integer(_) => self.text(extent),
        };
        match extent {
            Extent::Key(key) => key.to_string(),
            Extent::Dim(name) => {
                // The dims of an invalid declaration can form a cycle, so this loop is limited.
                let mut name = name;
                for _ in self.model.dims() {
                    match self.model.dims().find(|dim| dim.name == *name).map(|dim| &dim.value) {
                        Some(Extent::Dim(other)) => name = other,
                        Some(value @ (Extent::Key(_) | Extent::Integer(_))) => return self.text(value),
                        _ => break,
                    }
                }
                name.to_string()
            }
            Extent::Integer(literal) => literal.to_string(),
            Extent::Sum(a, b) => format!("{} + {}", self.text(a), self.text(b)),
            Extent::Product(a, b) => format!("{} * {}", factor(a), factor(b)),
            Extent::Quotient(a, b) => format!("{} / {}", factor(a), factor(b)),
            Extent::Or(key, default) => format!("{key} or {}", self.text(default)),
        }
    }
}
