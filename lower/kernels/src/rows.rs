//! A kernel that looks up rows of a packed matrix, such as an embedding table that is also the
//! output head.

use ops::WeightFormat;
use ops::format::{GROUP, PANEL};
use ops::ops::PackedRows;

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::counts::StepCounts;
use crate::fused_op::Epilogue;
use crate::isa::tiles::LINE;
use crate::kernel::{self, Kernel};
use crate::lane;
use crate::matmul::half_scales;

/// The size in bytes of a worker's buffer on the stack, for the row that an epilogue reads.
const ROOM: usize = 30 << 10;

/// Whether the kernel has room for a row, which it stores before it computes an epilogue.
pub(crate) fn takes_epilogue(op: &PackedRows) -> bool {
    op.inputs * lane(op.element).bits() / 8 <= ROOM
}

/// Returns the kernel that looks up `count` rows in the matrix that `op` reads, and applies an
/// epilogue to their numbers.
pub(crate) fn kernel<'a>(
    op: &PackedRows,
    count: usize,
    (tail, written): (&'a Epilogue, Element),
) -> (String, impl FnOnce() -> Kernel + use<'a>) {
    let &PackedRows { format, outputs, inputs, element } = op;
    let name = format!("rows_{}_{outputs}x{inputs}_{count}_{}", format.word(), element.name());
    let panel = format.packed(PANEL, inputs).bytes();
    let workgroups = count.min(8);
    let kernel = move || {
        kernel::new(2 + tail.bindings(), workgroups, |code| {
            let weight = code.binding(0, Element::I8, format.packed(outputs, inputs).bytes());
            let indices = code.binding(1, Element::I32, count);
            let (to, end) = if tail.steps.is_empty() {
                (code.binding(2, lane(element), count * inputs), None)
            } else {
                (code.scratch(lane(element), inputs), Some(tail.end(code, 2, (written, count, inputs))))
            };
            let integer = Type::Scalar(Element::I32);
            code.repeat(kernel::share(code, count, workgroups), 1, |at| {
                let index = indices.load(at, integer);
                let last = code.constant(integer, (outputs - 1) as f64);
                let row = index.max(code.constant(integer, 0.0)).min(last).place();
                let sixteen = code.index(PANEL);
                let start = if end.is_some() { code.index(0) } else { at * inputs };
                let line = Line { weight, base: row.divide(sixteen) * panel, lane: row.remainder(sixteen) };
                let put = |column: Value<'_>, number: Value<'_>| {
                    to.store(start + column, number.convert(lane(element)));
                };
                match format {
                    WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => {
                        line.dense(code, format, inputs, put)
                    }
                    WeightFormat::Q8 | WeightFormat::Q4 | WeightFormat::Mxfp4 => {
                        line.scaled(code, format, inputs, put);
                    }
                    WeightFormat::Q4K => line.in_steps(code, format, inputs, put),
                }
                if let Some(end) = &end {
                    code.chunks(inputs, |column, left| {
                        let numbers = to.load_floats(column, left);
                        end.write(code, &[numbers], (at, column), code.mask(left));
                    });
                }
            });
        })
    };
    (name, kernel)
}

/// One row of the matrix; a panel stores the row together with 15 other rows.
#[derive(Clone, Copy)]
struct Line<'k> {
    weight: Buffer<'k>,
    /// The index in the matrix of the first byte of the panel.
    base: Value<'k>,
    lane: Value<'k>,
}

