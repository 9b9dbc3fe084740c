//! What several files of evidence need: traces built by hand, programs compiled from them, made-up numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ops::{Attribute as _, ElementType, InferError, Op, Reader, TensorType, Value};
use runtime::{
    Argument, Buffer, Cache, CompileOptions, Compiler, Device, Entry, Parameters, Program, Runtime,
};
use trace::{
    Builder, Evaluation, Function, FunctionId, Node, NodeId, NodeKind, Output, Parameter, Provenance, Trace,
};

/// The compiler that `cargo xtask setup` installs; a test without it fails and says so.
pub fn compiler() -> Compiler {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tracewright/venv");
    let folders = [environment.join("bin"), environment.join("Scripts")];
    Compiler::find(None, &folders).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles a module for a target.
pub fn compile(module: &lower::Module, options: &CompileOptions) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let text = runtime::Module { text: &module.text, text_without_locs: &module.text_without_locs };
    let compiled = runtime::compile(&compiler(), &text, options, &Cache::new(folder.path()));
    compiled.unwrap_or_else(|error| panic!("{error}\n{}", module.text)).vmfb
}

/// A compiled module; unlike a loaded one it may be shared between threads.
pub struct Built {
    pub module: lower::Module,
    vmfb: Vec<u8>,
}

/// Verifies, expands, lowers and compiles a trace.
pub fn built(trace: &Trace) -> Built {
    let module = module(trace);
    let vmfb = compile(&module, &CompileOptions::default());
    Built { module, vmfb }
}

/// Verifies, expands and lowers a trace.
pub fn module(trace: &Trace) -> lower::Module {
    trace.verify().unwrap_or_else(|error| panic!("{error}"));
    let expanded = lower::expand(trace).unwrap_or_else(|error| panic!("{error}"));
    expanded.verify().unwrap_or_else(|error| panic!("{error}"));
    lower::lower(&expanded).unwrap_or_else(|error| panic!("{error}"))
}

/// The numbers of the weights, by key.
pub type Weights = BTreeMap<String, Value>;

/// A loaded module.
pub struct Loaded<'a> {
    module: &'a lower::Module,
    program: Program,
    runtime: Runtime,
}

impl Built {
    pub fn load(&self, weights: &Weights) -> Loaded<'_> {
        let runtime = Runtime::new(Device::LocalSync).unwrap();
        let mut bytes = Vec::new();
        let mut entries = BTreeMap::new();
        for (key, value) in weights {
            let start = bytes.len();
            bytes.extend(value.to_bytes());
            entries.insert(key.clone(), Entry::Range(start..bytes.len()));
        }
        let parameters = Parameters { scope: "model".into(), bytes: Arc::new(bytes), entries };
        let program =
            Program::load(&runtime, &self.vmfb, &[parameters]).unwrap_or_else(|error| panic!("{error}"));
        Loaded { module: &self.module, program, runtime }
    }
}

impl Loaded<'_> {
    /// Calls an entry point.
    pub fn call(&self, name: &str, arguments: &[Value]) -> Vec<Value> {
        let signature = self.module.signatures.iter().find(|s| s.name == name).unwrap();
        let pass = |(value, argument): (&Value, &lower::Argument)| -> Argument {
            match argument.is_host_scalar() {
                true => (value.data[0] as i32).into(),
                false => Buffer::from_bytes(&self.runtime, &value.ty, &value.to_bytes()).unwrap().into(),
            }
        };
        let arguments = arguments.iter().zip(&signature.arguments).map(pass).collect();
        let results = self.program.function(name).unwrap().call(arguments);
        let results = results.unwrap_or_else(|error| panic!("{error}"));
        let read = |value: runtime::Value| {
            let buffer = value.buffer().unwrap();
            Value::from_bytes(buffer.ty().clone(), &buffer.read().unwrap())
        };
        results.into_iter().map(read).collect()
    }
}

/// Evaluates an entry point with these weights.
pub fn evaluate(trace: &Trace, name: &str, arguments: &[Value], weights: &Weights) -> Vec<Value> {
    let parameters = |key: &str| weights.get(key).cloned();
    let evaluation = Evaluation { parameters: &parameters, watch: None };
    trace::evaluate(trace, name, arguments.to_vec(), evaluation).unwrap_or_else(|error| panic!("{error}"))
}

/// Appends an input.
pub fn input(b: &mut Builder<'_>, index: usize, ty: TensorType) -> NodeId {
    b.push(NodeKind::Input { index, name: format!("argument{index}") }, vec![ty], &[])
}

/// Appends a weight.
pub fn parameter(b: &mut Builder<'_>, key: &str, ty: TensorType) -> NodeId {
    b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
}

/// Appends an entry point with these inputs; `body` gives its results.
pub fn entry(
    trace: &mut Trace,
    name: &str,
    inputs: &[TensorType],
    body: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<Vec<NodeId>, InferError>,
) {
    let mut function = Function::new(name, "");
    let provenance = Provenance::new(name, "tests/tests/support/mod.rs", 1);
    let mut builder = Builder { function: &mut function, provenance };
    let ids: Vec<NodeId> =
        inputs.iter().enumerate().map(|(i, ty)| input(&mut builder, i, ty.clone())).collect();
    let results = body(&mut builder, &ids).unwrap_or_else(|error| panic!("{name}: {error}"));
    let output = |(i, node)| Output { name: format!("result{i}"), node };
    function.outputs = results.into_iter().enumerate().map(output).collect();
    trace.entries.push(FunctionId(trace.functions.len() as u32));
    trace.functions.push(function);
}

/// A node that is an operation, with a type that nobody checked.
pub fn node(kind: NodeKind, ty: TensorType) -> Node {
    Node { kind, types: vec![ty], axes: Vec::new(), provenance: Provenance::new("here", "here.rs", 1) }
}

/// An operation from its text form.
pub fn op(text: &str) -> Op {
    let mut reader = Reader::new(text);
    let op = Op::parse(&mut reader).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(reader.at_end(), "{text}: text is left over");
    op
}

/// A type from its text form: `f32[2,3]`.
pub fn ty(text: &str) -> TensorType {
    TensorType::parse(&mut Reader::new(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `f32[2,3] 1,2,3,4,5,6`, or `f32[2,3]` with made-up elements.
pub fn operand(text: &str, seed: u64) -> Value {
    let ty = ty(text);
    match text.split_once(' ') {
        Some((_, elements)) => Value::new(ty, elements.split(',').map(|x| x.parse::<f64>().unwrap())),
        None => random(ty, seed),
    }
}

/// Made-up elements: magnitudes from 2⁻⁶ to 2⁴, both signs, a zero, the first and last equal.
pub fn random(ty: TensorType, seed: u64) -> Value {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let element = ty.element;
    let mut number = || match element {
        ElementType::I1 => (next() & 1) as f64,
        ElementType::I4 => (next() % 16) as f64 - 8.0,
        ElementType::I8 | ElementType::I32 => (next() % 201) as f64 - 100.0,
        _ => {
            let sign = if next() & 1 == 0 { 1.0 } else { -1.0 };
            let exponent = (next() % 10) as i32 - 6;
            sign * (1.0 + (next() >> 11) as f64 / (1u64 << 53) as f64) * 2f64.powi(exponent)
        }
    };
    let mut data: Vec<f64> = (0..ty.count()).map(|_| number()).collect();
    if let [first, .., last] = &mut data[..] {
        *last = *first;
    }
    if data.len() > 3 {
        data[2] = 0.0;
    }
    Value::new(ty, data)
}
