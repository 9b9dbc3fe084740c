//! Quantized Hugging Face folders: the archive has the numbers of the folder, and the network answers as transformers does
//! for these numbers in f32. `tests/oracle/folders.py` and `float_folders.py` write the folders, the hashes of their numbers and the
//! answers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use ops::ElementType;
use ops::format::{ActivationBits, FloatCodes, PANEL};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use tracewright::bake::FromBlocks;
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::models;
use tracewright_tests::built::repository;
use tracewright_tests::golden::{BOUND, BuildOptions, Golden, STEPS, build, check_evaluated, check_within};
use tracewright_tests::long;

use crate::gguf::{Stored, hash, stored_of};

/// The folders, each with the report on its weights.
const FOLDERS: &[(&str, &[&str])] = &[
    ("awq", &["7 of UINT4 in groups of 128 as uint4_g128, exactly"]),
    ("gptq", &["7 of INT4 in groups of 128 as int4_g128, exactly"]),
    ("gptq_v2", &["7 of UINT4 in groups of 32 as uint4_g32, exactly"]),
    ("gptq-2", &["7 of UINT2 in groups of 128 as uint2_g128, exactly"]),
    ("gptq-3", &["7 of UINT3 in groups of 128 as uint3_g128, exactly"]),
    ("gptq-8", &["1 of Q8_0 as q8, exactly", "6 of INT8 in groups of 128 as int8_g128, exactly"]),
    ("int-quantized", &["1 of Q8_0 as q8, exactly", "6 of INT8 in groups of 128 as int8_g128, exactly"]),
    ("packed", &["7 of INT4 in groups of 128 as int4_g128, exactly"]),
    ("packed-asymmetric", &["7 of UINT4 in groups of 32 as uint4_g32, exactly"]),
    ("fp8-blocks", &["12 of FP8 in blocks as f8, exactly"]),
    ("fp8-tensor", &["12 of FP8 as f8_rows, exactly"]),
    ("float-block", &["12 of FP8 in blocks as f8, exactly"]),
    ("float-channel", &["12 of FP8 as f8_rows, exactly"]),
    ("float-tensor", &["12 of FP8 as f8_rows, exactly"]),
    ("nf4", &["12 of NF4 as nf4, exactly"]),
    ("nf4-nested", &["12 of NF4 with scales of 8 bits as nf4_nested, exactly"]),
    ("fp4", &["12 of FP4 as fp4, exactly"]),
];

/// Folders with different kernels.
const IN_IREE: &[&str] =
    &["gptq-2", "gptq-8", "packed-asymmetric", "fp8-blocks", "float-channel", "nf4", "nf4-nested"];

fn folder(name: &str) -> PathBuf {
    repository().join("tests/fixtures/folders").join(name)
}

