//! Tests of recordings without `model!`. The tests cover alignment by name, the place of the first
//! error, handles outside of their trace, and block arrays.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "tensor/blocks.rs"]
mod blocks;

use std::any::TypeId;
use std::cell::Cell;
use std::rc::Rc;

use ops::{TensorType, Value};
use trace::{Evaluation, NodeKind, Trace};
use tracewright_dsl::__private::{CheckedExtents, DeclaredAxes, Dims, SignatureCheck, block};
use tracewright_dsl::*;

const B: Axis = Axis("B");
const S: Axis = Axis("S");
const E: Axis = Axis("E");
const K: Axis = Axis("K");
const N: Axis = Axis("N");

const fn dim(axis: Axis, extent: usize) -> Dim {
    Dim { axis, extent }
}

const fn declared(axes: &[Axis]) -> DeclaredAxes<'_> {
    DeclaredAxes { rest: false, axes }
}

type Body = Rc<dyn Fn(Tensor<F32>) -> Tensor<F32>>;

/// A network whose only function is a closure with an argument x of type f32[B=2, S=3].
struct Toy(Body);

impl CausalLm for Toy {
    type Element = F32;
    type Config = Result<Body, BuildError>;

    fn new(config: &Self::Config) -> Result<Self, BuildError> {
        config.clone().map(Self)
    }
    fn state(&self) -> Vec<(usize, LayerState)> {
        vec![]
    }
    fn forward(&self, tokens: Tensor<I32>, _: Position, _: &mut Cache<F32>) -> Tensor<F32> {
        (self.0)(tokens.to())
    }
    fn logits(&self, features: Tensor<F32>) -> Tensor<F32> {
        features
    }
}

fn entries(names: &[&str]) -> Vec<EntryPoint> {
    let entry = |name: &&str| EntryPoint {
        name: name.to_string(),
        batch: 2,
        chunk: 3,
        context: 8,
        input: EntryInput::Tokens,
        logits: LogitsMode::All,
        hidden: false,
        kv: trace::KvFormat::Computed,
        experts: ExpertsMode::Auto,
    };
    names.iter().map(entry).collect()
}

fn traced(body: impl Fn(Tensor<F32>) -> Tensor<F32> + 'static) -> Result<Traced, TraceError> {
    Toy::trace(&Ok(Rc::new(body)), &entries(&["main"]))
}

fn recorded(body: impl Fn(Tensor<F32>) -> Tensor<F32> + 'static) -> Trace {
    let trace = traced(body).unwrap_or_else(|error| panic!("{error}")).trace;
    trace.verify().unwrap();
    trace
}

/// The text of the error without the place.
fn refused(body: impl Fn(Tensor<F32>) -> Tensor<F32> + 'static) -> String {
    traced(body).unwrap_err().kind.to_string()
}

/// A weight with the checkpoint key `key`.
fn weight(key: &str, dims: &[Dim]) -> Tensor<F32> {
    Weight::build(Scope::root("").child(key), dims).call(())
}

/// The names of the axes of the result.
fn axes(trace: &Trace) -> Vec<String> {
    let main = trace.entry("main").unwrap();
    main.node(main.outputs[0].node).axes.iter().map(ToString::to_string).collect()
}

/// The result for tokens 0, 1, 2, … and weights 1, 2, 3, …
fn result(trace: &Trace) -> Vec<f64> {
    let counted =
        |ty: &TensorType, from: usize| Value::new(ty.clone(), (from..from + ty.count()).map(|i| i as f64));
    let types: Vec<TensorType> =
        trace.entry("main").unwrap().inputs().iter().map(|(_, ty)| (*ty).clone()).collect();
    let parameters = trace.parameters().unwrap();
    let weights = |key: &str| parameters.iter().find(|p| p.key == key).map(|p| counted(&p.ty, 1));
    let arguments = types.iter().map(|ty| counted(ty, 0)).collect();
    trace::evaluate(trace, "main", arguments, Evaluation { parameters: &weights, watch: None })
        .unwrap()
        .remove(0)
        .data
}

