//! Quantizes to four bits with scales and minima, which it searches for the smallest error.

use half::f16;

use super::block_types::half;
use super::search::{INTEGERS, all_finite, group_weights, sums};
use super::{
    BlockFormat, BlockSteps, GROUP, GROUPS, Groups, Integers, Offered, SUPER_BLOCK, ScaleBytes, Scales,
};
use crate::ElementType;

pub(super) const FORMAT: Groups = Groups {
    block: BlockFormat::Q4K,
    exact: &[],
    group: GROUP,
    planes: &[4],
    integers: Integers::Minus(0),
    columns: SUPER_BLOCK,
    scales: &[ScaleBytes { at: 0, count: 2, width: 2 }, ScaleBytes { at: 4, count: 3, width: 4 }],
    read_scales: |block| {
        let SuperBlock { steps, counts, .. } = SuperBlock::read(block);
        let counts = std::array::from_fn(|group| counts.get(group).map_or([0; 2], |pair| pair.map(|x| x as i8)));
        Scales::InSteps(BlockSteps { steps, counts })
    },
    element: ElementType::F16,
    in_steps: true,
    unit: 1.0,
    minima: true,
    read: |block, codes| codes.copy_from_slice(SuperBlock::read(block).integers.as_flattened()),
    write: |codes, block| {
        let mut all = SuperBlock::read(block);
        all.integers.as_flattened_mut().copy_from_slice(codes);
        block.copy_from_slice(&all.bytes(BlockFormat::Q4K));
    },
    quantize: |numbers, weights| SuperBlock::nearest(numbers, weights, MOST).bytes(BlockFormat::Q4K),
    round: |units| units.round().clamp(0.0, MOST) as u8,
    refit: Some(|block, group, numbers, weights| {
        let mut all = SuperBlock::read(block);
        all.refit(group, numbers, weights);
        block.copy_from_slice(&all.bytes(BlockFormat::Q4K));
    }),
    keep: |_| None,
    choice: Some(Offered::Mixed),
};

/// The largest unsigned 4-bit integer, as an f32.
const MOST: f32 = 15.0;
const MOST_STEPS: f32 = 63.0;
/// The bytes of the steps and counts, before the integers.
const HEAD: usize = 16;

/// Eight groups of a weight row. A value is an integer times the group's scale, minus its minimum; each is a
/// multiple of its own step. The format is that of a block of GGUF's Q4_K, or of Q5_K with fifth bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SuperBlock {
    /// The step for the scales of the groups, and the step for the minima of the groups.
    pub steps: [f16; 2],
    /// The scale and the minimum of each group, each as a number of steps from 0 to 63.
    pub counts: [[u8; 2]; GROUPS],
    /// The integers of each group, from 0 to 15, or to 31 with fifth bits.
    pub integers: [[u8; GROUP]; GROUPS],
}

impl SuperBlock {
    /// Reads a block of Q4_K or Q5_K. The lower four bits of 32 bytes contain one group, the upper four bits
    /// the next. A byte of fifth bits has one bit for each of the eight groups, at the same position.
    pub(super) fn read(block: &[u8]) -> Self {
        let mut packed = [0; 12];
        packed.copy_from_slice(&block[4..16]);
        let (high, low) = block[HEAD..].split_at(block.len() - HEAD - SUPER_BLOCK / 2);
        let integer = |group: usize, place: usize| {
            let fifth = high.get(place).map_or(0, |bits| bits >> group & 1);
            low[group / 2 * GROUP + place] >> (group % 2 * 4) & 15 | fifth << 4
        };
        Self {
            steps: [half(block), half(&block[2..])],
            counts: Self::unpacked_counts(packed),
            integers: std::array::from_fn(|group| std::array::from_fn(|place| integer(group, place))),
        }
    }

