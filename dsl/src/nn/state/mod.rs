//! Types with which the code of a network reads and writes the state of layers. The functions in
//! this module satisfy the requirements of [`trace::StateKind`].

mod encoded;
mod kv;
mod matrix;
mod recurrent;
mod slots;

use std::any::{Any, type_name};
use std::marker::PhantomData;
use std::panic::Location;

use trace::{KvFormat, Part, Role, Sizes, StateAxis, StateKind, StateName};

pub use matrix::MatrixTokens;
pub use states::*;

use crate::argument::TraceArg;
use crate::element::{Element, Float};
use crate::record::EntryRecorder;
use crate::tracer::{self, Raw};
use crate::{Axis, Dim, Tensor, TraceErrorKind};

macro_rules! states {
    ($($file:ident::$ty:ident is [$($kind:ident),*];)+) => {
        /// The types of state that the `cache` clause can name. `model!` looks up the types of
        /// state in this module.
        pub mod states {
            $(pub use super::$file::$ty;)+
        }

        /// Causes a compile error if `states!` lists no type for a variant of [`trace::StateKind`].
        #[allow(dead_code, unreachable_patterns, reason = "several types write one kind")]
        const fn is_written(kind: StateKind) {
            match kind { $($(StateKind::$kind(_) => {})*)+ }
        }
    };
}

// Each line maps a Rust type to the kinds of state that its tensors have.
states! {
    kv::Kv is [Kv, Ring];
    slots::Slots is [Kv, Ring];
    recurrent::Recurrent is [Recurrent];
    encoded::Encoded is [];
}

/// A type with which the code of a network reads and writes a state. All types that the `cache`
/// clause can name implement this trait.
pub trait State: TraceArg {
    /// Whether the function `encode` fills the state and all other entry points only read the state.
    #[doc(hidden)]
    const IS_MEMORY: bool = false;

    /// Creates the arguments of an entry point for a declared state. The arguments have the order
    /// of [`TraceArg::flatten`].
    #[doc(hidden)]
    fn take(declared: &LayerState, arguments: &mut StateArguments<'_>) -> Self;

    /// Creates a placeholder for a state that the network does not declare. The caller has already
    /// reported that the state is missing.
    #[doc(hidden)]
    fn missing() -> Self;
}

/// A state that the `cache` clause declares with `N` axes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no state with {N} axes",
    label = "a state with other axes",
    note = "keys and values have heads and features, `[K, E]`, or heads, features of a key and features of a value, `[K, E, W]`"
)]
pub trait HasAxes<const N: usize>: State {}

/// A state that needs less memory in a layer with an attention window than in a layer without a window.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no window",
    label = "a state that is declared with `within`"
)]
pub trait Windowed: State {}

/// The declaration of one state of one layer.
#[derive(Clone, Debug)]
pub struct LayerState {
    name: Option<&'static str>,
    dims: Vec<Dim>,
    window: Option<usize>,
    pub(crate) is_memory: bool,
    /// Whether the state belongs to a layer that proposes draft tokens.
    pub(crate) is_draft: bool,
    take: fn(&Self, &mut StateArguments<'_>) -> Box<dyn AnyState>,
}

impl LayerState {
    /// Declares a state of the type `S` with the axes `dims`. The type `S` adds other axes, such as
    /// the batch axis.
    pub fn new<S: HasAxes<N>, const N: usize>(dims: [Dim; N]) -> Self {
        let take = |declared: &Self, arguments: &mut StateArguments<'_>| -> Box<dyn AnyState> {
            Box::new(S::take(declared, arguments))
        };
        Self { name: None, dims: dims.into(), window: None, is_memory: S::IS_MEMORY, is_draft: false, take }
    }

    /// Declares a state of a layer that sees only the last `window` positions. With `None`, the
    /// layer sees all positions.
    pub fn windowed<S: HasAxes<N> + Windowed, const N: usize>(dims: [Dim; N], window: Option<usize>) -> Self {
        Self { window, ..Self::new::<S, N>(dims) }
    }

