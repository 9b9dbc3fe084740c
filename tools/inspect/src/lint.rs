//! `trace-dump lint` lists the operations and weights that a target rejects, computes slowly, or
//! would compute wrongly without a legalization.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use console::{ModelArguments, print, resolved};
use error_codes::{Code, Coded as _};
use serde_json::{Value, json};
use tracewright::errors::WithCauses;
use tracewright::export::xla;
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
    /// Path or name of the model, as for `trace-dump MODEL`
    model: PathBuf,
    /// Target to check: a target as for `export --target`, or the word `xla`; may be repeated [default: host]
    #[arg(long, value_name = "TARGET")]
    target: Vec<LintTarget>,
    /// Print one JSON object instead of lines of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model_arguments: ModelArguments,
}

impl LintArguments {
    pub fn run(&self, read: ReadModel) -> Result<(), InspectError> {
        let model = &self.model_arguments;
        let (network, name) = named(&self.model, &model.network.allow_config_key, read)?;
        let plan = model.plan(network, &resolved(&self.model)?, model.context)?;
        let lint = Lint::new((&self.model, &name), &plan, &plan.trace()?.trace, &self.target);
        let written = print(&if self.json { format!("{}\n", lint.json()) } else { lint.text() });
        // What a target refuses is an error even where nobody reads it.
        match lint.refusing() {
            targets if targets.is_empty() => Ok(written?),
            targets => Err(InspectError::Refused { targets }),
        }
    }
}

/// XLA, or IREE's compiler for a machine that `export --target` accepts.
#[derive(Clone, Debug)]
pub struct LintTarget {
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Severity {
    Refused,
    /// The compiled program is slower or larger than necessary.
    Slow,
    /// The compiled network differs from the declared network, but is not slower.
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

struct Finding {
    severity: Severity,
    /// The same for all findings of one kind.
    what: String,
    why: String,
    code: Option<Code>,
    /// The field paths or weight names that the finding concerns, and how often each of them occurs.
    places: BTreeMap<String, usize>,
}

struct Lint {
    model: String,
    targets: Vec<(LintTarget, Vec<Finding>)>,
}

impl Lint {
    /// This machine if `targets` is empty.
    fn new((model, name): (&Path, &str), plan: &Plan, trace: &Trace, targets: &[LintTarget]) -> Self {
        let host = [LintTarget { name: "host".into(), target: Target::host() }];
        let targets = if targets.is_empty() { &host } else { targets };
        let found = targets.iter().map(|target| (target.clone(), findings(model, plan, trace, target)));
        Self { model: name.to_owned(), targets: found.collect() }
    }

    fn refusing(&self) -> Vec<String> {
        let refuses = |findings: &[Finding]| findings.iter().any(|one| one.severity == Severity::Refused);
        let refusing = self.targets.iter().filter(|(_, findings)| refuses(findings));
        refusing.map(|(target, _)| target.name.clone()).collect()
    }

    /// One paragraph for each target.
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
                let _ = writeln!(text, "  no findings");
            }
        }
        text
    }

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

/// If only the compiler knows the features, those that the user added, such as `+avx2`: `lint` does not call
/// it.
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
    let unread = || {
        xla::check_model(model)
            .err()
            .map(|error| (error, "take the model directory that it was exported from"))
    };
    if let Some((error, why)) = if xla { unread() } else { None } {
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
            what: format!("only iree-compile knows the features of `{}`", target.processor),
            why: "treated as a processor without features; PLATFORM:PROCESSOR:+FEATURE,+FEATURE names them"
                .into(),
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
            what: format!("{}: a compiler bug that is worked around", legalization.name),
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

/// Why an operation is slow without a kernel; `None` if there are no kernels for its kind.
fn served(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Sdpa(_) => "attention writes its scores to memory, and also reads masked keys and values",
        Op::Append(_) => "each decode call reads and writes the whole KV cache to change one position",
        Op::RmsNorm(_) | Op::Rope(_) => "the operation is computed alone, and not fused into a matmul",
        Op::Linear(_) => "the compiler generates the matmul, and the weights are not packed",
        _ => return None,
    })
}

/// Reports the operations for which Tracewright has kernels, but which no kernel computes on this target.
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
        if wanted { "the target lacks the instructions that kernels need" } else { "kernels are off" };
    found
        .into_iter()
        .map(|(name, (cost, places))| Finding {
            severity: Severity::Slow,
            what: if has_kernels {
                format!("no kernel supports these `{name}`")
            } else {
                format!("no kernel supports `{name}`: {why_none}")
            },
            why: cost.to_owned(),
            code: None,
            places: counted(places.into_iter()),
        })
        .collect()
}

/// Whether `written`, expanded, computes `op` with a kernel or still contains it.
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

/// Reports the weights that are not stored in the format of `--quant`, or that are stored with padding.
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
            what: format!("weights stay {} although you asked for `{}`", plan.element, plan.weights.quantize),
            why: reason.to_string(),
            code: None,
            places: counted(keys.into_iter()),
        });
    }
    if !padded.is_empty() {
        found.push(Finding {
            severity: Severity::Note,
            what: format!("rows whose length is not a multiple of {GROUP}, the size of a group"),
            why: "the last group of each row is padded with zeros, which are stored and multiplied".into(),
            code: None,
            places: padded,
        });
    }
    found
}

/// Reports the weights that no kernel reads, and that the compiler must therefore widen or pack.
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
                what: "bf16 matmuls on a processor without bf16 instructions".into(),
                why: "the compiler cannot pack them here, and widens each number when it reads it; `--dtype \
                    f32` needs twice the bytes and may be faster"
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
            what: "weights are packed again when the program is loaded".into(),
            why: format!(
                "{} more memory and a slower start: no kernel reads their order in the archive",
                tracewright::footprint::readable(footprint.repacked as u64)
            ),
            code: None,
            places: BTreeMap::new(),
        });
    }
    found
}
