//! Random valid operations, values and graphs over the whole list of operations. The same seed gives the same.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tracewright::ops::ops::*;
use tracewright::ops::{ElementType, InferError, Literal, Op, Real, RopePart, RopeTable, TensorType, Value};
use tracewright::trace::{
    Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Trace,
};

/// A source of random choices.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The choices that belong to a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    /// True in so many cases of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of several.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// The same in random order.
    pub fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
        items
    }
}

/// More elements make a case slow and find nothing new.
const ELEMENTS: usize = 120;

/// An extent: 0 and 1 and odd ones often.
pub fn extent(dice: &mut Dice) -> usize {
    *dice.pick(&[0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 5, 5, 7])
}

/// A shape of so many axes.
pub fn shape(dice: &mut Dice, rank: usize) -> Vec<usize> {
    let mut shape: Vec<usize> = (0..rank).map(|_| extent(dice)).collect();
    while shape.iter().filter(|&&extent| extent > 0).product::<usize>() > ELEMENTS {
        let axis = dice.below(rank);
        shape[axis] = shape[axis].min(1 + dice.below(3));
    }
    shape
}

pub fn element(dice: &mut Dice) -> ElementType {
    *dice.pick(&ElementType::ALL)
}

pub fn float(dice: &mut Dice) -> ElementType {
    *dice.pick(&[ElementType::F32, ElementType::F16, ElementType::Bf16])
}

/// Any type of at least so many axes.
pub fn ty(dice: &mut Dice, element: ElementType, least: usize) -> TensorType {
    let rank = least + dice.below(5 - least.min(4));
    TensorType::new(element, shape(dice, rank))
}

/// A number that an element type may hold: special ones, small ones, ones of any size.
fn number(dice: &mut Dice, element: ElementType) -> f64 {
    let tame = dice.below(9) as f64 - 4.0;
    match element {
        ElementType::I1 => dice.below(2) as f64,
        ElementType::I4 => dice.below(16) as f64 - 8.0,
        ElementType::I8 | ElementType::I32 => {
            let (low, high) = match element {
                ElementType::I8 => (-128.0, 127.0),
                _ => (f64::from(i32::MIN), f64::from(i32::MAX)),
            };
            *dice.pick(&[tame, tame, tame, tame, low, low + 1.0, high, 100.0, 0.0, -1.0])
        }
        _ => {
            let smallest = element.ulp(0.0);
            let largest = match element {
                ElementType::F32 => f64::from(f32::MAX),
                ElementType::F16 => 65504.0,
                _ => 3.3895313892515355e38,
            };
            let special = [f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, smallest, -3.0 * smallest];
            let special = [&special[..], &[largest, -largest, 1.0, -1.0]].concat();
            match dice.below(8) {
                0 | 1 => *dice.pick(&special),
                2 | 3 => tame,
                _ => element.round(tame_float(dice)),
            }
        }
    }
}

/// A float of many digits between 2⁻⁴ and 2⁴.
fn tame_float(dice: &mut Dice) -> f64 {
    let sign = if dice.chance(50) { 1.0 } else { -1.0 };
    let exponent = dice.below(8) as i32 - 4;
    sign * (1.0 + dice.below(1 << 30) as f64 / f64::from(1 << 30)) * 2f64.powi(exponent)
}

/// Random elements: NaN, ±0, ±∞, subnormals, the largest integers and equal elements among them.
pub fn value(dice: &mut Dice, ty: &TensorType) -> Value {
    fill(dice, ty, number)
}

/// Random floats between 2⁻⁴ and 2⁴ and small integers: no step of what is computed of a few of them is out of range.
pub fn tame_value(dice: &mut Dice, ty: &TensorType) -> Value {
    fill(dice, ty, |dice, element| match element.is_float() {
        true => tame_float(dice),
        false => number(dice, ElementType::I4),
    })
}

fn fill(dice: &mut Dice, ty: &TensorType, number: fn(&mut Dice, ElementType) -> f64) -> Value {
    let mut data: Vec<f64> = Vec::with_capacity(ty.count());
    for _ in 0..ty.count() {
        let again = !data.is_empty() && dice.chance(15);
        let next = if again { *dice.pick(&data) } else { number(dice, ty.element) };
        data.push(next);
    }
    Value::new(ty.clone(), data)
}

