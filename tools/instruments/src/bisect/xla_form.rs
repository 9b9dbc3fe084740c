//! Runs a trace with XLA. `bisect` compares the results of XLA with the results of another variant
//! of the network.

use files::Scratch;
use irpa::Checkpoint;
use lower::{Shards, Weights, divisible_axes};
use ops::Value;
use simplify::Rules;
use targets::{DeviceName, MeshRules, ShardRule, Target};
use trace::{Ignorable, Trace};
use tracewright::xla::{XlaBuild, XlaPlugin, XlaTools};
use tracewright::{Array, Expanded};

use super::{BisectError, Form};

pub struct XlaForm<'a> {
    pub name: String,
    pub plugin: &'a XlaPlugin,
    pub device: Option<DeviceName>,
    pub checkpoint: &'a Checkpoint,
    pub rules: Rules,
    /// Formats of weights, and kernels or the compiler's code.
    pub weights: Weights,
    pub target: Target,
    /// One device for `None`.
    pub mesh: Option<&'a MeshRules>,
}

impl XlaForm<'_> {
    /// A part can lack axes; one device runs it if the rules cannot partition it.
    fn shards(&self, trace: &Trace) -> Option<Shards> {
        let MeshRules { mesh, rules } = self.mesh?;
        let known = divisible_axes(trace);
        let of_part = |rule: &ShardRule| {
            let axes = rule.axes.iter().filter(|axis| known.contains(axis.as_str()));
            ShardRule { axes: axes.cloned().collect(), ..rule.clone() }
        };
        let rules: Vec<_> = rules.iter().map(of_part).filter(|rule| !rule.axes.is_empty()).collect();
        Shards::new(trace, mesh, &rules).ok()
    }
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
        let build = XlaBuild::new(&expanded, trace, self.shards(trace), self.checkpoint, all)?;
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
