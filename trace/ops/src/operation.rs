//! [`Operation`] is the trait of all operations, with the properties that each must declare.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use crate::{
    CostOperand, ElementType, IterationSpace, OpClass, OpWork, ParseError, Reader, TensorType, Value,
    WeightUse,
};

/// A function of its operands. Its source file contains everything about it.
pub trait Operation: Attributes + Clone + Debug + PartialEq + Eq + Hash {
    /// The largest allowed difference between IREE's result and [`Operation::eval`]: a few times the largest
    /// measured with IREE 3.13 on x86-64, on the examples and, for composite operations, results of HF
    /// transformers.
    const BOUND: Bound;

    /// A tighter bound for particular attributes.
    fn bound(&self) -> Bound {
        Self::BOUND
    }

    const CLASS: OpClass;

    /// Whether each element of the result depends only on the operands' elements at the same index.
    const IS_MAP: bool = matches!(Self::CLASS, OpClass::Elementwise);

    /// Whether the result only selects or repeats elements, and so needs no memory.
    const IS_VIEW: bool = false;

    /// Whether each element depends only on operand elements with the same index along common axes.
    const KEEPS_AXES: bool = Self::IS_MAP;

    /// Whether a compiler may write the result into the memory of an operand that has the same type.
    const IN_PLACE: bool = false;

    /// Whether the operation reads only the rows of operand 0 that its indices select.
    const PICKS_ROWS: bool = false;

    /// How the operation reads a weight that the archive can store in another layout.
    const WEIGHT_USE: Option<WeightUse> = None;

    /// Examples of valid and invalid uses of the operation, which the tests run.
    const EXAMPLES: &'static [Example];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError>;

    /// The exact definition, without regard to speed, for operands that [`Operation::infer`] accepts and the
    /// `ty` it returns. Each element is rounded to the element type, and each sum once, after the exact
    /// addition of all terms.
    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value;

    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        if Self::IS_VIEW { OpWork::FREE } else { OpWork::usual(Self::CLASS, operands, ty) }
    }

    /// Whether `bake` can compute the result in pieces, each from a bounded part of the float operands.
    fn bakes(&self) -> bool {
        false
    }

    /// One or two words for diagrams.
    fn label(&self) -> String {
        Self::NAME.replace('_', " ")
    }

    /// The loops determine how the operation can be partitioned over devices.
    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        if Self::IS_MAP || Self::CLASS == OpClass::Constant {
            IterationSpace::aligned(operands, ty)
        } else {
            IterationSpace::opaque(operands, ty)
        }
    }
}

/// An operation that StableHLO expresses with a single statement.
pub trait Primitive: Operation {
    /// The right-hand side of the StableHLO statement; earlier statements go to `statements`.
    fn spell(&self, statements: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String;
}

/// The text form. [`operation!`](crate::operation!) implements it.
pub trait Attributes: Sized {
    const NAME: &'static str;
    const DOC: &'static [&'static str];
    /// Names, each with the lines of its documentation.
    const FIELDS: &'static [(&'static str, &'static [&'static str])];
    const MODULE: &'static str;
    /// ` key=value` for each attribute.
    fn print_attributes(&self, out: &mut String);
    fn parse_attributes(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
}

/// Declares an operation's struct, documentation, name and attributes.
#[macro_export]
macro_rules! operation {
    ($(#[doc = $line:literal])* $name:ident = $text:literal { $($(#[doc = $doc:literal])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[doc = $line])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name { $($(#[doc = $doc])* pub $field: $ty),* }
        impl $crate::Attributes for $name {
            const NAME: &'static str = $text;
            const DOC: &'static [&'static str] = &[$($line),*];
            const FIELDS: &'static [(&'static str, &'static [&'static str])] =
                &[$((stringify!($field), &[$($doc),*])),*];
            const MODULE: &'static str = module_path!();
            fn print_attributes(&self, out: &mut String) {
                let _ = &out;
                $(
                    out.push_str(concat!(" ", stringify!($field), "="));
                    $crate::Attribute::print(&self.$field, out);
                )*
            }
            fn parse_attributes(reader: &mut $crate::Reader<'_>) -> Result<Self, $crate::ParseError> {
                let _ = &reader;
                $(
                    reader.expect(concat!(stringify!($field), "="))?;
                    let $field = $crate::Attribute::parse(reader)?;
                )*
                Ok(Self { $($field),* })
            }
        }
    };
}

/// An operand in a StableHLO statement: its SSA name (`%4`) and its type.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// The SSA name, such as `%4`.
    pub name: &'a str,
    pub ty: &'a TensorType,
}

/// Receives the statements that come before an operation's own.
pub trait Statements {
    /// Appends `%fresh = rhs`, and returns the new name.
    fn statement(&mut self, rhs: String) -> String;

    /// Appends `%fresh:results = rhs`, and returns `%fresh`. The results are `%fresh#0`, `%fresh#1`, ….
    fn group(&mut self, rhs: String, results: usize) -> String;
}

/// The largest allowed difference from the evaluator's result. Integers and booleans must be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The bits of the two results must be equal, except that any NaN equals any other NaN.
    Exact,
    /// Each element may differ by this number of units in the last place of the expected element.
    Ulps(f64),
    /// Units in the last place of the largest element: for sums, whose small results can be differences.
    UlpsOfLargest(f64),
}