/// A constant of this type: equal elements or others.
pub fn literal(dice: &mut Dice, ty: &TensorType) -> Literal {
    match dice.chance(60) {
        true => {
            let value = *dice.pick(&[0.0, -0.0, 1.0, 1.0, -1.0, 2.0, 0.5, f64::NAN]);
            Literal::splat(ty.clone(), value)
        }
        false => Literal::from_value(&value(dice, ty)),
    }
}

/// Every axis in a random order, or in its own.
fn order(dice: &mut Dice, rank: usize) -> Vec<usize> {
    let axes: Vec<usize> = (0..rank).collect();
    match dice.below(5) {
        0 => axes,
        1 if rank > 0 => {
            let by = dice.below(rank);
            [&axes[by..], &axes[..by]].concat()
        }
        _ => dice.shuffled(axes),
    }
}

/// Another shape of as many elements.
fn refactored(dice: &mut Dice, from: &[usize]) -> Vec<usize> {
    let count: usize = from.iter().product();
    if dice.chance(15) {
        return from.to_vec();
    }
    if count == 0 {
        let rank = dice.below(3);
        let mut to = shape(dice, 1 + rank);
        to[dice.below(1 + rank)] = 0;
        return to;
    }
    // The prime factors, put together at random; then extents of 1.
    let mut to = Vec::new();
    let mut rest = count;
    let mut factor = 2;
    while rest > 1 {
        while rest.is_multiple_of(factor) {
            rest /= factor;
            match to.is_empty() || dice.chance(60) && to.len() < 4 {
                true => to.push(factor),
                false => {
                    let axis = dice.below(to.len());
                    to[axis] *= factor;
                }
            }
        }
        factor += 1;
    }
    let mut to = dice.shuffled(to);
    while to.len() < 5 && dice.chance(35) {
        to.insert(dice.below(to.len() + 1), 1);
    }
    to
}

/// The names of the operations that programs are made of: not of those that lowering puts into them.
pub fn names() -> Vec<&'static str> {
    let lowered = |name: &str| {
        ["pack", "quantize", "grouped", "bounded", "sliced"].iter().any(|word| name.starts_with(word))
    };
    Op::NAMES.iter().copied().filter(|name| !lowered(name)).collect()
}

/// A random operation of this name and the types of its operands; if a type is given, it is that of one of them.
/// `None` if the operation takes no such operand.
pub fn operation(dice: &mut Dice, name: &str, given: Option<&TensorType>) -> Option<(Op, Vec<TensorType>)> {
    let (op, types) = candidate(dice, name, given)?;
    let fits = op.infer(&types.iter().collect::<Vec<_>>()).is_ok_and(|ty| ty.count() <= 4 * ELEMENTS);
    (fits && given.is_none_or(|given| types.contains(given))).then_some((op, types))
}

