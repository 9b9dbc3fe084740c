//! Weights in the order of the checkpoint, with their integers and scales in separate tensors.

use half::{bf16, f16};

use super::{GROUP, GROUPS, GroupPart, Groups, Integers, Quantized, Scales, WeightFormat};
use crate::{ElementType, TensorType};

impl WeightFormat {
    /// The tensors that contain a matrix in this format; none for formats without groups.
    pub fn parts(self) -> &'static [GroupPart] {
        self.groups().map_or(&[], GroupPart::of)
    }

    /// Returns the type of one of the tensors that contain a matrix in a format with groups, in row order;
    /// `None` if the format has no such tensor. The tensor of integers is i8 `[outputs, groups, bytes]`,
    /// where groups have 32 columns and zeros fill the last block. The bytes of a group contain the planes of
    /// the codes, from the lowest bits on. Each plane is stored as signed integers: half of its range is
    /// subtracted, except for the codes of a table. With a plane of 4 bits, a byte contains the integer a of
    /// a column, and the integer b of the column 16 positions later, as 16 b + a modulo 256. The tensor of
    /// scales is `[outputs, groups]`, or `[outputs, groups, 2]` with minima. With groups of 16, it has two
    /// scales for each group of integers. If scales are multiples of steps, it is f16 `[outputs, blocks, steps]`,
    /// and the tensor of counts is i8 `[outputs, groups, counts]`.
    pub fn grouped(self, part: GroupPart, outputs: usize, inputs: usize) -> Option<TensorType> {
        let groups = self.groups()?;
        let blocks = inputs.div_ceil(groups.block.numbers());
        let count = blocks * groups.block.numbers() / GROUP;
        let (parts, steps) = (groups.parts(), groups.scales_of_group());
        Some(match part {
            GroupPart::Integers => TensorType::new(ElementType::I8, [outputs, count, 4 * groups.bits()]),
            GroupPart::Scales if groups.in_steps => {
                TensorType::new(ElementType::F16, [outputs, blocks, steps])
            }
            GroupPart::Scales if groups.minima => TensorType::new(groups.element, [outputs, count, steps]),
            GroupPart::Scales => TensorType::new(groups.element, [outputs, count * parts]),
            GroupPart::Counts if groups.in_steps => {
                TensorType::new(ElementType::I8, [outputs, count, parts * steps])
            }
            GroupPart::Counts => return None,
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
        let groups = self.facts();
        let mut finite = true;
        let together = groups.block.numbers();
        let each = bytes.len() / row.len().div_ceil(together).max(1);
        let runs = row.chunks(together).zip(bytes.chunks_exact_mut(each));
        for (index, (numbers, bytes)) in runs.enumerate() {
            let block = known(index * together).unwrap_or_else(|| self.quantize(numbers)).bytes;
            finite &= groups.is_finite(&block);
            match (part, (groups.read_scales)(&block)) {
                (GroupPart::Integers, _) => {
                    let codes = groups.codes(&block);
                    let codes = codes.as_chunks::<GROUP>().0.iter();
                    codes
                        .zip(bytes.chunks_exact_mut(4 * groups.bits()))
                        .for_each(|(codes, bytes)| groups.store_signed(codes, bytes));
                }
                (_, Scales::Each(both)) => {
                    let numbers = both[..groups.scales_of_group()].iter();
                    let words = numbers.flat_map(|&number| match groups.element {
                        ElementType::F32 => number.to_le_bytes().to_vec(),
                        ElementType::Bf16 => bf16::from_f32(number).to_le_bytes().to_vec(),
                        _ => f16::from_f32(number).to_le_bytes().to_vec(),
                    });
                    // All groups of a longer block have the same scale.
                    let words: Vec<u8> = words.collect();
                    bytes.chunks_exact_mut(words.len()).for_each(|bytes| bytes.copy_from_slice(&words));
                }
                (_, Scales::All(scales)) => {
                    let words = scales.map(|scale| f16::from_f32(scale).to_le_bytes());
                    bytes.copy_from_slice(&words.as_flattened()[..bytes.len()]);
                }
                (GroupPart::Scales, Scales::InSteps(steps)) => {
                    let steps = steps.steps.map(f16::to_le_bytes);
                    bytes.copy_from_slice(&steps.as_flattened()[..bytes.len()]);
                }
                (GroupPart::Counts, Scales::InSteps(steps)) => {
                    let counts = steps.counts.iter().flat_map(|counts| &counts[..groups.scales_of_group()]);
                    bytes.iter_mut().zip(counts).for_each(|(byte, count)| *byte = *count as u8);
                }
            }
        }
        finite
    }

    /// Returns the integers of a group, in units of the stored scale, from [`group_row`](Self::group_row).
    pub fn integers(self, bytes: &[i8]) -> Vec<i8> {
        let Some(groups) = self.groups() else { return bytes.to_vec() };
        let mut codes = [0u8; GROUP];
        let mut rest = bytes;
        for (shift, width) in groups.planes() {
            let (plane, after) = rest.split_at(4 * width);
            for (place, &byte) in plane.iter().enumerate() {
                let mut left = byte;
                for field in 0..8 / width {
                    let signed = left << (8 - width) >> (8 - width);
                    left = if width < 8 { left.wrapping_sub(signed) >> width } else { 0 };
                    let bits = (signed as u8 ^ groups.sign(width)) & groups.mask(width);
                    codes[place + field * 4 * width] |= bits << shift;
                }
            }
            rest = after;
        }
        codes.map(|code| groups.integer(code)).to_vec()
    }

    /// Returns the places of the scale of the number at `place` in a group. A place is an index in the
    /// tensor of scales and, with steps, an index in the tensor of counts. With minima, the place of
    /// the minimum follows.
    pub(crate) fn scale_places(self, group: usize, place: usize) -> Vec<(usize, Option<usize>)> {
        let Some(groups) = self.groups() else { return Vec::new() };
        let (each, own) = (groups.scales_of_group(), group * groups.parts() + place / groups.group);
        let place = |which: usize| match each * own + which {
            own if groups.in_steps => (group / GROUPS * each + which, Some(own)),
            own => (own, None),
        };
        (0..each).map(place).collect()
    }
}

impl Groups {
    fn mask(&self, width: usize) -> u8 {
        u8::MAX >> (8 - width)
    }

    /// The bit that makes a plane of a code signed.
    fn sign(&self, width: usize) -> u8 {
        match self.integers {
            Integers::Minus(_) => 1 << (width - 1),
            Integers::Table(_) => 0,
        }
    }

    /// The number to add to the signed parts of an integer, each times the value of its lowest bit.
    pub fn added_to_signed(&self) -> i32 {
        let halves: i32 = self.planes().map(|(shift, width)| i32::from(self.sign(width)) << shift).sum();
        halves - i32::from(self.zero())
    }

    fn store_signed(&self, codes: &[u8; GROUP], bytes: &mut [u8]) {
        let mut rest = bytes;
        for (shift, width) in self.planes() {
            let (plane, after) = rest.split_at_mut(4 * width);
            for (place, byte) in plane.iter_mut().enumerate() {
                *byte = (0..8 / width).fold(0u8, |sum, field| {
                    let code = codes[place + field * 4 * width] >> shift ^ self.sign(width);
                    let signed = (code << (8 - width)) as i8 >> (8 - width);
                    sum.wrapping_add((signed as u8) << (width * field))
                });
            }
            rest = after;
        }
    }
}
