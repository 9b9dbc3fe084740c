//! A kernel for scaled dot-product attention. The kernel reads only the slots of a KV cache that contain
//! tokens. The kernel processes 16 keys at a time and updates the softmax after each block. The method
//! follows Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
//! "FlashAttention" (2022).

mod sums;
mod tiles;
mod wide;

use std::ops::Range;

use ops::ops::{MaskTerm, Sdpa};
use targets::Tiling;

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::fused_op::{FusedOp, Tokens};
use crate::isa::Isa;
use crate::isa::tiles::granted;
use crate::kernel::{self, Kernel};
use crate::lane;
use crate::math::{exp, tanh};
use crate::prologue::{Prologue, Start};
use crate::tilings::{Tilings, count};
use wide::WideTile;

const KEYS: usize = 16;

/// The most parts of a kernel's work: enough to keep all worker threads of a machine busy.
const PARTS: usize = 64;

/// The most vectors of 16 sums that a loop passes from one iteration to the next.
const CARRIED: usize = 32;

/// The most features of a key or value: 576 in the latent attention of DeepSeek-V3 and GLM-4.7-Flash.
const MOST: usize = 576;

/// The stack memory that the compiler allows in a kernel, minus 1 KiB for alignment.
const ROOM: usize = (32 << 10) - 1024;

const LANES: Type = Type::lanes(KEYS, Element::F32);
const PLACES: Type = Type::lanes(KEYS, Element::I32);

pub(crate) struct Attention {
    element: Element,
    /// The product of all batch axes; `of_offset` batch indices share the same `offset`.
    batch: usize,
    of_offset: usize,
    /// Query heads per key head.
    group: usize,
    queries: usize,
    keys: usize,
    features: usize,
    values: usize,
    /// The features of a result: the first ones of each value.
    kept: usize,
    offset: bool,
    causal: bool,
    window: Option<usize>,
    ring: bool,
    /// Whether each query head has an attention sink, which is an additional score in the softmax.
    sinks: bool,
    scale: f64,
    softcap: Option<f64>,
    /// Whether the cache stores keys and values as integers with one scale per key.
    quantized: bool,
    heads: usize,
    /// The layout of the queries in memory, if the token axis comes before the head axis.
    tokens: Option<Tokens>,
    /// Whether the token axis of the result comes before the head axis.
    by_token: bool,
    /// The norm and the rotary embedding that the kernel applies to the queries.
    before: Prologue,
    has_tiles: bool,
    has_long_vectors: bool,
}

impl Attention {
    pub(crate) fn of(isa: Isa, op: &Sdpa, work: &FusedOp<'_>) -> Option<Self> {
        let operands = &work.types[..];
        let (offset, terms) = op.operands(operands);
        let [q, k, v] = [operands[0], operands[1], operands[2]];
        let has = |term: MaskTerm| terms.iter().any(|(other, _)| *other == term);
        let sinks = terms.iter().find(|(term, _)| *term == MaskTerm::Sinks).and_then(|(_, sinks)| *sinks);
        let known = |term: &MaskTerm| {
            matches!(term, MaskTerm::Causal | MaskTerm::Window(_) | MaskTerm::Sinks | MaskTerm::Ring)
        };
        let mut windows = terms.iter().filter_map(|(term, _)| match term {
            MaskTerm::Window(width) => Some(*width),
            _ => None,
        });
        let mut attention = Self {
            element: lane(q.element),
            batch: k.shape[..k.rank() - 2].iter().product(),
            of_offset: offset
                .filter(|offset| offset.rank() == 1)
                .map_or(0, |_| k.shape[1..k.rank() - 2].iter().product()),
            group: if Sdpa::grouped(q, k) { q.shape[q.rank() - 3] } else { 1 },
            queries: q.shape[q.rank() - 2],
            keys: k.shape[k.rank() - 2],
            features: q.shape[q.rank() - 1],
            values: v.shape[v.rank() - 1],
            kept: work.layout.kept.unwrap_or(v.shape[v.rank() - 1]),
            offset: offset.is_some(),
            causal: has(MaskTerm::Causal),
            window: windows.next(),
            ring: has(MaskTerm::Ring),
            sinks: sinks.is_some(),
            scale: op.scale_for(q.shape[q.rank() - 1]),
            softcap: op.softcap.map(|cap| cap.0),
            quantized: work.layout.quantized,
            heads: k.shape[..k.rank() - 2].iter().skip(1).product(),
            tokens: work.layout.tokens,
            by_token: work.layout.by_token,
            before: Prologue::of(work.prologue)?,
            has_tiles: isa.tiles().bf16,
            has_long_vectors: isa.has_long_vectors(),
        };
        // A single token's kernel is the same for rows of all lengths, and layers with other rows share it.
        if let (1, true, Some(tokens)) =
            (attention.queries, attention.batch == attention.heads, &mut attention.tokens)
        {
            tokens.stride = tokens.from + attention.heads * attention.group * attention.features;
        }
        // The rotary embedding needs rows in token order. With a single token, head order is also token order.
        let ordered = !attention.before.rotates() || attention.tokens.is_some() || attention.queries == 1;
        // Token order requires an axis of heads.
        let headed = q.rank() >= 4 || !attention.by_token && attention.tokens.is_none();
        // StableHLO computes attention with a window that is open towards later keys, and attention without any data.
        let served = attention.before.takes(attention.features)
            && ordered
            && headed
            && terms.iter().all(|(term, _)| known(term))
            && windows.next().is_none()
            && sinks.is_none_or(|sinks| sinks.count() == attention.heads * attention.group)
            && (attention.causal || attention.window.is_none() && !attention.ring)
            && attention.batch * attention.queries * attention.keys * attention.features * attention.values
                > 0
            && attention.features.max(attention.values) <= MOST
            // The code for tile registers computes all features.
            && (attention.kept == attention.values || !attention.is_tiled());
        served.then_some(attention)
    }