fn candidate(dice: &mut Dice, name: &str, given: Option<&TensorType>) -> Option<(Op, Vec<TensorType>)> {
    let i32 = |shape: Vec<usize>| TensorType::new(ElementType::I32, shape);
    // The given type, or one of at least so many axes.
    let operand = |dice: &mut Dice, least: usize, any: fn(&mut Dice) -> ElementType| match given {
        Some(given) => given.clone(),
        None => {
            let element = any(dice);
            ty(dice, element, least)
        }
    };
    let not_i1 = |dice: &mut Dice, least: usize| {
        operand(dice, least, |dice| *dice.pick(&ElementType::ALL[..ElementType::ALL.len() - 1]))
    };
    Some(match name {
        "constant" => {
            if given.is_some() {
                return None;
            }
            if dice.chance(15) {
                let columns = dice.below(4);
                let table = RopeTable {
                    part: *dice.pick(RopePart::ALL),
                    positions: 1 + dice.below(5),
                    scaling: Real(1.0),
                    inv_freq: (0..columns).map(|i| Real(0.5f64.powi(i as i32))).collect(),
                };
                (Constant { value: Literal::rope_table(float(dice), table) }.into(), vec![])
            } else {
                let element = element(dice);
                let ty = ty(dice, element, 0);
                (Constant { value: literal(dice, &ty) }.into(), vec![])
            }
        }
        "iota" => {
            if given.is_some() {
                return None;
            }
            let ty = not_i1(dice, 1);
            let axis = dice.below(ty.rank());
            (Iota { ty, axis }.into(), vec![])
        }
        "unary" => {
            let x = operand(dice, 0, element);
            let kind = match x.element {
                ElementType::I1 => UnaryKind::Not,
                e if e.is_float() => *dice.pick(UnaryKind::ALL),
                _ => *dice.pick(&[UnaryKind::Negate, UnaryKind::Abs]),
            };
            (Unary { kind }.into(), vec![x])
        }
        "binary" => {
            let x = operand(dice, 0, element);
            let kind = match x.element {
                ElementType::I1 => *dice.pick(&[BinaryKind::And, BinaryKind::Or]),
                _ => *dice.pick(BinaryKind::ALL),
            };
            (Binary { kind }.into(), vec![x.clone(), x])
        }
        "compare" => {
            let x = not_i1(dice, 0);
            (Compare { direction: *dice.pick(Direction::ALL) }.into(), vec![x.clone(), x])
        }
        "select" => {
            let x = operand(dice, 0, element);
            let x = match dice.chance(30) && x.element == ElementType::I1 {
                true => x.with_element(element(dice)),
                false => x,
            };
            (Select {}.into(), vec![x.with_element(ElementType::I1), x.clone(), x])
        }
        "convert" => {
            let x = operand(dice, 0, element);
            (Convert { to: element(dice) }.into(), vec![x])
        }
        "optimization_barrier" => (OptimizationBarrier {}.into(), vec![operand(dice, 0, element)]),
        "reduce_precision" => {
            let x = operand(dice, 0, |_| ElementType::F32);
            let to = *dice.pick(&[ElementType::F16, ElementType::Bf16]);
            (ReducePrecision { to }.into(), vec![x])
        }
        "reshape" => {
            let x = operand(dice, 0, element);
            (Reshape { shape: refactored(dice, &x.shape) }.into(), vec![x])
        }
        "permute" => {
            let x = operand(dice, 0, element);
            (Permute { order: order(dice, x.rank()) }.into(), vec![x])
        }
        "narrow" => {
            let x = operand(dice, 1, element);
            let axis = dice.below(x.rank());
            let (start, length) = range(dice, *x.shape.get(axis)?);
            (Narrow { axis, start, length }.into(), vec![x])
        }
        "broadcast_in_dim" => {
            let x = operand(dice, 0, element);
            let rank = x.rank() + if dice.chance(60) { dice.below(3) } else { 0 };
            let mut axes: Vec<usize> = dice.shuffled((0..rank).collect());
            axes.truncate(x.rank());
            if dice.chance(80) {
                axes.sort_unstable();
            }
            let mut shape = shape(dice, rank);
            let stretched = dice.chance(70);
            for (&axis, &extent) in axes.iter().zip(&x.shape) {
                if extent != 1 || !stretched {
                    shape[axis] = extent;
                }
            }
            (BroadcastInDim { shape, axes }.into(), vec![x])
        }
        "concatenate" => {
            let x = operand(dice, 1, element);
            let axis = dice.below(x.rank());
            x.shape.get(axis)?;
            let mut types = vec![x.clone(); 1 + dice.below(4)];
            let at = dice.below(types.len());
            for (i, piece) in types.iter_mut().enumerate() {
                if i != at && dice.chance(60) {
                    piece.shape[axis] = extent(dice);
                }
            }
            (Concatenate { axis }.into(), types)
        }
        "gather" => {
            let rank = dice.below(3);
            match given {
                Some(indices) if indices.element == ElementType::I32 && dice.chance(50) => {
                    let table = element(dice);
                    (Gather {}.into(), vec![ty(dice, table, 1), indices.clone()])
                }
                _ => {
                    let table = operand(dice, 1, element);
                    (Gather {}.into(), vec![table, i32(shape(dice, rank))])
                }
            }
        }
        "dynamic_slice" | "dynamic_update_slice" => {
            let start = i32(vec![]);
            let x = match given {
                Some(given) if *given == start => {
                    let element = element(dice);
                    ty(dice, element, 1)
                }
                _ => operand(dice, 1, element),
            };
            let axis = dice.below(x.rank());
            let (_, length) = range(dice, *x.shape.get(axis)?);
            if name == "dynamic_slice" {
                return Some((DynamicSlice { axis, length }.into(), vec![x, start]));
            }
            let mut other = x.clone();
            other.shape[axis] = length;
            // What is given may be the update too.
            if dice.chance(30) && given.is_some() {
                other.shape[axis] = x.shape[axis] + dice.below(3);
                return Some((DynamicUpdateSlice { axis }.into(), vec![other, x, start]));
            }
            (DynamicUpdateSlice { axis }.into(), vec![x, other, start])
        }
        "dot_general" => {
            let a = not_i1(dice, 0);
            let axes = dice.shuffled((0..a.rank()).collect::<Vec<_>>());
            let batch = dice.below(a.rank().min(2) + 1);
            let contract = dice.below((a.rank() - batch).min(2) + 1);
            let (left_batch, rest) = axes.split_at(batch);
            let left_contract = &rest[..contract];
            let free = dice.below(3);
            let places = dice.shuffled((0..batch + contract + free).collect::<Vec<_>>());
            let mut other = shape(dice, places.len());
            let shared = left_batch.iter().chain(left_contract);
            shared.zip(&places).for_each(|(&axis, &place)| other[place] = a.shape[axis]);
            let b = TensorType::new(a.element, other);
            let wide = if a.element.is_float() { ElementType::F32 } else { ElementType::I32 };
            let (left_batch, left_contract) = (left_batch.to_vec(), left_contract.to_vec());
            let (right_batch, right_contract) =
                (places[..batch].to_vec(), places[batch..batch + contract].to_vec());
            let element = *dice.pick(&[a.element, wide]);
            match dice.chance(50) {
                true => {
                    let dot = DotGeneral { left_batch, right_batch, left_contract, right_contract, element };
                    (dot.into(), vec![a, b])
                }
                false => {
                    let dot = DotGeneral {
                        left_batch: right_batch,
                        right_batch: left_batch,
                        left_contract: right_contract,
                        right_contract: left_contract,
                        element,
                    };
                    (dot.into(), vec![b, a])
                }
            }
        }
        "reduce" => {
            let x = not_i1(dice, 0);
            let axes = (0..x.rank()).filter(|_| dice.chance(45)).collect();
            (Reduce { kind: *dice.pick(ReduceKind::ALL), axes }.into(), vec![x])
        }
        "erf" => (Erf {}.into(), vec![operand(dice, 0, float)]),
        "softplus" => (Softplus {}.into(), vec![operand(dice, 0, float)]),
        "linear" => {
            let outputs = extent(dice);
            let (x, w) = match given {
                Some(w) if w.rank() == 2 && dice.chance(30) => {
                    let mut x = ty(dice, w.element, 1);
                    *x.shape.last_mut()? = w.shape[1];
                    (x, w.clone())
                }
                _ => {
                    let x = operand(dice, 1, float);
                    let w = TensorType::new(x.element, [outputs, *x.shape.last()?]);
                    (x, w)
                }
            };
            let bias = TensorType::new(x.element, [w.shape[0]]);
            let types = if dice.chance(40) { vec![x, w, bias] } else { vec![x, w] };
            (Linear {}.into(), types)
        }
        "rms_norm" => {
            let x = operand(dice, 1, float);
            let w = TensorType::new(x.element, [*x.shape.last()?]);
            let epsilon = Real(*dice.pick(&[0.0, 1e-5, 1e-6]));
            (RmsNorm { epsilon, style: *dice.pick(WeightStyle::ALL) }.into(), vec![x, w])
        }
        "rope" => {
            let x = operand(dice, 2, float);
            if x.rank() < 2 {
                return None;
            }
            let axis = dice.below(x.rank() - 1);
            let pairs = dice.below(x.shape[x.rank() - 1] / 2 + 1);
            let mut table = vec![x.shape[axis], pairs];
            if axis > 0 && dice.chance(30) {
                table.insert(0, x.shape[0]);
            }
            let table = TensorType::new(x.element, table);
            (Rope { axis, layout: *dice.pick(RopeLayout::ALL) }.into(), vec![x, table.clone(), table])
        }
        "sdpa" => {
            let q = operand(dice, 2, float);
            sdpa(dice, q)?
        }
        "linear_attention" => {
            let v = match given {
                Some(v) if v.rank() == 5 && v.element == ElementType::F32 => v.clone(),
                Some(_) => return None,
                None => {
                    let shape: Vec<usize> = (0..5).map(|_| 1 + dice.below(3)).collect();
                    TensorType::new(ElementType::F32, shape)
                }
            };
            let [b, s, h, g, e] = v.shape[..] else { return None };
            let of = |shape: &[usize]| TensorType::new(ElementType::F32, shape);
            let d = 1 + dice.below(3);
            let (key, gate, matrices) = (of(&[b, s, h, d]), of(&[b, s, h, g]), of(&[b, h, g, d, e]));
            let numbers = i32(if dice.chance(40) { vec![b] } else { vec![] });
            let types = vec![key.clone(), key, v, gate.clone(), gate, matrices, numbers.clone(), numbers];
            (LinearAttention { delta: dice.chance(50) }.into(), types)
        }
        "append" => {
            let cache = operand(dice, 1, element);
            let axis = dice.below(cache.rank());
            let slots = *cache.shape.get(axis)?;
            let mut new = cache.clone();
            new.shape[axis] = dice.below(slots + 1);
            let by_row = axis > 0 && dice.chance(40);
            let numbers = i32(if by_row { vec![cache.shape[0]] } else { vec![] });
            (Append { axis, ring: dice.chance(30) }.into(), vec![cache, new, numbers.clone(), numbers])
        }
        "dequantize" => {
            let integers = match given {
                Some(scales) if scales.element == ElementType::F32 => {
                    TensorType::new(ElementType::I8, [&scales.shape[..], &[extent(dice)]].concat())
                }
                _ => operand(dice, 1, |_| ElementType::I8),
            };
            let (_, rows) = integers.shape.split_last()?;
            let scales = TensorType::new(ElementType::F32, rows);
            (Dequantize { element: float(dice) }.into(), vec![integers, scales])
        }
        _ => return None,
    })
}

