//! Finds errors in a parsed declaration of `model!`. Each check covers the whole model, so one
//! compilation reports all errors.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Ident, Lit};

use super::ast::*;
use super::context::{Errors, list, suggestion};
use super::keys::{keys, ties};
use super::leaf::{Axes, ELEMENTS, LEAVES, LeafKind, SettingKind, leaf_kind};

/// Names that the macro gives to generated members of every block.
pub const RESERVED: &[&str] = &["scope", "config", "dims", "forward", "build", "new", "record", "dim"];

/// The length of the longest tuple with `TraceArg`.
const MOST_ARGUMENTS: usize = 8;

pub fn check(model: &Model, errors: &mut Errors) {
    if model.blocks.is_empty() {
        let message = "`model!` declares nothing; write `pub Name<T: Float>(Config) { … }`";
        return errors.push(syn::Error::new(proc_macro2::Span::call_site(), message));
    }
    headers(model, errors);
    names(model, errors);
    dims(model, errors);
    for block in &model.blocks {
        for field in &block.fields {
            field_type(model, field, &field.ty, errors);
        }
        for function in &block.functions {
            signature(model, block, function, errors);
        }
        ties(model, block, errors);
        keys(block, errors);
    }
    recursion(model, errors);
    usage(model, errors);
}

/// Checks the configuration's type, the element type, and the clauses `dims`, `cache` and `shard`.
fn headers(model: &Model, errors: &mut Errors) {
    let root = model.root();
    let name = &root.name;
    if root.config.is_none() {
        errors.at(name, format!("the root block needs its configuration's type: `{name}<T: Float>(Config)`"));
    }
    let element = root.element();
    if element.is_none() {
        errors
            .at(name, format!("the root block needs a type parameter, its element type: `{name}<T: Float>`"));
    }
    match &root.dims[..] {
        [] => errors.at(name, format!("`{name}` has no `dims {{ … }}`, which names its axes")),
        [_, again @ ..] => {
            again.iter().for_each(|section| errors.at(&section.keyword, "`dims` is written twice"))
        }
    }
    if let [_, again @ ..] = &root.caches[..] {
        again.iter().for_each(|section| errors.at(&section.keyword, "`cache` is written twice"));
    }
    if let [_, again @ ..] = &root.shards[..] {
        again.iter().for_each(|section| errors.at(&section.keyword, "`shard` is written twice"));
    }
    let divided = || root.shards.iter().flat_map(|section| &section.rules).flat_map(|rule| &rule.axes);
    unique("axis of `shard`", divided(), errors);
    for cache in root.caches.iter().take(1) {
        for (function, what) in [
            ("forward", "`fn forward(tokens: i32[B, S], at: Position, cache: &mut Cache<T>) -> T[B, S, D]`"),
            ("logits", "`fn logits(x: T[.., D]) -> f32[.., V]`"),
        ] {
            if root.function(function).is_none() {
                errors.at(&cache.keyword, format!("a model with a `cache` also needs {what}"));
            }
        }
        let features = "takes features first, `x: T[B, S, D]`, whose last axis is in `dims`";
        let exact = "takes features first, `x: f32[B, S, D]`, whose last axis is in `dims`";
        let hidden =
            "takes hidden states after the tokens, `hidden: T[B, S, D]`, whose last axis is in `dims`";
        for (name, place, what) in
            [("forward_features", 0, features), ("encode_features", 0, exact), ("draft", 1, hidden)]
        {
            let Some(function) = root.function(name) else { continue };
            let width = match function.arguments.get(place).map(|argument| &argument.ty) {
                Some(SignatureType::Tensor(tensor)) => tensor.axes.last(),
                _ => None,
            };
            if !width.is_some_and(|axis| model.is_dim(axis)) {
                let message = format!("`{name}` {what}");
                errors.at(&function.name, message);
            }
        }
        for state in &cache.states {
            known_axes(model, state.named_axes(), errors);
        }
    }
    for block in &model.blocks[1..] {
        let of_root = |what| format!("{what} of the root block `{name}`; inner blocks share it");
        if let Some(element) = element.filter(|element| block.element() != Some(element)) {
            let message = format!("the first parameter is the element type of the root block, `{element}`");
            errors.at(&block.generics, message);
        }
        if let Some(config) = &block.config {
            errors.at(config, of_root("the configuration is"));
        }
        block.dims.iter().for_each(|section| errors.at(&section.keyword, of_root("`dims` is a section")));
        block.caches.iter().for_each(|section| errors.at(&section.keyword, of_root("`cache` is a section")));
        block.shards.iter().for_each(|section| errors.at(&section.keyword, of_root("`shard` is a section")));
    }
    if root.functions.is_empty() {
        errors.at(name, format!("the root block `{name}` has no function, such as `fn forward`"));
    }
    if let Some(role) = root.role.as_ref().filter(|_| root.function("forward").is_none()) {
        errors.at(role, format!("`{name}` has no `fn forward`, which is what a trait here asks for"));
    }
    for block in &model.blocks[1..] {
        if block.functions.is_empty() {
            errors
                .at(&block.name, format!("the block `{}` has no function, such as `fn forward`", block.name));
        }
    }
}

