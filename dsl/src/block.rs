//! Blocks: where their weights live, and how repeated ones are recorded once.

use std::any::TypeId;
use std::panic::Location;
use std::rc::Rc;

use ops::TensorType;
use ops::ops::MaskTerm;
use trace::{AxisName, Function, NodeKind};

use crate::axis::Dims;
use crate::element::Element;
use crate::tensor::{Place, Raw};
use crate::tracer::{self, Body};
use crate::{Axis, Dim, Tensor, TraceErrorKind};

/// The place of a block or leaf in its model: its field path, which is also the prefix of its checkpoint keys.
#[derive(Clone, Debug)]
pub struct Scope {
    root: Rc<str>,
    path: Rc<str>,
    /// Whether this is an element of a `[Block; L]`.
    element: bool,
}

impl Scope {
    /// The scope of a root block whose keys start with `prefix` (`""` in most checkpoints).
    pub fn root(prefix: &str) -> Self {
        Self { root: prefix.into(), path: prefix.into(), element: false }
    }

    /// The scope of a field.
    pub fn child(&self, field: &str) -> Self {
        Self { root: self.root.clone(), path: join(&self.path, field).into(), element: false }
    }

    /// The scope of one element of a field that repeats a block.
    pub fn element(&self, field: &str, index: usize) -> Self {
        let path = format!("{}.{index}", join(&self.path, field));
        Self { root: self.root.clone(), path: path.into(), element: true }
    }

    /// The scope of a field path that starts at the root: `model.embed_tokens`.
    pub fn from_root(&self, path: &str) -> Self {
        Self { root: self.root.clone(), path: join(&self.root, path).into(), element: false }
    }

    /// The field path.
    pub fn path(&self) -> &Rc<str> {
        &self.path
    }

    /// `model.layers.*` for `model.layers.3`.
    fn pattern(&self) -> String {
        match self.path.rsplit_once('.') {
            Some((array, _)) => format!("{array}.*"),
            None => "*".into(),
        }
    }
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// A configuration seen as another model's, so that its blocks can be fields of this one.
pub trait Project<Target> {
    /// The other model's configuration.
    fn project(&self) -> Target;
}

impl<C: Clone> Project<C> for C {
    fn project(&self) -> C {
        self.clone()
    }
}

/// An argument or result of a block: tensors, and plain data on which the body may depend. Derive it.
pub trait TraceArg: Clone + 'static {
    /// Appends the tensors in a fixed order, and the plain data as bytes.
    #[doc(hidden)]
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>);
    /// The same thing with other tensors, in the order of `flatten`.
    #[doc(hidden)]
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self;
}

impl<T: Element> TraceArg for Tensor<T> {
    fn flatten(&self, tensors: &mut Vec<Raw>, _: &mut Vec<u8>) {
        tensors.push(self.raw);
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        Self::new(tensors.next().unwrap_or(Raw::POISON))
    }
}

macro_rules! plain {
    ($($ty:ty => |$x:ident| $bytes:expr;)*) => {$(
        impl TraceArg for $ty {
            fn flatten(&self, _: &mut Vec<Raw>, data: &mut Vec<u8>) {
                let $x = self;
                data.extend_from_slice(&$bytes);
            }
            fn rebuild(&self, _: &mut dyn Iterator<Item = Raw>) -> Self {
                self.clone()
            }
        }
    )*};
}

plain! {
    bool => |x| [*x as u8];
    usize => |x| x.to_le_bytes();
    u32 => |x| x.to_le_bytes();
    i32 => |x| x.to_le_bytes();
    f32 => |x| x.to_bits().to_le_bytes();
    f64 => |x| x.to_bits().to_le_bytes();
    String => |x| [&x.len().to_le_bytes()[..], x.as_bytes()].concat();
    &'static str => |x| [&x.len().to_le_bytes()[..], x.as_bytes()].concat();
    Axis => |x| [&x.0.len().to_le_bytes()[..], x.0.as_bytes()].concat();
    ops::Real => |x| x.0.to_bits().to_le_bytes();
    MaskTerm => |x| {
        let mut text = String::new();
        ops::Attribute::print(x, &mut text);
        [text.as_bytes(), b";"].concat()
    };
    () => |_x| [];
}

impl<A: TraceArg> TraceArg for Option<A> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        data.push(self.is_some().into());
        self.iter().for_each(|item| item.flatten(tensors, data));
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        self.as_ref().map(|item| item.rebuild(tensors))
    }
}

impl<A: TraceArg> TraceArg for Vec<A> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        data.extend_from_slice(&self.len().to_le_bytes());
        self.iter().for_each(|item| item.flatten(tensors, data));
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        self.iter().map(|item| item.rebuild(tensors)).collect()
    }
}

impl<A: TraceArg, const N: usize> TraceArg for [A; N] {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        self.iter().for_each(|item| item.flatten(tensors, data));
    }
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        self.each_ref().map(|item| item.rebuild(tensors))
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+);)*) => {$(
        impl<$($name: TraceArg),+> TraceArg for ($($name,)+) {
            fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
                $(self.$index.flatten(tensors, data);)+
            }
            fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
                ($(self.$index.rebuild(tensors),)+)
            }
        }
    )*};
}

tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

/// What two runs of a body must share to record the same thing.
#[doc(hidden)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TraceKey {
    block: &'static str,
    pattern: String,
    arguments: TypeId,
    types: Vec<(TensorType, Vec<AxisName>)>,
    data: Vec<u8>,
}

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
    let in_place = !scope.element || !tracer::with(|t| t.admits(&tensors, place)).unwrap_or(false);
    if in_place {
        tracer::with(|t| t.push_path(scope.path.clone()));
        let returned = body(arguments);
        tracer::with(|t| t.pop_path());
        return returned;
    }

    let (pattern, types) = match tracer::with(|t| (t.relative(&scope.pattern()), t.types(&tensors))) {
        Some(found) => found,
        None => return body(arguments),
    };
    let key = TraceKey { block: name, pattern: pattern.clone(), arguments: TypeId::of::<A>(), types, data };
    let known = tracer::with(|t| t.body(&key)).flatten();
    let stem: String = name.split("::").next().unwrap_or(name).to_lowercase();
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
                            TraceErrorKind::Unequal { block: name.into(), prefix: scope.path.to_string() };
                        t.fail(kind, place);
                    }
                });
            }
            recorded
        }
        None => {
            tracer::with(|t| t.count_body_run());
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
            .map(|output| callee.node(output.node).axes.iter().map(borrowed).collect())
            .collect();
        let kind = NodeKind::Call { function: recorded.function, prefix: t.relative(&scope.path) };
        t.push_path(scope.path.clone());
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

fn borrowed(name: &AxisName) -> Axis {
    match name {
        AxisName::Borrowed(name) => Axis(name),
        AxisName::Owned(_) => Axis("?"),
    }
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
        t.open_function(name, pattern, Some((scope.path.clone(), pattern.into())));
        t.push_path(scope.path.clone());
        let input = |(index, (ty, axes)): (usize, &(TensorType, Vec<AxisName>))| {
            let axes: Vec<Axis> = axes.iter().map(borrowed).collect();
            let kind = NodeKind::Input { index, name: format!("argument{index}") };
            t.node(kind, vec![ty.clone()], &[], &axes, place)
        };
        key.types.iter().enumerate().map(input).collect::<Vec<Raw>>()
    });
    let returned = body(arguments.rebuild(&mut inputs.unwrap_or_default().into_iter()));
    let mut outputs = Vec::new();
    returned.flatten(&mut outputs, &mut Vec::new());
    let function = tracer::with(|t| {
        t.pop_path();
        let named = outputs.into_iter().enumerate().map(|(i, raw)| (format!("result{i}"), raw)).collect();
        t.close_function(named, place)
    });
    (function.flatten(), returned)
}

/// Checks arguments and results against the declared axes.
#[doc(hidden)]
pub struct Signature<'a> {
    function: &'static str,
    dims: &'a Dims,
    free: Vec<Dim>,
}

impl<'a> Signature<'a> {
    pub fn new(function: &'static str, dims: &'a Dims) -> Self {
        Self { function, dims, free: Vec::new() }
    }

    /// Checks the argument `name`.
    #[track_caller]
    pub fn tensor<T: Element>(&mut self, name: &str, tensor: Tensor<T>, axes: &[Axis]) {
        self.check(format!("argument `{name}`"), tensor, axes, Location::caller());
    }

    /// Checks a result and returns it.
    #[track_caller]
    pub fn result<T: Element>(&mut self, tensor: Tensor<T>, axes: &[Axis]) -> Tensor<T> {
        self.check("the result".into(), tensor, axes, Location::caller())
    }

    fn check<T: Element>(
        &mut self,
        what: String,
        tensor: Tensor<T>,
        axes: &[Axis],
        place: Place,
    ) -> Tensor<T> {
        tensor.apply(place, |t, raw, found| {
            let extent = |axis: &Axis| {
                self.dims.0.iter().chain(&self.free).find(|d| d.axis == *axis).map(|d| d.extent)
            };
            let known: Vec<Option<usize>> = axes.iter().map(extent).collect();
            let agrees = found.dims.len() == axes.len()
                && found.dims.iter().zip(axes.iter().zip(&known)).all(|(dim, (axis, extent))| {
                    dim.axis == *axis && extent.is_none_or(|extent| extent == dim.extent)
                });
            if agrees {
                let new =
                    found.dims.iter().zip(&known).filter(|(_, known)| known.is_none()).map(|(dim, _)| *dim);
                self.free.extend(new.collect::<Vec<_>>());
                return raw;
            }
            let declared = axes.iter().zip(known).map(|(axis, extent)| match extent {
                Some(extent) => format!("{axis}={extent}"),
                None => axis.to_string(),
            });
            let declared = format!("`[{}]`", declared.collect::<Vec<_>>().join(", "));
            t.fail(TraceErrorKind::Signature { function: self.function.into(), what, declared, found }, place)
        })
    }
}
