//! Scales of groups as f16, `[2, 16]` per chunk: q8, q4 and q5_0. In q4_1 and q5_1, the least numbers follow
//! as f16 `[2, 16]`.

use ops::format::PANEL;

use super::{ChunkScales, GroupScales, Line, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::isa::tiles::LINE;
use crate::matmul::Panel;

pub(super) struct Halves {
    pub(super) minima: bool,
}

impl ReadScales for Halves {
    fn of_chunk<'k>(&self, _: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let scales = both_f16(panel, start);
        let least = self.minima.then(|| both_f16(panel, start + LINE));
        Box::new(move |group| GroupScales {
            scales: vec![scales[group]],
            minima: least.map(|least| least[group]).into_iter().collect(),
        })
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        let at = panel.at + start + group * (LINE / 2);
        let read = |at: Value<'k>| {
            let halves = panel.weight.load(at, Type::lanes(LINE / 2, Element::I8));
            halves.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32)
        };
        let scales = vec![read(at)];
        GroupScales { scales, minima: self.minima.then(|| read(at + LINE)).into_iter().collect() }
    }

    fn of_row(&self) -> RowScales {
        if !self.minima {
            return RowScales::ByGroup(|line, start, group| GroupScales::one(of_row(line, start, group)));
        }
        RowScales::ByGroup(|line, start, group| {
            let scales = vec![of_row(line, start, group)];
            let least = of_row(line, start + LINE, group);
            GroupScales { scales, minima: vec![least.code().constant(least.ty(), 0.0) - least] }
        })
    }
}

fn of_row<'k>(line: Line<'k>, start: Value<'k>, group: Value<'k>) -> Value<'k> {
    let scale = group * PANEL + line.lane;
    line.number(start + scale * 2, Element::F16).convert(Element::F32)
}

/// Reads two f16 of each row from a line.
pub(super) fn both_f16<'k>(panel: Panel<'k>, start: Value<'k>) -> [Value<'k>; 2] {
    let halves = panel.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
    [0, 1].map(|half| halves.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32))
}
