//! Quantized weights through XLA's plugin for the CPU: the results are those of the dequantized weights.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tracewright::irpa::Archive;
use tracewright::ops::ElementType::{Bf16, F16, I8};
use tracewright::ops::TensorType;
use tracewright::ops::format::ActivationBits;
use tracewright::trace::{Parameter, Quantization};
use tracewright::{GenerateOptions, Model, OpenOptions};
use tracewright_tests::built::{compiler, plugin, repository};
use tracewright_tests::golden::Golden;
use tracewright_tests::in_xla::options;
use tracewright_tests::long;

fn tokens(model: &Model, prompt: &[u32]) -> Vec<u32> {
    let greedy = GenerateOptions { max_tokens: 48, ignore_eos: true, ..GenerateOptions::default() };
    model.continue_prompt(prompt.to_vec()).options(greedy).complete().unwrap().generated.tokens
}

fn weights(model: &Model) -> &[Parameter] {
    &model.info().build.as_ref().unwrap().parameters
}

/// The options that run a model on two devices.
fn on_two_devices(options: OpenOptions) -> OpenOptions {
    let shard = vec!["V=none".parse().unwrap()];
    OpenOptions { mesh: Some("model=2".parse().unwrap()), shard, ..options }
}

/// The tensors of an archive that together contain a weight, and where a number's scale is.
struct Parts<'a> {
    integers: &'a [u8],
    scales: Vec<f32>,
    counts: Option<&'a [u8]>,
    /// Whether the integers are codes of four-bit floats.
    are_floats: bool,
    bytes_of_group: usize,
}

impl<'a> Parts<'a> {
    fn of(archive: &'a Archive, key: &str) -> Self {
        let data = |key: &str| archive.data(key);
        let ty = |key: &str| -> TensorType { archive.get(key).unwrap().ty.clone().unwrap() };
        let scales_key = format!("{key}.scales");
        let words = data(&scales_key).unwrap().as_chunks::<2>().0.iter();
        let are_floats = ty(&scales_key).element == Bf16;
        let scales = words.map(|&word| {
            if are_floats { bf16::from_le_bytes(word).to_f32() } else { f16::from_le_bytes(word).to_f32() }
        });
        Self {
            integers: data(key).unwrap(),
            scales: scales.collect(),
            counts: data(&format!("{key}.counts")),
            are_floats,
            bytes_of_group: ty(key).shape[2],
        }
    }

    /// Returns the number of a column in a group, from the definitions in `docs/concepts/formats.md`.
    fn number(&self, group: usize, column: usize) -> f32 {
        if self.bytes_of_group == 32 {
            return f32::from(self.integers[group * 32 + column] as i8) * self.scales[group];
        }
        let byte = i32::from(self.integers[group * 16 + column % 16] as i8);
        let lower = (byte + 8).rem_euclid(16) - 8;
        let upper = ((byte - lower) / 16 + 8).rem_euclid(16) - 8;
        let stored = if column < 16 { lower } else { upper };
        if self.are_floats {
            let [sign, magnitude] =
                if stored < 0 { [-1.0, (stored + 8) as f32] } else { [1.0, stored as f32] };
            let doubled = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][magnitude as usize];
            return sign * doubled * self.scales[group];
        }
        let Some(counts) = self.counts else { return stored as f32 * self.scales[group] };
        let count = |at: usize| f32::from(counts[2 * group + at]);
        let step = |at: usize| self.scales[group / 8 * 2 + at];
        (stored + 8) as f32 * (count(0) * step(0)) - count(1) * step(1)
    }

    /// Returns the rows of a matrix with `inputs` columns, as the bytes of f32 numbers.
    fn matrix(&self, outputs: usize, inputs: usize) -> Vec<u8> {
        let groups = self.integers.len() / self.bytes_of_group / outputs;
        let numbers = (0..outputs)
            .flat_map(|row| (0..inputs).map(move |at| (row * groups + at / 32, at % 32)))
            .map(|(group, column)| self.number(group, column));
        numbers.flat_map(f32::to_le_bytes).collect()
    }
}

/// Writes a copy of a model whose weights are the dequantized numbers of an archive. Returns how many weights the
/// function dequantized.
fn write_dequantized(model: &Path, archive: &Archive, out: &Path) -> usize {
    for file in fs::read_dir(model).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_none_or(|extension| extension != "safetensors") && file.is_file() {
            fs::copy(&file, out.join(file.file_name().unwrap())).unwrap();
        }
    }
    let bytes = fs::read(model.join("model.safetensors")).unwrap();
    let mut dequantized = 0;
    let mut tensors = HashMap::new();
    for (name, tensor) in safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors() {
        let is_quantized = archive.get(&format!("{name}.scales")).is_some();
        dequantized += usize::from(is_quantized);
        let data: Vec<u8> = if is_quantized {
            Parts::of(archive, &name).matrix(tensor.shape()[0], tensor.shape()[1])
        } else {
            let words = tensor.data().as_chunks::<2>().0;
            words.iter().flat_map(|word| bf16::from_le_bytes(*word).to_f32().to_le_bytes()).collect()
        };
        tensors.insert(name.clone(), (tensor.shape().to_vec(), data));
    }
    let views = tensors
        .iter()
        .map(|(name, (shape, data))| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()));
    safetensors::serialize_to_file(views, None, &out.join("model.safetensors")).unwrap();
    dequantized
}

