//! `trace-dump lint`: what a target would refuse of a network, do slowly, or get wrong if nobody looked.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use console::{ModelArguments, print};
use error_codes::{Code, Coded as _};
use serde_json::{Value, json};
use tracewright::errors::WithCauses;
use tracewright::export::xla::{self, XlaError};
use tracewright::lower::legalize::shown;
use tracewright::lower::{self, DenseReason, Weights};
use tracewright::models::ReadModel;
use tracewright::ops::format::GROUP;
use tracewright::ops::{ElementType, Form, Op};
use tracewright::targets::{Backend, Target};
use tracewright::trace::{Function, NodeKind, Provenance, Trace, key_pattern};
use tracewright::{Expanded, Footprint, Plan, StagedTrace};

use crate::error::InspectError;
use crate::recorded::named;

#[derive(Args)]
pub struct LintArguments {
    /// Model, as for `trace-dump` itself
    model: PathBuf,
    /// Target as for `export`, or `xla`; may be repeated [default: host]
    #[arg(long, value_name = "TARGET")]
    target: Vec<LintTarget>,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model_arguments: ModelArguments,
}

impl LintArguments {
    pub fn run(&self, read: ReadModel) -> Result<(), InspectError> {
        let model = &self.model_arguments;
        let (network, name) = named(&self.model, &model.network.allow_config_key, read)?;
        let plan = model.plan(network, model.context)?;
        let lint = Lint::new((&self.model, &name), &plan, &plan.trace()?.trace, &self.target);
        let written = print(&if self.json { format!("{}\n", lint.json()) } else { lint.text() });
        // What a target refuses is an error even where nobody reads it.
        match lint.refusing() {
            targets if targets.is_empty() => Ok(written?),
            targets => Err(InspectError::Refused { targets }),
        }
    }
}

/// A target as `lint` names it: as `export` does, or XLA.
#[derive(Clone, Debug)]
pub struct LintTarget {
    /// The words on the command line.
    name: String,
    target: Target,
}

impl FromStr for LintTarget {
    type Err = tracewright::targets::TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let target = if text == "xla" { Target::xla() } else { text.parse()? };
        Ok(Self { name: text.to_owned(), target: with_named_features(target) })
    }
}

/// What a finding means for who runs the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    /// There is no program.
    Refused,
    /// There is one that is slower, or larger, than it could be.
    Slow,
    /// It is done otherwise than it is said, and as well.
    Note,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Slow => "slow",
            Self::Note => "note",
        }
    }
}

/// One thing that was found.
struct Finding {
    severity: Severity,
    /// What, in a few words that are the same wherever it is found.
    what: String,
    /// What follows from it.
    why: String,
    /// The error that it would be.
    code: Option<Code>,
    /// Where: field paths or keys, and how often.
    places: BTreeMap<String, usize>,
}

/// What was found for each target.
struct Lint {
    model: String,
    targets: Vec<(LintTarget, Vec<Finding>)>,
}

impl Lint {
    /// Looks at a network, for each of these targets or for this machine.
    fn new((model, name): (&Path, &str), plan: &Plan, trace: &Trace, targets: &[LintTarget]) -> Self {
        let host = [LintTarget { name: "host".into(), target: Target::host() }];
        let targets = if targets.is_empty() { &host } else { targets };
        let found = targets.iter().map(|target| (target.clone(), findings(model, plan, trace, target)));
        Self { model: name.to_owned(), targets: found.collect() }
    }

    /// The targets that refuse the network.
    fn refusing(&self) -> Vec<String> {
        let refuses = |findings: &[Finding]| findings.iter().any(|one| one.severity == Severity::Refused);
        let refusing = self.targets.iter().filter(|(_, findings)| refuses(findings));
        refusing.map(|(target, _)| target.name.clone()).collect()
    }

    /// A paragraph for each target.
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for (LintTarget { name, .. }, findings) in &self.targets {
            let _ = writeln!(text, "{}{} for {name}", if text.is_empty() { "" } else { "\n" }, self.model);
            for Finding { severity, what, why, code, places } in findings {
                let code = code.map_or_else(String::new, |code| format!(" [{code}]"));
                let _ = writeln!(text, "  {:<8} {what}{code}", severity.word());
                for line in why.lines() {
                    let _ = writeln!(text, "  {:<8} {line}", "");
                }
                for (place, count) in places {
                    let times = if *count > 1 { format!(" ({count} times)") } else { String::new() };
                    let _ = writeln!(text, "  {:<8}   {place}{times}", "");
                }
            }
            if findings.is_empty() {
                let _ = writeln!(text, "  nothing to object to");
            }
        }
        text
    }

    /// The same for programs.
    fn json(&self) -> Value {
        let finding = |one: &Finding| {
            json!({
                "severity": one.severity.word(), "what": one.what, "why": one.why,
                "code": one.code.map(Code::name), "places": one.places,
            })
        };
        let target = |(target, findings): &(LintTarget, Vec<Finding>)| {
            let refused = findings.iter().any(|one| one.severity == Severity::Refused);
            let findings: Vec<Value> = findings.iter().map(finding).collect();
            json!({
                "target": target.name, "features": target.target.features, "refused": refused, "findings": findings,
            })
        };
        json!({ "model": self.model, "targets": self.targets.iter().map(target).collect::<Vec<_>>() })
    }
}

