//! Expands an invalid declaration to structs and function signatures. Without the structs of a
//! declaration, rustc would report an additional error wherever the user's code names a block.

use proc_macro2::{Delimiter, Group, TokenStream};
use quote::{format_ident, quote};
use std::collections::HashSet;
use syn::{Ident, ImplItem, Item, PathArguments, parse_quote};

use super::ast::*;
use super::check::RESERVED;
use super::generate::generate;
use super::leaf::{ELEMENTS, leaf_kind};

/// Structs and signatures, as far as they parse; bodies never run. Empty without a type of configuration or
/// element.
pub fn skeleton(mut model: Model) -> TokenStream {
    let Some(element) = header(&model) else { return TokenStream::new() };
    mend(&mut model, &element);
    let Ok(mut file) = syn::parse2::<syn::File>(generate(&model)) else { return TokenStream::new() };
    for item in &mut file.items {
        let Item::Impl(methods) = item else { continue };
        for method in &mut methods.items {
            if let ImplItem::Fn(method) = method {
                method.attrs.push(parse_quote!(#[allow(unused)]));
                method.block = parse_quote!({ ::core::unreachable!() });
            }
        }
    }
    quote!(#file)
}

/// The name of the type parameter for the element type; `None` if the first block is not a valid root block.
fn header(model: &Model) -> Option<Ident> {
    model.blocks.first().filter(|root| root.config.is_some())?.element().cloned()
}

/// Removes each item that would prevent the macro from generating code or cause an additional error of rustc.
fn mend(model: &mut Model, element: &Ident) {
    let mut names = HashSet::new();
    model.blocks.retain(|block| names.insert(block.name.to_string()));
    let fields: Vec<Vec<bool>> = model
        .blocks
        .iter()
        .map(|block| block.fields.iter().map(|f| stands(model, block, &f.ty)).collect())
        .collect();
    for (block, stands) in model.blocks.iter_mut().zip(fields) {
        let mut taken: HashSet<String> = RESERVED.iter().map(ToString::to_string).collect();
        taken.remove("forward");
        block.attrs.clear();
        block.functions.retain(|function| taken.insert(function.name.to_string()));
        let mut stands = stands.into_iter();
        block.fields.retain(|field| stands.next() == Some(true) && taken.insert(field.name.to_string()));
        for field in &mut block.fields {
            field.attrs.clear();
            field.tied = None;
            if let FieldType::Leaf(leaf) = &mut field.ty {
                leaf.settings.clear();
            }
        }
        for function in &mut block.functions {
            function.attrs.clear();
            function.body = Group::new(Delimiter::Brace, TokenStream::new());
            for (index, argument) in function.arguments.iter_mut().enumerate() {
                argument.name = format_ident!("argument{index}");
                known_elements(&mut argument.ty, element);
            }
            function.output.iter_mut().for_each(|output| known_elements(output, element));
        }
    }
    model.blocks[0].caches.truncate(1);
    model.blocks[0].shards.clear();
}

fn stands(model: &Model, block: &Block, ty: &FieldType) -> bool {
    match ty.element() {
        FieldType::Leaf(leaf) => leaf_kind(&leaf.name).is_some(),
        FieldType::Here(name) => {
            model.block(name).is_some() && !contains(model, name, &block.name, &mut vec![])
        }
        FieldType::Elsewhere(ty) => !ty
            .path
            .segments
            .iter()
            .any(|segment| matches!(segment.arguments, PathArguments::Parenthesized(_))),
        FieldType::Array(..) => false,
    }
}

fn contains<'a>(model: &'a Model, outer: &'a Ident, wanted: &Ident, seen: &mut Vec<&'a Ident>) -> bool {
    if outer == wanted {
        return true;
    }
    if seen.contains(&outer) {
        return false;
    }
    seen.push(outer);
    let inner = model.block(outer).into_iter().flat_map(|block| &block.fields);
    let mut inner = inner.filter_map(|field| match field.ty.element() {
        FieldType::Here(name) => Some(name),
        _ => None,
    });
    inner.any(|name| contains(model, name, wanted, seen))
}

/// Replaces unknown element types in a signature by the model's element type.
fn known_elements(ty: &mut SignatureType, own: &Ident) {
    match ty {
        SignatureType::Tensor(tensor) | SignatureType::TensorReference(_, tensor) => {
            if tensor.element != *own && !ELEMENTS.iter().any(|(known, _)| tensor.element == known) {
                tensor.element = own.clone();
            }
        }
        SignatureType::Tuple(parts) => parts.iter_mut().for_each(|part| known_elements(part, own)),
        SignatureType::Rust(_) => {}
    }
}