/// A range within an extent: all of it, nothing, or a part.
fn range(dice: &mut Dice, extent: usize) -> (usize, usize) {
    if dice.chance(15) {
        return (0, extent);
    }
    let start = dice.below(extent + 1);
    (start, dice.below(extent - start + 1))
}

fn sdpa(dice: &mut Dice, q: TensorType) -> Option<(Op, Vec<TensorType>)> {
    let rank = q.rank();
    if rank < 2 {
        return None;
    }
    let grouped = rank > 2 && dice.chance(40);
    let batch = &q.shape[..rank - 2 - usize::from(grouped)];
    let (queries, features) = (q.shape[rank - 2], q.shape[rank - 1]);
    let mut mask = Vec::new();
    let mut extra = Vec::new();
    let mut keys = extent(dice);
    let offset = dice.chance(40);
    if offset {
        extra.push(TensorType::new(ElementType::I32, []));
    }
    for _ in 0..dice.below(4) {
        let term = match dice.below(7) {
            0 => MaskTerm::Window(1 + dice.below(4)),
            1 => MaskTerm::Chunk(1 + dice.below(4)),
            2 => MaskTerm::Padding,
            3 => MaskTerm::Prefix,
            4 => MaskTerm::Additive,
            _ => MaskTerm::Causal,
        };
        mask.push(term);
    }
    if dice.chance(15) {
        mask.push(MaskTerm::Sinks);
    }
    if dice.chance(15) {
        let window = 1 + dice.below(3);
        mask.extend([MaskTerm::Window(window), MaskTerm::Ring]);
        keys = window + queries.max(1) - 1 + dice.below(2);
    }
    for term in &mask {
        match term {
            MaskTerm::Padding | MaskTerm::Prefix => {
                let each = !batch.is_empty() && dice.chance(50);
                let lengths = if each { vec![batch[0]] } else { vec![] };
                extra.push(TensorType::new(ElementType::I32, lengths));
            }
            MaskTerm::Additive => {
                let scores = [&q.shape[..rank - 1], &[keys]].concat();
                let mut shape = scores[dice.below(rank + 1)..].to_vec();
                for extent in &mut shape {
                    if dice.chance(20) {
                        *extent = 1;
                    }
                }
                extra.push(TensorType::new(q.element, shape));
            }
            MaskTerm::Sinks => {
                let heads = &q.shape[..rank - 2];
                extra.push(TensorType::new(q.element, &heads[dice.below(heads.len() + 1)..]));
            }
            _ => {}
        }
    }
    let k = TensorType::new(q.element, [batch, &[keys, features]].concat());
    let v = TensorType::new(q.element, [batch, &[keys, extent(dice)]].concat());
    let scale = dice.chance(30).then_some(Real(0.5));
    let softcap = dice.chance(30).then_some(Real(1.5));
    let mut types = vec![q, k, v];
    types.extend(extra);
    Some((Sdpa { mask, scale, softcap, offset }.into(), types))
}

