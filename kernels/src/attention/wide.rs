//! Attention with so many features that the sums of several queries do not fit into the registers,
//! as in latent attention. The sums are in memory, and each loaded key serves several queries.

use super::{Attention, KEYS, Keys, LANES, ROOM, sums};
use crate::code::{Buffer, Code, Element, Value};

/// The largest number of features of a value whose sums are in registers.
const NARROW: usize = 256;

/// The largest number of queries that the kernel processes together.
const MOST_ROWS: usize = 5;

/// The number of keys that the kernel multiplies by several queries together. The registers hold
/// the products of these keys and all queries.
const TOGETHER: usize = 4;

/// The memory for queries with many features.
#[derive(Clone, Copy)]
pub(super) struct WideTile<'k> {
    /// The queries in f32, as `[queries, features]`.
    queries: Buffer<'k>,
    /// The products of queries and 16 keys, as `[queries, 4, 16]`. A vector contains the products
    /// of a query and 4 keys, and 4 numbers of the vector are still to be added for each key.
    products: Buffer<'k>,
    /// The weighted sums of values, as `[queries, padded values]`.
    pub(super) sums: Buffer<'k>,
}

impl<'k> WideTile<'k> {
    pub(super) fn new(code: &'k Code, of: &Attention, rows: usize) -> Self {
        Self {
            queries: code.scratch(Element::F32, rows * of.features),
            products: code.scratch(Element::F32, rows * KEYS / TOGETHER * KEYS),
            sums: code.scratch(Element::F32, rows * of.padded()),
        }
    }

    /// Stores a query in f32.
    pub(super) fn store_query(&self, code: &'k Code, of: &Attention, query: Buffer<'k>, row: Value<'k>) {
        code.chunks(of.features, |at, left| {
            self.queries.store_lanes(row * of.features + at, query.load_floats(at, left), left);
        });
    }
}

impl Attention {
    /// Whether the sums of a query are in memory, because the registers have no room for the sums.
    pub(super) fn is_wide(&self) -> bool {
        self.values > NARROW
    }

    /// The number of features of a value, rounded up to whole vectors.
    pub(super) fn padded(&self) -> usize {
        self.values.next_multiple_of(KEYS)
    }

    /// The number of bytes of memory that the kernel needs for each of several wide queries.
    pub(super) fn wide_bytes(&self) -> usize {
        let lanes = 4 + KEYS / TOGETHER;
        4 * (self.features + self.padded() + lanes * KEYS + 1)
    }

    /// The number of queries that the kernel processes together. Their state fits into a worker's
    /// memory, and two workers receive the same number of queries if possible.
    pub(super) fn wide_rows(&self) -> usize {
        // The prologue has a row between norm and rotary embedding, and a row after them.
        let room = ROOM.saturating_sub(2 * 4 * self.features);
        let most = (room / self.wide_bytes()).clamp(1, MOST_ROWS);
        let units = self.rows().div_ceil(most).next_multiple_of(2);
        self.rows().div_ceil(units)
    }

    /// Multiplies the queries of a tile by 16 keys, and stores the partly added products. The
    /// function [`products`](Self::products) adds the rest.
    pub(super) fn multiply<'k>(
        &self,
        code: &'k Code,
        k: Buffer<'k>,
        (wide, rows): (WideTile<'k>, usize),
        keys: Keys<'k>,
    ) {
        // Processors with shorter vectors have registers for the products of only one query.
        let of_pass = if self.has_long_vectors { rows } else { 1 };
        code.repeat(code.index(0)..code.index(KEYS), TOGETHER, |lane| {
            let at = |i| self.key(code, keys, lane + i) * self.features;
            let keys: Vec<Value<'k>> = (0..TOGETHER).map(at).collect();
            code.repeat(code.index(0)..code.index(rows), of_pass, |row| {
                let zeros = vec![code.constant(LANES, 0.0); of_pass * TOGETHER];
                let first = row * self.features;
                let products = code.fold_chunks(self.features, &zeros, |feature, left, products| {
                    let keys: Vec<Value<'k>> =
                        keys.iter().map(|&at| k.load_floats(at + feature, left)).collect();
                    let rows = products.chunks(TOGETHER).enumerate();
                    rows.flat_map(|(row, products)| {
                        let query = wide.queries.load_lanes(first + (feature + row * self.features), left);
                        products.iter().zip(&keys).map(move |(&sum, key)| query.multiply_add(*key, sum))
                    })
                    .collect()
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
