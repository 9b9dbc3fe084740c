//! A matmul of many activation rows with tile registers. The kernel loads the lines of a panel into the rows
//! of a tile register without any conversion. If the activations x are floats, a separate kernel divides x
//! into tiles before the matmul. If the activations x are bytes, the matmul kernel reads x directly.

use ops::WeightFormat;
use ops::format::{ActivationBits, GROUP, PANEL};

use super::{Matmul, Panel, SUMS, X, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::formats::{GroupScales, added};
use crate::fused_op::End;
use crate::isa::bf16_pairs;
use crate::isa::tiles::{LINE, ROWS, Tiles, granted};
use crate::kernel::{self, Kernel};
use crate::quantized::{Form, Row};

const TILE: usize = LINE / 2;

/// The tiles of a panel that meet all activation rows before the next. Four of two panels, and those of all
/// rows, fit into the first-level cache.
const NEAR: usize = 4;

/// The distance, in tiles of the panel, from reads to prefetches.
const AHEAD: usize = 16;

/// The number of activation rows whose sums a worker keeps in memory.
const HELD: usize = 128;

/// The number of chunks of a panel that the kernel converts to tiles at the same time.
const BLOCK: usize = 8;

/// The groups whose products stay in memory until they are multiplied by their scales.
const SLOTS: usize = 4;

/// The fewest activation rows for tiles. Tile instructions add in another order than vector instructions, so
/// kernels never use them for fewer rows.
const FEWEST: usize = ROWS + 1;

/// The first tile register of activations x. Registers 0 to 3 are sums, 4 and 5 are x, 6 and 7 are weights.
const X_TILE: usize = 4;
const WEIGHT_TILE: usize = 6;

/// The sums of some activation rows, as `[panels, rows, 16]`.
#[derive(Clone, Copy)]
struct Sums<'k> {
    buffer: Buffer<'k>,
    rows: usize,
}

impl<'k> Sums<'k> {
    fn at(self, panel: usize, row: Value<'k>) -> Value<'k> {
        (row + panel * self.rows) * PANEL
    }
}

/// The place of a number of x in tiles `[rows / 16, inputs / 32, 16, 32]`.
pub(super) fn place<'k>(inputs: usize, row: Value<'k>, column: Value<'k>) -> Value<'k> {
    let code = row.code();
    let [rows, columns] = [ROWS, TILE].map(|count| code.index(count));
    let tile = row.divide(rows) * (inputs / TILE) + column.divide(columns);
    (tile * ROWS + row.remainder(rows)) * TILE + column.remainder(columns)
}

/// Divides the activations x `[rows, inputs]` into tiles, without filling the last tile's padding rows.
pub(super) fn kernel(rows: usize, inputs: usize) -> (String, impl FnOnce() -> Kernel) {
    let workgroups = rows.min(8);
    let body = move || {
        kernel::new(2, workgroups, |code| {
            let x = code.binding(0, Element::Bf16, rows * inputs);
            let tiles = code.binding(1, Element::Bf16, rows.next_multiple_of(ROWS) * inputs);
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                code.repeat(code.index(0)..code.index(inputs), TILE, |column| {
                    let numbers = x.load(row * inputs + column, Type::lanes(TILE, Element::Bf16));
                    tiles.store(place(inputs, row, column), numbers);
                });
            });
        })
    };
    (format!("tiles_{rows}x{inputs}"), body)
}

/// Returns the number of bytes that the kernel of [`rounding`] stores for each activation row.
pub(super) fn row_bytes(form: Form) -> usize {
    form.bytes().max(tile_bytes(form))
}

/// Returns the number of bytes in the tiles that contain the dequantized numbers of one activation row.
fn tile_bytes(form: Form) -> usize {
    2 * form.values()
}

