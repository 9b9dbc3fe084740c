//! The open trace of this thread.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ops::{Op, TensorType};
use trace::{Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Trace};

use crate::block::TraceKey;
use crate::tensor::{Place, Raw};
use crate::{Axis, Dim, NamedType, TraceError, TraceErrorKind};

thread_local! {
    static OPEN: RefCell<Option<Tracer>> = const { RefCell::new(None) };
}

static TRACES: AtomicU32 = AtomicU32::new(0);

/// The state of a trace that is being recorded.
pub(crate) struct Tracer {
    id: u32,
    trace: Trace,
    /// The functions that are open, the innermost last.
    open: Vec<Open>,
    /// The field paths of the blocks that are being run, the innermost last.
    paths: Vec<Rc<str>>,
    /// The first error. After it, every handle is poisoned and silent.
    error: Option<TraceError>,
    /// The bodies of repeated blocks.
    bodies: HashMap<TraceKey, Body>,
    files: HashMap<&'static str, Arc<str>>,
    shared_paths: HashMap<Rc<str>, Arc<str>>,
    next_function: u32,
    body_runs: usize,
}

struct Open {
    number: u32,
    function: Function,
    parameters: HashMap<String, NodeId>,
    /// The path of the element that is run, and what stands for it in the body: `model.layers.0`, `model.layers.*`.
    element: Option<(Rc<str>, Rc<str>)>,
}

/// A recorded body of a repeated block.
#[derive(Clone)]
pub(crate) struct Body {
    pub(crate) function: FunctionId,
    /// What the body returned, to be rebuilt on each call's results.
    pub(crate) returned: Rc<dyn Any>,
}

/// Runs `f` with the open tracer; `None` if there is none.
pub(crate) fn with<R>(f: impl FnOnce(&mut Tracer) -> R) -> Option<R> {
    OPEN.with_borrow_mut(|open| open.as_mut().map(f))
}

/// Closes the trace when `trace` is left, also by a panic.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        OPEN.set(None);
    }
}

/// Records what `record` does with the tracer open. Returns the trace and how many bodies of repeated blocks ran.
///
/// # Errors
/// The first error of any tensor operation, with its place.
pub fn trace(record: impl FnOnce()) -> Result<(Trace, usize), TraceError> {
    trace_fallible(|| {
        record();
        Ok(())
    })
}

/// [`trace`] for a `record` that may itself find the configuration wrong.
pub(crate) fn trace_fallible(
    record: impl FnOnce() -> Result<(), TraceErrorKind>,
) -> Result<(Trace, usize), TraceError> {
    let here = || Provenance::new("", "", 0);
    if OPEN.with_borrow(|open| open.is_some()) {
        return Err(TraceError { kind: Box::new(TraceErrorKind::Nested), provenance: here() });
    }
    let id = TRACES.fetch_add(1, Ordering::Relaxed);
    OPEN.set(Some(Tracer {
        id,
        trace: Trace::default(),
        open: Vec::new(),
        paths: Vec::new(),
        error: None,
        bodies: HashMap::new(),
        files: HashMap::new(),
        shared_paths: HashMap::new(),
        next_function: 0,
        body_runs: 0,
    }));
    let guard = Guard;
    let recorded = record();
    let tracer = OPEN.take();
    drop(guard);
    recorded.map_err(|kind| TraceError { kind: Box::new(kind), provenance: here() })?;
    let Some(tracer) = tracer else {
        return Err(TraceError { kind: Box::new(TraceErrorKind::Closed), provenance: here() });
    };
    match tracer.error {
        Some(error) => Err(error),
        None => Ok((tracer.trace, tracer.body_runs)),
    }
}

/// A file as it is named everywhere: from its crate's folder on, so that it is the same on every machine.
fn crate_relative(file: &str) -> String {
    let parts: Vec<&str> = file.split(['/', '\\']).collect();
    let anchor = parts.iter().rposition(|p| ["src", "examples", "tests", "benches"].contains(p));
    let absolute = file.starts_with(['/', '\\']) || file.get(1..2) == Some(":");
    match anchor {
        Some(anchor) if absolute => parts[anchor.saturating_sub(1)..].join("/"),
        _ => parts.join("/"),
    }
}