#[test]
fn operators_align_by_name() {
    let trace = recorded(|x| x + weight("w", &[dim(S, 3)]));
    assert_eq!((axes(&trace), result(&trace)), (vec!["B".into(), "S".into()], vec![1., 3., 5., 4., 6., 8.]));
    let trace = recorded(|x| weight("w", &[dim(B, 2)]) - x);
    assert_eq!(
        (axes(&trace), result(&trace)),
        (vec!["B".into(), "S".into()], vec![1., 0., -1., -1., -2., -3.])
    );
    // The two operands have the same axes in another order. The result has the order of the left
    // operand.
    let trace = recorded(|x| weight("w", &[dim(S, 3), dim(B, 2)]) * x);
    assert_eq!(
        (axes(&trace), result(&trace)),
        (vec!["S".into(), "B".into()], vec![0., 6., 3., 16., 10., 30.])
    );
    let trace = recorded(|x| x * weight("w", &[]));
    assert_eq!(result(&trace), [0., 1., 2., 3., 4., 5.]);
    // A number can be the left or the right operand.
    let trace = recorded(|x| 1.0 - (x * 2 + 0.5) / 2.0);
    assert_eq!(result(&trace), [0.75, -0.25, -1.25, -2.25, -3.25, -4.25]);
    // The condition of `select` aligns with the two values.
    let trace = recorded(|x| x.less(x.filled(4.0)).select(-x, weight("w", &[dim(S, 3)]) + x.filled(0.0)));
    assert_eq!(result(&trace), [-0., -1., -2., -3., 2., 3.]);
    let trace = recorded(|x| weight("w", &[dim(S, 3)]).less(weight("v", &[dim(S, 3)]) + 1.0).select(x, -x));
    assert_eq!(result(&trace), [0., 1., 2., 3., 4., 5.]);
}

#[test]
fn axes_move_by_name() {
    let trace = recorded(|x| x.permute(&[S, B]));
    assert_eq!((axes(&trace), result(&trace)), (vec!["S".into(), "B".into()], vec![0., 3., 1., 4., 2., 5.]));
    let trace = recorded(|x| x.rename(S, K).unmerge(K, &[dim(E, 3), dim(N, 1)]).merge(&[E, B], S).sum(N));
    assert_eq!((axes(&trace), result(&trace)), (vec!["S".into()], vec![0., 3., 1., 4., 2., 5.]));
    let trace = recorded(|x| x.merge(&[B, S], K));
    assert_eq!((axes(&trace), result(&trace)), (vec!["K".into()], vec![0., 1., 2., 3., 4., 5.]));
    let trace = recorded(|x| x.mean(S) + x.max(S) - x.min(S));
    assert_eq!((axes(&trace), result(&trace)), (vec!["B".into()], vec![3., 6.]));
    let trace = recorded(|x| {
        let [first, second] = x.split(S, [1, 2]);
        second.sum(S) + first.sum(S) * 10.0 + x.narrow(S, 2, 1).sum(S) * 100.0
    });
    assert_eq!(result(&trace), [203., 539.]);
    // Axes that the operands share are batch axes: [B, S] · [B, S, E] over S.
    let trace = recorded(|x| nn::dot(x, weight("w", &[dim(B, 2), dim(S, 3), dim(E, 2)]), S));
    assert_eq!((axes(&trace), result(&trace)), (vec!["B".into(), "E".into()], vec![13., 16., 112., 124.]));
}

/// A constant with rows on axis B and columns on axis S.
fn rows(rows: &[&[f64]]) -> Tensor<F32> {
    let ty = TensorType::new(F32::element(), [rows.len(), rows[0].len()]);
    Tensor::constant(ops::Literal::from_value(&Value::new(ty, rows.concat())), &[B, S])
}

