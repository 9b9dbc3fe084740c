//! Other devices than the processor: what is made for them compiles, and where a driver for Vulkan is found, programs give
//! there what transformers gave. The suite runs a prompt of a shipped model; `cargo xtask test --vulkan` runs the rest,
//! and fails where there is no driver.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;

use ops::ElementType::{self, F16, F32};
use ops::TensorType;
use runtime::{Buffer, CompileOptions, Device, DeviceInfo, RuntimeError, devices};
use targets::{DeviceKind, Target};
use tracewright::Plan;
use tracewright::lower::{LowerError, Weights, expand, lower};
use tracewright::trace::Quantization;
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::calls::{CheckedCall, examples};
use tracewright_tests::golden::{BuildOptions, Golden, STEPS, Subject, build, check, check_within, greedy};
use tracewright_tests::in_iree::{parameters, try_built_for, try_compile};
use tracewright_tests::long;

/// Set where a driver must be there.
const NEEDED: &str = "TRACEWRIGHT_TEST_VULKAN";

fn show(figures: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{figures}");
}

/// The first device, if there is one.
fn vulkan() -> Option<DeviceInfo> {
    let found = devices(DeviceKind::Vulkan).map(|found| found.into_iter().next());
    let needed = std::env::var_os(NEEDED).is_some();
    match found {
        Ok(Some(device)) => Some(device),
        Ok(None) if !needed => None,
        Err(RuntimeError::Driver { .. }) if !needed => None,
        missing => panic!("there is no Vulkan device: {missing:?}"),
    }
}

