//! `tracewright bisect`

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use instruments::bisect::{
    Activations, Bisected, Bisection, CheckpointValues, ComparedNode, CompiledForm, Difference,
    EvaluatedForm, Finding, Form, TokenCall, Tolerance,
};
use serde_json::{Value, json};
use tracewright::Plan;
use tracewright::lower::{Quantization, Weights};
use tracewright::ops::WeightFormat;
use tracewright::runtime::{Device, Runtime};
use tracewright::simplify::Rules;
use tracewright::targets::{Target, Tuning};

use crate::arguments::{Against, BisectArguments};
use crate::build::Tunings;
use crate::error::Error;
use crate::limit::Limit;
use crate::load::check_prompt;
use crate::{Interrupt, ReadModel, build, open};

pub fn run(arguments: &BisectArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let BisectArguments { model: folder, tokens, against, .. } = arguments;
    let model = &arguments.model_arguments;
    let (network, checkpoint) = open(read, folder, &model.network.allow_config_key)?;
    let context = Plan::context_for(tokens.len(), network.max_context());
    if matches!(against, Against::Activations(_)) && model.chunk.is_some() {
        let what = "`--chunk` is for what reads a prompt in pieces; transformers computed these in one pass";
        return Err(Error::Usage { what: what.into() });
    }
    let plan = model.plan(network, model.context.or(Some(context)))?;
    check_prompt(tokens, Limit::of(&plan), plan.model.vocabulary())?;
    let activations = match against {
        Against::Activations(path) => Some(activations(path, tokens)?),
        _ => None,
    };
    // No longer than what is read: padding costs as much as tokens. What transformers computed, it did in one pass.
    let chunk = match activations {
        Some(_) => tokens.len(),
        None => plan.chunk.min(tokens.len().saturating_sub(1)).max(1),
    };
    let plan = Plan { chunk, ..plan };
    let (entries, calls) = match activations {
        Some(_) => (plan.entry_points(), vec![TokenCall::score(tokens)]),
        None => (plan.steps(), TokenCall::of(tokens, chunk)),
    };
    let quantized = plan.weights.quantize.rounds();
    if *against == Against::Dense && !quantized {
        let what = "`--against dense` compares rounded weights with those of the checkpoint; round them with `--quant`";
        return Err(Error::Usage { what: what.into() });
    }
    let (trace, checkpoint) = (plan.record(&entries)?.trace, plan.named(checkpoint));
    let values = CheckpointValues::new(&trace, &checkpoint).map_err(tracewright::PlanError::from)?;
    let compiler = build::compiler(&arguments.compile, interrupt)?;
    let cache = build::cache_folder(&arguments.compile)?;
    let (device, target) = arguments.device.choose(1)?;
    let target = compiler.resolve(&target)?;
    let source = arguments.tuning.source.as_ref();
    let tuning = Tunings::read(source, &target, (&compiler, &cache))?.of(Some(&plan))?;
    let target = Target { tuning: Tuning { chunk: None, ..tuning }, ..target };
    // Sums are those of one thread.
    let runtime = Runtime::new(match device {
        Device::LocalTask { .. } => Device::LocalSync,
        device => device,
    })?;
    let compiled = |name: &str, rules, weights| CompiledForm {
        name: name.into(),
        tools: (&compiler, &cache),
        runtime: runtime.clone(),
        checkpoint: &checkpoint,
        rules,
        weights,
        target: target.clone(),
    };
    let subject = compiled("iree", plan.rules, plan.weights.clone());
    let name = match against {
        Against::Evaluator => "evaluator",
        Against::Unsimplified => "unsimplified",
        Against::NoKernels => "no-kernels",
        Against::Dense => "dense",
        Against::Activations(_) => "transformers",
    };
    let mut watch = |call: &TokenCall| {
        say!("comparing {}", said(call));
        interrupt.go_on()
    };
    let mut compare = |reference: &dyn Form, products| {
        let tolerance = Tolerance::new(plan.element, products);
        let bisection = Bisection { subject: &subject, reference, values: &values, tolerance };
        bisection.compare_calls(&trace, &calls, &mut watch)
    };
    // A byte more or less, where a norm rounds otherwise.
    let rounded = quantized.then_some(ACTIVATIONS);
    let compared = match against {
        Against::Evaluator => {
            let stored = quantized.then(|| (plan.weights.clone(), target.clone()));
            compare(&EvaluatedForm { values: &values, stored }, rounded)?
        }
        Against::Unsimplified => compare(&compiled(name, Rules::Off, plan.weights.clone()), rounded)?,
        Against::NoKernels => {
            compare(&compiled(name, plan.rules, Weights { kernels: false, ..plan.weights.clone() }), rounded)?
        }
        Against::Dense => {
            let dense = compiled(
                name,
                plan.rules,
                Weights { quantize: Quantization::Computed, ..plan.weights.clone() },
            );
            compare(&dense, Some(rounding(&plan.weights.quantize)))?
        }
        Against::Activations(_) => {
            let known = activations.iter();
            let compared = known.map(|known| known.compare(&subject, &trace, &calls[0], plan.element));
            compared.collect::<Result<_, _>>()?
        }
    };
    let report = Report { names: ["iree", name], calls: &calls, compared: &compared };
    let text = match arguments.json {
        true => format!("{}\n", report.json()),
        false => report.text(),
    };
    let written = std::io::stdout().lock().write_all(text.as_bytes()).map_err(Error::Output);
    match report.finding() {
        None if report.nodes() == 0 => {
            let what = format!("nothing was compared: {name} has no value of a module of this network");
            Err(Error::Usage { what })
        }
        None => written,
        Some((_, finding)) => Err(Error::Differs { path: finding.node.place.path.clone() }),
    }
}