/// The expected results are the results of NumPy and torch.
#[test]
fn functions_of_each_element() {
    let of = |body: fn(Tensor<F32>) -> Tensor<F32>| result(&recorded(body));
    assert_eq!(of(|x| (x - 3).abs()), [3., 2., 1., 0., 1., 2.]);
    assert_eq!(of(|x| nn::relu(x - 3)), [0., 0., 0., 0., 1., 2.]);
    assert_eq!(of(|x| x.pow(2)), [0., 1., 4., 9., 16., 25.]);
    assert_eq!(of(|x| (x - 3).pow(weight("w", &[dim(S, 3)]))), [-3., 4., -1., 0., 1., 8.]);
    assert_eq!(of(|x| x.maximum(2.5).minimum(4)), [2.5, 2.5, 2.5, 3., 4., 4.]);
    assert_eq!(of(|x| (!x.less(2)).select(x, -1.0)), [-1., -1., 2., 3., 4., 5.]);
    assert_eq!(of(|x| x.equals(x.max(S)).or(x.less_equal(0)).select(7, 8.0)), [7., 8., 7., 8., 8., 7.]);
    let logarithm = [f64::NEG_INFINITY, 0., 0.6931471824645996, 1.0986123085021973, 1.3862943649291992];
    assert_eq!(of(|x| x.ln())[..5], logarithm);
    let erf = [0., 0.8427007794380188, 0.9953222870826721];
    assert_eq!(of(|x| x.erf())[..3], erf);
    let softplus = [0.6931471824645996, 1.31326162815094, 2.1269280910491943];
    assert_eq!(of(|x| x.softplus())[..3], softplus);
    assert_eq!(of(nn::gelu)[..2], [0., 0.8413447141647339]);
    assert_eq!(of(|x| x.less(3).select(0, Tensor::scalar(9.0))), [0., 0., 0., 9., 9., 9.]);
    assert_eq!(of(|x| (x / x).is_nan().select(1, 0)), [1., 0., 0., 0., 0., 0.]);
    let integers = recorded(|x| x.to::<I32>().abs().less(2).select(1, 2.0));
    assert_eq!(result(&integers), [1., 1., 2., 2., 2., 2.]);
}

#[test]
fn tensors_are_joined_and_repeated_by_name() {
    let trace = recorded(|x| Tensor::concat(&[x, weight("w", &[dim(S, 1), dim(B, 2)])], S));
    let joined = vec![0., 1., 2., 1., 3., 4., 5., 2.];
    assert_eq!((axes(&trace), result(&trace)), (vec!["B".into(), "S".into()], joined));
    let trace = recorded(|x| Tensor::stack(&[x, weight("w", &[dim(S, 3), dim(B, 2)])], E));
    let stacked = vec![0., 1., 2., 3., 4., 5., 1., 3., 5., 2., 4., 6.];
    assert_eq!((axes(&trace), result(&trace)), (vec!["E".into(), "B".into(), "S".into()], stacked));
    // An outer sum, and an activation that is repeated along an axis of another activation.
    let trace = recorded(|x| {
        let (b, s) = (x.max(S), x.min(B));
        b.broadcast(s) + s.broadcast(b) * 10
    });
    let sums = vec![2., 12., 22., 5., 15., 25.];
    assert_eq!((axes(&trace), result(&trace)), (vec!["B".into(), "S".into()], sums));
    let trace = recorded(|x| x.at(S, Tensor::scalar(1.0)).broadcast(x) + x);
    assert_eq!((axes(&trace), result(&trace)), (vec!["B".into(), "S".into()], vec![1., 2., 3., 7., 8., 9.]));
}

/// The order is the order of `numpy.argsort(-x, kind="stable")`. Without equal elements,
/// `torch.topk` has the same order, and torch also puts NaN first.
#[test]
fn topk_takes_the_lowest_index_of_equal_elements() {
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let x = [[1., 5., 3., 4., 2.], [0., nan, 7., -infinite, nan], [-infinite, 2., 2., -infinite, -infinite]];
    let values =
        [[5., 4., 3., 2., 1.], [nan, nan, 7., 0., -infinite], [2., 2., -infinite, -infinite, -infinite]];
    let indices = [[1., 3., 2., 4., 0.], [1., 4., 2., 0., 3.], [1., 2., 0., 3., 4.]];
    for k in 1..=5 {
        let largest = move |_| nn::topk(rows(&x.each_ref().map(|row| &row[..])), S, k);
        let expected = |of: &[[f64; 5]]| of.iter().flat_map(|row| row[..k].to_vec()).collect::<Vec<_>>();
        let trace = recorded(move |x| largest(x).0);
        assert_eq!(axes(&trace), ["B", "S"]);
        assert_eq!(format!("{:?}", result(&trace)), format!("{:?}", expected(&values)));
        assert_eq!(result(&recorded(move |x| largest(x).1.to())), expected(&indices));
    }
    // With so many elements, the function searches instead of comparing all pairs.
    let many: Vec<f64> = (0..1100).map(|i| x[i % 3][i % 5]).collect();
    let mut order: Vec<usize> = (0..many.len()).collect();
    let rank = |i: usize| if many[i].is_nan() { infinite } else { many[i] };
    order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
    let found = recorded(move |_| nn::topk(rows(&[&many]), S, 200).1.to());
    assert_eq!(result(&found), order[..200].iter().map(|&i| i as f64).collect::<Vec<_>>());
    let expected = "`topk`: axis `S` of `f32[B=2, S=3]`: the 4 largest, expected at least 1 and at most 3";
    assert_eq!(refused(|x| nn::topk(x, S, 4).0), expected);
}

