//! Products of many rows by tiles. A panel's lines are the rows of a tile as they are; x is cut into tiles by a kernel of
//! its own where it has rows of numbers, and is read as it is where it has bytes.

use ops::WeightFormat;
use ops::format::{COLUMNS, GROUP, PANEL, SCALES};

use super::{Panel, Product, SUMS, X, ask};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa::tiles::{LINE, ROWS, Tiles};
use crate::kernel::{self, Kernel};
use crate::quantized::{Form, Row};
use crate::work::End;

/// Columns of bf16 in a tile.
const TILE: usize = LINE / 2;

/// Tiles of a panel that are multiplied with all rows before the next: so many of two panels are in the nearest cache.
const NEAR: usize = 16;

/// Rows whose sums a worker holds.
const HELD: usize = 128;

/// Rows from which tiles are filled well enough.
const FEWEST: usize = 16;

/// Registers: four tiles of sums, two of x, two of weights.
const X_TILE: usize = 4;
const WEIGHT_TILE: usize = 6;

/// The sums of some rows: `[panels, rows, 16]`.
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

/// Where a number of rows that are cut into tiles is: `[rows / 16, inputs / 32, 16, 32]`.
pub(super) fn place<'k>(inputs: usize, row: Value<'k>, column: Value<'k>) -> Value<'k> {
    let code = row.code();
    let [rows, columns] = [ROWS, TILE].map(|count| code.index(count));
    let tile = row.divide(rows) * (inputs / TILE) + column.divide(columns);
    (tile * ROWS + row.remainder(rows)) * TILE + column.remainder(columns)
}

/// All rows of x `[rows, inputs]`, cut into tiles; rows that fill the last ones are not written.
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

