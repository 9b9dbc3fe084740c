//! How two values of one node differ, and by how much they may.

use ops::ops::Convert;
use ops::{Bound, ElementType, Op, Value, WeightUse};
use serde::Serialize;
use trace::{Node, NodeKind};

/// What a layer's result may differ by, in units in the last place of the largest: many operations, each within its own
/// bound.
const LAYER: f64 = 64.0;
const NARROW_LAYER: f64 = 16.0;

/// By how much one sample of numbers that were not rounded may be surpassed.
const SAMPLE: f64 = 4.0;

/// How two values of one node differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The place of the largest difference.
    pub at: Vec<usize>,
    pub subject: f64,
    pub reference: f64,
    /// The largest difference in units of the reference's largest magnitude.
    pub relative: f64,
    /// How many numbers differ by more than they may.
    pub beyond: usize,
    /// How many numbers there are.
    pub count: usize,
}

impl Difference {
    /// How two values differ, where each number may differ by so much.
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

/// How far two numbers are apart: not at all where both are the same, no numbers included.
pub(super) fn distance(a: f64, b: f64) -> f64 {
    match a == b || a.is_nan() && b.is_nan() {
        true => 0.0,
        false if (a - b).is_nan() => f64::INFINITY,
        false => (a - b).abs(),
    }
}

/// The index of the number at a place in row-major order.
fn index(shape: &[usize], mut place: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (axis, &extent) in shape.iter().enumerate().rev() {
        index[axis] = place % extent.max(1);
        place /= extent.max(1);
    }
    index
}

/// What may differ where nothing is wrong.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// The type that the network computes with.
    pub element: ElementType,
    /// What products may differ by whose weights are rounded to other formats, in units of the largest result.
    pub products: Option<f64>,
    /// How much of what was calibrated may be used: 1, or less to see how near sound networks come
    /// (docs/dev/reliability.md).
    pub calibrated: f64,
}

impl Tolerance {
    /// What may differ in a network that computes with this type.
    pub fn new(element: ElementType, products: Option<f64>) -> Self {
        Self { element, products, calibrated: 1.0 }
    }

    /// By how much one sample of numbers that were not rounded may be surpassed.
    pub(super) fn sample(self) -> f64 {
        SAMPLE * self.calibrated
    }

    /// What a node may differ by, given equal operands.
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

    /// What a result of many operations may differ by.
    pub(super) fn layer(self, element: ElementType) -> Bound {
        let ulps = if is_narrow(self.element) { NARROW_LAYER } else { LAYER };
        let products = self.products.map_or(0.0, |products| 4.0 * products);
        share((self.calibrated * ulps * self.element.ulp(1.0)).max(products), element)
    }
}

/// What each number may differ by. Integers of 8 bits are what numbers were rounded to: one more or less.
pub(super) fn allowances(bound: Bound, expected: &Value) -> Vec<f64> {
    match expected.ty.element {
        ElementType::I8 => vec![1.0; expected.data.len()],
        _ => bound.allowances(expected).collect(),
    }
}

/// A share of the largest number.
pub(super) fn share(share: f64, element: ElementType) -> Bound {
    Bound::UlpsOfLargest(share / element.ulp(1.0))
}

/// Whether a type has so few digits that roundings to it, which a compiler may leave out, show.
fn is_narrow(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
}

/// The same numbers as a compiler may have them that has not rounded them yet.
pub(super) fn unrounded(value: &Value) -> Value {
    if !is_narrow(value.ty.element) {
        return value.clone();
    }
    let element = value.ty.element;
    let data = value.data.iter().enumerate().map(|(i, &x)| {
        // Up or down by no order.
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
