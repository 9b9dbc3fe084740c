//! Attention with all masks, and the norms, rotations and appends that its kernels and those of caches compute.

use ops::ops::{
    Append, BinaryKind, Dequantize, MaskTerm, Narrow, Permute, Reshape, Rope, RopeLayout, Sdpa, WeightStyle,
};
use ops::{Bound, ElementType, Op, Real, TensorType, Value};
use tracewright_tests::calls::{Calls, random};
use tracewright_tests::long;

use super::fused::{STYLES, norm};
use super::{as_it_is, built, violations, widths};

/// Attention: a cache of keys, its queries and the position of the first.
pub fn attention(seed: u64, ring: bool) -> Vec<(Op, Vec<Value>)> {
    let cases = [
        [1, 1, 1, 1, 1, 1],
        [1, 4, 1, 64, 64, 64],
        [2, 3, 1, 37, 20, 33],
        [3, 1, 5, 48, 16, 16],
        [2, 2, 16, 32, 32, 48],
        [1, 8, 3, 31, 80, 128],
        [1, 4, 2, 19, 256, 256],
        [1, 8, 1, 40, 512, 512],
        [2, 3, 2, 37, 512, 300],
        [1, 10, 1, 35, 570, 570],
    ];
    attention_of(&cases, &[ElementType::F32, ElementType::Bf16, ElementType::F16], seed, ring)
}

/// In the short form every fourth case: each size, and each element, position and mask.
pub fn attention_step() -> usize {
    if long::is_wanted() { 1 } else { 4 }
}

/// The same of given batches, groups, queries, keys, features and values.
pub fn attention_of(
    cases: &[[usize; 6]],
    elements: &[ElementType],
    seed: u64,
    ring: bool,
) -> Vec<(Op, Vec<Value>)> {
    let mut all = Vec::new();
    for (case, &[batch, group, queries, keys, features, values]) in cases.iter().enumerate() {
        let last = keys - queries;
        for (position, start) in [0, last / 2, last].into_iter().enumerate() {
            let seed = seed + 100 * case as u64 + 10 * position as u64;
            let element = elements[(case + position) % elements.len()];
            let width = 1 + keys / 3;
            let (mask, start) = match (ring, position) {
                // A ring that has turned several times, and one that is not full.
                (true, 2) => (
                    vec![MaskTerm::Causal, MaskTerm::Window(width.min(last + 1)), MaskTerm::Ring],
                    5 * keys + 3,
                ),
                (true, _) => {
                    (vec![MaskTerm::Causal, MaskTerm::Window(width.min(last + 1)), MaskTerm::Ring], start)
                }
                (false, 1) => (vec![MaskTerm::Causal, MaskTerm::Window(width)], start),
                (false, _) => (vec![MaskTerm::Causal], start),
            };
            let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
            let q = tensor(&[batch, 2, group, queries, features], seed);
            let k = tensor(&[batch, 2, keys, features], seed + 1);
            let v = tensor(&[batch, 2, keys, values], seed + 2);
            let offset = match position {
                1 => Value::new(
                    TensorType::new(ElementType::I32, [batch]),
                    (0..batch).map(|b| start.saturating_sub(b) as f64),
                ),
                _ => Value::new(TensorType::new(ElementType::I32, []), [start as f64]),
            };
            let softcap = (case % 2 == 1).then_some(Real(2.0));
            let scale = (case % 3 == 1).then_some(Real(0.25));
            let (mut mask, mut operands) = (mask, vec![q, k, v, offset]);
            // Of all masks, positions and elements.
            if (case + position) % 4 < 2 {
                let ring = mask.iter().position(|term| *term == MaskTerm::Ring).unwrap_or(mask.len());
                mask.insert(ring, MaskTerm::Sinks);
                operands.push(tensor(&[2, group], seed + 3));
            }
            all.push((Op::from(Sdpa { mask, scale, softcap, offset: true }), operands));
        }
    }
    all
}

#[test]
fn attention_on_every_level() {
    let mut all = Calls::default();
    let cases = attention(1, false).into_iter().chain(attention(2, true));
    for (op, arguments) in cases.step_by(attention_step()) {
        all.call(op, arguments);
    }
    let all_keys = Sdpa { mask: vec![], scale: None, softcap: None, offset: false };
    let tensor = |shape: &[usize], seed| random(TensorType::new(ElementType::F32, shape), seed);
    all.call(all_keys, vec![tensor(&[3, 20, 24], 1), tensor(&[3, 50, 24], 2), tensor(&[3, 50, 30], 3)]);
    let mut windows = Calls::default();
    let has_window = |op: &Op| matches!(op, Op::Sdpa(sdpa) if sdpa.mask.iter().any(|term| matches!(term, MaskTerm::Window(_))));
    let windowed = attention(1, false).into_iter().filter(|(op, _)| has_window(op));
    windowed.step_by(attention_step()).for_each(|(op, arguments)| windows.call(op, arguments));
    for target in widths() {
        let found = violations(&all, &target, &as_it_is);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        let less = violations(&windows, &target, &|text| text.replace("arith.maxsi", "arith.minsi"));
        assert!(!less.is_empty(), "{target}: keys before the window's first are not found");
    }
}

