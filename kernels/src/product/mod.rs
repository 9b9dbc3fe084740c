//! y = x · weightᵀ over packed weights: of one row at the speed at which the weights come from memory, of several rows
//! on one reading of them.

mod dense;
mod scaled;

use ops::WeightFormat;
use ops::format::PANEL;

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa::Isa;
use crate::kernel::{self, Kernel};
use crate::quantized::{Form, Row};

/// A product: `rows` rows of `inputs` numbers times a weight of `outputs` rows.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) format: WeightFormat,
    pub(crate) x: Element,
    pub(crate) y: Element,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// Whether something is added to the rounded products.
    pub(crate) adds: bool,
    pub(crate) isa: Isa,
}

/// The bytes of a weight that one part of the work reads at least: less is not worth a worker's start.
const PART: usize = 1 << 17;

/// As many more for each number of a row that every part quantizes for itself: about ten times as long.
const PART_QUANTIZES: usize = 200;

/// How far ahead memory is asked for its lines, in bytes: a processor's own prefetcher stops where a page ends.
const AHEAD: usize = 4096;

/// The sums of sixteen outputs for one row.
const SUMS: Type = Type::lanes(PANEL, Element::F32);

/// The activations of a product.
#[derive(Clone, Copy)]
enum X<'k> {
    /// Numbers, one row after the other.
    Dense(Buffer<'k>),
    /// Bytes: the buffer they are in.
    Quantized(Buffer<'k>),
}

/// The results of a product, and what is added to them.
#[derive(Clone, Copy)]
struct Y<'k> {
    sums: Buffer<'k>,
    added: Option<Buffer<'k>>,
}

/// A panel of the weight, from a byte on.
#[derive(Clone, Copy)]
struct Panel<'k> {
    weight: Buffer<'k>,
    at: Value<'k>,
    /// Whether it is read once, from memory; else it stays near while it is read again.
    once: bool,
}

impl<'k> Panel<'k> {
    /// 64 bytes, and a request for those that follow some time later.
    fn line(self, at: Value<'k>) -> Value<'k> {
        let at = self.at + at;
        if self.once {
            self.weight.prefetch(at + AHEAD);
        }
        self.weight.load(at, Type::lanes(64, Element::I8))
    }
}

impl Product {
    /// Whether its activations are quantized by a kernel of their own: several rows, which all parts of the work need.
    pub(crate) fn quantizes_apart(&self) -> bool {
        self.format.element().is_none() && self.rows > 1
    }

    /// Its name and its code.
    pub(crate) fn kernel(&self) -> (String, impl FnOnce() -> Kernel) {
        let &Self { format, rows, inputs, outputs, x, y, adds, isa } = self;
        let what = if adds { "product_and_sum" } else { "product" };
        let name = format!("{what}_{}_{rows}x{inputs}x{outputs}_{x}_{y}_{}", format.word(), isa.name());
        let (weight, panels) = (format.packed(outputs, inputs).bytes(), outputs.div_ceil(PANEL));
        let quantized = if format.element().is_none() && rows == 1 { inputs } else { 0 };
        let workgroups = (weight / PART.max(quantized * PART_QUANTIZES)).clamp(1, 64).min(panels);
        let kernel = move || {
            kernel::new(3 + usize::from(adds), workgroups, |code| {
                self.write(code, weight, panels, workgroups)
            })
        };
        (name, kernel)
    }

    fn write(&self, code: &Code, bytes: usize, panels: usize, workgroups: usize) {
        let form = Form { inputs: self.inputs };
        let x = match self.quantizes_apart() {
            true => X::Quantized(code.binding(0, Element::I8, self.rows * form.bytes())),
            false => X::Dense(code.binding(0, self.x, self.rows * self.inputs)),
        };
        let weight = code.binding(1, Element::I8, bytes);
        let result = |index: usize| code.binding(index, self.y, self.rows * self.outputs);
        let y = match self.adds {
            true => Y { added: Some(result(2)), sums: result(3) },
            false => Y { added: None, sums: result(2) },
        };
        let x = match x {
            X::Dense(numbers) if self.format.element().is_none() => {
                let row = Row { buffer: code.scratch(Element::I8, form.bytes()), at: code.index(0), form };
                row.fill(code, numbers, code.index(0));
                X::Quantized(row.buffer)
            }
            x => x,
        };
        let stride = bytes / panels;
        let tile = self.rows.min(self.isa.rows());
        // Two panels at a time, so that a number of x that was loaded is multiplied twice.
        let together = if self.pairs(panels) { 2 } else { 1 };
        let once = self.rows == tile;
        let share = kernel::share(code, panels / together, workgroups);
        code.repeat(share, 1, |at| {
            let panel = at * together;
            let weights: Vec<Panel<'_>> =
                (0..together).map(|i| Panel { weight, at: (panel + i) * stride, once }).collect();
            let whole = self.rows / tile * tile;
            code.repeat(code.index(0)..code.index(whole), tile, |row| {
                self.tile(code, x, &weights, y, panel, row, tile)
            });
            if whole < self.rows {
                self.tile(code, x, &weights, y, panel, code.index(whole), self.rows - whole);
            }
        });
    }

    /// Whether panels are taken two at a time: where there are rows enough to be bound by arithmetic.
    fn pairs(&self, panels: usize) -> bool {
        self.rows >= 8 && self.format.element().is_some() && panels.is_multiple_of(2)
    }

    /// The sums of a panel's outputs for some rows.
    #[allow(clippy::too_many_arguments, reason = "the parts of one loop's body")]
    fn tile<'k>(
        &self,
        code: &'k Code,
        x: X<'k>,
        weights: &[Panel<'k>],
        y: Y<'k>,
        panel: Value<'k>,
        row: Value<'k>,
        rows: usize,
    ) {
        let sums = match x {
            X::Dense(x) => self.dense(code, x, weights, row, rows),
            X::Quantized(x) => self.scaled(code, x, weights[0], row, rows),
        };
        for (i, sum) in sums.into_iter().enumerate() {
            let (panel, i) = (panel + i / rows, i % rows);
            let at = (row + i) * self.outputs + panel * PANEL;
            let mut sum = sum.convert(self.y);
            // The last panel may have fewer outputs.
            let mask = (!self.outputs.is_multiple_of(PANEL))
                .then(|| code.first_lanes(code.index(self.outputs) - panel * PANEL, PANEL));
            if let Some(added) = y.added {
                let wide = sum.convert(Element::F32);
                let added = match mask {
                    Some(mask) => added.load_masked(at, sum.ty(), mask),
                    None => added.load(at, sum.ty()),
                };
                sum = (wide + added.convert(Element::F32)).convert(self.y);
            }
            match mask {
                Some(mask) => y.sums.store_masked(at, mask, sum),
                None => y.sums.store(at, sum),
            }
        }
    }
}

/// The sums of several chains of sums for each row: `chains` after each other belong to one.
fn join<'k>(sums: &[Value<'k>], chains: usize) -> Vec<Value<'k>> {
    let total = |sums: &[Value<'k>]| sums.iter().copied().reduce(|a, b| a + b);
    sums.chunks(chains).filter_map(total).collect()
}
