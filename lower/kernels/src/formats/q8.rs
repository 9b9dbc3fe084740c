//! Scales of groups as f16, `[2, 16]` per chunk: q8 and q4.

use ops::format::PANEL;

use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::isa::tiles::LINE;
use crate::matmul::Panel;

pub(super) struct Halves;

impl ReadScales for Halves {
    fn of_chunk<'k>(&self, _: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let both = both_f16(panel, start);
        Box::new(move |group| (both[group], None))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        let at = panel.at + start + group * (LINE / 2);
        let halves = panel.weight.load(at, Type::lanes(LINE / 2, Element::I8));
        (halves.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32), None)
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(|line, start, group| {
            let scale = group * PANEL + line.lane;
            (line.number(start + scale * 2, Element::F16).convert(Element::F32), None)
        })
    }
}

/// Reads two f16 of each row from the first line of a chunk.
pub(super) fn both_f16<'k>(panel: Panel<'k>, start: Value<'k>) -> [Value<'k>; 2] {
    let halves = panel.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
    [0, 1].map(|half| halves.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32))
}
