//! Checkpoints with rounded matrices.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use irpa::{Archive, ArchiveError, BLOCKS, Checkpoint};
use ops::ops::{Pack, Permute};
use ops::{ElementType, TensorType, WeightFormat};
use safetensors::tensor::{Dtype, TensorView};
use trace::{Parameter, Recipe};
use tracewright_bake::{BakeOptions, Importance, Moments, Quantizer, bake};

const ROWS: usize = 35;
/// No multiple of a block.
const INPUTS: usize = 332;
const CAUSES: usize = 24;

fn matrix() -> TensorType {
    TensorType::new(ElementType::F32, [ROWS, INPUTS])
}

/// Sums of four even numbers.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut even = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| even() + even() + even() + even()).collect()
}

/// A checkpoint with a matrix, the same with its axes exchanged, and a vector.
fn checkpoint(folder: &Path) -> (Checkpoint, Vec<Parameter>) {
    let all = numbers(ROWS * INPUTS, 1);
    let turned: Vec<f32> = (0..all.len()).map(|i| all[i % ROWS * INPUTS + i / ROWS]).collect();
    let vector = numbers(INPUTS, 2);
    let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let [all, turned, vector] = [&all, &turned, &vector].map(|numbers| bytes(numbers));
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("layers.0.a", view(&[ROWS, INPUTS], &all)),
        ("layers.0.t", view(&[INPUTS, ROWS], &turned)),
        ("norm", view(&[INPUTS], &vector)),
    ];
    let file = folder.join("dense.safetensors");
    safetensors::serialize_to_file(tensors, None, &file).unwrap();
    let parameters = vec![
        Parameter::new("layers.0.a", matrix()),
        Parameter::transposed("layers.0.t", matrix()).unwrap(),
        Parameter::new("norm", TensorType::new(ElementType::F32, [INPUTS])),
    ];
    (Checkpoint::open(file).unwrap(), parameters)
}

fn quantizer<'a>(
    checkpoint: &'a Checkpoint,
    parameters: &[Parameter],
    format: WeightFormat,
) -> Quantizer<'a> {
    let formats = BTreeMap::from(["layers.*.a", "layers.*.t"].map(|pattern| (pattern.to_owned(), format)));
    Quantizer::new(checkpoint, parameters, &formats)
}

/// The bytes of both matrices in the archive.
fn packed(checkpoint: &Checkpoint, format: WeightFormat, folder: &Path) -> Vec<Vec<u8>> {
    let source = |key: &str, ty| Recipe::Source(key.to_owned(), ty);
    let turned = source("layers.0.t", TensorType::new(ElementType::F32, [INPUTS, ROWS]));
    let turned = Recipe::Op(Permute { order: vec![1, 0] }.into(), vec![turned]);
    let pack = |key: &str, of| Parameter::derived(key, Recipe::Op(Pack { format }.into(), vec![of])).unwrap();
    let parameters = [
        pack("a", source("layers.0.a", matrix())),
        pack("t", turned),
        Parameter::new("norm", TensorType::new(ElementType::F32, [INPUTS])),
    ];
    let out = folder.join("out.irpa");
    bake(checkpoint, &parameters, &[], &out, BakeOptions::default()).unwrap();
    let archive = Archive::open(&out).unwrap();
    ["a", "t", "norm"].map(|key| archive.data(key).unwrap().to_vec()).into()
}

/// Whether a matrix is rounded when the archive is written, or before: with equal inputs the bytes are the same.
#[test]
fn a_rounded_checkpoint_becomes_the_same_archive() {
    for format in WeightFormat::ALL.iter().copied().filter(|format| format.groups().is_some()) {
        let folder = tempfile::tempdir().unwrap();
        let (dense, parameters) = checkpoint(folder.path());
        let expected = packed(&dense, format, folder.path());
        let out = folder.path().join("quantized");
        let written = quantizer(&dense, &parameters, format).write(&out).unwrap();
        let rounded = Checkpoint::open(&out).unwrap();
        assert_eq!(rounded.get("layers.0.t").unwrap().shape, [INPUTS, ROWS]);
        assert!(written < 4 * (2 * ROWS * INPUTS + INPUTS) as u64 / 3, "{written}");
        assert_eq!(packed(&rounded, format, folder.path()), expected, "{format:?}");
        // Nothing is replaced.
        assert!(quantizer(&dense, &parameters, format).write(&out).is_err());
    }
}

