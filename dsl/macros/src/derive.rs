//! Generates the code for `#[derive(TraceArg)]`, which flattens the fields in the order of their
//! declaration. For an enum, the generated code adds the index of the variant before the fields.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Ident, Member, Result, Type, parse_quote};

use super::paths;

pub fn trace_arg(input: &DeriveInput) -> Result<TokenStream> {
    let dsl = paths::dsl();
    let name = &input.ident;
    let variants: Vec<(TokenStream, &Fields)> = match &input.data {
        Data::Struct(data) => vec![(quote!(Self), &data.fields)],
        Data::Enum(data) if data.variants.is_empty() => {
            return Err(Error::new_spanned(name, "an enum without variants has no values to pass"));
        }
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| (&variant.ident, &variant.fields))
            .map(|(v, f)| (quote!(Self::#v), f))
            .collect(),
        Data::Union(data) => {
            return Err(Error::new_spanned(data.union_token, "a union cannot be an argument"));
        }
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new_spanned(lifetime, "an argument outlives the body; it can borrow nothing"));
    }

    let mut generics = input.generics.clone();
    let clause = generics.make_where_clause();
    let types = variants.iter().flat_map(|(_, fields)| fields.iter().map(|field| &field.ty));
    if input.generics.type_params().next().is_some() {
        types.for_each(|ty: &Type| clause.predicates.push(parse_quote!(#ty: #dsl::TraceArg)));
    }
    let (with_bounds, arguments, bounds) = generics.split_for_impl();

    let is_enum = matches!(input.data, Data::Enum(_));
    let arms = variants.iter().enumerate().map(|(index, (path, fields))| {
        let members: Vec<Member> = fields.members().collect();
        let parts: Vec<Ident> = (0..members.len()).map(|i| format_ident!("part{i}")).collect();
        let index = index as u32;
        let tag = is_enum.then(|| quote!(#dsl::TraceArg::flatten(&#index, tensors, data);));
        let types = fields.iter().map(|field| &field.ty);
        let flatten = quote! {
            #path { #(#members: #parts),* } => {
                #tag
                #(<#types as #dsl::TraceArg>::flatten(#parts, tensors, data);)*
            }
        };
        let types = fields.iter().map(|field| &field.ty);
        let rebuild = quote! {
            #path { #(#members: #parts),* } => {
                #path { #(#members: <#types as #dsl::TraceArg>::rebuild(#parts, tensors)),* }
            }
        };
        (flatten, rebuild)
    });
    let (flatten, rebuild): (Vec<_>, Vec<_>) = arms.unzip();
    Ok(quote! {
        #[automatically_derived]
        #[allow(unused_variables)]
        impl #with_bounds #dsl::TraceArg for #name #arguments #bounds {
            fn flatten(
                &self,
                tensors: &mut ::std::vec::Vec<#dsl::__private::Raw>,
                data: &mut ::std::vec::Vec<::core::primitive::u8>,
            ) {
                match self { #(#flatten)* }
            }
            fn rebuild(
                &self,
                tensors: &mut dyn ::core::iter::Iterator<Item = #dsl::__private::Raw>,
            ) -> Self {
                match self { #(#rebuild)* }
            }
        }
    })
}