    /// Returns the index of the prologue's first binding, after the bindings of attention itself.
    fn prologue(&self) -> usize {
        3 + usize::from(self.offset) + usize::from(self.sinks)
    }

    /// Returns the index of the binding with the keys' scales, after the bindings of the prologue.
    fn scales(&self) -> usize {
        self.prologue() + self.before.bindings()
    }

    /// The queries that read the keys of one key head.
    fn rows(&self) -> usize {
        self.group * self.queries
    }

    /// The name in tuning files. The prologue, the sinks, the order of tokens and `kept` do not affect it.
    pub(crate) fn name(&self) -> String {
        let mask = format!(
            "{}{}{}{}",
            if self.causal { "causal" } else { "all" },
            self.window.map(|width| format!("_window{width}")).unwrap_or_default(),
            if self.ring { "_ring" } else { "" },
            match (self.offset, self.of_offset) {
                (false, _) => "".to_owned(),
                (true, 0) => "_offset".to_owned(),
                (true, n) => format!("_offset{n}"),
            },
        );
        let Self { element, batch, group, queries, keys, features, values, .. } = self;
        let (scale, cap) = (self.scale.to_bits(), self.softcap.map(|cap| format!("_{:x}", cap.to_bits())));
        format!(
            "attention_{element}{}_{batch}x{group}x{queries}x{keys}x{features}x{values}_{mask}_{scale:x}{}{}",
            if self.quantized { "_q8" } else { "" },
            cap.unwrap_or_default(),
            if self.is_tiled() { "_tiles" } else { "" },
        )
    }

    pub(crate) fn tilings(&self) -> Tilings {
        Tilings::new(self.name(), self.usual(), |tiling| self.fitted(tiling))
    }

    pub(crate) fn usual(&self) -> Tiling {
        // The kernel has at least two parts, so that two workers are busy.
        let most = self.plain_rows();
        let rows = if self.batch == 1 { most.min(self.rows().div_ceil(2)) } else { most };
        self.fitted(Tiling { parts: count(PARTS), rows: count(rows), panels: count(1), ahead: 0 })
    }

    /// The queries processed together by default, with sums in the registers or in memory.
    fn plain_rows(&self) -> usize {
        if self.is_wide() { self.wide_rows() } else { (16 / self.kept.div_ceil(KEYS)).clamp(1, 4) }
    }

