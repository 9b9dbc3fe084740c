//! Activations that are quantized to integers of 8 or 16 bits. For each group of 32 integers, the
//! layout stores a scale and the sum of the integers.

use ops::format::{ActivationBits, GROUP};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::kernel::{self, Kernel};

/// The length of the longest activation row that a matmul kernel quantizes itself. The quantized
/// row must fit on the stack of a worker thread.
pub(crate) const LONGEST: usize = 16384;

/// The kind of sum that the layout stores for each group of activations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sums {
    /// The sum of the activation bytes, multiplied by the factor in this variant, as i32. If the
    /// bytes of a weight are its integers minus the factor, the kernel starts the sums of products
    /// from the multiplied sum.
    Times(i32),
    /// The sum of the dequantized activations, as f32. The kernel multiplies the sum of a group of
    /// activations by the minimum of the weight group.
    Numbers,
}

/// The layout of a quantized activation row with `inputs` numbers. A quantized row begins with its
/// integers, and zeros fill the last chunk of the row. After the integers, the row contains the
/// scales of the groups as f32, and then the sums of the groups.
///
/// In quantized rows of 16-bit integers, the second and the third of every four integers are
/// swapped. The 16-bit integers are swapped because a 16-bit dot product multiplies two columns at
/// a time. The kernel splits the weight bytes into a vector of even columns and a vector of odd
/// columns.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) inputs: usize,
    pub(crate) bits: ActivationBits,
    /// The number of weight columns in a chunk of a panel.
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
    /// Returns a name that is different for each layout of quantized activations.
    pub(crate) fn name(self) -> String {
        let Self { inputs, bits, chunk, sums } = self;
        let words = if bits == ActivationBits::Sixteen { "_words" } else { "" };
        format!("{inputs}_by{chunk}_{}{words}", sums.name())
    }

    /// Returns the number of integers in a quantized row, including the padding integers.
    pub(crate) fn values(self) -> usize {
        self.inputs.next_multiple_of(self.chunk)
    }

    /// Returns the number of bytes that the integers of a quantized row occupy before the scales
    /// begin.
    fn integers(self) -> usize {
        match self.bits {
            ActivationBits::Eight => self.values(),
            ActivationBits::Sixteen => 2 * self.values(),
        }
    }

    fn groups(self) -> usize {
        self.values() / GROUP
    }

    pub(crate) fn bytes(self) -> usize {
        self.integers() + 8 * self.groups()
    }

    /// Quantizes the row of the activations x that begins at the index `from`, and calls `body` for
    /// each group of the row. The closure `body` receives the integers of the group, as two vectors
    /// of 16 integers, and the scale of the group.
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
            // As integers, the bits of non-negative floats have the same order as the floats, and
            // the bits of NaN are the largest.
            let integer = Type::lanes(16, Element::I32);
            let sizes =
                halves.map(|half| half.bits(integer).and(code.constant(integer, f64::from(i32::MAX))));
            let largest = sizes[0].max(sizes[1]).largest().bits(Type::Scalar(Element::F32));
            let full = code.constant(largest.ty(), f64::from(self.bits.largest()));
            let zero = code.constant(largest.ty(), 0.0);
            let inverse = full.divide(largest).or_else(largest.greater(zero), zero).broadcast(16);
            let integers = halves.map(|half| (half * inverse).round().convert(Element::I32));
            write(group, integers, largest.divide(full));
        };
        let whole = self.inputs / GROUP;
        code.repeat(code.index(0)..code.index(whole), 1, |at| group(at, GROUP));
        if !self.inputs.is_multiple_of(GROUP) {
            group(code.index(whole), self.inputs % GROUP);
        }
        // The last chunk can have groups without numbers.
        for empty in self.inputs.div_ceil(GROUP)..self.groups() {
            let zeros = code.constant(Type::lanes(16, Element::I32), 0.0);
            write(code.index(empty), [zeros; 2], code.constant(Type::Scalar(Element::F32), 0.0));
        }
    }
}

/// A quantized row: the buffer that contains the row, and the index of the row's first byte.
#[derive(Clone, Copy)]
pub(crate) struct Row<'k> {
    pub(crate) buffer: Buffer<'k>,
    pub(crate) at: Value<'k>,
    pub(crate) form: Form,
}

impl<'k> Row<'k> {
    /// Returns the integers of four consecutive columns: one 32-bit word for bytes, or two 32-bit
    /// words for 16-bit integers.
    pub(crate) fn four(self, column: Value<'k>) -> Vec<Value<'k>> {
        let word = |at: Value<'k>| {
            self.buffer.load(at, Type::lanes(4, Element::I8)).bits(Type::Scalar(Element::I32))
        };
        match self.form.bits {
            ActivationBits::Eight => vec![word(self.at + column)],
            ActivationBits::Sixteen => [0, 4].map(|half: usize| word(self.at + column * 2 + half)).to_vec(),
        }
    }

    pub(crate) fn scale(self, group: Value<'k>) -> Value<'k> {
        self.word(self.form.integers(), group).bits(Type::Scalar(Element::F32))
    }

    /// Returns the sum of a group of the quantized row, as a 32-bit number.
    pub(crate) fn sum(self, group: Value<'k>) -> Value<'k> {
        let element = if self.form.sums == Sums::Numbers { Element::F32 } else { Element::I32 };
        self.word(self.form.integers() + 4 * self.form.groups(), group).bits(Type::Scalar(element))
    }

    fn word(self, part: usize, group: Value<'k>) -> Value<'k> {
        self.buffer.load(self.at + (group * 4 + part), Type::lanes(4, Element::I8))
    }

    fn put(self, part: usize, group: Value<'k>, word: Value<'k>) {
        self.buffer.store(self.at + (group * 4 + part), word.bits(Type::lanes(4, Element::I8)));
    }

    /// Quantizes a row of the activations x, and stores the quantized row in memory.
    pub(crate) fn fill(self, code: &'k Code, x: Buffer<'k>, from: Value<'k>) {
        let scales = self.form.integers();
        let sums = scales + 4 * self.form.groups();
        self.form.quantize(code, x, from, |group, integers, scale| {
            for (half, integers) in integers.into_iter().enumerate() {
                let at = group * GROUP + 16 * half;
                match self.form.bits {
                    ActivationBits::Eight => self.buffer.store(self.at + at, integers.convert(Element::I8)),
                    ActivationBits::Sixteen => {
                        let order: Vec<usize> =
                            (0..4).flat_map(|i| [0, 2, 1, 3].map(|j| 4 * i + j)).collect();
                        let words = integers.pick(integers, &order).convert(Element::I16);
                        self.buffer.store_bits(self.at + at * 2, words);
                    }
                }
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

/// Returns a kernel that quantizes the activations x `[rows, inputs]`, and stores the quantized
/// rows in the layout `form`. The kernel does not fill the padding rows from `rows` to `stored`.
pub(crate) fn kernel(
    element: Element,
    [rows, stored]: [usize; 2],
    form: Form,
) -> (String, impl FnOnce() -> Kernel) {
    let more = if stored == rows { String::new() } else { format!("_of_{stored}") };
    let name = format!("quantize_{element}_{rows}{more}x{}", form.name());
    let inputs = form.inputs;
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
