//! Scales and minima of groups of 16 as numbers of steps of four bits: the numbers are bytes `[16, 16]`, and f16 steps
//! `[2, 16]` follow.

use ops::format::{GROUPS, PANEL};

use super::q8::both_f16;
use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::matmul::{Panel, SUMS};

pub(super) struct FourBits;

const STEPS: usize = 2 * GROUPS * PANEL;

impl ReadScales for FourBits {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let steps = steps(panel, start);
        Box::new(move |group| of_group(panel, steps, start + code.index(2 * group * PANEL)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        of_group(panel, steps(panel, start), start + group * (2 * PANEL))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(|line, start, group| {
            let steps = [0, 1].map(|which| {
                let at = start + (line.lane * 2 + (STEPS + 2 * which * PANEL));
                line.number(at, Element::F16).convert(Element::F32)
            });
            let bytes = [0, 1].map(|half| {
                line.number(start + group * (2 * PANEL) + (line.lane + half * PANEL), Element::I8)
            });
            in_steps(bytes, steps)
        })
    }
}

/// Returns the step of the scales, and the negated step of the minima.
fn steps<'k>(panel: Panel<'k>, start: Value<'k>) -> [Value<'k>; 2] {
    let both = both_f16(panel, start + STEPS);
    [both[0], both[0].code().constant(SUMS, 0.0) - both[1]]
}

fn of_group<'k>(panel: Panel<'k>, steps: [Value<'k>; 2], at: Value<'k>) -> GroupScales<'k> {
    let bytes =
        [0, 1].map(|half| panel.weight.load(panel.at + at + half * PANEL, Type::lanes(PANEL, Element::I8)));
    in_steps(bytes, steps)
}

/// The scales and minima of the halves of a group. A byte has the scale in its lower four bits.
fn in_steps<'k>(bytes: [Value<'k>; 2], steps: [Value<'k>; 2]) -> GroupScales<'k> {
    let words = bytes.map(Value::widen);
    let scales = words.map(|word| {
        let count = word.and(word.code().constant(word.ty(), 15.0));
        count.convert(Element::F32) * steps[0]
    });
    let minima = words.map(|word| word.shift_right(4).convert(Element::F32) * steps[1]);
    GroupScales { scales: scales.to_vec(), minima: minima.to_vec() }
}
