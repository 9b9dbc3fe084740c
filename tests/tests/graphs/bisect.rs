//! Bisection: a fault that is planted in one of two forms is named where it is, and nothing is found where none is.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::ops::ControlFlow;

use instruments::bisect::{
    Activations, BisectError, Bisected, Bisection, CheckpointValues, CompiledForm, EvaluatedForm, Finding,
    Form, TokenCall, Tolerance,
};
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::models::ModelConfig;
use tracewright::ops::ops::{Binary, BinaryKind, Constant, ReducePrecision, Sdpa};
use tracewright::ops::{ElementType, Literal, Op, Real, Value, WeightFormat};
use tracewright::runtime::{Device, Runtime};
use tracewright::simplify::Rules;
use tracewright::trace::{Builder, NodeId, Quantization, Trace};
use tracewright::{EntryPoint, Plan};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::faults::{Replaced, another_rope_base, causal_mask_off_by_one, order_of_heads};
use tracewright_tests::rewrite::rewrite;
use tracewright_tests::{level, long};

use support::one_round_less;

const TOKENS: [u32; 5] = [5, 17, 3, 60, 2];
const CHUNK: usize = 4;

/// A model, and how it is built.
struct Subject {
    model: &'static str,
    element: Option<ElementType>,
    weights: Weights,
    rules: Rules,
    /// How much of what may differ by calibration is used.
    calibrated: f64,
    against: Against,
    /// The number of tokens of the calls: a chunk, or also one more, which is a call of its own.
    tokens: usize,
}

/// The baseline of a comparison, by its name on the command line.
#[derive(Clone, Copy, Debug)]
enum Against {
    Evaluator,
    Unsimplified,
    NoKernels,
    Dense,
}

impl Subject {
    fn new(model: &'static str) -> Self {
        let (weights, rules, against) = (Weights::default(), Rules::default(), Against::Evaluator);
        Self { model, element: None, weights, rules, calibrated: 1.0, against, tokens: TOKENS.len() }
    }

    /// In the short form only the first call, since each call compiles its own modules.
    fn of_one_call(self) -> Self {
        Self { tokens: if long::is_wanted() { TOKENS.len() } else { CHUNK }, ..self }
    }

    /// The finding if IREE's form is changed by `form`.
    fn compare(&self, form: impl Fn(&CompiledForm<'_>, &Trace, &[Value]) -> Results) -> Vec<Bisected> {
        let folder = repository().join("tests/fixtures").join(self.model);
        let config = ModelConfig::read(&folder, &[]).unwrap();
        let plan = Plan::new(config, self.element, Some(24), Some(CHUNK)).unwrap();
        let entries: Vec<EntryPoint> = plan.steps();
        let trace = plan.record(&entries).unwrap().trace;
        let checkpoint = plan.named(Checkpoint::open(&folder).unwrap());
        let (compiler, cache) = (compiler().unwrap(), repository().join(".tracewright/cache"));
        let values = CheckpointValues::new(&trace, &checkpoint).unwrap();
        let target = compiler.resolve(&level::target()).unwrap();
        let compiled = |rules, weights: &Weights| CompiledForm {
            name: "iree".into(),
            tools: (&compiler, &cache),
            runtime: Runtime::new(Device::LocalSync).unwrap(),
            checkpoint: &checkpoint,
            rules,
            weights: weights.clone(),
            target: target.clone(),
        };
        let (weights, mut products) = (&self.weights, self.weights.quantize.rounds().then_some(0.06));
        let reference: Box<dyn Form> = match self.against {
            Against::Evaluator => {
                let stored = weights.quantize.rounds().then(|| (weights.clone(), target.clone()));
                Box::new(EvaluatedForm { values: &values, stored })
            }
            Against::Unsimplified => Box::new(compiled(Rules::Off, weights)),
            Against::NoKernels => {
                Box::new(compiled(self.rules, &Weights { kernels: false, ..weights.clone() }))
            }
            Against::Dense => {
                products = Some(0.1);
                let dense = Weights { quantize: Quantization::Computed, ..weights.clone() };
                Box::new(compiled(self.rules, &dense))
            }
        };
        let subject = Edited { compiled: compiled(self.rules, weights), form };
        let tolerance = Tolerance { calibrated: self.calibrated, ..Tolerance::new(plan.element, products) };
        let bisection = Bisection { subject: &subject, reference: &*reference, values: &values, tolerance };
        bisection
            .compare_calls(&trace, &TokenCall::of(&TOKENS[..self.tokens], CHUNK), &mut |_| {
                ControlFlow::Continue(())
            })
            .unwrap()
    }
}

type Results = Result<Vec<Vec<Value>>, BisectError>;

/// A compiled form that does something else than it is told.
struct Edited<'a, F> {
    compiled: CompiledForm<'a>,
    form: F,
}

