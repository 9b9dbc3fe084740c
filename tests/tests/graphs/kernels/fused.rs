//! Norms before matmuls, and elementwise operations after matmuls and lookups, which are computed by the same kernel.

use ops::format::ActivationBits;
use ops::ops::{BinaryKind, BroadcastInDim, PackedLinear, PackedRows, RmsNorm, UnaryKind, WeightStyle};
use ops::{Bound, ElementType, InferError, Real, TensorType, WeightFormat};
use trace::{Builder, NodeId, functions};
use tracewright_tests::calls::{Calls, random};
use tracewright_tests::long;

use super::{activations, as_it_is, built, formats_around, packed, widths};

pub const STYLES: [WeightStyle; 3] = [WeightStyle::Scale, WeightStyle::Wide, WeightStyle::OnePlus];

pub fn norm(style: WeightStyle) -> RmsNorm {
    RmsNorm { epsilon: Real(1e-5), style }
}

/// The operations after a matmul, given x, the weight, and further operands.
type Ending = fn(&mut Builder<'_>, NodeId, &[NodeId]) -> Result<NodeId, InferError>;

/// The types of an ending's operands, for products `[rows, outputs]` in an element type.
type Operands = fn(ElementType, usize, usize) -> Vec<TensorType>;

/// The epilogues of matmuls that networks use.
fn endings() -> Vec<(&'static str, Ending, Operands)> {
    let none = |_, _, _| vec![];
    vec![
        ("nothing", |_, product, _| Ok(product), none),
        (
            "a residual",
            |b, product, ids| b.binary(BinaryKind::Add, ids[0], product),
            |element, rows, outputs| vec![TensorType::new(element, [rows, outputs])],
        ),
        (
            "a bias, a residual and another element type",
            |b, product, ids| {
                let (shape, element) = (b.ty(product).shape.clone(), b.ty(product).element);
                let wide = b.convert(product, ElementType::F32)?;
                let bias = b.convert(ids[0], ElementType::F32)?;
                let axes = vec![shape.len() - 1];
                let bias = b.op(BroadcastInDim { shape, axes }, &[bias])?;
                let sum = b.binary(BinaryKind::Add, wide, bias)?;
                let sum = b.convert(sum, element)?;
                let sum = b.binary(BinaryKind::Subtract, sum, ids[1])?;
                b.convert(sum, ElementType::F32)
            },
            |element, rows, outputs| {
                vec![TensorType::new(element, [outputs]), TensorType::new(element, [rows, outputs])]
            },
        ),
        (
            "silu of the first half times the second",
            |b, product, _| functions::gated(b, product, functions::silu),
            none,
        ),
        (
            "gelu of the first half times the second",
            |b, product, _| functions::gated(b, product, functions::gelu_tanh),
            none,
        ),
        (
            "functions",
            |b, product, _| {
                let a = b.unary(UnaryKind::Abs, product)?;
                let more = b.with_scalar(BinaryKind::Add, a, 1.5)?;
                let root = b.unary(UnaryKind::Sqrt, more)?;
                let inverse = b.unary(UnaryKind::Rsqrt, more)?;
                let least = b.with_scalar(BinaryKind::Minimum, product, 3.0)?;
                let power = b.unary(UnaryKind::Exponential, least)?;
                let power = b.unary(UnaryKind::Negate, power)?;
                let ratio = b.binary(BinaryKind::Divide, power, more)?;
                let most = b.binary(BinaryKind::Maximum, ratio, root)?;
                b.binary(BinaryKind::Multiply, most, inverse)
            },
            none,
        ),
    ]
}

/// Products with a norm before and an ending, in a format: of each of these extents all endings, or some.
pub fn products_with_surroundings(cases: &[([usize; 3], &[usize])], format: WeightFormat) -> Calls {
    let mut all = Calls::default();
    for (case, &([rows, inputs, outputs], wanted)) in cases.iter().enumerate() {
        for (i, (what, ending, operands)) in endings().into_iter().enumerate() {
            let seed = 1000 * case as u64 + 10 * i as u64;
            let elements = activations(format);
            let element = elements[(case + i) % elements.len()];
            // A weight that is half a row is no half of whole panels.
            if outputs % 2 == 1 && what.contains("half") || !wanted.contains(&i) {
                continue;
            }
            let style = [None, Some(STYLES[(case + i) % 3])][(case + i) % 2];
            let tensor = |shape: &[usize], seed| random(TensorType::new(element, shape), seed);
            let ty = TensorType::new(element, [rows, inputs]);
            let x = random(ty, seed);
            let mut arguments =
                vec![x, packed(format, outputs, inputs, seed + 1), tensor(&[inputs], seed + 2)];
            let types = operands(element, rows, outputs);
            arguments.extend(types.into_iter().zip(3..).map(|(ty, j)| random(ty, seed + j)));
            // Units of the activations' type, whatever the result's is; of bytes, if x is no grid of theirs.
            let units =
                if format.element().is_none() && style.is_some() { 0.06 / element.ulp(1.0) } else { 16.0 };
            let wide = if what.contains("another") { ElementType::F32 } else { element };
            let bound = Bound::UlpsOfLargest(units * element.ulp(1.0) / wide.ulp(1.0));
            let op = PackedLinear { format, outputs, element, activations: ActivationBits::Eight };
            let text = format!("{style:?}, {op:?} of {}, {what}", arguments[0].ty);
            all.graph(text, arguments, bound, |b, ids| {
                let x = match style {
                    Some(style) => b.op(norm(style), &[ids[0], ids[2]])?,
                    None => ids[0],
                };
                let product = b.op(op.clone(), &[x, ids[1]])?;
                ending(b, product, &ids[3..])
            });
        }
    }
    all
}

#[test]
fn products_swallow_what_is_around_them() {
    for target in widths() {
        for format in formats_around() {
            // What stands around a product is the same code in every format: all of it around those of one that is computed
            // as it is and of one that is not.
            let every = &[0, 1, 2, 3, 4, 5][..];
            let all = [
                ([1, 64, 64], every),
                ([9, 96, 96], every),
                ([1, 67, 37], &[1, 2]),
                ([2, 33, 64], &[0, 3]),
                ([15, 132, 64], &[4, 5]),
            ];
            let some = [([1, 64, 64], &[3][..]), ([9, 96, 96], &[1])];
            let cases = match format {
                _ if long::is_wanted() => &all[..],
                WeightFormat::Q8 => &all,
                WeightFormat::F32 => &all[..2],
                _ => &some,
            };
            let calls = products_with_surroundings(cases, format);
            let built = built(&calls, &target, &as_it_is);
            // Nothing is left but norms of several rows, and what quantizes those.
            let elementwise = built.module.text_without_locs.lines().filter(|line| {
                [
                    "stablehlo.add",
                    "stablehlo.multiply",
                    "stablehlo.logistic",
                    "stablehlo.tanh",
                    "stablehlo.slice",
                ]
                .iter()
                .any(|op| line.contains(op))
            });
            assert_eq!(elementwise.collect::<Vec<_>>(), Vec::<&str>::new());
            let found = built.load(&calls.weights).violations(&calls);
            assert!(found.is_empty(), "{target}: {}", found.join("\n"));
        }
    }
}

/// The kernel of a lookup also computes what follows: a scale, as of Gemma's embeddings, and the endings of products.
#[test]
fn lookups_swallow_what_follows() {
    let scale: Ending = |b, rows, _| b.with_scalar(BinaryKind::Multiply, rows, 33.75);
    let scaled: (_, _, Operands) = ("a scale", scale, |_, _, _| vec![]);
    for target in widths() {
        let mut calls = Calls::default();
        for (place, format) in formats_around().enumerate() {
            let endings = endings().into_iter().filter(|(what, ..)| !what.contains("half")).skip(1);
            for (case, (what, ending, operands)) in [scaled].into_iter().chain(endings).enumerate() {
                let (count, outputs, inputs) = [(1, 37, 64), (3, 20, 67)][(place + case) % 2];
                let elements = activations(format);
                let element = elements[case % elements.len()];
                let seed = 10 * (place * 8 + case) as u64;
                let indices = random(TensorType::new(ElementType::I32, [count]), seed);
                let types = operands(element, count, inputs).into_iter().zip(seed + 2..);
                let mut arguments = vec![packed(format, outputs, inputs, seed + 1), indices];
                arguments.extend(types.map(|(ty, seed)| random(ty, seed)));
                let op = PackedRows { format, outputs, inputs, element };
                // Units of the rows' type, whatever the result's is.
                let wide = if what.contains("another") { ElementType::F32 } else { element };
                let bound = Bound::UlpsOfLargest(4.0 * element.ulp(1.0) / wide.ulp(1.0));
                calls.graph(format!("{op:?}, {what}"), arguments, bound, |b, ids| {
                    let rows = b.op(op.clone(), &ids[..2])?;
                    ending(b, rows, &ids[2..])
                });
            }
        }
        let built = built(&calls, &target, &as_it_is);
        let left = ["stablehlo.add", "stablehlo.multiply", "stablehlo.subtract", "stablehlo.divide"];
        let lines = built.module.text_without_locs.lines();
        let elementwise = lines.filter(|line| left.iter().any(|op| line.contains(op)));
        assert_eq!(elementwise.collect::<Vec<_>>(), Vec::<&str>::new());
        let found = built.load(&calls.weights).violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}
