//! Groups of four-bit floats, where each group has a power of two as its scale: MXFP4 (OCP,
//! "Microscaling Formats (MX) Specification", 2023, §5.3).

use half::f16;

use super::block_types::{nibbles, paired};
use super::groups::Group;
use super::search::{all_finite, group_weights, sums};
use super::{BlockFormat, GROUP, Groups, Integers, Offered, ScaleBytes, Scales};
use crate::ElementType;

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Mxfp4,
    exact: &[],
    group: GROUP,
    planes: &[4],
    integers: Integers::Table(&DOUBLED_FLOATS),
    columns: 4 * GROUP,
    scales: &[ScaleBytes { at: 0, count: 1, width: 1 }],
    read_scales: |block| Scales::Each([FloatGroup::half_scale(block[0]), 0.0]),
    element: ElementType::Bf16,
    in_steps: false,
    unit: 1.0,
    minima: false,
    read: |block, codes| codes[..GROUP].copy_from_slice(&nibbles(&block[1..])),
    write: |codes, block| block[1..].iter_mut().zip(paired(codes)).for_each(|(byte, pair)| *byte = pair),
    quantize: |numbers, weights| {
        let FloatGroup { codes, exponent } = FloatGroup::nearest(numbers, weights);
        [exponent].into_iter().chain(paired(&codes)).collect()
    },
    round: nearest,
    refit: None,
    keep: |_| None,
    choice: Some(Offered::Mixed),
};

/// Twice the value of each four-bit float. A float has a sign, two exponent bits and one fraction bit (e2m1).
pub const DOUBLED_FLOATS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The bits of 2⁻¹²⁷ as f32. The smallest scale of a group is smaller than all normal f32 numbers.
pub const LEAST_SCALE: u32 = 0x0040_0000;

/// The numbers of a weight row that share one power of two as scale, padded with zeros to [`GROUP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FloatGroup {
    /// The four-bit floats, from 0 to 15.
    pub codes: [u8; GROUP],
    /// The scale is 2^(exponent − 127). 255 is no number in the specification, and here infinite.
    pub exponent: u8,
}

impl FloatGroup {
    pub(super) fn read(block: &[u8]) -> Self {
        Self { codes: nibbles(&block[1..]), exponent: block[0] }
    }

    /// Returns half of a group's scale, by which the integers of [`DOUBLED_FLOATS`] are multiplied.
    pub fn half_scale(exponent: u8) -> f32 {
        f32::from_bits((u32::from(exponent) << 23).max(LEAST_SCALE)) * 0.5
    }

    /// The values of the group's floats, multiplied by two.
    pub fn integers(&self) -> [i8; GROUP] {
        self.codes.map(|code| DOUBLED_FLOATS[usize::from(code & 15)])
    }

    pub fn numbers(&self) -> [f32; GROUP] {
        let half_scale = Self::half_scale(self.exponent);
        self.integers().map(|integer| f32::from(integer) * half_scale)
    }

    /// The group as integers with an f16 scale; `None` if f16 cannot represent the scale.
    pub fn in_integers(&self) -> Option<Group> {
        let half_scale = Self::half_scale(self.exponent);
        let scale = f16::from_f32(half_scale);
        (scale.to_f32() == half_scale).then(|| Group { integers: self.integers(), scale })
    }

    /// Rounds at most 32 numbers with the better of two scales, by weighted error. With the smaller scale,
    /// the largest value is at least 4 and may be clipped to 6.
    fn nearest(group: &[f32], weights: &[f32]) -> Self {
        let mut numbers = [0.0; GROUP];
        numbers.iter_mut().zip(group).for_each(|(number, x)| *number = *x);
        if !all_finite(&numbers) {
            return Self { codes: [0; GROUP], exponent: u8::MAX };
        }
        let largest = numbers.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        // The bits of a positive f32 above its fraction are its exponent plus 127.
        let exponent = (largest.to_bits() >> 23) as u8;
        let smaller = exponent.saturating_sub(2);
        let [small, large] = [smaller, smaller + 1].map(|exponent| Self::with_exponent(exponent, &numbers));
        let weights = group_weights(weights);
        let error = |group: &Self| {
            let found = group.numbers();
            let [error] = sums(|i| [weights[i] * (found[i] - numbers[i]) * (found[i] - numbers[i])]);
            error
        };
        if error(&large) < error(&small) { large } else { small }
    }

    fn with_exponent(exponent: u8, numbers: &[f32; GROUP]) -> Self {
        let half_scale = Self::half_scale(exponent);
        Self { codes: numbers.map(|x| nearest(x / half_scale)), exponent }
    }
}

/// Returns the four-bit float nearest to half of a number; ties round towards zero.
pub(super) fn nearest(doubled: f32) -> u8 {
    const MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude = MIDDLES.iter().map(|middle| u8::from(doubled.abs() > *middle)).sum::<u8>();
    if doubled < 0.0 && magnitude > 0 { magnitude | 8 } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_is_its_exponent_and_its_fraction() {
        for (code, doubled) in DOUBLED_FLOATS.into_iter().enumerate() {
            let (exponent, fraction) = ((code >> 1 & 3) as i32, (code & 1) as f32);
            let magnitude = match exponent {
                0 => 0.5 * fraction,
                _ => (1.0 + 0.5 * fraction) * 2f32.powi(exponent - 1),
            };
            assert_eq!(
                f32::from(doubled) / 2.0,
                if code & 8 == 0 { magnitude } else { -magnitude },
                "{code}"
            );
        }
    }

    #[test]
    fn groups_of_every_scale_come_back() {
        // With larger exponents, 6 times the scale is too large for f32.
        for exponent in 0..=252 {
            let codes = std::array::from_fn(|i| [7, 15, 1, 0, 3, 12, 9, 6][i * 5 % 8]);
            let group = FloatGroup { codes, exponent };
            assert_eq!(FloatGroup::nearest(&group.numbers(), &[]), group);
            let scale = 2f64.powi(i32::from(exponent) - 127);
            assert_eq!(f64::from(FloatGroup::half_scale(exponent)), scale / 2.0);
        }
        assert!(FloatGroup::nearest(&[f32::NAN, 0.0, -0.0], &[]).numbers().iter().all(|x| x.is_nan()));
        assert!(FloatGroup::nearest(&[1.0, f32::INFINITY], &[]).numbers().iter().all(|x| !x.is_finite()));
    }

    #[test]
    fn each_number_becomes_the_nearest_float() {
        for step in -130..=130 {
            let x = step as f32 / 10.0;
            let distance = |doubled: i8| (f32::from(doubled) - x).abs();
            let least = DOUBLED_FLOATS.into_iter().map(distance).fold(f32::INFINITY, f32::min);
            let found = DOUBLED_FLOATS[usize::from(nearest(x))];
            assert_eq!(distance(found), least, "{x}");
        }
        // Clipping 7.3 to 6 loses less than the coarser steps of the larger scale.
        let numbers: Vec<f32> = (0..GROUP).map(|i| if i == 0 { 7.3 } else { 0.5 }).collect();
        assert_eq!(FloatGroup::nearest(&numbers, &[]).exponent, 127);
        let weights: Vec<f32> = (0..GROUP).map(|i| if i == 0 { 100.0 } else { 0.01 }).collect();
        assert_eq!(FloatGroup::nearest(&numbers, &weights).exponent, 128);
    }
}