impl<F: Fn(&CompiledForm<'_>, &Trace, &[Value]) -> Results> Form for Edited<'_, F> {
    fn name(&self) -> &str {
        self.compiled.name()
    }

    fn run(&self, trace: &Trace, arguments: &[Value]) -> Results {
        (self.form)(&self.compiled, trace, arguments)
    }
}

/// The finding where the trace that IREE gets was rewritten.
fn planted(subject: &Subject, replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) -> Finding {
    let found = subject.compare(|form, trace, arguments| {
        let faulty = rewrite(trace, &replace).unwrap();
        faulty.verify().unwrap();
        form.run(&faulty, arguments)
    });
    found.into_iter().find_map(|bisected| bisected.finding).expect("the fault went unnoticed")
}

/// Asserts that a finding names a node: its path, its line's file, its operation; and that its operands are equal.
#[track_caller]
fn names(finding: &Finding, path: &str, op: &str) {
    println!("{finding:?}");
    let place = &finding.node.place;
    assert!(place.path == path && place.op.starts_with(op), "{place:?}");
    assert!(place.file.ends_with(".rs") && place.line > 0, "{place:?}");
    assert!(finding.node.difference.as_ref().unwrap().beyond > 0);
    let wrong = finding.operands.iter().filter_map(|operand| operand.difference.as_ref());
    assert!(wrong.clone().all(|difference| difference.beyond == 0), "{:?}", finding.operands);
}

#[test]
fn nothing_is_found_in_a_sound_model() {
    // The modules of the first one are also those of other tests.
    let models = ["llama-untied", "gemma3-b", "qwen2"];
    for model in long::first(models, 1) {
        let found = Subject::new(model).compare(|form, trace, arguments| form.run(trace, arguments));
        assert_eq!(found.len(), 2, "{model}: {found:?}");
        for bisected in found {
            assert_eq!(bisected.finding, None, "{model}");
            assert!(bisected.compared > 20, "{model}");
        }
    }
}

/// A fixture of each family: the one that has its model type for a name, if there is one.
fn families() -> Vec<&'static str> {
    let types = tracewright::models::FAMILIES.iter().flat_map(|family| family.model_types).copied();
    let fixtures = repository().join("tests/fixtures");
    let named = types.filter(|name| fixtures.join(name).is_dir());
    named.chain(["llama-untied", "gemma3-b"]).collect()
}

/// A small network of each family, whose numbers in a narrow type are within half of what may differ: what is beyond all of it is
/// a fault. In the long form all of them, and how much of it each needs; else the one that needs most.
#[test]
fn sound_models_in_narrow_types_stay_within_half_of_the_bounds() {
    const NEAREST: (&str, ElementType) = ("qwen3", ElementType::Bf16);
    let long = long::is_wanted();
    let types = [ElementType::Bf16, ElementType::F16];
    let all = families().into_iter().flat_map(|model| types.map(|element| (model, element)));
    let models: Vec<_> = if long { all.collect() } else { vec![NEAREST] };
    for (model, element) in models {
        let found = |calibrated| {
            let subject = Subject { element: Some(element), calibrated, ..Subject::new(model) }.of_one_call();
            let found = subject.compare(|form, trace, arguments| form.run(trace, arguments));
            found.into_iter().find_map(|bisected| bisected.finding)
        };
        assert_eq!(found(0.5), None, "{model} in {element}");
        if long {
            let halves = (2..9).map(|halves| 0.5f64.powi(halves));
            let enough = halves.take_while(|share| found(*share).is_none()).last().unwrap_or(0.5);
            println!("{model} in {element}: {enough} of the bounds is enough");
        }
    }
}

/// The fault that replaces an operation.
type Fault = fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced;

