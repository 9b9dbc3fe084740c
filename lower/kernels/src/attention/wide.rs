//! Attention with so many features that the sums of several queries do not fit into the registers,
//! as in latent attention. The sums are in memory, and each loaded key serves several queries.

use ops::{ElementType, TensorType};

use super::{Attention, KEYS, Keys, LANES, ROOM, sums};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa::bf16_of_pairs;
use crate::kernel;
use crate::packing::Packing;

/// The largest number of features of a value whose sums are in registers.
const NARROW: usize = 256;

/// The most queries processed together: the registers hold their products with [`TOGETHER`] keys.
const MOST_ROWS: usize = 5;

const TOGETHER: usize = 4;

/// The number of bf16 numbers in 16 pairs.
const PAIRS: usize = 2 * KEYS;

#[derive(Clone, Copy)]
pub(super) struct WideTile<'k> {
    /// All queries in f32 from [`Attention::apart`]; if paired, even features first in each group of 32.
    queries: Buffer<'k>,
    /// The products with 16 keys, `[queries, 4, 16]`: a vector has 4 keys, with 4 numbers to add for each.
    products: Buffer<'k>,
    /// `[queries, padded features]`, in the order of the features in `queries`.
    pub(super) sums: Buffer<'k>,
}

impl<'k> WideTile<'k> {
    pub(super) fn new(code: &'k Code, of: &Attention, rows: usize) -> Self {
        Self {
            queries: code.binding(0, Element::F32, of.batch * of.rows() * of.features),
            products: code.scratch(Element::F32, rows * KEYS / TOGETHER * KEYS),
            sums: code.scratch(Element::F32, rows * of.padded()),
        }
    }
}

impl Attention {
    /// Whether the sums of a query are in memory, because the registers have no room for the sums.
    pub(super) fn is_wide(&self) -> bool {
        self.values > NARROW
    }

    /// Whether pairs of bf16 become f32 by a shift and a mask, which takes half as many instructions.
    pub(super) fn is_paired(&self) -> bool {
        self.is_wide()
            && self.element == Element::Bf16
            && !self.quantized
            && self.features.is_multiple_of(PAIRS)
            && self.kept.is_multiple_of(PAIRS)
    }

    /// Loads the first `left` next numbers as 16 f32, or if paired as two vectors of even and odd indices.
    pub(super) fn load_wide<'k>(&self, buffer: Buffer<'k>, at: Value<'k>, left: usize) -> Vec<Value<'k>> {
        if !self.is_paired() {
            return vec![buffer.load_floats(at, left)];
        }
        let pairs = buffer.load(at, Type::lanes(PAIRS, Element::Bf16)).bits(Type::lanes(KEYS, Element::I32));
        vec![bf16_of_pairs(pairs, 0), bf16_of_pairs(pairs, 1)]
    }

    pub(super) fn wide_step(&self) -> usize {
        if self.is_paired() { PAIRS } else { KEYS }
    }

