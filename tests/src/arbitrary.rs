//! Random valid operations, values and graphs over the whole list of operations. The same seed gives the same.

use tracewright::ops::ops::*;
use tracewright::ops::{ElementType, InferError, Literal, Op, TensorType};
use tracewright::trace::{
    Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Trace,
};

pub use crate::dice::{Dice, element, extent, float, literal, same, shape, tame_value, ty, value};
pub use crate::operations::{names, operation};

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
        let near = |dice: &mut Dice, count: usize| {
            if dice.chance(50) { count - 1 - dice.below(count.min(4)) } else { dice.below(count) }
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
            operands.push(if !same.is_empty() && dice.chance(if weight { 15 } else { 75 }) {
                *dice.pick(&same)
            } else {
                self.leaf(dice, ty, weight)?
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
                negated.and_then(|y| {
                    if dice.chance(50) {
                        self.push(Binary { kind }, &[x, y])
                    } else {
                        self.push(Unary { kind: negate }, &[y])
                    }
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
        if dice.chance(50) {
            let inner = self.push(Select {}, &[d, x, y])?;
            self.push(Select {}, &[c, x, inner])
        } else {
            let inner = self.push(Select {}, &[c, x, y])?;
            self.push(Select {}, &[c, inner, z])
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
            let bias = if biased {
                self.leaf(dice, &TensorType::new(ty.element, [outputs]), true).map(Some)
            } else {
                Some(None)
            };
            let (Some(weight), Some(bias)) = (weight, bias) else { return };
            let operands: Vec<NodeId> = [x, weight].into_iter().chain(bias).collect();
            self.push(Linear {}, &operands);
        }
    }
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