    /// Gives the state a name. If a layer has several states of the same type, each state needs a name.
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Marks the state as the state of a layer that proposes draft tokens.
    #[must_use]
    pub fn for_draft(self) -> Self {
        Self { is_draft: true, ..self }
    }

    fn dims(&self) -> &[Dim] {
        &self.dims
    }

    fn window(&self) -> Option<usize> {
        self.window
    }

    /// The name of one of the state's tensors. If the state has a name, this name replaces a
    /// default name such as `state` or `slots`.
    fn tensor_name(&self, tensor: &str) -> String {
        match (self.name, tensor) {
            (None, _) => tensor.to_owned(),
            (Some(name), "state" | "slots" | "slot") => name.to_owned(),
            (Some(name), _) => format!("{name}_{tensor}"),
        }
    }
}

/// Creates the arguments of an entry point for the state of one layer.
pub struct StateArguments<'a> {
    pub(crate) entry: &'a mut EntryRecorder,
    pub(crate) layer: usize,
    pub(crate) format: KvFormat,
    pub(crate) sizes: Sizes,
    /// Whether the entry point fills the state of an encoder. If the value is `false`, the entry
    /// point takes the state as an argument.
    pub(crate) fills: bool,
    /// The state tensors that have been created so far.
    pub(crate) kept: &'a mut Vec<StateTensor>,
}

/// A state tensor of an entry point.
pub(crate) struct StateTensor {
    pub name: String,
    pub role: Role,
    pub dims: Vec<Dim>,
    /// The argument of the entry point. If the entry point fills the state, this field is an error
    /// handle, because the argument does not exist.
    pub raw: Raw,
}

impl StateArguments<'_> {
    /// All axes of a state tensor. The `cache` clause declares only the axes `own`, and `kind` adds
    /// the other axes.
    fn axes(&self, kind: StateKind, own: &[Dim]) -> Vec<StateAxis> {
        let own: Vec<StateAxis> = own.iter().map(|d| (d.axis.0.into(), d.extent)).collect();
        kind.axes(&own, self.sizes)
    }

    /// Creates the argument for the next tensor of the state. The argument's name contains the
    /// index of the layer: `keys` becomes `keys3` in layer 3.
    fn input<E: Element>(&mut self, kind: StateKind, name: String, axes: &[StateAxis]) -> Tensor<E> {
        let layer = self.layer;
        self.tensor(name, |name| Role::State { layer, part: Part { kind, name } }, axes)
    }

    fn tensor<E: Element>(
        &mut self,
        name: String,
        role: impl FnOnce(StateName) -> Role,
        axes: &[StateAxis],
    ) -> Tensor<E> {
        let layer = self.layer;
        let dims: Vec<Dim> = axes.iter().map(|(axis, extent)| Axis::named(axis).of(*extent)).collect();
        let Some(role) = StateName::new(&name).map(role) else {
            self.entry.fail(TraceErrorKind::StateName { name });
            return Tensor::new(Raw::POISON);
        };
        let name = format!("{name}{layer}");
        if self.kept.iter().any(|known| known.role == role) {
            self.entry.fail(TraceErrorKind::StateTwice { name, layer });
            return Tensor::new(Raw::POISON);
        }
        let tensor =
            if self.fills { Tensor::new(Raw::POISON) } else { self.entry.input(name.clone(), role, &dims) };
        self.kept.push(StateTensor { name, role, dims, raw: tensor.raw });
        tensor
    }
}

/// A state of any type.
trait AnyState {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>);
    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Box<dyn AnyState>;
    fn any(&mut self) -> &mut dyn Any;
}

impl<S: State> AnyState for S {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        TraceArg::flatten(self, tensors, data);
    }

    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Box<dyn AnyState> {
        Box::new(TraceArg::rebuild(self, tensors))
    }

    fn any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The states of all layers.