/// The target with the features that its name says, where nobody else does: iree-compile knows more, and is not asked.
fn with_named_features(target: Target) -> Target {
    let Some(changes) = target.changes.as_deref().filter(|_| target.features.is_none()) else {
        return target;
    };
    let features = changes.split(',').filter_map(|change| change.strip_prefix('+')).map(str::to_owned);
    Target { features: Some(features.collect()), ..target }
}

fn findings(
    model: &Path,
    plan: &Plan,
    trace: &Trace,
    LintTarget { target, .. }: &LintTarget,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let xla = target.backend == Backend::Xla;
    let rounds = || plan.weights.quantize.rounds().then_some((XlaError::Quantized, "leave out `--quant`"));
    let unread =
        || xla::check_model(model).err().map(|error| (error, "take the model directory that it was made of"));
    if let Some((error, why)) = if xla { unread().or_else(rounds) } else { None } {
        found.push(Finding {
            severity: Severity::Refused,
            what: error.to_string(),
            why: why.into(),
            code: Some(error.code()),
            places: BTreeMap::new(),
        });
        return found;
    }
    let weights = Weights { kernels: plan.weights.kernels && !xla, ..plan.weights.clone() };
    if target.features.is_none() && !xla {
        found.push(Finding {
            severity: Severity::Note,
            what: format!("the features of `{}` are known to iree-compile alone", target.processor),
            why: "judged as a processor without any; PLATFORM:PROCESSOR:+FEATURE,+FEATURE names those to count on".into(),
            code: None,
            places: BTreeMap::new(),
        });
    }
    let staged = match StagedTrace::new(trace, plan.rules, target.clone(), weights.clone()) {
        Ok(staged) => staged,
        Err(error) => {
            found.push(refused(&error));
            return found;
        }
    };
    let (expanded, _) = &staged.expanded;
    if let Err(error) = lower::lower(&expanded.trace, target) {
        found.push(refused(&error));
    }
    let kernels_there = |function: &Function| {
        function.ids().any(|id| match &function.node(id).kind {
            NodeKind::Op(op) => matches!(op.form(), Form::Composite(_) | Form::Kernel),
            _ => false,
        })
    };
    let has_kernels = expanded.trace.functions.iter().any(kernels_there);
    if !xla {
        found.extend(unserved(&staged.simplified.0, &expanded.trace, has_kernels, weights.kernels));
        found.extend(stored(plan, trace, expanded));
        found.extend(compiler(expanded, target));
    }
    for (legalization, places) in shown(&expanded.trace, target) {
        found.push(Finding {
            severity: Severity::Note,
            what: format!("{}: a fault of the compiler that is worked around", legalization.name),
            why: legalization.fault.to_owned(),
            code: None,
            places: counted(places.into_iter().map(path)),
        });
    }
    found.sort_by_key(|one| one.severity);
    found
}

fn refused(error: &lower::LowerError) -> Finding {
    let places = error.places().into_iter().map(|place| place.path);
    Finding {
        severity: Severity::Refused,
        what: WithCauses(error).to_string(),
        why: String::new(),
        code: Some(error.code()),
        places: counted(places),
    }
}

fn path(provenance: &Provenance) -> String {
    match &*provenance.path {
        "" => format!("{}:{}", provenance.file, provenance.line),
        path => path.to_owned(),
    }
}

fn counted(places: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    places.for_each(|place| *counted.entry(place).or_default() += 1);
    counted
}

/// What kernels are there for, and what it costs where none is.
fn served(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Sdpa(_) => "attention writes its scores to memory, and reads keys and values that are hidden",
        Op::Append(_) => "a step reads and writes all of a cache to change a row of it",
        Op::RmsNorm(_) | Op::Rope(_) => "what could be a part of a product is computed before it",
        Op::Linear(_) => "the compiler multiplies, and reads weights as the network computes them",
        _ => return None,
    })
}