/// A Gemma's norms multiply by 1 + w: here by w.
fn norm_offset(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Replaced {
    let (Op::RmsNorm(norm), &[x, weight]) = (op, operands) else { return Ok(None) };
    let minus = Literal::splat(b.ty(weight).clone(), -1.0);
    let minus = b.op(Constant { value: minus }, &[])?;
    let weight = b.op(Binary { kind: BinaryKind::Add }, &[weight, minus])?;
    b.op(norm.clone(), &[x, weight]).map(Some)
}

/// Scores are divided by 4 where it is √14; in a narrow type by 5, since attention in bf16 may round by as much as the other fault
/// is.
fn scale(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Replaced {
    let Op::Sdpa(sdpa) = op else { return Ok(None) };
    let scale = if b.ty(operands[0]).element == ElementType::F32 { 0.25 } else { 0.2 };
    b.op(Sdpa { scale: Some(Real(scale)), ..sdpa.clone() }, operands).map(Some)
}

/// Products of two activations are rounded to as many digits as bf16 has, in a network of f32.
fn rounding(b: &mut Builder<'_>, op: &Op, operands: &[NodeId]) -> Replaced {
    let Op::Binary(Binary { kind: BinaryKind::Multiply }) = op else { return Ok(None) };
    let product = b.op(op.clone(), operands)?;
    b.op(ReducePrecision { to: ElementType::Bf16 }, &[product]).map(Some)
}

/// A fault, the model that it is planted in, and the node that is named: its field path, its operation. Beside
/// transformers, which tells its modules alone, that is the operation whose value the next module gets.
struct Planted {
    name: &'static str,
    fault: Fault,
    model: &'static str,
    evaluator: [&'static str; 2],
    transformers: [&'static str; 2],
}

impl Planted {
    const fn new(name: &'static str, fault: Fault, model: &'static str, node: [&'static str; 2]) -> Self {
        Self { name, fault, model, evaluator: node, transformers: node }
    }
}

const FAULTS: [Planted; 6] = [
    Planted::new("mask", causal_mask_off_by_one, "llama-untied", SDPA),
    Planted { evaluator: TABLE, ..Planted::new("rope base", another_rope_base, "llama-untied", SDPA) },
    Planted::new("norm offset", norm_offset, "gemma3-b", NORM),
    Planted::new("scale", scale, "llama-untied", SDPA),
    Planted::new("head order", order_of_heads, "llama-untied", SDPA),
    Planted::new("rounding", rounding, "llama-untied", PRODUCT),
];
const TABLE: [&str; 2] = ["model", "constant value=f32[24,7] rope_table"];
const SDPA: [&str; 2] = ["model.layers.0.self_attn", "sdpa mask=[causal]"];
const NORM: [&str; 2] = ["model.layers.0.input_layernorm", "rms_norm"];
const PRODUCT: [&str; 2] = ["model.layers.0.mlp", "binary kind=multiply"];

/// Compiled, of what stands before an operation, and of rounding; in the long form all of them, as beside transformers. The
/// tests below have a fault within an operation.
#[test]
fn planted_faults_are_named_against_the_evaluator() {
    let wanted = |fault: &&Planted| ["norm offset", "rounding"].contains(&fault.name) || long::is_wanted();
    for &Planted { name, fault, model, evaluator: [path, op], .. } in FAULTS.iter().filter(wanted) {
        println!("{name}");
        let subject = Subject { element: Some(ElementType::F32), ..Subject::new(model) }.of_one_call();
        let found = planted(&subject, fault);
        names(&found, path, op);
        assert!(!found.only_together);
    }
}

/// The short form tests one fault in bf16. The long form tests all faults in both narrow types, except
/// rounding, which such networks contain anyway.
#[test]
fn planted_faults_are_named_in_narrow_types() {
    let long = long::is_wanted();
    let all =
        FAULTS.iter().filter(|fault| if long { fault.name != "rounding" } else { fault.name == "scale" });
    let in_types = |fault| long::first([ElementType::Bf16, ElementType::F16], 1).map(move |ty| (fault, ty));
    for (fault, element) in all.flat_map(in_types) {
        let &Planted { name, fault, model, evaluator: [path, op], .. } = fault;
        println!("{name} in {element}");
        let subject = Subject { element: Some(element), ..Subject::new(model) }.of_one_call();
        let found = planted(&subject, fault);
        names(&found, path, &op.replace("f32", element.name()));
    }
}

/// Beside each other form in which a network may be compiled: a fault is named, in the long form each; and where it is sound
/// nothing is found. The short form looks for nothing in one form only: a difference before the fault would be named in the others.
#[test]
fn planted_faults_are_named_against_other_forms() {
    let long = long::is_wanted();
    for against in [Against::Unsimplified, Against::NoKernels, Against::Dense] {
        let quantize = match against {
            Against::Dense => Quantization::All(WeightFormat::Q8),
            _ => Quantization::Computed,
        };
        let weights = Weights { quantize, ..Weights::default() };
        let subject = |model| Subject {
            element: Some(ElementType::F32),
            weights: weights.clone(),
            against,
            ..Subject::new(model)
        };
        if long || matches!(against, Against::Unsimplified) {
            let sound = subject("llama-untied").of_one_call();
            let sound = sound.compare(|form, trace, arguments| form.run(trace, arguments));
            assert!(sound.iter().all(|bisected| bisected.finding.is_none()), "{against:?}: {sound:?}");
        }
        for &Planted { name, fault, model, evaluator: [path, op], .. } in &FAULTS {
            // What weights of eight bits round is more than what bf16 does.
            if long && !(name == "rounding" && matches!(against, Against::Dense)) || name == "scale" {
                println!("{name} against {against:?}");
                names(&planted(&subject(model).of_one_call(), fault), path, op);
            }
        }
    }
}

/// Whatever is evaluated is rewritten first.
struct Rewritten<'a>(EvaluatedForm<'a>, Fault);

impl Form for Rewritten<'_> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn run(&self, trace: &Trace, arguments: &[Value]) -> Results {
        self.0.run(&rewrite(trace, self.1).unwrap(), arguments)
    }
}

/// The finding in a comparison with transformers' values.
fn beside_transformers(model: &str, fault: Fault) -> Bisected {
    let fixtures = repository().join("tests/fixtures");
    let folder = fixtures.join(model);
    let known = fixtures.join("activations").join(model).with_extension("safetensors");
    let known = Activations::open(&known).unwrap();
    let tokens = known.tokens().unwrap();
    let config = ModelConfig::read(&folder, &[]).unwrap();
    let plan = Plan::new(config, Some(ElementType::F32), Some(24), Some(tokens.len())).unwrap();
    let trace = plan.trace().unwrap().trace;
    let checkpoint = plan.named(Checkpoint::open(&folder).unwrap());
    let values = CheckpointValues::new(&trace, &checkpoint).unwrap();
    let form = Rewritten(EvaluatedForm { values: &values, stored: None }, fault);
    known.compare(&form, &trace, &TokenCall::score(&tokens), plan.element).unwrap()
}

#[test]
fn planted_faults_are_named_against_transformers() {
    for model in ["llama-untied", "gemma3-b"] {
        let sound = beside_transformers(model, |_, _, _| Ok(None));
        assert_eq!(sound.finding, None, "{model}");
        assert!(sound.compared >= 5, "{model}: {} points", sound.compared);
        assert!(sound.results.iter().all(|(_, found)| found.relative < 1e-5), "{model}: {:?}", sound.results);
    }
    for Planted { name, fault, model, transformers: [path, op], .. } in FAULTS {
        let found = beside_transformers(model, fault).finding;
        let found = found.unwrap_or_else(|| panic!("{name} went unnoticed"));
        println!("{name}: {found:?}");
        let place = &found.node.place;
        assert!(place.path == path && place.op.starts_with(op), "{name}: {place:?}");
    }
    // What lies between the projections, which are right, and what the next one gets.
    let between = beside_transformers("llama-untied", another_rope_base).finding.unwrap().operands;
    assert!(between.iter().any(|node| node.place.op.starts_with("rope")), "{between:?}");
}

/// A module's text in which sums of kernels end a step too early: of those whose name is like this. They call copies of
/// the functions that all kernels share.
fn with_wrong_kernels(text: &str, is_like: impl Fn(&str) -> bool) -> String {
    const CALL: &str = "func.call @";
    const FUNCTION: &str = "      func.func private @";
    let (mut edited, mut body) = (String::new(), None::<String>);
    for line in text.lines().map(|line| format!("{line}\n")) {
        let kernel = line.strip_prefix("      func.func @").and_then(|begin| begin.split('(').next());
        match &mut body {
            None if kernel.is_some_and(&is_like) || line.starts_with(FUNCTION) => body = Some(line),
            Some(open) if line == "      }\n" => {
                let wrong = one_round_less(open.clone()).replace(CALL, "func.call @wrong_");
                if let Some(function) = wrong.strip_prefix(FUNCTION) {
                    edited += open;
                    edited += &line;
                    edited += &format!("{FUNCTION}wrong_{function}");
                } else {
                    edited += &wrong;
                }
                edited += &line;
                body = None;
            }
            Some(open) => *open += &line,
            None => edited += &line,
        }
    }
    edited
}

/// The finding where kernels whose name is like this are wrong.
fn wrong_kernels(is_like: impl Fn(&str) -> bool) -> Finding {
    let found = Subject::new("llama-untied").compare(|form, trace, arguments| {
        let mut lowered = form.lower(trace)?;
        for text in [&mut lowered.module.text, &mut lowered.module.text_without_locs] {
            *text = with_wrong_kernels(text, &is_like);
        }
        form.call(lowered, trace, arguments)
    });
    found.into_iter().find_map(|bisected| bisected.finding).expect("the fault went unnoticed")
}

/// A fault in attention; in the long form also in matmuls.
#[test]
fn a_wrong_kernel() {
    names(&wrong_kernels(|name| name.starts_with("attention")), "model.layers.0.self_attn", "sdpa");
    if !long::is_wanted() {
        return;
    }
    let product = wrong_kernels(|name| name.starts_with("product"));
    names(&product, "model.layers.0.self_attn.q_proj", "linear");
    assert!(!product.only_together);
}

/// The residual is added by the kernel of the product before it, unless somebody wants to see that product.
#[test]
fn a_kernel_that_is_wrong_only_with_what_it_takes_along() {
    let found = wrong_kernels(|name| name.contains("_tail"));
    names(&found, "model.layers.0", "binary kind=add");
    assert!(found.only_together);
}
