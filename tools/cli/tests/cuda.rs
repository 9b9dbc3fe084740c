//! Modules for XLA's CUDA platform, tested without a GPU: which operations are calls of Tracewright's kernels.

use std::collections::BTreeMap;

use tracewright::Plan;
use tracewright::export::xla::{XlaProgram, for_cuda, planned};
use tracewright::footprint::Footprint;
use tracewright::lower::{Module, Weights};
use tracewright::models::presets::Preset;
use tracewright::ops::ElementType;
use tracewright::trace::Quantization;

/// The modules of a preset for calls with one token of each of `batch` sequences.
fn modules(preset: &Preset, batch: usize, context: usize, kernels: bool) -> Vec<Module> {
    quantized(preset, batch, context, |weights| Weights { kernels, ..weights })
}

fn quantized(
    preset: &Preset,
    batch: usize,
    context: usize,
    weights: impl Fn(Weights) -> Weights,
) -> Vec<Module> {
    let plan = plan(preset, batch, context, weights);
    let traced = plan.record(&plan.steps()).unwrap();
    XlaProgram::new(&plan.expand(&traced.trace).unwrap(), None).unwrap().modules
}

fn plan(preset: &Preset, batch: usize, context: usize, weights: impl Fn(Weights) -> Weights) -> Plan {
    let model = preset.read().unwrap();
    let plan = Plan::new(model, Some(ElementType::Bf16), Some(context), Some(16)).unwrap();
    let weights = weights(plan.weights.clone());
    for_cuda(planned(Plan { batch, weights, ..plan }))
}

/// How often each kernel is called in a module. A function of a layer counts once.
fn called(module: &Module) -> BTreeMap<String, usize> {
    let mut called = BTreeMap::new();
    for line in module.text_without_locs.lines().filter(|line| line.contains("__gpu$xla.gpu.ptx")) {
        let name = line.split("name = \"").nth(1).and_then(|rest| rest.split('"').next());
        *called.entry(name.unwrap().to_owned()).or_insert(0) += 1;
    }
    called
}

fn decode(name: &str, batch: usize, context: usize) -> BTreeMap<String, usize> {
    let modules = modules(Preset::named(name).unwrap(), batch, context, true);
    called(modules.iter().find(|module| module.signatures[0].name == "decode").unwrap())
}

fn counts<const N: usize>(kernels: [(&str, usize); N]) -> BTreeMap<String, usize> {
    kernels.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}

#[test]
fn kernels_compute_the_whole_layer_of_a_llama() {
    for batch in [1, 8] {
        let expected = counts([
            ("three_norm_kept", 1),
            ("attention_64_4", 1),
            ("linear_residual", 2),
            ("gated_norm_kept", 1),
            ("linear", 1),
        ]);
        assert_eq!(decode("llama-3.2-1b", batch, 512), expected, "{batch} sequences");
    }
    // A long cache is read in ranges.
    let long = decode("llama-3.1-8b", 1, 4096);
    assert_eq!((long["attention_128_4"], long["combine"]), (1, 1), "{long:?}");
    // Eight normalized vectors of this length do not fit into shared memory.
    assert!(decode("llama-3.1-8b", 8, 512).contains_key("three_norm_computed"));
}

#[test]
fn kernels_compute_parts_of_other_networks() {
    // The queries and keys have norms, which XLA computes.
    let qwen = decode("qwen3-0.6b", 1, 512);
    assert_eq!((qwen["three_norm_kept"], qwen["attention_128_4"]), (1, 1), "{qwen:?}");
    // The products have biases, which no kernel adds.
    assert!(!decode("qwen2-0.5b", 1, 512).contains_key("three_norm_kept"));
}

/// Each network has modules, whatever kernels compute of it. Calls with many tokens, and plans without kernels, are
/// StableHLO alone.
#[test]
fn every_preset_has_modules_for_cuda() {
    for preset in Preset::all() {
        for module in modules(preset, 4, 64, true) {
            let entry = &module.signatures[0].name;
            let attends = called(&module).keys().any(|name| name.starts_with("attention"));
            assert!(!attends || entry == "decode", "{}: {entry}", preset.name);
        }
        assert!(
            modules(preset, 1, 64, false).iter().all(|module| called(module).is_empty()),
            "{}",
            preset.name
        );
    }
}

/// Kernels compute attention. The matmuls of a decode call are sums of products over the stored integers, and a
/// prefill call has a matmul for each weight.
#[test]
fn quantized_weights_are_integers_with_scales() {
    let preset = Preset::named("llama-3.2-1b").unwrap();
    for (batch, quant) in [(1, "q8"), (8, "q8"), (1, "q4"), (8, "q4")] {
        let quantize: Quantization = quant.parse().unwrap();
        let modules =
            quantized(preset, batch, 512, |weights| Weights { quantize: quantize.clone(), ..weights });
        for module in modules {
            let entry = &module.signatures[0].name;
            let text = &module.text_without_locs;
            let matrix = if quant == "q8" { "tensor<2048x64x32xi8>" } else { "tensor<2048x64x16xi8>" };
            assert!(text.contains(matrix) && text.contains("tensor<2048x64xf16>"), "{quant}, {entry}");
            let bytes: usize = module.parameters.iter().map(|p| p.ty.bytes()).sum();
            let numbers = 1_235_814_400;
            let bits = 8.0 * bytes as f64 / numbers as f64;
            let expected = if quant == "q8" { 8.5 } else { 5.4 };
            assert!((bits - expected).abs() < 0.1, "{quant}: {bits} bits a number");
            let is_decode = entry == "decode";
            assert_eq!(
                text.contains("stablehlo.dot_general"),
                !is_decode,
                "{quant}, {entry}, {batch} sequences"
            );
            let kernels = if is_decode { counts([("attention_64_4", 1)]) } else { counts([]) };
            assert_eq!(called(&module), kernels);
        }
    }
}

/// A decode call needs no memory for dequantized weights, and a prefill call needs memory for one of them.
#[test]
fn dequantized_weights_are_counted_once() {
    let activations = |quant: &str| {
        let quantize: Quantization = quant.parse().unwrap();
        let preset = Preset::named("llama-3.2-1b").unwrap();
        let plan = plan(preset, 8, 512, |weights| Weights { quantize: quantize.clone(), ..weights });
        let traced = plan.record(&plan.steps()).unwrap();
        Footprint::of(&plan.expand(&traced.trace).unwrap()).unwrap().activations
    };
    let (dense, quantized) = (activations("none"), activations("q4"));
    let more = |entry: &str| quantized[entry] as f64 - dense[entry] as f64;
    let largest = f64::from(2 * 8192 * 2048);
    assert!(more("decode") < largest / 2.0, "{quantized:?} and {dense:?}");
    assert!((largest / 2.0..3.0 * largest).contains(&more("prefill")), "{quantized:?} and {dense:?}");
}