/// Checks that no name of a block, field or function occurs twice or collides with a generated member.
fn names(model: &Model, errors: &mut Errors) {
    unique("block", model.blocks.iter().map(|block| &block.name), errors);
    unique("dim", model.dims().map(|dim| &dim.name), errors);
    for block in &model.blocks {
        if leaf_kind(&block.name).is_some() {
            errors
                .at(&block.name, format!("`{}` is a built-in leaf; give the block another name", block.name));
        }
        attributes(&block.attrs, errors);
        let functions = block.functions.iter().map(|function| &function.name);
        unique("field or function", block.fields.iter().map(|field| &field.name).chain(functions), errors);
        for field in &block.fields {
            attributes(&field.attrs, errors);
            if field.name == "forward" {
                errors.at(&field.name, "`forward` is the name of the block's own function");
            } else {
                reserved(&field.name, errors);
            }
        }
        for function in &block.functions {
            attributes(&function.attrs, errors);
            unique("argument", function.arguments.iter().map(|argument| &argument.name), errors);
            if function.name != "forward" {
                reserved(&function.name, errors);
            }
        }
    }
}

fn reserved(name: &Ident, errors: &mut Errors) {
    if RESERVED.iter().any(|reserved| name == reserved) {
        errors.at(name, format!("every block has a `{name}` of its own; choose another name"));
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a Ident>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name.to_string()) {
            errors.at(name, format!("the {what} `{name}` is declared twice"));
        }
    }
}

fn attributes(attrs: &[Attribute], errors: &mut Errors) {
    for attr in attrs {
        if !["doc", "allow", "expect"].iter().any(|known| attr.path().is_ident(known)) {
            errors.at(attr.path(), "only doc comments, `allow` and `expect` can stand here");
        }
    }
}

/// Checks that each dim depends only on configuration keys and earlier dims.
fn dims(model: &Model, errors: &mut Errors) {
    let mut earlier: Vec<String> = Vec::new();
    for dim in model.dims() {
        let mut used = Vec::new();
        dim.value.dims(&mut used);
        for name in used.into_iter().filter(|name| !earlier.contains(&name.to_string())) {
            if model.is_dim(name) {
                errors.at(name, format!("the dim `{name}` is used before its definition"));
            } else {
                let hint = suggestion(&name.to_string(), earlier.iter().map(String::as_str));
                errors.at(name, format!("unknown dim `{name}`{hint}"));
            }
        }
        dim.value.integers(&mut |literal| {
            if !matches!(literal.base10_parse::<usize>(), Ok(1..)) {
                errors.at(literal, "expected an extent of at least 1");
            }
        });
        earlier.push(dim.name.to_string());
    }
}

fn known_axes<'a>(model: &Model, axes: impl IntoIterator<Item = &'a Ident>, errors: &mut Errors) {
    let known: Vec<String> = model.dims().map(|dim| dim.name.to_string()).collect();
    for axis in axes {
        if !model.is_dim(axis) {
            let hint = suggestion(&axis.to_string(), known.iter().map(String::as_str));
            errors.at(axis, format!("unknown axis `{axis}`: a weight's axes are declared in `dims`{hint}"));
        }
    }
}

fn distinct_axes<'a>(axes: impl IntoIterator<Item = &'a Ident>, hint: impl Display, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for axis in axes {
        if !seen.insert(axis) {
            errors.at(axis, format!("axis `{axis}` occurs twice in one tensor; {hint}"));
        }
    }
}

