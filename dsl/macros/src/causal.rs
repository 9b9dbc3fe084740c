//! Generates `impl CausalLm` for a root block that declares a `cache`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Ident;

use super::ast::*;
use super::generate::Generator;

impl Generator<'_> {
    pub(super) fn causal(&self, cache: &Cache) -> TokenStream {
        let Self { model, dsl } = self;
        let root = model.root();
        let (name, config, element) = (&root.name, &root.config, self.element());
        let (generics, arguments, bounds) = root.generics.split_for_impl();
        let states = self.states(cache);
        let (forward, logits) = (self.named(root, "forward"), self.named(root, "logits"));
        let forward = quote_spanned!(forward.span()=> <#name #arguments>::#forward(self, tokens, at, cache));
        let logits = quote_spanned!(logits.span()=> <#name #arguments>::#logits(self, features));
        let optional = self.optional(root);
        let shards = self.shards();
        quote! {
            impl #generics #dsl::CausalLm for #name #arguments #bounds {
                type Element = #element;
                type Config = #config;
                const SHARDS: #dsl::DeclaredShards = #shards;

                fn new(config: &#config) -> ::core::result::Result<Self, #dsl::BuildError> {
                    <#name #arguments>::new(config)
                }

                fn state(&self) -> ::std::vec::Vec<(usize, #dsl::LayerState)> {
                    let mut state = ::std::vec::Vec::new();
                    #(#states)*
                    #dsl::__private::by_layer(state)
                }

                fn forward(
                    &self,
                    tokens: #dsl::Tensor<#dsl::I32>,
                    at: #dsl::Position,
                    cache: &mut #dsl::Cache<#element>,
                ) -> #dsl::Tensor<#element> {
                    #forward
                }

                fn logits(&self, features: #dsl::Tensor<#element>) -> #dsl::Tensor<#dsl::F32> {
                    #logits
                }

                #(#optional)*
            }
        }
    }

    /// Such as `encode`: tokens or features, a `Position` or a count, and the cache.
    fn optional(&self, root: &Block) -> Vec<TokenStream> {
        let (dsl, name, element) = (&self.dsl, &root.name, self.element());
        let (_, arguments, _) = root.generics.split_for_impl();
        let features = quote!(#dsl::Tensor<#element>);
        // Whatever the network computes in, the encoder sees its input unrounded.
        let exact = quote!(#dsl::Tensor<#dsl::F32>);
        let number = quote!(#dsl::Tensor<#dsl::I32>);
        let place = quote!(#dsl::Position);
        let optional = [
            ("forward_features", Some("features"), &features, &place, quote!(-> #features)),
            ("encode", None, &number, &number, quote!()),
            ("encode_features", Some("encoder_features"), &exact, &number, quote!()),
        ];
        let written = optional.into_iter().filter_map(|(known, width, input, at, output)| {
            let function = root.function(known)?;
            let (named, method) = (&function.name, Ident::new(known, Span::call_site()));
            let call = quote_spanned!(named.span()=> <#name #arguments>::#named(self, input, at, cache));
            let width = width.zip(last_axis(function, 0)).map(|(width, axis)| {
                let width = Ident::new(width, Span::call_site());
                quote! {
                    fn #width(&self) -> ::core::option::Option<#dsl::Dim> {
                        ::core::option::Option::Some(self.dims.dim(#dsl::Axis(#axis)))
                    }
                }
            });
            Some(quote! {
                fn #method(&self, input: #input, at: #at, cache: &mut #dsl::Cache<#element>) #output {
                    #call
                }
                #width
            })
        });
        written.chain(self.draft(root)).collect()
    }

    fn draft(&self, root: &Block) -> Option<TokenStream> {
        let (dsl, name, element) = (&self.dsl, &root.name, self.element());
        let (_, arguments, _) = root.generics.split_for_impl();
        let function = root.function("draft")?;
        let named = &function.name;
        let call = quote_spanned!(named.span()=> <#name #arguments>::#named(self, tokens, hidden, at, cache));
        let axis = last_axis(function, 1)?;
        Some(quote! {
            fn draft(
                &self,
                tokens: #dsl::Tensor<#dsl::I32>,
                hidden: #dsl::Tensor<#element>,
                at: #dsl::Position,
                cache: &mut #dsl::Cache<#element>,
            ) -> #dsl::Tensor<#element> {
                #call
            }

            fn hidden(&self) -> ::core::option::Option<#dsl::Dim> {
                ::core::option::Option::Some(self.dims.dim(#dsl::Axis(#axis)))
            }
        })
    }

    fn states(&self, cache: &Cache) -> Vec<TokenStream> {
        let (dsl, element) = (&self.dsl, self.element());
        let extent = |axis: &Ident| {
            let axis = axis.to_string();
            quote!(self.dims.extent(#dsl::Axis(#axis)))
        };
        let dim = |axis: &StateAxis| {
            let (name, extent) = (axis.name.to_string(), extent(axis.extent.as_ref().unwrap_or(&axis.name)));
            quote!(#dsl::Axis(#name).of(#extent))
        };
        let states = cache.states.iter().map(|state| {
            let (layers, axes) = (extent(&state.layers), state.axes.iter().map(dim));
            let (here, kind) = (state.kind.span(), &state.kind);
            let own = state.element.as_ref().map_or_else(|| quote!(#element), |own| quote!(#own));
            let dsl = self.dsl_at(here);
            let kind = quote_spanned!(here=> #dsl::nn::states::#kind<#own>);
            let what = match &state.window {
                None => quote_spanned!(here=> #dsl::LayerState::new::<#kind, _>([#(#axes),*])),
                Some(window) => {
                    let window = quote_spanned!(window.span()=> self.config.#window(_layer));
                    quote_spanned!(here=> #dsl::LayerState::windowed::<#kind, _>([#(#axes),*], #window))
                }
            };
            let name = state.name.iter().map(Ident::to_string);
            let draft = state.is_draft.then(|| quote!(.for_draft()));
            let what = quote!(#what #(.named(#name))* #draft);
            let push = quote!(state.push((_layer, #what)););
            let push = match &state.condition {
                None => push,
                Some(condition) => {
                    let has = quote_spanned!(condition.span()=> self.config.#condition(_layer));
                    quote!(if #has { #push })
                }
            };
            quote!(for _layer in 0..#layers { #push })
        });
        states.collect()
    }
}

fn last_axis(function: &Function, argument: usize) -> Option<String> {
    match function.arguments.get(argument).map(|argument| &argument.ty) {
        Some(SignatureType::Tensor(tensor)) => tensor.axes.last().map(Ident::to_string),
        _ => None,
    }
}