/// Quantizes x `[rows, inputs]` to bytes with a scale per group, and stores dequantized numbers in tiles. If
/// the system does not allow tiles, stores bytes and scales.
pub(super) fn rounding(
    x: Element,
    [rows, stored]: [usize; 2],
    form: Form,
) -> (String, impl FnOnce() -> Kernel) {
    let (inputs, workgroups) = (form.inputs, rows.min(8));
    let body = move || {
        kernel::new(2, workgroups, |code| {
            let x = code.binding(0, x, rows * inputs);
            let tiles = code.binding(1, Element::Bf16, stored * row_bytes(form) / 2);
            let bytes = code.binding(1, Element::I8, stored * row_bytes(form));
            let each = |write: &dyn Fn(Value<'_>)| {
                code.repeat(kernel::share(code, rows, workgroups), 1, write);
            };
            let numbers = |row: Value<'_>| {
                form.quantize(code, (x, row * inputs), |group, parts| {
                    let start = place(form.values(), row, group * GROUP);
                    for half in 0..2 {
                        let numbers = parts.iter().fold(code.constant(SUMS, 0.0), |sum, part| {
                            let integers = part.integers[half].convert(Element::F32);
                            integers.multiply_add(part.scale.broadcast(PANEL), sum)
                        });
                        tiles.store(start + half * PANEL, numbers.convert(Element::Bf16));
                    }
                });
            };
            let rows_of_bytes = |row: Value<'_>| {
                Row::new(bytes, row * form.bytes(), form).fill(code, x, row * inputs);
            };
            code.either(granted(code), || each(&numbers), || each(&rows_of_bytes));
        })
    };
    (format!("round_{x}_{rows}x{}", form.name()), body)
}

