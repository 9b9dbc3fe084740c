//! Activations that are quantized to integers of 8 bits or, in some or all groups of 32, of 16 bits. For
//! each group of 32 integers, the layout stores a scale and the sum of the integers.

use ops::format::{ActivationBits, GROUP, IGNORED_BITS, LARGEST_ACTIVATION, OUTLIER, RESIDUAL_STEPS};

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
/// If activations can have more than 8 bits, each part of the row exists twice. The first copy of a
/// part belongs to the rounded activations. The second copy belongs to the residuals, which are the
/// rounding errors in smaller units. A group without residuals has the scale 0 in the second part.
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

/// Returns the end of the names of kernels that read or write activations with this number of bits.
pub(crate) fn bits_suffix(bits: ActivationBits) -> &'static str {
    match bits {
        ActivationBits::Eight => "",
        ActivationBits::Mixed => "_mixed",
        ActivationBits::Sixteen => "_16",
    }
}

/// The integers of a group, as two vectors of 16 integers, and the scale of the integers.
#[derive(Clone, Copy)]
pub(crate) struct Rounded<'k> {
    pub(crate) integers: [Value<'k>; 2],
    pub(crate) scale: Value<'k>,
}

/// A quantized group, while the kernel writes the group.
pub(crate) struct QuantizedGroup<'g, 'k> {
    pub(crate) first: Rounded<'k>,
    /// A function that computes the residuals; `None` if the row has no residuals. A group without
    /// an outlier has residuals of 0.
    pub(crate) residuals: Option<&'g dyn Fn() -> Rounded<'k>>,
    /// Whether the group has an outlier; `None` if the kernel does not look for outliers.
    is_outlier: Option<Value<'k>>,
}

impl Form {
    /// Returns a name that is different for each layout of quantized activations.
    pub(crate) fn name(self) -> String {
        let Self { inputs, bits, chunk, sums } = self;
        format!("{inputs}_by{chunk}_{}{}", sums.name(), bits_suffix(bits))
    }

    /// Returns the number of integers in a quantized row, including the padding integers and
    /// without the residuals.
    pub(crate) fn values(self) -> usize {
        self.inputs.next_multiple_of(self.chunk)
    }

    /// Returns the number of times that each part of a quantized row is there: 2 if the row has
    /// residuals, otherwise 1.
    fn planes(self) -> usize {
        if self.bits == ActivationBits::Eight { 1 } else { 2 }
    }

    fn groups(self) -> usize {
        self.values() / GROUP
    }

    pub(crate) fn bytes(self) -> usize {
        self.planes() * (self.values() + 8 * self.groups())
    }

    /// Quantizes the row of the activations x that begins at the index `from`, and calls `write`
    /// for each group of the row. If the function gets a row, it uses the memory of
    /// the row's scales for the largest magnitudes, until it writes the scales.
    pub(crate) fn quantize<'k>(
        self,
        code: &'k Code,
        (x, from): (Buffer<'k>, Value<'k>),
        kept: Option<Row<'k>>,
        write: impl Fn(Value<'k>, QuantizedGroup<'_, 'k>),
    ) {
        let float = Type::Scalar(Element::F32);
        let number = |number: f32| code.constant(float, f64::from(number));
        let halves_of = |group: Value<'k>, count: usize| {
            [0, 16].map(|half: usize| x.load_floats(from + group * GROUP + half, count.saturating_sub(half)))
        };
        let largest_of = |halves: [Value<'k>; 2]| {
            // As integers, the bits of non-negative floats have the same order as the floats, and
            // the bits of NaN are the largest.
            let integer = Type::lanes(16, Element::I32);
            let sizes =
                halves.map(|half| half.bits(integer).and(code.constant(integer, f64::from(i32::MAX))));
            sizes[0].max(sizes[1]).largest().bits(float)
        };
        let (whole, rest) = (self.inputs / GROUP, self.inputs % GROUP);
        let limit = (self.bits == ActivationBits::Mixed).then(|| {
            let [zero, one] = [0.0, 1.0].map(|number| code.constant(Type::Scalar(Element::I32), number));
            let add = |group, count, sums: &[Value<'k>]| {
                let largest = largest_of(halves_of(group, count));
                kept.iter().for_each(|row| row.put(row.scales(), group, largest));
                let bits = largest.bits(zero.ty());
                let counts = one.or_else(bits.greater(zero), zero);
                vec![sums[0] + bits.shift_right(IGNORED_BITS as usize), sums[1] + counts]
            };
            let range = code.index(0)..code.index(whole);
            let sums = code.fold(range, 1, &[zero; 2], |group, sums| add(group, GROUP, sums));
            let sums = if rest == 0 { sums } else { add(code.index(whole), rest, &sums) };
            let mean = sums[0].divide(sums[1].max(one)).shift_left(IGNORED_BITS as usize);
            mean.bits(float) * number(OUTLIER)
        });
        let group = |group: Value<'k>, count: usize| {
            let halves = halves_of(group, count);
            let largest = match kept {
                Some(row) if limit.is_some() => row.scale(group),
                _ => largest_of(halves),
            };
            let (full, zero) = (number(LARGEST_ACTIVATION), number(0.0));
            let inverse = full.divide(largest).or_else(largest.greater(zero), zero).broadcast(16);
            let units = halves.map(|half| half * inverse);
            let rounded = units.map(Value::round);
            let first = Rounded {
                integers: rounded.map(|units| units.convert(Element::I32)),
                scale: largest.divide(full),
            };
            let is_outlier = limit.map(|limit| largest.greater(limit));
            let residuals = || {
                let if_outlier = |value: Value<'k>| match is_outlier {
                    Some(is_outlier) => value.or_else(is_outlier, zero),
                    None => value,
                };
                let steps = if_outlier(number(RESIDUAL_STEPS)).broadcast(16);
                let integers = [0, 1].map(|half| {
                    let less = code.constant(units[half].ty(), -1.0);
                    let error = rounded[half].multiply_add(less, units[half]);
                    (error * steps).round().convert(Element::I32)
                });
                Rounded { integers, scale: if_outlier(first.scale.divide(number(RESIDUAL_STEPS))) }
            };
            let residuals: &dyn Fn() -> Rounded<'k> = &residuals;
            let residuals = (self.planes() == 2).then_some(residuals);
            write(group, QuantizedGroup { first, residuals, is_outlier });
        };
        code.repeat(code.index(0)..code.index(whole), 1, |at| group(at, GROUP));
        if rest > 0 {
            group(code.index(whole), rest);
        }
        // The last chunk can have groups without numbers.
        for empty in self.inputs.div_ceil(GROUP)..self.groups() {
            let zeros = code.constant(Type::lanes(16, Element::I32), 0.0);
            let first = Rounded { integers: [zeros; 2], scale: number(0.0) };
            let residuals: &dyn Fn() -> Rounded<'k> = &|| first;
            let residuals = (self.planes() == 2).then_some(residuals);
            write(code.index(empty), QuantizedGroup { first, residuals, is_outlier: None });
        }
    }
}