/// A golden with its first prompts alone, built for a device.
fn on(device: &DeviceInfo, mut golden: Golden, element: ElementType, prompts: usize) -> (Golden, Subject) {
    golden.prompts.truncate(prompts);
    let target = device.target();
    let sizes =
        BuildOptions { element, target, device: Device::Driver(device.device), ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
    (golden, subject)
}

#[test]
fn m25_what_is_made_for_each_kind_of_device_compiles() {
    let golden = Golden::fixture("llama-tied").unwrap();
    let all = ["prefill", "decode"];
    for (name, element, entry) in [
        ("vulkan", F32, "prefill"),
        ("vulkan:ampere", F16, "decode"),
        ("cuda", ElementType::Bf16, "prefill"),
        ("cuda:sm_86", F32, "decode"),
        ("hip", ElementType::Bf16, "prefill"),
        ("metal", F32, "decode"),
    ] {
        let entries = if long::is_wanted() { &all[..] } else { &[entry] };
        let target: Target = name.parse().unwrap();
        let target = compiler().unwrap().resolve(&target).unwrap();
        assert_ne!(
            target.features.as_deref(),
            Some(&[][..]),
            "{name}: the compiler knows what it computes with"
        );
        let model = tracewright::models::read(&golden.model, &[]).unwrap();
        let plan = Plan { target, ..Plan::new(model, Some(element), Some(64), Some(8)).unwrap() };
        let trace = plan.trace().unwrap().trace.with_entries(entries);
        let lowered = plan.lower(&trace).unwrap();
        let options = CompileOptions::new(plan.target.clone(), false);
        let vmfb = try_compile(&lowered.module, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(vmfb.len() > 10_000, "{name}: {} bytes", vmfb.len());
    }
}

/// The numbers that a device lacks are refused by name, and never computed in others.
#[test]
fn numbers_that_a_device_lacks_are_refused() {
    let golden = Golden::fixture("llama-tied").unwrap();
    let refused = |name: &str, element: ElementType, quantize: Quantization| {
        let target = compiler().unwrap().resolve(&name.parse().unwrap()).unwrap();
        let model = tracewright::models::read(&golden.model, &[]).unwrap();
        let weights = Weights { quantize, ..Weights::default() };
        let plan = Plan { target, weights, ..Plan::new(model, Some(element), Some(64), Some(8)).unwrap() };
        match plan.lower(&plan.trace().unwrap().trace) {
            Err(tracewright::PlanError::Lower(LowerError::Element { element, .. })) => Some(element),
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => None,
        }
    };
    let dense = Quantization::Computed;
    assert_eq!(refused("vulkan:ampere", ElementType::Bf16, dense.clone()), Some(ElementType::Bf16));
    assert_eq!(refused("vulkan", F16, dense.clone()), Some(F16));
    assert_eq!(refused("vulkan:ampere", F16, dense.clone()), None);
    assert_eq!(refused("vulkan", F32, Some(ops::WeightFormat::Q8).into()), Some(ElementType::I8));
    assert_eq!(refused("vulkan:ampere", F32, Some(ops::WeightFormat::Q8).into()), None);
    assert_eq!(refused("vulkan:ampere", F32, Some(ops::WeightFormat::Q4).into()), Some(ElementType::I8));
    assert_eq!(refused("cuda", ElementType::Bf16, dense), None);
}

#[test]
fn m25_the_shipped_models_are_token_exact_on_vulkan() {
    let Some(device) = vulkan() else { return };
    let needed = std::env::var_os(NEEDED).is_some() || long::is_wanted();
    // The second has what the first has.
    for name in ["demo-gemma3", "demo"].into_iter().take(if needed { 2 } else { 1 }) {
        let (golden, subject) = on(&device, Golden::shipped(name).unwrap(), F32, 1);
        let report = check(&golden, &subject).unwrap();
        show(format_args!("{name} on {}: {report}", device.name));
        assert!(report.passes(), "{name}: {report}");
    }
}

#[test]
fn state_stays_on_the_device() {
    let Some(device) = vulkan() else { return };
    let (golden, subject) = on(&device, Golden::fixture("llama-tied").unwrap(), F32, 1);
    let tokens = &golden.prompts[0].prompt_tokens;
    let moved = subject.moved_per_step(&tokens[..4], false).unwrap();
    assert_eq!(moved, (4.0, 8.0), "a token goes up, a token and its logit come down");
    let zeros = Buffer::zeros(&subject.runtime, &TensorType::new(F32, [3, 5])).unwrap();
    assert!(zeros.read().unwrap().iter().all(|&byte| byte == 0));
    subject.assert_state_stays(&tokens[..4]).unwrap();
}

#[test]
#[ignore = "minutes on a software driver: `cargo xtask test --vulkan`"]
fn every_family_is_token_exact_on_vulkan() {
    let device = vulkan().unwrap();
    let fixtures = repository().join("tests/fixtures");
    let mut names: Vec<String> = std::fs::read_dir(&fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("golden.json").exists() && path.join("config.json").exists())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let mut families = 0;
    for name in names {
        // What gives vectors of texts has goldens of its own kind.
        let model = tracewright::models::read(fixtures.join(&name), &[]);
        if name.starts_with("long-") || !model.is_ok_and(|model| model.sentence().is_none()) {
            continue;
        }
        let golden = Golden::fixture(&name).unwrap();
        let (golden, subject) = on(&device, golden, F32, 2);
        let report = check(&golden, &subject).unwrap();
        show(format_args!("{name} on {}: {report}", device.name));
        assert!(report.passes(), "{name}: {report}");
        families += 1;
    }
    assert!(families >= 25, "{families}");
}

/// Rounded weights mean on the device what they mean on the processor.
#[test]
#[ignore = "minutes on a software driver: `cargo xtask test --vulkan`"]
fn quantized_weights_mean_on_vulkan_what_they_mean_on_the_processor() {
    let device = vulkan().unwrap();
    let golden = Golden::shipped("demo").unwrap();
    let weights =
        Weights { quantize: Some(ops::WeightFormat::Q8).into(), kernels: false, ..Weights::default() };
    let sizes = BuildOptions { weights, ..BuildOptions::of(&golden) };
    let here = build(&golden.model, &sizes, &["prefill", "decode"], Ok).unwrap();
    let sizes = BuildOptions { target: device.target(), device: Device::Driver(device.device), ..sizes };
    let there = build(&golden.model, &sizes, &["prefill", "decode"], Ok).unwrap();
    let prompt = &golden.prompts[0].prompt_tokens;
    let answer = |subject: &Subject| greedy(&subject.network, prompt, 24, false).unwrap().tokens;
    assert_eq!(answer(&there), answer(&here));
}

/// In f16 logits are as near to transformers' in f32 as rounding lets them be, and tokens the same but where two are as near.
#[test]
#[ignore = "minutes on a software driver: `cargo xtask test --vulkan`"]
fn the_shipped_models_in_f16_answer_as_rounding_lets_them() {
    let device = vulkan().unwrap();
    assert_eq!(device.target().lacks("f16"), None, "{}", device.name);
    for name in ["demo", "demo-gemma3"] {
        let (golden, subject) = on(&device, Golden::shipped(name).unwrap(), F16, 3);
        // Rows are compared up to the first token that differs, the row that it was chosen from included.
        let report = check_within(&golden, &subject, 5e-3).unwrap();
        show(format_args!("{name} in f16 on {}: {report}", device.name));
        assert!(report.worst.0 <= report.bound, "{name}: {report}");
    }
}

/// Every operation that the device has the numbers for.
#[test]
#[ignore = "minutes on a software driver: `cargo xtask test --vulkan`"]
fn every_example_of_every_operation_on_vulkan() {
    let device = vulkan().unwrap();
    let target = compiler().unwrap().resolve(&device.target()).unwrap();
    let mut all = examples();
    let before = all.calls.len();
    let is_refused = |call: &CheckedCall| {
        let alone = expand(&all.trace.with_entries(&[&call.name])).unwrap();
        matches!(lower(&alone, &target), Err(LowerError::Element { .. }))
    };
    let refused: Vec<String> =
        all.calls.iter().filter(|call| is_refused(call)).map(|call| call.name.clone()).collect();
    all.calls.retain(|call| !refused.contains(&call.name));
    assert!(all.calls.len() * 2 > before, "{} of {before}", all.calls.len());
    let mut wrong = Vec::new();
    // In parts, so that one that does not compile keeps none of the others from it.
    let names: Vec<String> = all.calls.iter().map(|call| call.name.clone()).collect();
    for part in names.chunks(40) {
        let part: Vec<&str> = part.iter().map(String::as_str).collect();
        let built = try_built_for(&all.trace.with_entries(&part), &target);
        let built = match built {
            Ok(built) => built,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let loaded = built.load_on(Device::Driver(device.device), parameters(&all.weights));
        for call in all.calls.iter().filter(|call| part.contains(&call.name.as_str())) {
            wrong.extend(call.violation(&loaded.call(&call.name, &call.arguments)));
        }
    }
    show(format_args!("{} of {before} examples on {}", all.calls.len(), device.name));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let error = runtime::Runtime::new(Device::Driver("hip".parse().unwrap())).err().unwrap();
    assert!(
        error.to_string().contains("this binary compiles and exports programs for hip devices"),
        "{error}"
    );
    let Some(_) = vulkan() else { return };
    let error = runtime::Runtime::new(Device::Driver("vulkan:9".parse().unwrap())).err().unwrap();
    assert!(
        error.to_string().contains("there is no device `vulkan:9`: the vulkan driver finds `"),
        "{error}"
    );
}