    /// The bytes of a block of Q4_K or Q5_K.
    pub(super) fn bytes(&self, block: BlockFormat) -> Vec<u8> {
        let mut bytes = self.steps.map(f16::to_le_bytes).as_flattened().to_vec();
        bytes.extend(self.packed_counts());
        if block == BlockFormat::Q5K {
            let bit = |place: usize, group: usize| (self.integers[group][place] >> 4) << group;
            bytes.extend((0..GROUP).map(|place| (0..GROUPS).fold(0, |bits, group| bits | bit(place, group))));
        }
        for pair in self.integers.as_chunks::<2>().0 {
            bytes.extend(pair[0].iter().zip(pair[1]).map(|(low, high)| low & 15 | high << 4));
        }
        bytes
    }

    #[cfg(test)]
    pub fn scale_and_minimum(&self, group: usize) -> [f32; 2] {
        [0, 1].map(|which| self.steps[which].to_f32() * f32::from(self.counts[group][which]))
    }

    /// The counts of steps for scales and minima, packed as in GGUF. For the first four groups, bytes have
    /// six bits of each scale's count, then of each minimum's. For the last four, bytes have the lower four
    /// bits of the scale's and the minimum's count. Their upper two bits are above the six bits of the first
    /// four groups.
    pub fn packed_counts(&self) -> [u8; 12] {
        let mut packed = [0; 12];
        for i in 0..4 {
            let [first, last] = [self.counts[i], self.counts[i + 4]];
            packed[i] = first[0] | last[0] >> 4 << 6;
            packed[i + 4] = first[1] | last[1] >> 4 << 6;
            packed[i + 8] = last[0] & 15 | last[1] << 4;
        }
        packed
    }

    /// Unpacks the counts that [`packed_counts`](Self::packed_counts) packed.
    pub fn unpacked_counts(packed: [u8; 12]) -> [[u8; 2]; GROUPS] {
        std::array::from_fn(|group| match group {
            0..4 => [packed[group] & 63, packed[group + 4] & 63],
            _ => {
                let low = packed[group + 4];
                [low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4]
            }
        })
    }

    /// Quantizes at most 256 values so that the weighted sum of the squared errors is small. From several
    /// starting points, the function alternately improves the scale and the minimum of each group, and the
    /// integers of the group. The function then rounds the scale and the minimum to multiples of their steps.
    /// If `weights` is empty, all values have the same weight. If a number is NaN or infinite, the steps are
    /// NaN.
    pub(super) fn nearest(numbers: &[f32], weights: &[f32], most: f32) -> Self {
        if !all_finite(numbers) {
            return Self { steps: [f16::NAN; 2], counts: [[0; 2]; GROUPS], integers: [[0; GROUP]; GROUPS] };
        }
        let groups: [Numbers; GROUPS] = std::array::from_fn(|group| {
            let [numbers, weights] =
                [numbers, weights].map(|all| all.get(group * GROUP..).unwrap_or_default());
            Numbers::of(numbers, weights, most)
        });
        let fits = groups.each_ref().map(Numbers::fit);
        let largest = |which: usize| fits.iter().fold(0.0f32, |most, fit| most.max(fit[which]));
        let steps = [largest(0), largest(1)].map(|largest| f16::from_f32(largest / MOST_STEPS));
        let mut block = Self { steps, counts: [[0; 2]; GROUPS], integers: [[0; GROUP]; GROUPS] };
        for (group, (numbers, fit)) in groups.iter().zip(fits).enumerate() {
            (block.counts[group], block.integers[group]) = numbers.in_steps(fit, steps.map(f16::to_f32));
        }
        block
    }

    /// Quantizes new values for one group, but keeps the steps of the scales and minima.
    fn refit(&mut self, group: usize, numbers: &[f32], weights: &[f32]) {
        let numbers = Numbers::of(numbers, weights, MOST);
        (self.counts[group], self.integers[group]) =
            numbers.in_steps(numbers.fit(), self.steps.map(f16::to_f32));
    }
}

struct Numbers {
    x: [f32; GROUP],
    /// For each value, the weight of its squared error in the total error.
    weights: [f32; GROUP],
    /// The number of real values in the group; the rest of the array repeats one of the real values.
    count: usize,
    /// The largest integer.
    most: f32,
}

