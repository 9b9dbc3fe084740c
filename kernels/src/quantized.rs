//! Activations as bytes. Each group of 32 has a scale, and a sum of its bytes.

use ops::format::GROUP;

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::kernel::{self, Kernel};

/// The longest row that is quantized where it is used. It must fit on a worker's stack.
pub(crate) const LONGEST: usize = 16384;

/// The kind of sum that a group stores.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    /// This factor times the sum of the bytes, as i32. Sums of products start from it if the factor was added
    /// to each weight byte.
    Times(i32),
    /// The sum of the dequantized numbers, as f32. A group's minimum is multiplied with it.
    Numbers,
}

/// The layout of a row of `inputs` numbers. It begins with the bytes, and zeros up to whole chunks of a
/// weight. The scales as f32 and then the sums follow.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) inputs: usize,
    /// The columns of a chunk.
    pub(crate) chunk: usize,
    pub(crate) sums: Sums,
}

impl Sums {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Times(added) => format!("less{}", -added),
            Self::Numbers => "sums".to_owned(),
        }
    }
}

impl Form {
    /// The number of bytes before the scales.
    pub(crate) fn values(self) -> usize {
        self.inputs.next_multiple_of(self.chunk)
    }

    fn groups(self) -> usize {
        self.values() / GROUP
    }

    pub(crate) fn bytes(self) -> usize {
        self.values() + 8 * self.groups()
    }

    /// Quantizes each group of a row of x. Returns sixteen and sixteen integers and their scale; the largest
    /// magnitude is 127.
    pub(crate) fn quantize<'k>(
        self,
        code: &'k Code,
        x: Buffer<'k>,
        from: Value<'k>,
        write: impl Fn(Value<'k>, [Value<'k>; 2], Value<'k>),
    ) {
        let group = |group: Value<'k>, count: usize| {
            let halves = [0, 16]
                .map(|half: usize| x.load_floats(from + group * GROUP + half, count.saturating_sub(half)));
            // Of what has no sign the bits have the order of the numbers, and those that say it is none are the largest.
            let integer = Type::lanes(16, Element::I32);
            let sizes =
                halves.map(|half| half.bits(integer).and(code.constant(integer, f64::from(i32::MAX))));
            let largest = sizes[0].max(sizes[1]).largest().bits(Type::Scalar(Element::F32));
            let (full, zero) = (code.constant(largest.ty(), 127.0), code.constant(largest.ty(), 0.0));
            let inverse = full.divide(largest).or_else(largest.greater(zero), zero).broadcast(16);
            let integers = halves.map(|half| (half * inverse).round().convert(Element::I32));
            write(group, integers, largest.divide(full));
        };
        let whole = self.inputs / GROUP;
        code.repeat(code.index(0)..code.index(whole), 1, |at| group(at, GROUP));
        if !self.inputs.is_multiple_of(GROUP) {
            group(code.index(whole), self.inputs % GROUP);
        }
        // In the last chunk there may be groups without numbers.
        for empty in self.inputs.div_ceil(GROUP)..self.groups() {
            let zeros = code.constant(Type::lanes(16, Element::I32), 0.0);
            write(code.index(empty), [zeros; 2], code.constant(Type::Scalar(Element::F32), 0.0));
        }
    }
}

/// A quantized row: its buffer, and its first byte.
#[derive(Clone, Copy)]
pub(crate) struct Row<'k> {
    pub(crate) buffer: Buffer<'k>,
    pub(crate) at: Value<'k>,
    pub(crate) form: Form,
}

impl<'k> Row<'k> {
    /// Four bytes from a column on, as a word of 32 bits.
    pub(crate) fn four(self, column: Value<'k>) -> Value<'k> {
        self.buffer.load(self.at + column, Type::lanes(4, Element::I8)).bits(Type::Scalar(Element::I32))
    }

    pub(crate) fn scale(self, group: Value<'k>) -> Value<'k> {
        self.word(self.form.values(), group).bits(Type::Scalar(Element::F32))
    }

    /// The sum of a group, 32 bits wide.
    pub(crate) fn sum(self, group: Value<'k>) -> Value<'k> {
        let element = if self.form.sums == Sums::Numbers { Element::F32 } else { Element::I32 };
        self.word(self.form.values() + 4 * self.form.groups(), group).bits(Type::Scalar(element))
    }

    fn word(self, part: usize, group: Value<'k>) -> Value<'k> {
        self.buffer.load(self.at + (group * 4 + part), Type::lanes(4, Element::I8))
    }

    fn put(self, part: usize, group: Value<'k>, word: Value<'k>) {
        self.buffer.store(self.at + (group * 4 + part), word.bits(Type::lanes(4, Element::I8)));
    }

    /// Quantizes and writes a row of x.
    pub(crate) fn fill(self, code: &'k Code, x: Buffer<'k>, from: Value<'k>) {
        let scales = self.form.values();
        let sums = scales + 4 * self.form.groups();
        self.form.quantize(code, x, from, |group, integers, scale| {
            for (half, integers) in integers.into_iter().enumerate() {
                self.buffer.store(self.at + (group * GROUP + 16 * half), integers.convert(Element::I8));
            }
            self.put(scales, group, scale);
            let sum = (integers[0] + integers[1]).sum();
            let sum = match self.form.sums {
                Sums::Times(added) => sum * code.constant(sum.ty(), f64::from(added)),
                Sums::Numbers => sum.convert(Element::F32) * scale,
            };
            self.put(sums, group, sum);
        });
    }
}

/// A kernel that quantizes all rows of x `[rows, inputs]` to bytes `[stored, form]`. Further rows are not
/// written.
pub(crate) fn kernel(
    element: Element,
    [rows, stored]: [usize; 2],
    form: Form,
) -> (String, impl FnOnce() -> Kernel) {
    let Form { inputs, chunk, sums } = form;
    let more = if stored == rows { String::new() } else { format!("_of_{stored}") };
    let name = format!("quantize_{element}_{rows}{more}x{inputs}_by{chunk}_{}", sums.name());
    let workgroups = rows.min(8);
    let body = move || {
        kernel::new(2, workgroups, |code| {
            let x = code.binding(0, element, rows * inputs);
            let buffer = code.binding(1, Element::I8, stored * form.bytes());
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                Row { buffer, at: row * form.bytes(), form }.fill(code, x, row * inputs);
            });
        })
    };
    (name, body)
}
