//! Weighted sums of value vectors, in registers or in memory, added in the same order for equal bits.

use std::ops::Range;

use super::{Attention, KEYS, Keys, LANES, Tile};
use crate::code::{Buffer, Code, Element, Type, Value};

/// The most vectors of 16 features in a pass over 16 keys. Their sums are in registers.
const PASS: usize = 16;

impl Attention {
    /// Stores the sums over the softmax totals. `weighted` computes 16 weights, `place` a result's index.
    pub(super) fn sum_in_registers<'k>(
        &self,
        code: &'k Code,
        (seen, v): (Range<Value<'k>>, Buffer<'k>),
        tile: &Tile<'k>,
        weighted: impl Fn(Value<'k>) -> Keys<'k>,
        (place, result): (impl Fn(usize) -> Value<'k>, Buffer<'k>),
    ) {
        let chunks = self.kept.div_ceil(KEYS);
        let zeros = vec![code.constant(LANES, 0.0); tile.rows * chunks];
        let sums = code.fold(seen, KEYS, &zeros, |key, sums| {
            let keys = weighted(key);
            let sums = sums.chunks(chunks).enumerate().flat_map(|(row, sums)| {
                let kept = tile.kept.load(code.index(row * KEYS), LANES);
                sums.iter().map(move |&sum| sum * kept)
            });
            let sums: Vec<Value<'k>> = sums.collect();
            self.weigh(code, (v, code.index(0), self.kept), keys, tile.weights, &sums)
        });
        for (i, sums) in sums.chunks(chunks).enumerate() {
            let at = place(i);
            let total = tile.totals.load(code.index(i * KEYS), LANES).sum().broadcast(KEYS);
            for (chunk, &sum) in sums.iter().enumerate() {
                let value = sum.divide(total).convert(self.element);
                result.store_lanes(at + chunk * KEYS, value, self.kept - chunk * KEYS);
            }
        }
    }

    pub(super) fn sum_in_memory<'k>(
        &self,
        code: &'k Code,
        (seen, v): (Range<Value<'k>>, Buffer<'k>),
        (tile, sums): (&Tile<'k>, Buffer<'k>),
        weighted: impl Fn(Value<'k>) -> Keys<'k>,
        (place, result): (impl Fn(usize) -> Value<'k>, Buffer<'k>),
    ) {
        let stride = self.padded();
        code.repeat(code.index(0)..code.index(tile.rows * stride), KEYS, |at| {
            sums.store(at, code.constant(LANES, 0.0));
        });
        code.repeat(seen, KEYS, |key| {
            let keys = weighted(key);
            self.passes(code, tile.rows, |from, features| {
                let chunks = features.div_ceil(KEYS);
                let places: Vec<(usize, Value<'k>)> = (0..tile.rows * chunks)
                    .map(|i| (i / chunks, from + (i / chunks * stride + i % chunks * KEYS)))
                    .collect();
                let kept: Vec<Value<'k>> =
                    (0..tile.rows).map(|row| tile.kept.load(code.index(row * KEYS), LANES)).collect();
                let before: Vec<Value<'k>> =
                    places.iter().map(|&(row, at)| sums.load(at, LANES) * kept[row]).collect();
                let after = self.weigh(code, (v, from, features), keys, tile.weights, &before);
                places.iter().zip(after).for_each(|(&(_, at), sum)| sums.store(at, sum));
            });
        });
        for i in 0..tile.rows {
            let at = place(i);
            let total = tile.totals.load(code.index(i * KEYS), LANES).sum().broadcast(KEYS);
            self.passes(code, PASS, |from, features| {
                let quotient = |part: usize| {
                    let sum = sums.load(from + (i * stride + part * KEYS), LANES);
                    sum.divide(total).convert(self.element)
                };
                if self.is_paired() {
                    let order: Vec<usize> = (0..KEYS).flat_map(|lane| [lane, KEYS + lane]).collect();
                    result.store(at + from, quotient(0).pick(quotient(1), &order));
                } else {
                    result.store_lanes(at + from, quotient(0), features);
                }
            });
        }
    }

    /// Calls `body` with first feature and length of groups with about PASS vectors of `rows` sums.
    fn passes<'k>(&self, code: &'k Code, rows: usize, body: impl Fn(Value<'k>, usize)) {
        let width = ((PASS / rows).max(1) * KEYS).next_multiple_of(self.wide_step());
        let whole = self.kept / width * width;
        code.repeat(code.index(0)..code.index(whole), width, |from| body(from, width));
        if whole < self.kept {
            body(code.index(whole), self.kept - whole);
        }
    }

    /// Adds 16 keys' values times the softmax `weights` to each query's sums, from the feature `from`.
    fn weigh<'k>(
        &self,
        code: &'k Code,
        (v, from, features): (Buffer<'k>, Value<'k>, usize),
        keys: Keys<'k>,
        weights: Buffer<'k>,
        sums: &[Value<'k>],
    ) -> Vec<Value<'k>> {
        let chunks = features.div_ceil(KEYS);
        let step = self.wide_step();
        let lanes = code.index(0)..code.index(KEYS);
        let at = |lane: Value<'k>| self.key(code, keys, lane) * self.values + from;
        let add = |lane: Value<'k>, sums: &[Value<'k>]| -> Vec<Value<'k>> {
            let value = at(lane);
            let vectors = (0..features.div_ceil(step))
                .flat_map(|i| self.load_wide(v, value + i * step, features - i * step));
            let numbers: Vec<Value<'k>> = vectors.collect();
            let rows = sums.chunks(chunks).enumerate();
            rows.flat_map(|(row, sums)| {
                let weight = weights.load(lane + row * KEYS, Type::Scalar(Element::F32)).broadcast(KEYS);
                sums.iter().zip(&numbers).map(move |(&sum, numbers)| numbers.multiply_add(weight, sum))
            })
            .collect()
        };
        if !self.is_wide() {
            return code.fold(lanes, 1, sums, add);
        }
        code.fold(lanes, 2, sums, |lane, sums| {
            // In latent attention, values are parts of keys. The function `multiply` prefetches every second of the
            // next 16 keys, and this loop prefetches the other keys.
            let next = at(lane + 1) + KEYS * self.values;
            (0..features.div_ceil(step)).for_each(|i| v.prefetch(next + i * step));
            add(lane + 1, &add(lane, sums))
        })
    }
}