impl Tracer {
    pub(crate) fn open_function(&mut self, name: String, prefix: &str, element: Option<(Rc<str>, Rc<str>)>) {
        let number = self.next_function;
        self.next_function += 1;
        let function = Function::new(name, prefix);
        self.open.push(Open { number, function, parameters: HashMap::new(), element });
    }

    /// Closes the innermost function. `None` if an error makes it void.
    pub(crate) fn close_function(&mut self, outputs: Vec<(String, Raw)>, place: Place) -> Option<Function> {
        let handles: Vec<Raw> = outputs.iter().map(|(_, raw)| *raw).collect();
        let admitted = self.admits(&handles, place);
        let mut open = self.open.pop()?;
        if !admitted {
            return None;
        }
        open.function.outputs = outputs
            .into_iter()
            .map(|(name, raw)| Output { name, node: NodeId::new(raw.node as usize) })
            .collect();
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

    pub(crate) fn unique_name(&self, stem: &str) -> String {
        let taken = |name: &str| {
            self.trace.functions.iter().any(|f| f.name == name)
                || self.open.iter().any(|o| o.function.name == name)
        };
        let numbered = (1usize..).map(|n| if n == 1 { stem.to_owned() } else { format!("{stem}_{n}") });
        numbered.into_iter().find(|name| !taken(name)).unwrap_or_default()
    }

    pub(crate) fn body(&self, key: &TraceKey) -> Option<Body> {
        self.bodies.get(key).cloned()
    }

    pub(crate) fn keep_body(&mut self, key: TraceKey, body: Body) {
        self.bodies.insert(key, body);
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

    /// A concrete path as the innermost open function knows it: the running element's own path becomes `….*`.
    pub(crate) fn relative(&self, path: &str) -> String {
        let element = self.open.iter().rev().find_map(|open| open.element.as_ref());
        match element
            .and_then(|(concrete, pattern)| path.strip_prefix(&**concrete).map(|rest| (pattern, rest)))
        {
            Some((pattern, rest)) if rest.is_empty() || rest.starts_with('.') => format!("{pattern}{rest}"),
            _ => path.to_owned(),
        }
    }

    fn provenance(&mut self, path: Option<&Rc<str>>, location: &'static Location<'static>) -> Provenance {
        let path = path.or_else(|| self.paths.last()).cloned().unwrap_or_else(|| "".into());
        let element = self.open.last().map(|open| open.number).unwrap_or_default();
        let key: Rc<str> = format!("{element}:{path}").into();
        let path = match self.shared_paths.get(&key) {
            Some(shared) => shared.clone(),
            None => {
                let shared: Arc<str> = self.relative(&path).into();
                self.shared_paths.insert(key, shared.clone());
                shared
            }
        };
        let file =
            self.files.entry(location.file()).or_insert_with(|| crate_relative(location.file()).into());
        Provenance { path, file: file.clone(), line: location.line() }
    }

    /// Keeps the first error and returns the poisoned handle.
    pub(crate) fn fail(
        &mut self,
        kind: impl Into<TraceErrorKind>,
        location: &'static Location<'static>,
    ) -> Raw {
        if self.error.is_none() {
            let provenance = self.provenance(None, location);
            self.error = Some(TraceError { kind: Box::new(kind.into()), provenance });
        }
        Raw::POISON
    }

    /// Whether all handles mean something in the innermost open function; fails if one is a stranger.
    pub(crate) fn admits(&mut self, operands: &[Raw], location: &'static Location<'static>) -> bool {
        if self.failed() {
            return false;
        }
        // Without an error here, the handle was poisoned where no trace was open.
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
        location: &'static Location<'static>,
        push: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<NodeId, TraceErrorKind>,
    ) -> Raw {
        if !self.admits(operands, location) {
            return Raw::POISON;
        }
        let provenance = self.provenance(path, location);
        let operands: Vec<NodeId> = operands.iter().map(|raw| NodeId::new(raw.node as usize)).collect();
        let Some(open) = self.open.last_mut() else { return self.fail(TraceErrorKind::Closed, location) };
        let number = open.number;
        let mut builder = Builder { function: &mut open.function, provenance };
        match push(&mut builder, &operands) {
            Ok(id) => Raw { node: id.index() as u32, function: number, trace: self.id },
            Err(kind) => self.fail(kind, location),
        }
    }

    /// Appends an operation whose result has these axes. `path` overrides the running block's (for its leaves).
    pub(crate) fn op(
        &mut self,
        path: Option<&Rc<str>>,
        op: impl Into<Op>,
        operands: &[Raw],
        axes: &[Axis],
        location: &'static Location<'static>,
    ) -> Raw {
        let raw = self.append(path, operands, location, |b, operands| Ok(b.op(op, operands)?));
        self.name_axes(raw, axes);
        raw
    }

    /// Appends what a positional function of `trace::functions` builds.
    pub(crate) fn build(
        &mut self,
        operands: &[Raw],
        axes: &[Axis],
        location: &'static Location<'static>,
        function: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<NodeId, ops::InferError>,
    ) -> Raw {
        let raw = self.append(None, operands, location, |b, operands| Ok(function(b, operands)?));
        self.name_axes(raw, axes);
        raw
    }

    /// Appends a node that is no operation.
    pub(crate) fn node(
        &mut self,
        kind: NodeKind,
        types: Vec<TensorType>,
        operands: &[Raw],
        axes: &[Axis],
        location: &'static Location<'static>,
    ) -> Raw {
        let raw = self.append(None, operands, location, |b, operands| Ok(b.push(kind, types, operands)));
        self.name_axes(raw, axes);
        raw
    }

    fn name_axes(&mut self, raw: Raw, axes: &[Axis]) {
        if raw != Raw::POISON
            && let Some(open) = self.open.last_mut()
        {
            let node = open.function.node_mut(NodeId::new(raw.node as usize));
            node.axes = axes.iter().map(|axis| axis.0.into()).collect();
        }
    }

    /// The weight of this key; one node for each function that reads it.
    pub(crate) fn parameter(
        &mut self,
        path: &Rc<str>,
        key: &str,
        ty: TensorType,
        axes: &[Axis],
        location: &'static Location<'static>,
    ) -> Raw {
        let key = self.relative(key);
        if let Some(open) = self.open.last()
            && let Some(id) = open.parameters.get(&key)
            && !self.failed()
            && *open.function.node(*id).ty() == ty
        {
            return Raw { node: id.index() as u32, function: open.number, trace: self.id };
        }
        let kind = NodeKind::Parameter(Parameter::new(key.clone(), ty.clone()));
        let raw = self.append(Some(path), &[], location, |b, _| Ok(b.push(kind, vec![ty], &[])));
        self.name_axes(raw, axes);
        if raw != Raw::POISON
            && let Some(open) = self.open.last_mut()
        {
            open.parameters.insert(key, NodeId::new(raw.node as usize));
        }
        raw
    }

    /// The type with named axes; `None` for a poisoned handle or a stranger.
    pub(crate) fn named_type(&mut self, raw: Raw, location: &'static Location<'static>) -> Option<NamedType> {
        if !self.admits(&[raw], location) {
            return None;
        }
        let node = self.open.last()?.function.node(NodeId::new(raw.node as usize));
        let ty = node.types.first()?;
        // The names come from constants of the program, but the trace owns its text.
        let axes = node.axes.iter().map(|name| match name {
            std::borrow::Cow::Borrowed(name) => Axis(name),
            std::borrow::Cow::Owned(_) => Axis("?"),
        });
        let dims = axes.zip(&ty.shape).map(|(axis, &extent)| Dim { axis, extent }).collect();
        Some(NamedType { element: ty.element, dims })
    }

    /// The innermost open function.
    pub(crate) fn running(&self) -> Option<&Function> {
        self.open.last().map(|open| &open.function)
    }

    pub(crate) fn types(&self, raws: &[Raw]) -> Vec<(TensorType, Vec<trace::AxisName>)> {
        let Some(open) = self.open.last() else { return Vec::new() };
        let typed = |raw: &Raw| {
            let node = open.function.node(NodeId::new(raw.node as usize));
            (node.ty().clone(), node.axes.clone())
        };
        raws.iter().filter(|raw| **raw != Raw::POISON).map(typed).collect()
    }
}
