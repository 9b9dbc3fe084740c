//! The difference between two values of one node, and the allowed difference.

use ops::ops::Convert;
use ops::{Bound, ElementType, Op, Value, WeightUse};
use serde::Serialize;
use trace::{Node, NodeKind};

/// The allowed difference of a layer's result, in units in the last place of the largest number. A layer
/// consists of many operations, and each operation has its own bound.
const LAYER: f64 = 64.0;
const NARROW_LAYER: f64 = 16.0;

/// The factor by which a difference can exceed the difference that one random sample of omitted roundings
/// causes.
const SAMPLE: f64 = 4.0;

/// The difference between two values of the same node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The index of the largest difference.
    pub at: Vec<usize>,
    pub subject: f64,
    pub reference: f64,
    /// The largest difference, relative to the reference's largest magnitude.
    pub relative: f64,
    /// The number of elements whose difference exceeds the allowed difference.
    pub beyond: usize,
    pub count: usize,
}

impl Difference {
    /// Computes the difference between two values, with an allowed difference for each number.
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

/// Returns the distance between two numbers. Equal numbers have the distance 0, and NaN and infinities equal
/// themselves.
pub(super) fn distance(a: f64, b: f64) -> f64 {
    match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false if (a - b).is_nan() => f64::INFINITY,
        false => (a - b).abs(),
    }
}

/// Returns the index of the element at a position in row-major order.
fn index(shape: &[usize], mut place: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (axis, &extent) in shape.iter().enumerate().rev() {
        index[axis] = place % extent.max(1);
        place /= extent.max(1);
    }
    index
}

/// The differences that are allowed in a correct network.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The element type of the network.
    pub element: ElementType,
    /// The allowed difference of matmuls whose weights have different formats, relative to the largest
    /// result.
    pub products: Option<f64>,
    /// The fraction of the calibrated bounds that is allowed as a difference. The fraction is 1 by default.
    /// Smaller fractions show how close correct networks come to each other (docs/dev/reliability.md).
    pub calibrated: f64,
}

impl Tolerance {
    /// The tolerance for a network of this element type.
    pub fn new(element: ElementType, products: Option<f64>) -> Self {
        Self { element, products, calibrated: 1.0 }
    }

    /// The factor by which a difference can exceed the difference that one random sample of omitted roundings
    /// causes.
    pub(super) fn sample(self) -> f64 {
        SAMPLE * self.calibrated
    }

    /// The allowed difference of a node whose operands are equal in both variants.
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

    /// The allowed difference of a result that many operations compute.
    pub(super) fn layer(self, element: ElementType) -> Bound {
        let ulps = if is_narrow(self.element) { NARROW_LAYER } else { LAYER };
        let products = self.products.map_or(0.0, |products| 4.0 * products);
        share((self.calibrated * ulps * self.element.ulp(1.0)).max(products), element)
    }
}

/// The allowed difference of each number. Integers of 8 bits are quantized numbers, so they may differ by
/// one.
pub(super) fn allowances(bound: Bound, expected: &Value) -> Vec<f64> {
    match expected.ty.element {
        ElementType::I8 => vec![1.0; expected.data.len()],
        _ => bound.allowances(expected).collect(),
    }
}

/// A bound relative to the largest magnitude.
pub(super) fn share(share: f64, element: ElementType) -> Bound {
    Bound::UlpsOfLargest(share / element.ulp(1.0))
}

/// Whether an element type has so few digits that omitted roundings are visible. A compiler may omit such
/// roundings.
fn is_narrow(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
}

/// Returns the same numbers with random errors smaller than the rounding, as if a compiler had omitted the
/// rounding.
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
