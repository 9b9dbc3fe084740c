//! Unpacks the scales and minima of eight groups of a quantized weight.
//! `ops::format::SuperBlock::packed_counts` packs the scales and minima of a weight.

use ops::format::PANEL;

use crate::code::Value;

/// Contains the unpacked counts of eight groups, one byte per count, for scales and for minima. A
/// count is a whole number: the scale or the minimum of a group is the count times a step that
/// eight groups share. The first word contains the counts of the first four groups, and the second
/// word the counts of the last four groups.
#[derive(Clone, Copy)]
pub(crate) struct StepCounts<'k>([[Value<'k>; 2]; 2]);

impl<'k> StepCounts<'k> {
    /// Unpacks the counts from three 32-bit words of one weight row, or of several weight rows with
    /// one row per lane.
    pub(crate) fn unpacked([scales, minima, last]: [Value<'k>; 3]) -> Self {
        let masked =
            |words: Value<'k>, mask: u32| words.and(words.code().constant(words.ty(), f64::from(mask)));
        // For the last four groups, the two upper bits are above the six bits of the first four groups.
        let upper = |words: Value<'k>| masked(words.shift_right(2), 0x3030_3030);
        let low = |words: Value<'k>| masked(words, 0x0f0f_0f0f);
        Self([
            [masked(scales, 0x3f3f_3f3f), low(last).or(upper(scales))],
            [masked(minima, 0x3f3f_3f3f), low(last.shift_right(4)).or(upper(minima))],
        ])
    }

    /// Returns the counts for the scale and the minimum of one group.
    pub(crate) fn of(self, group: usize) -> [Value<'k>; 2] {
        self.0.map(|words| {
            let word = words[group / 4].shift_right(group % 4 * 8);
            if group % 4 == 3 { word } else { word.and(word.code().constant(word.ty(), 255.0)) }
        })
    }

    /// Returns the counts for the scale and the minimum of a group, for one weight row per lane;
    /// the kernel computes the group's index at run time.
    pub(crate) fn at(self, group: Value<'k>) -> [Value<'k>; 2] {
        let code = group.code();
        let four = code.index(4);
        let is_first = group.divide(four).equals(code.index(0));
        let bits = (group.remainder(four) * 8).number().broadcast(PANEL);
        self.0.map(|[first, last]| {
            let word = first.or_else(is_first, last).shift_right_by(bits);
            word.and(code.constant(word.ty(), 255.0))
        })
    }
}
