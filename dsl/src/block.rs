//! Runs the functions of blocks. Tracewright records a function once for a block array such as
//! `[Layer; L]`, and calls the recording for each element of the array.

use std::any::{Any, TypeId};
use std::panic::Location;
use std::rc::Rc;

use ops::TensorType;
use trace::{AxisName, Function, NodeKind, Role};

use crate::argument::TraceArg;
use crate::scope::Scope;
use crate::tracer::{self, Body, Place, Raw, TraceKey, Tracer};
use crate::{Axis, Dim, TraceErrorKind};

/// For an element of `[Block; L]`, calls a recording that equal elements share. Any other block records into
/// the caller's trace.
#[doc(hidden)]
#[track_caller]
pub fn block<A: TraceArg, R: TraceArg>(
    owner: TypeId,
    scope: &Scope,
    axes: &dyn Fn() -> Vec<Dim>,
    name: &'static str,
    arguments: A,
    body: impl Fn(A) -> R,
) -> R {
    run(owner, scope, axes, name, arguments, &body)
}

/// Independent of the body's type, so that rustc compiles it once per signature.
#[track_caller]
fn run<A: TraceArg, R: TraceArg>(
    owner: TypeId,
    scope: &Scope,
    axes: &dyn Fn() -> Vec<Dim>,
    name: &'static str,
    arguments: A,
    body: &dyn Fn(A) -> R,
) -> R {
    let place = Location::caller();
    let mut tensors = Vec::new();
    let mut data = Vec::new();
    arguments.flatten(&mut tensors, &mut data);
    let arguments_type = TypeId::of::<A>();
    let element =
        Element { scope, axes, owner, block: name, arguments: arguments_type, tensors, data, place };
    if element.runs_in_place() {
        enter(scope);
        let returned = body(arguments);
        leave();
        return returned;
    }
    let (returned, results) = element.call(&|inputs| {
        let returned = body(arguments.rebuild(&mut inputs.into_iter()));
        let mut outputs = Vec::new();
        returned.flatten(&mut outputs, &mut Vec::new());
        (outputs, Rc::new(returned))
    });
    match returned.downcast_ref::<R>() {
        Some(returned) => returned.rebuild(&mut results.into_iter()),
        None => unreachable!("a block's function returns one type"),
    }
}

/// From now on, nodes belong to the field path `scope`.
fn enter(scope: &Scope) {
    tracer::with(|t| t.push_path(scope.path().clone()));
}

fn leave() {
    tracer::with(Tracer::pop_path);
}

/// A call of a block's function. With lists of tensors, rustc compiles it only once.
struct Element<'a> {
    scope: &'a Scope,
    /// Elements of one type can have different extents.
    axes: &'a dyn Fn() -> Vec<Dim>,
    /// The block's type. The elements of an array may have different block types.
    owner: TypeId,
    block: &'static str,
    arguments: TypeId,
    tensors: Vec<Raw>,
    data: Vec<u8>,
    place: Place,
}

/// Runs a body on tensors, and returns the result's tensors and the result.
type Run<'a> = &'a dyn Fn(Vec<Raw>) -> (Vec<Raw>, Rc<dyn Any>);

impl Element<'_> {
    fn runs_in_place(&self) -> bool {
        // The axes of an entry point's own arguments are unknown until the block has checked these arguments.
        !self.scope.element
            || self.tensors.contains(&Raw::ARGUMENT)
            || !tracer::with(|t| t.admits(&self.tensors, self.place)).unwrap_or(false)
    }

    /// Records the function first, unless an equal element has. The caller replaces the recorded result's
    /// tensors by the call's, which are empty after an error.
    fn call(self, run: Run<'_>) -> (Rc<dyn Any>, Vec<Raw>) {
        let Self { scope, tensors, place, .. } = self;
        let found =
            tracer::with(|t| (t.relative(&scope.pattern()), t.types(&tensors), t.are_activations(&tensors)));
        let (pattern, types, activations) = found.unwrap_or_default();
        let experts = tracer::with(|t| t.experts_mode).unwrap_or_default();
        let key = TraceKey {
            owner: self.owner,
            axes: (self.axes)(),
            block: self.block,
            pattern,
            arguments: self.arguments,
            types,
            activations,
            experts,
            data: self.data,
        };
        let known = tracer::with(|t| t.body(&key)).flatten();
        let recorded = match known {
            Some(recorded) => {
                // Debug builds check that elements with equal keys record the same function.
                if cfg!(debug_assertions) {
                    let same = tracer::with(|t| t.function(recorded.function).name.clone());
                    let (again, _) = record(scope, same.unwrap_or_default(), &key, run, place);
                    tracer::with(|t| {
                        if again.is_some_and(|again| again != *t.function(recorded.function)) {
                            let (block, prefix) = (self.block.into(), scope.path().to_string());
                            t.fail(TraceErrorKind::Unequal { block, prefix }, place);
                        }
                    });
                }
                recorded
            }
            None => {
                let stem = self.block.split("::").next().unwrap_or(self.block).to_lowercase();
                let function_name = tracer::with(|t| {
                    t.count_body_run();
                    t.unique_name(&stem)
                });
                let (function, returned) = record(scope, function_name.unwrap_or(stem), &key, run, place);
                let kept = function.and_then(|function| {
                    tracer::with(|t| {
                        let function = t.add_function(function, false);
                        let recorded = Body { function, returned: returned.clone() };
                        t.keep_body(key, recorded.clone());
                        recorded
                    })
                });
                let Some(kept) = kept else { return (returned, Vec::new()) };
                kept
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
        (recorded.returned, results.unwrap_or_default())
    }
}

/// `result0`, `result1`, ….
pub(crate) fn numbered(results: Vec<Raw>) -> Vec<(String, Role, Raw)> {
    let named = |(i, raw)| (format!("result{i}"), Role::Plain, raw);
    results.into_iter().enumerate().map(named).collect()
}

/// Records a body as a separate function of the trace. After an error, the returned function is `None`.
fn record(
    scope: &Scope,
    name: String,
    key: &TraceKey,
    run: Run<'_>,
    place: Place,
) -> (Option<Function>, Rc<dyn Any>) {
    let inputs = tracer::with(|t| {
        t.open_function(name, &key.pattern, Some((scope.path().clone(), key.pattern.as_str().into())));
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
    let (outputs, returned) = run(inputs.unwrap_or_default());
    let function = tracer::with(|t| {
        t.pop_path();
        t.close_function(numbered(outputs), place)
    });
    (function.flatten(), returned)
}
