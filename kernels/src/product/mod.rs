//! y = x · weightᵀ over packed weights: of one row at the speed at which the weights come from memory, of several rows
//! on one reading of them.

mod dense;
mod scaled;

use ops::WeightFormat;
use ops::format::PANEL;

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa::Isa;
use crate::kernel::{self, Kernel};
use crate::norm::Norm;
use crate::quantized::{Form, Row};
use crate::work::{End, Tail};

/// A product: `rows` rows of `inputs` numbers times a weight of `outputs` rows.
#[derive(Clone)]
pub(crate) struct Product<'a> {
    pub(crate) format: WeightFormat,
    pub(crate) x: Element,
    pub(crate) y: Element,
    pub(crate) rows: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    /// A norm that x goes through first: of one row, by each part of the work for itself.
    pub(crate) norm: Option<Norm>,
    /// What becomes of the sums.
    pub(crate) tail: &'a Tail,
    pub(crate) isa: Isa,
}

/// The bytes of a weight that one part of the work reads at least: less is not worth a worker's start.
const PART: usize = 1 << 17;

/// As many more for each number of a row that every part quantizes or normalizes for itself: about ten times as long.
const PART_QUANTIZES: usize = 200;
const PART_NORMALIZES: usize = 100;

/// What a worker's stack holds of a row that it prepares for itself, in bytes.
const SCRATCH: usize = 30 << 10;

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

