//! Scaled dot-product attention that costs what is seen: of a cache only the used part is read.
//!
//! Sixteen keys at a time; the softmax is carried along, as in Milakov and Gimelshein, "Online normalizer calculation
//! for softmax" (2018), and Dao et al., "FlashAttention" (2022).

use ops::ops::{MaskTerm, Sdpa};

use crate::before::{Before, Start};
use crate::code::{Buffer, Code, Element, Type, Value};
use crate::kernel::{self, Kernel};
use crate::lane;
use crate::math::{exp, tanh};
use crate::work::{Tokens, Work};

/// Keys of one round.
const KEYS: usize = 16;

/// What there is of each key, or of sixteen features.
const LANES: Type = Type::lanes(KEYS, Element::F32);
const PLACES: Type = Type::lanes(KEYS, Element::I32);

/// Attention of known extents.
pub(crate) struct Attention {
    element: Element,
    /// Products of all batch axes, and how many of them share an offset.
    batch: usize,
    of_offset: usize,
    /// Query heads of a key head.
    group: usize,
    queries: usize,
    keys: usize,
    /// Features of keys and of values.
    features: usize,
    values: usize,
    offset: bool,
    causal: bool,
    window: Option<usize>,
    ring: bool,
    scale: f64,
    softcap: Option<f64>,
    /// Whether keys and values are integers, with a scale for each key.
    quantized: bool,
    /// Key heads of a sequence.
    heads: usize,
    /// Where the queries are, if not head by head.
    tokens: Option<Tokens>,
    /// Whether the result is written token by token.
    by_token: bool,
    /// What queries go through first.
    before: Before,
}

impl Attention {
    /// What a work means whose operation is `op`; `None` if the kernel does not serve it.
    pub(crate) fn of(op: &Sdpa, work: &Work<'_>) -> Option<Self> {
        let operands = &work.types[..];
        let (offset, terms) = op.operands(operands);
        let [q, k, v] = [operands[0], operands[1], operands[2]];
        let has = |term: MaskTerm| terms.iter().any(|(other, _)| *other == term);
        let known = |term: &MaskTerm| matches!(term, MaskTerm::Causal | MaskTerm::Window(_) | MaskTerm::Ring);
        let mut windows = terms.iter().filter_map(|(term, _)| match term {
            MaskTerm::Window(width) => Some(*width),
            _ => None,
        });
        let attention = Self {
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
            offset: offset.is_some(),
            causal: has(MaskTerm::Causal),
            window: windows.next(),
            ring: has(MaskTerm::Ring),
            scale: op.scale_for(q.shape[q.rank() - 1]),
            softcap: op.softcap.map(|cap| cap.0),
            quantized: work.quantized,
            heads: k.shape[..k.rank() - 2].iter().skip(1).product(),
            tokens: work.tokens,
            by_token: work.by_token,
            before: Before::of(work)?,
        };
        // Rows are rotated in the order of tokens, and only those of one token are in that of heads too.
        let ordered = !attention.before.rotates() || attention.tokens.is_some() || attention.queries == 1;
        // Tokens have heads.
        let headed = q.rank() >= 4 || !attention.by_token && attention.tokens.is_none();
        // A window without an end towards later keys, and rows that see nothing, are left to StableHLO.
        let served = attention.before.takes(attention.features)
            && ordered
            && headed
            && terms.iter().all(|(term, _)| known(term))
            && windows.next().is_none()
            && (attention.causal || attention.window.is_none() && !attention.ring)
            && attention.batch * attention.queries * attention.keys * attention.features * attention.values
                > 0
            && attention.features.max(attention.values) <= 256;
        served.then_some(attention)
    }

    /// The binding of the keys' scales: behind what queries go through.
    fn scales(&self) -> usize {
        3 + usize::from(self.offset) + self.before.bindings()
    }

    /// Rows of queries that read the same keys.
    fn rows(&self) -> usize {
        self.group * self.queries
    }

