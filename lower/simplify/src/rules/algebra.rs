//! Equations of arithmetic operations that are exact for every bit: The equations keep NaN as NaN,
//! and distinguish −0 from 0.

use ops::Op;
use ops::ops::{Binary, BinaryKind, BroadcastInDim, Reduce, ReduceKind, Reshape, Select};

use super::{Rule, Site, Tree, attribute, text};

pub(super) const RULES: &[Rule] = &[
    // The equation x + 0 = x is not in the table, because −0 + 0 is 0.
    text("add −0", "(add ?x ?c)", "?x", &[("?c", -0.0)]),
    text("−0 add", "(add ?c ?x)", "?x", &[("?c", -0.0)]),
    text("subtract 0", "(subtract ?x ?c)", "?x", &[("?c", 0.0)]),
    text("multiply 1", "(multiply ?x ?c)", "?x", &[("?c", 1.0)]),
    text("1 multiply", "(multiply ?c ?x)", "?x", &[("?c", 1.0)]),
    text("divide 1", "(divide ?x ?c)", "?x", &[("?c", 1.0)]),
    text("negate negate", "(negate (negate ?x))", "?x", &[]),
    text("add negate", "(add ?x (negate ?y))", "(subtract ?x ?y)", &[]),
    text("subtract negate", "(subtract ?x (negate ?y))", "(add ?x ?y)", &[]),
    text("maximum same", "(maximum ?x ?x)", "?x", &[]),
    text("minimum same", "(minimum ?x ?x)", "?x", &[]),
    text("and same", "(and ?x ?x)", "?x", &[]),
    text("or same", "(or ?x ?x)", "?x", &[]),
    text("and true", "(and ?x ?c)", "?x", &[("?c", 1.0)]),
    text("true and", "(and ?c ?x)", "?x", &[("?c", 1.0)]),
    text("and false", "(and ?x ?c)", "?c", &[("?c", 0.0)]),
    text("false and", "(and ?c ?x)", "?c", &[("?c", 0.0)]),
    text("or false", "(or ?x ?c)", "?x", &[("?c", 0.0)]),
    text("false or", "(or ?c ?x)", "?x", &[("?c", 0.0)]),
    text("or true", "(or ?x ?c)", "?c", &[("?c", 1.0)]),
    text("true or", "(or ?c ?x)", "?c", &[("?c", 1.0)]),
    text("select same", "(select ?c ?x ?x)", "?x", &[]),
    text("select true", "(select ?c ?x ?y)", "?x", &[("?c", 1.0)]),
    text("select false", "(select ?c ?x ?y)", "?y", &[("?c", 0.0)]),
    text("select select", "(select ?c (select ?c ?x ?y) ?z)", "(select ?c ?x ?z)", &[]),
    attribute("select or", "select(c, x, select(d, x, y)) = select(c or d, x, y)", "select", select_or),
    attribute("convert same", "convert(x: T, T) = x", "convert", convert_same),
    attribute("convert convert", "convert(convert(x, wider), T) = convert(x, T)", "convert", convert_convert),
    attribute(
        "reduce_precision convert",
        "reduce_precision(convert(x: T, wider), T) = convert(x, wider)",
        "reduce_precision",
        reduce_precision_convert,
    ),
    attribute("unary broadcast", "f(broadcast(x)) = broadcast(f(x))", "unary", lift_broadcast),
    attribute(
        "convert broadcast",
        "convert(broadcast(x)) = broadcast(convert(x))",
        "convert",
        lift_broadcast,
    ),
    attribute(
        "binary broadcast",
        "f(broadcast(x), broadcast(y)) = broadcast(f(x, y))",
        "binary",
        lift_broadcast,
    ),
    attribute(
        "compare broadcast",
        "c(broadcast(x), broadcast(y)) = broadcast(c(x, y))",
        "compare",
        lift_broadcast,
    ),
    attribute("reduce unit axes", "max(x, axes of extent 1) = reshape(x)", "reduce", reduce_units),
];

