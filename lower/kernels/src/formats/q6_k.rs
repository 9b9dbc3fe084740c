//! Scales of groups of 16 as numbers of steps: the counts are bytes `[16, 16]`, and f16 steps `[16]` follow.

use ops::format::{GROUPS, PANEL};

use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::matmul::Panel;

pub(super) struct Sixteenths;

const STEPS: usize = 2 * GROUPS * PANEL;

impl ReadScales for Sixteenths {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let step = step(panel, start);
        Box::new(move |group| in_steps(panel, step, start + code.index(2 * group * PANEL)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        in_steps(panel, step(panel, start), start + group * (2 * PANEL))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(|line, start, group| {
            let step = line.number(start + (line.lane * 2 + STEPS), Element::F16).convert(Element::F32);
            let scales = [0, 1].map(|half| {
                let count =
                    line.number(start + group * (2 * PANEL) + (line.lane + half * PANEL), Element::I8);
                count.convert(Element::F32) * step
            });
            GroupScales { scales: scales.to_vec(), minima: Vec::new() }
        })
    }
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
