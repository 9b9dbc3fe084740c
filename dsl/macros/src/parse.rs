//! Parses the tokens of `model!` to the AST. After an error, the parser skips the current item and
//! continues with the next item, to report further errors.

use proc_macro2::{Delimiter, Group, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::token::{Brace, Bracket, Paren};
use syn::{
    Attribute, Error, Generics, Ident, Lit, LitInt, LitStr, PathArguments, Result, Token, Type, TypePath,
    braced, bracketed, parenthesized,
};

use super::ast::*;
use super::context::Errors;
use super::length;

mod keyword {
    syn::custom_keyword!(at);
}

/// Parses as much of a declaration as possible, and adds the parse errors to `errors`.
pub fn parse(tokens: proc_macro2::TokenStream, errors: &mut Errors) -> Model {
    if let Err(error) = length::check(tokens.clone()) {
        errors.push(error);
        return Model { blocks: Vec::new() };
    }
    let mut blocks = Vec::new();
    let read = |input: ParseStream| {
        while !input.is_empty() {
            match block(input, errors) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    errors.push(error);
                    skip(input, |token| is_group(token, Delimiter::Brace), |_| false);
                }
            }
        }
        Ok(())
    };
    // After a syntax error, syn also reports an error about the tokens that the parser did not
    // read.
    if let Err(error) = read.parse2(tokens)
        && errors.is_empty()
    {
        errors.push(error);
    }
    let shared = blocks.first().map(|root: &Block| root.generics.clone()).unwrap_or_default();
    for block in &mut blocks {
        if block.generics.params.is_empty() {
            block.generics = shared.clone();
        }
        block.fields.iter_mut().for_each(|field| field.ty.resolve(&block.generics));
    }
    Model { blocks }
}

fn block(input: ParseStream, errors: &mut Errors) -> Result<Block> {
    let attrs = input.call(Attribute::parse_outer)?;
    let vis = input.parse()?;
    let name = input.parse()?;
    let generics: Generics = input.parse()?;
    let config = if input.peek(Paren) { Some(in_parentheses(input, Type::parse)?) } else { None };
    let role = match input.parse::<Option<Token![:]>>()? {
        Some(_) => Some(input.parse()?),
        None => None,
    };
    let content;
    braced!(content in input);
    let (dims, caches, shards, fields, functions) = Default::default();
    let mut block =
        Block { attrs, vis, name, generics, config, role, dims, caches, shards, fields, functions };
    while !content.is_empty() {
        if let Err(error) = item(&content, &mut block) {
            errors.push(error);
            let ends = |token: &TokenTree| is_punct(token, ',') || is_group(token, Delimiter::Brace);
            skip(&content, ends, |input| input.peek(Token![fn]));
        }
    }
    Ok(block)
}