    /// The number of features of a result, rounded up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.kept.next_multiple_of(KEYS)
    }

    fn wide_bytes(&self) -> usize {
        let lanes = 4 + KEYS / TOGETHER;
        4 * (self.padded() + lanes * KEYS + 1)
    }

    /// The queries whose state fits into a worker's memory, equal for two workers if possible.
    pub(super) fn wide_rows(&self) -> usize {
        let most = (ROOM / self.wide_bytes()).clamp(1, MOST_ROWS);
        let units = self.rows().div_ceil(most).next_multiple_of(2);
        self.rows().div_ceil(units)
    }

    /// The kernel that converts all queries to f32 after the prologue, unless attention reads them itself.
    pub(crate) fn apart(&self) -> Option<Packing<'_>> {
        if !self.is_wide() {
            return None;
        }
        let rows = self.rows();
        let workgroups = (self.batch * rows).min(8);
        let prologue = self.before.bindings();
        let kernel = move || {
            kernel::new(prologue + 2, workgroups, |code| {
                let read = self.operand(code);
                let start = self.before.start(code, 1, self.features);
                let between = code.scratch(self.element, self.features);
                let result = code.binding(prologue + 1, Element::F32, self.batch * rows * self.features);
                code.repeat(kernel::share(code, self.batch * rows, workgroups), 1, |place| {
                    let [head, row] = [place.divide(code.index(rows)), place.remainder(code.index(rows))];
                    let row = self.row(code, head, row);
                    start.row(code, row.by_token, (read, row.from), (between, code.index(0)));
                    self.wide_chunks(code, &[], |at, left, _| {
                        let to = place * self.features + at;
                        for (i, numbers) in self.load_wide(between, at, left).into_iter().enumerate() {
                            result.store_lanes(to + i * KEYS, numbers, left - i * KEYS);
                        }
                        Vec::new()
                    });
                });
            })
        };
        let Self { element, batch, features, .. } = self;
        let tokens = self.tokens.map(crate::fused_op::Tokens::name).unwrap_or_default();
        let paired = if self.is_paired() { "_paired" } else { "" };
        let name = format!(
            "queries{paired}_{element}_{batch}x{}x{}x{features}{tokens}{}",
            self.group,
            self.queries,
            self.before.name()
        );
        let ty = TensorType::new(ElementType::F32, [batch * rows, *features]);
        let operands = [0].into_iter().chain(self.prologue()..self.scales()).collect();
        Some(Packing { name, ty, operands, kernel: Box::new(kernel) })
    }

    /// Loops over the features of a query, loaded by [`load_wide`](Self::load_wide).
    fn wide_chunks<'k>(
        &self,
        code: &'k Code,
        first: &[Value<'k>],
        body: impl Fn(Value<'k>, usize, &[Value<'k>]) -> Vec<Value<'k>>,
    ) -> Vec<Value<'k>> {
        if !self.is_paired() {
            return code.fold_chunks(self.features, first, body);
        }
        let features = code.index(0)..code.index(self.features);
        code.fold(features, PAIRS, first, |at, carried| body(at, PAIRS, carried))
    }

    /// Multiplies by 16 keys; [`products`](Self::products) finishes. `first` counts a key head's queries.
    pub(super) fn multiply<'k>(
        &self,
        code: &'k Code,
        k: Buffer<'k>,
        (wide, rows): (WideTile<'k>, usize),
        (head, first): (Value<'k>, Value<'k>),
        keys: Keys<'k>,
    ) {
        // Processors with shorter vectors have registers for the products of only one query.
        let of_pass = if self.has_long_vectors { rows } else { 1 };
        code.repeat(code.index(0)..code.index(KEYS), TOGETHER, |lane| {
            let at = |i| self.key(code, keys, lane + i) * self.features;
            let keys: Vec<Value<'k>> = (0..TOGETHER).map(at).collect();
            code.runs(rows, of_pass, |row, count| {
                let zeros = vec![code.constant(LANES, 0.0); count * TOGETHER];
                let query = |i: usize| {
                    let query = (first + row + i).min(code.index(self.rows() - 1));
                    (head * self.rows() + query) * self.features
                };
                let queries: Vec<Value<'k>> = (0..count).map(query).collect();
                let products = self.wide_chunks(code, &zeros, |feature, left, products| {
                    // Memory delivers every second of the next 16 keys while the kernel multiplies these keys, and
                    // the other keys while the kernel adds the values.
                    keys.iter().step_by(2).for_each(|&at| k.prefetch(at + feature + KEYS * self.features));
                    let keys: Vec<Vec<Value<'k>>> =
                        keys.iter().map(|&at| self.load_wide(k, at + feature, left)).collect();
                    let mut products = products.to_vec();
                    for part in 0..self.wide_step() / KEYS {
                        let (feature, left) = (feature + part * KEYS, left - part * KEYS);
                        let queries = queries.iter().map(|&at| wide.queries.load_lanes(at + feature, left));
                        let rows = queries.zip(products.chunks(TOGETHER));
                        let sums = rows.flat_map(|(query, products)| {
                            let keys = products.iter().zip(&keys);
                            keys.map(move |(&sum, key)| query.multiply_add(key[part], sum))
                        });
                        products = sums.collect();
                    }
                    products
                });
                for (i, products) in products.chunks(TOGETHER).enumerate() {
                    let place = (row + i) * (KEYS / TOGETHER * KEYS) + lane * (KEYS / TOGETHER);
                    wide.products.store(place, sums(products, KEYS));
                }
            });
        });
    }

    /// Returns the dot products of a query and 16 keys, with one product in each lane.
    pub(super) fn products<'k>(&self, wide: WideTile<'k>, row: Value<'k>) -> Value<'k> {
        let at = |i: usize| (row * (KEYS / TOGETHER) + i) * KEYS;
        let vectors: Vec<Value<'k>> =
            (0..KEYS / TOGETHER).map(|i| wide.products.load(at(i), LANES)).collect();
        sums(&vectors, KEYS / TOGETHER)
    }
}
