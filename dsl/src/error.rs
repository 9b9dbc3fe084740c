//! Errors in configurations and in the recording of traces.

use std::fmt;

use ops::{ElementType, InferError};
use trace::Provenance;

use crate::{Axis, Dim};

/// The reason why a model cannot be built from a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// `dims` declares an exact quotient, but the division has a remainder.
    #[error(
        "`{dividend}` ({dividend_value}) is not a multiple of `{divisor}` ({divisor_value}); correct one of \
        these keys in the configuration"
    )]
    Indivisible {
        /// The configuration key or the expression that sets the dividend.
        dividend: String,
        /// The value of the dividend.
        dividend_value: usize,
        /// The configuration key or the expression that sets the divisor.
        divisor: String,
        /// The value of the divisor.
        divisor_value: usize,
    },
    /// The extent of an axis is 0.
    #[error("`{key}` is 0, but the axis `{axis}` needs an extent of at least 1")]
    Empty {
        /// The configuration key or the expression that sets the extent of the axis.
        key: String,
        /// The name of the axis.
        axis: String,
    },
    /// The Rust code of the model rejects a value of the configuration.
    #[error("`{key}` is {found}, expected {expected}")]
    Key {
        /// The configuration key whose value is rejected.
        key: String,
        /// The rejected value of the configuration key.
        found: String,
        /// The values that the model accepts for the configuration key.
        expected: String,
    },
}

/// The first error in the recording of a trace, with the line of Rust code that caused the error.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind}{}", place(.provenance))]
pub struct TraceError {
    /// The kind of error, which contains the details.
    pub kind: Box<TraceErrorKind>,
    /// The field path of the block, and the line of Rust code that caused the error.
    pub provenance: Provenance,
}

impl From<BuildError> for TraceError {
    fn from(error: BuildError) -> Self {
        Self { kind: Box::new(error.into()), provenance: Provenance::new("", "", 0) }
    }
}

/// The type of a tensor. The type consists of the element type and the named axes with their
/// extents. An error message shows the type as `bf16[B=1, S=3, D=8]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedType {
    /// The type of the tensor's elements.
    pub element: ElementType,
    /// The axes of the tensor with their extents, from the first axis to the last axis.
    pub dims: Vec<Dim>,
}