/// If no sum is rounded, the results are the results of `torch.cumsum`. Sums of integers are the
/// results of `numpy.cumsum` for int32.
#[test]
fn cumsum_sums_what_comes_before() {
    let of = |body: fn(Tensor<F32>) -> Tensor<F32>| result(&recorded(body));
    assert_eq!(of(|x| x.cumsum(S)), [0., 1., 3., 3., 7., 12.]);
    assert_eq!(of(|x| x.cumsum(B)), [0., 1., 2., 3., 5., 7.]);
    for n in 1..=17 {
        let trace = recorded(move |_| Tensor::iota(S, n).cumsum(S));
        assert_eq!(result(&trace), (0..n).map(|i| (i * (i + 1) / 2) as f64).collect::<Vec<_>>());
    }
    // An infinite element does not change the sums before this element.
    let last = recorded(|_| rows(&[&[1., 2., f64::INFINITY, 1., f64::NAN]]).cumsum(S));
    assert_eq!(format!("{:?}", result(&last)), "[1.0, 3.0, inf, inf, NaN]");
    // The summands are half a unit in the last place of bf16. The function rounds only the final
    // sums.
    let narrow =
        recorded(|_| rows(&[&[1., 0.00390625, 0.00390625, 0.00390625, 1.]]).to::<Bf16>().cumsum(S).to());
    assert_eq!(result(&narrow), [1., 1., 1.0078125, 1.015625, 2.015625]);
    let integers = recorded(|_| (Tensor::<I32>::iota(S, 3) + i32::MAX).cumsum(S).to());
    assert_eq!(result(&integers), [2147483648., -1., -2147483648.]);
}

/// Tracewright implicitly repeats weights, numbers, indices, masks and a tensor's own reductions
/// along missing axes.
#[test]
fn what_is_repeated_without_a_word() {
    let linear =
        |x: Tensor<F32>| Linear::build(Scope::root("l"), &[dim(B, 2)], &[dim(K, 2)]).call(x).rename(K, B);
    recorded(|x| x + weight("w", &[dim(S, 3)]) * 2 + x.sum(S).sum(B));
    recorded(|x| x - x.mean(S));
    recorded(|x| x * ((x * x).mean(S) + 1e-5).rsqrt() * weight("w", &[dim(S, 3)]));
    recorded(|x| {
        let e = (x - x.max(S)).exp();
        e / e.sum(S)
    });
    recorded(|x| {
        let wide = x.to::<Bf16>().to::<F32>();
        let centred = wide - wide.mean(S);
        centred * (centred * centred).mean(S).rsqrt()
    });
    recorded(|x| Tensor::iota(S, 3).less(x.to::<I32>().max(S).broadcast(x.to::<I32>())).select(x, 0));
    // A row of a constant table is also repeated, even if an activation is the index of the row.
    recorded(|x| x + rows(&[&[1.], &[2.]]).rename(B, N).rows(x.to::<I32>().max(S)).sum(S));
    recorded(move |x| x + linear(x.sum(S)).broadcast(x));

    let line = line!() + 1;
    let lost = |x: Tensor<F32>| x.sum(S);
    let said = refused(move |x| x + linear(lost(x)));
    let expected = format!(
        "`add`: `f32[B=2]` lacks the axis `S` of `f32[B=2, S=3]`, which it lost at dsl/tests/tensor.rs:{line}; call `.broadcast(other)` to repeat an activation along an axis"
    );
    assert_eq!(said, expected);
    // The reduction of another tensor is not repeated, and neither is a slice of the tensor itself.
    assert!(refused(move |x| linear(x) * x.max(S)).starts_with("`multiply`: `f32[B=2]` lacks the axis `S`"));
    assert!(refused(|x| x.at(S, Tensor::scalar(0.0)) - x).starts_with("`subtract`: `f32[B=2]` lacks"));
    assert!(
        refused(move |x| x.less(linear(x.max(S))).select(x, 0)).starts_with("`compare`: `f32[B=2]` lacks")
    );
    // A row of a weight is an activation if an activation is the index of the row.
    let embedded = |x: Tensor<F32>| weight("w", &[dim(N, 9)]).rows(x.to::<I32>().max(S));
    assert!(refused(move |x| x * embedded(x)).starts_with("`multiply`: `f32[B=2]` lacks"));
}

