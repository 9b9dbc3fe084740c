//! The formats in which an archive stores the weights of matmuls. Kernels read the weights from
//! panels, in which sixteen rows of the matrix are side by side. A column of a panel has sixteen
//! numbers, and is a line of memory that fits the vectors of the processor. In contrast, StableHLO
//! code reads the groups in the order of the checkpoint, with the integers and the scales in
//! separate tensors.

mod blocks;
mod float_group;
mod panels;
mod search;
mod super_block;

use std::cmp::Ordering;

use half::{bf16, f16};

use crate::{ElementType, TensorType};

pub use blocks::{BlockFormat, ScaledFloats};
pub use float_group::{DOUBLED_FLOATS, FloatGroup, LARGEST_DOUBLED, LEAST_SCALE};
pub use super_block::{GROUPS, SUPER_BLOCK, SuperBlock};

/// The number of matrix rows that are side by side in a panel.
pub const PANEL: usize = 16;

/// The number of values of a weight row that have a common scale, in formats with scales.
pub const GROUP: usize = 32;

/// The version of the rule by which [`WeightFormat::quantize`] rounds numbers. If a new rule rounds
/// the same numbers to other integers, the version changes, and Tracewright bakes cached archives
/// again.
pub const ROUNDING: u32 = 3;

/// The number of bytes in a line of a panel. A line of a panel contains the same number of bytes of
/// each weight row.
const LINE: usize = PANEL * 4;

crate::words! {
    /// A storage format of a weight's numbers. In formats with groups, each number is an integer
    /// multiplied by the f16 scale of its group. The documentation of [`SuperBlock`] describes the
    /// formats with minima, and [`FloatGroup`] describes the format with four-bit floats.
    pub enum WeightFormat {
        /// The archive stores each number of the weight as f32.
        F32 = "f32",
        /// The archive stores each number of the weight as f16.
        F16 = "f16",
        /// The archive stores each number of the weight as bf16.
        Bf16 = "bf16",
        /// Symmetric integers of eight bits in groups of 32. The weight format needs 8.5 bits per
        /// number.
        Q8 = "q8",
        /// Symmetric integers of four bits in groups of 32. The weight format needs 4.5 bits per
        /// number.
        Q4 = "q4",
        /// Integers of four bits in groups of 32. Each group has a scale and a minimum of six bits.
        /// The scales of eight groups are multiples of one step, and the minima of the groups are
        /// multiples of another step. The weight format needs 4.5 bits per number.
        Q4K = "q4_k",
        /// Floats of four bits in groups of 32, with a power of two as the scale of each group:
        /// 4.25 bits per number. Published checkpoints contain weights in the format mxfp4.
        Mxfp4 = "mxfp4",
    }
}

crate::words! {
    /// The number of bits of the integers to which a program rounds activations, if the weights are
    /// integers.
    #[derive(Default)]
    pub enum ActivationBits {
        /// The program rounds each group of activations to integers from −127 to 127.
        Eight = "8",
        /// The program rounds the groups with outliers to 16 bits, and all other groups to 8 bits.
        /// A group has an outlier if its largest magnitude is above the [`outlier_limit`] of the
        /// row.
        #[default]
        Mixed = "mixed",
        /// The program rounds each group of activations to 16 bits: first to integers from −127 to
        /// 127, and then the rounding errors to integers from −127 to 127.
        Sixteen = "16",
    }
}

/// With [`ActivationBits::Mixed`], a group of activations has an outlier if its largest magnitude
/// is more than this multiple of the geometric mean over the row. In normally distributed
/// activations, few groups have outliers. In SmolLM2, one of eight groups has outliers, and these
/// groups cause three quarters of the KL divergence of 8-bit activations.
pub const OUTLIER: f32 = 2.0;

/// The number of lower bits of a float that [`outlier_limit`] ignores, so that the sum over a row
/// fits into 31 bits.
pub const IGNORED_BITS: u32 = 12;

/// Returns [`OUTLIER`] times the mean of the largest magnitudes of a row's groups. Groups of zeros
/// do not count.
///
/// The mean is the mean of the bits of the floats. As integers, the bits of positive floats grow
/// almost like the logarithms of the floats, so the mean is almost the geometric mean. A sum of
/// integers is the same in any order.
pub fn outlier_limit(largest: impl Iterator<Item = f32>) -> f32 {
    let add = |(sum, count), x: f32| (sum + (x.to_bits() >> IGNORED_BITS), count + 1);
    let (sum, count) = largest.filter(|&x| x > 0.0).fold((0, 0), add);
    f32::from_bits((sum / count.max(1)) << IGNORED_BITS) * OUTLIER
}

