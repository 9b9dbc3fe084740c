//! Arithmetic on the values of kernels.

use std::ops::{Add, Mul, Range, Sub};

use super::{Code, Element, Type, Value};

impl<'k> Value<'k> {
    pub(crate) fn code(&self) -> &'k Code {
        self.code
    }

    pub(crate) fn ty(&self) -> Type {
        self.ty
    }

    fn unary(self, op: &str) -> Self {
        self.code.value(self.ty, format_args!("{op} {self} : {}", self.ty))
    }

    fn binary(self, float: &str, integer: &str, other: Self) -> Self {
        assert_eq!(self.ty, other.ty, "operands of different types");
        let op = if self.ty.is_float() { float } else { integer };
        if let Some(known) = self.folded(op, other) {
            return known;
        }
        self.code.value(self.ty, format_args!("{op} {self}, {other} : {}", self.ty))
    }

    /// The result of an index operation, if it is an operand or a constant.
    fn folded(self, op: &str, other: Self) -> Option<Self> {
        let number = |n: usize| self.code.index(n);
        Some(match (op, self.known(), other.known()) {
            _ if self.ty != Type::Index => return None,
            ("arith.addi", Some(a), Some(b)) => number(a + b),
            ("arith.muli", Some(a), Some(b)) => number(a * b),
            ("arith.divui", Some(a), Some(b)) if b > 0 => number(a / b),
            ("arith.addi", Some(0), _) | ("arith.muli", Some(1), _) => other,
            ("arith.addi", _, Some(0)) | ("arith.muli" | "arith.divui", _, Some(1)) => self,
            ("arith.muli", Some(0), _) | ("arith.muli", _, Some(0)) | ("arith.remui", _, Some(1)) => {
                number(0)
            }
            _ => return None,
        })
    }

    /// The number of a constant index.
    fn known(self) -> Option<usize> {
        self.code.places.borrow().get(&self.name.0).copied()
    }

    fn cast(self, op: &str, ty: Type) -> Self {
        self.code.value(ty, format_args!("{op} {self} : {} to {ty}", self.ty))
    }

    pub(crate) fn abs(self) -> Self {
        self.unary(if self.ty.is_float() { "math.absf" } else { "math.absi" })
    }

    pub(crate) fn square_root(self) -> Self {
        self.unary("math.sqrt")
    }

    /// Rounds half to even, in one instruction of LLVM instead of 35 for `math.roundeven`.
    pub(crate) fn round(self) -> Self {
        let call =
            format_args!("llvm.call_intrinsic \"llvm.roundeven\"({self}) : ({}) -> {}", self.ty, self.ty);
        self.code.value(self.ty, call)
    }

    pub(crate) fn max(self, other: Self) -> Self {
        self.binary("arith.maximumf", "arith.maxsi", other)
    }

    pub(crate) fn min(self, other: Self) -> Self {
        let integer = if self.ty == Type::Index { "arith.minui" } else { "arith.minsi" };
        self.binary("arith.minimumf", integer, other)
    }

    pub(crate) fn divide(self, other: Self) -> Self {
        self.binary("arith.divf", "arith.divui", other)
    }

    pub(crate) fn remainder(self, other: Self) -> Self {
        self.binary("arith.remf", "arith.remui", other)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        self.binary("", "arith.andi", other)
    }

    pub(crate) fn or(self, other: Self) -> Self {
        self.binary("", "arith.ori", other)
    }

    /// Shifts bits to higher positions; the lowest bits become zero.
    pub(crate) fn shift_left(self, bits: usize) -> Self {
        self.binary("", "arith.shli", self.code.constant(self.ty, bits as f64))
    }

    /// The highest bits become zero.
    pub(crate) fn shift_right(self, bits: usize) -> Self {
        self.binary("", "arith.shrui", self.code.constant(self.ty, bits as f64))
    }

    /// A separate number of bits per lane.
    pub(crate) fn shift_right_by(self, bits: Self) -> Self {
        self.binary("", "arith.shrui", bits)
    }

    /// self · factor + addend, rounded once.
    pub(crate) fn multiply_add(self, factor: Self, addend: Self) -> Self {
        assert!(self.ty == factor.ty && self.ty == addend.ty, "operands of different types");
        self.code.value(self.ty, format_args!("math.fma {self}, {factor}, {addend} : {}", self.ty))
    }

    /// Per lane, `self` if `condition` is true, otherwise `other`.
    pub(crate) fn or_else(self, condition: Self, other: Self) -> Self {
        let types = match condition.ty {
            Type::Vector(..) => format!("{}, {}", condition.ty, self.ty),
            _ => self.ty.to_string(),
        };
        self.code.value(self.ty, format_args!("arith.select {condition}, {self}, {other} : {types}"))
    }

    pub(crate) fn greater(self, other: Self) -> Self {
        let (op, kind) = if self.ty.is_float() { ("arith.cmpf", "ogt") } else { ("arith.cmpi", "sgt") };
        let ty = self.ty.with_element(Element::I1);
        self.code.value(ty, format_args!("{op} {kind}, {self}, {other} : {}", self.ty))
    }

    pub(crate) fn equals(self, other: Self) -> Self {
        let ty = Type::Scalar(Element::I1);
        self.code.value(ty, format_args!("arith.cmpi eq, {self}, {other} : {}", self.ty))
    }

    pub(crate) fn sum(self) -> Self {
        self.reduce("add")
    }

    pub(crate) fn largest(self) -> Self {
        self.reduce(if self.ty.is_float() { "maximumf" } else { "maxsi" })
    }

    /// The bits that are set in at least one lane.
    pub(crate) fn bits_of_any_lane(self) -> Self {
        self.reduce("or")
    }

    fn reduce(self, kind: &str) -> Self {
        let Some(element) = self.ty.element() else { unreachable!("places have no lanes") };
        let ty = Type::Scalar(element);
        self.code.value(ty, format_args!("vector.reduction <{kind}>, {self} : {} into {ty}", self.ty))
    }

    pub(crate) fn broadcast(self, lanes: usize) -> Self {
        let Type::Scalar(element) = self.ty else { unreachable!("one number is repeated") };
        self.cast("vector.broadcast", Type::Vector(lanes, element))
    }

    pub(crate) fn lane(self, lane: usize) -> Self {
        let Type::Vector(_, element) = self.ty else { unreachable!("only vectors have lanes") };
        let ty = Type::Scalar(element);
        self.code.value(ty, format_args!("vector.extract {self}[{lane}] : {ty} from {}", self.ty))
    }

    pub(crate) fn slice(self, lanes: Range<usize>) -> Self {
        self.pick(self, &lanes.collect::<Vec<_>>())
    }

    /// The first half of the lanes for 0, the second for 1.
    pub(crate) fn half(self, half: usize) -> Self {
        let Type::Vector(lanes, _) = self.ty else { unreachable!("only vectors have lanes") };
        self.slice(half * lanes / 2..(half + 1) * lanes / 2)
    }

    pub(crate) fn followed_by(self, other: Self) -> Self {
        let Type::Vector(lanes, _) = self.ty else { unreachable!("only vectors have lanes") };
        self.pick(other, &(0..2 * lanes).collect::<Vec<_>>())
    }

    /// Shuffles the lanes of two vectors, numbered from this vector on to `other`.
    pub(crate) fn pick(self, other: Self, lanes: &[usize]) -> Self {
        let Type::Vector(_, element) = self.ty else { unreachable!("only vectors have lanes") };
        assert_eq!(self.ty, other.ty, "operands of different types");
        let ty = Type::Vector(lanes.len(), element);
        let order = lanes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        self.code
            .value(ty, format_args!("vector.shuffle {self}, {other} [{order}] : {}, {}", self.ty, other.ty))
    }

    /// Reinterprets the bits. A scalar first becomes a vector of one lane.
    pub(crate) fn bits(self, ty: Type) -> Self {
        assert_eq!(self.ty.bits(), ty.bits(), "other bits");
        match (self.ty, ty) {
            (Type::Scalar(_), Type::Vector(..)) => self.broadcast(1).bits(ty),
            (Type::Vector(..), Type::Scalar(element)) => self.bits(Type::Vector(1, element)).lane(0),
            (Type::Vector(..), Type::Vector(..)) => self.cast("vector.bitcast", ty),
            _ => self.cast("arith.bitcast", ty),
        }
    }

    /// Rounds if necessary. Integers keep their lower bits if the new type is narrower.
    pub(crate) fn convert(self, element: Element) -> Self {
        let Some(from) = self.ty.element() else { unreachable!("places are not converted") };
        let ty = self.ty.with_element(element);
        let op = match (from.is_float(), element.is_float()) {
            _ if from == element => return self,
            (true, true) if from.bits() < element.bits() => "arith.extf",
            (true, true) => "arith.truncf",
            (false, true) => "arith.sitofp",
            (true, false) => "arith.fptosi",
            (false, false) if from.bits() < element.bits() => "arith.extsi",
            (false, false) => "arith.trunci",
        };
        self.cast(op, ty)
    }

    /// Rounds the value to a narrower type, and converts the result back to f32.
    pub(crate) fn rounded(self, to: Element) -> Self {
        self.convert(to).convert(Element::F32)
    }

    /// Zero-extends an integer to an integer of 32 bits.
    pub(crate) fn widen(self) -> Self {
        self.cast("arith.extui", self.ty.with_element(Element::I32))
    }

    pub(crate) fn place(self) -> Self {
        self.cast("arith.index_cast", Type::Index)
    }

    /// Converts an index to a 32-bit integer.
    pub(crate) fn number(self) -> Self {
        self.cast("arith.index_cast", Type::Scalar(Element::I32))
    }
}