fn field_type(model: &Model, field: &Field, ty: &FieldType, errors: &mut Errors) {
    match ty {
        FieldType::Here(name) => {
            if let Some(kind) = leaf_kind(name) {
                errors.at(name, format!("`{name}` needs its axes: `{}`", kind.example()));
            } else if model.block(name).is_none() {
                let blocks: Vec<String> =
                    model.blocks[1..].iter().map(|block| block.name.to_string()).collect();
                let hint = suggestion(&name.to_string(), blocks.iter().map(String::as_str));
                errors.at(name, format!("no block `{name}` in this `model!`{hint} (one from elsewhere is written with its path or its element type: `other::{name}<T>`)"));
            }
        }
        FieldType::Elsewhere(_) => {}
        FieldType::Array(element, length) => {
            if !model.is_dim(length) {
                let dims: Vec<String> = model.dims().map(|dim| dim.name.to_string()).collect();
                let hint = suggestion(&length.to_string(), dims.iter().map(String::as_str));
                errors.at(
                    length,
                    format!("the length `{length}` of `{}` is not declared in `dims`{hint}", field.name),
                );
            }
            match &**element {
                FieldType::Leaf(leaf) => {
                    let message =
                        format!("an array of leaves; wrap `{0}` in a block: `[Block; {length}]`", leaf.name);
                    errors.at(&leaf.name, message);
                }
                FieldType::Array(_, inner) => {
                    errors.at(inner, "an array of arrays; wrap the inner one in a block")
                }
                block => field_type(model, field, block, errors),
            }
        }
        FieldType::Leaf(leaf) => self::leaf(model, leaf, errors),
    }
}

fn leaf(model: &Model, leaf: &Leaf, errors: &mut Errors) {
    let name = &leaf.name;
    let Some(kind) = leaf_kind(name) else {
        let message = match model.block(name) {
            Some(_) => format!("`{name}` is a block and has no axes; write `{name}`"),
            None => {
                let hint = suggestion(&name.to_string(), LEAVES.iter().map(|kind| kind.name));
                format!("no leaf `{name}`{hint}")
            }
        };
        return errors.at(name, message);
    };
    known_axes(model, leaf.stored(), errors);
    distinct_axes(leaf.stored(), "give it a second name in `dims`", errors);
    let fits = match (&kind.axes, &leaf.outputs) {
        (Axes::Arrow, Some((_, outputs))) => !leaf.axes.is_empty() && !outputs.is_empty(),
        (Axes::Listed(names), None) => names.len() == leaf.axes.len(),
        (Axes::Several, None) => !leaf.axes.is_empty(),
        (Axes::Any, None) => true,
        _ => false,
    };
    if !fits {
        errors.at(name, format!("the axes of `{name}` are written `{}`", kind.example()));
    }
    unique("setting", leaf.settings.iter().map(|setting| &setting.name), errors);
    for setting in &leaf.settings {
        self::setting(kind, setting, errors);
    }
}

fn setting(kind: &LeafKind, setting: &Setting, errors: &mut Errors) {
    let name = &setting.name;
    let leaf = kind.name;
    match (kind.setting(name), &setting.value) {
        (None, _) if kind.settings.is_empty() => errors.at(name, format!("`{leaf}` has no settings")),
        (None, _) => {
            let known: Vec<&str> = kind.settings.iter().map(|(known, _)| *known).collect();
            errors.at(name, format!("`{leaf}` has no setting `{name}`; it has {}", list(&known)));
        }
        (Some(SettingKind::Flag), SettingValue::Bare | SettingValue::If(_)) => {}
        (Some(SettingKind::Flag), SettingValue::Literal(Lit::Bool(_))) => {}
        (Some(SettingKind::Flag), _) => {
            errors.at(name, format!("`{name}` is on or off: `{name}`, `{name} = false` or `{name} if key`"))
        }
        (Some(SettingKind::Number), SettingValue::Name(_) | SettingValue::Literal(_)) => {}
        (Some(SettingKind::Number), _) => {
            errors.at(name, format!("`{name}` needs a number: `{name} = key` or a literal"));
        }
        (Some(SettingKind::Word(_, words)), value) => {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            match value {
                SettingValue::Name(word) if known.iter().any(|known| word == known) => {}
                SettingValue::Name(word) => {
                    errors.at(word, format!("`{name}` is one of {}, not `{word}`", list(&known)))
                }
                _ => errors.at(name, format!("`{name}` is one of {}: `{name} = {}`", list(&known), known[0])),
            }
        }
    }
}