impl Bound {
    pub fn allowances(self, expected: &Value) -> impl Iterator<Item = f64> + '_ {
        let element = expected.ty.element;
        let largest = expected.data.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
        expected.data.iter().map(move |&e| match self {
            _ if !element.is_float() => 0.0,
            Self::Exact => 0.0,
            Self::Ulps(n) => n * element.ulp(e),
            Self::UlpsOfLargest(n) => n * element.ulp(largest),
        })
    }

    /// Returns the first element of `found` whose difference is too large, as (index, expected, found).
    pub fn first_violation(self, expected: &Value, found: &Value) -> Option<(usize, f64, f64)> {
        let bits = self == Self::Exact && expected.ty.element.is_float();
        let within = |e: f64, f: f64, allowed: f64| {
            if e.is_nan() || f.is_nan() || e.is_infinite() || f.is_infinite() {
                return e.is_nan() && f.is_nan() || e == f;
            }
            if bits { e.to_bits() == f.to_bits() } else { (e - f).abs() <= allowed }
        };
        let pairs = expected.data.iter().zip(&found.data).zip(self.allowances(expected)).enumerate();
        pairs
            .map(|(i, ((&e, &f), allowed))| (i, e, f, allowed))
            .find_map(|(i, e, f, allowed)| (!within(e, f, allowed)).then_some((i, e, f)))
    }
}

/// A use in the text form of traces. `op` has the name and the attributes. An operand is a type, optionally
/// with elements (otherwise generated), such as `i32[2] 3,1`. `result` is an error, a type, or a type with
/// the elements that NumPy computes.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// The name and the attributes of the operation: `narrow axis=1 start=2 length=4`.
    pub op: &'static str,
    /// Such as `f32[4,8]`.
    pub operands: &'static [&'static str],
    /// The result, or a substring of the error.
    pub result: Result<&'static str, &'static str>,
}

pub const fn good(op: &'static str, operands: &'static [&'static str], result: &'static str) -> Example {
    Example { op, operands, result: Ok(result) }
}

pub const fn bad(op: &'static str, operands: &'static [&'static str], error: &'static str) -> Example {
    Example { op, operands, result: Err(error) }
}

/// The reason why an operation rejects its operands or attributes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferError {
    #[error("`{op}` takes {expected} operands, found {found}")]
    Arity {
        op: &'static str,
        /// The accepted numbers, in words.
        expected: String,
        found: usize,
    },
    #[error("`{op}` needs elements of type {expected}, found `{found}`")]
    Element { op: &'static str, expected: &'static str, found: TensorType },
    /// The types of two operands must agree, but differ.
    #[error("`{op}`: {what}, found `{left}` and `{right}`")]
    Mismatch { op: &'static str, what: &'static str, left: TensorType, right: TensorType },
    #[error("`{op}`: the axis {axis} does not exist in `{ty}`, which has {} axes", .ty.rank())]
    Axis { op: &'static str, axis: usize, ty: TensorType },
    #[error("`{op}`: {what} is {found}, expected {expected}")]
    Attribute { op: &'static str, what: &'static str, found: String, expected: String },
}

pub fn arity<'a, T, const N: usize>(op: &'static str, operands: &[&'a T]) -> Result<[&'a T; N], InferError> {
    const WORDS: [&str; 6] = ["no", "1", "2", "3", "4", "5"];
    operands.try_into().map_err(|_| InferError::Arity {
        op,
        expected: WORDS[N].into(),
        found: operands.len(),
    })
}

/// Returns an error unless `accept` returns true for the element type of `ty`.
pub fn element(
    op: &'static str,
    ty: &TensorType,
    expected: &'static str,
    accept: fn(ElementType) -> bool,
) -> Result<(), InferError> {
    if accept(ty.element) { Ok(()) } else { Err(InferError::Element { op, expected, found: ty.clone() }) }
}

pub fn axis(op: &'static str, axis: usize, ty: &TensorType) -> Result<usize, InferError> {
    match ty.shape.get(axis) {
        Some(&extent) => Ok(extent),
        None => Err(InferError::Axis { op, axis, ty: ty.clone() }),
    }
}

/// Returns an error unless two types agree in the property `what`.
pub fn agree(
    op: &'static str,
    what: &'static str,
    left: &TensorType,
    right: &TensorType,
    agree: bool,
) -> Result<(), InferError> {
    if agree {
        Ok(())
    } else {
        Err(InferError::Mismatch { op, what, left: left.clone(), right: right.clone() })
    }
}

/// Pass `format_args!` as `expected`, which is formatted only if the check fails.
pub fn attribute(
    op: &'static str,
    what: &'static str,
    found: impl Debug,
    expected: impl Display,
    holds: bool,
) -> Result<(), InferError> {
    if holds {
        Ok(())
    } else {
        Err(InferError::Attribute { op, what, found: format!("{found:?}"), expected: expected.to_string() })
    }
}

/// Formats a list in MLIR syntax, for example `[0, 2, 1]`.
pub fn mlir_list(values: &[usize]) -> String {
    format!("{values:?}")
}
