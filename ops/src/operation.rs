//! [`Operation`] lists the facts that each operation of the list must declare.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use crate::{
    CostOperand, ElementType, IterationSpace, OpClass, OpWork, ParseError, Reader, TensorType, Value,
    WeightUse,
};

/// An operation is a function of its operands. The operation's source file contains everything about the
/// operation.
pub trait Operation: Attributes + Clone + Debug + PartialEq + Eq + Hash {
    /// The largest allowed difference between IREE's result and the result of [`Operation::eval`]. The bound
    /// is a few times the largest measured difference (IREE 3.13, x86-64) on the examples and, for
    /// composites, on the results of transformers.
    const BOUND: Bound;

    /// [`Operation::BOUND`], or a tighter bound for particular attributes.
    fn bound(&self) -> Bound {
        Self::BOUND
    }

    const CLASS: OpClass;

    /// Whether each element of the result depends only on the operands' elements at the same index.
    const IS_MAP: bool = matches!(Self::CLASS, OpClass::Elementwise);

    /// Whether the result is a part of the operand, or repeats the operand. The compiler
    /// never stores such a result separately.
    const IS_VIEW: bool = false;

    /// Whether each element of the result depends only on elements with the same index along the axes that
    /// operand and result share.
    const KEEPS_AXES: bool = Self::IS_MAP;

    /// Whether a compiler may write the result into the memory of an operand of the same type.
    const IN_PLACE: bool = false;

    /// Whether the operation reads only the rows of operand 0 that its indices select.
    const PICKS_ROWS: bool = false;

    /// How the operation reads a weight that can be stored in another layout; `None` if the operation reads
    /// no such weight.
    const WEIGHT_USE: Option<WeightUse> = None;

    /// Valid and invalid uses of the operation, which tests run.
    const EXAMPLES: &'static [Example];

    /// The type of the operation's result.
    ///
    /// # Errors
    /// Returns an error if the operands' types or the attributes are invalid.
    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError>;

    /// Evaluates the operation slowly, exactly as it is defined. The operands have types that
    /// [`Operation::infer`] accepts, and `ty` is the result of `infer`. Elements are rounded to the element
    /// type. Sums are exactly rounded.
    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value;

    /// The number of bytes and arithmetic operations of the operation, for a cost model.
    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        match Self::IS_VIEW {
            true => OpWork::FREE,
            false => OpWork::usual(Self::CLASS, operands, ty),
        }
    }

    /// Whether `bake` can compute any piece of the result from bounded pieces of float operands.
    fn bakes(&self) -> bool {
        false
    }

    /// A short label for diagrams, in a word or two.
    fn label(&self) -> String {
        Self::NAME.replace('_', " ")
    }

    /// The loops of the operation. The loops determine how the operation can be partitioned over devices.
    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        match Self::IS_MAP || Self::CLASS == OpClass::Constant {
            true => IterationSpace::aligned(operands, ty),
            false => IterationSpace::opaque(operands, ty),
        }
    }
}

/// An operation that is one StableHLO statement.
pub trait Primitive: Operation {
    /// The right-hand side of the operation's statement. The function passes statements that must come before
    /// it to `statements`.
    fn spell(&self, statements: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String;
}

/// The text form of an operation: its name and its attributes. [`operation!`](crate::operation!) implements
/// this trait.
pub trait Attributes: Sized {
    /// The operation's name in the text form.
    const NAME: &'static str;
    const DOC: &'static [&'static str];
    /// The names of the attributes, each with the lines of its documentation.
    const FIELDS: &'static [(&'static str, &'static [&'static str])];
    const MODULE: &'static str;
    /// Appends ` key=value` for each attribute.
    fn print_attributes(&self, out: &mut String);
    /// Parses the output of `print_attributes`.
    fn parse_attributes(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
}

/// Declares the struct of an operation: its documentation, its name in the text form, and its attributes.
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
    /// The SSA name, for example `%4`.
    pub name: &'a str,
    pub ty: &'a TensorType,
}

/// Receives the statements that come before an operation's own statement.
pub trait Statements {
    /// Appends `%fresh = rhs` and returns `%fresh`.
    fn statement(&mut self, rhs: String) -> String;

    /// Appends `%fresh:results = rhs`, a statement with several results, and returns `%fresh`. The results are
    /// `%fresh#0`, `%fresh#1`, ….
    fn group(&mut self, rhs: String, results: usize) -> String;
}