/// The error that matters: of what the matmul computes, summed over inputs.
fn error(
    checkpoint: &Checkpoint,
    inputs: &[f32],
    folder: &Path,
    format: WeightFormat,
    importance: &Importance,
) -> f64 {
    let parameters = [Parameter::new("layers.0.a", matrix())];
    let mut quantizer = quantizer(checkpoint, &parameters, format);
    quantizer.round("layers.0.a", importance).unwrap();
    let out = folder.join(format!("{}-{}", format.word(), fs::read_dir(folder).unwrap().count()));
    quantizer.write(&out).unwrap();
    let rounded = Checkpoint::open(&out).unwrap();
    let read = |checkpoint: &Checkpoint| {
        let mut numbers = vec![0.0f32; ROWS * INPUTS];
        checkpoint.numbers("layers.0.a").unwrap().read(0, &mut numbers);
        numbers
    };
    let (exact, found) = (read(checkpoint), read(&rounded));
    let mut error = 0.0;
    for x in inputs.chunks(INPUTS) {
        for (exact, found) in exact.chunks(INPUTS).zip(found.chunks(INPUTS)) {
            let off = x.iter().zip(exact.iter().zip(found)).map(|(x, (a, b))| f64::from(x * (a - b)));
            error += off.sum::<f64>().powi(2);
        }
    }
    error
}

#[test]
fn what_is_known_of_inputs_makes_results_better() {
    let folder = tempfile::tempdir().unwrap();
    let (dense, _) = checkpoint(folder.path());
    // Inputs are mixtures of a few causes, and some are much larger than others.
    let (causes, mixture) = (numbers(1024 * CAUSES, 5), numbers(CAUSES * INPUTS, 6));
    let noise = numbers(1024 * INPUTS, 7);
    let inputs: Vec<f32> = (0..noise.len())
        .map(|i| {
            let (causes, column) = (&causes[i / INPUTS * CAUSES..], i % INPUTS);
            let mixed: f32 = (0..CAUSES).map(|c| causes[c] * mixture[c * INPUTS + column]).sum();
            (mixed + noise[i]) * if column % 9 == 4 { 8.0 } else { 1.0 }
        })
        .collect();
    // Other inputs than those that are known, of the same kind.
    let (known, other) = inputs.split_at(inputs.len() / 2);
    let mut sums = vec![0.0f32; INPUTS * INPUTS];
    for x in known.chunks(INPUTS) {
        for (a, row) in x.iter().zip(sums.chunks_mut(INPUTS)) {
            row.iter_mut().zip(x).for_each(|(sum, b)| *sum += a * b);
        }
    }
    let squares: Vec<f32> = (0..INPUTS).map(|i| sums[i * INPUTS + i]).collect();
    let moments = || Importance::Moments(Moments::new(&sums, INPUTS));
    // A group of four-bit floats has a choice of two scales only.
    for (format, by_squares, by_moments) in
        [(WeightFormat::Q4, 0.8, 0.3), (WeightFormat::Q4K, 0.8, 0.3), (WeightFormat::Mxfp4, 1.0, 0.3)]
    {
        let error = |importance| error(&dense, other, folder.path(), format, &importance);
        let [equal, squares, moments] =
            [error(Importance::Equal), error(Importance::Squares(squares.clone())), error(moments())];
        assert!(squares < by_squares * equal, "{format:?}: {squares} of {equal}");
        assert!(moments < by_moments * equal, "{format:?}: {moments} of {equal}, {squares}");
    }
    assert_eq!(
        error(&dense, other, folder.path(), WeightFormat::Q4, &moments()),
        error(&dense, other, folder.path(), WeightFormat::Q4, &moments()),
    );
}

#[test]
fn descriptions_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = vec![0u8; 2 * 34];
    let refused = |text: &str, word: &str| {
        let tensors = [("w", TensorView::new(Dtype::U8, vec![bytes.len()], &bytes).unwrap())];
        let file = folder.path().join("model.safetensors");
        let texts = Some([(BLOCKS.to_owned(), text.to_owned())].into());
        safetensors::serialize_to_file(tensors, texts, &file).unwrap();
        match Checkpoint::open(&file) {
            Err(error @ ArchiveError::Rows { .. }) => assert!(error.to_string().contains(word), "{error}"),
            other => panic!("{text}: {other:?}"),
        }
    };
    refused("{", "do not describe");
    refused(r#"{"v": {"format": "q8", "shape": [2, 32]}}"#, "no tensor `v`");
    refused(r#"{"w": {"format": "q5", "shape": [2, 32]}}"#, "`q5`, expected q8");
    refused(r#"{"w": {"format": "q8", "shape": [3, 32]}}"#, "68 bytes of U8, expected 102");
    refused(r#"{"w": {"format": "q8", "shape": [18446744073709551615, 99]}}"#, "expected q8");
    refused(r#"{"w": {"format": "q8", "shape": [0, 32]}}"#, "expected 0");
    refused(r#"{"w": {"format": "q8", "shape": [2, 32], "other": 1}}"#, "do not describe");
}