impl Product<'_> {
    /// Whether tiles compute it.
    pub(super) fn is_tiled(&self) -> bool {
        let tiles = self.isa.tiles();
        let multiplied = match self.format {
            WeightFormat::Bf16 => tiles.bf16 && self.inputs.is_multiple_of(TILE),
            WeightFormat::Q8 | WeightFormat::Q4 => tiles.bytes,
            WeightFormat::F32 | WeightFormat::F16 => false,
        };
        multiplied && self.stack.is_none() && self.rows >= FEWEST
    }

    /// The panels' outputs for all rows.
    pub(super) fn tiles<'k>(
        &self,
        code: &'k Code,
        x: X<'k>,
        weights: &[Panel<'k>],
        end: &End<'k>,
        panel: Value<'k>,
    ) {
        let held = HELD.min(self.rows.next_multiple_of(ROWS));
        let buffer = code.scratch(Element::F32, weights.len() * held * PANEL);
        let mut extents = [(ROWS, LINE); 8];
        if let X::Quantized(_) = x {
            // Numbers that share a scale, and their weights.
            extents[X_TILE..WEIGHT_TILE].fill((ROWS, GROUP));
            extents[WEIGHT_TILE..].fill((GROUP / 4, LINE));
        }
        let some = |first: Value<'k>, rows: usize| {
            let sums = Sums { buffer, rows: rows.next_multiple_of(ROWS) };
            code.repeat(code.index(0)..code.index(weights.len() * sums.rows * PANEL), PANEL, |at| {
                buffer.store(at, code.constant(SUMS, 0.0));
            });
            let tiles = Tiles::configure(code, extents);
            match x {
                X::Dense(x) => self.dense_tiles(tiles, x.buffer, weights, (first, sums)),
                X::Quantized(x) => self.scaled_tiles(code, tiles, x, weights, (first, sums)),
            }
            tiles.release();
            // Of halves those of the first, then those of the second.
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

    /// Of numbers: two panels and two tiles of rows at a time, so that each tile that is loaded is multiplied twice.
    fn dense_tiles<'k>(
        &self,
        tiles: Tiles<'k>,
        x: Buffer<'k>,
        weights: &[Panel<'k>],
        (first, sums): (Value<'k>, Sums<'k>),
    ) {
        let code = first.code();
        let columns = self.inputs / TILE;
        let tile = ROWS * LINE;
        let some = |near: Value<'k>, count: usize| {
            code.runs(sums.rows, 2 * ROWS, |row, rows| {
                let pair = rows / ROWS;
                let held: Vec<(usize, Value<'k>)> = (0..pair)
                    .flat_map(|i| (0..weights.len()).map(move |panel| (i, panel)))
                    .map(|(i, panel)| (2 * i + panel, sums.buffer.address(sums.at(panel, row + i * ROWS))))
                    .collect();
                held.iter().for_each(|&(register, sums)| tiles.load(register, sums, LINE));
                code.repeat(near..near + count, 1, |column| {
                    let start = (first + row).divide(code.index(ROWS));
                    for i in 0..pair {
                        let at = ((start + i) * columns + column) * (ROWS * TILE);
                        tiles.load(X_TILE + i, x.address(at), LINE);
                    }
                    for (panel, weight) in weights.iter().enumerate() {
                        let at = weight.at + column * tile;
                        // Lines of the tiles that come next are asked for while these are multiplied.
                        let lines = ROWS.div_ceil(sums.rows.div_ceil(2 * ROWS));
                        let ahead = at + NEAR * tile + row.divide(code.index(2 * ROWS)) * (lines * LINE);
                        (0..lines).for_each(|line| weight.weight.prefetch_to_second(ahead + line * LINE));
                        tiles.load(WEIGHT_TILE + panel, weight.weight.address(at), LINE);
                        (0..pair)
                            .for_each(|i| tiles.add_bf16([2 * i + panel, X_TILE + i, WEIGHT_TILE + panel]));
                    }
                });
                held.iter().for_each(|&(register, sums)| tiles.store(register, sums));
            });
        };
        code.runs(columns, NEAR, some);
    }

    /// Of bytes: the products of a group are whole numbers, which get their scales before the next group is added.
    fn scaled_tiles<'k>(
        &self,
        code: &'k Code,
        tiles: Tiles<'k>,
        x: Buffer<'k>,
        weights: &[Panel<'k>],
        (first, sums): (Value<'k>, Sums<'k>),
    ) {
        let form = Form { inputs: self.inputs };
        let chunk = self.format.packed(PANEL, 1).bytes();
        let products = code.scratch(Element::I32, 2 * ROWS * PANEL);
        let bytes = code.scratch(Element::I8, 2 * GROUP * PANEL);
        code.repeat(code.index(0)..code.index(self.inputs.div_ceil(COLUMNS)), 1, |at| {
            for (panel, weight) in weights.iter().enumerate() {
                let start = at * chunk;
                ask(code, &[*weight], start, chunk / LINE);
                let scales = weight.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
                let scales =
                    [0, 1].map(|half| scales.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32));
                for half in 0..2 {
                    let place = half * GROUP * PANEL;
                    for (i, columns) in self.columns_of(code, *weight, start + SCALES, half).enumerate() {
                        bytes.store(code.index(place + i * LINE), columns);
                    }
                    tiles.load(WEIGHT_TILE + half, bytes.address(code.index(place)), LINE);
                }
                code.repeat(code.index(0)..code.index(sums.rows), ROWS, |row| {
                    for half in 0..2 {
                        let from = (first + row) * form.bytes() + at * COLUMNS + half * GROUP;
                        tiles.zero(half);
                        tiles.load(X_TILE + half, x.address(from), form.bytes());
                        tiles.add_bytes([half, X_TILE + half, WEIGHT_TILE + half]);
                        tiles.store(half, products.address(code.index(half * ROWS * PANEL)));
                    }
                    code.repeat(code.index(0)..code.index(ROWS), 1, |i| {
                        let own = Row { buffer: x, at: (first + row + i) * form.bytes(), form };
                        let place = sums.at(panel, row + i);
                        let mut sum = sums.buffer.load(place, SUMS);
                        for (half, scales) in scales.into_iter().enumerate() {
                            let group = at * 2 + half;
                            let surplus = self.surplus(code, own, group);
                            let products =
                                products.load((i + half * ROWS) * PANEL, Type::lanes(PANEL, Element::I32));
                            let scale = scales * own.scale(group).broadcast(PANEL);
                            sum = (products + surplus).convert(Element::F32).multiply_add(scale, sum);
                        }
                        sums.buffer.store(place, sum);
                    });
                });
            }
        });
    }
}