/// The quantized integers of the group, stored as f32.
type Rounded = [f32; GROUP];

impl Numbers {
    /// Creates a group from the first 32 of the given values.
    fn of(numbers: &[f32], weights: &[f32], most: f32) -> Self {
        let count = numbers.len().min(GROUP);
        let mut x = [numbers.first().copied().unwrap_or(0.0); GROUP];
        x.iter_mut().zip(numbers).for_each(|(x, number)| *x = *number);
        Self { x, weights: group_weights(weights), count, most }
    }

    /// Returns the scale and the minimum with the smallest error, before the rounding to multiples of steps.
    fn fit(&self) -> [f32; 2] {
        // The range always includes zero, because the format subtracts a minimum that is never
        // negative.
        let least = self.x.iter().fold(0.0f32, |least, x| least.min(*x));
        let most = self.x.iter().fold(least, |most, x| most.max(*x));
        let range = most - least;
        if range <= 0.0 || !range.is_finite() {
            return [range / self.most, -least];
        }
        let mut best = ([range / self.most, -least], f32::INFINITY);
        for widened in WIDENED {
            let mut fit = [range / (self.most + widened), -least];
            for _ in 0..ROUNDS {
                let integers = self.integers(fit);
                fit = self.fitted(&integers);
                let error = self.error(&integers, fit);
                if error < best.1 {
                    best = (fit, error);
                }
            }
        }
        best.0
    }

    /// Returns the integers that are nearest to the values, for the given scale and minimum.
    fn integers(&self, [scale, minimum]: [f32; 2]) -> Rounded {
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut integers = self.x;
        for integer in &mut integers {
            let units = (*integer + minimum) * inverse;
            let units = if units > 0.0 { units } else { 0.0 };
            let units = if units < self.most { units } else { self.most };
            *integer = (units + INTEGERS) - INTEGERS;
        }
        integers
    }

    /// Returns the scale and the minimum with the smallest error for the given integers.
    fn fitted(&self, integers: &Rounded) -> [f32; 2] {
        let [n, q, qq, qx, x] = sums(|i| {
            let (w, q, x) = (self.weights[i], integers[i], self.x[i]);
            [w, w * q, w * (q * q), w * (q * x), w * x]
        });
        let spread = n * qq - q * q;
        if spread > 0.0 {
            let scale = (n * qx - q * x) / spread;
            let minimum = (scale * q - x) / n;
            if scale > 0.0 && minimum >= 0.0 {
                return [scale, minimum];
            }
        }
        [if qq > 0.0 { (qx / qq).max(0.0) } else { 0.0 }, 0.0]
    }

    /// Returns the minimum with the smallest error for the given integers and scale.
    fn minimum(&self, integers: &Rounded, scale: f32) -> f32 {
        let [n, off] = sums(|i| [self.weights[i], self.weights[i] * (integers[i] * scale - self.x[i])]);
        off / n
    }

    /// The weighted sum of the squared errors of all values.
    fn error(&self, integers: &Rounded, [scale, minimum]: [f32; 2]) -> f32 {
        let [error] = sums(|i| {
            let off = integers[i] * scale - minimum - self.x[i];
            [self.weights[i] * (off * off)]
        });
        error
    }

    /// Returns the best scale and minimum near `fit`, in steps, and the integers for them.
    fn in_steps(&self, fit: [f32; 2], steps: [f32; 2]) -> ([u8; 2], [u8; GROUP]) {
        let count = |value: f32, step: f32| {
            let count = if step > 0.0 { value / step } else { 0.0 };
            count.round().clamp(0.0, MOST_STEPS)
        };
        let nearest = count(fit[0], steps[0]);
        let mut best = (f32::INFINITY, [nearest, count(fit[1], steps[1])], [0.0; GROUP]);
        for scale in [nearest, nearest - 1.0, nearest + 1.0] {
            let scale = scale.clamp(0.0, MOST_STEPS);
            let mut minimum = count(fit[1], steps[1]);
            for _ in 0..ROUNDS {
                let fit = [scale * steps[0], minimum * steps[1]];
                let integers = self.integers(fit);
                let error = self.error(&integers, fit);
                if error < best.0 {
                    best = (error, [scale, minimum], integers);
                }
                minimum = count(self.minimum(&integers, fit[0]), steps[1]);
            }
        }
        let mut integers = best.2.map(|integer| integer as u8);
        integers[self.count..].fill(0);
        (best.1.map(|count| count as u8), integers)
    }
}

