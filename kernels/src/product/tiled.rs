//! Products of many rows by tiles. A panel's lines are the rows of a tile as they are; x is cut into tiles by a kernel of
//! its own where it has rows of numbers, and is read as it is where it has bytes.

use ops::WeightFormat;
use ops::format::{COLUMNS, GROUP, PANEL, SCALES};

use super::{Dense, Panel, Product, SUMS, X, ask};
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

/// Chunks of a panel whose bytes are ready at a time.
const BLOCK: usize = 8;

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
        let ready = match x {
            X::Dense(_) => None,
            X::Quantized(_) => {
                // Numbers that share a scale, and their weights.
                extents[X_TILE..WEIGHT_TILE].fill((ROWS, GROUP));
                extents[WEIGHT_TILE..].fill((GROUP / 4, LINE));
                Some(Ready::new(code))
            }
        };
        let some = |first: Value<'k>, rows: usize| {
            let sums = Sums { buffer, rows: rows.next_multiple_of(ROWS) };
            code.repeat(code.index(0)..code.index(weights.len() * sums.rows * PANEL), PANEL, |at| {
                buffer.store(at, code.constant(SUMS, 0.0));
            });
            let tiles = Tiles::configure(code, extents);
            match (x, ready) {
                (X::Quantized(x), Some(ready)) => self.scaled_tiles(tiles, (x, ready), weights, (first, sums)),
                (X::Dense(Dense { buffer, .. }) | X::Quantized(buffer), _) => {
                    self.dense_tiles(tiles, buffer, weights, (first, sums));
                }
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

    /// Of bytes: the products of a group are whole numbers, which get their scales before the next group is added. A panel's
    /// bytes are brought into the form of tiles once for all rows.
    fn scaled_tiles<'k>(
        &self,
        tiles: Tiles<'k>,
        (x, ready): (Buffer<'k>, Ready<'k>),
        weights: &[Panel<'k>],
        (first, sums): (Value<'k>, Sums<'k>),
    ) {
        let code = first.code();
        let form = Form { inputs: self.inputs };
        let chunk = self.format.packed(PANEL, 1).bytes();
        code.runs(self.inputs.div_ceil(COLUMNS), BLOCK, |from, chunks| {
            for (panel, weight) in weights.iter().enumerate() {
                code.repeat(code.index(0)..code.index(chunks), 1, |at| {
                    let start = (from + at) * chunk;
                    ask(code, &[*weight], start, chunk / LINE);
                    self.make_ready(code, *weight, start, ready, at * 2);
                });
                code.repeat(code.index(0)..code.index(sums.rows), ROWS, |row| {
                    let start = sums.at(panel, row);
                    let places: Vec<Value<'k>> = (0..ROWS).map(|i| start + i * PANEL).collect();
                    let start = (first + row) * form.bytes();
                    let own = |i: usize| Row { buffer: x, at: start + i * form.bytes(), form };
                    let before: Vec<Value<'k>> =
                        places.iter().map(|&place| sums.buffer.load(place, SUMS)).collect();
                    let groups = code.index(0)..code.index(2 * chunks);
                    let after = code.fold(groups, 2, &before, |near, before| {
                        let group = from * 2 + near;
                        let mut sums = before.to_vec();
                        for half in 0..2 {
                            tiles.zero(half);
                            let numbers = x.address(own(0).at + (group + half) * GROUP);
                            tiles.load(X_TILE + half, numbers, form.bytes());
                            let weights = ready.bytes.address((near + half) * (GROUP * PANEL));
                            tiles.load(WEIGHT_TILE + half, weights, LINE);
                            tiles.add_bytes([half, X_TILE + half, WEIGHT_TILE + half]);
                            tiles.store(half, ready.products.address(code.index(half * ROWS * PANEL)));
                        }
                        for half in 0..2 {
                            let scales = ready.scales.load((near + half) * PANEL, SUMS);
                            for (i, sum) in sums.iter_mut().enumerate() {
                                let at = code.index((i + half * ROWS) * PANEL);
                                let products = ready.products.load(at, Type::lanes(PANEL, Element::I32));
                                let scale = own(i).scale(group + half).broadcast(PANEL);
                                *sum = (products.convert(Element::F32) * scale).multiply_add(scales, *sum);
                            }
                        }
                        sums
                    });
                    places.iter().zip(after).for_each(|(&place, sum)| sums.buffer.store(place, sum));
                });
            }
        });
    }

    /// The two groups of a panel's chunk, which begins at a byte, as tiles and scales: from a group on.
    fn make_ready<'k>(
        &self,
        code: &'k Code,
        weight: Panel<'k>,
        start: Value<'k>,
        ready: Ready<'k>,
        group: Value<'k>,
    ) {
        let scales = weight.line(start).bits(Type::lanes(2 * PANEL, Element::F16));
        for half in 0..2 {
            let group = group + half;
            let scales = scales.slice(half * PANEL..(half + 1) * PANEL).convert(Element::F32);
            ready.scales.store(group * PANEL, scales);
            for (i, columns) in self.columns_of(code, weight, start + SCALES, half).enumerate() {
                let signed = columns + code.constant(columns.ty(), self.added());
                ready.bytes.store(group * (GROUP * PANEL) + i * LINE, signed);
            }
        }
    }
}

/// Some groups of a panel: the tiles of each, with their sign, and the scales. And room for what two of them are multiplied to.
#[derive(Clone, Copy)]
struct Ready<'k> {
    bytes: Buffer<'k>,
    scales: Buffer<'k>,
    products: Buffer<'k>,
}

impl<'k> Ready<'k> {
    fn new(code: &'k Code) -> Self {
        Self {
            bytes: code.scratch(Element::I8, 2 * BLOCK * GROUP * PANEL),
            scales: code.scratch(Element::F32, 2 * BLOCK * PANEL),
            products: code.scratch(Element::I32, 2 * ROWS * PANEL),
        }
    }
}