impl Matmul<'_> {
    pub(super) fn is_tiled(&self) -> bool {
        let tiles = self.isa.tiles();
        let multiplied = match self.format.groups() {
            // Minima add a term that is not a product of bytes, and chunks of floats have four groups.
            Some(groups) if groups.columns == 2 * GROUP && !groups.minima && tiles.bytes => true,
            Some(_) => self.has_whole_lines() && self.is_narrow() && tiles.bf16,
            None => self.format == WeightFormat::Bf16 && tiles.bf16 && self.inputs.is_multiple_of(TILE),
        };
        multiplied && self.stack.is_none() && self.rows >= FEWEST
    }

    /// Whether the kernel dequantizes weights to bf16 and multiplies bf16 numbers. The kernel multiplies bf16
    /// numbers if activations and results have the type bf16. If the activations or the results are not bf16,
    /// the kernel multiplies bytes, which is exact but takes twice as long as the multiplication of bf16
    /// numbers. If the kernel multiplies bytes, the kernel must store the integer products of each group in
    /// memory before it multiplies the products by the group's scale.
    pub(super) fn makes_tiles_of_numbers(&self) -> bool {
        self.has_whole_lines() && self.is_narrow() && self.isa.tiles().bf16 && self.is_tiled()
    }

    /// Whether a line of a panel contains whole codes, and a group has one scale.
    fn has_whole_lines(&self) -> bool {
        self.format.groups().is_some_and(|groups| groups.group == GROUP && groups.planes.len() == 1)
    }

    fn is_narrow(&self) -> bool {
        [self.x, self.y] == [Element::Bf16; 2]
    }

    /// Returns the number of activation rows whose sums for a panel are in memory.
    pub(super) fn held(&self) -> usize {
        HELD.min(self.rows.next_multiple_of(ROWS))
    }

    /// Computes some panels' outputs for all activation rows, with some rows' sums in memory meanwhile.
    pub(super) fn tiles<'k>(
        &self,
        code: &'k Code,
        (x, buffer): (X<'k>, Buffer<'k>),
        weights: &[Panel<'k>],
        end: &End<'k>,
        panel: Value<'k>,
    ) {
        let held = self.held();
        let mut extents = [(ROWS, LINE); 8];
        let ready = match x {
            X::Quantized { .. } if self.makes_tiles_of_numbers() => {
                let blocks = if self.makes_in_turn() { 2 } else { 1 };
                let block = weights.len() * NEAR * ROWS * TILE;
                Some(Ready::Numbers(code.scratch(Element::Bf16, blocks * block)))
            }
            X::Quantized { .. } => {
                // The tiles of x and of the weights cover one group, because a group shares a scale.
                extents[X_TILE..WEIGHT_TILE].fill((ROWS, GROUP));
                extents[WEIGHT_TILE..].fill((GROUP / 4, LINE));
                Some(Ready::Bytes(Bytes::new(code)))
            }
            X::Dense(_) => None,
        };
        let some = |first: Value<'k>, rows: usize| {
            let sums = Sums { buffer, rows: rows.next_multiple_of(ROWS) };
            let tiles = Tiles::configure(code, extents, buffer);
            code.repeat(code.index(0)..code.index(weights.len() * sums.rows * PANEL), PANEL, |at| {
                buffer.store(at, code.constant(SUMS, 0.0));
            });
            match (x, ready) {
                (X::Dense(x), _) => self.dense_tiles(tiles, (x.buffer, None), weights, (first, sums)),
                (X::Quantized(x), Some(Ready::Bytes(ready))) => {
                    self.scaled_tiles(tiles, (x, ready), weights, (first, sums));
                }
                (X::Quantized { .. }, Some(Ready::Numbers(ready))) => {
                    let x = code.binding(0, Element::Bf16, self.stored() * row_bytes(self.form()) / 2);
                    self.dense_tiles(tiles, (x, Some(ready)), weights, (first, sums));
                }
                (X::Quantized { .. }, None) => unreachable!("groups are brought into the form of tiles"),
            }
            tiles.release();
            // If the epilogue combines halves, the sums of the first half come first.
            let halves = if self.tail.halves { 2 } else { 1 };
            let panels = weights.len() / halves;
            for i in 0..panels {
                let mask = self.mask(code, panel + i);
                code.repeat(code.index(0)..code.index(rows), 1, |row| {
                    let half = |half| buffer.load(sums.at(half * panels + i, row), SUMS);
                    let sums: Vec<Value<'k>> = (0..halves).map(half).collect();
                    end.write(code, &sums, (first + row, (panel + i) * PANEL), mask);
                });
            }
        };
        code.runs(self.rows, held, some);
    }

    /// Multiplies floats, two panels by two tiles of activation rows, so each loaded tile is used twice.
    /// Quantized weights are dequantized once for all rows.
    fn dense_tiles<'k>(
        &self,
        tiles: Tiles<'k>,
        (x, ready): (Buffer<'k>, Option<Buffer<'k>>),
        weights: &[Panel<'k>],
        (first, sums): (Value<'k>, Sums<'k>),
    ) {
        let code = first.code();
        let columns = if ready.is_some() { tile_bytes(self.form()) / LINE } else { self.inputs / TILE };
        let Some(ready) = ready else {
            code.runs(columns, NEAR, |near, count| {
                let weight = |row: Value<'k>, column: Value<'k>, panel: usize| {
                    let Panel { weight, at, .. } = weights[panel];
                    let at = at + (near + column) * (ROWS * LINE);
                    // The code prefetches lines of later tiles while it multiplies these tiles.
                    let lines = ROWS.div_ceil(sums.rows.div_ceil(2 * ROWS));
                    let share = row.divide(code.index(2 * ROWS)) * (lines * LINE);
                    let ahead = at + AHEAD * ROWS * LINE + share;
                    (0..lines).for_each(|line| weight.prefetch_to_second(ahead + line * LINE));
                    weight.address(at)
                };
                let besides = |_, _| ();
                let panels = weights.len();
                let block = Block { x, columns, near, count, panels, weight: &weight, besides: &besides };
                self.near_tiles(tiles, &block, (first, sums));
            });
            return;
        };
        let tiles_of_block = weights.len() * NEAR;
        let make = |near: Value<'k>, count: usize| {
            code.repeat(code.index(0)..code.index(count), 1, |group| {
                for (panel, &weight) in weights.iter().enumerate() {
                    let lines = (code.index(0), self.lines_of_group());
                    self.make_numbers(weight, near + group, lines, (ready, group + panel * NEAR));
                }
            });
        };
        if !self.makes_in_turn() {
            code.runs(columns, NEAR, |near, count| {
                make(near, count);
                let weight =
                    |_, column: Value<'k>, panel| ready.address((column + panel * NEAR) * (ROWS * TILE));
                let besides = |_, _| ();
                let panels = weights.len();
                let block = Block { x, columns, near, count, panels, weight: &weight, besides: &besides };
                self.near_tiles(tiles, &block, (first, sums));
            });
            return;
        }
        // Vector instructions dequantize the next block while tile instructions multiply this block. Each
        // step dequantizes the same number of lines.
        let some = tiles_of_block * self.lines_of_group() / (HELD / (2 * ROWS) * NEAR);
        make(code.index(0), NEAR);
        code.repeat(code.index(0)..code.index(columns), NEAR, |near| {
            let turn = near.divide(code.index(NEAR)).remainder(code.index(2)) * tiles_of_block;
            let other = code.index(tiles_of_block) - turn;
            let next = (near + NEAR).min(code.index(columns - NEAR));
            let weight =
                |_, column: Value<'k>, panel| ready.address((turn + column + panel * NEAR) * (ROWS * TILE));
            let besides = |row: Value<'k>, column: Value<'k>| {
                let line = (row.divide(code.index(2 * ROWS)) * NEAR + column) * some;
                let lines = code.index(self.lines_of_group());
                let (group, line) = (line.divide(lines), line.remainder(lines));
                let (panel, near) = (group.divide(code.index(NEAR)), group.remainder(code.index(NEAR)));
                // The distance between the two panels in memory can have any value.
                let at = weights.last().map_or(weights[0].at, |last| last.at);
                let weight =
                    Panel { at: at.or_else(panel.equals(code.index(1)), weights[0].at), ..weights[0] };
                self.make_numbers(weight, next + near, (line, some), (ready, other + group));
            };
            let panels = weights.len();
            let block = Block { x, columns, near, count: NEAR, panels, weight: &weight, besides: &besides };
            self.near_tiles(tiles, &block, (first, sums));
        });
    }

    /// Multiplies a block of weight columns by all activation rows, one tile after another.
    fn near_tiles<'k>(&self, tiles: Tiles<'k>, block: &Block<'_, 'k>, (first, sums): (Value<'k>, Sums<'k>)) {
        let code = first.code();
        code.runs(sums.rows, 2 * ROWS, |row, rows| {
            let pair = rows / ROWS;
            let held: Vec<(usize, Value<'k>)> = (0..pair)
                .flat_map(|i| (0..block.panels).map(move |panel| (i, panel)))
                .map(|(i, panel)| (2 * i + panel, sums.buffer.address(sums.at(panel, row + i * ROWS))))
                .collect();
            held.iter().for_each(|&(register, sums)| tiles.load(register, sums, LINE));
            code.repeat(code.index(0)..code.index(block.count), 1, |column| {
                let start = (first + row).divide(code.index(ROWS));
                for i in 0..pair {
                    let at = ((start + i) * block.columns + (block.near + column)) * (ROWS * TILE);
                    tiles.load(X_TILE + i, block.x.address(at), LINE);
                }
                for panel in 0..block.panels {
                    tiles.load(WEIGHT_TILE + panel, (block.weight)(row, column, panel), LINE);
                    (0..pair).for_each(|i| tiles.add_bf16([2 * i + panel, X_TILE + i, WEIGHT_TILE + panel]));
                }
                (block.besides)(row, column);
            });
            held.iter().for_each(|&(register, sums)| tiles.store(register, sums));
        });
    }

    /// Whether the next block is dequantized while the current one is multiplied. Requires rows in multiples
    /// of `HELD`, and whole blocks of columns.
    fn makes_in_turn(&self) -> bool {
        self.makes_tiles_of_numbers()
            && self.rows.is_multiple_of(HELD)
            && (tile_bytes(self.form()) / LINE).is_multiple_of(NEAR)
    }

    /// Dequantizes some lines of a group in a panel, and stores the numbers in a tile.
    fn make_numbers<'k>(
        &self,
        weight: Panel<'k>,
        group: Value<'k>,
        (line, count): (Value<'k>, usize),
        (ready, tile): (Buffer<'k>, Value<'k>),
    ) {
        let code = group.code();
        let groups = code.index(self.format.columns() / GROUP);
        let chunk = group.divide(groups) * self.format.packed(PANEL, 1).bytes();
        let group = group.remainder(groups);
        let GroupScales { scales, minima } = self.scales().at(weight, chunk, group);
        let scales = scales[0];
        let least = minima.first().copied().unwrap_or_else(|| {
            let least = -f64::from(added(self.groups(), false));
            scales * code.constant(SUMS, -least)
        });
        let columns = GROUP / self.lines_of_group();
        for i in 0..count {
            let from = chunk + (group * self.lines_of_group() + line + i) * LINE + self.format.scales();
            weight.weight.prefetch_to_second(weight.at + from + super::AHEAD);
            let to = tile * (ROWS * TILE) + (line + i) * (columns * PANEL);
            for (four, bytes) in self.stored_columns(weight.line(from)).into_iter().enumerate() {
                let words = bytes.bits(Type::lanes(PANEL, Element::I32));
                let numbers = [0, 1, 2, 3].map(|byte| {
                    let byte = words.shift_right(8 * byte).and(code.constant(words.ty(), 255.0));
                    byte.convert(Element::F32).multiply_add(scales, least)
                });
                for (pair, numbers) in numbers.chunks(2).enumerate() {
                    ready.store_bits(to + (2 * four + pair) * TILE, bf16_pairs(numbers[0], numbers[1]));
                }
            }
        }
    }

    /// Multiplies bytes with tile registers. The products of a group are integers. The kernel
    /// multiplies the products of a group by the group's scale before it adds the products of the
    /// next group. The kernel converts the bytes of a panel to tiles once for all activation rows.
    /// The processor needs some time to store a tile register in memory. Therefore the kernel
    /// computes the products of the next groups while it scales the products of earlier groups.
    fn scaled_tiles<'k>(
        &self,
        tiles: Tiles<'k>,
        (x, ready): (Buffer<'k>, Bytes<'k>),
        weights: &[Panel<'k>],
        (first, sums): (Value<'k>, Sums<'k>),
    ) {
        let code = first.code();
        let form = self.form();
        let chunk = self.format.packed(PANEL, 1).bytes();
        code.runs(self.inputs.div_ceil(self.format.columns()), BLOCK, |from, chunks| {
            let groups = 2 * chunks;
            let together = if groups.is_multiple_of(SLOTS) { SLOTS } else { 2 };
            let row_at = |row: Value<'k>| Row::new(x, (first + row) * form.bytes(), form);
            let multiply = |row: Row<'k>, near: Value<'k>, slot: usize| {
                let [x_tile, weight_tile] = [X_TILE, WEIGHT_TILE].map(|register| register + slot % 2);
                tiles.zero(slot);
                tiles.load(x_tile, x.address(row.place((from * 2 + near) * GROUP)), form.bytes());
                tiles.load(weight_tile, ready.bytes.address(near * (GROUP * PANEL)), LINE);
                tiles.add_bytes([slot, x_tile, weight_tile]);
                tiles.store(slot, ready.products.address(code.index(slot * ROWS * PANEL)));
            };
            for (panel, weight) in weights.iter().enumerate() {
                code.repeat(code.index(0)..code.index(chunks), 1, |at| {
                    let start = (from + at) * chunk;
                    ask(code, &[*weight], start, chunk / LINE);
                    self.make_ready(code, *weight, start, ready, at * 2);
                });
                (0..together).for_each(|slot| multiply(row_at(code.index(0)), code.index(slot), slot));
                code.repeat(code.index(0)..code.index(sums.rows), ROWS, |row| {
                    let start = sums.at(panel, row);
                    let places: Vec<Value<'k>> = (0..ROWS).map(|i| start + i * PANEL).collect();
                    let before: Vec<Value<'k>> =
                        places.iter().map(|&place| sums.buffer.load(place, SUMS)).collect();
                    let own: Vec<Row<'k>> = (0..ROWS).map(|i| row_at(row + i)).collect();
                    let residuals: Vec<Row<'k>> = match self.activations {
                        ActivationBits::Eight => Vec::new(),
                        _ => own.iter().map(|row| row.residuals()).collect(),
                    };
                    // After the last group of these rows, the first group of the next rows follows.
                    let next = (row + ROWS).min(code.index(sums.rows - ROWS));
                    let range = code.index(0)..code.index(groups);
                    let after = code.fold(range, together, &before, |near, before| {
                        let further = near + together;
                        let ends = further.equals(code.index(groups));
                        let (row, further) = (next.or_else(ends, row), code.index(0).or_else(ends, further));
                        (0..together).fold(before.to_vec(), |sums, slot| {
                            let group = from * 2 + near + slot;
                            let add = |rows: &[Row<'k>], sums: &[Value<'k>]| {
                                let scales = ready.scales.load((near + slot) * PANEL, SUMS);
                                let add = |(i, (row, &sum)): (usize, (&Row<'k>, &Value<'k>))| {
                                    let at = code.index((i + slot * ROWS) * PANEL);
                                    let products = ready.products.load(at, Type::lanes(PANEL, Element::I32));
                                    let scale = row.scale(group).broadcast(PANEL);
                                    (products.convert(Element::F32) * scale).multiply_add(scales, sum)
                                };
                                rows.iter().zip(sums).enumerate().map(add).collect::<Vec<_>>()
                            };
                            let mut sums = add(&own, &sums);
                            if !residuals.is_empty() {
                                sums = if_residuals(residuals[0], group, &sums, |sums| {
                                    multiply(residuals[0], near + slot, slot);
                                    add(&residuals, sums)
                                });
                            }
                            multiply(row_at(row), further + slot, slot);
                            sums
                        })
                    });
                    places.iter().zip(after).for_each(|(&place, sum)| sums.buffer.store(place, sum));
                });
            }
        });
    }

    /// Converts the two groups of a chunk to tiles of bytes and to scales.
    fn make_ready<'k>(
        &self,
        code: &'k Code,
        weight: Panel<'k>,
        start: Value<'k>,
        ready: Bytes<'k>,
        group: Value<'k>,
    ) {
        let scales = weight.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
        for half in 0..2 {
            let group = group + half;
            let scales = scales.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32);
            ready.scales.store(group * PANEL, scales);
            for (i, columns) in self.columns_of(code, weight, start, code.index(half)).enumerate() {
                let signed = columns + code.constant(columns.ty(), f64::from(self.added()));
                ready.bytes.store(group * (GROUP * PANEL) + i * LINE, signed);
            }
        }
    }
}

