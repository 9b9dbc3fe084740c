//! Scales of groups of 16 as numbers of steps of six bits: the numbers are packed as in GGUF in words `[3, 16]`, and
//! f16 steps `[16]` follow.

use ops::format::PANEL;

use super::{ChunkScales, GroupScales, ReadScales, RowScales};
use crate::code::{Code, Element, Type, Value};
use crate::isa::tiles::LINE;
use crate::matmul::Panel;

pub(super) struct SixBits;

const STEPS: usize = 3 * LINE;
/// The number that the file adds to each number of steps.
const ADDED: f64 = 32.0;

impl ReadScales for SixBits {
    fn of_chunk<'k>(&self, _: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k> {
        let (words, step) = words_and_step(panel, start);
        Box::new(move |group| in_steps(words[group / 2].shift_right(group % 2 * 16), step))
    }

    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k> {
        let code = group.code();
        let (words, step) = words_and_step(panel, start);
        let two = code.index(2);
        let (index, bits) = (group.divide(two), group.remainder(two) * 16);
        let select = |other: Value<'k>, i: usize| words[i].or_else(index.equals(code.index(i)), other);
        let word = (0..3).fold(words[3], select);
        in_steps(word.shift_right_by(bits.number().broadcast(PANEL)), step)
    }

    fn of_row(&self) -> RowScales {
        RowScales::ByChunk(|line, start| {
            let words = [0, 1, 2].map(|l| line.number(start + (line.lane * 4 + l * LINE), Element::I32));
            let step = line.number(start + (line.lane * 2 + STEPS), Element::F16).convert(Element::F32);
            let words = unpacked(words);
            Box::new(move |group| in_steps(words[group / 2].shift_right(group % 2 * 16), step))
        })
    }
}

fn words_and_step<'k>(panel: Panel<'k>, start: Value<'k>) -> ([Value<'k>; 4], Value<'k>) {
    let words = [0, 1, 2].map(|line| panel.line(start + line * LINE).bits(Type::lanes(PANEL, Element::I32)));
    let step = panel.weight.load(panel.at + start + STEPS, Type::lanes(2 * PANEL, Element::I8));
    (unpacked(words), step.bits(Type::lanes(PANEL, Element::F16)).convert(Element::F32))
}

/// Unpacks the numbers of steps of 16 groups to bytes, four in a word.
fn unpacked([first, second, upper]: [Value<'_>; 3]) -> [Value<'_>; 4] {
    let four = |words, shift, word: usize| {
        let low = masked_bits(words, shift, 0x0f0f_0f0f);
        low.or(masked_bits(upper, 2 * word, 0x0303_0303).shift_left(4))
    };
    [four(first, 0, 0), four(second, 0, 1), four(first, 4, 2), four(second, 4, 3)]
}

fn masked_bits(words: Value<'_>, shift: usize, mask: u32) -> Value<'_> {
    words.shift_right(shift).and(words.code().constant(words.ty(), f64::from(mask)))
}

/// The scales of the halves of a group, whose numbers of steps are the two lowest bytes of a word.
fn in_steps<'k>(word: Value<'k>, step: Value<'k>) -> GroupScales<'k> {
    let scales = [0, 8].map(|shift| {
        let count = masked_bits(word, shift, 0xff);
        (count - count.code().constant(count.ty(), ADDED)).convert(Element::F32) * step
    });
    GroupScales { scales: scales.to_vec(), minima: Vec::new() }
}
