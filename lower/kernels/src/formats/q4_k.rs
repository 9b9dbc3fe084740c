//! Scales and minima of eight groups, for q4_k and q5_k: two steps `[2, 16]` as f16, and counts `[3, 16, 4]`, as in GGUF.

use ops::format::PANEL;

use super::q8::both_f16;
use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::isa::tiles::LINE;
use crate::matmul::{Panel, SUMS};

pub(super) struct Counted;

impl ReadScales for Counted {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let (steps, counts) = steps_and_counts(code, panel, start);
        Box::new(move |group| in_steps(steps, counts.of(group)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        let (steps, counts) = steps_and_counts(group.code(), panel, start);
        in_steps(steps, counts.at(group))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByChunk(|line, start| {
            let steps = [0, 1].map(|which| {
                line.number(start + (line.lane + which * PANEL) * 2, Element::F16).convert(Element::F32)
            });
            let words = [1, 2, 3].map(|l| line.number(start + (line.lane * 4 + l * LINE), Element::I32));
            let counts = StepCounts::unpacked(words);
            Box::new(move |group| in_steps(steps, counts.of(group)))
        })
    }
}

/// Returns the step of the scales, the step of the negated minima, and the counts of both.
fn steps_and_counts<'k>(
    code: &'k Code,
    panel: Panel<'k>,
    start: Value<'k>,
) -> ([Value<'k>; 2], StepCounts<'k>) {
    let both = both_f16(panel, start);
    let words = [1, 2, 3].map(|line| panel.line(start + line * LINE));
    let words = words.map(|line| line.bits(Type::lanes(PANEL, Element::I32)));
    let minus = code.constant(SUMS, 0.0);
    ([both[0], minus - both[1]], StepCounts::unpacked(words))
}

fn in_steps<'k>(steps: [Value<'k>; 2], counts: [Value<'k>; 2]) -> GroupScales<'k> {
    let [scales, minima] = counts.map(|count| count.convert(Element::F32));
    GroupScales { scales: vec![scales * steps[0]], minima: vec![minima * steps[1]] }
}

/// The counts of eight groups, one byte each, for scales and for minima. A count times the step that eight
/// groups share is a scale or a minimum. Each word has four groups.
#[derive(Clone, Copy)]
struct StepCounts<'k>([[Value<'k>; 2]; 2]);

impl<'k> StepCounts<'k> {
    /// Unpacks the counts from three 32-bit words of one weight row, or of one row per lane.
    fn unpacked([scales, minima, last]: [Value<'k>; 3]) -> Self {
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
    fn of(self, group: usize) -> [Value<'k>; 2] {
        self.0.map(|words| {
            let word = words[group / 4].shift_right(group % 4 * 8);
            if group % 4 == 3 { word } else { word.and(word.code().constant(word.ty(), 255.0)) }
        })
    }

    /// The counts of a group's scale and minimum, one weight row per lane, by an index at run time.
    fn at(self, group: Value<'k>) -> [Value<'k>; 2] {
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