/// If the caller passes a value to an element of a block array, the value stays a weight or an
/// activation as in the caller.
#[test]
fn a_given_weight_is_repeated_in_a_body_and_an_activation_is_not() {
    let layers = |x: Tensor<F32>, given: fn(Tensor<F32>) -> Tensor<F32>| {
        (0..3).fold(x, |x, i| {
            let scope = Scope::root("").element("layers", i);
            block(
                TypeId::of::<()>(),
                &scope,
                &Vec::new,
                "Layer::forward",
                (x, given(x)),
                |(x, given): (Tensor<F32>, Tensor<F32>)| x + given,
            )
        })
    };
    let traced = traced(move |x| layers(x, |_| weight("w", &[dim(S, 3)]))).unwrap();
    assert_eq!((result(&traced.trace), traced.body_runs), (vec![3., 7., 11., 6., 10., 14.], 1));
    let said = refused(move |x| layers(x, |x| x.sum(B)));
    assert!(
        said.starts_with("`add`: `f32[S=3]` lacks the axis `B` of `f32[B=2, S=3]`; call `.broadcast(other)`"),
        "{said}"
    );
}

#[test]
fn a_table_of_positions_is_as_long_as_the_context() {
    recorded(|x| {
        nn::positions_within(dim(N, 8), 8);
        x
    });
    let error = traced(|x| {
        block(TypeId::of::<()>(), &Scope::root("wpe"), &Vec::new, "Toy::forward", x, |x: Tensor<F32>| {
            nn::positions_within(dim(N, 8), 9);
            x
        })
    });
    let line = line!() - 4;
    let expected = format!(
        "the table of position embeddings has 8 rows (axis `N`), but the context has 9 positions; choose a context of at most 8 positions\n  \
         in `wpe` at dsl/tests/tensor.rs:{line}"
    );
    assert_eq!(error.unwrap_err().to_string(), expected);
}

#[test]
fn a_place_that_is_not_known_is_not_said() {
    let said = Toy::trace(&Err(BuildError::Empty { key: "k".into(), axis: "K".into() }), &entries(&["main"]));
    assert_eq!(said.unwrap_err().to_string(), "`k` is 0, but the axis `K` needs an extent of at least 1");
    let error = traced(|x| x.sum(E)).unwrap_err().to_string();
    assert!(error.contains("\n  at dsl/tests/tensor.rs:"), "{error}");
}

