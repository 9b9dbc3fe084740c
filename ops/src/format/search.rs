//! Finds the scale of a 4-bit group that has the smallest weighted squared error.

use std::array::from_fn;

use half::f16;

use super::{GROUP, INTEGERS, sums};

/// The starting points of the search for the best scale. Each starting point is the value farthest
/// from zero, divided by the scale and not yet rounded.
///
/// The first starting point of the search is −8. With the starting point −8, the value farthest
/// from zero stays exact, and the search does not change values that were already quantized to the
/// same format. Sixteen starting points from −9.5 to 7.5 would reduce the error on normally
/// distributed values by 1 %, but would triple the time of the search.
const UNITS: [f32; 5] = [-8.0, -8.5, -9.0, -7.5, -7.0];

const LEAST: f32 = -8.0;
const MOST: f32 = 7.0;

/// Finds the scale with the smallest weighted squared error. Let q be the integers of a starting
/// point, w the error weights and x the values. For the integers q, the best scale is Σ w q x / Σ w
/// q². With the best scale, the error is Σ w x² − (Σ w q x)² / Σ w q².
///
/// The function rounds the best scale to f16; outside the range of f16, the scale becomes 0 or
/// infinity.
pub(super) fn scale(numbers: &[f32; GROUP], weights: &[f32; GROUP], largest: f32) -> f16 {
    let (mut best, mut most) = (largest / LEAST, -1.0);
    for units in UNITS {
        let inverse = units / largest;
        let integers: [f32; GROUP] = from_fn(|i| {
            let units = numbers[i] * inverse;
            let units = if units < LEAST { LEAST } else { units };
            let units = if units > MOST { MOST } else { units };
            (units + INTEGERS) - INTEGERS
        });
        let [qx, qq] = sums(|i| {
            let weighted = weights[i] * integers[i];
            [weighted * numbers[i], weighted * integers[i]]
        });
        if qq > 0.0 && qx / qq * qx > most {
            (best, most) = (qx / qq, qx / qq * qx);
        }
    }
    f16::from_f32(best)
}
