//! Programs of small entry points, compiled and called by IREE.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tracewright::lower;
use tracewright::ops::Value;
use tracewright::runtime::{
    self, Buffer, CompileError, CompileOptions, Compiler, Device, ModuleCache, ParameterData, Parameters,
    Runtime, VmModule, VmValue,
};
use tracewright::targets::{DeviceKind, Target};
use tracewright::trace::{Argument, Trace};

use crate::calls::{Calls, CheckedCall, WeightValues};
use crate::level;

/// The compiler that `cargo xtask setup` installs; a test without it fails and says so. It is asked for its version once.
pub fn compiler() -> Compiler {
    static FOUND: OnceLock<Compiler> = OnceLock::new();
    let find = || {
        let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tracewright/venv");
        let folders = [environment.join("bin"), environment.join("Scripts")];
        let compiler = Compiler::find(None, &folders).unwrap_or_else(|error| panic!("{error}"));
        compiler.version().unwrap_or_else(|error| panic!("{error}"));
        compiler
    };
    FOUND.get_or_init(find).clone()
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
    /// Its text and its entry points.
    pub module: lower::Module,
    /// The compiled module.
    pub vmfb: Vec<u8>,
}

/// Verifies, expands, lowers and compiles a trace.
pub fn built(trace: &Trace) -> Built {
    try_built(trace).unwrap_or_else(|error| panic!("{error}\n{trace}"))
}

/// Verifies, expands, lowers and compiles a trace that the compiler may refuse.
pub fn try_built(trace: &Trace) -> Result<Built, CompileError> {
    try_built_for(trace, &level::target())
}

/// The same for a target, whose features are known.
pub fn try_built_for(trace: &Trace, target: &Target) -> Result<Built, CompileError> {
    try_built_with(trace, &CompileOptions::new(target.clone(), target.device == DeviceKind::Cpu))
}

/// The same with options of one's own.
pub fn try_built_with(trace: &Trace, options: &CompileOptions) -> Result<Built, CompileError> {
    let module = module_for(trace, &options.target);
    let vmfb = try_compile(&module, options)?;
    Ok(Built { module, vmfb })
}

/// Verifies, expands and lowers a trace.
pub fn module(trace: &Trace) -> lower::Module {
    module_for(trace, &level::target())
}

fn module_for(trace: &Trace, target: &Target) -> lower::Module {
    trace.verify().unwrap_or_else(|error| panic!("{error}"));
    let expanded = lower::expand(trace).unwrap_or_else(|error| panic!("{error}"));
    expanded.verify().unwrap_or_else(|error| panic!("{error}"));
    lower::lower(&expanded, target).unwrap_or_else(|error| panic!("{error}"))
}

pub struct LoadedCalls<'a> {
    module: &'a lower::Module,
    program: VmModule,
    runtime: Runtime,
}

impl Built {
    /// Loads it with these weights.
    pub fn load(&self, weights: &WeightValues) -> LoadedCalls<'_> {
        self.load_with(parameters(weights))
    }

    /// Loads it with weights as an archive holds them.
    pub fn load_with(&self, parameters: Parameters) -> LoadedCalls<'_> {
        self.load_on(Device::LocalSync, parameters)
    }

    /// The same on a device.
    pub fn load_on(&self, device: Device, parameters: Parameters) -> LoadedCalls<'_> {
        let runtime = Runtime::new(device).unwrap();
        LoadedCalls { module: &self.module, program: self.program_with(&runtime, parameters), runtime }
    }

    /// Loads it on a device.
    pub fn program(&self, runtime: &Runtime, weights: &WeightValues) -> VmModule {
        self.program_with(runtime, parameters(weights))
    }

    fn program_with(&self, runtime: &Runtime, parameters: Parameters) -> VmModule {
        VmModule::load(runtime, &self.vmfb, &[parameters]).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Weights as a module is given them.
pub fn parameters(weights: &WeightValues) -> Parameters {
    let mut bytes = Vec::new();
    let mut entries = BTreeMap::new();
    for (key, value) in weights {
        let start = bytes.len();
        bytes.extend(value.to_bytes());
        entries.insert(key.clone(), ParameterData::Range(start..bytes.len()));
    }
    Parameters { scope: "model".into(), bytes: Arc::new(bytes), entries }
}

impl LoadedCalls<'_> {
    /// Makes every call; a line for each that gave other numbers than the evaluator.
    pub fn violations(&self, calls: &Calls) -> Vec<String> {
        let violation = |call: &CheckedCall| call.violation(&self.call(&call.name, &call.arguments));
        calls.calls.iter().filter_map(violation).collect()
    }

    pub fn call(&self, name: &str, arguments: &[Value]) -> Vec<Value> {
        let signature = self.module.signatures.iter().find(|s| s.name == name).unwrap();
        let pass = |(value, argument): (&Value, &Argument)| -> VmValue {
            if argument.is_host_scalar() {
                (value.data[0] as i32).into()
            } else {
                Buffer::from_bytes(&self.runtime, &value.ty, &value.to_bytes()).unwrap().into()
            }
        };
        let arguments = arguments.iter().zip(&signature.arguments).map(pass).collect();
        let results = self.program.function(name).unwrap().call(arguments);
        let results = results.unwrap_or_else(|error| panic!("{error}"));
        let read = |value: VmValue| {
            let buffer = value.buffer().unwrap();
            Value::from_bytes(buffer.ty().clone(), &buffer.read().unwrap())
        };
        results.into_iter().map(read).collect()
    }
}
