//! [`FusedOp`] is an operation with its prologue and epilogue, computed by a single kernel.

use ops::ops::{BinaryKind, RmsNorm, Rope, UnaryKind};
use ops::{ElementType, Op, Real, TensorType};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::{lane, math};

/// A main operation, and those around it in the same kernel. The main operation's operands come first. Then
/// follow the norm's weight, cosine and sine tables, scales of quantized keys and values, and the epilogue's
/// operands.
#[derive(Clone, Debug)]
pub struct FusedOp<'a> {
    pub main: &'a Op,
    /// The types of the main operation's operands.
    pub types: Vec<&'a TensorType>,
    pub prologue: FusedPrologue<'a>,
    pub layout: FusedLayout,
    pub epilogue: Epilogue,
}

/// The operations before a main operation: first the norm, then the rotary embedding. They compute
/// the main operation's first operand, or the vectors that it appends to a KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct FusedPrologue<'a> {
    /// The norm, and the type of the norm's input.
    pub norm: Option<(&'a RmsNorm, &'a TensorType)>,
    /// The rotary embedding, and the types of its two tables.
    pub rope: Option<(&'a Rope, [&'a TensorType; 2])>,
}

/// How operands and result of a kernel lie in memory, if not as the main operation's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct FusedLayout {
    /// The place of each token in the prologue's operand, if the token axis comes before the head axis.
    pub tokens: Option<Tokens>,
    /// Whether attention reads quantized keys and values.
    pub quantized: bool,
    /// Whether the token axis of the attention result comes before the head axis.
    pub by_token: bool,
    /// The features of each attention result that later operations read, the first ones; `None` for all.
    pub kept: Option<usize>,
}

/// Describes an operand that is a slice of a matrix `[tokens, stride]`, with one matrix row per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub stride: usize,
    /// The index at which the operand begins in each row of the matrix.
    pub from: usize,
}

impl Tokens {
    /// Returns the suffix of a kernel's name that identifies the stride and the start of the operand.
    pub(crate) fn name(self) -> String {
        format!("_tokens{}x{}", self.from, self.stride)
    }

    /// Returns the index in memory of the first number that belongs to a token.
    pub(crate) fn of(self, token: Value<'_>) -> Value<'_> {
        token * self.stride + self.from
    }
}

impl<'a> FusedOp<'a> {
    /// Creates a fused operation without a prologue and without an epilogue.
    pub fn alone(main: &'a Op, types: Vec<&'a TensorType>) -> Self {
        let (prologue, layout) = (FusedPrologue::default(), FusedLayout::default());
        Self { main, types, prologue, layout, epilogue: Epilogue::default() }
    }
}

impl FusedPrologue<'_> {
    pub(crate) fn is_nothing(self) -> bool {
        self.norm.is_none() && self.rope.is_none()
    }
}

/// Elementwise operations on each number of a result before it is stored. Each can use earlier results in the
/// list, and the last one is stored, or the number itself from an empty list.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epilogue {
    /// Whether it combines the halves of the result's last axis, such as the gate and the up projection.
    pub halves: bool,
    pub steps: Vec<TailStep>,
    /// For each operand of the epilogue, how the epilogue broadcasts the operand to the output.
    pub operands: Vec<Broadcast>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailStep {
    pub kind: EpilogueOp,
    /// The element type to which the kernel rounds the result of the elementwise operation.
    pub element: ElementType,
}

/// One elementwise operation of an epilogue, which names an earlier operation by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EpilogueOp {
    /// The result of the main operation, or its first or second half if the epilogue combines halves.
    Result(usize),
    /// An operand of the epilogue.
    Operand(usize),
    Constant(Real),
    /// The result of an earlier operation, converted to another element type.
    Convert(usize),
    /// An elementwise function of the result of one earlier operation.
    Unary(UnaryKind, usize),
    /// An elementwise function of the results of two earlier operations.
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

/// How an operand of the epilogue is broadcast to the result of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Broadcast {
    /// The operand has the given element type and the same shape as the result.
    Everywhere(ElementType),
    /// The operand has one number, of the given element type, for each index of the result's last axis.
    LastAxis(ElementType),
}

/// The output of a kernel: the epilogue, and the memory in which the kernel stores the results.
#[derive(Clone)]
pub(crate) struct End<'k> {
    tail: &'k Epilogue,
    operands: Vec<Buffer<'k>>,
    result: Buffer<'k>,
    element: Element,
    columns: usize,
}

impl Epilogue {
    /// Returns the number of bindings for the epilogue's operands and the result.
    pub(crate) fn bindings(&self) -> usize {
        self.operands.len() + 1
    }

    /// Creates the bindings for a result `[rows, columns]`, and numbers the bindings from `first`.
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
    /// Applies the epilogue to 16 numbers of a row, and stores those that the mask selects. `result` has 16
    /// numbers, of each half if it combines two.
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