    /// Its name and its code; the operands are q, k, v and the offset, and what [`Work`] adds to them.
    pub(crate) fn kernel(&self) -> (String, impl FnOnce() -> Kernel) {
        let rows = self.rows();
        // As many as leave the sums of their values in registers, and a part for each of two workers.
        let most = (16 / self.values.div_ceil(KEYS)).clamp(1, 4);
        let tile = if self.batch == 1 { most.min(rows.div_ceil(2)) } else { most.min(rows) };
        let tiles = rows.div_ceil(tile);
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
        let name = format!(
            "attention_{element}{}_{batch}x{group}x{queries}x{keys}x{features}x{values}_{mask}_{scale:x}{}{}{}",
            if self.quantized { "_q8" } else { "" },
            cap.unwrap_or_default(),
            format_args!(
                "{}{}",
                self.tokens.map(Tokens::name).unwrap_or_default(),
                if self.by_token { "_by_token" } else { "" }
            ),
            self.before.name(),
        );
        let workgroups = (batch * tiles).min(64);
        let bindings = self.scales() + 2 * usize::from(self.quantized) + 1;
        let kernel = move || {
            kernel::new(bindings, workgroups, |code| {
                let result = code.binding(bindings - 1, self.element, self.batch * rows * self.values);
                let scratch = code.scratch(Element::F32, tile * KEYS);
                let queries = self.queries(code, tile);
                code.repeat(kernel::share(code, batch * tiles, workgroups), 1, |part| {
                    let tiles = code.index(tiles);
                    let (head, first) = (part.divide(tiles), part.remainder(tiles) * tile);
                    self.tile(code, head, first, tile, (&queries, scratch, result));
                });
            })
        };
        (name, kernel)
    }