    /// Reduces the sizes of a tiling until the sums of the attention kernel fit into the registers.
    fn fitted(&self, tiling: Tiling) -> Tiling {
        let carried = (CARRIED / self.kept.div_ceil(KEYS)).max(1);
        let most = if self.is_tiled() || self.is_wide() { self.plain_rows() } else { carried };
        let rows = tiling.rows.get().min(most).min(self.rows());
        let parts = tiling.parts.get().min(self.batch * self.units(rows).0);
        Tiling { parts: count(parts), rows: count(rows), panels: count(1), ahead: 0 }
    }

    /// The number of units into which the queries of a key head are divided, and the queries per unit.
    fn units(&self, tile: usize) -> (usize, usize) {
        let rows = if self.is_tiled() { self.tiled_rows() } else { tile };
        (self.rows().div_ceil(rows), rows)
    }

    /// The operands are q, k, v and the offset, followed by those that [`FusedOp`] lists.
    pub(crate) fn kernel(&self, tiling: Tiling) -> (String, impl FnOnce() -> Kernel) {
        let tiling = self.fitted(tiling);
        let (rows, tile, workgroups) = (self.rows(), tiling.rows.get(), tiling.parts.get());
        let (units, of_unit) = self.units(tile);
        let tokens = self.tokens.map(Tokens::name).unwrap_or_default();
        let by_token = if self.by_token { "_by_token" } else { "" };
        let sinks = if self.sinks { "_sinks" } else { "" };
        let kept = if self.kept == self.values { String::new() } else { format!("_kept{}", self.kept) };
        let name = format!("{}{sinks}{tokens}{by_token}{kept}{}", self.name(), self.before.name());
        let bindings = self.scales() + 2 * usize::from(self.quantized) + 1;
        let kernel = move || {
            kernel::new(bindings, workgroups, |code| {
                let result = code.binding(bindings - 1, self.element, self.batch * rows * self.kept);
                let tile = Tile::new(code, self, tile);
                let tiled = self.is_tiled().then(|| (granted(code), tiles::Held::new(code, self)));
                code.repeat(kernel::share(code, self.batch * units, workgroups), 1, |part| {
                    let units = code.index(units);
                    let (head, first) = (part.divide(units), part.remainder(units) * of_unit);
                    let plain = || {
                        code.repeat(code.index(0)..code.index(of_unit), tile.rows, |row| {
                            self.tile(code, head, first + row, &tile, result);
                        });
                    };
                    match (tiled, &tile.queries) {
                        (Some((granted, held)), Queries::Narrow { read, start, .. }) => code.either(
                            granted,
                            || self.tiles(code, head, first, (held, &**start), (*read, result)),
                            plain,
                        ),
                        _ => self.tile(code, head, first, &tile, result),
                    }
                });
            })
        };
        (name, kernel)
    }

