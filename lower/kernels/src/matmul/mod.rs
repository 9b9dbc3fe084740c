//! Matmul kernels: y = x · weightᵀ over packed weights, read once for all rows at the speed of memory.

mod blocked;
mod dense;
mod floats;
mod grouped;
mod scaled;
mod tiled;

use std::ops::Range;

use ops::format::{ActivationBits, PANEL};
use ops::{ElementType, TensorType, WeightFormat};
use targets::Tiling;

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::fused_op::{End, Epilogue};
use crate::isa::tiles::LINE;
use crate::isa::{Isa, tiles};
use crate::kernel::{self, Kernel};
use crate::norm::Norm;
use crate::packing::Packing;
use crate::quantized::{self, Form, Row};
use crate::tilings::{Tilings, count};

/// A matmul of `rows` activation rows of `inputs` numbers with a weight of `outputs` rows.
#[derive(Clone)]
pub(crate) struct Matmul<'a> {
    pub(crate) format: WeightFormat,
    /// The bits of the integers to which activations x are rounded for a quantized weight.
    pub(crate) activations: ActivationBits,
    pub(crate) x: Element,
    pub(crate) y: Element,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// The stack of matrices, if the kernel multiplies each activation row by a separate matrix.
    pub(crate) stack: Option<Stack>,
    /// The norm fused before the matmul, if any. For a single activation row, each worker repeats it.
    pub(crate) norm: Option<Norm>,
    /// The epilogue that the kernel applies to the sums of the matmul.
    pub(crate) tail: &'a Epilogue,
    pub(crate) isa: Isa,
}

/// A weight that is a stack of matrices. Each row of the result uses one matrix of the stack.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    pub(crate) matrices: usize,
    pub(crate) rows: usize,
    /// Whether an operand selects each row's matrix. Otherwise, row i has matrix i modulo `matrices`.
    pub(crate) chosen: bool,
}

/// The activation rows that the kernel multiplies by the same matrix.
#[derive(Clone, Copy)]
struct Rows<'k> {
    /// The first result row with the matrix; `apart` is the distance of consecutive rows with it.
    first: Value<'k>,
    count: usize,
    apart: usize,
    /// The number of result rows that the kernel computes from the same activation row.
    shared: usize,
    /// The result rows, if grouped by matrix; `first` then counts the items of the list.
    list: Option<List<'k>>,
}

/// A list of the result rows that use the same matrix.
#[derive(Clone, Copy)]
struct List<'k> {
    rows: Buffer<'k>,
    /// The index in `rows` of the first item of the list of all matrices.
    base: usize,
    /// The index of the matrix's last row. Rows after the last row repeat the last row.
    last: Value<'k>,
}

impl<'k> Rows<'k> {
    /// Returns the index of the result row that belongs to the activation row with the index `i`.
    fn result(self, i: usize) -> Value<'k> {
        self.result_of(self.first + i * self.apart)
    }

    fn result_of(self, row: Value<'k>) -> Value<'k> {
        match self.list {
            Some(List { rows, base, last }) => {
                rows.load(row.min(last) + base, Type::Scalar(Element::I32)).place()
            }
            None => row,
        }
    }

    fn x(self, i: usize) -> Value<'k> {
        self.x_of(self.result(i))
    }

    /// Like [`x`](Self::x), in a loop.
    fn x_at(self, i: Value<'k>) -> Value<'k> {
        self.x_of(self.result_of(self.first + i * self.apart))
    }

    fn x_of(self, result: Value<'k>) -> Value<'k> {
        match self.shared {
            1 => result,
            shared => result.divide(self.first.code().index(shared)),
        }
    }
}

/// The fewest weight bytes for a worker; with fewer, starting its thread costs more than it saves.
const PART: usize = 1 << 17;

/// If every worker quantizes or normalizes the whole activation row, the workers repeat the same work. If the
/// workers repeat work, a worker reads at least this number of weight bytes for each number of the activation
/// row. Reading the weight bytes then takes about ten times as long as the repeated work.
const PART_QUANTIZES: usize = 200;
const PART_NORMALIZES: usize = 100;

/// The bytes of a worker's buffer on the stack, for a row that it normalizes or quantizes itself.
const SCRATCH: usize = 30 << 10;

/// The distance in bytes from reads to prefetches. The processor's prefetcher stops at the end of a page.
const AHEAD: usize = 4096;

/// The activation rows per pass over the weights. With more, arithmetic takes longer than a second pass.
const ROWS: usize = 8;

/// The most parts of the work for worker threads: 64 parts keep all threads of a machine busy.
const PARTS: usize = 64;

/// The most vectors of 16 sums that a loop passes on. No processor has registers for more, and many more
/// exceed a worker's stack.
const CARRIED: usize = 32;

/// The sums of 16 outputs for one activation row.
pub(crate) const SUMS: Type = Type::lanes(PANEL, Element::F32);

/// The activations of a matmul, in the layout that the matmul kernel reads.
#[derive(Clone, Copy)]
enum X<'k> {
    Dense(Dense<'k>),
    /// The activations of the matmul are quantized to integers.
    Quantized(Buffer<'k>),
}

/// Activations of the matmul that are floats, either in row order or divided into tiles.
#[derive(Clone, Copy)]
struct Dense<'k> {
    buffer: Buffer<'k>,
    element: Element,
    inputs: usize,
    tiled: bool,
    /// For formats of floats whose scales have scales.
    nested: Option<Buffer<'k>>,
}

impl<'k> Dense<'k> {
    fn at(self, row: Value<'k>, column: Value<'k>) -> Value<'k> {
        if self.tiled { tiled::place(self.inputs, row, column) } else { row * self.inputs + column }
    }
}