/// The checkpoint's numbers are those that NumPy reads, and the archive has them bit by bit, in no more bytes.
#[test]
fn weights_are_the_numbers_of_the_folder() {
    for (name, report) in FOLDERS {
        let folder = folder(name);
        let expected: Json = serde_json::from_slice(&fs::read(folder.join("numbers.json")).unwrap()).unwrap();
        let model = models::read(&folder, &[]).unwrap();
        let checkpoint = model.named(Checkpoint::open(&folder).unwrap());
        for (key, expected) in expected.as_object().unwrap() {
            let tensor = checkpoint.get(key).unwrap_or_else(|| panic!("{name}: {key}"));
            assert_eq!(serde_json::json!(tensor.shape), expected[0], "{name}: {key}");
            let mut found = vec![f32::NAN; tensor.shape.iter().product()];
            checkpoint.numbers(key).unwrap().read(0, &mut found);
            assert_eq!(hash(&found), expected[1].as_str().unwrap(), "{name}: {key}");
            // And any piece of them.
            for (start, count) in [(1, 3), (found.len() - 5, 5), (found.len() / 2 - 1, 2)] {
                let mut piece = vec![f32::NAN; count];
                checkpoint.numbers(key).unwrap().read(start, &mut piece);
                assert_eq!(piece, found[start..start + count], "{name}: {key} from {start}");
            }
        }
        let Stored { weights, blocks, .. } = stored_of(&folder, Some(ElementType::F32));
        let said: Vec<String> = blocks.iter().map(|(what, count)| format!("{count} of {what}")).collect();
        assert_eq!(said, *report, "{name}");
        assert!(blocks.keys().all(FromBlocks::is_exact), "{name}");
        for (key, (_, expected, found)) in &weights {
            assert_eq!(hash(found), hash(expected), "{name}: {key}");
        }
        let bytes = stored_of(&folder, None).bytes;
        let size = fs::metadata(folder.join("model.safetensors")).unwrap().len();
        // Each panel of 16 rows has a scale for 128 columns, or one for each row, where the folder has fewer scales
        // or scales of 16 bits. In rows of 4096 numbers, this adds 0.2 %.
        let floats = weights.values().find_map(|(format, ..)| format.floats());
        let floats = floats.filter(|floats| floats.codes == FloatCodes::E4m3);
        let scales = |shape: &Json| {
            let [rows, inputs]: [usize; 2] = serde_json::from_value(shape.clone()).unwrap();
            floats.map_or(0, |floats| floats.scale_bytes(inputs) * rows.div_ceil(PANEL)) as u64
        };
        let more: u64 = expected.as_object().unwrap().values().map(|found| scales(&found[0])).sum();
        let _ = writeln!(std::io::stderr(), "{name}: {bytes} bytes in the archive, {size} in the folder");
        assert!(bytes <= size + more, "{name}: {bytes} bytes in the archive, {size} in the folder");
    }
}