/// Made-up integers in place of numbers, and what one of them stands for in each row.
fn integers(ty: &TensorType, seed: u64) -> [Value; 2] {
    let rows = random(TensorType::new(ElementType::F32, &ty.shape[..ty.rank() - 1]), seed + 1);
    let scales = Value::new(rows.ty.clone(), rows.data.iter().map(|x| x.abs() / 512.0));
    [random(ty.with_element(ElementType::I8), seed), scales]
}

#[test]
fn attention_reads_integers() {
    let mut all = Calls::default();
    let all_cases = attention(3, false).into_iter().chain(attention(4, true));
    for (case, (op, arguments)) in all_cases.step_by(attention_step()).enumerate() {
        let [q, k, v, others @ ..] = &arguments[..] else { unreachable!() };
        let text = format!("{op:?} of {} and integers", q.ty);
        let [[k, k_scales], [v, v_scales]] =
            [k, v].map(|of| integers(&of.ty, 1000 + 10 * case as u64 + of.ty.shape[3] as u64));
        let dequantize = Dequantize { element: q.ty.element };
        let mut arguments = vec![q.clone(), k, k_scales, v, v_scales];
        arguments.extend(others.iter().cloned());
        all.graph(text, arguments, op.bound(), |b, ids| {
            let k = b.op(dequantize.clone(), &ids[1..3])?;
            let v = b.op(dequantize.clone(), &ids[3..5])?;
            b.op(op.clone(), &[&[ids[0], k, v], &ids[5..]].concat())
        });
    }
    for target in widths() {
        let built = built(&all, &target, &as_it_is);
        let text = &built.module.text_without_locs;
        let count = |kernel: &str| text.matches(&format!("= flow.dispatch {kernel}")).count();
        // Another kernel prepares queries of many features.
        assert_eq!(count("@kernels::@attention_"), all.calls.len(), "one for each call");
        assert_eq!(count(""), all.calls.len() + count("@kernels::@queries_"), "nothing is dequantized");
        let found = built.load(&all.weights).violations(&all);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        for part in [2, 4] {
            all.calls.iter_mut().for_each(|call| call.arguments[part].data.rotate_left(1));
            let next = built.load(&all.weights).violations(&all);
            assert!(!next.is_empty(), "{target}: the scale of the next key is not found");
            all.calls.iter_mut().for_each(|call| call.arguments[part].data.rotate_right(1));
        }
    }
}

/// An element type of queries and keys, with the norm and the rotation on their way to attention.
#[derive(Clone, Copy)]
struct Way {
    element: ElementType,
    style: WeightStyle,
    /// The pairs of features that are rotated.
    half: usize,
    seed: u64,
}

const HEADS: usize = 2;
/// The queries of each head.
const GROUP: usize = 3;
const FEATURES: usize = 40;

fn rope(axis: usize) -> Rope {
    Rope { axis, layout: RopeLayout::HalfSplit }
}

fn reshape(shape: &[usize]) -> Reshape {
    Reshape { shape: shape.to_vec() }
}

fn permute(order: &[usize]) -> Permute {
    Permute { order: order.to_vec() }
}

/// One position or length for all sequences, or one for each.
fn integer<const N: usize>(shape: [usize; N], numbers: &[f64]) -> Value {
    Value::new(TensorType::new(ElementType::I32, shape), numbers.to_vec())
}

impl Way {
    fn tensor(self, shape: &[usize], part: u64) -> Value {
        random(TensorType::new(self.element, shape), self.seed + part)
    }