fn signature(model: &Model, block: &Block, function: &Function, errors: &mut Errors) {
    if let Some(receiver) = &function.receiver {
        errors.at(receiver, format!("`self` is always there; write `fn {}(x: …)`", function.name));
    }
    let inputs = function.arguments.iter().map(|argument| &argument.ty);
    for ty in inputs.chain(&function.output) {
        references(ty, errors);
    }
    if function.output.is_none() {
        errors.at(&function.name, format!("say what `{}` returns, such as `-> T[B, S, D]`", function.name));
    }
    let own = model.root().element().map(Ident::to_string);
    let elements: Vec<&str> =
        own.as_deref().into_iter().chain(ELEMENTS.iter().map(|(name, _)| *name)).collect();
    for tensor in function.tensors() {
        if !elements.iter().any(|element| tensor.element == element) {
            let name = &tensor.element;
            errors.at(name, format!("unknown element type `{name}`{}", nearest_element(name, &elements)));
        }
        for axis in tensor.axes.iter().filter(|axis| !is_axis_name(axis)) {
            let message = "must begin with an upper-case letter, to differ from variables of the body";
            errors.at(axis, format!("the axis `{axis}` {message}"));
        }
        distinct_axes(
            &tensor.axes,
            "give the second one a name of its own; `.rename(S, C)` makes one",
            errors,
        );
    }
    if let Some(surplus) = function.arguments.get(MOST_ARGUMENTS) {
        errors.at(
            &surplus.name,
            format!("a function takes at most {MOST_ARGUMENTS} arguments; put some in a struct"),
        );
    }
    for argument in &function.arguments {
        let name = &argument.name;
        if model.is_dim(name) || function.tensors().iter().any(|tensor| tensor.axes.contains(name)) {
            errors.at(name, format!("the argument `{name}` has the name of an axis"));
        } else if block.name == *name {
            errors.at(name, format!("the argument `{name}` has the name of its block"));
        }
    }
}

/// For example `f32` for `float32`, and `i8` for `int8`.
fn nearest_element(name: &Ident, elements: &[&str]) -> String {
    let short = name.to_string().replace("bfloat", "bf").replace("float", "f").replace("int", "i");
    if elements.contains(&&*short) {
        format!("; did you mean `{short}`?")
    } else {
        suggestion(&short, elements.iter().copied())
    }
}

fn references(ty: &SignatureType, errors: &mut Errors) {
    match ty {
        SignatureType::TensorReference(ampersand, tensor) => {
            let element = &tensor.element;
            errors.at(
                ampersand,
                format!("tensors are small and free to copy; write `{element}[…]` without `&`"),
            );
        }
        SignatureType::Tuple(parts) => parts.iter().for_each(|part| references(part, errors)),
        SignatureType::Tensor(_) | SignatureType::Rust(_) => {}
    }
}

fn recursion(model: &Model, errors: &mut Errors) {
    let mut done = HashSet::new();
    for block in &model.blocks {
        descend(model, block, &mut Vec::new(), &mut done, errors);
    }
}

fn descend<'a>(
    model: &'a Model,
    block: &'a Block,
    path: &mut Vec<&'a Ident>,
    done: &mut HashSet<&'a Ident>,
    errors: &mut Errors,
) {
    if !done.insert(&block.name) {
        return;
    }
    path.push(&block.name);
    for field in &block.fields {
        let FieldType::Here(name) = field.ty.element() else { continue };
        if let Some(start) = path.iter().position(|outer| *outer == name) {
            let cycle: Vec<String> =
                path[start..].iter().chain([&name]).map(|name| format!("`{name}`")).collect();
            errors.at(name, format!("a block cannot contain itself: {}", cycle.join(" → ")));
        } else if let Some(inner) = model.block(name) {
            descend(model, inner, path, done, errors);
        }
    }
    path.pop();
}

