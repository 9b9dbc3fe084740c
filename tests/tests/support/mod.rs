//! What several files of evidence need: traces built by hand, programs compiled from them, made-up numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use ops::{TensorType, Value};
use runtime::{
    Buffer, CompileError, CompileOptions, Compiler, Device, ModuleCache, ParameterData, Parameters, Runtime,
    VmModule, VmValue,
};
use trace::{Builder, Node, NodeId, NodeKind, Parameter, Provenance, Trace};
use tracewright_tests::calls::{Calls, CheckedCall, WeightValues};
use tracewright_tests::level;

/// The compiler that `cargo xtask setup` installs; a test without it fails and says so.
pub fn compiler() -> Compiler {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tracewright/venv");
    let folders = [environment.join("bin"), environment.join("Scripts")];
    Compiler::find(None, &folders).unwrap_or_else(|error| panic!("{error}"))
}

/// Compiles a module as these options say.
pub fn compile(module: &lower::Module, options: &CompileOptions) -> Vec<u8> {
    try_compile(module, options).unwrap_or_else(|error| panic!("{error}\n{}", module.text))
}

/// Compiles a module that may be refused.
pub fn try_compile(module: &lower::Module, options: &CompileOptions) -> Result<Vec<u8>, CompileError> {
    let folder = tempfile::tempdir().unwrap();
    let text = runtime::ModuleText { text: &module.text, text_without_locs: &module.text_without_locs };
    let compiled = runtime::compile(&compiler(), &text, options, &ModuleCache::new(folder.path()))?;
    Ok(compiled.vmfb)
}

/// A compiled module; unlike a loaded one it may be shared between threads.
pub struct Built {
    pub module: lower::Module,
    pub vmfb: Vec<u8>,
}

/// Verifies, expands, lowers and compiles a trace.
pub fn built(trace: &Trace) -> Built {
    let module = module(trace);
    let vmfb = compile(&module, &CompileOptions::new(level::target(), true));
    Built { module, vmfb }
}

/// Verifies, expands and lowers a trace.
pub fn module(trace: &Trace) -> lower::Module {
    trace.verify().unwrap_or_else(|error| panic!("{error}"));
    let expanded = lower::expand(trace).unwrap_or_else(|error| panic!("{error}"));
    expanded.verify().unwrap_or_else(|error| panic!("{error}"));
    lower::lower(&expanded, &level::target()).unwrap_or_else(|error| panic!("{error}"))
}

/// How often each tensor of the checkpoint is stored, and how many bytes the archive has.
pub fn stored(trace: &Trace) -> (BTreeMap<String, usize>, usize) {
    let (mut stored, mut bytes) = (BTreeMap::<String, usize>::new(), 0);
    for parameter in trace.parameters().unwrap() {
        bytes += parameter.ty.bytes();
        for (key, _) in parameter.sources() {
            *stored.entry(key.to_owned()).or_default() += 1;
        }
    }
    (stored, bytes)
}

/// A loaded module.
pub struct Loaded<'a> {
    module: &'a lower::Module,
    program: VmModule,
    runtime: Runtime,
}

impl Built {
    pub fn load(&self, weights: &WeightValues) -> Loaded<'_> {
        self.load_with(parameters(weights))
    }

    pub fn load_with(&self, parameters: Parameters) -> Loaded<'_> {
        let runtime = Runtime::new(Device::LocalSync).unwrap();
        Loaded { module: &self.module, program: self.program_with(&runtime, parameters), runtime }
    }

    pub fn program(&self, runtime: &Runtime, weights: &WeightValues) -> VmModule {
        self.program_with(runtime, parameters(weights))
    }

    fn program_with(&self, runtime: &Runtime, parameters: Parameters) -> VmModule {
        VmModule::load(runtime, &self.vmfb, &[parameters]).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Weights as a module is given them.
fn parameters(weights: &WeightValues) -> Parameters {
    let mut bytes = Vec::new();
    let mut entries = BTreeMap::new();
    for (key, value) in weights {
        let start = bytes.len();
        bytes.extend(value.to_bytes());
        entries.insert(key.clone(), ParameterData::Range(start..bytes.len()));
    }
    Parameters { scope: "model".into(), bytes: Arc::new(bytes), entries }
}

impl Loaded<'_> {
    /// Makes every call; a line for each that gave other numbers than the evaluator.
    pub fn violations(&self, calls: &Calls) -> Vec<String> {
        let violation = |call: &CheckedCall| call.violation(&self.call(&call.name, &call.arguments));
        calls.calls.iter().filter_map(violation).collect()
    }

    /// Calls an entry point.
    pub fn call(&self, name: &str, arguments: &[Value]) -> Vec<Value> {
        let signature = self.module.signatures.iter().find(|s| s.name == name).unwrap();
        let pass = |(value, argument): (&Value, &trace::Argument)| -> VmValue {
            match argument.is_host_scalar() {
                true => (value.data[0] as i32).into(),
                false => Buffer::from_bytes(&self.runtime, &value.ty, &value.to_bytes()).unwrap().into(),
            }
        };
        let arguments = arguments.iter().zip(&signature.arguments).map(pass).collect();
        let results = self.program.function(name).unwrap().call(arguments);
        let results = results.unwrap_or_else(|error| panic!("{error}"));
        let read = |value: runtime::VmValue| {
            let buffer = value.buffer().unwrap();
            Value::from_bytes(buffer.ty().clone(), &buffer.read().unwrap())
        };
        results.into_iter().map(read).collect()
    }
}

/// Appends a weight.
pub fn parameter(b: &mut Builder<'_>, key: &str, ty: TensorType) -> NodeId {
    b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
}

/// A node that is an operation, with a type that nobody checked.
pub fn node(kind: NodeKind, ty: TensorType) -> Node {
    Node { kind, types: vec![ty], axes: Vec::new(), provenance: Provenance::new("here", "here.rs", 1) }
}

/// Every loop that carries sums ends a step before its end.
pub fn one_round_less(text: String) -> String {
    let mut edited = String::new();
    for line in text.lines() {
        match line.split_once(" to ").filter(|_| line.contains("iter_args")) {
            Some((before, rest)) => {
                let mut words = rest.split(' ');
                let (end, step) = (words.next().unwrap(), words.nth(1).unwrap());
                let group = before.trim_start_matches([' ', '%']).split(':').next().unwrap();
                let name = format!("%less{group}");
                edited += &format!("{name} = arith.subi {end}, {step} : index\n");
                edited += &format!("{before} to {name}{}\n", &rest[end.len()..]);
            }
            None => edited += &format!("{line}\n"),
        }
    }
    edited
}