#[derive(Clone, Copy)]
pub struct Limits {
    /// Whether an operation with these operands may occur.
    pub accept: fn(&Op, &[&TensorType], &TensorType) -> bool,
    /// Replaces an operation's operands, so that it is defined for all their values.
    pub guard: fn(&mut Builder<'_>, &Op, &mut [NodeId]) -> Result<(), InferError>,
    /// Whether a leaf may have this type.
    pub leaf: fn(&TensorType) -> bool,
    pub literal: fn(&mut Dice, &TensorType) -> Literal,
}

impl Limits {
    pub const NONE: Self = Self { accept: |_, _, _| true, guard: |_, _, _| Ok(()), leaf: |_| true, literal };
}

/// A random trace: one entry point `main` of about so many nodes.
pub fn graph(dice: &mut Dice, nodes: usize) -> Trace {
    limited_graph(dice, nodes, "main", &Limits::NONE)
}

/// Operations that rules know in a row.
const CHAINS: &[&[&str]] = &[
    &["permute", "permute"],
    &["permute", "narrow"],
    &["concatenate", "narrow"],
    &["concatenate", "concatenate"],
    &["narrow", "narrow"],
    &["reshape", "reshape"],
    &["convert", "convert"],
    &["broadcast_in_dim", "broadcast_in_dim"],
    &["broadcast_in_dim", "permute"],
    &["broadcast_in_dim", "narrow"],
    &["broadcast_in_dim", "unary"],
    &["broadcast_in_dim", "binary"],
    &["broadcast_in_dim", "compare"],
    &["permute", "dot_general"],
    &["dot_general", "permute"],
    &["permute", "reduce"],
    &["convert", "reduce_precision"],
    &["unary", "dynamic_slice"],
    &["convert", "dynamic_slice"],
    &["rms_norm", "dynamic_slice"],
    &["gather", "gather"],
    &["linear", "linear"],
    &["rms_norm", "linear"],
    &["rms_norm", "rope"],
    &["append", "sdpa"],
    &["dequantize", "sdpa"],
    &["sdpa", "linear"],
];

/// A random trace within limits: one entry point of this name, with which the keys of its weights start.
pub fn limited_graph(dice: &mut Dice, nodes: usize, name: &str, limits: &Limits) -> Trace {
    let mut function = Function::new(name, "");
    let provenance = Provenance::new(name, "tests/src/arbitrary.rs", 1);
    let builder = Builder { function: &mut function, provenance };
    let mut growing = Growing { builder, readable: Vec::new(), limits };
    // What cannot be made is tried again, but not for ever.
    for _ in 0..20 * nodes {
        if growing.builder.function.len() >= nodes {
            break;
        }
        growing.step(dice);
    }
    let mut read = vec![false; function.len()];
    for id in function.ids() {
        function.operands(id).into_iter().for_each(|operand| read[operand.index()] = true);
    }
    let results = function.ids().filter(|id| !read[id.index()] || dice.chance(10));
    // An output that is an input or a weight as it is says nothing of the operations.
    let results: Vec<NodeId> =
        results.filter(|&id| matches!(function.node(id).kind, NodeKind::Op(_))).collect();
    let output = |(i, node)| Output::new(format!("result{i}"), node);
    function.outputs = results.into_iter().enumerate().map(output).collect();
    Trace { functions: vec![function], entries: vec![FunctionId(0)] }
}

struct Growing<'a> {
    builder: Builder<'a>,
    readable: Vec<NodeId>,
    limits: &'a Limits,
}