/// Combines the 16 lanes of each vector by `op`, and returns the results as one vector. The number of
/// vectors must be a power of two. Each step halves the number of lanes of every vector, and then
/// joins pairs of vectors to vectors with 16 lanes.
pub(crate) fn reduce_each<'k>(
    mut vectors: Vec<Value<'k>>,
    op: impl Fn(Value<'k>, Value<'k>) -> Value<'k>,
) -> Value<'k> {
    let mut own = 16;
    while own > 1 {
        let combined = vectors.chunks(2).map(|pair| {
            let [first, last] = [pair[0], pair[pair.len() - 1]];
            let Type::Vector(lanes, _) = first.ty() else { unreachable!("only vectors have lanes") };
            let half = |half: usize| -> Vec<usize> {
                (0..lanes * pair.len()).filter(|lane| lane % own / (own / 2) == half).collect()
            };
            op(first.pick(last, &half(0)), first.pick(last, &half(1)))
        });
        vectors = combined.collect();
        own /= 2;
    }
    vectors[0]
}

macro_rules! operators {
    ($($trait:ident $method:ident $float:literal $integer:literal, neutral $neutral:literal;)*) => {$(
        impl<'k> $trait for Value<'k> {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.binary($float, $integer, other)
            }
        }

        impl<'k> $trait<usize> for Value<'k> {
            type Output = Self;
            fn $method(self, other: usize) -> Self {
                if other == $neutral { self } else { self.$method(self.code.index(other)) }
            }
        }
    )*};
}

operators! {
    Add add "arith.addf" "arith.addi", neutral 0;
    Sub sub "arith.subf" "arith.subi", neutral 0;
    Mul mul "arith.mulf" "arith.muli", neutral 1;
}
