//! What every operation of the list must say of itself.

use std::fmt::{Debug, Display};
use std::hash::Hash;

use crate::{
    CostOperand, ElementType, IterationSpace, OpClass, OpWork, ParseError, Reader, TensorType, Value,
    WeightUse,
};

/// One operation: a function of its operands. Its file holds all there is to know of it.
pub trait Operation: Attributes + Clone + Debug + PartialEq + Eq + Hash {
    /// How far IREE's result may be from [`Operation::eval`]'s: a few times what was measured (IREE 3.13, x86-64)
    /// on the examples and, for composites, on the answers of transformers.
    const BOUND: Bound;

    /// [`Operation::BOUND`], or a tighter one where the attributes allow it.
    fn bound(&self) -> Bound {
        Self::BOUND
    }

    /// What kind of operation it is.
    const CLASS: OpClass;

    /// Whether each element of the result is a function of the operands' elements at the same place.
    const IS_MAP: bool = matches!(Self::CLASS, OpClass::Elementwise);

    /// Whether the result is a part of the operand, or the operand several times: never stored.
    const IS_VIEW: bool = false;

    /// Whether each element of the result depends only on elements at its own place along the axes that both have.
    const KEEPS_AXES: bool = Self::IS_MAP;

    /// Whether a compiler may write the result where an operand of the same type is.
    const IN_PLACE: bool = false;

    /// Whether of operand 0 it reads only the rows that indices select.
    const PICKS_ROWS: bool = false;

    /// How it reads a weight that may be stored in another layout, if it reads one.
    const WEIGHT_USE: Option<WeightUse> = None;

    /// Good and bad uses, run by the tests over the list.
    const EXAMPLES: &'static [Example];

    /// The type of the result.
    ///
    /// # Errors
    /// What is wrong with the operands' types or the attributes.
    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError>;

    /// The meaning: slow and obvious. The operands have types that [`Operation::infer`] accepts and `ty` is
    /// what it answered. Elements are rounded to the element type; sums are exactly rounded.
    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value;

    /// What it asks of a machine that computes it.
    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        match Self::IS_VIEW {
            true => OpWork::FREE,
            false => OpWork::usual(Self::CLASS, operands, ty),
        }
    }

    /// Whether any piece of the result can be made from bounded pieces of float operands when an archive is written.
    fn bakes(&self) -> bool {
        false
    }

    /// What it does, in a word or two.
    fn label(&self) -> String {
        Self::NAME.replace('_', " ")
    }

    /// The loops it runs over, which tell how it can be divided among devices.
    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        match Self::IS_MAP || Self::CLASS == OpClass::Constant {
            true => IterationSpace::aligned(operands, ty),
            false => IterationSpace::opaque(operands, ty),
        }
    }
}

/// An operation that is one StableHLO statement.
pub trait Primitive: Operation {
    /// The right-hand side of its statement. `statements` takes those that must come before.
    fn spell(&self, statements: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String;
}

/// The name and the attributes of an operation, written and read in the text form. Made by [`operation!`](crate::operation!).
pub trait Attributes: Sized {
    /// The name in the text form.
    const NAME: &'static str;
    /// Its documentation, line by line.
    const DOC: &'static [&'static str];
    /// The names of its attributes, and the lines of their documentation.
    const FIELDS: &'static [(&'static str, &'static [&'static str])];
    /// The module that declares it.
    const MODULE: &'static str;
    /// Appends ` key=value` for each attribute.
    fn print_attributes(&self, out: &mut String);
    /// Reads what `print_attributes` wrote.
    fn parse_attributes(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
}

/// Declares an operation's struct: documentation, name in the text form, attributes.
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

/// An operand as the spelling needs it: its SSA name (`%4`) and its type.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// `%4`
    pub name: &'a str,
    pub ty: &'a TensorType,
}

/// Where a spelling puts the statements that go before its own.
pub trait Statements {
    /// Appends `%fresh = rhs` and returns `%fresh`.
    fn statement(&mut self, rhs: String) -> String;
}

/// How far an answer may be from the evaluator's. Integers and truth values are exact whatever is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Equal bits (any NaN equals any NaN).
    Exact,
    /// Each element within this many units in the last place of the expected element.
    Ulps(f64),
    /// Each element within this many units in the last place of the largest expected magnitude:
    /// for sums, whose small results are differences of large terms.
    UlpsOfLargest(f64),
}

impl Bound {
    /// How far an answer may be from each element of the expected one.
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

    /// The first element of `found` that is out of bounds: (index, expected, found).
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
/// `op` is its name and attributes; each operand is a type, alone (the tests make the elements up) or with its
/// elements: `i32[2] 3,1`. `result` is the type, alone or with the elements that NumPy gives, or the error.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// `narrow axis=1 start=2 length=4`
    pub op: &'static str,
    /// `f32[4,8]`
    pub operands: &'static [&'static str],
    /// The result, or a part of the error's text.
    pub result: Result<&'static str, &'static str>,
}

/// A use that is accepted.
pub const fn good(op: &'static str, operands: &'static [&'static str], result: &'static str) -> Example {
    Example { op, operands, result: Ok(result) }
}

/// A use that is refused.
pub const fn bad(op: &'static str, operands: &'static [&'static str], error: &'static str) -> Example {
    Example { op, operands, result: Err(error) }
}

/// Why operands or attributes do not fit an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferError {
    /// A wrong number of operands.
    #[error("`{op}` takes {expected} operands, found {found}")]
    Arity {
        op: &'static str,
        /// How many it takes, in words.
        expected: String,
        found: usize,
    },
    /// An element type that the operation is not defined for.
    #[error("`{op}` needs {expected} elements, found `{found}`")]
    Element {
        op: &'static str,
        /// What it is defined for.
        expected: &'static str,
        found: TensorType,
    },
    /// Two types that must agree and do not.
    #[error("`{op}`: {what}: `{left}` against `{right}`")]
    Mismatch { op: &'static str, what: &'static str, left: TensorType, right: TensorType },
    /// An axis that the operand does not have.
    #[error("`{op}`: axis {axis} of `{ty}`, which has {} axes", .ty.rank())]
    Axis { op: &'static str, axis: usize, ty: TensorType },
    /// An attribute out of its range.
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

/// Checks that `ty` has an element type that `accept` takes.
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

/// Checks that `axis` is one of `ty`'s.
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

/// Checks an attribute. What is expected may be `format_args!`, which is written only if that does not hold.
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

/// `[0, 2, 1]` as MLIR writes it.
pub fn mlir_list(values: &[usize]) -> String {
    format!("{values:?}")
}
