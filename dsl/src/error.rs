//! What can be wrong with a declaration or a forward body.

use std::fmt;

use ops::{ElementType, InferError};
use trace::Provenance;

use crate::{Axis, Dim};

/// A configuration from which the model cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A quotient that `dims` declares as exact has a remainder.
    #[error(
        "`{dividend}` ({dividend_value}) is not a multiple of `{divisor}` ({divisor_value}); \
         correct one of the two in the configuration"
    )]
    Indivisible {
        /// The key (or expression) that is divided.
        dividend: String,
        /// Its value.
        dividend_value: usize,
        /// The key (or expression) that divides.
        divisor: String,
        /// Its value.
        divisor_value: usize,
    },
    /// An extent of 0.
    #[error("`{key}` is 0; the axis `{axis}` needs at least 1")]
    Empty {
        /// The key (or expression).
        key: String,
        /// The axis.
        axis: String,
    },
    /// Something else that the model's own code refuses.
    #[error("`{key}` is {found}, expected {expected}")]
    Key {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
}

/// The first thing that went wrong while a trace was recorded, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind}{}", place(.provenance))]
pub struct TraceError {
    /// What.
    pub kind: Box<TraceErrorKind>,
    /// The field path, and the line of Rust.
    pub provenance: Provenance,
}

impl From<BuildError> for TraceError {
    fn from(error: BuildError) -> Self {
        Self { kind: Box::new(error.into()), provenance: Provenance::new("", "", 0) }
    }
}

/// An element type and named extents, as messages show it: `bf16[B=1, S=3, D=8]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedType {
    /// The element type.
    pub element: ElementType,
    /// The axes in their order.
    pub dims: Vec<Dim>,
}

impl NamedType {
    /// The place of an axis.
    pub fn position(&self, axis: Axis) -> Option<usize> {
        self.dims.iter().position(|d| d.axis == axis)
    }
}

impl fmt::Display for NamedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        for (i, dim) in self.dims.iter().enumerate() {
            write!(f, "{}{}={}", if i == 0 { "" } else { ", " }, dim.axis, dim.extent)?;
        }
        f.write_str("]")
    }
}