/// Reports the fields, blocks and dims that the rest of the declaration does not use.
fn usage(model: &Model, errors: &mut Errors) {
    let scans: Vec<Scan> = model
        .blocks
        .iter()
        .map(|block| {
            let mut scan = Scan::default();
            block.functions.iter().for_each(|function| scan.tokens(function.body.stream()));
            scan
        })
        .collect();
    for (block, scan) in model.blocks.iter().zip(&scans).filter(|(block, _)| !block.functions.is_empty()) {
        for field in &block.fields {
            let name = field.name.to_string();
            if !scan.own.contains(&name) && !scans.iter().any(|scan| scan.foreign.contains(&name)) {
                let message = format!(
                    "`{name}` is declared and never used; use `self.{name}` in a function of `{}` or remove it",
                    block.name
                );
                errors.at(&field.name, message);
            }
        }
    }

    misspelt_axes(model, &scans, errors);

    // A misspelt name leaves the right name unused, and one error message is enough.
    if !errors.is_empty() {
        return;
    }
    let mut types: HashSet<String> = HashSet::new();
    let mut axes: HashMap<String, bool> = model.dims().map(|dim| (dim.name.to_string(), false)).collect();
    let mut mark = |axis: &Ident| {
        if let Some(used) = axes.get_mut(&axis.to_string()) {
            *used = true;
        }
    };
    for dim in model.dims() {
        let mut used = Vec::new();
        dim.value.dims(&mut used);
        used.into_iter().for_each(&mut mark);
    }
    for state in model.root().caches.iter().flat_map(|cache| &cache.states) {
        state.named_axes().for_each(&mut mark);
    }
    for block in &model.blocks {
        for field in &block.fields {
            if let FieldType::Array(_, length) = &field.ty {
                mark(length);
            }
            match field.ty.element() {
                FieldType::Leaf(leaf) => leaf.stored().into_iter().for_each(&mut mark),
                FieldType::Here(name) => _ = types.insert(name.to_string()),
                FieldType::Elsewhere(ty) => {
                    types.extend(ty.path.segments.first().map(|first| first.ident.to_string()))
                }
                FieldType::Array(..) => {}
            }
        }
        for function in &block.functions {
            function.tensors().into_iter().flat_map(|tensor| &tensor.axes).for_each(&mut mark);
        }
    }
    for dim in model.dims() {
        let name = dim.name.to_string();
        if !axes[&name] && !scans.iter().any(|scan| scan.words.contains(&name)) {
            errors.at(&dim.name, format!("the dim `{name}` is declared and never used"));
        }
    }
    // A block that implements a trait can be the argument for another block's type parameter.
    for block in model.blocks[1..].iter().filter(|block| block.role.is_none()) {
        if !types.contains(&block.name.to_string()) {
            errors
                .at(&block.name, format!("the block `{0}` is declared and no field is a `{0}`", block.name));
        }
    }
}

/// Free axes are legal, so an unknown one is misspelt only if one tensor type names it, no body uses it, and
/// a dim has nearly its name.
fn misspelt_axes(model: &Model, scans: &[Scan], errors: &mut Errors) {
    let functions = model.blocks.iter().flat_map(|block| &block.functions);
    let axes: Vec<&Ident> = functions.flat_map(Function::tensors).flat_map(|tensor| &tensor.axes).collect();
    for axis in axes.iter().filter(|axis| !model.is_dim(axis)) {
        let name = axis.to_string();
        let once = axes.iter().filter(|other| *other == axis).count() == 1;
        if !once || scans.iter().any(|scan| scan.words.contains(&name)) {
            continue;
        }
        let dim = model.dims().map(|dim| dim.name.to_string()).find(|dim| is_misspelt(&name, dim));
        if let Some(dim) = dim {
            errors.at(
                axis,
                format!("`dims` has no `{name}`, and only this place names it; did you mean `{dim}`?"),
            );
        }
    }
}

/// In the case of letters, or for at least four letters in one of them.
fn is_misspelt(name: &str, known: &str) -> bool {
    let letters = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let long = name.len().min(known.len()) >= 4;
    let near = long && strsim::damerau_levenshtein(name, known) == 1 && letters(name) != letters(known);
    name.eq_ignore_ascii_case(known) || near
}

/// Reads tokens and no syntax tree, so that names in macros are found.
#[derive(Default)]
struct Scan {
    /// `name` of `self.name`.
    own: HashSet<String>,
    /// `name` of `other.name`.
    foreign: HashSet<String>,
    words: HashSet<String>,
}

impl Scan {
    fn tokens(&mut self, tokens: TokenStream) {
        let mut before = [None, None];
        for token in tokens {
            match &token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    if let [of, Some(TokenTree::Punct(dot))] = &before
                        && dot.as_char() == '.'
                    {
                        let own = matches!(of, Some(TokenTree::Ident(of)) if of == "self");
                        if own { &mut self.own } else { &mut self.foreign }.insert(name.clone());
                    }
                    self.words.insert(name);
                }
                _ => {}
            }
            let [_, last] = before;
            before = [last, Some(token)];
        }
    }
}

impl Extent {
    fn dims<'a>(&'a self, found: &mut Vec<&'a Ident>) {
        match self {
            Extent::Dim(name) => found.push(name),
            Extent::Key(_) | Extent::Integer(_) => {}
            Extent::Or(_, default) => default.dims(found),
            Extent::Sum(a, b) | Extent::Product(a, b) | Extent::Quotient(a, b) => {
                a.dims(found);
                b.dims(found);
            }
        }
    }

    fn integers(&self, visit: &mut dyn FnMut(&syn::LitInt)) {
        match self {
            Extent::Integer(literal) => visit(literal),
            Extent::Key(_) | Extent::Dim(_) => {}
            Extent::Or(_, default) => default.integers(visit),
            Extent::Sum(a, b) | Extent::Product(a, b) | Extent::Quotient(a, b) => {
                a.integers(visit);
                b.integers(visit);
            }
        }
    }
}