impl<'k> Line<'k> {
    fn number(self, at: Value<'k>, element: Element) -> Value<'k> {
        let bytes = self.weight.load(self.base + at, Type::lanes(element.bits() / 8, Element::I8));
        bytes.bits(Type::Scalar(element))
    }

    fn dense(self, code: &'k Code, format: WeightFormat, inputs: usize, put: impl Fn(Value<'k>, Value<'k>)) {
        let element = lane(format.element().unwrap_or(ops::ElementType::F32));
        let (size, together) = (element.bits() / 8, if format == WeightFormat::Bf16 { 2 } else { 1 });
        code.repeat(code.index(0)..code.index(inputs), 1, |column| {
            let (line, within) =
                (column.divide(code.index(together)), column.remainder(code.index(together)));
            let at = (line * PANEL + self.lane) * together + within;
            put(column, self.number(at * size, element).convert(Element::F32));
        });
    }

    fn scaled(self, code: &'k Code, format: WeightFormat, inputs: usize, put: impl Fn(Value<'k>, Value<'k>)) {
        let chunk = format.packed(PANEL, 1).bytes();
        let groups = inputs.div_ceil(GROUP);
        let group = |group: Value<'k>, count: usize| {
            let groups = code.index(format.columns() / GROUP);
            let of_chunk = group.remainder(groups);
            let base = group.divide(groups) * chunk;
            let scale = of_chunk * PANEL + self.lane;
            let scale = match format {
                WeightFormat::Mxfp4 => half_scales(self.number(base + scale, Element::I8).widen()),
                _ => self.number(base + scale * 2, Element::F16).convert(Element::F32),
            };
            self.integers(code, format, (base, of_chunk), count, |column, stored| {
                let integer = match format {
                    WeightFormat::Mxfp4 => doubled(stored),
                    _ => stored - code.constant(stored.ty(), f64::from(format.offset())),
                };
                put(group * GROUP + column, integer.convert(Element::F32) * scale);
            });
        };
        code.repeat(code.index(0)..code.index(inputs / GROUP), 1, |at| group(at, GROUP));
        if !inputs.is_multiple_of(GROUP) {
            group(code.index(groups - 1), inputs % GROUP);
        }
    }

    fn in_steps(
        self,
        code: &'k Code,
        format: WeightFormat,
        inputs: usize,
        put: impl Fn(Value<'k>, Value<'k>),
    ) {
        let (columns, bytes) = (format.columns(), format.packed(PANEL, 1).bytes());
        let chunk = |chunk: Value<'k>, count: usize| {
            let base = chunk * bytes;
            let steps = [0, 1].map(|which| {
                self.number(base + (self.lane + which * PANEL) * 2, Element::F16).convert(Element::F32)
            });
            let words = [1, 2, 3].map(|line| self.number(base + (self.lane * 4 + line * LINE), Element::I32));
            let counts = StepCounts::unpacked(words);
            for group in 0..count.div_ceil(GROUP) {
                let [scales, minima] = counts.of(group).map(|count| count.convert(Element::F32));
                let (scale, minimum) = (scales * steps[0], minima * steps[1]);
                let left = (count - group * GROUP).min(GROUP);
                self.integers(code, format, (base, code.index(group)), left, |column, integer| {
                    let number = integer.convert(Element::F32) * scale - minimum;
                    put(chunk * columns + group * GROUP + column, number);
                });
            }
        };
        code.repeat(code.index(0)..code.index(inputs / columns), 1, |at| chunk(at, columns));
        if !inputs.is_multiple_of(columns) {
            chunk(code.index(inputs / columns), inputs % columns);
        }
    }

    /// Returns the stored integers of a group in the row, and the column of each integer. The chunk
    /// of the group begins at the given byte of the panel.
    fn integers(
        self,
        code: &'k Code,
        format: WeightFormat,
        (chunk, group): (Value<'k>, Value<'k>),
        count: usize,
        each: impl Fn(Value<'k>, Value<'k>),
    ) {
        // A line has four bytes for each of 16 rows. These bytes contain four columns of 8-bit
        // integers, or eight columns of 4-bit integers.
        let of_line = 4 * format.in_a_byte().unwrap_or(1);
        let mask = if of_line == 4 { 255.0 } else { 15.0 };
        let lines = chunk + format.scales() + self.lane * 4 + group * (GROUP / of_line * LINE);
        code.runs(count, of_line, |first, count| {
            for column in 0..count {
                let at = lines + first * (LINE / of_line) + column % 4;
                let byte = self.number(at, Element::I8).widen();
                let integer = byte.shift_right(column / 4 * 4).and(code.constant(byte.ty(), mask));
                each(first + column, integer);
            }
        });
    }
}

/// Returns twice the value of a four-bit float: see [`ops::format::DOUBLED_FLOATS`].
fn doubled(float: Value<'_>) -> Value<'_> {
    let number = |number: f64| float.code().constant(float.ty(), number);
    let places = float.and(number(7.0));
    let magnitude = places.max(places * number(2.0) - number(4.0)).max(places * number(4.0) - number(16.0));
    (number(0.0) - magnitude).or_else(float.greater(number(7.0)), magnitude)
}
