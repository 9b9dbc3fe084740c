//! How a block's function runs, and how that of a repeated block is recorded once.

use std::any::TypeId;
use std::panic::Location;
use std::rc::Rc;

use ops::TensorType;
use trace::{AxisName, Function, NodeKind, Role};

use crate::argument::TraceArg;
use crate::scope::Scope;
use crate::tracer::{self, Body, Place, Raw, TraceKey};
use crate::{Axis, Dim, TraceErrorKind};

/// Runs a block's function: in place, or, if the block is an element of a `[Block; L]`, recorded once for each
/// kind of element and called.
#[doc(hidden)]
#[track_caller]
pub fn block<A: TraceArg, R: TraceArg>(
    scope: &Scope,
    name: &'static str,
    arguments: A,
    body: impl Fn(A) -> R,
) -> R {
    let place = Location::caller();
    let mut tensors = Vec::new();
    let mut data = Vec::new();
    arguments.flatten(&mut tensors, &mut data);
    // The axes of an entry point's own arguments are known once the block has looked at them.
    let in_place = !scope.element
        || tensors.contains(&Raw::ARGUMENT)
        || !tracer::with(|t| t.admits(&tensors, place)).unwrap_or(false);
    if in_place {
        tracer::with(|t| t.push_path(scope.path().clone()));
        let returned = body(arguments);
        tracer::with(|t| t.pop_path());
        return returned;
    }

    let found =
        tracer::with(|t| (t.relative(&scope.pattern()), t.types(&tensors), t.are_activations(&tensors)));
    let Some((pattern, types, activations)) = found else { return body(arguments) };
    let key = TraceKey {
        block: name,
        pattern: pattern.clone(),
        arguments: TypeId::of::<A>(),
        types,
        activations,
        data,
    };
    let known = tracer::with(|t| t.body(&key)).flatten();
    let recorded = match known {
        Some(recorded) => {
            // Only what is an argument may differ between elements: checked where it costs nothing that matters.
            if cfg!(debug_assertions) {
                let same = tracer::with(|t| t.function(recorded.function).name.clone());
                let (again, _) =
                    record(scope, same.unwrap_or_default(), &pattern, &key, &arguments, &body, place);
                tracer::with(|t| {
                    if again.is_some_and(|again| again != *t.function(recorded.function)) {
                        let kind =
                            TraceErrorKind::Unequal { block: name.into(), prefix: scope.path().to_string() };
                        t.fail(kind, place);
                    }
                });
            }
            recorded
        }
        None => {
            tracer::with(|t| t.count_body_run());
            let stem: String = name.split("::").next().unwrap_or(name).to_lowercase();
            let function_name = tracer::with(|t| t.unique_name(&stem)).unwrap_or(stem);
            let (function, returned) = record(scope, function_name, &pattern, &key, &arguments, &body, place);
            let Some(function) = function else {
                return returned.rebuild(&mut std::iter::repeat(Raw::POISON));
            };
            let kept = tracer::with(|t| {
                let recorded =
                    Body { function: t.add_function(function, false), returned: Rc::new(returned.clone()) };
                t.keep_body(key, recorded.clone());
                recorded
            });
            match kept {
                Some(kept) => kept,
                None => return returned,
            }
        }
    };

    let results = tracer::with(|t| {
        let callee = t.function(recorded.function);
        let types: Vec<TensorType> = callee.output_types().into_iter().cloned().collect();
        let axes: Vec<Vec<Axis>> = callee
            .outputs
            .iter()
            .map(|output| callee.node(output.node).axes.iter().map(Axis::named).collect())
            .collect();
        let kind = NodeKind::Call { function: recorded.function, prefix: t.relative(scope.path()) };
        t.push_path(scope.path().clone());
        let call = t.node(kind, types.clone(), &tensors, &[], place);
        let result = |(index, (ty, axes)): (usize, (TensorType, Vec<Axis>))| {
            t.node(NodeKind::Result { index }, vec![ty], &[call], &axes, place)
        };
        let results: Vec<Raw> = types.into_iter().zip(axes).enumerate().map(result).collect();
        t.pop_path();
        results
    });
    let mut results = results.unwrap_or_default().into_iter();
    match recorded.returned.downcast_ref::<R>() {
        Some(returned) => returned.rebuild(&mut results),
        None => unreachable!("a block's function returns one type"),
    }
}

/// Results that nobody gave names.
pub(crate) fn numbered(results: Vec<Raw>) -> Vec<(String, Role, Raw)> {
    let named = |(i, raw)| (format!("result{i}"), Role::Plain, raw);
    results.into_iter().enumerate().map(named).collect()
}

/// Runs `body` in a function of its own. The function is `None` after an error.
fn record<A: TraceArg, R: TraceArg>(
    scope: &Scope,
    name: String,
    pattern: &str,
    key: &TraceKey,
    arguments: &A,
    body: &impl Fn(A) -> R,
    place: Place,
) -> (Option<Function>, R) {
    let inputs = tracer::with(|t| {
        t.open_function(name, pattern, Some((scope.path().clone(), pattern.into())));
        t.push_path(scope.path().clone());
        let input = |(index, ((ty, axes), is_activation)): (usize, (&(TensorType, Vec<AxisName>), &bool))| {
            let dims = axes.iter().zip(&ty.shape);
            let dims: Vec<Dim> = dims.map(|(name, &extent)| Axis::named(name).of(extent)).collect();
            let argument = t.input(format!("argument{index}"), Role::Plain, ty.element, &dims, place);
            if !is_activation {
                t.fix(argument);
            }
            argument
        };
        key.types.iter().zip(&key.activations).enumerate().map(input).collect::<Vec<Raw>>()
    });
    let returned = body(arguments.rebuild(&mut inputs.unwrap_or_default().into_iter()));
    let mut outputs = Vec::new();
    returned.flatten(&mut outputs, &mut Vec::new());
    let function = tracer::with(|t| {
        t.pop_path();
        t.close_function(numbered(outputs), place)
    });
    (function.flatten(), returned)
}