/// A panel of the weight, which begins at the byte `at` of the weight.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'k> {
    pub(crate) weight: Buffer<'k>,
    pub(crate) at: Value<'k>,
    /// The distance in bytes from reads of a panel to prefetches; 0 for no prefetch.
    ahead: usize,
}

impl<'k> Panel<'k> {
    /// Returns a line of the panel. A line contains some columns of 16 rows of the weight.
    pub(crate) fn line(self, at: Value<'k>) -> Value<'k> {
        self.weight.load(self.at + at, Type::lanes(LINE, Element::I8))
    }
}

/// Prefetches the bytes of each panel that the kernel will read `ahead` bytes later. The kernel
/// prefetches the next lines before it reads the current lines. If LLVM mixed prefetches and reads,
/// a q8 matmul would reach only 0.8 of the memory bandwidth (AMD, AVX2).
fn ask<'k>(code: &'k Code, weights: &[Panel<'k>], at: Value<'k>, lines: usize) {
    for panel in weights.iter().filter(|panel| panel.ahead > 0) {
        (0..lines).for_each(|line| panel.weight.prefetch(panel.at + at + (line * LINE + panel.ahead)));
    }
    if lines > 0 && weights.iter().any(|panel| panel.ahead > 0) {
        code.in_order();
    }
}

impl Matmul<'_> {
    /// The kernel that prepares several rows' activations for all parts; `None` if each worker does.
    pub(crate) fn apart(&self) -> Option<Packing<'static>> {
        let &Self { rows, inputs, x, .. } = self;
        Some(if self.makes_tiles_of_numbers() {
            let (name, kernel) = tiled::rounding(x, [rows, self.stored()], self.form());
            let ty = TensorType::new(ElementType::I8, [self.stored(), tiled::row_bytes(self.form())]);
            Packing { name, ty, operands: vec![0], kernel: Box::new(kernel) }
        } else if self.quantizes_apart() {
            let (name, kernel) = quantized::kernel(x, [rows, self.stored()], self.form());
            let ty = TensorType::new(ElementType::I8, [self.stored(), self.form().bytes()]);
            Packing { name, ty, operands: vec![0], kernel: Box::new(kernel) }
        } else if self.is_tiled() {
            let (name, kernel) = tiled::kernel(rows, inputs);
            let ty = TensorType::new(ElementType::Bf16, [self.stored(), inputs]);
            Packing { name, ty, operands: vec![0], kernel: Box::new(kernel) }
        } else if self.widens_apart() {
            let (name, kernel) = dense::widening(x, rows, inputs);
            let ty = TensorType::new(ElementType::F32, [rows, inputs]);
            Packing { name, ty, operands: vec![0], kernel: Box::new(kernel) }
        } else {
            return None;
        })
    }

    /// The layout of the quantized activations in memory.
    fn form(&self) -> Form {
        let &Self { inputs, activations, .. } = self;
        Form { inputs, bits: activations, chunk: self.format.columns(), sums: self.sums_of_x() }
    }

    /// Whether a separate kernel quantizes: for several rows, or one too long for a worker's stack.
    fn quantizes_apart(&self) -> bool {
        self.format.groups().is_some() && (self.rows > 1 || self.form().bytes() > SCRATCH)
    }

    /// The rows in the separate kernel's buffer, a multiple of a tile's rows with tile registers.
    fn stored(&self) -> usize {
        if self.is_tiled() { self.rows.next_multiple_of(tiles::ROWS) } else { self.rows }
    }

    /// Whether the kernel supports this matmul.
    pub(crate) fn serves(&self) -> bool {
        let quantized = if self.format.groups().is_some() { self.form().bytes() } else { 0 };
        let normalised = |norm: Norm| norm.features * norm.element.bits() / 8;
        let scales = 4 * self.scales_of(2 * self.halves()).unwrap_or(0);
        let kept = |norm| normalised(norm) + quantized + scales;
        let norm = self.norm.is_none_or(|norm| self.rows == 1 && kept(norm) <= SCRATCH);
        // If the epilogue combines halves, each half must consist of whole panels.
        norm && (!self.tail.halves || self.outputs.is_multiple_of(2 * PANEL))
    }

    /// Returns the number of columns in the output of the matmul.
    fn columns(&self) -> usize {
        if self.tail.halves { self.outputs / 2 } else { self.outputs }
    }

    /// Returns the number of rows in the output of the matmul.
    fn results(&self) -> usize {
        self.stack.map_or(self.rows, |stack| stack.rows)
    }

    /// Returns the number of matrices, and the number of activation rows per matrix.
    fn matrices(&self) -> (usize, usize) {
        // Rows choose matrices about equally often.
        if let Some(Stack { rows, matrices, .. }) = self.grouped() {
            return (matrices, rows.div_ceil(matrices));
        }
        match self.stack {
            None => (1, self.rows),
            Some(Stack { rows, chosen: true, .. }) => (rows, 1),
            Some(Stack { rows, matrices, .. }) => (matrices, rows / matrices),
        }
    }

    /// Returns a name that contains all parameters that affect the kernel's speed, except the epilogue.
    pub(crate) fn name(&self) -> String {
        let &Self { format, rows, inputs, outputs, x, y, norm, isa, stack, .. } = self;
        let normed = norm.map(|norm| format!("_normed_{}", norm.name())).unwrap_or_default();
        let rounds = format.groups().is_some();
        let residuals = if rounds { quantized::bits_suffix(self.activations) } else { "" };
        let of = |Stack { matrices, rows, chosen }| {
            format!("_{rows}_{}_{matrices}", if chosen { "chosen_of" } else { "of_all" })
        };
        let stacked = stack.map(of).unwrap_or_default();
        let (format, isa) = (format.word(), isa.name());
        format!("product_{format}{residuals}_{rows}x{inputs}x{outputs}{stacked}_{x}_{y}{normed}_{isa}")
    }

    /// The name of this matmul in tuning files, also with whether the epilogue combines halves.
    pub(crate) fn key(&self) -> String {
        format!("{}{}", self.name(), if self.tail.halves { "_halves" } else { "" })
    }

    pub(crate) fn tilings(&self) -> Tilings {
        Tilings::new(self.key(), self.usual(), |tiling| self.fitted(tiling))
    }

    /// Returns the default tiling, which the kernel uses unless a tuning file selects another tiling.
    pub(crate) fn usual(&self) -> Tiling {
        let &Self { format, rows, inputs, norm, .. } = self;
        let quantized = if format.groups().is_some() && rows == 1 { inputs * PART_QUANTIZES } else { 0 };
        let normalised = if norm.is_some() { inputs * PART_NORMALIZES } else { 0 };
        let (matrices, rows) = self.matrices();
        let parts = self.bytes() * matrices / PART.max(quantized + normalised);
        // The number of parts is a power of two. With an odd number of parts, workers would wait
        // for the last part.
        let parts = 1 << parts.clamp(1, PARTS).ilog2();
        // If registers have room, the kernel reads two panels together. Then it multiplies each loaded number
        // of x twice, and a core gets more memory bandwidth from two streams.
        let dense = format.groups().is_none() || self.makes_tiles_of_numbers();
        let fits = rows <= self.isa.rows() / if self.isa.has_short_vectors() { 2 } else { 1 };
        let many = rows >= 8 && dense && !self.isa.has_short_vectors();
        let two = fits || many;
        let panels = if two && !(self.tail.halves && rows > 1) { 2 } else { 1 };
        let rows = match () {
            () if self.is_blocked() => blocked::TILE,
            () if rows <= ROWS => ROWS,
            () => self.isa.rows(),
        };
        self.fitted(Tiling { parts: count(parts), rows: count(rows), panels: count(panels), ahead: AHEAD })
    }

    /// Reduces the sizes of a tiling until the sizes fit this matmul.
    fn fitted(&self, tiling: Tiling) -> Tiling {
        let (matrices, rows) = self.matrices();
        let columns = self.columns().div_ceil(PANEL);
        let halves = self.halves();
        let tile =
            if self.is_tiled() { tiles::ROWS } else { tiling.rows.get().min(CARRIED / halves).min(rows) };
        let most = if self.is_blocked() || self.takes_panels_in_turn() {
            1
        } else {
            tiling.panels.get().min(CARRIED / halves / tile.max(1))
        };
        let panels = (1..=most).rev().find(|&panels| columns.is_multiple_of(panels)).unwrap_or(1);
        Tiling {
            parts: count(tiling.parts.get().min(columns / panels * matrices)),
            rows: count(tile),
            panels: count(panels),
            // A panel that is read several times stays in the cache, and needs no prefetch.
            ahead: if tile < rows { 0 } else { tiling.ahead },
        }
    }

    /// The slices of the result that the epilogue combines: 2 for halves, otherwise 1.
    fn halves(&self) -> usize {
        if self.tail.halves { 2 } else { 1 }
    }

    fn bytes(&self) -> usize {
        self.format.packed(self.outputs, self.inputs).bytes()
    }

    /// Returns the code of the matmul kernel, for a tiling and for the element type of the results.
    pub(crate) fn kernel(&self, element: Element, tiling: Tiling) -> impl FnOnce() -> Kernel {
        let tiling = self.fitted(tiling);
        let bindings =
            2 + usize::from(self.is_chosen()) + usize::from(self.norm.is_some()) + self.tail.bindings();
        move || kernel::new(bindings, tiling.parts.get(), |code| self.write(code, element, tiling))
    }

    fn is_chosen(&self) -> bool {
        self.stack.is_some_and(|stack| stack.chosen)
    }

    fn write(&self, code: &Code, element: Element, tiling: Tiling) {
        let (bytes, panels) = (self.bytes(), self.outputs.div_ceil(PANEL));
        let stored = self.stack.map_or(1, |stack| stack.matrices);
        let weight = code.binding(1, Element::I8, bytes * stored);
        let listed = self.grouped().map_or(0, |stack| stack.matrices + 1);
        let choices = self.is_chosen().then(|| code.binding(2, Element::I32, listed + self.results()));
        let together = tiling.panels.get();
        // The panels that are read together. If the epilogue combines halves, the list contains panels of
        // both halves.
        let places = (0..self.halves()).flat_map(|half| (0..together).map(move |i| half * (panels / 2) + i));
        let places: Vec<usize> = places.collect();
        let tiles = self.is_tiled().then(|| {
            let held = code.scratch(Element::F32, places.len() * self.held() * PANEL);
            (tiles::granted(code), held)
        });
        let x = self.prepared(code);
        let first = 2 + usize::from(choices.is_some()) + usize::from(self.norm.is_some());
        let end = self.tail.end(code, first, (element, self.results(), self.columns()));
        let stride = bytes / panels;
        let (matrices, rows) = self.matrices();
        let shared = self.results() / self.rows;
        let parts = tiling.parts.get();
        let tile = if tiles.is_some() { self.isa.rows().min(rows) } else { tiling.rows.get() };
        let units = self.columns().div_ceil(PANEL) / together;
        let blocks = self.is_blocked().then(|| blocked::Partials::new(code));
        code.repeat(kernel::share(code, units * matrices, parts), 1, |at| {
            let (matrix, unit) = match matrices {
                1 => (None, at),
                _ => (Some(at.divide(code.index(units))), at.remainder(code.index(units))),
            };
            let panel = unit * together;
            let stored = match (choices, matrix) {
                (Some(choices), _) if listed == 0 => {
                    let row = choices.load(matrix.unwrap_or(code.index(0)), Type::Scalar(Element::I32));
                    Some(grouped::nearest(code, row, self.stack.map_or(1, |stack| stack.matrices)))
                }
                (_, matrix) => matrix,
            };
            let place = stored.map_or(panel, |matrix| matrix * panels + panel);
            let read: Vec<Panel<'_>> = places
                .iter()
                .map(|&i| Panel { weight, at: (place + i) * stride, ahead: tiling.ahead })
                .collect();
            let some = |row: Value<'_>, count: usize| {
                let first = match matrix {
                    Some(matrix) => row * matrices + matrix,
                    None => row,
                };
                let rows = Rows { first, count, apart: matrices, shared, list: None };
                self.tile(code, x, &read, &end, panel, rows);
            };
            if let (Some(rows), Some(_)) = (choices, self.grouped()) {
                let matrix = matrix.unwrap_or(code.index(0));
                let [first, end_of_rows] =
                    [0, 1].map(|i| rows.load(matrix + i, Type::Scalar(Element::I32)).place());
                let list = Some(List { rows, base: listed, last: end_of_rows - 1 });
                code.repeat(first..end_of_rows, tile, |first| {
                    let rows = Rows { first, count: tile, apart: 1, shared, list };
                    self.tile(code, x, &read, &end, panel, rows);
                });
                return;
            }
            let plain = || code.runs(rows, tile, some);
            match (tiles, blocks, x) {
                (Some((granted, held)), ..) => {
                    code.either(granted, || self.tiles(code, (x, held), &read, &end, panel), plain);
                }
                (None, Some(scratch), X::Dense(x)) => {
                    self.blocks(code, x, &read, (panel, tile), &end, scratch);
                }
                _ => plain(),
            }
        });
    }

    /// Returns the activations in the kernel's layout, normalized and quantized unless prepared before.
    fn prepared<'k>(&self, code: &'k Code) -> X<'k> {
        let form = self.form();
        if self.quantizes_apart() {
            let bytes = if self.makes_tiles_of_numbers() { tiled::row_bytes(form) } else { form.bytes() };
            return X::Quantized(code.binding(0, Element::I8, self.stored() * bytes));
        }
        let element = if self.widens_apart() { Element::F32 } else { self.x };
        let (x, start) = (code.binding(0, element, self.stored() * self.inputs), code.index(0));
        let x = match self.norm {
            Some(norm) => {
                let normalised = code.scratch(self.x, self.inputs);
                norm.fill(code, (x, start), norm.weight(code, 2), (normalised, start));
                normalised
            }
            None => x,
        };
        if self.format.groups().is_none() {
            let nested = self.nested(code);
            let (inputs, tiled) = (self.inputs, self.is_tiled());
            return X::Dense(Dense { buffer: x, element, inputs, tiled, nested });
        }
        let rows = code.scratch(Element::I8, form.bytes());
        Row::new(rows, start, form).fill(code, x, start);
        X::Quantized(rows)
    }

    /// Computes the outputs of some panels of the weight for a few activation rows.
    fn tile<'k>(
        &self,
        code: &'k Code,
        x: X<'k>,
        weights: &[Panel<'k>],
        end: &End<'k>,
        panel: Value<'k>,
        rows: Rows<'k>,
    ) {
        let sums = match x {
            X::Dense(x) => match self.format.floats() {
                Some(floats) => self.floats(code, floats, x, weights, rows),
                None => self.dense(code, x, weights, rows),
            },
            X::Quantized(x) => self.scaled(code, x, weights, rows),
        };
        // If the epilogue combines halves, the sums of the first half come first.
        let (first, second) = sums.split_at(if self.tail.halves { sums.len() / 2 } else { sums.len() });
        for (i, sums) in first.chunks(rows.count).enumerate() {
            let mask = self.mask(code, panel + i);
            for (row, &sum) in sums.iter().enumerate() {
                let other = second.get(i * rows.count + row);
                let sums: Vec<Value<'k>> = [Some(&sum), other].into_iter().flatten().copied().collect();
                end.write(code, &sums, (rows.result(row), (panel + i) * PANEL), mask);
            }
        }
    }

    /// Computes the outputs of some panels of the weight for a few activation rows. The number `units` is the
    /// length of a weight row, counted in units of one or more columns. The closure `add` multiplies the
    /// columns of some units by the activations, and adds the products to the sums. For every number of
    /// activation rows, the kernel adds the products of a sum in the same order. Therefore the bits of an
    /// output row do not depend on the other rows. If the sums of all rows do not fit into the registers, the
    /// kernel multiplies each block of weight columns by only a few rows at a time. While the kernel
    /// multiplies the block by another few rows, the block stays in the cache, and the sums of all remaining
    /// rows are in memory.
    fn in_runs<'k>(
        &self,
        code: &'k Code,
        weights: &[Panel<'k>],
        rows: Rows<'k>,
        (units, block): (usize, usize),
        add: impl Fn(&[Panel<'k>], Rows<'k>, Range<Value<'k>>, &[Value<'k>]) -> Vec<Value<'k>>,
    ) -> Vec<Value<'k>> {
        let (start, end, zero) = (code.index(0), code.index(units), code.constant(SUMS, 0.0));
        let sums = weights.len() * rows.count;
        if rows.count <= self.isa.rows() {
            return add(weights, rows, start..end, &vec![zero; sums]);
        }
        let kept = code.scratch(Element::F32, sums * PANEL);
        code.repeat(start..code.index(sums), 1, |i| kept.store(i * PANEL, zero));
        code.repeat(start..end, block, |first| {
            let end = (first + block).min(end);
            for (panel, weights) in weights.iter().enumerate() {
                code.runs(rows.count, self.isa.rows(), |row, count| {
                    let places = (0..count).map(|i| (row + (panel * rows.count + i)) * PANEL);
                    let places: Vec<Value<'k>> = places.collect();
                    let sums: Vec<Value<'k>> = places.iter().map(|&at| kept.load(at, SUMS)).collect();
                    let run = Rows { first: rows.first + row * rows.apart, count, ..rows };
                    let sums = add(&[*weights], run, first..end, &sums);
                    places.iter().zip(sums).for_each(|(&at, sum)| kept.store(at, sum));
                });
            }
        });
        (0..sums).map(|i| kept.load(code.index(i * PANEL), SUMS)).collect()
    }

    /// Calls a function of `rows` activation rows in the buffer `x` and some weight panels, which returns a sum
    /// for each pair of these. Matmuls of all sizes share it; `name` contains all other facts of its code.
    fn of_panels<'k>(
        &self,
        name: &str,
        (x, rows): (Buffer<'k>, usize),
        weights: &[Panel<'k>],
        operands: &[Value<'k>],
        body: impl for<'f> FnOnce(Buffer<'f>, &[Panel<'f>], &[Value<'f>]) -> Vec<Value<'f>>,
    ) -> Vec<Value<'k>> {
        let (panels, Panel { weight, ahead, at }) = (weights.len(), weights[0]);
        let name = format!("{name}_{panels}_{}_ahead{ahead}_{}", self.format.word(), self.isa.name());
        let all: Vec<Value<'k>> = weights.iter().map(|panel| panel.at).chain(operands.to_vec()).collect();
        let results = vec![SUMS; rows * panels];
        at.code().call(&name, (&[x, weight], &all), &results, |_, buffers, operands| {
            let (places, operands) = operands.split_at(panels);
            let weights: Vec<_> = places.iter().map(|&at| Panel { weight: buffers[1], at, ahead }).collect();
            body(buffers[0], &weights, operands)
        })
    }

    /// The mask of a panel's valid outputs; `None` for all 16. The last panel can have fewer.
    fn mask<'k>(&self, code: &'k Code, panel: Value<'k>) -> Option<Value<'k>> {
        let all = self.outputs.is_multiple_of(PANEL);
        (!all).then(|| code.first_lanes(code.index(self.outputs) - panel * PANEL, PANEL))
    }
}