    /// Attention of one token, whose queries may be normed and whose cache may hold integers.
    fn queries(self, all: &mut Calls, normed: bool, quantized: bool) {
        let Self { element, style, half, seed } = self;
        let sdpa = Sdpa { mask: vec![MaskTerm::Causal], scale: None, softcap: None, offset: true };
        let kept = [1, HEADS, 30, FEATURES];
        let [[k, k_scales], [v, v_scales]] =
            [20, 30].map(|part| integers(&TensorType::new(element, kept), seed + part));
        let dequantize = Dequantize { element };
        let arguments = vec![
            self.tensor(&[1, 1, if normed { 7 } else { 0 } + HEADS * GROUP * FEATURES], 0),
            self.tensor(&kept, 1),
            self.tensor(&kept, 2),
            integer([], &[17.0]),
            self.tensor(&[1, half], 3),
            self.tensor(&[1, half], 4),
            self.tensor(&[FEATURES], 5),
            k,
            k_scales,
            v,
            v_scales,
        ];
        let text =
            format!("attention of rotated queries in {element}, normed: {normed}, quantized: {quantized}");
        all.graph(text, arguments, Bound::UlpsOfLargest(8.0), |b, ids| {
            let mut q = ids[0];
            if normed {
                q = b.op(Narrow { axis: 2, start: 7, length: HEADS * GROUP * FEATURES }, &[q])?;
            }
            q = b.op(reshape(&[1, 1, HEADS, GROUP, FEATURES]), &[q])?;
            if normed {
                q = b.op(norm(style), &[q, ids[6]])?;
            }
            q = b.op(rope(1), &[q, ids[4], ids[5]])?;
            q = b.op(reshape(&[1, HEADS, GROUP, 1, FEATURES]), &[q])?;
            let (mut k, mut v) = (ids[1], ids[2]);
            if quantized {
                (k, v) = (b.op(dequantize.clone(), &ids[7..9])?, b.op(dequantize.clone(), &ids[9..11])?);
            }
            b.op(sdpa.clone(), &[q, k, v, ids[3]])
        });
    }

    /// Attention of three tokens of two sequences.
    fn queries_by_token(self, all: &mut Calls) {
        let Self { element, half, .. } = self;
        let sdpa = Sdpa { mask: vec![MaskTerm::Causal], scale: None, softcap: None, offset: true };
        let arguments = vec![
            self.tensor(&[2, 3, 5 + HEADS * GROUP * FEATURES], 60),
            self.tensor(&[2, HEADS, 30, FEATURES], 61),
            self.tensor(&[2, HEADS, 30, FEATURES], 62),
            integer([2], &[17.0, 4.0]),
            self.tensor(&[2, 3, half], 63),
            self.tensor(&[2, 3, half], 64),
        ];
        let text = format!("attention of rotated queries in {element}, token by token");
        all.graph(text, arguments, Bound::UlpsOfLargest(8.0), |b, ids| {
            let q = b.op(Narrow { axis: 2, start: 5, length: HEADS * GROUP * FEATURES }, &[ids[0]])?;
            let q = b.op(reshape(&[2, 3, HEADS, GROUP, FEATURES]), &[q])?;
            let q = b.op(rope(1), &[q, ids[4], ids[5]])?;
            let q = b.op(permute(&[0, 2, 3, 1, 4]), &[q])?;
            let y = b.op(sdpa.clone(), &[q, ids[1], ids[2], ids[3]])?;
            b.op(permute(&[0, 3, 1, 2, 4]), &[y])
        });
    }

    /// Three tokens of two sequences on their way into a cache.
    fn tokens(self, all: &mut Calls, ring: bool) {
        let Self { element, style, half, .. } = self;
        let arguments = vec![
            self.tensor(&[2, HEADS, 11, FEATURES], 70),
            self.tensor(&[2, 3, 5 + HEADS * FEATURES], 71),
            integer([2], &if ring { [25.0, 3.0] } else { [9.0, 3.0] }),
            integer([2], &[3.0, 2.0]),
            self.tensor(&[2, 3, half], 72),
            self.tensor(&[2, 3, half], 73),
            self.tensor(&[FEATURES], 74),
        ];
        let text = format!("three {element} tokens in a cache, ring: {ring}");
        all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
            let new = b.op(Narrow { axis: 2, start: 5, length: HEADS * FEATURES }, &[ids[1]])?;
            let new = b.op(reshape(&[2, 3, HEADS, FEATURES]), &[new])?;
            let new = b.op(norm(style), &[new, ids[6]])?;
            let new = b.op(rope(1), &[new, ids[4], ids[5]])?;
            let new = b.op(permute(&[0, 2, 1, 3]), &[new])?;
            b.op(Append { axis: 2, ring }, &[ids[0], new, ids[2], ids[3]])
        });
    }

    /// One token on its way into a cache.
    fn token(self, all: &mut Calls, [ring, normed, rotated]: [bool; 3]) {
        let Self { element, style, half, .. } = self;
        let arguments = vec![
            self.tensor(&[1, HEADS, 11, FEATURES], 40),
            self.tensor(&[1, 1, 5 + HEADS * FEATURES], 41),
            integer([], &[if ring { 25.0 } else { 9.0 }]),
            integer([], &[1.0]),
            self.tensor(&[1, half], 42),
            self.tensor(&[1, half], 43),
            self.tensor(&[FEATURES], 44),
        ];
        let text =
            format!("a {element} token in a cache, ring: {ring}, normed: {normed}, rotated: {rotated}");
        all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
            let mut new = b.op(Narrow { axis: 2, start: 5, length: HEADS * FEATURES }, &[ids[1]])?;
            new = b.op(reshape(&[1, 1, HEADS, FEATURES]), &[new])?;
            if normed {
                new = b.op(norm(style), &[new, ids[6]])?;
            }
            if rotated {
                new = b.op(rope(1), &[new, ids[4], ids[5]])?;
            }
            new = b.op(reshape(&[1, HEADS, 1, FEATURES]), &[new])?;
            b.op(Append { axis: 2, ring }, &[ids[0], new, ids[2], ids[3]])
        });
    }

    /// Norms with what is beside them where there is neither attention nor a cache.
    fn norms(self, all: &mut Calls) {
        let Self { element, style, half, .. } = self;
        let arguments = vec![
            self.tensor(&[2, 3, HEADS, FEATURES], 6),
            self.tensor(&[2, 3, half], 7),
            self.tensor(&[2, 3, half], 8),
            self.tensor(&[FEATURES], 9),
        ];
        let text = format!("rotated norms in {element}");
        all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
            let x = b.op(norm(style), &[ids[0], ids[3]])?;
            b.op(rope(1), &[x, ids[1], ids[2]])
        });
        let arguments = vec![self.tensor(&[3, 37], 10), self.tensor(&[37], 11), self.tensor(&[3, 37], 12)];
        let text = format!("a norm that is added in {element}");
        all.graph(text, arguments, Bound::UlpsOfLargest(4.0), |b, ids| {
            let normed = b.op(norm(style), &[ids[0], ids[1]])?;
            b.binary(BinaryKind::Add, ids[2], normed)
        });
    }
}

