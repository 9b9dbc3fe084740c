//! Statistics of repeated measurements.

use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    pub min: f64,
    /// A quarter of the measurements are at most this.
    pub lower_quartile: f64,
    /// Half of the measurements are at most this.
    pub median: f64,
    /// Three quarters of the measurements are at most this.
    pub upper_quartile: f64,
    pub max: f64,
}

impl Distribution {
    /// All zero if there are none.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        // Linear interpolation between neighbours (Hyndman and Fan, "Sample Quantiles in Statistical Packages", 1996,
        // type 7).
        let at = |share: f64| {
            let place = share * sorted.len().saturating_sub(1) as f64;
            let (below, above) = (sorted.get(place.floor() as usize), sorted.get(place.ceil() as usize));
            let (below, above) = (below.copied().unwrap_or(0.0), above.copied().unwrap_or(0.0));
            below + (above - below) * place.fract()
        };
        Self {
            min: at(0.0),
            lower_quartile: at(0.25),
            median: at(0.5),
            upper_quartile: at(0.75),
            max: at(1.0),
        }
    }
}

/// The median of `of` over pairs from the same round.
pub(super) fn ratio(a: &[f64], b: &[f64], of: impl Fn(f64, f64) -> f64) -> f64 {
    Distribution::of(&a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect::<Vec<_>>()).median
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are the result of `numpy.quantile([7, 1, 3, 10], [0, 0.25, 0.5, 0.75, 1])`.
    #[test]
    fn quartiles_are_those_of_numpy() {
        let found = Distribution::of(&[7.0, 1.0, 3.0, 10.0]);
        let expected =
            Distribution { min: 1.0, lower_quartile: 2.5, median: 5.0, upper_quartile: 7.75, max: 10.0 };
        assert_eq!(found, expected);
        assert_eq!(Distribution::of(&[2.0]).upper_quartile, 2.0);
        assert_eq!(Distribution::of(&[]), Distribution::default());
    }

    #[test]
    fn ratios_are_of_pairs() {
        // In one round, the machine is twice as slow. The ratio within this round does not change.
        assert_eq!(ratio(&[1.0, 2.0, 1.0], &[2.0, 4.0, 2.0], |a, b| a / b), 0.5);
    }
}