/// Compares the tokens of a model on one device with the tokens of its dequantized weights; on two devices too, if `sharded`.
fn check(name: &str, quant: &str, sharded: bool) {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped(name).unwrap();
    let prompts = golden.prompts.iter().filter(|prompt| prompt.prompt_tokens.len() < 200);
    let prompts: Vec<_> = prompts.step_by(16).map(|prompt| &prompt.prompt_tokens[..]).collect();
    // The cache is the one of all tests: with dequantized weights, a model has the same executables in every format.
    let mut sizes = OpenOptions { context: Some(256), ..options(&plugin) };
    sizes.numeric.quantize = Some(quant.parse::<Quantization>().unwrap());
    let one = Model::open_with(&golden.model, sizes.clone()).unwrap();
    let integers: usize = weights(&one).iter().filter(|p| p.ty.element == I8).map(|p| p.ty.bytes()).sum();
    let all: usize = weights(&one).iter().map(|p| p.ty.bytes()).sum();
    assert!(integers as f64 > 0.8 * all as f64, "{quant}: {integers} of {all} bytes are integers");

    let dense = tempfile::tempdir().unwrap();
    let archive = Archive::open(&one.info().build.as_ref().unwrap().archive).unwrap();
    assert!(write_dequantized(&golden.model, &archive, dense.path()) > 10);
    let mut stored = sizes.clone();
    stored.numeric.quantize = None;
    let dense = Model::open_with(dense.path(), stored).unwrap();
    assert!(weights(&dense).iter().all(|p| p.ty.element != I8));
    let two = sharded.then(|| Model::open_with(&golden.model, on_two_devices(sizes)).unwrap());
    for prompt in prompts {
        let expected = tokens(&dense, prompt);
        assert_eq!(tokens(&one, prompt), expected, "{name} in {quant}, on one device");
        if let Some(two) = &two {
            assert_eq!(tokens(two, prompt), expected, "{name} in {quant}, on two devices");
        }
    }
}

#[test]
fn a_shipped_model_in_q8() {
    check("demo", "q8", true);
}

#[test]
fn a_shipped_model_in_q4() {
    check("demo", "q4", long::is_wanted());
}

/// In the short form, only the format with minima is divided over two devices: it has all the parts that another one has.
#[test]
fn a_shipped_model_in_formats_with_minima_and_floats() {
    check("demo", "q4_k", true);
    check("demo", "mxfp4:pure", long::is_wanted());
}

#[test]
fn the_shipped_gemma_3() {
    for quant in long::first(["q4", "q8"], 1) {
        check("demo-gemma3", quant, long::is_wanted());
    }
}

/// llama.cpp computed the logits with the decoded numbers of the blocks. XLA multiplies the blocks' integers.
#[test]
fn blocks_of_gguf_files_stay_integers() {
    let Some(plugin) = plugin() else { return };
    for name in ["q8_0", "q4_0"] {
        let folder = repository().join("tests/fixtures/gguf");
        let file = folder.join(format!("{name}.gguf"));
        let golden = Golden::open(&file, &folder.join(format!("{name}.json"))).unwrap();
        let cache = tempfile::tempdir().unwrap();
        let cache = Some(cache.path().to_owned());
        let mut sizes =
            OpenOptions { context: Some(64), chunk: Some(8), score: true, cache, ..options(&plugin) };
        sizes.numeric.quantize = None;
        // In the short form, the blocks whose bytes have two numbers are divided over two devices.
        let few = if name == "q4_0" { 2 } else { 1 };
        for options in long::first([sizes.clone(), on_two_devices(sizes)], few) {
            let model = Model::open_with(&file, options).unwrap();
            assert!(weights(&model).iter().filter(|p| p.ty.element == I8).count() > 10, "{name}");
            assert!(weights(&model).iter().any(|p| p.ty.element == F16), "{name}");
            for (number, prompt) in golden.prompts.iter().enumerate() {
                let reference = golden.reference(number).unwrap();
                for (position, row) in model.score(&prompt.fed()).unwrap().iter().enumerate() {
                    let error = reference.error(position, row);
                    assert!(error <= 2e-5, "{name}: prompt {number}, position {position}: {error:e}");
                }
            }
        }
    }
}

/// A real model. IREE rounds the activations to 16 bits, and XLA does not round them.
#[test]
fn smollm2_has_the_tokens_of_iree() {
    let (Some(plugin), Some(golden)) = (plugin(), Golden::real("smollm2")) else { return };
    let formats = if long::is_wanted() { &["q8", "q4"][..] } else { &["q8"] };
    for quant in formats {
        let cache = tempfile::tempdir().unwrap();
        let mut xla = OpenOptions {
            context: Some(golden.context),
            cache: Some(cache.path().into()),
            ..options(&plugin)
        };
        xla.numeric.quantize = Some(quant.parse().unwrap());
        let mut iree = OpenOptions { plugin: None, compiler: Some(compiler().unwrap()), ..xla.clone() };
        iree.numeric.activations = Some(ActivationBits::Sixteen);
        let expected = Model::open_with(&golden.model, iree).unwrap();
        let found = Model::open_with(&golden.model, xla).unwrap();
        for prompt in &golden.prompts[..2] {
            let prompt = &prompt.prompt_tokens;
            assert_eq!(tokens(&found, prompt), tokens(&expected, prompt), "{quant}");
        }
    }
}
