//! Entry points: any function of any block, recorded for arguments of given sizes.

use std::panic::Location;

use trace::{Role, Trace};

use crate::argument::TraceArg;
use crate::block::numbered;
use crate::element::Element;
use crate::tracer::{self, Place, Raw, Tracer};
use crate::{Axis, Dim, NamedType, Tensor, TraceError, TraceErrorKind};

/// A network of which entry points are recorded. `Network::record`, which [`model!`](crate::model) makes, begins one.
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

/// What a network declares to be divided among devices: axes of its own, and along which axis of a mesh.
pub type DeclaredShards = &'static [(&'static [&'static str], &'static str)];

/// A trace, and how it was recorded.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The trace.
    pub trace: Trace,
    /// How many bodies of repeated blocks ran: one for each kind, not for each layer.
    pub body_runs: usize,
    /// What the network declares to be divided among devices.
    pub shards: DeclaredShards,
}

impl<M> Recording<M> {
    /// A recording of no entry point yet.
    pub fn new(model: M) -> Self {
        Self { model, tracer: Tracer::default(), shards: &[] }
    }

    /// The same of a network that declares what is divided among devices.
    #[must_use]
    pub fn sharded(self, shards: DeclaredShards) -> Self {
        Self { shards, ..self }
    }

    /// Records `function`, a function of a block or a closure that calls some. Its arguments become those of the
    /// entry point, with names, axes and types as the signature declares them, and its results those of the entry
    /// point. `sizes` gives the extents of axes that `dims` does not.
    ///
    /// # Errors
    /// An axis without an extent, or a size that no argument has; or the first error of a body, with its Rust line.
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

    /// Records what `body` does with inputs and outputs of its own making: for what no declared function says.
    ///
    /// # Errors
    /// The first error of any tensor operation, with its Rust line.
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

    /// The trace of all entry points.
    pub fn finish(self) -> Traced {
        let (trace, body_runs) = self.tracer.recorded();
        Traced { trace, body_runs, shards: self.shards }
    }
}

/// The entry point that is being recorded.
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

    /// The next argument.
    pub fn input<T: Element>(&mut self, name: impl Into<String>, role: Role, dims: &[Dim]) -> Tensor<T> {
        let place = self.place;
        Tensor::new(tracer::with(|t| t.input(name.into(), role, T::TYPE, dims, place)).unwrap_or(Raw::POISON))
    }

    /// The next result.
    pub fn output<T: Element>(&mut self, name: impl Into<String>, role: Role, tensor: Tensor<T>) {
        self.output_raw(name.into(), role, tensor.raw);
    }

    pub(crate) fn output_raw(&mut self, name: String, role: Role, raw: Raw) {
        self.results.push((name, role, raw));
    }

    pub(crate) fn fail(&self, kind: TraceErrorKind) {
        tracer::with(|t| t.fail(kind, self.place));
    }

    /// Checks the type of what fills memory.
    pub(crate) fn expect(&self, name: &str, raw: Raw, dims: &[Dim]) {
        let place = self.place;
        tracer::with(|t| {
            let Some(found) = t.named_type(raw, place).filter(|ty| ty.dims != dims) else { return };
            let declared = NamedType { element: found.element, dims: dims.into() }.to_string();
            let (function, what) = ("encode".to_owned(), format!("memory `{name}`"));
            t.fail(TraceErrorKind::Signature { function, what, declared, found }, place);
        });
    }

    /// The extent that the recording gives to an axis.
    pub fn size(&mut self, axis: Axis) -> Option<usize> {
        tracer::with(|t| t.size(axis)).flatten()
    }
}

/// What can be an argument of an entry point: the recording makes one.
pub trait EntryArgument: TraceArg {
    /// The argument, still without a name and without axes, or with its own.
    #[doc(hidden)]
    fn argument(entry: &mut EntryRecorder) -> Self;
}

impl<T: Element> EntryArgument for Tensor<T> {
    fn argument(_: &mut EntryRecorder) -> Self {
        Self::new(Raw::ARGUMENT)
    }
}

/// A function that can be recorded: its first argument is the network, the others are [`EntryArgument`]s.
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
