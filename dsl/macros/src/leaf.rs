//! The table of built-in leaves, with one line for each leaf. The macro has no other information about the
//! leaves.

/// The syntax of a built-in leaf.
pub struct LeafKind {
    /// The name of the leaf's type in the dsl.
    pub name: &'static str,
    /// The axes in its brackets.
    pub axes: Axes,
    /// The argument of its call method.
    pub argument: Argument,
    /// Whether the weight may be tied to the weight of another leaf, in either direction.
    pub ties: bool,
    /// The settings in its parentheses: the name of a builder method, and the kind of its argument.
    pub settings: &'static [(&'static str, SettingKind)],
}

pub enum Axes {
    /// The leaf has inputs and outputs, as in `[D -> V]`.
    Arrow,
    /// The leaf has exactly these axes, as in `[V, D]`. The names of the axes appear in error messages.
    Listed(&'static [&'static str]),
    /// The leaf has one or more axes, as in `[K, E]`.
    Several,
    /// The leaf has any number of axes, including none.
    Any,
}

pub enum Argument {
    /// The argument is a tensor of the leaf's element type.
    Tensor,
    /// The argument is a tensor of token ids.
    Ids,
    Nothing,
}

#[derive(Clone, Copy)]
pub enum SettingKind {
    /// A flag with an optional condition: `bias`, `bias if key` or `bias = false`.
    Flag,
    /// A number, which is a configuration key or a literal: `eps = key` or `eps = 1e-6`.
    Number,
    /// A variant of an enum in the dsl, as in `style = one_plus`.
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

/// The element types that a signature may name in addition to the model's own type, and their Rust types.
pub const ELEMENTS: &[(&str, &str)] =
    &[("f32", "F32"), ("f16", "F16"), ("bf16", "Bf16"), ("i32", "I32"), ("i8", "I8"), ("bool", "Bool")];

impl LeafKind {
    /// An example of the brackets of a leaf, for messages.
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
