//! The table of built-in leaves, such as `Linear`, with one line for each leaf. The macro `model!`
//! takes all information about built-in leaves from this file.

/// The syntax of a built-in leaf.
pub struct LeafKind {
    /// The name of the leaf's type in the dsl crate.
    pub name: &'static str,
    /// The axes in the brackets after the leaf's name.
    pub axes: Axes,
    /// The argument of the method that applies the leaf.
    pub argument: Argument,
    /// Whether the leaf may be `tied`, and another to it.
    pub ties: bool,
    /// In parentheses after the axes: the builder's method, and its argument.
    pub settings: &'static [(&'static str, SettingKind)],
}

pub enum Axes {
    /// The leaf has input axes and output axes, as in `[D -> V]`.
    Arrow,
    /// One axis for each name, as in `[V, D]`; the names are for errors.
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
    /// A variant of an enum of the dsl crate, as in `style = one_plus`.
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

/// Beside the model's: names in signatures and in Rust.
pub const ELEMENTS: &[(&str, &str)] =
    &[("f32", "F32"), ("f16", "F16"), ("bf16", "Bf16"), ("i32", "I32"), ("i8", "I8"), ("bool", "Bool")];

impl LeafKind {
    /// An example of a leaf with its brackets, for error messages.
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
