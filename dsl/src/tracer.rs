//! The tracer records the open trace of the current thread.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ops::{ElementType, Op, TensorType};
use trace::{
    AxisName, Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Role, Trace,
    resolve_key,
};

use crate::origin::{ActivationNodes, Origin};
use crate::{Axis, Dim, ExpertsMode, NamedType, TraceError, TraceErrorKind};

/// The source location of a call to an operator or a method.
pub(crate) type Place = &'static Location<'static>;

/// An untyped tensor handle that contains the numbers of the node, the function and the trace.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Raw {
    pub(crate) node: u32,
    pub(crate) function: u32,
    pub(crate) trace: u32,
}

impl Raw {
    pub(crate) const POISON: Self = Self { node: u32::MAX, function: u32::MAX, trace: u32::MAX };

    /// A placeholder for an argument of an entry point. The declared function that takes the
    /// argument replaces the placeholder, and sets the name and axes.
    pub(crate) const ARGUMENT: Self = Self { node: u32::MAX - 1, function: u32::MAX, trace: u32::MAX };

    pub(crate) fn id(self) -> NodeId {
        NodeId::new(self.node as usize)
    }
}

/// The key that identifies the recording of a function body. Two calls with equal keys share one recording.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TraceKey {
    /// The Rust type of the block.
    pub owner: TypeId,
    /// The axes of the block and of its fields. See [`crate::Block::declared_axes`].
    pub axes: Vec<Dim>,
    pub block: &'static str,
    pub pattern: String,
    pub arguments: TypeId,
    pub types: Vec<(TensorType, Vec<AxisName>)>,
    /// Whether each argument is an activation. A body may implicitly repeat an argument along
    /// missing axes only if the argument is no activation.
    pub activations: Vec<bool>,
    pub experts: ExpertsMode,
    pub data: Vec<u8>,
}

