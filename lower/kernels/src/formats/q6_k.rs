//! Scales of groups of 16 as numbers of steps, or of parts of a step: the counts are bytes `[16, 16]`, and f16 steps
//! `[16]` follow.

use ops::format::{GROUPS, PANEL};

use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::matmul::Panel;

/// A count is a number of so many parts of a step, a power of two.
pub(super) struct Sixteenths<const PARTS: usize>;

const STEPS: usize = 2 * GROUPS * PANEL;

impl<const PARTS: usize> ReadScales for Sixteenths<PARTS> {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let step = unit::<PARTS>(step(panel, start));
        Box::new(move |group| in_steps(panel, step, start + code.index(2 * group * PANEL)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        in_steps(panel, unit::<PARTS>(step(panel, start)), start + group * (2 * PANEL))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(|line, start, group| {
            let step = line.number(start + (line.lane * 2 + STEPS), Element::F16).convert(Element::F32);
            let step = unit::<PARTS>(step);
            let scales = [0, 1].map(|half| {
                let count =
                    line.number(start + group * (2 * PANEL) + (line.lane + half * PANEL), Element::I8);
                count.convert(Element::F32) * step
            });
            GroupScales { scales: scales.to_vec(), minima: Vec::new() }
        })
    }
}

/// Part of a step.
fn unit<const PARTS: usize>(step: Value<'_>) -> Value<'_> {
    if PARTS == 1 { step } else { step * step.code().constant(step.ty(), 1.0 / PARTS as f64) }
}

fn step<'k>(panel: Panel<'k>, start: Value<'k>) -> Value<'k> {
    let bytes = panel.weight.load(panel.at + start + STEPS, Type::lanes(2 * PANEL, Element::I8));
    bytes.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32)
}

/// Reads the scales of the two halves of 32 columns.
fn in_steps<'k>(panel: Panel<'k>, step: Value<'k>, at: Value<'k>) -> GroupScales<'k> {
    let scales = [0, 1].map(|half| {
        let counts = panel.weight.load(panel.at + at + half * PANEL, Type::lanes(PANEL, Element::I8));
        counts.convert(Element::F32) * step
    });
    GroupScales { scales: scales.to_vec(), minima: Vec::new() }
}