    /// The queries: as they are, or with the memory that some rows of them are prepared in.
    fn queries<'k>(&self, code: &'k Code, count: usize) -> Queries<'k> {
        let token = self.tokens.map_or(self.heads * self.group * self.features, |tokens| tokens.stride);
        let numbers = code.binding(0, self.element, self.batch / self.heads * self.queries * token);
        let start = self.before.start(code, 3 + usize::from(self.offset), self.features);
        let prepared = (!self.before.is_nothing()).then(|| code.scratch(self.element, count * self.features));
        Queries { numbers, start, prepared }
    }

    /// The results of some rows of a key head.
    fn tile<'k>(
        &self,
        code: &'k Code,
        head: Value<'k>,
        first: Value<'k>,
        count: usize,
        (queries, scratch, result): (&Queries<'k>, Buffer<'k>, Buffer<'k>),
    ) {
        let rows = self.rows();
        let stored = if self.quantized { Element::I8 } else { self.element };
        let k = code.binding(1, stored, self.batch * self.keys * self.features);
        let v = code.binding(2, stored, self.batch * self.keys * self.values);
        let scales = self.quantized.then(|| {
            [0, 1].map(|part| code.binding(self.scales() + part, Element::F32, self.batch * self.keys))
        });
        let integer = Type::Scalar(Element::I32);
        let offset = match (self.offset, self.of_offset) {
            (false, _) => code.constant(integer, 0.0),
            (true, 0) => code.binding(3, Element::I32, 1).load(code.index(0), integer),
            (true, n) => {
                let offsets = code.binding(3, Element::I32, self.batch / n);
                offsets.load(head.divide(code.index(n)), integer)
            }
        };
        // A tile that goes past the last row computes that one again.
        let last = code.index(rows - 1);
        let tile: Vec<Row<'_>> = (0..count)
            .map(|i| {
                let row = (first + i).min(last);
                let place = row.remainder(code.index(self.queries));
                let at = head * rows + row;
                // The same token by token: what queries go through before is in that order.
                let [sequence, head] =
                    [head.divide(code.index(self.heads)), head.remainder(code.index(self.heads))];
                let token = sequence * self.queries + place;
                let of_token = head * self.group + row.divide(code.index(self.queries));
                let by_token = token * (self.heads * self.group) + of_token;
                let from = match self.tokens {
                    Some(tokens) => tokens.of(token) + of_token * self.features,
                    None => at * self.features,
                };
                let query = queries.row(code, (by_token, from), i, self.features);
                let at = if self.by_token { by_token } else { at };
                Row { at, query, position: offset + place.number() }
            })
            .collect();
        let end = offset + code.constant(integer, self.queries as f64);
        let (from, to) = self.range(code, offset, end);
        let chunks = self.values.div_ceil(KEYS);
        let first: Vec<Value<'_>> = (0..count)
            .flat_map(|_| {
                let zeros = (0..1 + chunks).map(|_| code.constant(LANES, 0.0));
                std::iter::once(code.constant(LANES, Sdpa::HIDDEN)).chain(zeros).collect::<Vec<_>>()
            })
            .collect();
        let sums = code.fold(from..to, KEYS, &first, |key, sums| {
            let key = Keys { first: key, base: head * self.keys };
            let slots = code.count(PLACES) + key.first.number().broadcast(KEYS);
            let positions = self.positions(code, slots, end);
            let scales = scales.map(|parts| parts.map(|part| self.of_keys(code, part, key)));
            let mut carried = Vec::new();
            for (i, (row, sums)) in tile.iter().zip(sums.chunks(2 + chunks)).enumerate() {
                let scores = self.scores(code, k, *row, key, scales.map(|[of_keys, _]| of_keys));
                let visible = self.visible(code, slots, positions, *row);
                let scores = scores.or_else(visible, code.constant(LANES, Sdpa::HIDDEN));
                let largest = sums[0].max(scores.largest().broadcast(KEYS));
                let kept = exp(sums[0] - largest);
                let weight = exp(scores - largest).or_else(visible, code.constant(LANES, 0.0));
                carried.extend([largest, sums[1].multiply_add(kept, weight)]);
                carried.extend(sums[2..].iter().map(|&sum| sum * kept));
                let weight = scales.map_or(weight, |[_, of_values]| weight * of_values);
                scratch.store(code.index(i * KEYS), weight);
            }
            self.weigh(code, v, key, scratch, &mut carried);
            carried
        });
        for (row, sums) in tile.iter().zip(sums.chunks(2 + chunks)) {
            let total = sums[1].sum().broadcast(KEYS);
            for (chunk, &sum) in sums[2..].iter().enumerate() {
                let value = sum.divide(total).convert(self.element);
                let at = row.at * self.values + chunk * KEYS;
                result.store_lanes(at, value, self.values - chunk * KEYS);
            }
        }
    }

    /// The keys that some query may see, in whole rounds.
    fn range<'k>(&self, code: &'k Code, offset: Value<'k>, end: Value<'k>) -> (Value<'k>, Value<'k>) {
        let integer = Type::Scalar(Element::I32);
        let all = code.constant(integer, self.keys as f64);
        let to = if self.causal && !self.ring { end.min(all) } else { all };
        let zero = code.constant(integer, 0.0);
        let from = match self.window {
            Some(width) if !self.ring => (offset - code.constant(integer, width as f64 - 1.0)).max(zero),
            _ => zero,
        };
        let keys = code.index(KEYS);
        (from.place().divide(keys) * KEYS, to.place())
    }

    /// Adds sixteen values times the weights in `scratch` to each row's sums, which come after two others.
    fn weigh<'k>(
        &self,
        code: &'k Code,
        v: Buffer<'k>,
        keys: Keys<'k>,
        scratch: Buffer<'k>,
        carried: &mut [Value<'k>],
    ) {
        let chunks = self.values.div_ceil(KEYS);
        let places: Vec<usize> = (0..carried.len()).filter(|place| place % (2 + chunks) >= 2).collect();
        let first: Vec<Value<'k>> = places.iter().map(|&place| carried[place]).collect();
        let sums = code.fold(code.index(0)..code.index(KEYS), 1, &first, |lane, sums| {
            let at = self.row(code, keys, lane) * self.values;
            let numbers: Vec<Value<'k>> =
                (0..chunks).map(|i| v.load_floats(at + i * KEYS, self.values - i * KEYS)).collect();
            let rows = sums.chunks(chunks).enumerate();
            rows.flat_map(|(row, sums)| {
                let weight = scratch.load(lane + row * KEYS, Type::Scalar(Element::F32)).broadcast(KEYS);
                sums.iter().zip(&numbers).map(move |(&sum, numbers)| numbers.multiply_add(weight, sum))
            })
            .collect()
        });
        places.into_iter().zip(sums).for_each(|(place, sum)| carried[place] = sum);
    }

    /// The row of the keys, or of the values, in a lane.
    fn row<'k>(&self, code: &'k Code, keys: Keys<'k>, lane: Value<'k>) -> Value<'k> {
        let key = keys.first + lane;
        let key = if self.keys.is_multiple_of(KEYS) { key } else { key.min(code.index(self.keys - 1)) };
        keys.base + key
    }

    /// A number of each of sixteen keys; past the last there is nothing.
    fn of_keys<'k>(&self, code: &'k Code, numbers: Buffer<'k>, keys: Keys<'k>) -> Value<'k> {
        let at = keys.base + keys.first;
        match self.keys.is_multiple_of(KEYS) {
            true => numbers.load(at, LANES),
            false => {
                numbers.load_masked(at, LANES, code.first_lanes(code.index(self.keys) - keys.first, KEYS))
            }
        }
    }

    fn scores<'k>(
        &self,
        code: &'k Code,
        k: Buffer<'k>,
        row: Row<'k>,
        keys: Keys<'k>,
        scales: Option<Value<'k>>,
    ) -> Value<'k> {
        let keys: Vec<Value<'k>> =
            (0..KEYS).map(|lane| self.row(code, keys, code.index(lane)) * self.features).collect();
        let (queries, query) = row.query;
        let zeros = [code.constant(LANES, 0.0); KEYS];
        let products = code.fold_chunks(self.features, &zeros, |feature, left, products| {
            let query = queries.load_floats(query + feature, left);
            let key = |&at: &Value<'k>| k.load_floats(at + feature, left);
            keys.iter().map(key).zip(products).map(|(key, &sum)| query.multiply_add(key, sum)).collect()
        });
        let products = sums(&products);
        let products = scales.map_or(products, |scales| products * scales);
        let scores = products * code.constant(LANES, self.scale);
        match self.softcap {
            Some(cap) => {
                let ratio = scores * code.constant(LANES, 1.0 / cap);
                tanh(ratio) * code.constant(LANES, cap)
            }
            None => scores,
        }
    }

    /// The positions of sixteen keys.
    fn positions<'k>(&self, code: &'k Code, slots: Value<'k>, end: Value<'k>) -> Value<'k> {
        if !self.ring {
            return slots;
        }
        // last − (last − slot) mod keys
        let last = end - code.constant(end.ty(), 1.0);
        let length = code.constant(end.ty(), self.keys as f64);
        let back = last.remainder(length).broadcast(KEYS) - slots;
        let behind = code.constant(PLACES, 0.0).greater(back);
        let back = (back + length.broadcast(KEYS)).or_else(behind, back);
        last.broadcast(KEYS) - back
    }

    fn visible<'k>(&self, code: &'k Code, slots: Value<'k>, positions: Value<'k>, row: Row<'k>) -> Value<'k> {
        let query = row.position.broadcast(KEYS);
        let one = code.constant(PLACES, 1.0);
        let all = code.constant(PLACES, self.keys as f64);
        // Lanes past the last slot hold nothing.
        let mut visible = all.greater(slots);
        if self.causal {
            visible = visible.and((query + one).greater(positions));
        }
        if let Some(width) = self.window {
            visible = visible.and(positions.greater(query - code.constant(PLACES, width as f64)));
        }
        if self.ring {
            visible = visible.and((positions + one).greater(code.constant(PLACES, 0.0)));
        }
        visible
    }
}

