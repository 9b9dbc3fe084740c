//! Scales that are powers of two, whose exponents are bytes `[4, 16]` per chunk.

use ops::format::{Groups, LEAST_SCALE, PANEL};

use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::matmul::Panel;

pub(super) struct Powers;

impl ReadScales for Powers {
    fn of_chunk<'k>(&self, _: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        Box::new(move |group| GroupScales::one(of_exponents(panel, start + group * PANEL)))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        GroupScales::one(of_exponents(panel, start + group * PANEL))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByGroup(|line, start, group| {
            let scale = group * PANEL + line.lane;
            GroupScales::one(half_scales(line.number(start + scale, Element::I8).widen()))
        })
    }

    /// Returns twice the value of a four-bit float: see [`ops::format::DOUBLED_FLOATS`].
    fn integer<'k>(&self, _: &Groups, float: Value<'k>) -> Value<'k> {
        let number = |number: f64| float.code().constant(float.ty(), number);
        let places = float.and(number(7.0));
        let magnitude =
            places.max(places * number(2.0) - number(4.0)).max(places * number(4.0) - number(16.0));
        (number(0.0) - magnitude).or_else(float.greater(number(7.0)), magnitude)
    }
}

fn of_exponents<'k>(panel: Panel<'k>, at: Value<'k>) -> Value<'k> {
    half_scales(panel.weight.load(panel.at + at, Type::lanes(PANEL, Element::I8)).widen())
}

/// Half of each group's scale, 2^(exponent − 128), which can be below all normal f32 numbers.
fn half_scales(exponents: Value<'_>) -> Value<'_> {
    let code = exponents.code();
    let scales = exponents.shift_left(23).max(code.constant(exponents.ty(), f64::from(LEAST_SCALE)));
    let scales = scales.bits(exponents.ty().with_element(Element::F32));
    scales * code.constant(scales.ty(), 0.5)
}