/// The largest allowed difference between a result and the evaluator's result. Integers and booleans must
/// always be equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The bits must be equal; any NaN equals any other NaN.
    Exact,
    /// Each element may differ by this many units in the last place of the expected element.
    Ulps(f64),
    /// Each element may differ by this many units in the last place of the largest expected magnitude. Use
    /// this bound for sums, whose small results are differences of large terms.
    UlpsOfLargest(f64),
}

impl Bound {
    /// The largest allowed difference from each expected element.
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

    /// The first element of `found` outside its allowed difference: (index, expected, found).
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

/// A use of an operation, written in the text form.
///
/// `op` contains the name and the attributes. An operand is a type, or a type with elements such as `i32[2]
/// 3,1`; if the elements are missing, tests generate them. `result` is a type, a type with the elements that
/// NumPy computes, or an error.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// The name and attributes of the operation: `narrow axis=1 start=2 length=4`.
    pub op: &'static str,
    /// The operands, for example `f32[4,8]`.
    pub operands: &'static [&'static str],
    /// The result, or a part of the error's text.
    pub result: Result<&'static str, &'static str>,
}

/// A valid use of an operation.
pub const fn good(op: &'static str, operands: &'static [&'static str], result: &'static str) -> Example {
    Example { op, operands, result: Ok(result) }
}

/// An invalid use of an operation.
pub const fn bad(op: &'static str, operands: &'static [&'static str], error: &'static str) -> Example {
    Example { op, operands, result: Err(error) }
}

/// The reason why operands or attributes are invalid for an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferError {
    /// The number of operands is wrong.
    #[error("`{op}` takes {expected} operands, found {found}")]
    Arity {
        op: &'static str,
        /// The accepted numbers of operands, in words.
        expected: String,
        found: usize,
    },
    /// The operation is not defined for this element type.
    #[error("`{op}` needs {expected} elements, found `{found}`")]
    Element { op: &'static str, expected: &'static str, found: TensorType },
    /// Two types must agree, but they differ.
    #[error("`{op}`: {what}, found `{left}` and `{right}`")]
    Mismatch { op: &'static str, what: &'static str, left: TensorType, right: TensorType },
    /// The operation refers to an axis that the operand does not have.
    #[error("`{op}`: the axis {axis} does not exist in `{ty}`, which has {} axes", .ty.rank())]
    Axis { op: &'static str, axis: usize, ty: TensorType },
    /// An attribute is out of its range.
    #[error("`{op}`: {what} is {found}, expected {expected}")]
    Attribute { op: &'static str, what: &'static str, found: String, expected: String },
}

/// The operands as an array of the length that `op` takes.
pub fn arity<'a, T, const N: usize>(op: &'static str, operands: &[&'a T]) -> Result<[&'a T; N], InferError> {
    const WORDS: [&str; 6] = ["no", "1", "2", "3", "4", "5"];
    operands.try_into().map_err(|_| InferError::Arity {
        op,
        expected: WORDS[N].into(),
        found: operands.len(),
    })
}

/// Checks that `accept` returns true for the element type of `ty`.
pub fn element(
    op: &'static str,
    ty: &TensorType,
    expected: &'static str,
    accept: fn(ElementType) -> bool,
) -> Result<(), InferError> {
    match accept(ty.element) {
        true => Ok(()),
        false => Err(InferError::Element { op, expected, found: ty.clone() }),
    }
}

/// Checks that `ty` has the axis `axis`.
pub fn axis(op: &'static str, axis: usize, ty: &TensorType) -> Result<usize, InferError> {
    match ty.shape.get(axis) {
        Some(&extent) => Ok(extent),
        None => Err(InferError::Axis { op, axis, ty: ty.clone() }),
    }
}

/// Checks that two types agree in `what`.
pub fn agree(
    op: &'static str,
    what: &'static str,
    left: &TensorType,
    right: &TensorType,
    agree: bool,
) -> Result<(), InferError> {
    match agree {
        true => Ok(()),
        false => Err(InferError::Mismatch { op, what, left: left.clone(), right: right.clone() }),
    }
}

/// Checks an attribute. `expected` can be `format_args!`, which is formatted only after a failure.
pub fn attribute(
    op: &'static str,
    what: &'static str,
    found: impl Debug,
    expected: impl Display,
    holds: bool,
) -> Result<(), InferError> {
    match holds {
        true => Ok(()),
        false => Err(InferError::Attribute {
            op,
            what,
            found: format!("{found:?}"),
            expected: expected.to_string(),
        }),
    }
}

/// A list as MLIR writes it, for example `[0, 2, 1]`.
pub fn mlir_list(values: &[usize]) -> String {
    format!("{values:?}")
}
