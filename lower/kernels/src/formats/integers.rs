//! Scales of groups of 32 or 128 as f16 `[groups, 16]` per chunk of 128 columns. In formats with zero points, these
//! follow as `[groups, 8]`: a byte has the four bits of row i in its lower half, and those of row i + 8 in its upper.

use ops::format::PANEL;

use super::{ChunkScales, GroupScales, Line, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::matmul::{Panel, SUMS};

/// The number of groups in a chunk of 128 columns, and whether they have zero points.
pub(super) struct Spans<const GROUPS: usize, const ZEROS: bool>;

/// Groups of 32 values in a chunk.
const PARTS: usize = 4;

impl<const GROUPS: usize, const ZEROS: bool> ReadScales for Spans<GROUPS, ZEROS> {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        if GROUPS == 1 {
            let only = of_group::<GROUPS, ZEROS>(panel, start, code.index(0));
            return Box::new(move |_| only.clone());
        }
        Box::new(move |group| of_group::<GROUPS, ZEROS>(panel, start, code.index(group)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        let code = group.code();
        let own = if GROUPS == PARTS { group } else { code.index(0) };
        of_group::<GROUPS, ZEROS>(panel, start, own)
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(of_row::<GROUPS, ZEROS>)
    }
}

/// The minima are added to sums, so they are negative.
fn of_group<'k, const GROUPS: usize, const ZEROS: bool>(
    panel: Panel<'k>,
    start: Value<'k>,
    group: Value<'k>,
) -> GroupScales<'k> {
    let at = panel.at + start;
    let halves = panel.weight.load(at + group * (2 * PANEL), Type::lanes(2 * PANEL, Element::I8));
    let scale = halves.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32);
    if !ZEROS {
        return GroupScales::one(scale);
    }
    let zeros = at + (group * (PANEL / 2) + 2 * PANEL * GROUPS);
    let both = panel.weight.load(zeros, Type::lanes(PANEL / 2, Element::I8)).widen();
    let rows: Vec<usize> = (0..PANEL).collect();
    let lower = both.and(both.code().constant(both.ty(), 15.0));
    let zero = lower.pick(both.shift_right(4), &rows).convert(Element::F32);
    GroupScales { scales: vec![scale], minima: vec![(zero.code().constant(SUMS, 0.0) - zero) * scale] }
}

fn of_row<'k, const GROUPS: usize, const ZEROS: bool>(
    line: Line<'k>,
    start: Value<'k>,
    group: Value<'k>,
) -> GroupScales<'k> {
    let code = group.code();
    let group = if GROUPS == PARTS { group } else { code.index(0) };
    let scale = line.number(start + (group * PANEL + line.lane) * 2, Element::F16).convert(Element::F32);
    if !ZEROS {
        return GroupScales::one(scale);
    }
    let half = code.index(PANEL / 2);
    let at = start + (group * (PANEL / 2) + line.lane.remainder(half) + 2 * PANEL * GROUPS);
    let both = line.number(at, Element::I8).widen();
    let shift = (line.lane.divide(half) * 4).number();
    let zero = both.shift_right_by(shift).and(code.constant(both.ty(), 15.0)).convert(Element::F32);
    GroupScales { scales: vec![scale], minima: vec![zero * scale] }
}
