//! Attention of many queries with tile registers of bf16. The code processes 32 keys at a time, with 16
//! queries in the lanes of a vector. The keys in the KV cache already have the layout of tiles, and the
//! kernel transposes each query only once. Each key therefore has a vector of scores with one lane per query,
//! and the softmax needs no sum over lanes. The kernel rounds the softmax weights to bf16, transposes the
//! weights back, and arranges the values of two keys in pairs.

use ops::ops::Sdpa;

use super::{Attention, KEYS, LANES, PLACES, ROOM};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa::tiles::{LINE, ROWS, Tiles};
use crate::isa::{bf16_pairs, transposed};
use crate::math::exp;
use crate::prologue::Start;

/// The features of a query or of keys in one tile register of bf16.
const TILE: usize = LINE / 2;

/// A vector of sixteen 32-bit words, each with a pair of bf16.
const PAIRS: Type = Type::lanes(ROWS, Element::I32);

/// The largest number of query tiles that use the same prepared keys and values.
const TOGETHER: usize = 4;

const SUMS: usize = 0;
const QUERIES: usize = 2;
const KEY_TILE: usize = 3;
const WEIGHTS: usize = 5;
const VALUES: usize = 6;

/// The memory in which a worker keeps the state of its current queries, in tiles of 16 queries.
#[derive(Clone, Copy)]
pub(super) struct Held<'k> {
    /// `[tiles, 16 pairs of features, features / 32, 16 queries]`, with two features per element.
    queries: Buffer<'k>,
    /// Each query's position, largest score, sum of weights, and factor for the sums of earlier keys.
    positions: Buffer<'k>,
    largest: Buffer<'k>,
    totals: Buffer<'k>,
    kept: Buffer<'k>,
    /// The scores of 32 keys for 16 queries, together with the positions of the keys.
    scores: Buffer<'k>,
    keys: Buffer<'k>,
    /// The softmax weights of 32 keys, as `[tiles, 16 queries, 32]`.
    weights: Buffer<'k>,
    /// 16 features of 32 value vectors, with the numbers of two consecutive keys alternating: `[16, 16, 2]`.
    values: Buffer<'k>,
    /// `[tiles, values / 16, 16 queries, 16]`.
    sums: Buffer<'k>,
}

impl<'k> Held<'k> {
    pub(super) fn new(code: &'k Code, of: &Attention) -> Self {
        let rows = of.tiled_rows();
        let lanes = |element| code.scratch(element, rows);
        Self {
            queries: code.scratch(Element::Bf16, rows * of.features),
            positions: lanes(Element::I32),
            largest: lanes(Element::F32),
            totals: lanes(Element::F32),
            kept: code.scratch(Element::F32, ROWS),
            scores: code.scratch(Element::F32, TILE * ROWS),
            keys: code.scratch(Element::I32, TILE),
            weights: code.scratch(Element::Bf16, rows * TILE),
            values: code.scratch(Element::Bf16, TILE * ROWS),
            sums: code.scratch(Element::F32, rows * of.values),
        }
    }
}

impl Attention {
    pub(super) fn is_tiled(&self) -> bool {
        self.has_tiles
            && self.element == Element::Bf16
            && !self.quantized
            // With few queries, another code path computes each query with the same bits as alone.
            && self.queries > ROWS
            && self.keys >= TILE
            && self.features.is_multiple_of(TILE)
            && self.values.is_multiple_of(ROWS)
            && !self.is_wide()
            && self.most_tiles() > 0
    }

    /// The number of query tiles that fit into a worker's memory.
    fn most_tiles(&self) -> usize {
        let shared = (TILE * ROWS + ROWS + TILE) * 4 + TILE * ROWS * 2;
        // The memory of the code path without tile registers, and a row between norm and rotary embedding.
        let plain = self.plain_rows() * (2 * self.features + 4 * (4 * KEYS + 1)) + 4 * self.features;
        let of_tile = ROWS * (2 * self.features + 4 * self.values + 2 * TILE + 3 * 4);
        ROOM.saturating_sub(shared + plain) / of_tile
    }

    pub(super) fn tiled_rows(&self) -> usize {
        ROWS * self.most_tiles().min(TOGETHER).min(self.rows().div_ceil(ROWS))
    }