/// The largest integer of quantized activations.
pub const LARGEST_ACTIVATION: f32 = 127.0;

/// The number of steps into which 16-bit activations divide the distance between two 8-bit
/// integers. The rounding error of an 8-bit integer is at most half of this distance, so 127 steps.
pub const RESIDUAL_STEPS: f32 = 254.0;

crate::words! {
    /// One of the tensors that together contain a weight, in a format with groups.
    pub enum GroupPart {
        /// The tensor contains the integers of the weight, which are multiplied by the scales of
        /// their groups.
        Integers = "integers",
        /// The tensor contains the scales of the groups. In formats with minima, the tensor
        /// contains the steps of the scales and minima instead of the scales.
        Scales = "scales",
        /// The tensor contains the scale and the minimum of each group, as a number of steps.
        Counts = "counts",
    }
}

/// A group: the quantized values of a weight row that have a common scale. If a group has fewer
/// than [`GROUP`] numbers, zeros fill the group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    pub integers: [i8; GROUP],
    pub scale: f16,
}

/// The values of a weight row that Tracewright quantizes together: a group or a block of groups.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantized {
    Group(Group),
    SuperBlock(Box<SuperBlock>),
    Floats(FloatGroup),
}

impl Quantized {
    /// Whether the scales are finite. [`WeightFormat::quantize`] returns a scale that is not finite
    /// for numbers that are NaN, infinite, or too large for the scale's type.
    pub fn is_finite(&self) -> bool {
        match self {
            Self::Group(group) => group.scale.is_finite(),
            Self::SuperBlock(block) => block.steps.iter().all(|step| step.is_finite()),
            Self::Floats(group) => group.exponent != u8::MAX,
        }
    }

    /// Returns the quantized values in the format `format`; `None` if the format cannot represent
    /// the values.
    pub fn kept_in(self, format: WeightFormat) -> Option<Self> {
        match (format, self) {
            (WeightFormat::Q8, Self::Floats(group)) => group.in_integers().map(Self::Group),
            (WeightFormat::Q8, kept @ Self::Group(_))
            | (WeightFormat::Q4K, kept @ Self::SuperBlock(_))
            | (WeightFormat::Mxfp4, kept @ Self::Floats(_)) => Some(kept),
            (WeightFormat::Q4, Self::Group(group)) => {
                group.integers.iter().all(|x| (-8..8).contains(x)).then_some(Self::Group(group))
            }
            _ => None,
        }
    }
}

impl WeightFormat {
    /// Returns the format that stores numbers of the given element type without loss.
    pub fn dense(element: ElementType) -> Option<Self> {
        match element {
            ElementType::F32 => Some(Self::F32),
            ElementType::F16 => Some(Self::F16),
            ElementType::Bf16 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Returns the element type that the format stores without loss; `None` for quantized formats.
    pub fn element(self) -> Option<ElementType> {
        match self {
            Self::F32 => Some(ElementType::F32),
            Self::F16 => Some(ElementType::F16),
            Self::Bf16 => Some(ElementType::Bf16),
            Self::Q8 | Self::Q4 | Self::Q4K | Self::Mxfp4 => None,
        }
    }

    /// Returns the number of values of a weight row that Tracewright quantizes together; `None` for
    /// formats without groups.
    pub fn together(self) -> Option<usize> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Q8 | Self::Q4 | Self::Mxfp4 => Some(GROUP),
            Self::Q4K => Some(SUPER_BLOCK),
        }
    }

    /// Returns the number of matrix columns in a chunk of a panel. A chunk is a range of columns in
    /// a panel; the panel stores all scales of the chunk together.
    pub fn columns(self) -> usize {
        match self {
            Self::Q4K => SUPER_BLOCK,
            Self::Mxfp4 => 4 * GROUP,
            _ => 2 * GROUP,
        }
    }

    /// Returns the number of bytes for the scales of a chunk. The scales come before the integers
    /// of the chunk.
    pub fn scales(self) -> usize {
        match self {
            Self::Q4K => 4 * LINE,
            _ => LINE,
        }
    }

