//! What one kernel computes: an operation, and what happens to its operands before and to its result after.

use ops::ops::{BinaryKind, RmsNorm, Rope, UnaryKind};
use ops::{ElementType, Op, Real, TensorType};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::{lane, math};

/// What one kernel computes.
///
/// Its operands are those of the operation, of which one may be as it is before `norm` and `rope`: the first, or what is
/// written to a cache. Then come the norm's weight; the two tables of the rotation; the scales of quantized keys and values;
/// those of the tail.
#[derive(Clone, Debug)]
pub struct FusedOp<'a> {
    pub op: &'a Op,
    /// The types of its operands.
    pub types: Vec<&'a TensorType>,
    /// Where in that operand the numbers of each token are, if it has them token by token; else they lie as the operation
    /// says.
    pub tokens: Option<Tokens>,
    /// A norm that it goes through, and the type of what is normalized.
    pub norm: Option<(&'a RmsNorm, &'a TensorType)>,
    /// A rotation that it goes through then, and the types of the operands of that.
    pub rope: Option<(&'a Rope, [&'a TensorType; 2])>,
    /// Whether the keys and values of attention are as they are before they are dequantized.
    pub quantized: bool,
    /// Whether the result of attention is written token by token, and not head by head.
    pub by_token: bool,
    /// What becomes of each number of the result.
    pub tail: Epilogue,
}

/// Where the numbers of tokens are: a part of each row of `[tokens, stride]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The numbers of a row.
    pub stride: usize,
    /// The first of them that is used.
    pub from: usize,
}

impl Tokens {
    /// What tells it from others.
    pub(crate) fn name(self) -> String {
        format!("_tokens{}x{}", self.from, self.stride)
    }

    /// Where a token's numbers begin.
    pub(crate) fn of(self, token: Value<'_>) -> Value<'_> {
        token * self.stride + self.from
    }
}

impl<'a> FusedOp<'a> {
    /// An operation by itself.
    pub fn alone(op: &'a Op, types: Vec<&'a TensorType>) -> Self {
        Self {
            op,
            types,
            tokens: None,
            norm: None,
            rope: None,
            quantized: false,
            by_token: false,
            tail: Epilogue::default(),
        }
    }
}

/// What becomes of each number of a result before it is written: elementwise operations, each of the steps before it.
/// The last step is what is written; without steps it is the result itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epilogue {
    /// Whether the two halves of the result's last axis meet: gate and up.
    pub halves: bool,
    pub steps: Vec<TailStep>,
    /// How each operand lies on what is written.
    pub operands: Vec<Broadcast>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailStep {
    pub kind: EpilogueOp,
    /// The element type that its numbers are rounded to.
    pub element: ElementType,
}

/// What a step computes; steps before it are known by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EpilogueOp {
    /// The result, or its first or second half.
    Result(usize),
    /// An operand of the tail.
    Operand(usize),
    Constant(Real),
    /// A step, in another element type.
    Convert(usize),
    /// A function of a step.
    Unary(UnaryKind, usize),
    /// A function of two steps.
    Binary(BinaryKind, usize, usize),
}

impl EpilogueOp {
    pub fn is_known(self) -> bool {
        match self {
            Self::Unary(kind, _) => math::unary(kind).is_some(),
            Self::Binary(kind, ..) => math::binary(kind).is_some(),
            _ => true,
        }
    }
}

/// How an operand lies on a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broadcast {
    /// A number for each of its numbers, of an element type.
    Everywhere(ElementType),
    /// A number for each place of its last axis.
    LastAxis(ElementType),
}

/// Where a kernel's results go: through the tail, into memory.
#[derive(Clone)]
pub(crate) struct End<'k> {
    tail: &'k Epilogue,
    operands: Vec<Buffer<'k>>,
    result: Buffer<'k>,
    element: Element,
    columns: usize,
}

impl Epilogue {
    /// How many bindings it has: its operands and the result.
    pub(crate) fn bindings(&self) -> usize {
        self.operands.len() + 1
    }

    /// Its bindings, from one on: of a result `[rows, columns]`.
    pub(crate) fn end<'k>(
        &'k self,
        code: &'k Code,
        first: usize,
        (element, rows, columns): (Element, usize, usize),
    ) -> End<'k> {
        let operand = |(index, spread): (usize, &Broadcast)| match *spread {
            Broadcast::Everywhere(element) => code.binding(first + index, lane(element), rows * columns),
            Broadcast::LastAxis(element) => code.binding(first + index, lane(element), columns),
        };
        let operands: Vec<Buffer<'k>> = self.operands.iter().enumerate().map(operand).collect();
        let result = code.binding(first + operands.len(), element, rows * columns);
        End { tail: self, operands, result, element, columns }
    }
}

impl<'k> End<'k> {
    /// Writes sixteen numbers of a row from a column on, or those that the mask selects: of the result, or of its halves.
    pub(crate) fn write(
        &self,
        code: &'k Code,
        result: &[Value<'k>],
        (row, column): (Value<'k>, Value<'k>),
        mask: Option<Value<'k>>,
    ) {
        let at = row * self.columns + column;
        let load = |index: usize| {
            let buffer = self.operands[index];
            let (ty, at) = match self.tail.operands[index] {
                Broadcast::Everywhere(element) => (Type::lanes(16, lane(element)), at),
                Broadcast::LastAxis(element) => (Type::lanes(16, lane(element)), column),
            };
            match mask {
                Some(mask) => buffer.load_masked(at, ty, mask),
                None => buffer.load(at, ty),
            }
        };
        let mut values: Vec<Value<'k>> = Vec::new();
        for TailStep { kind, element } in &self.tail.steps {
            let value = match *kind {
                EpilogueOp::Result(part) => result[part],
                EpilogueOp::Operand(index) => load(index).convert(Element::F32),
                EpilogueOp::Constant(number) => code.constant(Type::lanes(16, Element::F32), number.0),
                EpilogueOp::Convert(step) => values[step],
                EpilogueOp::Unary(kind, step) => {
                    let Some(function) = math::unary(kind) else { unreachable!("`can_do` refuses it") };
                    function(values[step])
                }
                EpilogueOp::Binary(kind, a, b) => {
                    let Some(function) = math::binary(kind) else { unreachable!("`can_do` refuses it") };
                    function(values[a], values[b])
                }
            };
            values.push(value.rounded(lane(*element)));
        }
        let value = values.last().copied().unwrap_or(result[0]).convert(self.element);
        match mask {
            Some(mask) => self.result.store_masked(at, mask, value),
            None => self.result.store(at, value),
        }
    }
}