impl Growing<'_> {
    fn step(&mut self, dice: &mut Dice) {
        let near = |dice: &mut Dice, count: usize| match dice.chance(50) {
            true => count - 1 - dice.below(count.min(4)),
            false => dice.below(count),
        };
        let given = (!self.readable.is_empty() && dice.chance(80)).then(|| {
            let at = near(dice, self.readable.len());
            self.readable[at]
        });
        match (dice.below(10), given) {
            (0 | 1, given) => {
                let mut at = given;
                for name in *dice.pick(CHAINS) {
                    let Some(next) = self.operation(dice, name, at) else { return };
                    at = Some(next);
                }
            }
            (2, Some(x)) => self.identity(dice, x),
            (3, Some(x)) => self.projections(dice, x),
            (_, given) => {
                let name = *dice.pick(&names());
                if self.operation(dice, name, given).is_none() {
                    self.operation(dice, name, None);
                }
            }
        }
    }

    /// An operation that reads `given`.
    fn operation(&mut self, dice: &mut Dice, name: &str, given: Option<NodeId>) -> Option<NodeId> {
        let given_ty = given.map(|id| self.builder.ty(id).clone());
        let (op, types) = (0..3).find_map(|_| operation(dice, name, given_ty.as_ref()))?;
        let result = op.infer(&types.iter().collect::<Vec<_>>()).ok()?;
        if !(self.limits.accept)(&op, &types.iter().collect::<Vec<_>>(), &result) {
            return None;
        }
        let weights = matches!(op, Op::Linear(_) | Op::RmsNorm(_));
        let mut placed = false;
        let mut operands = Vec::with_capacity(types.len());
        for (at, ty) in types.iter().enumerate() {
            if let (Some(given), false, true) = (given, placed, given_ty.as_ref() == Some(ty)) {
                placed = true;
                operands.push(given);
                continue;
            }
            let same: Vec<NodeId> =
                self.readable.iter().copied().filter(|&id| self.builder.ty(id) == ty).collect();
            let weight = weights && at > 0;
            operands.push(match !same.is_empty() && dice.chance(if weight { 15 } else { 75 }) {
                true => *dice.pick(&same),
                false => self.leaf(dice, ty, weight)?,
            });
        }
        self.push(op, &operands)
    }

    fn push(&mut self, op: impl Into<Op>, operands: &[NodeId]) -> Option<NodeId> {
        let (op, mut operands) = (op.into(), operands.to_vec());
        let types: Vec<TensorType> = operands.iter().map(|&id| self.builder.ty(id).clone()).collect();
        let types: Vec<&TensorType> = types.iter().collect();
        let result = op.infer(&types).ok()?;
        if !(self.limits.accept)(&op, &types, &result) {
            return None;
        }
        (self.limits.guard)(&mut self.builder, &op, &mut operands).ok()?;
        let id = self.builder.op(op, &operands).ok()?;
        self.readable.push(id);
        Some(id)
    }

    /// An input, a weight or a constant.
    fn leaf(&mut self, dice: &mut Dice, ty: &TensorType, weight: bool) -> Option<NodeId> {
        if !(self.limits.leaf)(ty) {
            return None;
        }
        let types = vec![ty.clone()];
        let (name, number) = (self.builder.function.name.clone(), self.builder.function.len());
        let id = match dice.below(10) {
            kind if kind < 3 && ty.element.is_float() || weight => {
                let parameter = Parameter::new(format!("{name}.{number}.weight"), ty.clone());
                self.builder.push(NodeKind::Parameter(parameter), types, &[])
            }
            0..=2 | 9 => {
                let value = (self.limits.literal)(dice, ty);
                self.builder.op(Constant { value }, &[]).ok()?
            }
            _ => {
                let index = self.builder.function.inputs().len();
                self.builder.push(NodeKind::input(index, format!("argument{index}")), types, &[])
            }
        };
        self.readable.push(id);
        Some(id)
    }

    /// An operation that may do nothing: with a number that is neutral for some, or on one operand twice.
    fn identity(&mut self, dice: &mut Dice, x: NodeId) {
        let ty = self.builder.ty(x).clone();
        let number = *dice.pick(&[0.0, -0.0, 1.0]);
        let splat = |growing: &mut Self, ty: &TensorType| {
            growing.push(Constant { value: Literal::splat(ty.clone(), number) }, &[])
        };
        let kind = *dice.pick(BinaryKind::ALL);
        let _ = match dice.below(7) {
            6 => self.selections(dice, x),
            0 => self.push(Binary { kind }, &[x, x]),
            1 | 2 => splat(self, &ty).and_then(|c| self.push(Binary { kind }, &[x, c])),
            3 => splat(self, &ty).and_then(|c| self.push(Binary { kind }, &[c, x])),
            4 => {
                let negate = UnaryKind::Negate;
                let negated = self.push(Unary { kind: negate }, &[x]);
                let kind = *dice.pick(&[BinaryKind::Add, BinaryKind::Subtract]);
                negated.and_then(|y| match dice.chance(50) {
                    true => self.push(Binary { kind }, &[x, y]),
                    false => self.push(Unary { kind: negate }, &[y]),
                })
            }
            _ => splat(self, &ty.with_element(ElementType::I1)).and_then(|c| {
                let other = self.operation(dice, "unary", Some(x));
                let other = other.filter(|&y| *self.builder.ty(y) == ty);
                self.push(Select {}, &[c, x, other.unwrap_or(x)])
            }),
        };
    }

    fn selections(&mut self, dice: &mut Dice, x: NodeId) -> Option<NodeId> {
        let ty = self.builder.ty(x).clone();
        let predicate = ty.with_element(ElementType::I1);
        let (c, d) = (self.leaf(dice, &predicate, false)?, self.leaf(dice, &predicate, false)?);
        let (y, z) = (self.leaf(dice, &ty, false)?, self.leaf(dice, &ty, false)?);
        match dice.chance(50) {
            true => {
                let inner = self.push(Select {}, &[d, x, y])?;
                self.push(Select {}, &[c, x, inner])
            }
            false => {
                let inner = self.push(Select {}, &[c, x, y])?;
                self.push(Select {}, &[c, inner, z])
            }
        }
    }

    /// Layers of one input, each with its own weight.
    fn projections(&mut self, dice: &mut Dice, x: NodeId) {
        let x = self.builder.ty(x).clone().element.is_float().then_some(x);
        let Some(first) = self.operation(dice, "linear", x) else { return };
        let x = self.builder.function.operands(first)[0];
        let ty = self.builder.ty(x).clone();
        let biased = self.builder.function.operands(first).len() == 3;
        let Some(&inputs) = ty.shape.last() else { return };
        for _ in 0..1 + dice.below(3) {
            let outputs = extent(dice);
            let weight = self.leaf(dice, &TensorType::new(ty.element, [outputs, inputs]), true);
            let bias = match biased {
                true => self.leaf(dice, &TensorType::new(ty.element, [outputs]), true).map(Some),
                false => Some(None),
            };
            let (Some(weight), Some(bias)) = (weight, bias) else { return };
            let operands: Vec<NodeId> = [x, weight].into_iter().chain(bias).collect();
            self.push(Linear {}, &operands);
        }
    }
}