/// Applies the rule only if four values are different: the two alternatives and the results of the two
/// selections. If a selection were one of its own alternatives, the rule would match again and again.
fn select_or(site: &Site<'_>) -> Vec<Tree> {
    let (c, x, z) = (site.operands[0], site.operands[1], site.operands[2]);
    if x == z || site.class == z || site.class == x {
        return vec![];
    }
    let inner = site.ops(z).filter_map(|(op, operands)| match (op, operands) {
        (Op::Select(_), &[d, same, y]) if same == x && ![x, z, site.class].contains(&y) => {
            let either = Tree::op(Binary { kind: BinaryKind::Or }, [c.into(), d.into()]);
            Some(Tree::op(Select {}, [either, x.into(), y.into()]))
        }
        _ => None,
    });
    inner.collect()
}

fn convert_same(site: &Site<'_>) -> Vec<Tree> {
    let x = site.operands[0];
    if site.ty(x) == site.result() { vec![x.into()] } else { vec![] }
}

/// Whether the element type `wide` can represent every value of the element type `narrow`.
fn holds(wide: ops::ElementType, narrow: ops::ElementType) -> bool {
    use ops::ElementType::{Bf16, F16, F32, I1, I4, I8, I32};
    match (narrow, wide) {
        _ if narrow == wide => true,
        (F16 | Bf16, F32) => true,
        (I1 | I4, I8 | I32 | F16 | Bf16 | F32) | (I8, I32 | F16 | Bf16 | F32) => true,
        _ => false,
    }
}

fn convert_convert(site: &Site<'_>) -> Vec<Tree> {
    let inner = site.ops(site.operands[0]).filter_map(|(op, operands)| match op {
        Op::Convert(inner) => {
            let (from, to) = (site.ty(operands[0]).element, site.result().element);
            // A float outside the range of an integer type is converted differently from an integer
            // outside the range.
            let alike = inner.to.is_float() == from.is_float() || to.is_float() || holds(to, from);
            (alike && holds(inner.to, from)).then_some(operands[0])
        }
        _ => None,
    });
    inner.map(|x| Tree::op(site.op.clone(), [x.into()])).collect()
}

fn reduce_precision_convert(site: &Site<'_>) -> Vec<Tree> {
    let Op::ReducePrecision(round) = site.op else { return vec![] };
    let wide = site.operands[0];
    let holds = site.ops(wide).any(|(op, operands)| {
        let from = site.ty(operands.first().copied().unwrap_or(wide)).element;
        matches!(op, Op::Convert(_)) && from.is_float() && holds(round.to, from)
    });
    if holds { vec![wide.into()] } else { vec![] }
}

/// Moves an elementwise operation before the broadcasts of the operation's operands. The rule
/// broadcasts a scalar constant along every axis.
fn lift_broadcast(site: &Site<'_>) -> Vec<Tree> {
    let broadcasts = site.operands.iter().flat_map(|&operand| site.ops(operand));
    let broadcasts = broadcasts.filter_map(|(op, operands)| match op {
        Op::BroadcastInDim(broadcast) => Some((broadcast, operands[0])),
        _ => None,
    });
    let mut found = Vec::new();
    for (broadcast, source) in broadcasts {
        let small = &site.ty(source).shape;
        if site.ty(source).count() >= site.result().count() {
            continue;
        }
        let inner = |operand: &egg::Id| -> Option<Tree> {
            let same = site.ops(*operand).find_map(|(op, operands)| match op {
                Op::BroadcastInDim(other) if other == broadcast && site.ty(operands[0]).shape == *small => {
                    Some(operands[0].into())
                }
                _ => None,
            });
            same.or_else(|| {
                let bits = site.facts(*operand).constant.as_ref()?.as_splat()?;
                let ty = ops::TensorType::new(site.ty(*operand).element, small.clone());
                let value = ops::Literal::splat_bits(ty, bits);
                Some(Tree::op(ops::ops::Constant { value }, []))
            })
        };
        if let Some(operands) = site.operands.iter().map(inner).collect::<Option<Vec<_>>>() {
            let BroadcastInDim { shape, axes } = broadcast.clone();
            let once = Tree::Op(site.op.clone(), operands);
            found.push(Tree::op(BroadcastInDim { shape, axes }, [once]));
        }
    }
    found
}

fn reduce_units(site: &Site<'_>) -> Vec<Tree> {
    let Op::Reduce(Reduce { kind: ReduceKind::Maximum | ReduceKind::Minimum, axes }) = site.op else {
        return vec![];
    };
    let x = site.operands[0];
    if axes.iter().all(|&axis| site.ty(x).shape[axis] == 1) {
        vec![Tree::op(Reshape { shape: site.result().shape.clone() }, [x.into()])]
    } else {
        vec![]
    }
}