    /// Returns the type of the tensor that contains a packed matrix in the format. Zeros fill the
    /// last panel and the last columns of the packed matrix.
    ///
    /// In formats without groups, the shape is `[outputs / 16, inputs, 16, 1]`. For bf16, the panel
    /// stores two columns together, and the shape is `[outputs / 16, inputs / 2, 16, 2]`. In
    /// formats with scales, the tensor contains bytes `[outputs / 16, inputs / 64, bytes]`, in
    /// chunks of two groups. A chunk begins with its scales, which have the shape `[2, 16]`. After
    /// the scales, a chunk of 8-bit integers has 16 lines, which contain four columns `[16, 4]`
    /// each. The lines contain each 8-bit integer plus 128. A chunk of 4-bit integers has 8 lines
    /// `[16, 4]` after the scales, which contain each integer plus 8. The low four bits of the
    /// bytes contain four columns, and the high four bits contain the next four columns. In formats
    /// with minima, the shape is `[outputs / 16, inputs / 256, bytes]`. Each chunk begins with the
    /// steps `[2, 16]` and the counts `[3, 16, 4]` ([`SuperBlock::packed_counts`]). After the
    /// counts, a chunk has 32 lines, which contain the integers without an added number. For 4-bit
    /// floats, the shape is `[outputs / 16, inputs / 128, bytes]`. Each chunk begins with the
    /// exponents `[4, 16]` of its groups, and the next 16 lines contain the floats.
    pub fn packed(self, outputs: usize, inputs: usize) -> TensorType {
        let panels = outputs.div_ceil(PANEL);
        match self {
            Self::F32 => TensorType::new(ElementType::F32, [panels, inputs, PANEL, 1]),
            Self::F16 => TensorType::new(ElementType::F16, [panels, inputs, PANEL, 1]),
            Self::Bf16 => TensorType::new(ElementType::Bf16, [panels, inputs.div_ceil(2), PANEL, 2]),
            Self::Q8 | Self::Q4 | Self::Q4K | Self::Mxfp4 => {
                TensorType::new(ElementType::I8, [panels, inputs.div_ceil(self.columns()), self.chunk()])
            }
        }
    }

    /// Returns the number of bytes in a chunk of a panel.
    fn chunk(self) -> usize {
        self.scales() + self.columns() * PANEL / self.in_a_byte().unwrap_or(1)
    }

