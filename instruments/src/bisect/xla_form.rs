//! Runs a trace with XLA. `bisect` compares the results of XLA with the results of another variant
//! of the network.

use bake::Ignorable;
use files::Scratch;
use irpa::Checkpoint;
use lower::Weights;
use ops::Value;
use simplify::Rules;
use targets::{DeviceName, Target};
use trace::Trace;
use tracewright::xla::{XlaBuild, XlaPlugin, XlaTools};
use tracewright::{Array, Expanded};

use super::{BisectError, Form};

/// The variant of a network that XLA compiles and runs.
pub struct XlaForm<'a> {
    pub name: String,
    pub plugin: &'a XlaPlugin,
    pub device: Option<DeviceName>,
    pub checkpoint: &'a Checkpoint,
    pub rules: Rules,
    /// Contains the storage formats of the weights, and selects either Tracewright's kernels or the
    /// compiler's code for matmuls.
    pub weights: Weights,
    pub target: Target,
}

impl Form for XlaForm<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, trace: &Trace, arguments: &[Value]) -> Result<Vec<Vec<Value>>, BisectError> {
        let expanded = Expanded::new(trace, self.rules, self.target.clone(), self.weights.clone())?;
        // The executable and the weights of one layer are not cached, because no other command needs them.
        let folder = Scratch::new_in(&std::env::temp_dir())?;
        let (plugin, device) = (self.plugin, self.device);
        let tools = XlaTools { plugin, device, cache: folder.path(), watch: None };
        // The checkpoint can contain tensors that a part of the network does not read.
        let all = vec![Ignorable::Prefix("")];
        let build = XlaBuild::new(&expanded, trace, (None, &[]), self.checkpoint, all)?;
        let program = build.build(tools)?.program;
        let arguments: Vec<Array> = arguments.iter().map(Array::from).collect();
        let mut results = Vec::new();
        for signature in program.signatures() {
            let found = program.call(&signature.name, &arguments)?;
            let value = |array: &Array| Value::from_bytes(array.ty().clone(), array.bytes());
            results.push(found.iter().map(value).collect());
        }
        Ok(results)
    }
}
