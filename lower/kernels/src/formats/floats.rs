//! The scales of formats of floats, which have scales of their own in [`FloatScales::Nested`].

use ops::format::{FLOAT_GROUP, FloatScales, Floats, NESTED, NESTED_FLOATS, NESTED_START, PANEL};

use super::Line;
use crate::code::{Buffer, Code, Element, Type, Value};

/// The value of an e4m3 float in units of the f16 with the same bits of exponent and fraction.
pub(crate) const E4M3_UNIT: f64 = 256.0;

/// Memory with [`NESTED_FLOATS`] and room for 16 numbers, if scales have scales.
pub(crate) fn nested_floats<'k>(code: &'k Code, floats: &Floats) -> Option<Buffer<'k>> {
    (floats.scales == FloatScales::Nested).then(|| {
        let map = code.scratch(Element::F32, NESTED + PANEL);
        for (i, numbers) in NESTED_FLOATS.chunks(PANEL).enumerate() {
            let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:e}")).collect();
            let numbers = numbers
                .iter()
                .map(|text| if text.contains('.') { text.clone() } else { text.replace('e', ".0e") });
            let numbers = code.numbers(Type::lanes(PANEL, Element::F32), &numbers.collect::<Vec<_>>());
            map.store(code.index(i * PANEL), numbers);
        }
        map
    })
}

impl<'k> Line<'k> {
    /// The scale of a group of columns, from a scale of scales: see [`FloatScales::Nested`].
    pub(crate) fn nested_scale(
        self,
        floats: &Floats,
        map: Buffer<'k>,
        (inputs, group): (usize, Value<'k>),
    ) -> Value<'k> {
        let code = group.code();
        let float = |at: Value<'k>| self.number(at, Element::F32);
        let start = self.number(code.index(size_of::<f32>()), Element::I32).place();
        let index = start + self.lane * inputs.div_ceil(FLOAT_GROUP) + group;
        let scale = float(index.divide(code.index(NESTED)) * size_of::<f32>() + NESTED_START);
        let at = group * PANEL + self.lane + floats.nested_at(inputs, 0, 0);
        let number = map.load(self.number(at, Element::I8).widen().place(), Type::Scalar(Element::F32));
        number * scale + float(code.index(0))
    }
}