/// How many integers wider the search makes a group's range. In a wider range, the outermost values are
/// clipped more, and the others are more precise.
const WIDENED: [f32; 7] = [-1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0];

/// How often the search fits the integers of a group to the scale, and back.
const ROUNDS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    impl SuperBlock {
        fn numbers(&self) -> [f32; SUPER_BLOCK] {
            let mut numbers = [0.0; SUPER_BLOCK];
            for (group, numbers) in numbers.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
                let [scale, minimum] = self.scale_and_minimum(group);
                let integers = self.integers[group];
                numbers
                    .iter_mut()
                    .zip(integers)
                    .for_each(|(x, integer)| *x = f32::from(integer) * scale - minimum);
            }
            numbers
        }
    }

    /// Returns random numbers, each of which is the sum of four uniformly distributed numbers.
    fn numbers(count: usize) -> Vec<f32> {
        let even = |i: u32| {
            (i.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9e37_79b1) >> 8) as f32
                / 8_388_608.0
                - 1.0
        };
        (0..count as u32).map(|i| (0..4).map(|k| even(4 * i + k)).sum()).collect()
    }

    fn lost(numbers: &[f32], block: &SuperBlock) -> f64 {
        numbers.iter().zip(block.numbers()).map(|(x, y)| f64::from(x - y).powi(2)).sum()
    }

    #[test]
    fn counts_come_back() {
        let mut block =
            SuperBlock { steps: [f16::ONE; 2], counts: [[0; 2]; GROUPS], integers: [[0; GROUP]; GROUPS] };
        for i in 0..64 {
            block.counts =
                std::array::from_fn(|group| [(i + 9 * group as u8) % 64, (63 - i + 5 * group as u8) % 64]);
            assert_eq!(SuperBlock::unpacked_counts(block.packed_counts()), block.counts);
        }
    }

    #[test]
    fn what_a_block_can_say_is_kept() {
        let steps = [0.25, 0.5].map(f16::from_f32);
        let counts = std::array::from_fn(|group| [63 - group as u8, 9 * group as u8]);
        let integers = std::array::from_fn(|group| std::array::from_fn(|i| ((i * 7 + group * 3) % 16) as u8));
        let numbers = SuperBlock { steps, counts, integers }.numbers();
        assert_eq!(SuperBlock::nearest(&numbers, &[], MOST).numbers(), numbers);
        for constant in [0.0f32, 1.5, -1.5] {
            let found = SuperBlock::nearest(&[constant; 70], &[], MOST).numbers();
            assert!(found[..70].iter().all(|x| (x - constant).abs() <= constant.abs() / 1024.0), "{found:?}");
            assert!(found[96..].iter().all(|x| *x == 0.0));
        }
    }

    #[test]
    fn less_is_lost_than_by_one_scale() {
        let all = numbers(64 * SUPER_BLOCK);
        let (mut with_minima, mut without, mut squares) = (0.0, 0.0, 0.0);
        for numbers in all.chunks(SUPER_BLOCK) {
            with_minima += lost(numbers, &SuperBlock::nearest(numbers, &[], MOST));
            squares += numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            for group in numbers.chunks(GROUP) {
                let super::super::groups::Group { integers, scale } = super::super::q4::group(group, &[]);
                let off =
                    group.iter().zip(integers).map(|(x, q)| f64::from(x - f32::from(q) * scale.to_f32()));
                without += off.map(|off| off * off).sum::<f64>();
            }
        }
        assert!(
            with_minima < 0.8 * without && without < 0.004 * squares,
            "{with_minima} {without} {squares}"
        );
    }
}
