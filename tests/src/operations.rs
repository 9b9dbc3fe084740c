//! Random valid operations over the whole list of operations.

use tracewright::ops::ops::*;
use tracewright::ops::{ElementType, Literal, Op, Real, RopePart, RopeTable, TensorType};

use crate::dice::{Dice, ELEMENTS, element, extent, float, literal, order, refactored, shape, ty};

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

/// A tensor of numbers for positions, counts and indices.
fn i32(shape: Vec<usize>) -> TensorType {
    TensorType::new(ElementType::I32, shape)
}

type Given<'a> = Option<&'a TensorType>;

/// The given type, or one of at least so many axes.
fn operand(dice: &mut Dice, given: Given<'_>, least: usize, any: fn(&mut Dice) -> ElementType) -> TensorType {
    match given {
        Some(given) => given.clone(),
        None => {
            let element = any(dice);
            ty(dice, element, least)
        }
    }
}

fn not_i1(dice: &mut Dice, given: Given<'_>, least: usize) -> TensorType {
    operand(dice, given, least, |dice| *dice.pick(&ElementType::ALL[..ElementType::ALL.len() - 1]))
}

/// Draws an operation of a kind by its name, with the types of its operands.
type Kind = fn(&mut Dice, &str, Given<'_>) -> Option<(Op, Vec<TensorType>)>;

fn candidate(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    let kind: Kind = match name {
        "constant" | "iota" => source,
        "unary"
        | "binary"
        | "compare"
        | "select"
        | "convert"
        | "optimization_barrier"
        | "reduce_precision"
        | "erf"
        | "softplus" => elementwise,
        "reshape" | "permute" | "narrow" | "broadcast_in_dim" | "concatenate" => move_of,
        "gather" | "dynamic_slice" | "dynamic_update_slice" => lookup,
        "dot_general" | "reduce" | "linear" => sum,
        "rms_norm" | "rope" | "sdpa" => layer,
        "linear_attention" | "append" | "dequantize" => stateful,
        _ => return None,
    };
    kind(dice, name, given)
}

/// Operations without operands.
fn source(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    if given.is_some() {
        return None;
    }
    Some(match name {
        "constant" => {
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
            let ty = not_i1(dice, given, 1);
            let axis = dice.below(ty.rank());
            (Iota { ty, axis }.into(), vec![])
        }
        _ => return None,
    })
}

/// Operations on elements with the same index.
fn elementwise(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    Some(match name {
        "unary" => {
            let x = operand(dice, given, 0, element);
            let kind = match x.element {
                ElementType::I1 => UnaryKind::Not,
                e if e.is_float() => *dice.pick(UnaryKind::ALL),
                _ => *dice.pick(&[UnaryKind::Negate, UnaryKind::Abs]),
            };
            (Unary { kind }.into(), vec![x])
        }
        "binary" => {
            let x = operand(dice, given, 0, element);
            let kind = match x.element {
                ElementType::I1 => *dice.pick(&[BinaryKind::And, BinaryKind::Or]),
                _ => *dice.pick(BinaryKind::ALL),
            };
            (Binary { kind }.into(), vec![x.clone(), x])
        }
        "compare" => {
            let x = not_i1(dice, given, 0);
            (Compare { direction: *dice.pick(Direction::ALL) }.into(), vec![x.clone(), x])
        }
        "select" => {
            let x = operand(dice, given, 0, element);
            let x = if dice.chance(30) && x.element == ElementType::I1 {
                x.with_element(element(dice))
            } else {
                x
            };
            (Select {}.into(), vec![x.with_element(ElementType::I1), x.clone(), x])
        }
        "convert" => {
            let x = operand(dice, given, 0, element);
            (Convert { to: element(dice) }.into(), vec![x])
        }
        "optimization_barrier" => (OptimizationBarrier {}.into(), vec![operand(dice, given, 0, element)]),
        "reduce_precision" => {
            let x = operand(dice, given, 0, |_| ElementType::F32);
            let to = *dice.pick(&[ElementType::F16, ElementType::Bf16]);
            (ReducePrecision { to }.into(), vec![x])
        }
        "erf" => (Erf {}.into(), vec![operand(dice, given, 0, float)]),
        "softplus" => (Softplus {}.into(), vec![operand(dice, given, 0, float)]),
        _ => return None,
    })
}

/// Operations that move elements.
fn move_of(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    Some(match name {
        "reshape" => {
            let x = operand(dice, given, 0, element);
            (Reshape { shape: refactored(dice, &x.shape) }.into(), vec![x])
        }
        "permute" => {
            let x = operand(dice, given, 0, element);
            (Permute { order: order(dice, x.rank()) }.into(), vec![x])
        }
        "narrow" => {
            let x = operand(dice, given, 1, element);
            let axis = dice.below(x.rank());
            let (start, length) = range(dice, *x.shape.get(axis)?);
            (Narrow { axis, start, length }.into(), vec![x])
        }
        "broadcast_in_dim" => {
            let x = operand(dice, given, 0, element);
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
            let x = operand(dice, given, 1, element);
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
        _ => return None,
    })
}

/// Operations with indices as operands.
fn lookup(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    Some(match name {
        "gather" => {
            let rank = dice.below(3);
            match given {
                Some(indices) if indices.element == ElementType::I32 && dice.chance(50) => {
                    let table = element(dice);
                    (Gather {}.into(), vec![ty(dice, table, 1), indices.clone()])
                }
                _ => {
                    let table = operand(dice, given, 1, element);
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
                _ => operand(dice, given, 1, element),
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
        _ => return None,
    })
}

/// Operations that add or compare elements.
fn sum(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    Some(match name {
        "dot_general" => {
            let a = not_i1(dice, given, 0);
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
            if dice.chance(50) {
                let dot = DotGeneral { left_batch, right_batch, left_contract, right_contract, element };
                (dot.into(), vec![a, b])
            } else {
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
        "reduce" => {
            let x = not_i1(dice, given, 0);
            let axes = (0..x.rank()).filter(|_| dice.chance(45)).collect();
            (Reduce { kind: *dice.pick(ReduceKind::ALL), axes }.into(), vec![x])
        }
        "linear" => {
            let outputs = extent(dice);
            let (x, w) = match given {
                Some(w) if w.rank() == 2 && dice.chance(30) => {
                    let mut x = ty(dice, w.element, 1);
                    *x.shape.last_mut()? = w.shape[1];
                    (x, w.clone())
                }
                _ => {
                    let x = operand(dice, given, 1, float);
                    let w = TensorType::new(x.element, [outputs, *x.shape.last()?]);
                    (x, w)
                }
            };
            let bias = TensorType::new(x.element, [w.shape[0]]);
            let types = if dice.chance(40) { vec![x, w, bias] } else { vec![x, w] };
            (Linear {}.into(), types)
        }
        _ => return None,
    })
}

/// Operations of layers.
fn layer(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    Some(match name {
        "rms_norm" => {
            let x = operand(dice, given, 1, float);
            let w = TensorType::new(x.element, [*x.shape.last()?]);
            let epsilon = Real(*dice.pick(&[0.0, 1e-5, 1e-6]));
            (RmsNorm { epsilon, style: *dice.pick(WeightStyle::ALL) }.into(), vec![x, w])
        }
        "rope" => {
            let x = operand(dice, given, 2, float);
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
            let q = operand(dice, given, 2, float);
            sdpa(dice, q)?
        }
        _ => return None,
    })
}

/// Operations on state, and on what it is stored as.
fn stateful(dice: &mut Dice, name: &str, given: Given<'_>) -> Option<(Op, Vec<TensorType>)> {
    Some(match name {
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
            let cache = operand(dice, given, 1, element);
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
                _ => operand(dice, given, 1, |_| ElementType::I8),
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