/// A quantized row: the buffer that contains the row, and the index of the row's first byte.
#[derive(Clone, Copy)]
pub(crate) struct Row<'k> {
    buffer: Buffer<'k>,
    at: Value<'k>,
    form: Form,
    /// 0 for the rounded activations, and 1 for the residuals.
    plane: usize,
}

impl<'k> Row<'k> {
    pub(crate) fn new(buffer: Buffer<'k>, at: Value<'k>, form: Form) -> Self {
        Self { buffer, at, form, plane: 0 }
    }

    /// Returns the residuals of the row. The form must have residuals.
    pub(crate) fn residuals(self) -> Self {
        Self { plane: 1, ..self }
    }

    /// Returns the index of the byte of a column.
    pub(crate) fn place(self, column: Value<'k>) -> Value<'k> {
        self.at + (column + self.plane * self.form.values())
    }

    /// Returns the integers of four consecutive columns, as one 32-bit word.
    pub(crate) fn four(self, column: Value<'k>) -> Value<'k> {
        let four = self.buffer.load(self.place(column), Type::lanes(4, Element::I8));
        four.bits(Type::Scalar(Element::I32))
    }

    pub(crate) fn scale(self, group: Value<'k>) -> Value<'k> {
        self.word(self.scales(), group).bits(Type::Scalar(Element::F32))
    }

    /// Returns the bits of the scales of some groups. The bits are 0 for groups without residuals.
    pub(crate) fn scale_bits(self, group: Value<'k>, count: usize) -> Value<'k> {
        let at = self.at + (group * 4 + self.scales());
        self.buffer.load(at, Type::lanes(4 * count, Element::I8)).bits(Type::lanes(count, Element::I32))
    }

    /// Returns the sum of a group of the quantized row, as a 32-bit number.
    pub(crate) fn sum(self, group: Value<'k>) -> Value<'k> {
        let element = if self.form.sums == Sums::Numbers { Element::F32 } else { Element::I32 };
        self.word(self.sums(), group).bits(Type::Scalar(element))
    }

    fn scales(self) -> usize {
        self.form.planes() * self.form.values() + 4 * self.form.groups() * self.plane
    }

    fn sums(self) -> usize {
        self.scales() + 4 * self.form.groups() * self.form.planes()
    }

    fn word(self, part: usize, group: Value<'k>) -> Value<'k> {
        self.buffer.load(self.at + (group * 4 + part), Type::lanes(4, Element::I8))
    }

    fn put(self, part: usize, group: Value<'k>, word: Value<'k>) {
        self.buffer.store(self.at + (group * 4 + part), word.bits(Type::lanes(4, Element::I8)));
    }

    /// Quantizes a row of the activations x, and stores the quantized row in memory.
    pub(crate) fn fill(self, code: &'k Code, x: Buffer<'k>, from: Value<'k>) {
        let store = |row: Self, group: Value<'k>, Rounded { integers, scale }: Rounded<'k>| {
            for (half, integers) in integers.into_iter().enumerate() {
                let at = row.place(group * GROUP + 16 * half);
                self.buffer.store(at, integers.convert(Element::I8));
            }
            row.put(row.scales(), group, scale);
            let sum = (integers[0] + integers[1]).sum();
            let sum = match self.form.sums {
                Sums::Times(added) => sum * code.constant(sum.ty(), f64::from(added)),
                Sums::Numbers => sum.convert(Element::F32) * scale,
            };
            row.put(row.sums(), group, sum);
        };
        self.form.quantize(code, (x, from), Some(self), |group, quantized| {
            store(self, group, quantized.first);
            let Some(residuals) = quantized.residuals else { return };
            let row = self.residuals();
            let all = || store(row, group, residuals());
            match quantized.is_outlier {
                None => all(),
                // With the scale 0, the integers can have any value.
                Some(is_outlier) => code.either(is_outlier, all, || {
                    let zero = code.constant(Type::Scalar(Element::I32), 0.0);
                    row.put(row.scales(), group, zero);
                    row.put(row.sums(), group, zero);
                }),
            }
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
                Row::new(buffer, row * form.bytes(), form).fill(code, x, row * inputs);
            });
        })
    };
    (name, body)
}