    /// Computes the attention results for some queries of a key head.
    fn tile<'k>(
        &self,
        code: &'k Code,
        head: Value<'k>,
        first: Value<'k>,
        tile: &Tile<'k>,
        result: Buffer<'k>,
    ) {
        let stored = if self.quantized { Element::I8 } else { self.element };
        let [k, v] = self.cache(code, stored);
        let scales = self.quantized.then(|| {
            [0, 1].map(|part| code.binding(self.scales() + part, Element::F32, self.batch * self.keys))
        });
        let integer = Type::Scalar(Element::I32);
        let offset = self.offset(code, head);
        let rows = || code.index(0)..code.index(tile.rows);
        code.repeat(rows(), 1, |i| {
            let row = self.row(code, head, first + i);
            if let Queries::Narrow { read, start, queries } = &tile.queries {
                start.row(code, row.by_token, (*read, row.from), (*queries, i * self.features));
            }
            tile.positions.store(i, offset + row.place.number());
            let [hidden, zero, one] = [Sdpa::HIDDEN, 0.0, 1.0].map(|number| code.constant(LANES, number));
            let (largest, total) = match self.sink(code, &row) {
                // The total is the sum of all lanes, so a sink puts its weight of 1 into the first lane only.
                Some(sink) => {
                    let is_first = code.constant(PLACES, 1.0).greater(code.count(PLACES));
                    (sink.broadcast(KEYS), one.or_else(is_first, zero))
                }
                None => (hidden, zero),
            };
            tile.largest.store(i * KEYS, largest);
            tile.totals.store(i * KEYS, total);
        });
        let oldest = self.oldest(code, offset);
        let seen = self.seen(code, offset, (first, tile.rows), KEYS);
        let weighted = |key: Value<'k>| {
            let keys = Keys { first: key, base: head * self.keys };
            let positions = code.count(PLACES) + key.number().broadcast(KEYS);
            let scales = scales.map(|parts| parts.map(|part| self.of_keys(code, part, keys, tile.scales)));
            if let Queries::Wide(wide) = tile.queries {
                self.multiply(code, k, (wide, tile.rows), (head, first), keys);
            }
            code.repeat(rows(), 1, |i| {
                let products = match tile.queries {
                    Queries::Wide(wide) => self.products(wide, i),
                    Queries::Narrow { queries, .. } => {
                        self.multiply_query(code, k, (queries, i * self.features), keys)
                    }
                };
                let products = scales.map_or(products, |[of_keys, _]| products * of_keys);
                let scores = self.scaled(code, products);
                let visible = self.visible(code, positions, oldest, tile.positions.load(i, integer));
                let scores = scores.or_else(visible, code.constant(LANES, Sdpa::HIDDEN));
                let lanes = i * KEYS;
                let before = tile.largest.load(lanes, LANES);
                let largest = before.max(scores.largest().broadcast(KEYS));
                let kept = exp(before - largest);
                let weight = exp(scores - largest).or_else(visible, code.constant(LANES, 0.0));
                tile.largest.store(lanes, largest);
                tile.kept.store(lanes, kept);
                tile.totals.store(lanes, tile.totals.load(lanes, LANES).multiply_add(kept, weight));
                let weight = scales.map_or(weight, |[_, of_values]| weight * of_values);
                tile.weights.store(lanes, weight);
            });
            keys
        };
        let place = |i| {
            let row = self.row(code, head, first + i);
            (if self.by_token { row.by_token } else { row.by_head }) * self.kept
        };
        match tile.queries {
            Queries::Narrow { .. } => self.sum_in_registers(code, (seen, v), tile, weighted, (place, result)),
            Queries::Wide(wide) => {
                self.sum_in_memory(code, (seen, v), (tile, wide.sums), weighted, (place, result));
            }
        }
    }

    /// The index in memory of a query. After the last query, it is the index of the last one.
    fn row<'k>(&self, code: &'k Code, head: Value<'k>, row: Value<'k>) -> Row<'k> {
        let rows = self.rows();
        let row = row.min(code.index(rows - 1));
        let place = row.remainder(code.index(self.queries));
        let by_head = head * rows + row;
        let [sequence, head] = [head.divide(code.index(self.heads)), head.remainder(code.index(self.heads))];
        let token = sequence * self.queries + place;
        let of_token = head * self.group + row.divide(code.index(self.queries));
        let by_token = token * (self.heads * self.group) + of_token;
        let from = match self.tokens {
            Some(tokens) => tokens.of(token) + of_token * self.features,
            None => by_head * self.features,
        };
        Row { by_head, by_token, from, place, head: of_token }
    }

    /// The attention sink's score, with which the softmax of a query starts.
    fn sink<'k>(&self, code: &'k Code, row: &Row<'k>) -> Option<Value<'k>> {
        self.sinks.then(|| {
            let sinks = code.binding(3 + usize::from(self.offset), self.element, self.heads * self.group);
            sinks.load(row.head, Type::Scalar(self.element)).convert(Element::F32)
        })
    }

    /// All queries before the prologue.
    fn operand<'k>(&self, code: &'k Code) -> Buffer<'k> {
        let token = self.tokens.map_or(self.heads * self.group * self.features, |tokens| tokens.stride);
        code.binding(0, self.element, self.batch / self.heads * self.queries * token)
    }

    fn cache<'k>(&self, code: &'k Code, stored: Element) -> [Buffer<'k>; 2] {
        [(1, self.features), (2, self.values)]
            .map(|(binding, numbers)| code.binding(binding, stored, self.batch * self.keys * numbers))
    }

    fn offset<'k>(&self, code: &'k Code, head: Value<'k>) -> Value<'k> {
        let integer = Type::Scalar(Element::I32);
        match (self.offset, self.of_offset) {
            (false, _) => code.constant(integer, 0.0),
            (true, 0) => code.binding(3, Element::I32, 1).load(code.index(0), integer),
            (true, n) => {
                let offsets = code.binding(3, Element::I32, self.batch / n);
                offsets.load(head.divide(code.index(n)), integer)
            }
        }
    }

    /// The first position whose key is in the ring buffer; negative while the buffer has free slots.
    fn oldest<'k>(&self, code: &'k Code, offset: Value<'k>) -> Value<'k> {
        offset + code.constant(offset.ty(), self.queries as f64 - self.keys as f64)
    }

    /// The keys that at least one of `count` queries may see, from the start of a block of 16 keys. Blocks
    /// begin at the same positions for all queries and ring buffers, so sums are always added in the same
    /// order.
    fn seen<'k>(
        &self,
        code: &'k Code,
        offset: Value<'k>,
        (first, count): (Value<'k>, usize),
        round: usize,
    ) -> Range<Value<'k>> {
        let place = first.min(code.index(self.rows() - 1)).remainder(code.index(self.queries));
        let further = place + (count - 1);
        let last = further.min(code.index(self.queries - 1));
        // After the last query of a head, the rows continue with the first query of the next head.
        let place = code.index(0).or_else(further.greater(last), place);
        let integer = Type::Scalar(Element::I32);
        let all = code.constant(integer, self.keys as f64);
        let [one, zero] = [1.0, 0.0].map(|number| code.constant(integer, number));
        let end = offset + last.number() + one;
        let to = match (self.causal, self.ring) {
            (true, true) => end,
            (true, false) => end.min(all),
            (false, _) => all,
        };
        let from = match self.window {
            Some(width) => (offset + place.number() - code.constant(integer, width as f64 - 1.0)).max(zero),
            None => zero,
        };
        let from = if self.ring { from.max(self.oldest(code, offset)) } else { from };
        from.place().divide(code.index(round)) * round..to.place()
    }

    fn key<'k>(&self, code: &'k Code, keys: Keys<'k>, lane: Value<'k>) -> Value<'k> {
        let length = code.index(self.keys);
        let whole = self.keys.is_multiple_of(KEYS);
        keys.base
            + match (self.ring, whole) {
                (true, true) => keys.first.remainder(length) + lane,
                (true, false) => (keys.first + lane).remainder(length),
                (false, true) => keys.first + lane,
                (false, false) => (keys.first + lane).min(code.index(self.keys - 1)),
            }
    }

    /// One number for each of 16 keys, with zeros after the last. `between` joins a ring buffer's ends.
    fn of_keys<'k>(
        &self,
        code: &'k Code,
        numbers: Buffer<'k>,
        keys: Keys<'k>,
        between: Buffer<'k>,
    ) -> Value<'k> {
        if self.keys.is_multiple_of(KEYS) {
            return numbers.load(self.key(code, keys, code.index(0)), LANES);
        }
        if !self.ring {
            let left = code.first_lanes(code.index(self.keys) - keys.first, KEYS);
            return numbers.load_masked(keys.base + keys.first, LANES, left);
        }
        code.repeat(code.index(0)..code.index(KEYS), 1, |lane| {
            between.store(lane, numbers.load(self.key(code, keys, lane), Type::Scalar(Element::F32)));
        });
        between.load(code.index(0), LANES)
    }

    /// Returns the dot products of a query and 16 keys, with one product in each lane.
    fn multiply_query<'k>(
        &self,
        code: &'k Code,
        k: Buffer<'k>,
        (queries, query): (Buffer<'k>, Value<'k>),
        keys: Keys<'k>,
    ) -> Value<'k> {
        let keys: Vec<Value<'k>> =
            (0..KEYS).map(|lane| self.key(code, keys, code.index(lane)) * self.features).collect();
        let zeros = [code.constant(LANES, 0.0); KEYS];
        let products = code.fold_chunks(self.features, &zeros, |feature, left, products| {
            let query = queries.load_floats(query + feature, left);
            let key = |&at: &Value<'k>| k.load_floats(at + feature, left);
            keys.iter().map(key).zip(products).map(|(key, &sum)| query.multiply_add(key, sum)).collect()
        });
        sums(&products, KEYS)
    }

    /// Converts the dot products of a query and its keys to softmax scores.
    fn scaled<'k>(&self, code: &'k Code, products: Value<'k>) -> Value<'k> {
        let scores = products * code.constant(LANES, self.scale);
        match self.softcap {
            Some(cap) => {
                let ratio = scores * code.constant(LANES, 1.0 / cap);
                tanh(ratio) * code.constant(LANES, cap)
            }
            None => scores,
        }
    }

    fn visible<'k>(
        &self,
        code: &'k Code,
        positions: Value<'k>,
        oldest: Value<'k>,
        query: Value<'k>,
    ) -> Value<'k> {
        let query = query.broadcast(KEYS);
        let one = code.constant(PLACES, 1.0);
        let mut visible = if self.ring {
            (positions + one).greater(oldest.broadcast(KEYS))
        } else {
            // Lanes after the last slot contain no key.
            code.constant(PLACES, self.keys as f64).greater(positions)
        };
        if self.causal {
            visible = visible.and((query + one).greater(positions));
        }
        if let Some(width) = self.window {
            visible = visible.and(positions.greater(query - code.constant(PLACES, width as f64)));
        }
        visible
    }
}

