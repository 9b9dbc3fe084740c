//! Compares the arguments and results of a declared function with the function's signature.

use std::panic::Location;

use trace::Role;

use crate::dims::Dims;
use crate::element::Element;
use crate::tracer::{self, Place, Raw, Tracer};
use crate::{Axis, Dim, Tensor, TraceErrorKind};

/// Compares axes with the declared ones. An entry point's argument without axes gets them from the signature.
#[doc(hidden)]
pub struct SignatureCheck<'a> {
    function: &'static str,
    dims: &'a Dims,
    free: Vec<Dim>,
    /// The axes of `..`, as in the first argument with it.
    rest: Option<Vec<Dim>>,
}

/// The axes that a signature declares for a tensor, for example `[B, D]` or `[.., D]`.
#[derive(Clone, Copy)]
pub struct DeclaredAxes<'a> {
    /// Whether the signature declares `..`, which allows any other axes before the named axes.
    pub rest: bool,
    /// The axes that the signature names.
    pub axes: &'a [Axis],
}

impl<'a> SignatureCheck<'a> {
    pub fn new(function: &'static str, dims: &'a Dims) -> Self {
        Self { function, dims, free: Vec::new(), rest: None }
    }

    /// Checks the axes of the argument `name`, and returns the argument.
    #[track_caller]
    pub fn argument<T: Element>(
        &mut self,
        name: &str,
        tensor: Tensor<T>,
        declared: DeclaredAxes,
    ) -> Tensor<T> {
        let place = Location::caller();
        if tensor.raw == Raw::ARGUMENT {
            let raw = tracer::with(|t| self.input::<T>(t, name, declared, place));
            return Tensor::new(raw.unwrap_or(Raw::POISON));
        }
        self.check(format!("argument `{name}`"), tensor, declared, place)
    }

    /// Checks the axes of a result of the function, and returns the result.
    #[track_caller]
    pub fn result<T: Element>(&mut self, tensor: Tensor<T>, declared: DeclaredAxes) -> Tensor<T> {
        self.check("the result".into(), tensor, declared, Location::caller())
    }

    fn known(&self, axis: Axis) -> Option<usize> {
        self.dims.0.iter().chain(&self.free).find(|d| d.axis == axis).map(|d| d.extent)
    }

    fn input<T: Element>(&mut self, t: &mut Tracer, name: &str, declared: DeclaredAxes, place: Place) -> Raw {
        let mut dims = Vec::new();
        if declared.rest {
            // The axes to which the recording gives a size and which the signature does not name.
            let unnamed = t.unasked().into_iter().filter(|axis| !declared.axes.contains(axis));
            let rest: Vec<Dim> =
                unnamed.collect::<Vec<_>>().into_iter().filter_map(|a| t.size(a).map(|n| a.of(n))).collect();
            dims = self.rest.get_or_insert(rest).clone();
        }
        for &axis in declared.axes {
            let (known, sized) = (self.known(axis), t.size(axis));
            let (Some(extent), true) = (known.or(sized), known.is_none_or(|n| sized.is_none_or(|m| n == m)))
            else {
                let (function, argument) = (self.function.into(), name.into());
                return t.fail(TraceErrorKind::Size { function, argument, axis, known, sized }, place);
            };
            if known.is_none() {
                self.free.push(axis.of(extent));
            }
            dims.push(axis.of(extent));
        }
        t.input(name.into(), Role::Plain, T::element(), &dims, place)
    }

    fn check<T: Element>(
        &mut self,
        what: String,
        tensor: Tensor<T>,
        declared: DeclaredAxes,
        place: Place,
    ) -> Tensor<T> {
        tensor.apply(place, |t, raw, found| {
            let named = found.dims.len().saturating_sub(declared.axes.len());
            let (rest, dims) = found.dims.split_at(if declared.rest { named } else { 0 });
            let agrees = dims.len() == declared.axes.len()
                && (!declared.rest || self.rest.as_ref().is_none_or(|same| same == rest))
                && dims.iter().zip(declared.axes).all(|(dim, axis)| {
                    dim.axis == *axis && self.known(*axis).is_none_or(|extent| extent == dim.extent)
                });
            if agrees {
                if declared.rest {
                    self.rest.get_or_insert(rest.to_vec());
                }
                let new: Vec<Dim> = dims.iter().filter(|d| self.known(d.axis).is_none()).copied().collect();
                self.free.extend(new);
                return raw;
            }
            let declared = self.text(declared);
            t.fail(TraceErrorKind::Signature { function: self.function.into(), what, declared, found }, place)
        })
    }

    /// For example `[.., D=8]`.
    fn text(&self, declared: DeclaredAxes) -> String {
        let axis = |axis: &Axis| match self.known(*axis) {
            Some(extent) => format!("{axis}={extent}"),
            None => axis.to_string(),
        };
        let rest = match (&self.rest, declared.rest) {
            (_, false) => Vec::new(),
            (None, true) => vec!["..".into()],
            (Some(rest), true) => rest.iter().map(|d| format!("{}={}", d.axis, d.extent)).collect(),
        };
        let all: Vec<String> = rest.into_iter().chain(declared.axes.iter().map(axis)).collect();
        format!("`[{}]`", all.join(", "))
    }
}
