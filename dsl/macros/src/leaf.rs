//! The built-in leaves, one line each: all that the macro knows of them.

/// A leaf as a declaration may write it.
pub struct LeafKind {
    /// The type's name in the dsl.
    pub name: &'static str,
    /// What its brackets hold.
    pub axes: Axes,
    /// What its call method takes.
    pub argument: Argument,
    /// Whether its weight may be that of another leaf, and the other way round.
    pub ties: bool,
    /// What may stand in its parentheses: the name of a builder method and what it takes.
    pub settings: &'static [(&'static str, SettingKind)],
}

pub enum Axes {
    /// `[D -> V]`
    Arrow,
    /// `[V, D]`: as many as named, for messages
    Listed(&'static [&'static str]),
    /// `[K, E]`: one or more
    Several,
    /// `[K, E]`: as many as there are
    Any,
}

pub enum Argument {
    /// A tensor of the leaf's own element type.
    Tensor,
    /// Token ids.
    Ids,
    Nothing,
}

#[derive(Clone, Copy)]
pub enum SettingKind {
    /// `bias` or `bias if key`
    Flag,
    /// `eps = key` or `eps = 1e-6`
    Number,
    /// `style = one_plus`: a variant of a type of the dsl
    Word(&'static str, &'static [(&'static str, &'static str)]),
}

use SettingKind::{Flag, Number, Word};

const STYLE: SettingKind =
    Word("WeightStyle", &[("scale", "Scale"), ("wide", "Wide"), ("one_plus", "OnePlus")]);

#[rustfmt::skip]
pub const LEAVES: &[LeafKind] = &[
    LeafKind { name: "Linear", axes: Axes::Arrow, argument: Argument::Tensor, ties: true, settings: &[("bias", Flag), ("transposed", Flag)] },
    LeafKind { name: "Embedding", axes: Axes::Listed(&["V", "D"]), argument: Argument::Ids, ties: true, settings: &[] },
    LeafKind { name: "RmsNorm", axes: Axes::Several, argument: Argument::Tensor, ties: false, settings: &[("eps", Number), ("style", STYLE)] },
    LeafKind { name: "LayerNorm", axes: Axes::Listed(&["D"]), argument: Argument::Tensor, ties: false, settings: &[("eps", Number), ("bias", Flag)] },
    LeafKind { name: "Weight", axes: Axes::Any, argument: Argument::Nothing, ties: false, settings: &[] },
];

pub fn leaf_kind(name: &syn::Ident) -> Option<&'static LeafKind> {
    LEAVES.iter().find(|kind| name == kind.name)
}

/// The element types that a signature may name besides the model's own, and their Rust types.
pub const ELEMENTS: &[(&str, &str)] =
    &[("f32", "F32"), ("f16", "F16"), ("bf16", "Bf16"), ("i32", "I32"), ("i8", "I8"), ("bool", "Bool")];

impl LeafKind {
    /// How its brackets are written.
    pub fn example(&self) -> String {
        let axes = match self.axes {
            Axes::Arrow => "D -> V".to_owned(),
            Axes::Listed(names) => names.join(", "),
            Axes::Several | Axes::Any => "D".to_owned(),
        };
        format!("{}[{axes}]", self.name)
    }

    pub fn setting(&self, name: &syn::Ident) -> Option<SettingKind> {
        self.settings.iter().find(|(known, _)| name == known).map(|(_, kind)| *kind)
    }
}