/// What can go wrong in a forward body.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceErrorKind {
    /// An operation refuses its operands.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// A tensor lacks an axis.
    #[error("`{op}`: `{ty}` has no axis `{axis}`")]
    NoAxis {
        /// The operation.
        op: &'static str,
        /// The axis asked for.
        axis: Axis,
        /// The tensor's type.
        ty: NamedType,
    },
    /// One axis has two extents.
    #[error("`{op}`: axis `{axis}` has two extents: `{left}` against `{right}`")]
    Extents {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: Axis,
        /// One tensor's type.
        left: NamedType,
        /// The other's.
        right: NamedType,
    },
    /// The same, where one of the two had another name for it.
    #[error("{kind}; `{from}` was renamed to `{axis}` at {}:{}", .at.file, .at.line)]
    Renamed {
        /// What is wrong.
        kind: Box<TraceErrorKind>,
        /// The name before.
        from: String,
        /// The axis.
        axis: Axis,
        /// Where the name was given.
        at: Provenance,
    },
    /// Two tensors of which neither has all axes of the other.
    #[error("`{op}`: neither of `{left}` and `{right}` has all axes of the other")]
    Axes {
        /// The operation.
        op: &'static str,
        /// One tensor's type.
        left: NamedType,
        /// The other's.
        right: NamedType,
    },
    /// An activation that lacks an axis and would be repeated along it.
    #[error(
        "`{op}`: `{small}` lacks the axis `{axis}` of `{large}`{}; an activation is repeated only where that is \
         asked for: `.broadcast(other)`",
        .lost.as_ref().map_or_else(String::new, |at| format!(", which it lost at {}:{}", at.file, at.line))
    )]
    Repeats {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: Axis,
        /// The type of the tensor that lacks it.
        small: NamedType,
        /// The other's.
        large: NamedType,
        /// Where it went, if it was there.
        lost: Option<Box<Provenance>>,
    },
    /// A name that would occur twice in one tensor.
    #[error("`{op}`: axis `{axis}` would occur twice, in `{ty}`; use `.rename({axis}, …)` on one of them")]
    Repeated {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: Axis,
        /// The tensor that has it already.
        ty: NamedType,
    },
    /// The axes given do not name each axis of the tensor once.
    #[error("`{op}`: `{ty}` cannot have its axes ordered as {}", list(.axes))]
    Order {
        /// The operation.
        op: &'static str,
        /// The tensor's type.
        ty: NamedType,
        /// The axes given.
        axes: Vec<Axis>,
    },
    /// Pieces or factors that do not make up an axis.
    #[error("`{op}`: axis `{axis}` of `{ty}`: {found}, expected {expected}")]
    Extent {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: Axis,
        /// The tensor's type.
        ty: NamedType,
        /// What was asked for.
        found: String,
        /// What fits.
        expected: String,
    },
    /// A table of positions that ends before the context does.
    #[error(
        "the table of positions has {} rows (axis `{}`), and the context {context} positions; \
         a context of at most {} fits",
        .rows.extent, .rows.axis, .rows.extent
    )]
    Positions {
        /// The axis that counts the table's rows.
        rows: Dim,
        /// How many positions there may be.
        context: usize,
    },
    /// An argument or a result that is not as the signature declares it.
    #[error("`{function}`: {what} is `{found}`, declared as {declared}")]
    Signature {
        /// Block and function.
        function: String,
        /// `argument x` or `the result`.
        what: String,
        /// The declared axes.
        declared: String,
        /// The tensor's type.
        found: NamedType,
    },
    /// A handle used where it means nothing.
    #[error(
        "a tensor of another trace or another block's body is used here; pass it as an argument of `forward`"
    )]
    Stranger,
    /// A tensor used when no trace is open.
    #[error("a tensor is used outside of `trace`")]
    Closed,
    /// A `trace` inside a `trace`.
    #[error("`trace` is called while another trace is open on this thread")]
    Nested,
    /// Two elements of a repeated block that record different things.
    #[error(
        "`{block}` at `{prefix}` records something else than the elements before it, although its arguments have \
         the same types and data; whatever differs must be an argument of `forward`"
    )]
    Unequal {
        /// Block and function.
        block: String,
        /// The element's path.
        prefix: String,
    },
    /// An argument of an entry point that the recorded closure uses itself.
    #[error(
        "an argument of the entry point is used before a declared function takes it, so its axes are not known; call \
         the function first, or record with `entry_with`"
    )]
    Unnamed,
    /// An axis of an entry point's argument that has no extent, or two.
    #[error("`{function}`: argument `{argument}` has the axis `{axis}`, {}", size(.axis, .known, .sized))]
    Size {
        /// Block and function.
        function: String,
        /// The argument.
        argument: String,
        /// The axis.
        axis: Axis,
        /// Its extent elsewhere.
        known: Option<usize>,
        /// What the recording says.
        sized: Option<usize>,
    },
    /// A size of a recording that no argument has.
    #[error("the entry point `{name}` is recorded with a size for the axis `{axis}`, which no argument has")]
    UnusedSize {
        /// The entry point.
        name: String,
        /// The axis.
        axis: Axis,
    },
    /// Two entry points of one name.
    #[error("the entry point `{name}` is recorded twice")]
    EntryTwice {
        /// The name.
        name: String,
    },
    /// A state that no layer declares under this name.
    #[error(
        "layer {layer} has no state of the kind `{kind}`{}; `cache` declares a layer's state",
        .name.map_or_else(|| " without a name".to_owned(), |name| format!(" with the name `{name}`"))
    )]
    NoState {
        /// The kind asked for.
        kind: &'static str,
        /// The layer.
        layer: usize,
        /// The name asked for.
        name: Option<&'static str>,
    },
    /// A name that a tensor of state cannot have.
    #[error(
        "the name of a state is `{name}`, expected at most 32 letters, digits and `_`, the last no digit"
    )]
    StateName {
        /// The name.
        name: String,
    },
    /// Two states of one name in a layer.
    #[error(
        "layer {layer} declares `{name}` twice; give one of the states another name, as in `cache {{ L of other: Recurrent[C, D] }}`"
    )]
    StateTwice {
        /// The tensor of both.
        name: String,
        /// The layer.
        layer: usize,
    },
    /// An entry point of what a network has no function for.
    #[error("the entry point `{name}` needs the function `{function}`, which the root block does not have")]
    NoFunction {
        /// The entry point.
        name: String,
        /// The function.
        function: &'static str,
    },
    /// Memory that an encoder leaves empty.
    #[error("the memory `{name}` is not filled; call `fill` on it in `encode`")]
    Unfilled {
        /// The memory.
        name: String,
    },
    /// Memory that is filled where it is read.
    #[error("the memory `{name}` is filled by an entry point that reads it; only `encode` fills memory")]
    Filled {
        /// The memory.
        name: String,
    },
    /// The configuration is refused.
    #[error(transparent)]
    Build(#[from] BuildError),
}

fn size(axis: &Axis, known: &Option<usize>, sized: &Option<usize>) -> String {
    match (known, sized) {
        (Some(known), Some(sized)) => format!("which is {known}, but {sized} in the sizes of the recording"),
        _ => {
            format!("whose extent neither `dims` nor the recording gives; add `(\"{axis}\", …)` to its sizes")
        }
    }
}

/// The line that says where: nothing of what is not known.
fn place(Provenance { path, file, line }: &Provenance) -> String {
    match (path.is_empty(), file.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!("\n  in `{path}`"),
        (true, false) => format!("\n  at {file}:{line}"),
        (false, false) => format!("\n  in `{path}` at {file}:{line}"),
    }
}

fn list(axes: &[Axis]) -> String {
    format!("[{}]", axes.iter().map(|a| a.0).collect::<Vec<_>>().join(", "))
}