/// Queries that read the same keys. Their softmax state is in memory, so the same code works for each.
struct Tile<'k> {
    rows: usize,
    queries: Queries<'k>,
    /// The token positions of the queries relative to the keys.
    positions: Buffer<'k>,
    /// The online softmax of each query. `largest` is the largest score so far, in all 16 lanes. `totals`
    /// sums weights, where lane i sums those of the keys i, i + 16, …. `kept` is the factor for the sums of
    /// earlier keys, in all lanes. `weights` belong to the last 16 keys.
    largest: Buffer<'k>,
    totals: Buffer<'k>,
    kept: Buffer<'k>,
    weights: Buffer<'k>,
    /// The scales of 16 consecutive quantized keys of a KV cache.
    scales: Buffer<'k>,
}

enum Queries<'k> {
    Narrow {
        read: Buffer<'k>,
        start: Box<Start<'k>>,
        /// The queries of the tile after the prologue.
        queries: Buffer<'k>,
    },
    Wide(WideTile<'k>),
}

impl<'k> Tile<'k> {
    fn new(code: &'k Code, of: &Attention, rows: usize) -> Self {
        let queries = if of.is_wide() {
            Queries::Wide(WideTile::new(code, of, rows))
        } else {
            Queries::Narrow {
                read: of.operand(code),
                start: Box::new(of.before.start(code, of.prologue(), of.features)),
                queries: code.scratch(of.element, rows * of.features),
            }
        };
        let lanes = || code.scratch(Element::F32, rows * KEYS);
        Self {
            rows,
            queries,
            positions: code.scratch(Element::I32, rows),
            largest: lanes(),
            totals: lanes(),
            kept: lanes(),
            weights: lanes(),
            scales: code.scratch(Element::F32, KEYS),
        }
    }
}