    /// Returns the number of quantized integers in a byte; `None` for formats without groups.
    pub fn in_a_byte(self) -> Option<usize> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Q8 => Some(1),
            Self::Q4 | Self::Q4K | Self::Mxfp4 => Some(2),
        }
    }

    /// Returns the tensors that contain a matrix in a format with groups; the list is empty for
    /// formats without groups.
    pub fn parts(self) -> &'static [GroupPart] {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => &[],
            Self::Q8 | Self::Q4 | Self::Mxfp4 => &[GroupPart::Integers, GroupPart::Scales],
            Self::Q4K => &[GroupPart::Integers, GroupPart::Scales, GroupPart::Counts],
        }
    }

    /// Returns the type of one of the tensors that contain a matrix in a format with groups, in row
    /// order; `None` if the format has no such tensor.
    ///
    /// The tensor of scales is f16 `[outputs, groups]`. The tensor of integers is i8 `[outputs,
    /// groups, 32]`, or `[outputs, groups, 16]` for 4-bit integers. With 4-bit integers, a byte
    /// contains the integer a of a column, and the integer b of the column 16 positions later. The
    /// value of the byte is 16 b + a modulo 256. Zeros fill the last group. In formats with minima,
    /// the tensor of scales contains the steps of scales and minima `[outputs, groups / 8, 2]`, and
    /// the tensor of counts is i8 `[outputs, groups, 2]`. In formats with minima, zeros fill the
    /// last block of eight groups, and 8 is subtracted from each integer to make the integer
    /// signed. The four bits of a float are stored like a signed integer. For four-bit floats, the
    /// tensor of scales contains half of the scale of each group, as bf16.
    pub fn grouped(self, part: GroupPart, outputs: usize, inputs: usize) -> Option<TensorType> {
        let blocks = inputs.div_ceil(self.together()?);
        let (groups, bytes) = (blocks * self.together()? / GROUP, GROUP / self.in_a_byte()?);
        Some(match (part, self) {
            (GroupPart::Integers, _) => TensorType::new(ElementType::I8, [outputs, groups, bytes]),
            (GroupPart::Scales, Self::Q4K) => TensorType::new(ElementType::F16, [outputs, blocks, 2]),
            (GroupPart::Scales, Self::Mxfp4) => TensorType::new(ElementType::Bf16, [outputs, groups]),
            (GroupPart::Scales, _) => TensorType::new(ElementType::F16, [outputs, groups]),
            (GroupPart::Counts, Self::Q4K) => TensorType::new(ElementType::I8, [outputs, groups, 2]),
            (GroupPart::Counts, _) => return None,
        })
    }

    /// Fills `bytes` with one row of a matrix, for one of the tensors that contain a matrix in a
    /// format with groups. The closure `known` can return the quantized values that begin at a
    /// given column. The function quantizes those values for which `known` returns `None`. Returns
    /// whether all scales of the row are finite.
    ///
    /// # Panics
    /// Panics if the format has no groups, or if the length of `bytes` is not the length of one row
    /// in the tensor.
    pub fn group_row(
        self,
        part: GroupPart,
        row: &[f32],
        bytes: &mut [u8],
        known: impl Fn(usize) -> Option<Quantized>,
    ) -> bool {
        let mut finite = true;
        let together = self.together().unwrap_or(row.len()).max(1);
        let each = bytes.len() / row.len().div_ceil(together).max(1);
        let runs = row.chunks(together).zip(bytes.chunks_exact_mut(each));
        for (index, (numbers, bytes)) in runs.enumerate() {
            let quantized = known(index * together).unwrap_or_else(|| self.quantize(numbers));
            finite &= quantized.is_finite();
            match quantized {
                Quantized::Group(Group { integers, scale }) => match part {
                    GroupPart::Scales => bytes.copy_from_slice(&scale.to_le_bytes()),
                    _ => self.store_integers(&integers, bytes),
                },
                Quantized::Floats(FloatGroup { codes, exponent }) => match part {
                    GroupPart::Scales => {
                        let scale = bf16::from_f32(FloatGroup::half_scale(exponent));
                        bytes.copy_from_slice(&scale.to_le_bytes());
                    }
                    _ => self.store_integers(&codes.map(|code| (code << 4) as i8 >> 4), bytes),
                },
                Quantized::SuperBlock(block) => match part {
                    GroupPart::Scales => {
                        bytes.copy_from_slice(block.steps.map(f16::to_le_bytes).as_flattened())
                    }
                    GroupPart::Counts => bytes.copy_from_slice(block.counts.as_flattened()),
                    GroupPart::Integers => {
                        for (integers, bytes) in block.integers.iter().zip(bytes.chunks_exact_mut(GROUP / 2))
                        {
                            self.store_integers(&integers.map(|integer| integer as i8 - LEAST), bytes);
                        }
                    }
                },
            }
        }
        finite
    }

    fn store_integers(self, integers: &[i8; GROUP], bytes: &mut [u8]) {
        let (first, second) = integers.split_at(bytes.len());
        for (i, (byte, a)) in bytes.iter_mut().zip(first).enumerate() {
            let b = second.get(i).copied().unwrap_or(0);
            *byte = (b << 4).wrapping_add(*a) as u8;
        }
    }

    /// Returns the integers of a group, in units of the stored scale, read from bytes that
    /// [`group_row`](Self::group_row) wrote.
    pub fn integers(self, bytes: &[i8]) -> Vec<i8> {
        let least = if self == Self::Q4K { LEAST } else { 0 };
        let integer = |stored: i8| match self {
            Self::Mxfp4 => DOUBLED_FLOATS[(stored & 15) as usize],
            _ => stored + least,
        };
        match self.in_a_byte() {
            Some(2) => {
                let a = |byte: i8| byte << 4 >> 4;
                let b = |byte: i8| byte.wrapping_sub(a(byte)) >> 4;
                let both = bytes.iter().map(|&byte| a(byte)).chain(bytes.iter().map(|&byte| b(byte)));
                both.map(integer).collect()
            }
            _ => bytes.to_vec(),
        }
    }

    /// Returns the number that the format adds to each integer before a panel stores the integer.
    pub fn offset(self) -> u8 {
        match self {
            Self::Q8 => 128,
            Self::Q4 => 8,
            Self::F32 | Self::F16 | Self::Bf16 | Self::Q4K | Self::Mxfp4 => 0,
        }
    }

    /// Quantizes the values of a group or a block to integers and scales.
    ///
    /// With eight bits, the number with the largest magnitude becomes an integer near ±127, and
    /// usually −8 with four bits. With four bits, the scale can be negative, because the integer −8
    /// has no positive counterpart. If a number is NaN or infinite, the scale is not finite.
    pub fn quantize(self, numbers: &[f32]) -> Quantized {
        self.quantize_weighted(numbers, &[])
    }

    /// Quantizes like [`quantize`](Self::quantize), but minimizes the weighted sum of the squared
    /// errors. The list of `weights` is empty, or contains a positive weight for the squared error
    /// of each value.
    pub fn quantize_weighted(self, numbers: &[f32], weights: &[f32]) -> Quantized {
        match self {
            Self::Q4K => Quantized::SuperBlock(Box::new(SuperBlock::nearest(numbers, weights))),
            Self::Mxfp4 => Quantized::Floats(FloatGroup::nearest(numbers, weights)),
            _ => Quantized::Group(self.group(numbers, weights)),
        }
    }

    fn group(self, group: &[f32], weights: &[f32]) -> Group {
        // The array has a fixed length and the code has no branches, so that the compiler uses
        // vector instructions.
        let mut numbers = [0.0; GROUP];
        numbers.iter_mut().zip(group).for_each(|(number, x)| *number = *x);
        if !all_finite(&numbers) {
            return Group { integers: [0; GROUP], scale: f16::NAN };
        }
        let largest = largest(&numbers);
        let (scale, least, most) = match self {
            Self::Q4 if largest == 0.0 => (0.0, -8.0, 7.0),
            Self::Q4 => {
                let scale = search::scale(&numbers, &group_weights(weights), largest).to_f32();
                // If the scale is 0 or infinite as f16, the code computes the integers with the
                // scale as f32.
                let is_one = scale.is_finite() && scale != 0.0;
                (if is_one { scale } else { largest / -8.0 }, -8.0, 7.0)
            }
            _ => {
                let largest = largest.abs();
                let scale = search::scale_of_bytes(&numbers, &group_weights(weights), largest);
                (scale.unwrap_or(largest / 127.0), -127.0, 127.0)
            }
        };
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut integers = [0; GROUP];
        for (integer, x) in integers.iter_mut().zip(numbers) {
            let units: f32 = x * inverse;
            let units = if units < least { least } else { units };
            let units = if units > most { most } else { units };
            // The code rounds halves away from zero, and not to the even integer.
            let nearest = (units + INTEGERS) - INTEGERS;
            let half = 0.5f32.copysign(units);
            let rounded = if units - nearest == half { nearest + 2.0 * half } else { nearest };
            *integer = (rounded + INTEGERS).to_bits() as i8;
        }
        Group { integers, scale: f16::from_f32(scale) }
    }
}

