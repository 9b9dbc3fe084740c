//! What a compiled network is compared with.

use std::ops::ControlFlow;
use std::path::Path;

use irpa::Checkpoint;
use lower::{Quantization, Weights};
use ops::WeightFormat;
use runtime::{Compiler, Runtime};
use simplify::Rules;
use targets::Target;
use trace::Trace;
use tracewright::Plan;

use super::{
    Activations, BisectError, Bisected, Bisection, CheckpointValues, CompiledForm, EvaluatedForm, Form,
    TokenCall, Tolerance,
};

/// What matmuls may differ by where activations are rounded to bytes: a byte more or less, where a norm rounds otherwise.
const ROUNDED_ACTIVATIONS: f64 = 0.06;

/// What a compiled network is compared with.
pub enum Baseline<'a> {
    Evaluator,
    /// The same network, not simplified.
    Unsimplified,
    /// The same network without kernels.
    NoKernels,
    /// The same network with weights that are not rounded.
    Dense,
    Activations(&'a Activations),
}

/// A network that is compiled for a target, to be compared with a baseline.
pub struct CompiledNetwork<'a> {
    pub plan: &'a Plan,
    /// The network as it was recorded.
    pub trace: &'a Trace,
    /// Its weights, by the names that it has for them.
    pub checkpoint: &'a Checkpoint,
    /// The same, for the evaluator.
    pub values: &'a CheckpointValues<'a>,
    /// The compiler and the cache.
    pub tools: (&'a Compiler, &'a Path),
    pub runtime: &'a Runtime,
    /// What it is compiled for.
    pub target: &'a Target,
}

impl CompiledNetwork<'_> {
    /// Compares the network with a baseline, call by call.
    ///
    /// # Errors
    /// If one of the two cannot be carried out, or `watch` asks to stop.
    pub fn compare(
        &self,
        baseline: &Baseline<'_>,
        calls: &[TokenCall],
        watch: &mut dyn FnMut(&TokenCall) -> ControlFlow<()>,
    ) -> Result<Vec<Bisected>, BisectError> {
        let Self { plan, trace, values, .. } = *self;
        let quantize = plan.weights.quantize.clone();
        let rounded = quantize.rounds();
        let subject = self.form("iree", plan.rules, plan.weights.clone());
        let mut compare = |reference: &dyn Form, matmuls| {
            let tolerance = Tolerance::new(plan.element, matmuls);
            Bisection { subject: &subject, reference, values, tolerance }.compare_calls(trace, calls, watch)
        };
        let matmuls = rounded.then_some(ROUNDED_ACTIVATIONS);
        match baseline {
            Baseline::Evaluator => {
                let stored = rounded.then(|| (plan.weights.clone(), self.target.clone()));
                compare(&EvaluatedForm { values, stored }, matmuls)
            }
            Baseline::Unsimplified => {
                compare(&self.form("unsimplified", Rules::Off, plan.weights.clone()), matmuls)
            }
            Baseline::NoKernels => {
                let weights = Weights { kernels: false, ..plan.weights.clone() };
                compare(&self.form("no-kernels", plan.rules, weights), matmuls)
            }
            Baseline::Dense => {
                let matmuls = Some(rounding(&quantize));
                let weights = Weights { quantize: Quantization::Computed, ..plan.weights.clone() };
                compare(&self.form("dense", plan.rules, weights), matmuls)
            }
            Baseline::Activations(known) => {
                calls.iter().map(|call| known.compare(&subject, trace, call, plan.element)).collect()
            }
        }
    }

    fn form(&self, name: &str, rules: Rules, weights: Weights) -> CompiledForm<'_> {
        CompiledForm {
            name: name.into(),
            tools: self.tools,
            runtime: self.runtime.clone(),
            checkpoint: self.checkpoint,
            rules,
            weights,
            target: self.target.clone(),
        }
    }
}

/// What matmuls may differ by from those over weights that are not rounded.
fn rounding(formats: &Quantization) -> f64 {
    let four_bits = [WeightFormat::Q4, WeightFormat::Q4K].map(Quantization::All);
    if four_bits.contains(formats) { 0.5 } else { 0.1 }
}
