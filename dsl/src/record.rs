//! Records entry points. An entry point can be any function of any block, with arguments of the given sizes.

use std::panic::Location;

use trace::{Role, Trace};

use crate::argument::TraceArg;
use crate::block::numbered;
use crate::element::Element;
use crate::tracer::{self, Place, Raw, Tracer};
use crate::{Axis, Dim, NamedType, Tensor, TraceError, TraceErrorKind};

/// Records entry points of a network. Call `Network::record`, which [`model!`](crate::model) generates, to
/// begin a recording.
///
/// ```
/// use tracewright_dsl::{F32, Float, model};
///
/// #[derive(Clone)]
/// struct Sizes { inputs: usize, outputs: usize }
///
/// model! {
///     Scale<T: Float>(Sizes) {
///         dims { D = inputs, O = outputs }
///         project: Linear[D -> O],
///         fn predict(x: T[B, D]) -> T[B, O] { self.project(x) }
///     }
/// }
///
/// # fn main() -> Result<(), tracewright_dsl::TraceError> {
/// let recorded = Scale::<F32>::record(&Sizes { inputs: 3, outputs: 2 })?.entry("predict", Scale::predict, [("B", 8)])?;
/// let signature = recorded.finish().trace.entry("predict").unwrap().signature();
/// assert_eq!(signature.arguments[0].to_string(), "x: f32[8,3]");
/// # Ok(())
/// # }
/// ```
pub struct Recording<M> {
    model: M,
    tracer: Tracer,
    shards: DeclaredShards,
}

/// The axes that a network partitions over a device mesh. Each item contains a list of tensor axes
/// and the name of the mesh axis that partitions these axes.
pub type DeclaredShards = &'static [(&'static [&'static str], &'static str)];

/// A finished recording, which contains the trace, the number of recorded bodies and the partitioned axes.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The trace of all entry points.
    pub trace: Trace,
    /// The number of function bodies that Tracewright recorded for block arrays. Tracewright
    /// records a function body once for each kind of layer, and not for each layer.
    pub body_runs: usize,
    /// The axes that the network partitions over a device mesh.
    pub shards: DeclaredShards,
    /// Whether the network asked for [`experts_mode`](crate::experts_mode). Otherwise the trace is
    /// the same for each value of [`EntryPoint::experts`](crate::EntryPoint).
    pub asked_experts_mode: bool,
}

impl<M> Recording<M> {
    /// Creates a recording without entry points.
    pub fn new(model: M) -> Self {
        Self { model, tracer: Tracer::default(), shards: &[] }
    }

    /// Sets the axes that the network partitions over a device mesh.
    #[must_use]
    pub fn sharded(self, shards: DeclaredShards) -> Self {
        Self { shards, ..self }
    }

    /// Records `function`, which is a function of a block or a closure that calls functions of
    /// blocks. The arguments and results of the function become the arguments and results of the
    /// entry point. The declared signature of the function sets the names, axes and types of the
    /// arguments. `sizes` sets the extents of axes that `dims` does not declare.
    ///
    /// # Errors
    /// Returns the first error in a function body, with the line of Rust code that caused the error. Returns
    /// an error if an axis of an argument has no extent, or if `sizes` contains an axis that no argument has.
    #[track_caller]
    pub fn entry<A, F: EntryFunction<M, A>>(
        self,
        name: &str,
        function: F,
        sizes: impl IntoIterator<Item = impl Into<Dim>>,
    ) -> Result<Self, TraceError> {
        let sizes: Vec<Dim> = sizes.into_iter().map(Into::into).collect();
        self.record(name, &sizes, Location::caller(), |model, entry| {
            let results = function.call(model, entry);
            entry.results.extend(numbered(results));
        })
    }

    /// Records an entry point without a declared function. The closure `body` creates the inputs
    /// and outputs of the entry point.
    ///
    /// # Errors
    /// Returns the first error of any tensor operation, with the error's line of Rust code.
    #[track_caller]
    pub fn entry_with(
        self,
        name: &str,
        body: impl FnOnce(&M, &mut EntryRecorder),
    ) -> Result<Self, TraceError> {
        self.record(name, &[], Location::caller(), body)
    }

    fn record(
        self,
        name: &str,
        sizes: &[Dim],
        place: Place,
        body: impl FnOnce(&M, &mut EntryRecorder),
    ) -> Result<Self, TraceError> {
        let Self { model, tracer, shards } = self;
        let (tracer, ()) = tracer.run(|| {
            let mut entry = EntryRecorder::open(name, sizes, place);
            body(&model, &mut entry);
            entry.close(name);
        })?;
        Ok(Self { model, tracer, shards })
    }

