//! Compares the results of a compiled network with a baseline, such as the evaluator.

use std::ops::ControlFlow;
use std::path::Path;

use irpa::Checkpoint;
use lower::{LowerError, Weights};
use ops::WeightFormat;
use runtime::{Compiler, Runtime};
use simplify::Rules;
use targets::{DeviceName, MeshRules, Target};
use trace::{Quantization, Trace};
use tracewright::Plan;
use tracewright::xla::XlaPlugin;

use super::{
    Activations, BisectError, Bisected, Bisection, CheckpointValues, CompiledForm, EvaluatedForm, Form,
    TokenCall, Tolerance, XlaForm,
};

/// Relative, for matmuls of 8-bit activations: a small error before can change an integer by 1.
const ROUNDED_ACTIVATIONS: f64 = 0.06;

/// Compared with a compiled network.
pub enum Baseline<'a> {
    Evaluator,
    /// The tested network, compiled without the simplifier.
    Unsimplified,
    /// The tested network, compiled without Tracewright's kernels.
    NoKernels,
    /// Without quantization.
    Dense,
    Activations(&'a Activations),
}

pub struct CompiledNetwork<'a> {
    pub plan: &'a Plan,
    pub trace: &'a Trace,
    /// Under the names that the network declares.
    pub checkpoint: &'a Checkpoint,
    /// For the evaluator.
    pub values: &'a CheckpointValues<'a>,
    pub engine: BisectEngine<'a>,
}

#[derive(Clone, Copy)]
pub enum BisectEngine<'a> {
    Iree {
        /// With the cache for modules.
        tools: (&'a Compiler, &'a Path),
        runtime: &'a Runtime,
        target: &'a Target,
    },
    /// For the plan's target; the mesh's rules partition the network.
    Xla { plugin: &'a XlaPlugin, device: Option<DeviceName>, mesh: Option<&'a MeshRules> },
}

impl CompiledNetwork<'_> {
    /// Calls both with the same tokens.
    pub fn compare(
        &self,
        baseline: &Baseline<'_>,
        calls: &[TokenCall],
        watch: &mut dyn FnMut(&TokenCall) -> ControlFlow<()>,
    ) -> Result<Vec<Bisected>, BisectError> {
        let Self { plan, trace, values, .. } = *self;
        // A part of the network uses the same weight formats as the whole network.
        let weights = plan.weights.clone().resolved(trace).map_err(LowerError::from)?;
        let quantize = weights.quantize.clone();
        let rounded = quantize.rounds();
        let name = match self.engine {
            BisectEngine::Iree { .. } => "iree",
            BisectEngine::Xla { .. } => "xla",
        };
        let subject = self.form(name, plan.rules, weights.clone());
        let mut compare = |reference: &dyn Form, matmuls| {
            let tolerance = Tolerance::new(plan.element, matmuls);
            Bisection { subject: &*subject, reference, values, tolerance }.compare_calls(trace, calls, watch)
        };
        // XLA never rounds activations.
        let rounds_activations = rounded && matches!(self.engine, BisectEngine::Iree { .. });
        let matmuls = rounds_activations.then_some(ROUNDED_ACTIVATIONS);
        match baseline {
            Baseline::Evaluator => {
                let target = match self.engine {
                    BisectEngine::Iree { target, .. } => target.clone(),
                    BisectEngine::Xla { .. } => plan.target.clone(),
                };
                let stored = rounded.then_some((weights, target));
                compare(&EvaluatedForm { values, stored }, matmuls)
            }
            Baseline::Unsimplified => compare(&*self.form("unsimplified", Rules::Off, weights), matmuls),
            Baseline::NoKernels => {
                let weights = Weights { kernels: false, ..plan.weights.clone() };
                compare(&*self.form("no-kernels", plan.rules, weights), matmuls)
            }
            Baseline::Dense => {
                let matmuls = Some(rounding(&quantize));
                let weights = Weights { quantize: Quantization::Computed, ..plan.weights.clone() };
                compare(&*self.form("dense", plan.rules, weights), matmuls)
            }
            Baseline::Activations(known) => {
                calls.iter().map(|call| known.compare(&*subject, trace, call, plan.element)).collect()
            }
        }
    }

    fn form(&self, name: &str, rules: Rules, weights: Weights) -> Box<dyn Form + '_> {
        let (name, checkpoint) = (name.to_owned(), self.checkpoint);
        match self.engine {
            BisectEngine::Iree { tools, runtime, target } => Box::new(CompiledForm {
                name,
                tools,
                runtime: runtime.clone(),
                checkpoint,
                rules,
                weights,
                target: target.clone(),
            }),
            BisectEngine::Xla { plugin, device, mesh } => {
                let target = self.plan.target.clone();
                Box::new(XlaForm { name, plugin, device, checkpoint, rules, weights, target, mesh })
            }
        }
    }
}

/// Returns the relative difference that weight quantization can cause in the result of a matmul.
fn rounding(formats: &Quantization) -> f64 {
    let four_bits = |format: &WeightFormat| format.groups().is_some_and(|groups| groups.bits() <= 4);
    let rounds_to_four = match formats {
        Quantization::All(format) => four_bits(format),
        formats => formats.formats().values().any(four_bits),
    };
    if rounds_to_four { 0.5 } else { 0.1 }
}
