//! Computes the difference between the values of a node in two variants of a network, and the
//! allowed difference.

use ops::ops::Convert;
use ops::{Bound, ElementType, Op, Value, WeightUse};
use serde::Serialize;
use trace::{Node, NodeKind};

/// In ulps of the largest number. Layers may differ more than operations, of which they consist.
const LAYER: f64 = 64.0;
const NARROW_LAYER: f64 = 16.0;

/// For roundings that a compiler omits: their effect is estimated from one random sample, and allowed this
/// many times.
const SAMPLE: f64 = 4.0;

/// Describes the difference between the values that two variants of a network compute for a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The index of the largest difference.
    pub at: Vec<usize>,
    pub subject: f64,
    pub reference: f64,
    /// The largest difference, divided by the largest magnitude of the reference.
    pub relative: f64,
    /// Elements beyond the allowed difference.
    pub beyond: usize,
    pub count: usize,
}

impl Difference {
    /// `allowed` for each element.
    pub(super) fn of(subject: &Value, reference: &Value, allowed: Vec<f64>) -> Self {
        let pairs = || subject.data.iter().zip(&reference.data).map(|(&s, &r)| distance(s, r));
        let (largest, by) = pairs().enumerate().fold(
            (0, 0.0),
            |(i, most), (j, by)| {
                if by > most { (j, by) } else { (i, most) }
            },
        );
        let magnitude = reference.data.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
        let number = |of: &Value| of.data.get(largest).copied().unwrap_or(0.0);
        Self {
            at: index(&reference.ty.shape, largest),
            subject: number(subject),
            reference: number(reference),
            relative: if by == 0.0 { 0.0 } else { by / magnitude },
            beyond: pairs().zip(allowed).filter(|(by, allowed)| *by > *allowed).count(),
            count: reference.data.len(),
        }
    }
}

/// 0 for two NaNs or equal infinities.
pub(super) fn distance(a: f64, b: f64) -> f64 {
    match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false if (a - b).is_nan() => f64::INFINITY,
        false => (a - b).abs(),
    }
}

/// Converts the position of an element in row-major order to an index for each axis.
fn index(shape: &[usize], mut place: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (axis, &extent) in shape.iter().enumerate().rev() {
        index[axis] = place % extent.max(1);
        place /= extent.max(1);
    }
    index
}

/// Determines the differences that may occur between two correct variants of a network.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub element: ElementType,
    /// For matmuls whose weight has different formats: relative to the largest number of the result.
    pub products: Option<f64>,
    /// Multiplies all calibrated bounds, by default 1. Less shows how much correct variants differ in
    /// practice (docs/dev/reliability.md).
    pub calibrated: f64,
}

impl Tolerance {
    pub fn new(element: ElementType, products: Option<f64>) -> Self {
        Self { element, products, calibrated: 1.0 }
    }

    /// See [`SAMPLE`].
    pub(super) fn sample(self) -> f64 {
        SAMPLE * self.calibrated
    }

    /// Returns the allowed difference of a node whose operands are equal in the two variants.
    pub(super) fn bound(self, node: &Node) -> Bound {
        let element = node.ty().element;
        match &node.kind {
            NodeKind::Op(op)
                if matches!(op.weight_use(), Some(WeightUse::Matmul | WeightUse::Rows))
                    && element.is_float()
                    && self.products.is_some() =>
            {
                share(self.products.unwrap_or_default(), element)
            }
            NodeKind::Op(Op::Convert(Convert { to })) if is_narrow(*to) => Bound::Ulps(1.0),
            NodeKind::Op(op) => op.bound(),
            _ => self.layer(element),
        }
    }

    pub(super) fn layer(self, element: ElementType) -> Bound {
        let ulps = if is_narrow(self.element) { NARROW_LAYER } else { LAYER };
        let products = self.products.map_or(0.0, |products| 4.0 * products);
        share((self.calibrated * ulps * self.element.ulp(1.0)).max(products), element)
    }
}

/// 8-bit integers may differ by 1, because they are rounded.
pub(super) fn allowances(bound: Bound, expected: &Value) -> Vec<f64> {
    match expected.ty.element {
        ElementType::I8 => vec![1.0; expected.data.len()],
        _ => bound.allowances(expected).collect(),
    }
}

/// A fraction of the largest magnitude.
pub(super) fn share(share: f64, element: ElementType) -> Bound {
    Bound::UlpsOfLargest(share / element.ulp(1.0))
}

/// `f16` or `bf16`: an omitted rounding to them is visible.
fn is_narrow(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
}

/// Changes `f16` and `bf16` randomly by half an ulp, as if they had not been rounded.
pub(super) fn unrounded(value: &Value) -> Value {
    if !is_narrow(value.ty.element) {
        return value.clone();
    }
    let element = value.ty.element;
    let data = value.data.iter().enumerate().map(|(i, &x)| {
        // A hash of the index chooses whether the number is rounded up or down.
        let up = (i as u32).wrapping_mul(0x9e37_79b9) >> 31 == 0;
        let half = 0.5 * element.ulp(x);
        if !x.is_finite() {
            x
        } else if up {
            x + half
        } else {
            x - half
        }
    });
    Value { data: data.collect(), ty: value.ty.clone() }
}
