//! Generates Rust code for a valid declaration. The macro does not change the bodies of functions.

use proc_macro2::{Delimiter, Group, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Ident, Type, Visibility};

use super::ast::*;
use super::leaf::{Argument as Takes, ELEMENTS, SettingKind, leaf_kind};
use super::passing::Passing;
use super::paths;

pub fn generate(model: &Model) -> TokenStream {
    let generator = Generator { model, dsl: paths::dsl() };
    let blocks = model.blocks.iter().map(|block| generator.block(block));
    let root = generator.root();
    quote!(#(#blocks)* #root)
}

pub(super) struct Generator<'a> {
    pub(super) model: &'a Model,
    pub(super) dsl: TokenStream,
}

impl Generator<'_> {
    /// rustc's errors refer to the user's token `here`.
    pub(super) fn dsl_at(&self, here: Span) -> TokenStream {
        let respanned = self.dsl.clone().into_iter().map(|mut token| {
            token.set_span(here);
            token
        });
        respanned.collect()
    }

    fn block(&self, block: &Block) -> TokenStream {
        let Self { model, dsl } = self;
        let root = model.root();
        let (name, attrs, config) = (&block.name, &block.attrs, &root.config);
        // An inner block without its own visibility is as visible as the root block.
        let vis = match &block.vis {
            Visibility::Inherited => &root.vis,
            own => own,
        };
        let docs = default_docs(attrs, || format!("The block `{name}` of [`{}`].", root.name));
        let (generics, arguments, bounds) = block.generics.split_for_impl();
        let (declaration, element) = (&block.generics, self.element());

        let names: Vec<&Ident> = block.fields.iter().map(|field| &field.name).collect();
        let types = block.fields.iter().map(|field| self.field_type(&field.ty));
        let field_docs = block.fields.iter().map(|field| {
            let (attrs, docs) =
                (&field.attrs, default_docs(&field.attrs, || format!("The field `{}`.", field.name)));
            quote!(#(#attrs)* #docs)
        });
        let axes = block.fields.iter().filter_map(|field| self.declared_axes(field));
        let built = block.fields.iter().map(|field| self.build(block, field));
        let calls = block.fields.iter().map(|field| self.call(field));
        let functions = block.functions.iter().map(|function| self.function(block, function));
        let role = self.role(block);
        let (extents, turbofish) =
            (self.extents(), self.config_is_generic().then(|| arguments.as_turbofish()));
        quote! {
            #(#attrs)*
            #docs
            #[allow(dead_code)]
            #vis struct #name #declaration #bounds {
                /// Also the prefix of checkpoint keys.
                pub scope: #dsl::Scope,
                /// The configuration that the block was built from.
                pub config: ::std::rc::Rc<#config>,
                /// The extents of the axes that `dims` declares.
                pub dims: #dsl::__private::Dims,
                #(#field_docs pub #names: #types,)*
                __element: ::core::marker::PhantomData<#element>,
            }

            #[allow(dead_code, clippy::all)]
            impl #generics #dsl::Block for #name #arguments #bounds {
                type Config = #config;

                fn build(
                    scope: #dsl::Scope,
                    config: &::std::rc::Rc<#config>,
                ) -> ::core::result::Result<Self, #dsl::BuildError> {
                    let dims = #extents #turbofish(config)?;
                    ::core::result::Result::Ok(Self {
                        #(#names: #built,)*
                        scope,
                        config: ::std::rc::Rc::clone(config),
                        dims,
                        __element: ::core::marker::PhantomData,
                    })
                }

                fn declared_axes(&self) -> ::std::vec::Vec<#dsl::Dim> {
                    #[allow(unused_mut)]
                    let mut axes = ::core::clone::Clone::clone(&self.dims.0);
                    #(#axes)*
                    axes
                }
            }

            #[allow(dead_code, clippy::all)]
            impl #generics #name #arguments #bounds {
                /// The extent that `dims` declares for the axis `axis`.
                pub fn dim(&self, axis: #dsl::Axis) -> usize {
                    self.dims.extent(axis)
                }

                #(#calls)*
            }

            #[allow(dead_code)]
            impl #generics #name #arguments #bounds {
                #(#functions)*
            }

            #role
        }
    }

    fn declared_axes(&self, field: &Field) -> Option<TokenStream> {
        let (dsl, name) = (&self.dsl, &field.name);
        match field.ty {
            FieldType::Leaf(_) => None,
            FieldType::Here(_) | FieldType::Elsewhere(_) => {
                Some(quote!(axes.extend(#dsl::Block::declared_axes(&self.#name));))
            }
            // A `for` loop is less code for rustc than an iterator chain, which rustc compiles for
            // each type of element.
            FieldType::Array(..) => Some(quote! {
                for element in &self.#name {
                    axes.extend(#dsl::Block::declared_axes(element));
                }
            }),
        }
    }

    /// The trait's method calls `forward`.
    fn role(&self, block: &Block) -> Option<TokenStream> {
        let (role, forward, name) = (block.role.as_ref()?, block.function("forward")?, &block.name);
        let (generics, arguments, bounds) = block.generics.split_for_impl();
        let (parameters, output) = (self.parameters(forward, false), self.output(forward));
        let values = forward.arguments.iter().map(|argument| &argument.name);
        Some(quote! {
            impl #generics #role for #name #arguments #bounds {
                fn forward(&self, #parameters) -> #output {
                    <#name #arguments>::forward(self, #(#values),*)
                }
            }
        })
    }

    pub(super) fn extents(&self) -> Ident {
        format_ident!("__dims_of_{}", self.model.root().name)
    }

    fn config_is_generic(&self) -> bool {
        let (root, named) = (self.model.root(), |path: &syn::TypePath| path.path.get_ident().cloned());
        let config = root.config.as_ref().and_then(|config| match config {
            Type::Path(path) => named(path),
            _ => None,
        });
        config.is_some_and(|config| root.generics.type_params().any(|parameter| parameter.ident == config))
    }

    /// `new`, and `CausalLm` with a cache.
    fn root(&self) -> TokenStream {
        let Self { model, dsl } = self;
        let root = model.root();
        let (name, config) = (&root.name, &root.config);
        let (generics, arguments, bounds) = root.generics.split_for_impl();
        let extents = model.dims().map(|dim| {
            let (local, value, axis) = (local(&dim.name), self.extent(&dim.value), dim.name.to_string());
            let key = self.text(&dim.value);
            quote! {
                let #local: usize = #value;
                extents.add(#axis, #key, #local);
            }
        });
        let causal = root.caches.iter().map(|cache| self.causal(cache));
        let shards = self.shards();
        let function = self.extents();
        let (of, given) = self.config_is_generic().then_some((&generics, bounds)).unzip();
        quote! {
            #[allow(dead_code, non_snake_case, unused_mut, clippy::all)]
            fn #function #of(config: &#config) -> ::core::result::Result<#dsl::__private::Dims, #dsl::BuildError> #given {
                let mut extents = #dsl::__private::CheckedExtents::default();
                #(#extents)*
                extents.finish()
            }

            #[allow(dead_code, clippy::all)]
            impl #generics #name #arguments #bounds {
                /// Names each weight by its checkpoint key.
                ///
                /// # Errors
                /// Returns an error if an extent from the configuration contradicts `dims`.
                pub fn new(config: &#config) -> ::core::result::Result<Self, #dsl::BuildError> {
                    <Self as #dsl::Block>::build(#dsl::Scope::root(""), &::std::rc::Rc::new(::core::clone::Clone::clone(config)))
                }

                /// Builds the model for a configuration, and starts to record the model's entry
                /// points. Tracewright reads no weights during the recording.
                ///
                /// # Errors
                /// Returns an error if an extent from the configuration contradicts `dims`.
                pub fn record(
                    config: &#config,
                ) -> ::core::result::Result<#dsl::Recording<Self>, #dsl::TraceError> {
                    ::core::result::Result::Ok(#dsl::Recording::new(Self::new(config)?).sharded(#shards))
                }
            }
            #(#causal)*
        }
    }

    /// Partitioned axes and a mesh axis.
    pub(super) fn shards(&self) -> TokenStream {
        let rules = self.model.root().shards.iter().flat_map(|section| &section.rules).map(|rule| {
            let axes = rule.axes.iter().map(Ident::to_string);
            let over = rule.over.to_string();
            quote!((&[#(#axes),*], #over))
        });
        quote!(&[#(#rules),*])
    }

    /// With the user's span; the caller has checked that it is declared.
    pub(super) fn named(&self, block: &Block, function: &str) -> Ident {
        let written = block.function(function).map(|function| function.name.clone());
        written.unwrap_or_else(|| Ident::new(function, Span::call_site()))
    }

    pub(super) fn element(&self) -> &Ident {
        match self.model.root().element() {
            Some(element) => element,
            None => unreachable!("checked"),
        }
    }

    fn leaf_type(&self, leaf: &Leaf) -> TokenStream {
        let (dsl, name, element) = (&self.dsl, &leaf.name, self.leaf_element(leaf));
        quote!(#dsl::#name<#element>)
    }

    fn leaf_element(&self, leaf: &Leaf) -> TokenStream {
        let shared = self.element();
        leaf.element.as_ref().map_or_else(|| quote!(#shared), |own| quote!(#own))
    }

    fn field_type(&self, ty: &FieldType) -> TokenStream {
        match ty {
            FieldType::Leaf(leaf) => self.leaf_type(leaf),
            FieldType::Here(name) => {
                let block = self.model.block(name).unwrap_or(self.model.root());
                let (_, arguments, _) = block.generics.split_for_impl();
                quote!(#name #arguments)
            }
            FieldType::Elsewhere(ty) => quote!(#ty),
            FieldType::Array(element, _) => {
                let element = self.field_type(element);
                quote!(::std::vec::Vec<#element>)
            }
        }
    }

    fn build(&self, block: &Block, field: &Field) -> TokenStream {
        let key = field.key();
        match &field.ty {
            FieldType::Leaf(leaf) => self.build_leaf(block, field, leaf),
            FieldType::Array(element, length) => {
                let (dsl, length) = (&self.dsl, length.to_string());
                let block = self.build_block(element, quote!(scope.element(#key, index)));
                quote! {{
                    let mut elements = ::std::vec::Vec::new();
                    for index in 0..dims.extent(#dsl::Axis(#length)) {
                        elements.push(#block?);
                    }
                    elements
                }}
            }
            block => {
                let built = self.build_block(block, quote!(scope.child(#key)));
                quote!(#built?)
            }
        }
    }

    fn build_block(&self, ty: &FieldType, scope: TokenStream) -> TokenStream {
        let block = self.field_type(ty);
        match ty {
            FieldType::Elsewhere(path) => {
                // With this span, rustc reports a missing implementation of `Project` at the user's
                // path.
                let here = path.path.segments.last().map_or_else(Span::call_site, |last| last.ident.span());
                let dsl = self.dsl_at(here);
                quote_spanned! {here=>{
                    fn build<C: #dsl::Project<P>, P, B>(
                        block: fn(#dsl::Scope, &::std::rc::Rc<P>) -> ::core::result::Result<B, #dsl::BuildError>,
                        scope: #dsl::Scope,
                        config: &C,
                    ) -> ::core::result::Result<B, #dsl::BuildError> {
                        let projected = match scope.index() {
                            ::core::option::Option::Some(index) => config.project_at(index),
                            ::core::option::Option::None => config.project(),
                        };
                        block(scope, &::std::rc::Rc::new(projected))
                    }
                    build(<#block as #dsl::Block>::build, #scope, &**config)
                }}
            }
            _ => {
                let dsl = &self.dsl;
                quote!(<#block as #dsl::Block>::build(#scope, config))
            }
        }
    }

    fn build_leaf(&self, block: &Block, field: &Field, leaf: &Leaf) -> TokenStream {
        let (dsl, ty, key) = (&self.dsl, self.leaf_type(leaf), field.key());
        let dims = |axes: &[Ident]| {
            let axes = axes.iter().map(Ident::to_string);
            quote!(&[#(dims.dim(#dsl::Axis(#axes))),*])
        };
        let inputs = dims(&leaf.axes);
        let outputs = leaf.outputs.iter().map(|(_, outputs)| dims(outputs));
        let settings = leaf.settings.iter().map(|setting| {
            let (method, kind) =
                (&setting.name, leaf_kind(&leaf.name).and_then(|kind| kind.setting(&setting.name)));
            let value = match (&setting.value, kind) {
                (SettingValue::Bare, _) => quote!(true),
                (SettingValue::Literal(literal), _) => quote!(#literal),
                (SettingValue::Name(word), Some(SettingKind::Word(ty, words))) => {
                    let variant =
                        words.iter().find(|(known, _)| word == known).map_or("", |(_, variant)| variant);
                    let (ty, variant) = (Ident::new(ty, Span::call_site()), Ident::new(variant, word.span()));
                    quote!(#dsl::#ty::#variant)
                }
                (SettingValue::If(key) | SettingValue::Name(key), _) => config(key),
            };
            quote!(.#method(#value))
        });
        let build = Ident::new(if field.is_stacked() { "stacked" } else { "build" }, Span::call_site());
        let leaf_built = quote!(<#ty>::#build(scope.child(#key), #inputs #(, #outputs)*)#(#settings)*);
        let Some(tied) = &field.tied else { return leaf_built };
        let path = self.model.key(block, &tied.path);
        let tie = quote!(leaf.tied(scope.child(#path)));
        match &tied.condition {
            None => quote!({ let leaf = #leaf_built; #tie }),
            Some(key) => {
                let key = config(key);
                quote!({ let leaf = #leaf_built; if #key { #tie } else { leaf } })
            }
        }
    }

    /// Such as `self.norm(x)`, for leaves and blocks of this `model!`.
    fn call(&self, field: &Field) -> TokenStream {
        let (dsl, name) = (&self.dsl, &field.name);
        let docs = format!("Applies [`{name}`](Self#structfield.{name}).");
        match &field.ty {
            FieldType::Leaf(leaf) => {
                let (ty, element) = (self.leaf_type(leaf), self.leaf_element(leaf));
                let argument = match leaf_kind(&leaf.name).map(|kind| &kind.argument) {
                    Some(Takes::Ids) => Some(quote!(#dsl::Tensor<#dsl::I32>)),
                    Some(Takes::Tensor) => Some(quote!(#dsl::Tensor<#element>)),
                    Some(Takes::Nothing) | None => None,
                };
                let (parameter, value, argument) = match argument {
                    Some(ty) => (quote_spanned!(name.span()=> , x: #ty), quote!(x), ty),
                    None => (quote!(), quote!(()), quote!(())),
                };
                quote! {
                    #[doc = #docs]
                    #[track_caller]
                    pub fn #name(&self #parameter) -> <#ty as #dsl::Call<#argument>>::Output {
                        #dsl::Call::call(&self.#name, #value)
                    }
                }
            }
            FieldType::Here(block) => {
                // If a block has no function `forward`, the caller names one of the block's other
                // functions.
                let Some(forward) = self.model.block(block).and_then(|block| block.function("forward"))
                else {
                    return TokenStream::new();
                };
                let (arguments, output) = (self.parameters(forward, false), self.output(forward));
                let values = forward.arguments.iter().map(|argument| &argument.name);
                quote! {
                    #[doc = #docs]
                    #[track_caller]
                    pub fn #name(&self, #arguments) -> #output {
                        self.#name.forward(#(#values),*)
                    }
                }
            }
            FieldType::Elsewhere(_) | FieldType::Array(..) => TokenStream::new(),
        }
    }

    /// A public function, which checks axes and reuses an equal layer's recording, and a private one with the
    /// body.
    fn function(&self, block: &Block, function: &Function) -> TokenStream {
        let Function { attrs, name, .. } = function;
        let title = format!("{}::{name}", block.name);
        let docs = default_docs(attrs, || format!("`{name}` of the block `{}`.", block.name));
        let (doc_attrs, lint_attrs): (Vec<_>, Vec<_>) =
            attrs.iter().partition(|attr| attr.path().is_ident("doc"));
        let inner = format_ident!("__{}", name);
        let (parameters, inner_parameters) =
            (self.parameters(function, false), self.parameters(function, true));
        let output = self.output(function);
        let axes = self.axes(function);
        let written = function.body.stream();
        let mut body = Group::new(Delimiter::Brace, quote!(#axes #written));
        body.set_span(function.body.span());

        let names: Vec<&Ident> = function.arguments.iter().map(|argument| &argument.name).collect();
        let Passing { passed, bound, lent, states, kept } = Passing::of(function);
        let signature = Ident::new("__signature", Span::call_site());
        let checks = function.arguments.iter().zip(&names).filter_map(|(argument, name)| {
            let checked = self.checked(&signature, &argument.ty, Some(&name.to_string()), quote!(#name));
            checked.map(|checked| quote!(let #name = #checked;))
        });
        let returned = Ident::new("__returned", Span::call_site());
        let result = function.output.as_ref().map(|ty| {
            self.checked(&signature, ty, None, quote!(#returned)).unwrap_or_else(|| quote!(#returned))
        });
        // With the span of the function's name, the call node gets the line of this name.
        let here = name.span();
        let dsl = self.dsl_at(here);
        let run = quote_spanned! {here=>
            #dsl::__private::block(
                ::core::any::TypeId::of::<Self>(),
                &self.scope,
                &|| #dsl::Block::declared_axes(self),
                #title,
                (#(#passed,)*),
                |(#(#bound,)*)| {
                    #axes
                    let mut #signature = #dsl::__private::SignatureCheck::new(#title, &self.dims);
                    #(#checks)*
                    let #returned = self.#inner(#(#lent),*);
                    (#result, (#(#states,)*))
                },
            )
        };
        quote! {
            #(#doc_attrs)*
            #docs
            #[allow(unused_mut, clippy::all)]
            pub fn #name(&self, #parameters) -> #output {
                let (#returned, (#(#kept,)*)) = #run;
                #(*#states = #kept;)*
                #returned
            }

            #(#lint_attrs)*
            fn #inner(&self, #inner_parameters) -> #output
            #body
        }
    }

    /// A constant for each axis in `dims` or free in the signature.
    fn axes(&self, function: &Function) -> TokenStream {
        let mut axes: Vec<&Ident> = self.model.dims().map(|dim| &dim.name).collect();
        for axis in function.tensors().into_iter().flat_map(|tensor| &tensor.axes) {
            if !axes.contains(&axis) {
                axes.push(axis);
            }
        }
        let constant = |axis: &&Ident| {
            let (here, name) = (axis.span(), axis.to_string());
            let dsl = self.dsl_at(here);
            quote_spanned! {here=>
                #[allow(non_upper_case_globals, unused)]
                const #axis: #dsl::Axis = #dsl::Axis(#name);
            }
        };
        axes.iter().map(constant).collect()
    }

    /// `x: Tensor<T>, at: &Attend<T>`. Only the private function's can be `mut`.
    fn parameters(&self, function: &Function, with_mut: bool) -> TokenStream {
        let parameters = function.arguments.iter().map(|argument| {
            let (name, ty) = (&argument.name, self.signature_type(&argument.ty));
            let mutability = argument.mutability.filter(|_| with_mut);
            quote!(#mutability #name: #ty)
        });
        quote!(#(#parameters),*)
    }

    fn output(&self, function: &Function) -> TokenStream {
        function.output.as_ref().map_or_else(|| quote!(()), |ty| self.signature_type(ty))
    }

    fn signature_type(&self, ty: &SignatureType) -> TokenStream {
        match ty {
            SignatureType::Tensor(tensor) | SignatureType::TensorReference(_, tensor) => {
                let element = &tensor.element;
                let dsl = self.dsl_at(element.span());
                let known = ELEMENTS.iter().find(|(name, _)| element == name && element != self.element());
                let element = match known {
                    Some((_, ty)) => {
                        let ty = Ident::new(ty, element.span());
                        quote!(#dsl::#ty)
                    }
                    None => quote!(#element),
                };
                quote_spanned!(tensor.element.span()=> #dsl::Tensor<#element>)
            }
            SignatureType::Tuple(parts) => {
                let parts = parts.iter().map(|part| self.signature_type(part));
                quote!((#(#parts,)*))
            }
            SignatureType::Rust(ty) => quote!(#ty),
        }
    }

    /// Checks declared axes of an argument or the result; `None` without any.
    fn checked(
        &self,
        signature: &Ident,
        ty: &SignatureType,
        name: Option<&str>,
        value: TokenStream,
    ) -> Option<TokenStream> {
        match ty {
            SignatureType::Tensor(TensorType { element, rest, axes }) => {
                let (here, rest) = (element.span(), rest.is_some());
                let dsl = &self.dsl;
                let declared = quote!(#dsl::__private::DeclaredAxes { rest: #rest, axes: &[#(#axes),*] });
                Some(match name {
                    Some(name) => quote_spanned!(here=> #signature.argument(#name, #value, #declared)),
                    None => quote_spanned!(here=> #signature.result(#value, #declared)),
                })
            }
            SignatureType::Tuple(parts) => {
                let parts = parts.iter().enumerate().map(|(i, part)| {
                    let (index, name) = (syn::Index::from(i), name.map(|name| format!("{name}.{i}")));
                    let value = quote!(#value.#index);
                    self.checked(signature, part, name.as_deref(), value.clone()).unwrap_or(value)
                });
                Some(quote!((#(#parts,)*)))
            }
            SignatureType::TensorReference(..) | SignatureType::Rust(_) => None,
        }
    }
}

/// `__` prevents a collision with the user's constants.
pub(super) fn local(name: &Ident) -> Ident {
    format_ident!("__{}", name)
}

/// Generates an expression, with the span of the user's token, that reads the value of a configuration key.
pub(super) fn config(key: &Ident) -> TokenStream {
    quote_spanned!(key.span()=> config.#key)
}

/// Generates a doc comment if the user's item has none.
fn default_docs(attrs: &[Attribute], text: impl FnOnce() -> String) -> Option<TokenStream> {
    let documented = attrs.iter().any(|attr| attr.path().is_ident("doc"));
    (!documented).then(|| {
        let text = text();
        quote!(#[doc = #text])
    })
}
