//! Declares the ways in which Tracewright can run a trace. For example, the evaluator interprets a
//! trace, and IREE compiles a trace.

use std::collections::BTreeMap;

use files::Scratch;
use irpa::Checkpoint;
use lower::Weights;
use ops::{TensorType, Value};
use runtime::{Compiler, Runtime};
use simplify::Rules;
use targets::Target;
use trace::{Evaluation, Ignorable, ParameterConflict, Trace};

use super::BisectError;
use tracewright::build::{Build, BuildTools};
use tracewright::{Array, Expanded, Lowered, Program};

/// One way to run a trace, such as the evaluator or a compiled program.
pub trait Form {
    /// Such as `iree`.
    fn name(&self) -> &str;

    /// As the definitions require; only the evaluator is.
    fn is_exact(&self) -> bool {
        false
    }

    /// Calls each entry point with the same arguments.
    fn run(&self, trace: &Trace, arguments: &[Value]) -> Result<Vec<Vec<Value>>, BisectError>;
}

/// The weights of a checkpoint, converted to the types that a trace declares.
pub struct CheckpointValues<'a> {
    checkpoint: &'a Checkpoint,
    types: BTreeMap<String, TensorType>,
}

impl<'a> CheckpointValues<'a> {
    /// Tensors must have the names that the network declares.
    pub fn new(trace: &Trace, checkpoint: &'a Checkpoint) -> Result<Self, ParameterConflict> {
        let parameters = trace.parameters()?;
        let sources = parameters.iter().flat_map(|parameter| parameter.sources());
        let types = sources.map(|(key, ty)| (key.to_owned(), ty.clone())).collect();
        Ok(Self { checkpoint, types })
    }

    /// In the declared type.
    pub fn get(&self, key: &str) -> Option<Value> {
        bake::value(self.checkpoint, key, self.types.get(key)?)
    }
}

/// The reference evaluator, which computes each operation exactly as the operation is defined.
pub struct EvaluatedForm<'a> {
    pub values: &'a CheckpointValues<'a>,
    /// The evaluator first rewrites the trace for weights in these formats.
    pub stored: Option<(Weights, Target)>,
}

impl Form for EvaluatedForm<'_> {
    fn name(&self) -> &str {
        "evaluator"
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn run(&self, trace: &Trace, arguments: &[Value]) -> Result<Vec<Vec<Value>>, BisectError> {
        let expanded;
        let trace = match &self.stored {
            None => trace,
            Some((weights, target)) => {
                expanded = Expanded::new(trace, Rules::Off, target.clone(), weights.clone())?.trace;
                &expanded
            }
        };
        let parameters = |key: &str| self.values.get(key);
        let evaluate = |&entry| {
            let evaluation = Evaluation { parameters: &parameters, watch: None };
            let name = &trace.function(entry).name;
            Ok(trace::evaluate(trace, name, arguments.to_vec(), evaluation)?)
        };
        trace.entries.iter().map(evaluate).collect()
    }
}

pub struct CompiledForm<'a> {
    pub name: String,
    pub tools: (&'a Compiler, &'a std::path::Path),
    pub runtime: Runtime,
    pub checkpoint: &'a Checkpoint,
    pub rules: Rules,
    /// Formats of weights, and kernels or the compiler's code.
    pub weights: Weights,
    pub target: Target,
}

impl CompiledForm<'_> {
    /// The checkpoint may contain more tensors, because the trace may be a single layer.
    pub fn lower(&self, trace: &Trace) -> Result<Lowered, BisectError> {
        let all = vec![Ignorable::Prefix("")];
        Ok(Lowered::new(trace, self.rules, self.target.clone(), self.weights.clone(), all)?)
    }

    pub fn call(
        &self,
        lowered: Lowered,
        trace: &Trace,
        arguments: &[Value],
    ) -> Result<Vec<Vec<Value>>, BisectError> {
        let (compiler, cache) = self.tools;
        let mut build = Build::new(lowered, trace, self.checkpoint, BuildTools::new(compiler, cache))?;
        // The weights of one layer are not cached, because no other command needs these weights.
        let folder = Scratch::new_in(&std::env::temp_dir())?;
        let (archive, _) = build.bake(&folder.path().join("model.irpa"))?;
        let module = build.instantiate(&self.runtime, &archive)?;
        let signatures = build.lowered.module.signatures;
        let names: Vec<String> = signatures.iter().map(|signature| signature.name.clone()).collect();
        let program = Program::new(&self.runtime, &module, signatures)?;
        let arguments: Vec<Array> = arguments.iter().map(Array::from).collect();
        let call = |name: &String| {
            let results = program.call(name, &arguments)?;
            Ok(results.iter().map(|array| Value::from_bytes(array.ty().clone(), array.bytes())).collect())
        };
        names.iter().map(call).collect()
    }
}

impl Form for CompiledForm<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, trace: &Trace, arguments: &[Value]) -> Result<Vec<Vec<Value>>, BisectError> {
        self.call(self.lower(trace)?, trace, arguments)
    }
}