/// The queries, and what they go through first.
struct Queries<'k> {
    numbers: Buffer<'k>,
    start: Start<'k>,
    /// The rows of a tile, if they go through anything.
    prepared: Option<Buffer<'k>>,
}

impl<'k> Queries<'k> {
    /// A row of `features` from a place on, the `index`th of a tile: where it is when it is ready.
    fn row(
        &self,
        code: &'k Code,
        (row, from): (Value<'k>, Value<'k>),
        index: usize,
        features: usize,
    ) -> (Buffer<'k>, Value<'k>) {
        let from = (self.numbers, from);
        let Some(prepared) = self.prepared else { return from };
        let to = (prepared, code.index(index * features));
        self.start.row(code, row, from, to);
        to
    }
}

/// A row of queries: where it is, where its numbers are, and its position among the keys.
#[derive(Clone, Copy)]
struct Row<'k> {
    at: Value<'k>,
    query: (Buffer<'k>, Value<'k>),
    position: Value<'k>,
}

/// Sixteen keys of a head.
#[derive(Clone, Copy)]
struct Keys<'k> {
    first: Value<'k>,
    /// The row of the head's first key.
    base: Value<'k>,
}

/// The sum of the lanes of each of sixteen vectors.
fn sums<'k>(vectors: &[Value<'k>]) -> Value<'k> {
    let mut vectors = vectors.to_vec();
    let mut width = KEYS;
    // Each step halves what is left of every vector and puts two of them side by side.
    while width > 1 {
        let [lower, upper] = halves(width);
        vectors =
            vectors.chunks(2).map(|two| two[0].pick(two[1], &lower) + two[0].pick(two[1], &upper)).collect();
        width /= 2;
    }
    vectors[0]
}

/// Of two vectors whose lanes are in runs of `width` that belong together: the first halves of all runs of the one,
/// then of the other, and the second halves.
fn halves(width: usize) -> [Vec<usize>; 2] {
    let of = |half: usize| (0..2 * KEYS).filter(|lane| lane % width / (width / 2) == half).collect();
    [of(0), of(1)]
}