impl Product<'_> {
    /// Whether its activations are quantized by a kernel of their own: several rows, which all parts of the work need.
    pub(crate) fn quantizes_apart(&self) -> bool {
        self.format.element().is_none() && self.rows > 1
    }

    /// Whether the kernel does all that is asked of it.
    pub(crate) fn serves(&self) -> bool {
        let quantized =
            if self.format.element().is_none() { Form { inputs: self.inputs }.bytes() } else { 0 };
        let normalised = |norm: Norm| norm.features * norm.element.bits() / 8;
        let norm = self.norm.is_none_or(|norm| self.rows == 1 && normalised(norm) + quantized <= SCRATCH);
        // Halves that meet have whole panels each.
        norm && (!self.tail.halves || self.outputs.is_multiple_of(2 * PANEL))
    }

    /// The columns of what it writes.
    fn columns(&self) -> usize {
        if self.tail.halves { self.outputs / 2 } else { self.outputs }
    }

    /// Its name and its code, of results of an element type.
    pub(crate) fn kernel(&self, element: Element) -> (String, impl FnOnce() -> Kernel) {
        let &Self { format, rows, inputs, outputs, x, y, norm, isa, .. } = self;
        let normed = norm.map(|norm| format!("_normed_{}", norm.name())).unwrap_or_default();
        let name =
            format!("product_{}_{rows}x{inputs}x{outputs}_{x}_{y}{normed}_{}", format.word(), isa.name());
        let (weight, panels) = (format.packed(outputs, inputs).bytes(), outputs.div_ceil(PANEL));
        let quantized = if format.element().is_none() && rows == 1 { inputs * PART_QUANTIZES } else { 0 };
        let normalised = if norm.is_some() { inputs * PART_NORMALIZES } else { 0 };
        let workgroups = (weight / PART.max(quantized + normalised)).clamp(1, 64).min(self.units(panels));
        let kernel = move || {
            let bindings = 2 + usize::from(norm.is_some()) + self.tail.bindings();
            kernel::new(bindings, workgroups, |code| self.write(code, element, weight, panels, workgroups))
        };
        (name, kernel)
    }

    fn write(&self, code: &Code, element: Element, bytes: usize, panels: usize, workgroups: usize) {
        let form = Form { inputs: self.inputs };
        let weight = code.binding(1, Element::I8, bytes);
        let x = match self.quantizes_apart() {
            true => X::Quantized(code.binding(0, Element::I8, self.rows * form.bytes())),
            false => self.prepared(code, code.binding(0, self.x, self.rows * self.inputs)),
        };
        let first = 2 + usize::from(self.norm.is_some());
        let end = self.tail.end(code, first, (element, self.rows, self.columns()));
        let stride = bytes / panels;
        let tile = self.rows.min(self.isa.rows());
        let once = self.rows == tile;
        // How far panels that are taken together are apart.
        let apart = if self.tail.halves { panels / 2 } else { 1 };
        code.repeat(kernel::share(code, self.units(panels), workgroups), 1, |at| {
            let panel = if self.pairs(panels) { at * 2 } else { at };
            let together = panels / self.units(panels);
            let read: Vec<Panel<'_>> =
                (0..together).map(|i| Panel { weight, at: (panel + i * apart) * stride, once }).collect();
            let whole = self.rows / tile * tile;
            code.repeat(code.index(0)..code.index(whole), tile, |row| {
                self.tile(code, x, &read, &end, panel, row, tile)
            });
            if whole < self.rows {
                self.tile(code, x, &read, &end, panel, code.index(whole), self.rows - whole);
            }
        });
    }

    /// The activations as they are multiplied: normalized and quantized, if that is done here.
    fn prepared<'k>(&self, code: &'k Code, x: Buffer<'k>) -> X<'k> {
        let start = code.index(0);
        let x = match self.norm {
            Some(norm) => {
                let normalised = code.scratch(self.x, self.inputs);
                norm.fill(code, (x, start), norm.weight(code, 2), (normalised, start));
                normalised
            }
            None => x,
        };
        if self.format.element().is_some() {
            return X::Dense(x);
        }
        let form = Form { inputs: self.inputs };
        let row = Row { buffer: code.scratch(Element::I8, form.bytes()), at: start, form };
        row.fill(code, x, start);
        X::Quantized(row.buffer)
    }

    /// Whether neighbours are taken two at a time, so that a number of x that was loaded is multiplied twice: where
    /// there are rows enough to be bound by arithmetic.
    fn pairs(&self, panels: usize) -> bool {
        !self.tail.halves && self.rows >= 8 && self.format.element().is_some() && panels.is_multiple_of(2)
    }

    /// The panels, or pairs of them that are taken together.
    fn units(&self, panels: usize) -> usize {
        if self.tail.halves || self.pairs(panels) { panels / 2 } else { panels }
    }

    /// The sums of the panels' outputs for some rows.
    #[allow(clippy::too_many_arguments, reason = "the parts of one loop's body")]
    fn tile<'k>(
        &self,
        code: &'k Code,
        x: X<'k>,
        weights: &[Panel<'k>],
        end: &End<'k>,
        panel: Value<'k>,
        row: Value<'k>,
        rows: usize,
    ) {
        let sums = match x {
            X::Dense(x) => self.dense(code, x, weights, row, rows),
            X::Quantized(x) => self.scaled(code, x, weights, row, rows),
        };
        // The last panel may have fewer outputs.
        let mask = |panel: Value<'k>| {
            (!self.outputs.is_multiple_of(PANEL))
                .then(|| code.first_lanes(code.index(self.outputs) - panel * PANEL, PANEL))
        };
        if self.tail.halves {
            for i in 0..rows {
                end.write(code, &[sums[i], sums[rows + i]], (row + i, panel * PANEL), None);
            }
            return;
        }
        for (i, sums) in sums.chunks(rows).enumerate() {
            let (panel, mask) = (panel + i, mask(panel + i));
            for (i, &sum) in sums.iter().enumerate() {
                end.write(code, &[sum], (row + i, panel * PANEL), mask);
            }
        }
    }
}

/// The sums of several chains of sums for each row: `chains` after each other belong to one.
fn join<'k>(sums: &[Value<'k>], chains: usize) -> Vec<Value<'k>> {
    let total = |sums: &[Value<'k>]| sums.iter().copied().reduce(|a, b| a + b);
    sums.chunks(chains).filter_map(total).collect()
}