pub struct Cache<T: Float> {
    states: Vec<Declared>,
    /// The length of the longest sequence that fits into the cache, in tokens.
    pub context: usize,
    element: PhantomData<T>,
}

/// A state, the layer that has the state, and the name in the declaration of the state.
struct Declared {
    layer: usize,
    name: Option<&'static str>,
    state: Box<dyn AnyState>,
}

impl Declared {
    fn of<S: State>(&mut self) -> &mut S {
        match self.state.any().downcast_mut() {
            Some(state) => state,
            None => unreachable!("found by its type"),
        }
    }
}

impl<T: Float> Cache<T> {
    pub(crate) fn new(context: usize) -> Self {
        Self { states: Vec::new(), context, element: PhantomData }
    }

    pub(crate) fn take(&mut self, declared: &LayerState, mut arguments: StateArguments<'_>) {
        let state = (declared.take)(declared, &mut arguments);
        self.states.push(Declared { layer: arguments.layer, name: declared.name, state });
    }

    /// Returns the state of type `S` without a name that the `cache` clause declares for the layer.
    #[track_caller]
    pub fn state<S: State>(&mut self, layer: usize) -> &mut S {
        self.find(layer, None, Location::caller())
    }

    /// Returns the state of type `S` that the `cache` clause declares for the layer under the name `name`.
    #[track_caller]
    pub fn named<S: State>(&mut self, layer: usize, name: &'static str) -> &mut S {
        self.find(layer, Some(name), Location::caller())
    }

    /// Returns the two states that the `cache` clause declares for the layer under the names `names`.
    #[track_caller]
    pub fn pair<A: State, B: State>(&mut self, layer: usize, names: [&'static str; 2]) -> (&mut A, &mut B) {
        let place = Location::caller();
        let (a, b) =
            (self.index::<A>(layer, Some(names[0]), place), self.index::<B>(layer, Some(names[1]), place));
        match self.states.get_disjoint_mut([a, b]) {
            Ok([a, b]) => (a.of(), b.of()),
            Err(_) => unreachable!("states with different names"),
        }
    }

    fn find<S: State>(
        &mut self,
        layer: usize,
        name: Option<&'static str>,
        place: &'static Location<'static>,
    ) -> &mut S {
        let at = self.index::<S>(layer, name, place);
        self.states[at].of()
    }

    /// The index of a state in `states`. If the state does not exist, this method adds a placeholder.
    fn index<S: State>(
        &mut self,
        layer: usize,
        name: Option<&'static str>,
        place: &'static Location<'static>,
    ) -> usize {
        let is = |one: &mut Declared| one.layer == layer && one.name == name && one.state.any().is::<S>();
        self.states.iter_mut().position(is).unwrap_or_else(|| {
            let kind = type_name::<S>().split('<').next().and_then(|path| path.rsplit("::").next());
            let kind = kind.unwrap_or_default();
            tracer::with(|t| t.fail(TraceErrorKind::NoState { kind, layer, name }, place));
            self.states.push(Declared { layer, name, state: Box::new(S::missing()) });
            self.states.len() - 1
        })
    }
}

impl<T: Float> Clone for Cache<T> {
    fn clone(&self) -> Self {
        let mut tensors = Vec::new();
        self.flatten(&mut tensors, &mut Vec::new());
        self.rebuild(&mut tensors.into_iter())
    }
}

impl<T: Float> TraceArg for Cache<T> {
    fn flatten(&self, tensors: &mut Vec<Raw>, data: &mut Vec<u8>) {
        self.states.iter().for_each(|one| one.state.flatten(tensors, data));
        self.context.flatten(tensors, data);
    }

    fn rebuild(&self, tensors: &mut dyn Iterator<Item = Raw>) -> Self {
        let rebuilt =
            |one: &Declared| Declared { layer: one.layer, name: one.name, state: one.state.rebuild(tensors) };
        let states = self.states.iter().map(rebuilt).collect();
        Self { states, context: self.context, element: PhantomData }
    }
}
