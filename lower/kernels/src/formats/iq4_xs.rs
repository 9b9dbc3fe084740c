//! Scales of groups as numbers of steps of six bits, in words `[2, 16]` as in GGUF. The first words contain f16 steps
//! and the upper two bits of eight numbers. The second words contain the lower four bits of the numbers.

use ops::format::PANEL;

use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::isa::tiles::LINE;
use crate::matmul::Panel;

pub(super) struct Split;

/// The number that the file adds to each number of steps.
const ADDED: f64 = 32.0;

impl ReadScales for Split {
    fn of_chunk<'k>(&self, _: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let words = words(panel, start);
        of_words(words, step(words[0]))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        let [first, low] = words(panel, start);
        let moved =
            |words: Value<'k>, width: usize| words.shift_right_by((group * width).number().broadcast(PANEL));
        in_steps(moved(low, 4), moved(first.shift_right(16), 2), step(first))
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByChunk(|line, start| {
            let at = start + line.lane * 4;
            let step = line.number(at, Element::F16).convert(Element::F32);
            of_words([0, LINE].map(|word| line.number(at + word, Element::I32)), step)
        })
    }
}

fn words<'k>(panel: Panel<'k>, start: Value<'k>) -> [Value<'k>; 2] {
    [0, LINE].map(|word| panel.line(start + word).bits(Type::lanes(PANEL, Element::I32)))
}

fn of_words<'k>([first, low]: [Value<'k>; 2], step: Value<'k>) -> ChunkScales<'k> {
    let high = first.shift_right(16);
    Box::new(move |group| in_steps(low.shift_right(4 * group), high.shift_right(2 * group), step))
}

/// The steps in the lower halves of words. A conversion between 16 and 32 bits beside a `vector.bitcast` becomes
/// wrong code in iree-compile 3.13, so the lanes are picked.
fn step(words: Value<'_>) -> Value<'_> {
    let halves = words.bits(Type::lanes(2 * PANEL, Element::F16));
    halves.pick(halves, &(0..PANEL).map(|row| 2 * row).collect::<Vec<_>>()).convert(Element::F32)
}

/// The scale whose number of steps has these lowest bits.
fn in_steps<'k>(low: Value<'k>, high: Value<'k>, step: Value<'k>) -> GroupScales<'k> {
    let number = |number: f64| low.code().constant(low.ty(), number);
    let count = low.and(number(15.0)).or(high.and(number(3.0)).shift_left(4)) - number(ADDED);
    GroupScales::one(count.convert(Element::F32) * step)
}