/// A block of weight columns in tiles, multiplied by all activation rows before the next block.
struct Block<'b, 'k> {
    /// The tiles of x, the number per activation row, and first tile and number of the block's columns.
    x: Buffer<'k>,
    columns: usize,
    near: Value<'k>,
    count: usize,
    /// The number of panels, and a function for the address of a panel's tile by tile row and column.
    panels: usize,
    weight: &'b dyn Fn(Value<'k>, Value<'k>, usize) -> Value<'k>,
    /// A function that emits additional instructions for each iteration of the multiplication loop.
    besides: &'b dyn Fn(Value<'k>, Value<'k>),
}

/// Quantized weights in the layout that tile instructions read.
#[derive(Clone, Copy)]
enum Ready<'k> {
    Numbers(Buffer<'k>),
    Bytes(Bytes<'k>),
}

/// Groups of a panel for tile registers: tiles of signed bytes, scales, and memory for the products.
#[derive(Clone, Copy)]
struct Bytes<'k> {
    bytes: Buffer<'k>,
    scales: Buffer<'k>,
    products: Buffer<'k>,
}

impl<'k> Bytes<'k> {
    fn new(code: &'k Code) -> Self {
        Self {
            bytes: code.scratch(Element::I8, 2 * BLOCK * GROUP * PANEL),
            scales: code.scratch(Element::F32, 2 * BLOCK * PANEL),
            products: code.scratch(Element::I32, SLOTS * ROWS * PANEL),
        }
    }
}

/// Computes new sums with `add` if a row has residuals in a group, or else returns the sums.
fn if_residuals<'k>(
    residuals: Row<'k>,
    group: Value<'k>,
    sums: &[Value<'k>],
    add: impl FnOnce(&[Value<'k>]) -> Vec<Value<'k>>,
) -> Vec<Value<'k>> {
    let code = group.code();
    let zero = code.constant(Type::Scalar(Element::I32), 0.0);
    let scale = residuals.scale_bits(group, 1);
    let times = code.index(0).or_else(scale.bits_of_any_lane().equals(zero), code.index(1));
    // The loop runs at most once.
    code.fold(code.index(0)..times, 1, sums, |_, sums| add(sums))
}