struct Row<'k> {
    /// `by_head` numbers the queries head by head, `by_token` token by token.
    by_head: Value<'k>,
    by_token: Value<'k>,
    from: Value<'k>,
    /// The index of a query among the queries of its head.
    place: Value<'k>,
    head: Value<'k>,
}

/// Sixteen consecutive keys of one head in the KV cache.
#[derive(Clone, Copy)]
struct Keys<'k> {
    /// The token position of the first of the 16 keys.
    first: Value<'k>,
    /// The index in the KV cache at which the keys of the head begin.
    base: Value<'k>,
}

/// Adds lanes of several vectors until one vector contains the sums of all. Runs of `width` lanes belong to
/// the same sum. Each step adds the halves of the runs, and joins two vectors into one.
fn sums<'k>(vectors: &[Value<'k>], mut width: usize) -> Value<'k> {
    let mut vectors = vectors.to_vec();
    while vectors.len() > 1 {
        let [lower, upper] = halves(width);
        vectors =
            vectors.chunks(2).map(|two| two[0].pick(two[1], &lower) + two[0].pick(two[1], &upper)).collect();
        width /= 2;
    }
    vectors[0]
}

/// The lanes of two shuffles of two vectors with runs of `width` lanes, for the halves of each run.
fn halves(width: usize) -> [Vec<usize>; 2] {
    let of = |half: usize| (0..2 * KEYS).filter(|lane| lane % width / (width / 2) == half).collect();
    [of(0), of(1)]
}
