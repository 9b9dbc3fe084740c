//! Tests of leaves that read transposed or stacked tensors of a checkpoint, without the macro
//! `model!`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use trace::{Parameter, Role, Trace};
use tracewright_dsl::{Axis, Call, Dim, F32, I32, Linear, Recording, Scope, Tensor, TraceError, Weight};

const S: Dim = Dim { axis: Axis("S"), extent: 3 };
const E: Dim = Dim { axis: Axis("E"), extent: 2 };

/// The trace of `body` for an argument x of type f32[S=3].
fn recorded(body: impl Fn(Tensor<F32>) -> Tensor<F32>) -> Result<Trace, TraceError> {
    let recording = Recording::new(()).entry_with("main", |_, entry| {
        let x = entry.input("x", Role::Plain, &[S]);
        entry.output("y", Role::Plain, body(x));
    });
    recording.map(|recording| recording.finish().trace)
}

/// The single weight that `body` reads, and the tensors from which the weight is built.
fn weight(body: impl Fn(Tensor<F32>) -> Tensor<F32>) -> (String, Vec<String>) {
    let parameters = recorded(body).unwrap().parameters().unwrap();
    let [parameter] = &parameters[..] else { panic!("{parameters:?}") };
    let text = |(key, ty)| format!("{key}: {ty}");
    let sources = Parameter::sources(parameter).into_iter().map(text).collect();
    (format!("{}: {}", parameter.key, parameter.ty), sources)
}

fn linear(transposed: bool) -> impl Fn(Tensor<F32>) -> Tensor<F32> {
    let leaf = Linear::<F32>::build(Scope::root("").child("w"), &[S], &[E]).transposed(transposed);
    move |x| leaf.call(x)
}

fn stacked(path: &str, dims: &[Dim]) -> impl Fn(Tensor<F32>) -> Tensor<F32> {
    let leaf = Weight::<F32>::stacked(Scope::root("").child(path), dims);
    move |x| x + leaf.call(())
}

#[test]
fn leaves_ask_for_what_is_stored() {
    let read = "w.weight: f32[2,3]".to_owned();
    assert_eq!(weight(linear(false)), (read.clone(), vec![read.clone()]));
    assert_eq!(weight(linear(true)), (read, vec!["w.weight: f32[3,2]".into()]));
    let scales = (0..3).map(|i| format!("w.{i}.scale: f32[]")).collect();
    assert_eq!(weight(stacked("w.*.scale", &[S])), ("w.*.scale: f32[3]".into(), scales));
}

#[test]
fn what_cannot_be_made_is_refused() {
    let both = recorded(|x| linear(true)(x) + linear(false)(x)).unwrap();
    let expected =
        "the parameter `w.weight` is declared as `f32[2,3]` and as `f32[2,3]`, or with two different recipes";
    assert_eq!(both.parameters().unwrap_err().to_string(), expected);

    let refused = |body: &dyn Fn(Tensor<F32>) -> Tensor<F32>| recorded(body).unwrap_err().kind.to_string();
    assert_eq!(
        refused(&stacked("w.*", &[])),
        "`stacked`: the axis 0 does not exist in `f32[]`, which has 0 axes"
    );
    assert_eq!(refused(&stacked("w", &[S])), "`stacked`: the key is w, expected one with a `*`");
    let counts = Weight::<I32>::stacked(Scope::root("").child("w.*"), &[S]);
    assert!(refused(&|x| x + counts.call(()).to()).contains("of floats"));
}
