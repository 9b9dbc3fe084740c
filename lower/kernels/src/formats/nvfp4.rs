//! Scales of groups of 16 that are floats of eight bits (e4m3), whose bytes are `[8, 16]` per chunk.

use ops::format::{Groups, PANEL};

use super::{ChunkScales, GroupScales, ReadScales, RowScales, mxfp4};
use crate::code::{Code, Element, Type, Value};
use crate::matmul::Panel;

pub(super) struct FloatSteps;

impl ReadScales for FloatSteps {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        Box::new(move |group| of_group(panel, start + code.index(2 * group * PANEL)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        of_group(panel, start + group * (2 * PANEL))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(|line, start, group| {
            let scales = [0, PANEL].map(|half| {
                half_scale(line.number(start + group * (2 * PANEL) + (line.lane + half), Element::I8).widen())
            });
            GroupScales { scales: scales.to_vec(), minima: Vec::new() }
        })
    }

    fn integer<'k>(&self, groups: &Groups, float: Value<'k>) -> Value<'k> {
        mxfp4::Powers.integer(groups, float)
    }
}

/// Reads the scales of the two halves of 32 columns.
fn of_group<'k>(panel: Panel<'k>, at: Value<'k>) -> GroupScales<'k> {
    let scales = [0, PANEL].map(|half| {
        half_scale(panel.weight.load(panel.at + at + half, Type::lanes(PANEL, Element::I8)).widen())
    });
    GroupScales { scales: scales.to_vec(), minima: Vec::new() }
}

/// Half of a scale: four bits of exponent and three of fraction, without the sign. An exponent of 0 is for the fractions
/// below the least power of two.
fn half_scale(bytes: Value<'_>) -> Value<'_> {
    let integer = |number: f64| bytes.code().constant(bytes.ty(), number);
    let bits = bytes.and(integer(127.0));
    // The exponents of e4m3 and f32 differ by 120.
    let normal =
        (bits.shift_left(20) + integer(f64::from(119 << 23))).bits(bytes.ty().with_element(Element::F32));
    let fraction = bits.convert(Element::F32);
    let below = fraction * bytes.code().constant(fraction.ty(), 1.0 / 1024.0);
    normal.or_else(bits.greater(integer(7.0)), below)
}