thread_local! {
    static OPEN: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

static TRACES: AtomicU32 = AtomicU32::new(0);

/// The state of the tracer.
pub(crate) struct Tracer {
    id: u32,
    trace: Trace,
    /// The functions whose recording is in progress. The innermost function is the last item.
    open: Vec<Open>,
    /// The field paths of the blocks whose functions are running. The path of the innermost block
    /// is the last item.
    paths: Vec<Rc<str>>,
    /// The first error of the trace. After an error, every handle is an error handle, so the trace reports no
    /// further errors.
    error: Option<TraceError>,
    /// The recorded bodies of block arrays.
    bodies: Vec<(TraceKey, Body)>,
    /// The Rust source files of the calls so far, and the name of each file in the trace.
    files: Vec<(&'static str, Arc<str>)>,
    /// A cache of the last node's field path: the number of the function, the path, and the path
    /// relative to the function. The next node usually has the same field path as the last node.
    last_path: Option<(u32, Rc<str>, Arc<str>)>,
    next_function: u32,
    body_runs: usize,
    /// The extents that the recording of an entry point sets for axes. The boolean is `true` if an
    /// argument has used the extent.
    sizes: Vec<(Dim, bool)>,
    /// The experts that the entry point that is being recorded computes for a token.
    pub(crate) experts_mode: ExpertsMode,
    /// Whether the network called [`crate::experts_mode`].
    pub(crate) asked_experts_mode: bool,
}

struct Open {
    number: u32,
    function: Function,
    parameters: HashMap<String, NodeId>,
    inputs: usize,
    activations: ActivationNodes,
    /// The field path of the array element whose function is running, and the path with `*` instead
    /// of the index: `model.layers.0` and `model.layers.*`.
    element: Option<(Rc<str>, Rc<str>)>,
}

/// A recorded body of a block array's function.
#[derive(Clone)]
pub(crate) struct Body {
    pub(crate) function: FunctionId,
    /// The value that the body returned. Each call of the body copies the returned value, and
    /// inserts the tensors of the call's results.
    pub(crate) returned: Rc<dyn Any>,
}

/// Runs `f` with the open tracer. Returns `None` if no trace is open.
pub(crate) fn with<R>(f: impl FnOnce(&mut Tracer) -> R) -> Option<R> {
    let (mut f, mut result) = (Some(f), None);
    with_dyn(&mut |tracer| result = f.take().map(|f| f(tracer)));
    result
}

/// The part of [`with`] that does not depend on a generic type. rustc compiles this part only once.
fn with_dyn(f: &mut dyn FnMut(&mut Tracer)) {
    OPEN.with_borrow_mut(|open| open.iter_mut().for_each(f));
}

/// Closes the trace when `trace` returns or panics.
struct Guard;

impl Guard {
    fn close(self) -> Result<Tracer, TraceError> {
        match OPEN.take() {
            None => Err(TraceErrorKind::Closed.nowhere()),
            Some(Tracer { error: Some(error), .. }) => Err(error),
            Some(tracer) => Ok(tracer),
        }
    }
}

impl TraceErrorKind {
    /// Creates an error that has no line of Rust code.
    fn nowhere(self) -> TraceError {
        TraceError { kind: Box::new(self), provenance: Provenance::new("", "", 0) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        OPEN.set(None);
    }
}

/// Opens a trace, runs `record`, and records the operations of `record`.
///
/// # Errors
/// Returns the first error of any tensor operation, with the error's line of Rust code.
pub fn trace(record: impl FnOnce()) -> Result<Trace, TraceError> {
    let (tracer, ()) = Tracer::default().run(record)?;
    Ok(tracer.trace)
}

/// The name of a Rust file in traces. The name is the path relative to the folder of the file's
/// crate, and is the same on every machine.
fn crate_relative(file: &str) -> String {
    let parts: Vec<&str> = file.split(['/', '\\']).collect();
    let anchor = parts.iter().rposition(|p| ["src", "examples", "tests", "benches"].contains(p));
    let absolute = file.starts_with(['/', '\\']) || file.get(1..2) == Some(":");
    match anchor {
        Some(anchor) if absolute => parts[anchor.saturating_sub(1)..].join("/"),
        _ => parts.join("/"),
    }
}

impl Default for Tracer {
    fn default() -> Self {
        Self {
            id: TRACES.fetch_add(1, Ordering::Relaxed),
            trace: Trace::default(),
            open: Vec::new(),
            paths: Vec::new(),
            error: None,
            bodies: Vec::new(),
            files: Vec::new(),
            last_path: None,
            next_function: 0,
            body_runs: 0,
            sizes: Vec::new(),
            experts_mode: ExpertsMode::default(),
            asked_experts_mode: false,
        }
    }
}

impl Tracer {
    /// Opens this tracer, runs `record`, and adds the operations of `record` to the trace.
    ///
    /// # Errors
    /// Returns the first error of any tensor operation, with the error's line of Rust code.
    pub(crate) fn run<R>(self, record: impl FnOnce() -> R) -> Result<(Self, R), TraceError> {
        let open = self.open()?;
        let recorded = record();
        Ok((open.close()?, recorded))
    }

    fn open(self) -> Result<Guard, TraceError> {
        if OPEN.with_borrow(|open| open.is_some()) {
            return Err(TraceErrorKind::Nested.nowhere());
        }
        OPEN.set(Some(self));
        Ok(Guard)
    }

    /// Returns the trace, and the number of function bodies that Tracewright recorded for block arrays.
    pub(crate) fn recorded(self) -> (Trace, usize) {
        (self.trace, self.body_runs)
    }

    /// Sets the extents of axes for an entry point. Returns the axes of the previous entry point
    /// whose extents no argument has used.
    pub(crate) fn set_sizes(&mut self, sizes: &[Dim]) -> Vec<Dim> {
        let sizes = sizes.iter().map(|dim| (*dim, false)).collect();
        let before = std::mem::replace(&mut self.sizes, sizes);
        before.into_iter().filter(|(_, asked)| !asked).map(|(dim, _)| dim).collect()
    }

    /// The extent that the recording sets for an axis.
    pub(crate) fn size(&mut self, axis: Axis) -> Option<usize> {
        let (dim, asked) = self.sizes.iter_mut().find(|(dim, _)| dim.axis == axis)?;
        *asked = true;
        Some(dim.extent)
    }

    /// The axes whose extents no argument has used yet.
    pub(crate) fn unasked(&self) -> Vec<Axis> {
        self.sizes.iter().filter(|(_, asked)| !asked).map(|(dim, _)| dim.axis).collect()
    }

    /// Adds the next argument of the innermost open function.
    pub(crate) fn input(
        &mut self,
        name: String,
        role: Role,
        element: ElementType,
        dims: &[Dim],
        place: Place,
    ) -> Raw {
        let Some(open) = self.open.last_mut() else { return self.fail(TraceErrorKind::Closed, place) };
        let kind = NodeKind::Input { index: open.inputs, name, role };
        open.inputs += 1;
        let ty = TensorType::new(element, dims.iter().map(|d| d.extent).collect::<Vec<_>>());
        let axes: Vec<Axis> = dims.iter().map(|d| d.axis).collect();
        self.node(kind, vec![ty], &[], &axes, place)
    }

    /// The argument of the entry point with the role [`Role::Extended`] for `original`. The first
    /// call adds the argument, with the axes `rows`.
    pub(crate) fn extended(&mut self, original: usize, rows: &[Dim], place: Place) -> Raw {
        let wanted = Role::Extended { original };
        let [open] = &self.open[..] else { return self.fail(TraceErrorKind::Stranger, place) };
        let is_wanted = |id: &NodeId| matches!(open.function.node(*id).kind, NodeKind::Input { role, .. } if role == wanted);
        match open.function.ids().find(is_wanted) {
            Some(id) => Raw { node: id.index() as u32, function: open.number, trace: self.id },
            None => self.input(format!("above_{original}"), wanted, ElementType::I32, rows, place),
        }
    }

    pub(crate) fn open_function(&mut self, name: String, prefix: &str, element: Option<(Rc<str>, Rc<str>)>) {
        let number = self.next_function;
        self.next_function += 1;
        let function = Function::new(name, prefix);
        self.open.push(Open {
            number,
            function,
            parameters: HashMap::new(),
            inputs: 0,
            activations: ActivationNodes::default(),
            element,
        });
    }

    /// Closes the innermost open function. Returns `None` if there was an error.
    pub(crate) fn close_function(
        &mut self,
        outputs: Vec<(String, Role, Raw)>,
        place: Place,
    ) -> Option<Function> {
        let handles: Vec<Raw> = outputs.iter().map(|(.., raw)| *raw).collect();
        let admitted = self.admits(&handles, place);
        let mut open = self.open.pop()?;
        if !admitted {
            return None;
        }
        open.function.outputs =
            outputs.into_iter().map(|(name, role, raw)| Output { name, role, node: raw.id() }).collect();
        Some(open.function)
    }

    pub(crate) fn add_function(&mut self, function: Function, entry: bool) -> FunctionId {
        let id = FunctionId(self.trace.functions.len() as u32);
        self.trace.functions.push(function);
        if entry {
            self.trace.entries.push(id);
        }
        id
    }

    pub(crate) fn function(&self, id: FunctionId) -> &Function {
        self.trace.function(id)
    }

    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.trace.functions.iter().any(|f| f.name == name)
            || self.open.iter().any(|o| o.function.name == name)
    }

    pub(crate) fn unique_name(&self, stem: &str) -> String {
        let numbered = (1usize..).map(|n| if n == 1 { stem.to_owned() } else { format!("{stem}_{n}") });
        numbered.into_iter().find(|name| !self.has_function(name)).unwrap_or_default()
    }

    pub(crate) fn body(&self, key: &TraceKey) -> Option<Body> {
        // The previous layer is usually of the same kind, so the search starts at the end.
        self.bodies.iter().rev().find(|(known, _)| known == key).map(|(_, body)| body.clone())
    }

    pub(crate) fn keep_body(&mut self, key: TraceKey, body: Body) {
        self.bodies.push((key, body));
    }

    pub(crate) fn count_body_run(&mut self) {
        self.body_runs += 1;
    }

    pub(crate) fn push_path(&mut self, path: Rc<str>) {
        self.paths.push(path);
    }

    pub(crate) fn pop_path(&mut self) {
        self.paths.pop();
    }

    pub(crate) fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// The path relative to the innermost open function. In the path of the current array element,
    /// `*` replaces the index.
    pub(crate) fn relative(&self, path: &str) -> String {
        self.element()
            .map_or_else(|| path.to_owned(), |(concrete, pattern)| resolve_key(path, concrete, pattern))
    }

    /// The field path of the current array element, and this path with `*` instead of the index.
    fn element(&self) -> Option<&(Rc<str>, Rc<str>)> {
        self.open.iter().rev().find_map(|open| open.element.as_ref())
    }

    fn provenance(&mut self, path: Option<&Rc<str>>, location: Place) -> Provenance {
        let path = path.or_else(|| self.paths.last()).cloned().unwrap_or_else(|| "".into());
        let element = self.open.last().map(|open| open.number).unwrap_or_default();
        let path = match &self.last_path {
            Some((last, from, path_there)) if (*last, from) == (element, &path) => path_there.clone(),
            _ => {
                let path_there: Arc<str> = self.relative(&path).into();
                self.last_path = Some((element, path, path_there.clone()));
                path_there
            }
        };
        let known = self.files.iter().find(|(file, _)| *file == location.file());
        let file = match known {
            Some((_, name)) => name.clone(),
            None => {
                let name: Arc<str> = crate_relative(location.file()).into();
                self.files.push((location.file(), name.clone()));
                name
            }
        };
        Provenance { path, file, line: location.line() }
    }

    /// Stores the first error, and returns an error handle.
    pub(crate) fn fail(&mut self, kind: impl Into<TraceErrorKind>, location: Place) -> Raw {
        if self.error.is_none() {
            let provenance = self.provenance(None, location);
            self.error = Some(TraceError { kind: Box::new(kind.into()), provenance });
        }
        Raw::POISON
    }

    /// Whether all handles belong to the innermost open function. If a handle belongs to another
    /// function, the trace fails.
    pub(crate) fn admits(&mut self, operands: &[Raw], location: Place) -> bool {
        if self.failed() {
            return false;
        }
        if operands.contains(&Raw::ARGUMENT) {
            self.fail(TraceErrorKind::Unnamed, location);
            return false;
        }
        // The user's code created the handle while no trace was open.
        if operands.contains(&Raw::POISON) {
            self.fail(TraceErrorKind::Closed, location);
            return false;
        }
        let number = self.open.last().map(|open| open.number);
        if operands.iter().all(|raw| raw.trace == self.id && Some(raw.function) == number) {
            return true;
        }
        self.fail(TraceErrorKind::Stranger, location);
        false
    }

    fn append(
        &mut self,
        path: Option<&Rc<str>>,
        operands: &[Raw],
        location: Place,
        push: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<NodeId, TraceErrorKind>,
    ) -> Raw {
        if !self.admits(operands, location) {
            return Raw::POISON;
        }
        let provenance = self.provenance(path, location);
        let operands: Vec<NodeId> = operands.iter().map(|raw| raw.id()).collect();
        let Some(open) = self.open.last_mut() else { return self.fail(TraceErrorKind::Closed, location) };
        let number = open.number;
        let mut builder = Builder { function: &mut open.function, provenance };
        let pushed = push(&mut builder, &operands);
        open.activations.extend(&open.function);
        match pushed {
            Ok(id) => Raw { node: id.index() as u32, function: number, trace: self.id },
            Err(kind) => self.fail(kind, location),
        }
    }

    /// Appends an operation whose result has the axes `axes`. The operation of a leaf passes the
    /// leaf's path as `path`, which overrides the path of the current block.
    pub(crate) fn op(
        &mut self,
        path: Option<&Rc<str>>,
        op: impl Into<Op>,
        operands: &[Raw],
        axes: &[Axis],
        location: Place,
    ) -> Raw {
        let raw = self.append(path, operands, location, |b, operands| Ok(b.op(op, operands)?));
        self.name_axes(raw, axes);
        raw
    }

    /// Appends the nodes that a function in `trace::functions` builds. The functions in
    /// `trace::functions` refer to axes by their indices.
    pub(crate) fn build(
        &mut self,
        operands: &[Raw],
        axes: &[Axis],
        location: Place,
        function: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<NodeId, ops::InferError>,
    ) -> Raw {
        let raw = self.append(None, operands, location, |b, operands| Ok(function(b, operands)?));
        self.name_axes(raw, axes);
        raw
    }

    /// Appends a node that is not an operation.
    pub(crate) fn node(
        &mut self,
        kind: NodeKind,
        types: Vec<TensorType>,
        operands: &[Raw],
        axes: &[Axis],
        location: Place,
    ) -> Raw {
        let raw = self.append(None, operands, location, |b, operands| Ok(b.push(kind, types, operands)));
        self.name_axes(raw, axes);
        raw
    }

    fn name_axes(&mut self, raw: Raw, axes: &[Axis]) {
        if raw != Raw::POISON
            && let Some(open) = self.open.last_mut()
        {
            let node = open.function.node_mut(raw.id());
            node.axes = axes.iter().map(|axis| axis.0.into()).collect();
        }
    }

    /// Adds a node for a weight. If the innermost open function has a node for this weight already,
    /// returns that node.
    pub(crate) fn parameter(
        &mut self,
        path: &Rc<str>,
        parameter: Parameter,
        axes: &[AxisName],
        location: Place,
    ) -> Raw {
        let parameter = match self.element() {
            Some((concrete, pattern)) => parameter.resolved(concrete, pattern),
            None => parameter,
        };
        let (key, ty) = (parameter.key.clone(), parameter.ty.clone());
        let kind = NodeKind::Parameter(parameter);
        if let Some(open) = self.open.last()
            && let Some(id) = open.parameters.get(&key)
            && !self.failed()
            && open.function.node(*id).kind == kind
        {
            return Raw { node: id.index() as u32, function: open.number, trace: self.id };
        }
        let raw = self.append(Some(path), &[], location, |b, _| Ok(b.push(kind, vec![ty], &[])));
        if raw != Raw::POISON
            && let Some(open) = self.open.last_mut()
        {
            open.function.node_mut(raw.id()).axes = axes.to_vec();
            open.parameters.insert(key, raw.id());
        }
        raw
    }

    /// The type of a tensor with named axes, or `None` for an error handle or a handle of another trace.
    pub(crate) fn named_type(&mut self, raw: Raw, location: Place) -> Option<NamedType> {
        if !self.admits(&[raw], location) {
            return None;
        }
        let node = self.open.last()?.function.node(raw.id());
        let ty = node.types.first()?;
        let dims = node.axes.iter().zip(&ty.shape);
        let dims = dims.map(|(name, &extent)| Dim { axis: Axis::named(name), extent }).collect();
        Some(NamedType { element: ty.element, dims })
    }

    /// The innermost open function, in which you can search for a tensor's origin.
    pub(crate) fn origin(&self) -> Option<Origin<'_>> {
        self.open.last().map(|open| Origin { function: &open.function, activations: &open.activations })
    }

    /// Whether each tensor is an activation, which depends on the arguments of the network.
    pub(crate) fn are_activations(&self, raws: &[Raw]) -> Vec<bool> {
        let Some(open) = self.open.last() else { return Vec::new() };
        raws.iter().map(|raw| open.activations.contain(raw.id())).collect()
    }

    /// Records that an argument of the innermost open function is no activation, because the caller
    /// passes a value that is no activation.
    pub(crate) fn fix(&mut self, argument: Raw) {
        if let Some(open) = self.open.last_mut() {
            open.activations.remove(argument.id());
        }
    }

    pub(crate) fn types(&self, raws: &[Raw]) -> Vec<(TensorType, Vec<trace::AxisName>)> {
        let Some(open) = self.open.last() else { return Vec::new() };
        let typed = |raw: &Raw| {
            let node = open.function.node(raw.id());
            (node.ty().clone(), node.axes.clone())
        };
        raws.iter().filter(|raw| **raw != Raw::POISON).map(typed).collect()
    }
}