/// Each line is a case with the line number, an invalid body and the expected error message.
#[test]
#[rustfmt::skip]
fn the_error_names_types_axis_and_line() {
    type Case = (u32, Body, &'static str);
    fn case(line: u32, body: impl Fn(Tensor<F32>) -> Tensor<F32> + 'static, expected: &'static str) -> Case {
        (line, Rc::new(body), expected)
    }
    let cases = [
        case(line!(), |x| x.narrow(S, 2, 9), "`narrow`: range is 2..11, expected within 0..3"),
        case(line!(), |x| x.sum(E), "`sum`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| x.mean(E), "`mean`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| x + weight("w", &[dim(S, 4)]), "`add`: the axis `S` has different extents in `f32[B=2, S=3]` and `f32[S=4]`"),
        case(line!(), |x| x * weight("w", &[dim(E, 4)]), "`multiply`: `f32[B=2, S=3]` and `f32[E=4]` each lack an axis that the other tensor has"),
        case(line!(), |x| x.rename(B, S), "`rename`: the result would have the axis `S` of `f32[B=2, S=3]` twice; call `.rename(S, …)` on one of the operands"),
        case(line!(), |x| x.permute(&[B]), "`permute`: the axes of `f32[B=2, S=3]` cannot be reordered to [B]"),
        case(line!(), |x| x.permute(&[B, E]), "`permute`: the axes of `f32[B=2, S=3]` cannot be reordered to [B, E]"),
        case(line!(), |x| x.permute(&[B, B]), "`permute`: the axes of `f32[B=2, S=3]` cannot be reordered to [B, B]"),
        case(line!(), |x| x.split(S, [1, 1])[0], "`split`: axis `S` of `f32[B=2, S=3]`: pieces of [1, 1], expected a sum of 3"),
        case(line!(), |x| x.unmerge(S, &[dim(K, 2), dim(E, 2)]), "`unmerge`: axis `S` of `f32[B=2, S=3]`: parts of [2, 2], expected a product of 3"),
        case(line!(), |x| x.unmerge(S, &[dim(B, 3)]), "`unmerge`: the result would have the axis `B` of `f32[B=2, S=3]` twice; call `.rename(B, …)` on one of the operands"),
        case(line!(), |x| x.merge(&[B, E], K), "`merge`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| nn::dot(x, weight("w", &[dim(E, 4)]), S), "`dot`: `f32[E=4]` has no axis `S`"),
        case(line!(), |x| nn::dot(x, weight("w", &[dim(S, 3), dim(B, 5)]), S), "`dot`: the axis `B` has different extents in `f32[B=2, S=3]` and `f32[S=3, B=5]`"),
        case(line!(), |x| nn::softmax(x, E), "`softmax`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| Linear::build(Scope::root("l"), &[dim(E, 4)], &[dim(K, 2)]).call(x), "`linear`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| Linear::build(Scope::root("l"), &[dim(S, 4)], &[dim(K, 2)]).call(x), "`linear`: the axis `S` has different extents in `f32[B=2, S=3]` and `f32[S=4]`"),
        case(line!(), |x| Linear::build(Scope::root("l"), &[dim(S, 3)], &[dim(B, 2)]).call(x), "`linear`: the result would have the axis `B` of `f32[B=2, S=3]` twice; call `.rename(B, …)` on one of the operands"),
        case(line!(), |x| RmsNorm::build(Scope::root("n"), &[dim(E, 4)]).call(x), "`rms_norm`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| RmsNorm::build(Scope::root("n"), &[dim(S, 4)]).call(x), "`rms_norm`: the axis `S` has different extents in `f32[B=2, S=3]` and `f32[S=4]`"),
        case(line!(), |x| SignatureCheck::new("Toy::forward", &Dims(vec![dim(S, 4)])).result(x, declared(&[B, S])), "`Toy::forward`: the result is `f32[B=2, S=3]`, but the signature declares `[B, S=4]`"),
        case(line!(), |x| SignatureCheck::new("Toy::forward", &Dims(vec![])).argument("x", x, declared(&[S, B])), "`Toy::forward`: argument `x` is `f32[B=2, S=3]`, but the signature declares `[S, B]`"),
        case(line!(), |x| Tensor::concat(&[x, weight("w", &[dim(S, 3)])], S), "`concat`: `f32[S=3]` has no axis `B`"),
        case(line!(), |x| Tensor::concat(&[x.sum(B), x], S), "`concat`: `f32[S=3]` has no axis `B`"),
        case(line!(), |x| Tensor::concat(&[x, x], E), "`concat`: `f32[B=2, S=3]` has no axis `E`"),
        case(line!(), |x| Tensor::concat(&[x, x.narrow(B, 0, 1)], S), "`concat`: the axis `B` has different extents in `f32[B=2, S=3]` and `f32[B=1, S=3]`"),
        case(line!(), |_| Tensor::concat(&[], S), "`concatenate` takes 1 or more operands, found 0"),
        case(line!(), |x| Tensor::stack(&[x, x], S), "`stack`: the result would have the axis `S` of `f32[B=2, S=3]` twice; call `.rename(S, …)` on one of the operands"),
        case(line!(), |x| x.sum(B).broadcast(weight("w", &[dim(S, 4)])), "`broadcast`: the axis `S` has different extents in `f32[S=3]` and `f32[S=4]`"),
        case(line!(), |x| x.cumsum(E), "`cumsum`: `f32[B=2, S=3]` has no axis `E`"),
    ];
    for (line, body, expected) in cases {
        let error = Toy::trace(&Ok(body), &entries(&["main"])).unwrap_err();
        assert_eq!(error.kind.to_string(), expected);
        assert_eq!((&*error.provenance.file, error.provenance.line), ("dsl/tests/tensor.rs", line), "{expected}");
    }
}

/// A `rename` gives an axis the name of another axis with a different extent.
#[test]
fn the_error_names_the_line_that_renamed() {
    let line = line!() + 1;
    let renamed = |x: Tensor<F32>| x.rename(S, E).exp().sum(B);
    let expected = |what| format!("{what}; `S` was renamed to `E` at dsl/tests/tensor.rs:{line}");
    let sum = "`add`: the axis `E` has different extents in `f32[E=4]` and `f32[E=3]`";
    assert_eq!(refused(move |x| weight("w", &[dim(E, 4)]) + renamed(x)), expected(sum));
    let product = "`dot`: the axis `E` has different extents in `f32[E=3]` and `f32[E=4]`";
    assert_eq!(refused(move |x| nn::dot(renamed(x), weight("w", &[dim(E, 4)]), E)), expected(product));
    let linear = "`linear`: the axis `E` has different extents in `f32[E=3]` and `f32[E=4]`";
    let layer = || Linear::build(Scope::root("l"), &[dim(E, 4)], &[dim(K, 2)]);
    assert_eq!(refused(move |x| layer().call(renamed(x))), expected(linear));
}

/// A free axis has the same extent in the whole signature.
#[test]
fn a_signature_binds_its_free_axes() {
    let said = refused(|x| {
        let dims = Dims(vec![]);
        let mut signature = SignatureCheck::new("Toy::forward", &dims);
        let x = signature.argument("x", x, declared(&[B, S]));
        signature.result(x.narrow(S, 0, 2), declared(&[B, S]))
    });
    assert_eq!(
        said,
        "`Toy::forward`: the result is `f32[B=2, S=2]`, but the signature declares `[B=2, S=3]`"
    );
}

#[test]
fn the_error_names_the_field_path() {
    let run = |scope: Scope| {
        let error = traced(move |x| {
            block(TypeId::of::<()>(), &scope, &Vec::new, "Mlp::forward", x, |x: Tensor<F32>| x.sum(E))
        })
        .unwrap_err();
        (error.provenance.path.to_string(), error.to_string())
    };
    let (path, said) = run(Scope::root("").child("model").child("mlp"));
    assert_eq!(path, "model.mlp");
    let expected = "`sum`: `f32[B=2, S=3]` has no axis `E`\n  in `model.mlp` at dsl/tests/tensor.rs:";
    assert!(said.starts_with(expected), "{said}");
    // The same error in an element of a block array.
    let (path, _) = run(Scope::root("").child("model").element("layers", 3));
    assert_eq!(path, "model.layers.*");
}

#[test]
fn the_first_error_wins_and_what_follows_is_silent() {
    let after = Rc::new(Cell::new(false));
    let reached = after.clone();
    let error = traced(move |x| {
        let poisoned = x.sum(E);
        let also = (poisoned + x.sum(N)).permute(&[K]).unmerge(K, &[]).merge(&[N], B);
        let [left, right] = also.split(K, [7, 8]);
        let logits = nn::softmax(nn::dot(left, right, E), N).rename(K, B) / 0.0;
        assert_eq!(logits.extent(B), 0);
        let block = block(
            TypeId::of::<()>(),
            &Scope::root("").element("layers", 0),
            &Vec::new,
            "L::forward",
            logits,
            |x: Tensor<F32>| x.sum(K),
        );
        reached.set(true);
        -block.exp().maximum(x).less_equal(x).select(x, poisoned)
    })
    .unwrap_err();
    assert!(after.get(), "the body runs to its end");
    assert_eq!(error.kind.to_string(), "`sum`: `f32[B=2, S=3]` has no axis `E`");
}

#[test]
fn handles_of_another_trace_are_refused() {
    let kept: Rc<Cell<Option<Tensor<F32>>>> = Rc::default();
    let keep = kept.clone();
    recorded(move |x| {
        keep.set(Some(x));
        x
    });
    let stale = kept.get().unwrap();
    assert_eq!(refused(move |x| x + stale), TraceErrorKind::Stranger.to_string());
    assert_eq!(refused(move |_| stale.exp()), TraceErrorKind::Stranger.to_string());
    assert_eq!(refused(move |_| stale), TraceErrorKind::Stranger.to_string());
    let layer = move |_| {
        block(
            TypeId::of::<()>(),
            &Scope::root("").element("layers", 0),
            &Vec::new,
            "Layer::forward",
            stale,
            |x: Tensor<F32>| x,
        )
    };
    assert_eq!(refused(layer), TraceErrorKind::Stranger.to_string());
    // Outside of any trace, the handle causes no error. The next trace fails only if the trace uses
    // the handle.
    let nothing = (stale + stale).sum(S);
    assert_eq!(nothing.extent(B), 0);
    recorded(|x| x);
    assert_eq!(refused(move |x| x + nothing), TraceErrorKind::Closed.to_string());
    assert_eq!(refused(move |_| nothing), TraceErrorKind::Closed.to_string());
}

#[test]
fn handles_of_another_function_are_refused() {
    // This handle belongs to another entry point.
    let kept: Rc<Cell<Option<Tensor<F32>>>> = Rc::default();
    let body = move |x: Tensor<F32>| {
        let other = kept.replace(Some(x));
        other.unwrap_or(x) + x
    };
    let error = Toy::trace(&Ok(Rc::new(body)), &entries(&["first", "second"])).unwrap_err();
    assert_eq!(*error.kind, TraceErrorKind::Stranger);
    // The body of an array element captures a tensor instead of taking the tensor as an argument.
    let layer = |x: Tensor<F32>, captured: Tensor<F32>| {
        block(
            TypeId::of::<()>(),
            &Scope::root("").element("layers", 0),
            &Vec::new,
            "Layer::forward",
            x,
            move |x: Tensor<F32>| x + captured,
        )
    };
    assert_eq!(refused(move |x| layer(x, x)), TraceErrorKind::Stranger.to_string());
    // The caller uses a tensor outside of the body that created the tensor.
    let escaped = |x: Tensor<F32>| {
        let kept = Rc::new(Cell::new(x));
        let keep = kept.clone();
        block(
            TypeId::of::<()>(),
            &Scope::root("").element("layers", 0),
            &Vec::new,
            "Layer::forward",
            x,
            move |x: Tensor<F32>| {
                keep.set(x.exp());
                x
            },
        );
        kept.get()
    };
    assert_eq!(refused(move |x| escaped(x) + x), TraceErrorKind::Stranger.to_string());
    assert_eq!(refused(escaped), TraceErrorKind::Stranger.to_string());
}

#[test]
fn a_trace_within_a_trace_is_refused() {
    let inner = Rc::new(Cell::new(None));
    let seen = inner.clone();
    let outer = traced(move |x| {
        seen.set(Some(*traced(|x| x).map(|_| ()).unwrap_err().kind));
        x
    });
    assert_eq!(inner.take(), Some(TraceErrorKind::Nested));
    assert!(outer.is_ok(), "the outer trace goes on");
}

#[test]
fn a_tensor_outside_of_any_function_is_refused() {
    let body = || assert_eq!(Tensor::<F32>::scalar(1.0).exp().extent(B), 0);
    let error = tracewright_dsl::trace(body).unwrap_err();
    assert_eq!(*error.kind, TraceErrorKind::Closed);
    assert_eq!(Tensor::<F32>::scalar(1.0).exp().extent(B), 0);
    recorded(|x| x);
}

#[test]
fn a_panic_in_a_body_closes_the_trace() {
    let panicked = std::panic::catch_unwind(|| traced(|_| panic!("in the body")).map(|_| ()));
    assert!(panicked.is_err());
    recorded(|x| x);
}

#[test]
fn a_configuration_that_does_not_divide_is_refused() {
    let quotient = |dividend, divisor| {
        let mut extents = CheckedExtents::default();
        let quotient = extents.divide(("hidden_size", dividend), ("num_attention_heads", divisor));
        // `CheckedExtents` reports only its first error, and this axis of extent 0 would be the second error.
        extents.add("E", "hidden_size / num_attention_heads", quotient);
        extents.finish().map(|dims| dims.extent(E))
    };
    let error = quotient(100, 3).unwrap_err();
    let expected = "`hidden_size` (100) is not a multiple of `num_attention_heads` (3); correct one of these keys in the configuration";
    assert_eq!(error.to_string(), expected);
    assert!(quotient(100, 0).is_err());
    assert_eq!(quotient(100, 4), Ok(25));
    let refused = Toy::trace(&Err(error.clone()), &entries(&["main"])).unwrap_err();
    assert_eq!(*refused.kind, TraceErrorKind::Build(error));
}