/// The operations that no kernel computes, of those that some kernel could.
fn unserved(simplified: &Trace, expanded: &Trace, has_kernels: bool, wanted: bool) -> Vec<Finding> {
    let mut found: BTreeMap<&'static str, (&'static str, Vec<String>)> = BTreeMap::new();
    for function in &simplified.functions {
        let written = expanded.functions.iter().find(|written| written.name == function.name);
        for id in function.ids() {
            let NodeKind::Op(op) = &function.node(id).kind else { continue };
            let Some(cost) = served(op) else { continue };
            let provenance = &function.node(id).provenance;
            if !written.is_some_and(|written| has_kernel(written, op, provenance)) {
                found.entry(op.name()).or_insert((cost, Vec::new())).1.push(path(provenance));
            }
        }
    }
    let why_none =
        if wanted { "the target has no instructions that kernels are made of" } else { "kernels are off" };
    found
        .into_iter()
        .map(|(name, (cost, places))| Finding {
            severity: Severity::Slow,
            what: match has_kernels {
                true => format!("no kernel serves these `{name}`"),
                false => format!("no kernel serves `{name}`: {why_none}"),
            },
            why: cost.to_owned(),
            code: None,
            places: counted(places.into_iter()),
        })
        .collect()
}

/// Whether what became of an operation is a kernel, or a form of its own.
fn has_kernel(written: &Function, op: &Op, provenance: &Provenance) -> bool {
    written.ids().any(|id| {
        let node = written.node(id);
        let became = match (&node.kind, op) {
            (NodeKind::Op(Op::PackedLinear(_)), Op::Linear(_))
            | (NodeKind::Op(Op::BoundedSdpa(_)), Op::Sdpa(_))
            | (NodeKind::Op(Op::SlicedAppend(_)), Op::Append(_)) => true,
            (NodeKind::Op(other), op) => other.name() == op.name(),
            _ => false,
        };
        became && node.provenance == *provenance
    })
}

/// Weights that are not stored as was asked, or with padding.
fn stored(plan: &Plan, trace: &Trace, expanded: &Expanded) -> Vec<Finding> {
    let mut found = Vec::new();
    let rounds = plan.weights.quantize.rounds();
    let mut whole: BTreeMap<DenseReason, Vec<String>> = BTreeMap::new();
    let mut padded: BTreeMap<String, usize> = BTreeMap::new();
    let shapes = trace.functions.iter().flat_map(Function::parameters);
    let inputs: BTreeMap<String, usize> =
        shapes.filter_map(|parameter| Some((parameter.key.clone(), *parameter.ty.shape.last()?))).collect();
    for (key, format) in &expanded.formats {
        match format {
            // A norm's weights are never rounded, and nobody expects it.
            Err(DenseReason::NoMatrix) => {}
            Err(reason) if rounds => whole.entry(*reason).or_default().push(key_pattern(key)),
            Ok(format) if let Some(together) = format.together() => {
                let rest = inputs.get(key).map_or(0, |inputs| inputs % together);
                if rest > 0 {
                    padded.insert(format!("{} (rows of {})", key_pattern(key), inputs[key]), 1);
                }
            }
            _ => {}
        }
    }
    for (reason, keys) in whole {
        found.push(Finding {
            severity: Severity::Slow,
            what: format!("weights stay {} although `{}` is asked for", plan.element, plan.weights.quantize),
            why: reason.to_string(),
            code: None,
            places: counted(keys.into_iter()),
        });
    }
    if !padded.is_empty() {
        found.push(Finding {
            severity: Severity::Note,
            what: format!("rows that are no multiple of {GROUP}, the numbers that share a scale"),
            why: "the last group of each row is filled with zeros, which are stored and multiplied".into(),
            code: None,
            places: padded,
        });
    }
    found
}

/// What the compiler does with weights that no kernel reads.
fn compiler(expanded: &Expanded, target: &Target) -> Vec<Finding> {
    let mut found = Vec::new();
    let bf16 = || {
        let products = expanded.trace.functions.iter().flat_map(|function| {
            function.ids().map(move |id| (function, id)).filter(|(function, id)| {
                let node = function.node(*id);
                matches!(node.kind, NodeKind::Op(Op::DotGeneral(_)))
                    && function
                        .operands(*id)
                        .iter()
                        .any(|&read| function.node(read).ty().element == ElementType::Bf16)
            })
        });
        products.map(|(function, id)| path(&function.node(id).provenance)).collect::<Vec<_>>()
    };
    if target.has_bf16() == Some(false) {
        let places = bf16();
        if !places.is_empty() {
            found.push(Finding {
                severity: Severity::Slow,
                what: "products of bf16 on a processor that multiplies none".into(),
                why: "the compiler has no packed form for them here, and widens each number where it is read; `--dtype f32` is \
                      twice the bytes and may be faster"
                    .into(),
                code: None,
                places: counted(places.into_iter()),
            });
        }
    }
    if let Ok(footprint) = Footprint::of(expanded)
        && footprint.repacked > 0
    {
        found.push(Finding {
            severity: Severity::Slow,
            what: "weights are packed once more when the program is loaded".into(),
            why: format!(
                "{} more in memory, and a slower start: no kernel reads them as the archive has them",
                tracewright::footprint::readable(footprint.repacked as u64)
            ),
            code: None,
            places: BTreeMap::new(),
        });
    }
    found
}