/// The number that the format subtracts from an unsigned 4-bit integer to make the integer signed.
const LEAST: i8 = 8;

/// Between 2²³ and 2²⁴, neighbouring f32 numbers have a distance of 1. The sum of a small number
/// and 12,582,912 therefore contains the small number, rounded to an integer, in its lowest bits.
const INTEGERS: f32 = 12_582_912.0;

/// Whether no value is NaN or infinite. The function has no branches, so that the compiler uses
/// vector instructions.
pub fn all_finite(numbers: &[f32]) -> bool {
    numbers.iter().fold(true, |all, x| all & x.is_finite())
}

/// Returns the error weights for the values of a group: the given `weights`, or 1 for each value if
/// `weights` is empty.
fn group_weights(weights: &[f32]) -> [f32; GROUP] {
    let mut all = [if weights.is_empty() { 1.0 } else { weights[0] }; GROUP];
    all.iter_mut().zip(weights).for_each(|(all, weight)| *all = *weight);
    all
}

/// Sums over a group in eight lanes, so that the compiler uses vector instructions for the whole
/// sum.
fn sums<const N: usize>(of: impl Fn(usize) -> [f32; N]) -> [f32; N] {
    let mut lanes = [[0.0f32; 8]; N];
    for start in (0..GROUP).step_by(8) {
        for lane in 0..8 {
            let terms = of(start + lane);
            lanes.iter_mut().zip(terms).for_each(|(lanes, term)| lanes[lane] += term);
        }
    }
    lanes.map(|lanes| lanes.into_iter().sum())
}

/// Returns the first value of the list that has the largest magnitude, or 0 if all values are zero.
fn largest(numbers: &[f32; GROUP]) -> f32 {
    // The code finds the largest magnitude on each side of zero, in eight lanes.
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (mut above, mut below) = ([0.0; 8], [0.0; 8]);
    for eight in numbers.as_chunks::<8>().0 {
        for lane in 0..8 {
            above[lane] = larger(eight[lane], above[lane]);
            below[lane] = larger(-eight[lane], below[lane]);
        }
    }
    let [above, below] = [above, below].map(|lanes| lanes.into_iter().fold(0.0, larger));
    match above.total_cmp(&below) {
        Ordering::Greater => above,
        Ordering::Less => -below,
        // Adding 0 turns −0 into 0.
        Ordering::Equal => numbers.iter().copied().find(|x| x.abs() == above).unwrap_or(0.0) + 0.0,
    }
}

/// Rounds a row of activations in the same way as a matmul with quantized weights. In groups of 32,
/// each number becomes an integer multiplied by the group's scale. In each group, the value with
/// the largest magnitude becomes the largest integer or the negative of the largest integer. With
/// 16 bits, the rounding errors of a group become integers in the same way. A value halfway between
/// two integers is rounded to the even integer. All computation is in f32.
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

#[cfg(test)]
mod tests;
