//! Functions that append several operations to a trace, and therefore need no primitive operations
//! of their own.

use ops::ops::{
    Binary, BinaryKind, BroadcastInDim, Constant, Convert, Erf, Narrow, Reduce, ReduceKind, Unary, UnaryKind,
};
use ops::{ElementType, InferError, Literal};

use crate::{Builder, NodeId};

impl Builder<'_> {
    pub fn unary(&mut self, kind: UnaryKind, x: NodeId) -> Result<NodeId, InferError> {
        self.op(Unary { kind }, &[x])
    }

    /// Appends an operation for an elementwise function of two operands that have the same type.
    pub fn binary(&mut self, kind: BinaryKind, a: NodeId, b: NodeId) -> Result<NodeId, InferError> {
        self.op(Binary { kind }, &[a, b])
    }

    pub fn splat(&mut self, like: NodeId, value: f64) -> Result<NodeId, InferError> {
        let value = Literal::splat(self.ty(like).clone(), value);
        self.op(Constant { value }, &[])
    }

    /// `x` is the left operand.
    pub fn with_scalar(&mut self, kind: BinaryKind, x: NodeId, value: f64) -> Result<NodeId, InferError> {
        let value = self.splat(x, value)?;
        self.binary(kind, x, value)
    }

    /// Appends the conversion of `x` to another element type, unless `x` already has this type.
    pub fn convert(&mut self, x: NodeId, to: ElementType) -> Result<NodeId, InferError> {
        if self.ty(x).element == to { Ok(x) } else { self.op(Convert { to }, &[x]) }
    }

    /// Reduces along `axis`, and repeats the result along it.
    pub fn reduced_along(&mut self, kind: ReduceKind, x: NodeId, axis: usize) -> Result<NodeId, InferError> {
        let shape = self.ty(x).shape.clone();
        let axes = (0..shape.len()).filter(|&a| a != axis).collect();
        let reduced = self.op(Reduce { kind, axes: vec![axis] }, &[x])?;
        self.op(BroadcastInDim { shape, axes }, &[reduced])
    }
}

/// Computes exp(x − max) / Σ exp(x − max) along `axis` in f32, and rounds the result once, as
/// `torch.softmax` does.
pub fn softmax(b: &mut Builder<'_>, x: NodeId, axis: usize) -> Result<NodeId, InferError> {
    let element = b.ty(x).element;
    let x = b.convert(x, ElementType::F32)?;
    let largest = b.reduced_along(ReduceKind::Maximum, x, axis)?;
    let shifted = b.binary(BinaryKind::Subtract, x, largest)?;
    let exponential = b.unary(UnaryKind::Exponential, shifted)?;
    let sum = b.reduced_along(ReduceKind::Add, exponential, axis)?;
    let quotient = b.binary(BinaryKind::Divide, exponential, sum)?;
    b.convert(quotient, element)
}

/// Computes x · logistic(x) in f32, and rounds the result once, as `torch.nn.functional.silu` does.
/// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), §2.
pub fn silu(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let element = b.ty(x).element;
    let wide = b.convert(x, ElementType::F32)?;
    let logistic = b.unary(UnaryKind::Logistic, wide)?;
    let product = b.binary(BinaryKind::Multiply, wide, logistic)?;
    b.convert(product, element)
}

/// Activates the first half of the last axis, and multiplies by the second: for one matmul of gate and up
/// projection.
pub fn gated(
    b: &mut Builder<'_>,
    halves: NodeId,
    activation: fn(&mut Builder<'_>, NodeId) -> Result<NodeId, InferError>,
) -> Result<NodeId, InferError> {
    let ty = b.ty(halves);
    let axis = ty.rank().saturating_sub(1);
    let length = ty.shape.last().map_or(0, |extent| extent / 2);
    let gate = b.op(Narrow { axis, start: 0, length }, &[halves])?;
    let gate = activation(b, gate)?;
    let up = b.op(Narrow { axis, start: length, length }, &[halves])?;
    b.binary(BinaryKind::Multiply, gate, up)
}

/// Computes 0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))) in f32, and rounds the result once,
/// as `torch.nn.functional.gelu(approximate="tanh")` does. Source: Hendrycks and Gimpel, "Gaussian
/// Error Linear Units" (2016), §2.
pub fn gelu_tanh(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let element = b.ty(x).element;
    let x = b.convert(x, ElementType::F32)?;
    let square = b.binary(BinaryKind::Multiply, x, x)?;
    let cube = b.binary(BinaryKind::Multiply, square, x)?;
    let cubic = b.with_scalar(BinaryKind::Multiply, cube, 0.044715)?;
    let sum = b.binary(BinaryKind::Add, x, cubic)?;
    let inner = b.with_scalar(BinaryKind::Multiply, sum, (2.0 / std::f64::consts::PI).sqrt())?;
    let tanh = b.unary(UnaryKind::Tanh, inner)?;
    let one_plus = b.with_scalar(BinaryKind::Add, tanh, 1.0)?;
    let half = b.with_scalar(BinaryKind::Multiply, x, 0.5)?;
    let product = b.binary(BinaryKind::Multiply, half, one_plus)?;
    b.convert(product, element)
}

/// Computes x/2 · (1 + erf(x/√2)) in f32, and rounds the result once, as `torch.nn.functional.gelu`
/// does. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), §2.
pub fn gelu(b: &mut Builder<'_>, x: NodeId) -> Result<NodeId, InferError> {
    let element = b.ty(x).element;
    let x = b.convert(x, ElementType::F32)?;
    let inner = b.with_scalar(BinaryKind::Multiply, x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = b.op(Erf {}, &[inner])?;
    let one_plus = b.with_scalar(BinaryKind::Add, erf, 1.0)?;
    let half = b.with_scalar(BinaryKind::Multiply, x, 0.5)?;
    let product = b.binary(BinaryKind::Multiply, half, one_plus)?;
    b.convert(product, element)
}

pub fn split(
    b: &mut Builder<'_>,
    x: NodeId,
    axis: usize,
    lengths: &[usize],
) -> Result<Vec<NodeId>, InferError> {
    let mut start = 0;
    let mut pieces = Vec::with_capacity(lengths.len());
    for &length in lengths {
        pieces.push(b.op(Narrow { axis, start, length }, &[x])?);
        start += length;
    }
    Ok(pieces)
}