impl NamedType {
    /// The index of `axis` in `dims`, or `None` if the tensor lacks this axis.
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

/// The kinds of errors in the recording of a trace.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TraceErrorKind {
    /// An operation rejects the types of its operands.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// A tensor lacks an axis that the operation names.
    #[error("`{op}`: `{ty}` has no axis `{axis}`")]
    NoAxis {
        /// Name of the operation that failed.
        op: &'static str,
        /// The axis that the operation names.
        axis: Axis,
        /// The type of the tensor that lacks the axis.
        ty: NamedType,
    },
    /// Two tensors have different extents for one axis.
    #[error("`{op}`: the axis `{axis}` has different extents in `{left}` and `{right}`")]
    Extents {
        /// Name of the operation that failed.
        op: &'static str,
        /// The axis that has different extents in the two tensors.
        axis: Axis,
        /// The type of one of the two tensors with different extents.
        left: NamedType,
        /// The type of the other tensor, which has a different extent.
        right: NamedType,
    },
    /// An error about an axis whose name the Rust code changed with `rename`.
    #[error("{kind}; `{from}` was renamed to `{axis}` at {}:{}", .at.file, .at.line)]
    Renamed {
        /// The error about the renamed axis.
        kind: Box<TraceErrorKind>,
        /// The name of the axis before the call of `rename`.
        from: String,
        /// The name of the axis after the call of `rename`.
        axis: Axis,
        /// The line of Rust code that calls `rename`.
        at: Provenance,
    },
    /// Each of two tensors has an axis that the other tensor lacks.
    #[error("`{op}`: `{left}` and `{right}` each lack an axis that the other tensor has")]
    Axes {
        /// Name of the operation that failed.
        op: &'static str,
        /// The type of one of the two operands.
        left: NamedType,
        /// The type of the other operand.
        right: NamedType,
    },
    /// Only `.broadcast` may repeat an activation along a missing axis.
    #[error(
        "`{op}`: `{small}` lacks the axis `{axis}` of `{large}`{}; call `.broadcast(other)` to repeat an \
        activation along an axis",
        .lost.as_ref().map_or_else(String::new, |at| format!(", which it lost at {}:{}", at.file, at.line))
    )]
    Repeats {
        /// Name of the operation that failed.
        op: &'static str,
        /// The axis that the activation lacks.
        axis: Axis,
        /// The type of the activation.
        small: NamedType,
        /// The type of the other operand, which has the axis.
        large: NamedType,
        /// Removed the axis that the activation lacks, if it had it.
        lost: Option<Box<Provenance>>,
    },
    /// A tensor would have two axes with the same name.
    #[error(
        "`{op}`: the result would have the axis `{axis}` of `{ty}` twice; call `.rename({axis}, …)` on \
        one of the operands"
    )]
    Repeated {
        /// Name of the operation that failed.
        op: &'static str,
        /// The axis that would occur twice.
        axis: Axis,
        /// The type of the tensor, which already has the axis.
        ty: NamedType,
    },
    /// A list of axes does not name each axis of the tensor exactly once.
    #[error("`{op}`: the axes of `{ty}` cannot be reordered to {}", list(.axes))]
    Order {
        /// Name of the operation that failed.
        op: &'static str,
        /// The type of the tensor that the operation received.
        ty: NamedType,
        /// The axes in the order that the Rust code requested.
        axes: Vec<Axis>,
    },
    /// The lengths or factors of a split do not match the extent of the axis.
    #[error("`{op}`: axis `{axis}` of `{ty}`: {found}, expected {expected}")]
    Extent {
        /// Name of the operation that failed.
        op: &'static str,
        /// The axis that the operation splits.
        axis: Axis,
        /// The type of the tensor that the operation splits.
        ty: NamedType,
        /// The lengths or factors that the Rust code requested for the split.
        found: String,
        /// The lengths or factors that the extent of the axis allows for a split.
        expected: String,
    },
    /// A table of position embeddings has fewer rows than the context has positions.
    #[error(
        "the table of position embeddings has {} rows (axis `{}`), but the context has {context} positions; \
        choose a context of at most {} positions",
        .rows.extent, .rows.axis, .rows.extent
    )]
    Positions {
        /// The axis along which the table has a row for each position.
        rows: Dim,
        /// The number of positions in the context.
        context: usize,
    },
    /// The axes of an argument or a result differ from the axes in the signature.
    #[error("`{function}`: {what} is `{found}`, but the signature declares {declared}")]
    Signature {
        /// The names of the block and the function whose signature declares the axes.
        function: String,
        /// The tensor with different axes: either `argument x` or `the result`.
        what: String,
        /// The axes that the function's signature declares.
        declared: String,
        /// The type of the argument or the result.
        found: NamedType,
    },
    /// The Rust code uses a tensor handle outside the trace or the block body that created the handle.
    #[error(
        "this code uses a tensor of another trace or of another block's body; pass the tensor as an argument \
        of `forward`"
    )]
    Stranger,
    /// The Rust code uses a tensor handle while no `trace` is open.
    #[error("this code uses a tensor outside of the closure that `trace` calls")]
    Closed,
    /// The Rust code calls `trace` while another `trace` is open.
    #[error("this code calls `trace` while the same thread records another trace")]
    Nested,
    /// Two elements of a block array record different operations.
    #[error(
        "`{block}` at `{prefix}` records other operations than the previous blocks of the list, although \
        its arguments have the same types; pass each value that differs as an argument of `forward`"
    )]
    Unequal {
        /// The names of the block and the function whose operations differ.
        block: String,
        /// The field path of the array element whose operations differ.
        prefix: String,
    },
    /// Before it goes to a declared function, an argument is used.
    #[error(
        "the axes of this argument are unknown until a declared function receives the argument; call a declared \
        function first, or record the entry point with `entry_with`"
    )]
    Unnamed,
    /// An axis of an entry point's argument has no extent or two different extents.
    #[error("`{function}`: argument `{argument}` has the axis `{axis}`, {}", size(.axis, .known, .sized))]
    Size {
        /// The names of the block and the function that takes the argument.
        function: String,
        /// Name of the argument that has the axis.
        argument: String,
        /// The axis that has no extent or two different extents.
        axis: Axis,
        /// The extent that another argument or `dims` sets for the axis.
        known: Option<usize>,
        /// The extent that the recording of the entry point sets for the axis.
        sized: Option<usize>,
    },
    /// The recording of an entry point sets the size of an axis, but no argument has this axis.
    #[error(
        "the recording of the entry point `{name}` sets a size for the axis `{axis}`, but no argument \
        has this axis"
    )]
    UnusedSize {
        /// Name of the entry point.
        name: String,
        /// The axis that no argument has.
        axis: Axis,
    },
    /// Two entry points have the same name.
    #[error("two entry points have the name `{name}`")]
    EntryTwice {
        /// The name that the two entry points share.
        name: String,
    },
    /// A layer has no state with the requested kind and name.
    #[error(
        "layer {layer} has no state of the kind `{kind}`{}; declare the state in `cache`",
        .name.map_or_else(|| " without a name".to_owned(), |name| format!(" with the name `{name}`"))
    )]
    NoState {
        /// The kind of state that was requested.
        kind: &'static str,
        /// The index of the layer, from 0.
        layer: usize,
        /// The name of the state that was requested.
        name: Option<&'static str>,
    },
    /// The name of a state is not allowed.
    #[error(
        "the name of a state is `{name}`, expected at most 32 letters, digits or `_`, without a digit at \
        the end"
    )]
    StateName {
        /// The invalid name of the state.
        name: String,
    },
    /// A layer declares two states with the same name.
    #[error(
        "layer {layer} declares two states with the name `{name}`; give one of the states another name, as in `cache {{ L of other: Recurrent[C, D] }}`"
    )]
    StateTwice {
        /// The name of the tensor that the two states would share.
        name: String,
        /// The index of the layer, from 0.
        layer: usize,
    },
    /// An entry point needs a function that the network does not declare.
    #[error(
        "the entry point `{name}` calls the function `{function}`, which the root block does not declare"
    )]
    NoFunction {
        /// Name of the entry point.
        name: String,
        /// Name of the missing function.
        function: &'static str,
    },
    /// The function `encode` does not fill a state that the decoder layers read.
    #[error("`encode` does not fill the encoder output `{name}`; call `fill` on this output in `encode`")]
    Unfilled {
        /// The name of the state's tensor.
        name: String,
    },
    /// An entry point other than `encode` fills a state of an encoder.
    #[error("an entry point reads and fills the encoder output `{name}`; fill this output only in `encode`")]
    Filled {
        /// The name of the state's tensor.
        name: String,
    },
    /// The model rejects its configuration.
    #[error(transparent)]
    Build(#[from] BuildError),
}

fn size(axis: &Axis, known: &Option<usize>, sized: &Option<usize>) -> String {
    match (known, sized) {
        (Some(known), Some(sized)) => {
            format!("whose extent is {known}, but the recording sets the size {sized}")
        }
        _ => {
            format!(
                "whose extent neither `dims` nor the recording sets; add `(\"{axis}\", …)` to the sizes of the recording"
            )
        }
    }
}

/// Without the field path or the file, if unknown.
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
