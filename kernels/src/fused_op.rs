//! [`FusedOp`] is an operation together with its prologue and epilogue. One kernel computes a fused operation.

use ops::ops::{BinaryKind, RmsNorm, Rope, UnaryKind};
use ops::{ElementType, Op, Real, TensorType};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::{lane, math};

/// An operation together with its prologue and epilogue. One kernel computes a fused operation.
///
/// The operands of the operation come first. The further operands follow in this order: the norm's weight, the
/// two tables of the rotary embedding, the scales of quantized keys and values, and the epilogue's operands.
/// The prologue (`norm` and `rope`) applies to the first operand, or to the rows that are written to a cache.
#[derive(Clone, Debug)]
pub struct FusedOp<'a> {
    pub op: &'a Op,
    /// The types of the operands of the operation.
    pub types: Vec<&'a TensorType>,
    /// The position of each token's numbers in the operand of the prologue, if this operand is in token
    /// order. Otherwise the operand has the order that the operation declares.
    pub tokens: Option<Tokens>,
    /// The norm of the prologue, and the type of its input.
    pub norm: Option<(&'a RmsNorm, &'a TensorType)>,
    /// The rotary embedding of the prologue, after the norm, and the types of its operands.
    pub rope: Option<(&'a Rope, [&'a TensorType; 2])>,
    /// Whether attention reads quantized keys and values.
    pub quantized: bool,
    /// Whether attention writes its result in token order instead of head order.
    pub by_token: bool,
    /// The epilogue, which is applied to each number of the result.
    pub tail: Epilogue,
}

/// The position of the tokens' numbers: a part of each row in a matrix `[tokens, stride]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub stride: usize,
    /// The index in the row of the first number that belongs to the operand.
    pub from: usize,
}

impl Tokens {
    /// The part of a kernel's name that identifies this position.
    pub(crate) fn name(self) -> String {
        format!("_tokens{}x{}", self.from, self.stride)
    }

    /// The index of the first number of a token.
    pub(crate) fn of(self, token: Value<'_>) -> Value<'_> {
        token * self.stride + self.from
    }
}

impl<'a> FusedOp<'a> {
    /// Creates an operation without a prologue and an epilogue.
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

/// The elementwise operations that the kernel applies to each number of a result before it writes the number.
/// Each operation is a step and can use the results of earlier steps. The kernel writes the result of the
/// last step, or without steps the result itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epilogue {
    /// Whether the epilogue combines the two halves of the result's last axis, such as gate and up.
    pub halves: bool,
    pub steps: Vec<TailStep>,
    /// The way in which each operand is broadcast to the output.
    pub operands: Vec<Broadcast>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailStep {
    pub kind: EpilogueOp,
    /// The element type to which the kernel rounds the step's result.
    pub element: ElementType,
}

/// The operation of a step. An operation refers to earlier steps by their index in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EpilogueOp {
    /// The result of the main operation, or its first or second half.
    Result(usize),
    /// An operand of the epilogue.
    Operand(usize),
    Constant(Real),
    /// The result of a step, converted to another element type.
    Convert(usize),
    /// An elementwise function of the result of one step.
    Unary(UnaryKind, usize),
    /// An elementwise function of the results of two steps.
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

/// How an operand is broadcast to a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broadcast {
    /// The operand has one number, of this element type, for each number of the result.
    Everywhere(ElementType),
    /// The operand has one number, of this element type, for each index of the last axis.
    LastAxis(ElementType),
}

/// The output of a kernel, which passes through the epilogue to memory.
#[derive(Clone)]
pub(crate) struct End<'k> {
    tail: &'k Epilogue,
    operands: Vec<Buffer<'k>>,
    result: Buffer<'k>,
    element: Element,
    columns: usize,
}

impl Epilogue {
    /// The number of bindings for the epilogue's operands and the result.
    pub(crate) fn bindings(&self) -> usize {
        self.operands.len() + 1
    }

    /// The bindings for a result `[rows, columns]`, from `first` on.
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
    /// Writes 16 numbers of a row, or only the numbers that the mask selects. The numbers come from the
    /// result, or from both halves of the result.
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
