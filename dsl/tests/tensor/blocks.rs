//! Blocks of an array that share a recording.

use super::*;

/// The layers 0 … n − 1, where layer i computes x · w + kind(i).
fn layers(n: usize, kind: fn(usize) -> usize) -> impl Fn(Tensor<F32>) -> Tensor<F32> {
    move |mut x| {
        for i in 0..n {
            let scope = Scope::root("").child("model").element("layers", i);
            let own = scope.clone();
            let body = move |(x, kind): (Tensor<F32>, usize)| {
                x * Weight::<F32>::build(own.child("w"), &[dim(S, 3)]).call(()) + kind as f64
            };
            x = block(TypeId::of::<()>(), &scope, &Vec::new, "Layer::forward", (x, kind(i)), body);
        }
        x
    }
}

/// Two block types with the same name have separate functions, even if everything else is equal.
#[test]
fn blocks_of_two_types_are_recorded_apart() {
    let traced = traced(|mut x| {
        for i in 0..4 {
            let scope = Scope::root("").child("model").element("layers", i);
            assert_eq!((scope.index(), scope.child("w").index()), (Some(i), None));
            x = match i % 2 {
                0 => block(TypeId::of::<u8>(), &scope, &Vec::new, "Layer::forward", x, |x: Tensor<F32>| {
                    x + 1.0
                }),
                _ => block(TypeId::of::<u16>(), &scope, &Vec::new, "Layer::forward", x, |x: Tensor<F32>| {
                    x * 2.0
                }),
            };
        }
        x
    });
    let traced = traced.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((traced.body_runs, traced.trace.functions.len()), (2, 3));
}

#[test]
fn repeated_blocks_are_recorded_once_per_kind() {
    for (n, kind, kinds) in
        [(1, (|_| 0) as fn(usize) -> usize, 1), (7, |_| 5, 1), (7, |i| i % 2, 2), (3, |i| i, 3)]
    {
        let traced = traced(layers(n, kind)).unwrap_or_else(|error| panic!("{error}"));
        traced.trace.verify().unwrap();
        assert_eq!(traced.body_runs, kinds, "{n} layers");
        assert_eq!(traced.trace.functions.len(), kinds + 1);
        let main = traced.trace.entry("main").unwrap();
        let prefixes: Vec<&str> = main
            .ids()
            .filter_map(|id| match &main.node(id).kind {
                NodeKind::Call { prefix, .. } => Some(prefix.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(prefixes, (0..n).map(|i| format!("model.layers.{i}")).collect::<Vec<_>>());
        let keys: Vec<String> = traced.trace.parameters().unwrap().into_iter().map(|p| p.key).collect();
        assert_eq!(keys, (0..n).map(|i| format!("model.layers.{i}.w")).collect::<Vec<_>>());
        let layer = &traced.trace.functions[0];
        assert_eq!((layer.name.as_str(), layer.prefix.as_str()), ("layer", "model.layers.*"));
        assert_eq!(layer.parameters().next().unwrap().key, "model.layers.*.w");
        // The trace computes the same result as the same blocks recorded in place.
        let in_place = recorded(move |mut x| {
            for i in 0..n {
                x = x * weight(&format!("model.layers.{i}.w"), &[dim(S, 3)]) + kind(i) as f64;
            }
            x
        });
        assert_eq!(result(&traced.trace), result(&in_place));
    }
}

/// Debug builds find an array element that records other operations although its arguments are
/// equal.
#[test]
#[cfg(debug_assertions)]
fn elements_that_differ_are_found() {
    let differing = |at: usize| {
        move |mut x: Tensor<F32>| {
            for i in 0..5 {
                let scope = Scope::root("").element("layers", i);
                x = block(
                    TypeId::of::<()>(),
                    &scope,
                    &Vec::new,
                    "Layer::forward",
                    x,
                    move |x: Tensor<F32>| {
                        if i == at { -x } else { x.exp() }
                    },
                );
            }
            x
        }
    };
    for at in 1..5 {
        let error = traced(differing(at)).unwrap_err();
        let expected =
            TraceErrorKind::Unequal { block: "Layer::forward".into(), prefix: format!("layers.{at}") };
        assert_eq!(*error.kind, expected);
    }
    assert!(refused(differing(0)).starts_with("`Layer::forward` at `layers.1` records other operations"));
}