/// With dequantized weights, and in IREE with the codes of the folder. Activations have 16 bits beside integers, and are
/// not rounded beside floats.
#[test]
fn answers_are_those_of_transformers() {
    for (name, _) in FOLDERS {
        let golden = Golden::of(&folder(name)).unwrap();
        let report = check_evaluated(&golden, &BuildOptions::of(&golden), STEPS, BOUND, Ok).unwrap();
        let _ = writeln!(std::io::stderr(), "{name}, evaluated: {report}");
        assert!(report.passes(), "{name}, evaluated: {report}");
        if !long::is_wanted() && !IN_IREE.contains(name) {
            continue;
        }
        let quantize = models::read(&golden.model, &[]).unwrap().stored;
        assert!(quantize.rounds(), "{name}");
        let of_floats = quantize.formats().values().all(|format| format.floats().is_some());
        // The errors of activations with 16 bits: the rows have at most 256 numbers, so few of them cancel each other.
        let bound = if of_floats { BOUND } else { 1e-3 };
        let weights = Weights { quantize, activations: ActivationBits::Sixteen, ..Weights::default() };
        let sizes = BuildOptions { weights, ..BuildOptions::of(&golden) };
        let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
        let report = check_within(&golden, &subject, bound).unwrap();
        let _ = writeln!(std::io::stderr(), "{name}: {report}");
        assert!(report.passes(), "{name}: {report}");
    }
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// The error for a copy of a folder whose tensors and configuration are changed.
fn refused(name: &str, change: impl Fn(&mut Tensors, &mut Json)) -> String {
    let from = folder(name);
    let file = fs::read(from.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let parts = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut all: Tensors = tensors.tensors().into_iter().map(parts).collect();
    let mut config: Json = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    change(&mut all, &mut config["quantization_config"]);
    let to = tempfile::tempdir().unwrap();
    fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, &to.path().join("model.safetensors")).unwrap();
    let Err(error) = models::read(to.path(), &[]) else { panic!("{name} is read") };
    error.to_string().replace(&to.path().display().to_string(), "FOLDER")
}

#[test]
fn an_invalid_folder_names_the_file_and_the_tensor() {
    const UP: &str = "model.layers.0.mlp.up_proj";
    let part = |end: &str| format!("{UP}.{end}");
    let check = |name: &str, change: &dyn Fn(&mut Tensors, &mut Json), words: &[&str]| {
        let error = refused(name, change);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    };
    let file = "FOLDER/model.safetensors`: the tensor `model.layers.0.mlp.up_proj.";
    check(
        "gptq",
        &|tensors, _| drop(tensors.remove(&part("scales"))),
        &[file, "has no tensor `model.layers.0.mlp.up_proj.scales`"],
    );
    check(
        "awq",
        &|tensors, _| drop(tensors.remove(&part("qzeros"))),
        &[file, "has no tensor `model.layers.0.mlp.up_proj.qzeros`"],
    );
    check("packed", &|tensors, _| drop(tensors.remove(&part("weight_shape"))), &[file, "has no tensor"]);
    let turned = |tensors: &mut Tensors, _: &mut Json| tensors.get_mut(&part("scales")).unwrap().1.reverse();
    check("gptq", &turned, &[file, "scales` has the shape [128, 2], expected [2, 128]"]);
    let typed =
        |tensors: &mut Tensors, _: &mut Json| tensors.get_mut(&part("qweight")).unwrap().0 = Dtype::F32;
    check("awq", &typed, &[file, "qweight` has the type F32, expected I32"]);
    let index = |at: usize, group: i32| {
        move |tensors: &mut Tensors, _: &mut Json| {
            let (.., data) = tensors.get_mut(&format!("{UP}.g_idx")).unwrap();
            data[4 * at..][..4].copy_from_slice(&group.to_le_bytes());
        }
    };
    check(
        "gptq",
        &index(7, 2),
        &[file, "g_idx` has the value 2 at the index 7, expected a group from 0 to 1"],
    );
    check("gptq", &index(7, -1), &[file, "g_idx` has the value -1 at the index 7"]);
    check(
        "gptq",
        &index(200, 0),
        &[file, "has the value 0 at the index 200, expected 1", "desc_act", "use a file"],
    );
    let shape =
        |tensors: &mut Tensors, _: &mut Json| tensors.get_mut(&part("weight_shape")).unwrap().2[0] = 1;
    check("packed", &shape, &[file, "weight_shape` has the value [1, 256]"]);
    let tiny = |tensors: &mut Tensors, _: &mut Json| {
        tensors.get_mut(&part("weight_scale")).unwrap().2[..2].copy_from_slice(&[1, 2])
    };
    check("packed", &tiny, &[file, "weight_scale` has the value", "a number that f16 keeps"]);
    let key = |key: &'static str, value: Json| {
        move |_: &mut Tensors, config: &mut Json| config[key] = value.clone()
    };
    for (name, change, words) in [
        (
            "gptq",
            key("checkpoint_format", "gptq_v3".into()),
            "`quantization_config.checkpoint_format` is \"gptq_v3\"",
        ),
        ("gptq", key("bits", 5.into()), "`quantization_config.bits` is 5, expected 2, 3, 4 or 8"),
        ("gptq", key("group_size", 100.into()), "`quantization_config.group_size` is 100"),
        ("gptq", key("dynamic", serde_json::json!({"+:x": {"bits": 8}})), "`quantization_config.dynamic`"),
        ("gptq", key("rotation", "hadamard".into()), "`quantization_config.rotation` is not a known key"),
        ("awq", key("version", "gemv".into()), "`quantization_config.version` is \"gemv\""),
        ("awq", key("zero_point", false.into()), "`quantization_config.zero_point` is false, expected true"),
        (
            "packed",
            key("format", "marlin-24".into()),
            "`quantization_config.config_groups.group_0.weights.format` is",
        ),
        (
            "packed",
            key("kv_cache_scheme", serde_json::json!({"num_bits": 8})),
            "`quantization_config.kv_cache_scheme`",
        ),
        ("awq", key("quant_method", "hqq".into()), "method `hqq`), expected one of [\"awq\", "),
    ] {
        check(name, &change, &[words]);
    }
}
