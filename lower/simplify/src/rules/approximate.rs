//! Equations that are exact except for rounding errors.

use ops::ops::{Binary, BinaryKind, BroadcastInDim, Constant, Linear, RmsNorm, WeightStyle};
use ops::{ElementType, Literal, Op};

use super::{Rule, Site, Tree, attribute};

pub(super) const RULES: &[Rule] = &[
    attribute("divide constant", "x / c = x · (1 / c)", "binary", divide_constant),
    attribute("multiply constants", "(x · c) · d = x · (c · d)", "binary", multiply_constants),
    attribute(
        "norm scale",
        "linear(rms_norm(x, w), W) = linear(rms_norm(x, 1), W · w)",
        "linear",
        norm_scale,
    ),
];

fn binary(op: &Op, kind: BinaryKind) -> bool {
    matches!(op, Op::Binary(binary) if binary.kind == kind)
}

fn splat(site: &Site<'_>, like: egg::Id, value: f64) -> Tree {
    Tree::op(Constant { value: Literal::splat(site.ty(like).clone(), value) }, [])
}

/// Whether a number is neither infinite nor subnormal after it is rounded to a given element type.
fn holds(element: ElementType, value: f64) -> bool {
    let rounded = element.round(value);
    rounded.is_finite() && element.ulp(rounded) > element.ulp(0.0)
}

fn divide_constant(site: &Site<'_>) -> Vec<Tree> {
    let (x, c) = match site.operands {
        [x, c] if binary(site.op, BinaryKind::Divide) => (*x, *c),
        _ => return vec![],
    };
    match site.facts(c).splat() {
        Some(value) if site.result().element.is_float() && holds(site.result().element, 1.0 / value) => {
            let product = Binary { kind: BinaryKind::Multiply };
            vec![Tree::op(product, [x.into(), splat(site, c, 1.0 / value)])]
        }
        _ => vec![],
    }
}

fn multiply_constants(site: &Site<'_>) -> Vec<Tree> {
    let (y, d) = match site.operands {
        [y, d] if binary(site.op, BinaryKind::Multiply) => (*y, *d),
        _ => return vec![],
    };
    let Some(outer) = site.facts(d).splat().filter(|_| site.result().element.is_float()) else {
        return vec![];
    };
    let inner = site.ops(y).filter(|(op, _)| binary(op, BinaryKind::Multiply));
    let composed = inner.filter_map(|(op, operands)| {
        // The rule would apply to 0 · c = 0 again and again.
        if operands[0] == y || operands[0] == site.class || site.class == y {
            return None;
        }
        let product = site.facts(operands[1]).splat()? * outer;
        let sound = holds(site.result().element, product);
        sound.then(|| Tree::op(op.clone(), [operands[0].into(), splat(site, d, product)]))
    });
    composed.collect()
}

/// Moves the multiplication by the norm's weight into the weight of the linear layer that follows the norm.
fn norm_scale(site: &Site<'_>) -> Vec<Tree> {
    let (x, weight) = (site.operands[0], site.operands[1]);
    let joined = site.ops(weight).any(|(op, _)| matches!(op, Op::Concatenate(_)));
    if site.parameter(weight).is_none() && !joined {
        return vec![];
    }
    let norms = site.ops(x).filter_map(|(op, operands)| match op {
        Op::RmsNorm(norm) if norm.style == WeightStyle::Scale => Some((norm, operands)),
        _ => None,
    });
    let mut found = Vec::new();
    for (norm, operands) in norms {
        let (input, scale) = (operands[0], operands[1]);
        let fits = site.parameter(scale).is_some()
            && site.ty(scale).rank() == 1
            && site.ty(scale).element == site.ty(weight).element;
        if !fits {
            continue;
        }
        let repeated = BroadcastInDim { shape: site.ty(weight).shape.clone(), axes: vec![1] };
        let product = Binary { kind: BinaryKind::Multiply };
        let scaled = Tree::op(product, [weight.into(), Tree::op(repeated, [scale.into()])]);
        let plain = RmsNorm { epsilon: norm.epsilon, style: norm.style };
        let normalised = Tree::op(plain, [input.into(), splat(site, scale, 1.0)]);
        let mut linear = vec![normalised, scaled];
        linear.extend(site.operands[2..].iter().copied().map(Tree::from));
        found.push(Tree::op(Linear {}, linear));
    }
    found
}