/// Queries, keys and norms on their way to attention and into caches: what kernels take together.
fn ways_to_attention() -> Calls {
    let mut all = Calls::default();
    for (case, element) in [ElementType::F32, ElementType::Bf16, ElementType::F16].into_iter().enumerate() {
        let (style, half) = (STYLES[case], [20, 16, 8][case]);
        let way = Way { element, style, half, seed: 500 + 100 * case as u64 };
        for (normed, quantized) in [(false, false), (true, false), (true, true)] {
            way.queries(&mut all, normed, quantized);
        }
        way.queries_by_token(&mut all);
        [false, true].into_iter().for_each(|ring| way.tokens(&mut all, ring));
        for ring_normed_rotated in [
            [false, false, false],
            [false, false, true],
            [false, true, true],
            [true, true, true],
            [true, true, false],
        ] {
            way.token(&mut all, ring_normed_rotated);
        }
        way.norms(&mut all);
    }
    all
}

#[test]
fn attention_and_caches_swallow_norm_and_rotation() {
    let calls = ways_to_attention();
    for target in widths() {
        let built = built(&calls, &target, &as_it_is);
        let dispatches = built.module.text_without_locs.matches("= flow.dispatch").count();
        assert_eq!(dispatches, calls.calls.len(), "one for each call");
        let found = built.load(&calls.weights).violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}

/// Attention whose results lose their last features, as in latent attention. Three queries move their
/// token axis before the head axis first.
fn attention_in_parts() -> Calls {
    let mut all = Calls::default();
    let (heads, keys) = (3, 30);
    let elements = [ElementType::F32, ElementType::Bf16, ElementType::F16];
    for (case, (features, length)) in [(40, 24), (300, 263), (576, 512)].into_iter().enumerate() {
        for queries in [1, 3] {
            let element = elements[case];
            let seed = 900 + 10 * case as u64 + queries as u64;
            let arguments = vec![
                random(TensorType::new(element, [2, heads, queries, features]), seed),
                random(TensorType::new(element, [2, keys, features]), seed + 4),
                Value::new(TensorType::new(ElementType::I32, [2]), [17.0, 4.0]),
            ];
            let sdpa = Sdpa { mask: vec![MaskTerm::Causal], scale: None, softcap: None, offset: true };
            let text = format!("{length} of {features} features of {queries} queries in {element}");
            all.graph(text, arguments, Bound::UlpsOfLargest(8.0), |b, ids| {
                let mut y = b.op(sdpa.clone(), &[ids[0], ids[1], ids[1], ids[2]])?;
                if queries > 1 {
                    y = b.op(Permute { order: vec![0, 2, 1, 3] }, &[y])?;
                }
                b.op(Narrow { axis: 3, start: 0, length }, &[y])
            });
        }
    }
    all
}

#[test]
fn attention_computes_only_the_features_that_are_read() {
    let calls = attention_in_parts();
    for target in widths() {
        let built = built(&calls, &target, &as_it_is);
        let text = &built.module.text_without_locs;
        assert_eq!(text.matches("= flow.dispatch").count(), 6 + 4, "four calls prepare their queries");
        assert_eq!(text.matches("stablehlo.").count(), 0, "{text}");
        let found = built.load(&calls.weights).violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}