/// Whether two values are the same bit for bit, where any NaN equals any NaN.
pub fn same(a: &Value, b: &Value) -> bool {
    let bits =
        |value: &Value| -> Vec<u32> { value.data.iter().map(|&x| value.ty.element.encode(x)).collect() };
    a.ty == b.ty && bits(a) == bits(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_made_with_and_without_a_given_operand() {
        for name in &names() {
            let mut dice = Dice::new(7);
            let free = (0..2000).filter(|_| operation(&mut dice, name, None).is_some()).count();
            assert!(free > 500, "`{name}` {free} times");
            let given = (0..2000).filter(|_| {
                let element = element(&mut dice);
                let ty = ty(&mut dice, element, 0);
                operation(&mut dice, name, Some(&ty)).is_some_and(|(_, types)| types.contains(&ty))
            });
            let given = given.count();
            // The first two have no operand, and the third needs five axes.
            let is_free = matches!(*name, "constant" | "iota" | "linear_attention");
            assert!(given > 200 || is_free, "`{name}` {given} times");
        }
    }

    #[test]
    fn a_graph_is_sound_and_the_same_for_the_same_seed() {
        for seed in 0..200 {
            let trace = graph(&mut Dice::new(seed), 25);
            trace.verify().unwrap_or_else(|error| panic!("{seed}: {error}"));
            assert_eq!(trace, graph(&mut Dice::new(seed), 25));
        }
    }
}