/// What transformers computed of the same tokens.
fn activations(path: &Path, tokens: &[u32]) -> Result<Activations, Error> {
    let activations = Activations::open(path)?;
    match activations.tokens() {
        Some(known) if known == tokens => Ok(activations),
        known => {
            let known =
                known.map_or("no tokens (a list of i32)".to_owned(), |known| format!("the tokens {known:?}"));
            let what = format!("`{}` has {known}, and `--tokens` says {tokens:?}", path.display());
            Err(Error::Usage { what })
        }
    }
}

/// What products may differ by where activations are rounded to bytes.
const ACTIVATIONS: f64 = 0.06;

/// What products may differ by from those over weights that are not rounded.
fn rounding(formats: &Quantization) -> f64 {
    let four_bits = [WeightFormat::Q4, WeightFormat::Q4K].map(Quantization::All);
    if four_bits.contains(formats) { 0.5 } else { 0.1 }
}

struct Report<'a> {
    /// The subject's, the reference's.
    names: [&'a str; 2],
    calls: &'a [TokenCall],
    compared: &'a [Bisected],
}

impl Report<'_> {
    fn finding(&self) -> Option<(&TokenCall, &Finding)> {
        let calls = self.calls.iter().zip(self.compared);
        calls.into_iter().find_map(|(call, bisected)| Some((call, bisected.finding.as_ref()?)))
    }

    fn nodes(&self) -> usize {
        self.compared.iter().map(|bisected| bisected.compared).sum()
    }

    fn json(&self) -> Value {
        let call = |(call, bisected): (&TokenCall, &Bisected)| {
            let results = bisected.results.iter().map(|(name, difference)| (name.clone(), json!(difference)));
            json!({
                "call": call,
                "nodes": bisected.compared,
                "finding": bisected.finding,
                "results": results.collect::<serde_json::Map<_, _>>(),
            })
        };
        json!({
            "subject": self.names[0],
            "reference": self.names[1],
            "nodes": self.nodes(),
            "differs": self.finding().is_some(),
            "calls": self.calls.iter().zip(self.compared).map(call).collect::<Value>(),
        })
    }

    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match self.finding() {
            None => writeln!(text, "{} nodes are equal within their bounds", self.nodes()),
            Some((call, finding)) => self.explain(&mut text, call, finding),
        };
        for (call, bisected) in self.calls.iter().zip(self.compared) {
            let shares =
                bisected.results.iter().map(|(name, found)| format!("{name} {:.1e}", found.relative));
            let _ = writeln!(text, "{}: {}", said(call), shares.collect::<Vec<_>>().join(", "));
        }
        text
    }

    fn explain(&self, text: &mut String, call: &TokenCall, finding: &Finding) -> std::fmt::Result {
        let Finding { node: ComparedNode { place, difference }, operands, only_together, after } = finding;
        writeln!(text, "`{}` differs, at {}:{}, in {}", place.path, place.file, place.line, said(call))?;
        writeln!(text, "  {} : {}", place.op, place.ty)?;
        if let Some(Difference { at, subject, reference, relative, beyond, count }) = difference {
            let [own, other] = self.names;
            writeln!(text, "  at {at:?} {own} has {subject:e}, {other} {reference:e}")?;
            writeln!(
                text,
                "  that is {relative:.1e} of the largest; {beyond} of {count} numbers are beyond their bounds"
            )?;
        }
        if *only_together {
            writeln!(
                text,
                "  only where it is computed together with what is around it: in one kernel or dispatch"
            )?;
        }
        for ComparedNode { place, difference } in operands {
            let apart = difference.as_ref().map(|found| format!(": {:.1e} apart", found.relative));
            let apart = apart.unwrap_or_default();
            writeln!(text, "  of {} (`{}`, {}:{}){apart}", place.op, place.path, place.file, place.line)?;
        }
        writeln!(text, "  behind it {} of {} nodes are beyond their own bounds", after[1], after[0])
    }
}

/// `decode of 1 token from position 4`
fn said(call: &TokenCall) -> String {
    let tokens = if call.tokens.len() == 1 { "token" } else { "tokens" };
    format!("{} of {} {tokens} from position {}", call.entry, call.tokens.len(), call.start)
}
