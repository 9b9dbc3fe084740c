//! How a program rounds the activations that it multiplies by integers.

use super::GROUP;

crate::words! {
    /// The number of bits of the integers to which a program rounds activations, if the weights are integers.
    #[derive(Default)]
    pub enum ActivationBits {
        /// The program rounds each group of activations to integers from −127 to 127.
        Eight = "8",
        /// The program rounds the groups with outliers to 16 bits, and all other groups to 8 bits. A group
        /// has an outlier if its largest magnitude is above the [`outlier_limit`] of the row.
        #[default]
        Mixed = "mixed",
        /// The program rounds each group of activations to 16 bits: first to integers from −127 to
        /// 127, and then the rounding errors to integers from −127 to 127.
        Sixteen = "16",
    }
}

/// With [`ActivationBits::Mixed`], an outlier is above this multiple of the geometric mean over the row. In
/// normally distributed activations, few groups have outliers. In SmolLM2, one of eight groups has, and
/// causes three quarters of the KL divergence of 8-bit activations.
pub const OUTLIER: f32 = 2.0;

/// The lower bits of a float that [`outlier_limit`] ignores, so that a row's sum fits into 31 bits.
pub const IGNORED_BITS: u32 = 12;

/// [`OUTLIER`] times the mean of the largest magnitudes of a row's groups, except zeros. As integers, the
/// bits of positive floats grow almost like their logarithms, so the mean of bits is almost geometric. A sum
/// of integers is the same in any order.
pub fn outlier_limit(largest: impl Iterator<Item = f32>) -> f32 {
    let add = |(sum, count), x: f32| (sum + (x.to_bits() >> IGNORED_BITS), count + 1);
    let (sum, count) = largest.filter(|&x| x > 0.0).fold((0, 0), add);
    f32::from_bits((sum / count.max(1)) << IGNORED_BITS) * OUTLIER
}

/// The largest integer of quantized activations.
pub const LARGEST_ACTIVATION: f32 = 127.0;

/// The steps of 16-bit activations between two 8-bit integers. A rounding error is at most half of them.
pub const RESIDUAL_STEPS: f32 = 254.0;

/// Rounds a row of activations like a matmul with quantized weights. In groups of 32, each number becomes an
/// integer times the group's scale; the largest magnitude becomes ± the largest integer. With 16 bits, the
/// rounding errors of a group become integers too. Halves round to even. All computation is in f32.
pub fn in_integers(row: &mut [f32], bits: ActivationBits) {
    let largest_of = |group: &[f32]| {
        let larger =
            |largest: f32, x: &f32| if largest.is_nan() || x.abs() <= largest { largest } else { x.abs() };
        group.iter().fold(0.0, larger)
    };
    let limit = match bits {
        ActivationBits::Eight => f32::INFINITY,
        ActivationBits::Mixed => outlier_limit(row.chunks(GROUP).map(largest_of)),
        ActivationBits::Sixteen => -1.0,
    };
    for group in row.chunks_mut(GROUP) {
        let largest = largest_of(group);
        let inverse = if largest > 0.0 { LARGEST_ACTIVATION / largest } else { 0.0 };
        let scale = largest / LARGEST_ACTIVATION;
        for x in group {
            let units = *x * inverse;
            let integer = units.round_ties_even();
            let residual =
                if largest > limit { ((units - integer) * RESIDUAL_STEPS).round_ties_even() } else { 0.0 };
            *x = integer * scale + residual * (scale / RESIDUAL_STEPS);
        }
    }
}