    /// Ends the recording, and returns the trace of all entry points.
    pub fn finish(self) -> Traced {
        let asked_experts_mode = self.tracer.asked_experts_mode;
        let (trace, body_runs) = self.tracer.recorded();
        Traced { trace, body_runs, shards: self.shards, asked_experts_mode }
    }
}

/// An entry point whose recording is in progress.
pub struct EntryRecorder {
    place: Place,
    results: Vec<(String, Role, Raw)>,
}

impl EntryRecorder {
    fn open(name: &str, sizes: &[Dim], place: Place) -> Self {
        tracer::with(|t| {
            if t.has_function(name) {
                t.fail(TraceErrorKind::EntryTwice { name: name.into() }, place);
            }
            t.set_sizes(sizes);
            t.open_function(name.to_owned(), "", None);
        });
        Self { place, results: Vec::new() }
    }

    fn close(self, name: &str) {
        tracer::with(|t| {
            if let Some(unused) = t.set_sizes(&[]).first().filter(|_| !t.failed()) {
                let kind = TraceErrorKind::UnusedSize { name: name.into(), axis: unused.axis };
                t.fail(kind, self.place);
            }
            if let Some(function) = t.close_function(self.results, self.place) {
                t.add_function(function, true);
            }
        });
    }

    /// Adds the next argument of the entry point, and returns the tensor of the argument.
    pub fn input<T: Element>(&mut self, name: impl Into<String>, role: Role, dims: &[Dim]) -> Tensor<T> {
        let place = self.place;
        Tensor::new(
            tracer::with(|t| t.input(name.into(), role, T::element(), dims, place)).unwrap_or(Raw::POISON),
        )
    }

    /// Adds the next result of the entry point.
    pub fn output<T: Element>(&mut self, name: impl Into<String>, role: Role, tensor: Tensor<T>) {
        self.output_raw(name.into(), role, tensor.raw);
    }

    pub(crate) fn output_raw(&mut self, name: String, role: Role, raw: Raw) {
        self.results.push((name, role, raw));
    }

    pub(crate) fn fail(&self, kind: TraceErrorKind) {
        tracer::with(|t| t.fail(kind, self.place));
    }

    /// Checks the type of a tensor that the network stores as the state of an encoder.
    pub(crate) fn expect(&self, name: &str, raw: Raw, dims: &[Dim]) {
        let place = self.place;
        tracer::with(|t| {
            let Some(found) = t.named_type(raw, place).filter(|ty| ty.dims != dims) else { return };
            let declared = NamedType { element: found.element, dims: dims.into() }.to_string();
            let (function, what) = ("encode".to_owned(), format!("encoder output `{name}`"));
            t.fail(TraceErrorKind::Signature { function, what, declared, found }, place);
        });
    }

    /// The extent that the recording sets for an axis, or `None` if the recording sets no extent.
    pub fn size(&mut self, axis: Axis) -> Option<usize> {
        tracer::with(|t| t.size(axis)).flatten()
    }
}

/// A type that can be an argument of an entry point. The recording creates the argument's value.
pub trait EntryArgument: TraceArg {
    /// Creates the argument, possibly before the argument's name and axes are known.
    #[doc(hidden)]
    fn argument(entry: &mut EntryRecorder) -> Self;
}

impl<T: Element> EntryArgument for Tensor<T> {
    fn argument(_: &mut EntryRecorder) -> Self {
        Self::new(Raw::ARGUMENT)
    }
}

/// A function that Tracewright can record as an entry point. The first argument of the function is
/// the network. All arguments except the network are [`EntryArgument`]s.
pub trait EntryFunction<M, Arguments> {
    #[doc(hidden)]
    fn call(self, model: &M, entry: &mut EntryRecorder) -> Vec<Raw>;
}

macro_rules! functions {
    ($(($($argument:ident)*))*) => {$(
        #[allow(non_snake_case, unused_variables, reason = "one variable for each type parameter, maybe none")]
        impl<M, R: TraceArg, Function: FnOnce(&M, $($argument),*) -> R, $($argument: EntryArgument),*>
            EntryFunction<M, ($($argument,)*)> for Function
        {
            fn call(self, model: &M, entry: &mut EntryRecorder) -> Vec<Raw> {
                $(let $argument = $argument::argument(entry);)*
                let mut results = Vec::new();
                self(model, $($argument),*).flatten(&mut results, &mut Vec::new());
                results
            }
        }
    )*};
}

functions! { () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H) }
