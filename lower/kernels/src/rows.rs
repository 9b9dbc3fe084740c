//! A kernel that looks up rows of a packed matrix, such as an embedding table that is also the output head.

use ops::WeightFormat;
use ops::format::{FloatCodes, Floats, GROUP, Groups, PANEL};
use ops::ops::PackedRows;

use crate::code::{Code, Element, Type, Value};
use crate::formats::{E4M3_UNIT, GroupScales, Line, RowScales, nested_floats, scales_of};
use crate::fused_op::Epilogue;
use crate::isa::tiles::LINE;
use crate::kernel::{self, Kernel};
use crate::lane;

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
                match (format.groups(), format.floats()) {
                    (Some(groups), _) => line.scaled(code, (format, groups), inputs, put),
                    (_, Some(floats)) => line.floats(code, floats, inputs, put),
                    (None, None) => line.dense(code, format, inputs, put),
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

impl<'k> Line<'k> {
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

    fn floats(self, code: &'k Code, floats: &Floats, inputs: usize, put: impl Fn(Value<'k>, Value<'k>)) {
        let (of_line, together) = (floats.line_columns(), floats.scales.together(inputs));
        let (lanes, map) = (floats.scales.lanes(), nested_floats(code, floats));
        code.repeat(code.index(0)..code.index(inputs), 1, |column| {
            let group = column.divide(code.index(together));
            let scale = match map {
                Some(map) => self.nested_scale(floats, map, (inputs, group)),
                None => {
                    let place = if lanes == 1 { group } else { group * lanes + self.lane };
                    self.number(place * size_of::<f32>(), Element::F32)
                }
            };
            let of_four = column.remainder(code.index(4)) * PANEL + self.lane;
            let at = column.divide(code.index(of_line)) * LINE + of_four + floats.scale_bytes(inputs);
            let stored = self.number(at, Element::I8).widen();
            let integer = |n: f64| code.constant(stored.ty(), n);
            let number = match floats.codes {
                FloatCodes::E4m3 => {
                    let sign = stored.and(integer(128.0)).shift_left(8);
                    let bits = stored.and(integer(127.0)).shift_left(7).or(sign);
                    let half = bits.convert(Element::I16).bits(Type::Scalar(Element::F16));
                    let unit = code.constant(Type::Scalar(Element::F32), E4M3_UNIT);
                    half.convert(Element::F32) * unit
                }
                FloatCodes::Table(table) => {
                    let upper = column.divide(code.index(4)).remainder(code.index(2)).equals(code.index(1));
                    let place = stored.shift_right(4).or_else(upper, stored.and(integer(15.0)));
                    let float = |x: f32| code.constant(Type::Scalar(Element::F32), x.into());
                    (0..).zip(&table[..15]).fold(float(table[15]), |other, (code, &number)| {
                        float(number).or_else(place.equals(integer(f64::from(code))), other)
                    })
                }
            };
            put(column, number * scale);
        });
    }

    fn scaled(
        self,
        code: &'k Code,
        (format, groups): (WeightFormat, &Groups),
        inputs: usize,
        put: impl Fn(Value<'k>, Value<'k>),
    ) {
        let (columns, bytes) = (format.columns(), format.packed(PANEL, 1).bytes());
        let read = scales_of(format);
        // The number of a code, by the scale and the minimum of its group or its half of a group.
        let number =
            |GroupScales { scales, minima }: &GroupScales<'k>, column: Value<'k>, stored: Value<'k>| {
                let integer = read.integer(groups, stored);
                let of = |both: &[Value<'k>]| match *both {
                    [first, second] => {
                        let half = column.divide(code.index(groups.group));
                        Some(second.or_else(half.equals(code.index(1)), first))
                    }
                    _ => both.first().copied(),
                };
                let scale = of(scales);
                let integer = integer.convert(Element::F32);
                let scaled = scale.map_or(integer, |scale| integer * scale);
                of(minima).map_or(scaled, |minimum| scaled - minimum)
            };
        let of_chunk = match read.of_row() {
            RowScales::ByGroup(scales) => {
                let group = |group: Value<'k>, count: usize| {
                    let of_chunk = code.index(columns / GROUP);
                    let (at, start) = (group.remainder(of_chunk), group.divide(of_chunk) * bytes);
                    let scales = scales(self, start, at);
                    self.codes(code, (format, groups), (start, at), count, |column, stored| {
                        let number = number(&scales, column, stored);
                        put(group * GROUP + column, number);
                    });
                };
                code.repeat(code.index(0)..code.index(inputs / GROUP), 1, |at| group(at, GROUP));
                if !inputs.is_multiple_of(GROUP) {
                    group(code.index(inputs / GROUP), inputs % GROUP);
                }
                return;
            }
            RowScales::ByChunk(of_chunk) => of_chunk,
        };
        let chunk = |chunk: Value<'k>, count: usize| {
            let start = chunk * bytes;
            let scales = of_chunk(self, start);
            for group in 0..count.div_ceil(GROUP) {
                let scales = scales(group);
                let left = (count - group * GROUP).min(GROUP);
                self.codes(code, (format, groups), (start, code.index(group)), left, |column, stored| {
                    let number = number(&scales, column, stored);
                    put(chunk * columns + group * GROUP + column, number);
                });
            }
        };
        code.repeat(code.index(0)..code.index(inputs / columns), 1, |at| chunk(at, columns));
        if !inputs.is_multiple_of(columns) {
            chunk(code.index(inputs / columns), inputs % columns);
        }
    }

    /// Returns the codes of a group in the row, and the column of each code. The chunk of the group
    /// begins at the given byte of the panel.
    fn codes(
        self,
        code: &'k Code,
        (format, groups): (WeightFormat, &Groups),
        (chunk, group): (Value<'k>, Value<'k>),
        count: usize,
        each: impl Fn(Value<'k>, Value<'k>),
    ) {
        // A line has four bytes for each of 16 rows. These bytes contain four columns of a plane of
        // 8 bits, eight columns of a plane of 4 bits, or 16 columns of a plane of 2 bits.
        let of_line = |width: usize| 32 / width;
        let most = groups.planes.iter().map(|&width| of_line(width)).max().unwrap_or(1);
        let lines = chunk + format.scales() + self.lane * 4 + group * (groups.bits() * LINE);
        code.runs(count, most, |first, count| {
            for column in 0..count {
                let mut above = groups.bits();
                let parts = groups.planes().map(|(shift, width)| {
                    above -= width;
                    let line = above * LINE + column / of_line(width) * LINE;
                    let at = lines + first * (LINE / of_line(width)) + (line + column % 4);
                    let byte = self.number(at, Element::I8).widen();
                    let bits = byte.shift_right(column / 4 % (8 / width) * width);
                    let bits = bits.and(code.constant(byte.ty(), f64::from(u8::MAX >> (8 - width))));
                    if shift > 0 { bits.shift_left(shift) } else { bits }
                });
                if let Some(code) = parts.reduce(Value::or) {
                    each(first + column, code);
                }
            }
        });
    }
}
