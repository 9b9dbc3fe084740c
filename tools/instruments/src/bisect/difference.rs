//! Computes the difference between the values of a node in two variants of a network, and the
//! allowed difference.

use ops::ops::Convert;
use ops::{Bound, ElementType, Op, Value, WeightUse};
use serde::Serialize;
use trace::{Node, NodeKind};

/// The allowed difference in the result of a layer, as a multiple of one unit in the last place
/// (ulp) of the largest number. The results of a layer may differ more than the result of an
/// operation, because a layer consists of many operations.
const LAYER: f64 = 64.0;
const NARROW_LAYER: f64 = 16.0;

/// A safety factor for roundings that a compiler omits. The difference that omitted roundings cause
/// is estimated from one random sample. The allowed difference is the safety factor times the
/// estimated difference.
const SAMPLE: f64 = 4.0;

/// Describes the difference between the values that two variants of a network compute for a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The index of the element with the largest difference.
    pub at: Vec<usize>,
    pub subject: f64,
    pub reference: f64,
    /// The largest difference between elements with the same index, divided by the largest
    /// magnitude in the reference tensor.
    pub relative: f64,
    /// The number of elements whose difference exceeds the allowed difference.
    pub beyond: usize,
    pub count: usize,
}

impl Difference {
    /// Compares two tensors. The argument `allowed` contains the allowed difference for each
    /// element of the tensors.
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

/// Returns the distance between two numbers. The distance between two NaNs, or between two equal
/// infinities, is 0.
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
    /// The element type in which the network computes.
    pub element: ElementType,
    /// The allowed difference of a matmul's result if the two variants store the weight in different formats.
    /// The field contains the allowed difference divided by the largest number in the result.
    pub products: Option<f64>,
    /// A factor by which the tolerance multiplies all calibrated error bounds. The default value of
    /// the tolerance factor is 1. With a factor below 1, you can find out how much two correct
    /// variants differ in practice (docs/dev/reliability.md).
    pub calibrated: f64,
}

impl Tolerance {
    /// Creates the tolerance for a network with the given element type.
    pub fn new(element: ElementType, products: Option<f64>) -> Self {
        Self { element, products, calibrated: 1.0 }
    }

    /// A safety factor for roundings that a compiler omits. The difference that omitted roundings
    /// cause is estimated from one random sample. The allowed difference is the safety factor times
    /// the estimated difference.
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

    /// Returns the allowed difference of a layer's result.
    pub(super) fn layer(self, element: ElementType) -> Bound {
        let ulps = if is_narrow(self.element) { NARROW_LAYER } else { LAYER };
        let products = self.products.map_or(0.0, |products| 4.0 * products);
        share((self.calibrated * ulps * self.element.ulp(1.0)).max(products), element)
    }
}

/// Returns the allowed difference of each element in a tensor. Elements that are 8-bit integers may
/// differ by 1, because such integers are rounded numbers.
pub(super) fn allowances(bound: Bound, expected: &Value) -> Vec<f64> {
    match expected.ty.element {
        ElementType::I8 => vec![1.0; expected.data.len()],
        _ => bound.allowances(expected).collect(),
    }
}

/// Creates a bound that is a fraction of the largest magnitude in a tensor.
pub(super) fn share(share: f64, element: ElementType) -> Bound {
    Bound::UlpsOfLargest(share / element.ulp(1.0))
}

/// Whether an element type is `f16` or `bf16`. If a compiler omits a rounding to `f16` or `bf16`,
/// the results differ visibly.
fn is_narrow(element: ElementType) -> bool {
    matches!(element, ElementType::F16 | ElementType::Bf16)
}

/// Changes each number randomly by half a unit in the last place, as if the compiler had not
/// rounded the number. Only `f16` and `bf16` numbers change.
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