    /// Computes the attention results for some queries of a key head.
    pub(super) fn tiles<'k>(
        &self,
        code: &'k Code,
        head: Value<'k>,
        first: Value<'k>,
        (held, start): (Held<'k>, &Start<'k>),
        (read, result): (Buffer<'k>, Buffer<'k>),
    ) {
        let rows = self.tiled_rows();
        let [k, v] = self.cache(code, Element::Bf16);
        let offset = self.offset(code, head);
        code.repeat(code.index(0)..code.index(rows), 1, |i| {
            let row = self.row(code, head, first + i);
            start.row(code, row.by_token, (read, row.from), (held.queries, i * self.features));
            held.positions.store(i, offset + row.place.number());
            if let Some(sink) = self.sink(code, &row) {
                held.largest.store(i, sink);
                held.totals.store(i, code.constant(sink.ty(), 1.0));
            }
        });
        code.repeat(code.index(0)..code.index(rows), ROWS, |tile| {
            if !self.sinks {
                held.largest.store(tile, code.constant(LANES, Sdpa::HIDDEN));
                held.totals.store(tile, code.constant(LANES, 0.0));
            }
            self.turn(code, held.queries, tile * self.features);
        });
        code.repeat(code.index(0)..code.index(rows * self.values), KEYS, |at| {
            held.sums.store(at, code.constant(LANES, 0.0));
        });
        let tiles = Tiles::configure(code, [(ROWS, LINE); 8], held.scores);
        // In a ring buffer, all slots are read in order.
        let seen = if self.ring {
            code.index(0)..code.index(self.keys)
        } else {
            self.seen(code, offset, (first, rows), TILE)
        };
        let end = offset + code.constant(offset.ty(), self.queries as f64);
        code.repeat(seen, TILE, |key| {
            // The last block overlaps the previous block if the number of keys is not a multiple of the block size.
            let from = key.min(code.index(self.keys - TILE));
            self.place_keys(code, held.keys, (key, from), end);
            let base = head * self.keys + from;
            code.repeat(code.index(0)..code.index(rows), ROWS, |tile| {
                self.multiply_keys(tiles, held, tile, k.address(base * self.features));
                self.weigh_keys(code, held, tile);
            });
            code.repeat(code.index(0)..code.index(self.values), ROWS, |value| {
                self.pair_values(code, held.values, (v, base * self.values + value));
                tiles.load(VALUES, held.values.address(code.index(0)), LINE);
                code.repeat(code.index(0)..code.index(rows), ROWS, |tile| {
                    let sums = held.sums.address(tile * self.values + value * ROWS);
                    tiles.load(SUMS, sums, LINE);
                    tiles.load(WEIGHTS, held.weights.address(tile * TILE), LINE);
                    tiles.add_bf16([SUMS, WEIGHTS, VALUES]);
                    tiles.store(SUMS, sums);
                });
            });
        });
        tiles.release();
        code.repeat(code.index(0)..code.index(rows), 1, |i| {
            let row = self.row(code, head, first + i);
            let at = if self.by_token { row.by_token } else { row.by_head };
            let (tile, query) = (i.divide(code.index(ROWS)) * ROWS, i.remainder(code.index(ROWS)));
            let total = held.totals.load(i, Type::Scalar(Element::F32)).broadcast(KEYS);
            code.repeat(code.index(0)..code.index(self.values), ROWS, |value| {
                let sums = held.sums.load(tile * self.values + (value + query) * ROWS, LANES);
                result.store(at * self.values + value, sums.divide(total).convert(self.element));
            });
        });
    }

    /// Transposes 16 queries in place. Every 32 features become a tile with two features per line.
    fn turn<'k>(&self, code: &'k Code, queries: Buffer<'k>, at: Value<'k>) {
        code.repeat(code.index(0)..code.index(self.features), TILE, |feature| {
            let places: Vec<Value<'k>> = (0..ROWS).map(|i| at + feature + i * self.features).collect();
            let ty = Type::lanes(TILE, Element::Bf16);
            let rows = places.iter().map(|&place| queries.load(place, ty).bits(PAIRS)).collect();
            let turned = transposed(rows);
            places.iter().zip(turned).for_each(|(&place, line)| queries.store_bits(place, line));
        });
    }

    /// The positions of 32 keys. A key that no query may see gets a position after those of all queries.
    fn place_keys<'k>(
        &self,
        code: &'k Code,
        to: Buffer<'k>,
        (key, from): (Value<'k>, Value<'k>),
        end: Value<'k>,
    ) {
        let behind = code.constant(PLACES, f64::from(i32::MAX));
        for half in [0, KEYS] {
            let slots = code.count(PLACES) + (from + half).number().broadcast(KEYS);
            let positions = self.positions(code, slots, end);
            let positions = behind.or_else(key.number().broadcast(KEYS).greater(slots), positions);
            let empty = code.constant(PLACES, 0.0).greater(positions);
            to.store(code.index(half), if self.ring { behind.or_else(empty, positions) } else { positions });
        }
    }

    fn positions<'k>(&self, code: &'k Code, slots: Value<'k>, end: Value<'k>) -> Value<'k> {
        if !self.ring {
            return slots;
        }
        // The position in a slot of a ring buffer is last − (last − slot) mod keys.
        let last = end - code.constant(end.ty(), 1.0);
        let length = code.constant(end.ty(), self.keys as f64);
        let back = last.remainder(length).broadcast(KEYS) - slots;
        let behind = code.constant(PLACES, 0.0).greater(back);
        let back = (back + length.broadcast(KEYS)).or_else(behind, back);
        last.broadcast(KEYS) - back
    }

    /// Computes the dot products of 16 queries and 32 keys.
    fn multiply_keys<'k>(&self, tiles: Tiles<'k>, held: Held<'k>, tile: Value<'k>, keys: Value<'k>) {
        let code = tile.code();
        let stride = 2 * self.features;
        let halves = [0, 1];
        halves.iter().for_each(|half| tiles.zero(SUMS + half));
        code.repeat(code.index(0)..code.index(self.features), TILE, |feature| {
            tiles.load(QUERIES, held.queries.address(tile * self.features + feature), stride);
            for half in halves {
                tiles.load(KEY_TILE + half, keys + feature * 2 + half * ROWS * stride, stride);
                tiles.add_bf16([SUMS + half, KEY_TILE + half, QUERIES]);
            }
        });
        for half in halves {
            tiles.store(SUMS + half, held.scores.address(code.index(half * ROWS * ROWS)));
        }
    }

    /// The softmax weights of 32 keys for 16 queries, and the factors for the sums of earlier keys.
    fn weigh_keys<'k>(&self, code: &'k Code, held: Held<'k>, tile: Value<'k>) {
        const ROUND: usize = 4;
        let one = code.constant(PLACES, 1.0);
        let query = held.positions.load(tile, PLACES);
        let before = held.largest.load(tile, LANES);
        // The end of the visible keys: one after the query's position, or no limit without a causal mask.
        let seen = if self.causal { query + one } else { code.constant(PLACES, f64::from(i32::MAX)) };
        let keys = || code.index(0)..code.index(TILE);
        let largest = code.fold(keys(), ROUND, &[before], |key, largest| {
            let scores = (0..ROUND).map(|i| {
                let at = (key + i) * ROWS;
                let scores = self.scaled(code, held.scores.load(at, LANES));
                let position = held.keys.load(key + i, Type::Scalar(Element::I32)).broadcast(KEYS);
                let mut visible = seen.greater(position);
                if let Some(width) = self.window {
                    visible = visible.and(position.greater(query - code.constant(PLACES, width as f64)));
                }
                let scores = scores.or_else(visible, code.constant(LANES, Sdpa::HIDDEN));
                held.scores.store(at, scores);
                scores
            });
            // A NaN score needs no check here, because its softmax weight is NaN anyway.
            let larger = |largest: Value<'k>, scores| largest.or_else(largest.greater(scores), scores);
            vec![scores.fold(largest[0], larger)]
        })[0];
        let kept = exp(before - largest);
        held.largest.store(tile, largest);
        held.kept.store(code.index(0), kept);
        // A smaller score belongs to a hidden key.
        let least = code.constant(LANES, Sdpa::HIDDEN / 2.0);
        let total = held.totals.load(tile, LANES) * kept;
        let total = code.fold(keys(), ROUND, &[total], |key, total| {
            let weights = (0..ROUND).map(|i| {
                let scores = held.scores.load((key + i) * ROWS, LANES);
                code.constant(LANES, 0.0).or_else(least.greater(scores), exp(scores - largest))
            });
            let weights: Vec<Value<'k>> = weights.collect();
            for (i, pair) in weights.chunks(2).enumerate() {
                let at = (key.divide(code.index(2)) + i) * ROWS;
                held.scores.store_bits(at, bf16_pairs(pair[0], pair[1]));
            }
            vec![weights.iter().fold(total[0], |total, &weight| total + weight)]
        })[0];
        held.totals.store(tile, total);
        let pairs = (0..ROWS).map(|i| held.scores.load(code.index(i * ROWS), LANES).bits(PAIRS)).collect();
        for (query, weights) in transposed(pairs).into_iter().enumerate() {
            held.weights.store_bits((tile + query) * TILE, weights);
        }
        code.repeat(code.index(0)..code.index(ROWS), 1, |query| {
            let kept = held.kept.load(query, Type::Scalar(Element::F32)).broadcast(KEYS);
            code.repeat(code.index(0)..code.index(self.values), ROWS, |value| {
                let at = tile * self.values + value * ROWS + query * ROWS;
                held.sums.store(at, held.sums.load(at, LANES) * kept);
            });
        });
    }

    /// Arranges 16 features of 32 value vectors so that the numbers of two consecutive keys alternate.
    fn pair_values<'k>(&self, code: &'k Code, to: Buffer<'k>, (v, at): (Buffer<'k>, Value<'k>)) {
        let order: Vec<usize> = (0..ROWS).flat_map(|lane| [lane, ROWS + lane]).collect();
        for pair in 0..ROWS {
            let row = |which| v.load(at + (2 * pair + which) * self.values, Type::lanes(ROWS, Element::Bf16));
            to.store(code.index(pair * TILE), row(0).pick(row(1), &order));
        }
    }
}