fn item(input: ParseStream, block: &mut Block) -> Result<()> {
    let attrs = input.call(Attribute::parse_outer)?;
    if input.peek(Token![pub]) {
        return Err(input.error("the fields and functions of a block are public already; remove `pub`"));
    }
    if input.peek(Token![fn]) {
        block.functions.push(function(attrs, input)?);
    } else if input.peek(Ident::peek_any) && input.peek2(Brace) {
        section(input, block)?;
        input.parse::<Option<Token![,]>>()?;
    } else {
        block.fields.push(field(attrs, input)?);
        if !input.is_empty() && !input.peek(Token![fn]) {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(())
}

fn section(input: ParseStream, block: &mut Block) -> Result<()> {
    let keyword: Ident = input.parse()?;
    let content;
    braced!(content in input);
    if keyword == "dims" {
        let dims = content.parse_terminated(dim, Token![,])?.into_iter().collect();
        block.dims.push(Dims { keyword, dims });
    } else if keyword == "cache" {
        let states = content.parse_terminated(layer_state, Token![,])?.into_iter().collect();
        block.caches.push(Cache { keyword, states });
    } else if keyword == "shard" {
        let rules = content.parse_terminated(shard_rule, Token![;])?.into_iter().collect();
        block.shards.push(Shard { keyword, rules });
    } else {
        let message = format!(
            "unknown section `{keyword}`; a block has `dims {{ … }}`, `cache {{ … }}`, `shard {{ … }}`, fields and functions"
        );
        return Err(Error::new(keyword.span(), message));
    }
    Ok(())
}

fn layer_state(input: ParseStream) -> Result<LayerState> {
    let layers = input.parse()?;
    let of: Ident = input.parse()?;
    if of != "of" {
        return Err(Error::new(of.span(), "expected `of`, as in `cache { L of [K, E] }`"));
    }
    let name = if input.peek(Ident) && input.peek2(Token![:]) { Some(input.parse()?) } else { None };
    if name.is_some() {
        input.parse::<Token![:]>()?;
    }
    // A state of keys and values needs no word for its type.
    let (kind, element) = if input.peek(Bracket) {
        (Ident::new("Kv", input.span()), None)
    } else {
        let segment: syn::PathSegment = input.parse()?;
        (kind_of_state(&segment.ident), own_element(&segment.arguments)?)
    };
    let axes = in_brackets(input, state_axes)?;
    let mut window = None;
    if input.peek(Ident) {
        let within: Ident = input.parse()?;
        if within != "within" {
            let message = "expected `within` and the configuration's method that gives a layer's window, as in \
                           `cache { L of [K, E] within window }`";
            return Err(Error::new(within.span(), message));
        }
        window = Some(input.parse()?);
    }
    let condition = match input.parse::<Option<Token![if]>>()? {
        Some(_) => Some(input.parse()?),
        None => None,
    };
    let is_draft = input.parse::<Option<Token![for]>>()?.is_some();
    if is_draft {
        let function: Ident = input.parse()?;
        if function != "draft" {
            let message = "expected `draft`, as in `cache { L of [K, E] if drafts for draft }`";
            return Err(Error::new(function.span(), message));
        }
    }
    Ok(LayerState { layers, name, kind, element, axes, window, condition, is_draft })
}

/// `K, E`, or `K = W, E = J`.
fn state_axes(input: ParseStream) -> Result<Vec<StateAxis>> {
    let mut axes = Vec::new();
    while input.peek(Ident) {
        let name: Ident = input.parse()?;
        let extent = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        axes.push(StateAxis { name, extent });
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    if input.is_empty() { Ok(axes) } else { Err(input.error("expected the name of an axis")) }
}

/// `recurrent` becomes `Recurrent`.
fn kind_of_state(word: &Ident) -> Ident {
    let text = word.to_string();
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    Ident::new(&first.into_iter().chain(chars).collect::<String>(), word.span())
}

fn shard_rule(input: ParseStream) -> Result<ShardRule> {
    let mut axes = vec![input.parse()?];
    while input.parse::<Option<Token![,]>>()?.is_some() {
        axes.push(input.parse()?);
    }
    let over: Ident = input.parse()?;
    if over != "over" {
        let message =
            "expected `over` and an axis of the mesh, as in `shard { K, F over model; B over data }`";
        return Err(Error::new(over.span(), message));
    }
    Ok(ShardRule { axes, over: input.parse()? })
}

fn dim(input: ParseStream) -> Result<Dim> {
    let name: Ident = input.parse()?;
    if !is_axis_name(&name) {
        let message = format!(
            "the axis `{name}` must begin with an upper-case letter, to differ from configuration keys"
        );
        return Err(Error::new(name.span(), message));
    }
    input.parse::<Token![=]>()?;
    Ok(Dim { name, value: extent(input)? })
}

fn extent(input: ParseStream) -> Result<Extent> {
    let first = sum(input)?;
    if input.peek(Token![-]) {
        let message =
            "a dim is a sum, a product or an exact quotient; compute differences in the configuration";
        return Err(input.error(message));
    }
    if !input.peek(Ident) {
        return Ok(first);
    }
    let or: Ident = input.parse()?;
    match first {
        _ if or != "or" => Err(Error::new(or.span(), "expected `or`, `+`, `*`, `/` or `,`")),
        Extent::Key(key) => Ok(Extent::Or(key, Box::new(extent(input)?))),
        _ => Err(Error::new(or.span(), "only a configuration key can be absent and have a default")),
    }
}

fn sum(input: ParseStream) -> Result<Extent> {
    let mut left = product(input)?;
    while input.peek(Token![+]) {
        input.parse::<Token![+]>()?;
        left = Extent::Sum(Box::new(left), Box::new(product(input)?));
    }
    Ok(left)
}

fn product(input: ParseStream) -> Result<Extent> {
    let mut left = factor(input)?;
    loop {
        if input.peek(Token![*]) {
            input.parse::<Token![*]>()?;
            left = Extent::Product(Box::new(left), Box::new(factor(input)?));
        } else if input.peek(Token![/]) {
            input.parse::<Token![/]>()?;
            left = Extent::Quotient(Box::new(left), Box::new(factor(input)?));
        } else {
            return Ok(left);
        }
    }
}

fn factor(input: ParseStream) -> Result<Extent> {
    if input.peek(Paren) {
        in_parentheses(input, extent)
    } else if input.peek(LitInt) {
        Ok(Extent::Integer(input.parse()?))
    } else if input.peek(Ident) {
        let name: Ident = input.parse()?;
        Ok(if is_axis_name(&name) { Extent::Dim(name) } else { Extent::Key(name) })
    } else {
        Err(input.error("expected a configuration key, an earlier dim or an integer"))
    }
}

fn field(attrs: Vec<Attribute>, input: ParseStream) -> Result<Field> {
    let name = input.parse()?;
    input.parse::<Token![:]>()?;
    let ty = field_type(input)?;
    let at = match input.parse::<Option<keyword::at>>()? {
        Some(_) if input.peek(LitStr) => Some(input.parse()?),
        Some(_) => return Err(input.error("expected the key in quotes, as in `at \"self.query\"`")),
        None => None,
    };
    let tied = if input.peek(Token![=]) { Some(tied(input)?) } else { None };
    Ok(Field { attrs, name, ty, at, tied })
}

fn field_type(input: ParseStream) -> Result<FieldType> {
    if input.peek(Bracket) {
        return in_brackets(input, |content| {
            let element = field_type(content)?;
            content.parse::<Token![;]>()?;
            if !content.peek(Ident) {
                return Err(content.error("the length of an array is a dim; declare it in `dims`"));
            }
            Ok(FieldType::Array(Box::new(element), content.parse()?))
        });
    }
    let ty: TypePath = input.parse()?;
    let last = ty.path.segments.last().filter(|_| ty.qself.is_none() && ty.path.segments.len() == 1);
    match last {
        Some(segment) if input.peek(Bracket) => Ok(FieldType::Leaf(Box::new(leaf(segment, input)?))),
        Some(segment) if segment.arguments.is_none() => Ok(FieldType::Here(segment.ident.clone())),
        _ => Ok(FieldType::Elsewhere(ty)),
    }
}

/// Parses the element type in angle brackets after the name of a leaf or state type.
fn own_element(arguments: &PathArguments) -> Result<Option<syn::Type>> {
    match arguments {
        PathArguments::None => Ok(None),
        PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
            Some(syn::GenericArgument::Type(ty)) if arguments.args.len() == 1 => Ok(Some(ty.clone())),
            _ => Err(Error::new_spanned(
                arguments,
                "a leaf takes one element type, as in `Linear<F32>[D -> V]`",
            )),
        },
        PathArguments::Parenthesized(arguments) => {
            Err(Error::new_spanned(arguments, "settings stand behind the axes, as in `Linear[D -> V](bias)`"))
        }
    }
}

fn leaf(segment: &syn::PathSegment, input: ParseStream) -> Result<Leaf> {
    let element = own_element(&segment.arguments)?;
    let (axes, outputs) = in_brackets(input, |content| {
        let inputs = axes(content)?;
        let outputs = if content.peek(Token![->]) { Some((content.parse()?, axes(content)?)) } else { None };
        Ok((inputs, outputs))
    })?;
    let settings = if input.peek(Paren) {
        in_parentheses(input, |content| content.parse_terminated(setting, Token![,]))?.into_iter().collect()
    } else {
        Vec::new()
    };
    Ok(Leaf { name: segment.ident.clone(), element, axes, outputs, settings })
}

fn setting(input: ParseStream) -> Result<Setting> {
    let name = input.parse()?;
    let value = if input.parse::<Option<Token![if]>>()?.is_some() {
        SettingValue::If(input.parse()?)
    } else if input.parse::<Option<Token![=]>>()?.is_none() {
        SettingValue::Bare
    } else if input.peek(Lit) {
        SettingValue::Literal(input.parse()?)
    } else if input.peek(Ident) {
        SettingValue::Name(input.parse()?)
    } else {
        return Err(input.error("expected a configuration key or a literal"));
    };
    Ok(Setting { name, value })
}

fn tied(input: ParseStream) -> Result<Tied> {
    input.parse::<Token![=]>()?;
    let keyword: Ident = input.parse()?;
    if keyword != "tied" {
        return Err(Error::new(keyword.span(), "expected `tied(field.path)`"));
    }
    let path = in_parentheses(input, Punctuated::<Ident, Token![.]>::parse_separated_nonempty)?;
    let condition = match input.parse::<Option<Token![if]>>()? {
        Some(_) => Some(input.parse()?),
        None => None,
    };
    Ok(Tied { path: path.into_iter().collect(), condition })
}

fn function(attrs: Vec<Attribute>, input: ParseStream) -> Result<Function> {
    input.parse::<Token![fn]>()?;
    let name = input.parse()?;
    if input.peek(Token![<]) {
        return Err(input.error("a function of a block has no generics of its own"));
    }
    let content;
    parenthesized!(content in input);
    let receiver = receiver(&content)?;
    let arguments = content.parse_terminated(argument, Token![,])?.into_iter().collect();
    let output = match input.parse::<Option<Token![->]>>()? {
        Some(_) => Some(signature_type(input)?),
        None => None,
    };
    if !input.peek(Brace) {
        return Err(input.error("expected the function's body in braces"));
    }
    Ok(Function { attrs, name, receiver, arguments, output, body: input.parse::<Group>()? })
}

fn receiver(input: ParseStream) -> Result<Option<Token![self]>> {
    let ahead = input.fork();
    ahead.parse::<Option<Token![&]>>()?;
    ahead.parse::<Option<Token![mut]>>()?;
    if !ahead.peek(Token![self]) {
        return Ok(None);
    }
    input.parse::<Option<Token![&]>>()?;
    input.parse::<Option<Token![mut]>>()?;
    let receiver = input.parse()?;
    if !input.is_empty() {
        input.parse::<Token![,]>()?;
    }
    Ok(Some(receiver))
}

fn argument(input: ParseStream) -> Result<Argument> {
    let mutability = input.parse()?;
    let name = input.parse()?;
    input.parse::<Token![:]>()?;
    Ok(Argument { mutability, name, ty: signature_type(input)? })
}

fn signature_type(input: ParseStream) -> Result<SignatureType> {
    if input.peek(Ident) && input.peek2(Bracket) {
        return Ok(SignatureType::Tensor(tensor_type(input)?));
    }
    if input.peek(Token![&]) {
        let ahead = input.fork();
        let ampersand: Token![&] = ahead.parse()?;
        ahead.parse::<Option<Token![mut]>>()?;
        if ahead.peek(Ident) && ahead.peek2(Bracket) {
            input.parse::<Token![&]>()?;
            input.parse::<Option<Token![mut]>>()?;
            return Ok(SignatureType::TensorReference(ampersand, tensor_type(input)?));
        }
    }
    if input.peek(Paren) {
        let content;
        parenthesized!(content in input);
        let parts = content.parse_terminated(signature_type, Token![,])?;
        return Ok(SignatureType::Tuple(parts.into_iter().collect()));
    }
    Ok(SignatureType::Rust(input.parse()?))
}

fn tensor_type(input: ParseStream) -> Result<TensorType> {
    let element = input.parse()?;
    let (rest, axes) = in_brackets(input, |content| {
        let rest: Option<Token![..]> = content.parse()?;
        if rest.is_some() && !content.is_empty() {
            content.parse::<Token![,]>()?;
        }
        Ok((rest, axes(content)?))
    })?;
    Ok(TensorType { element, rest, axes })
}

fn axes(input: ParseStream) -> Result<Vec<Ident>> {
    let mut axes = Vec::new();
    while input.peek(Ident) {
        axes.push(input.parse()?);
        if !input.is_empty() && !input.peek(Token![->]) {
            input.parse::<Token![,]>()?;
        }
    }
    if input.is_empty() || input.peek(Token![->]) {
        Ok(axes)
    } else {
        Err(input.error("expected the name of an axis"))
    }
}

fn in_brackets<T>(input: ParseStream, parse: impl FnOnce(ParseStream) -> Result<T>) -> Result<T> {
    let content;
    bracketed!(content in input);
    let parsed = parse(&content)?;
    at_end(&content)?;
    Ok(parsed)
}

fn in_parentheses<T>(input: ParseStream, parse: impl FnOnce(ParseStream) -> Result<T>) -> Result<T> {
    let content;
    parenthesized!(content in input);
    let parsed = parse(&content)?;
    at_end(&content)?;
    Ok(parsed)
}

fn at_end(input: ParseStream) -> Result<()> {
    if input.is_empty() { Ok(()) } else { Err(input.error("unexpected token")) }
}

/// To after a token with `ends`, or before a position with `begins`.
fn skip(input: ParseStream, ends: impl Fn(&TokenTree) -> bool, begins: impl Fn(ParseStream) -> bool) {
    while !input.is_empty() && !begins(input) {
        match input.parse::<TokenTree>() {
            Ok(token) if !ends(&token) => {}
            _ => return,
        }
    }
}

fn is_punct(token: &TokenTree, punct: char) -> bool {
    matches!(token, TokenTree::Punct(p) if p.as_char() == punct)
}

fn is_group(token: &TokenTree, delimiter: Delimiter) -> bool {
    matches!(token, TokenTree::Group(group) if group.delimiter() == delimiter)
}
