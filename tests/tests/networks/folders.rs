//! Quantized Hugging Face folders: the archive has the numbers of the folder, and the network answers as transformers does
//! for these numbers in f32. `tests/oracle/folders.py` writes the folders, the hashes of their numbers and the answers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use ops::ElementType;
use ops::format::ActivationBits;
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
    ("gptq-8", &["7 of INT8 in groups of 128 as int8_g128, exactly"]),
    ("int-quantized", &["7 of INT8 in groups of 128 as int8_g128, exactly"]),
    ("packed", &["7 of INT4 in groups of 128 as int4_g128, exactly"]),
    ("packed-asymmetric", &["7 of UINT4 in groups of 32 as uint4_g32, exactly"]),
];

/// Folders with different kernels.
const IN_IREE: &[&str] = &["gptq-2", "gptq-8", "packed-asymmetric"];

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
        assert!(bytes <= size, "{name}: {bytes} bytes in the archive, {size} in the folder");
    }
}

/// With dequantized weights, and in IREE with the integers of the folder and activations of 16 bits.
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
        let weights = Weights { quantize, activations: ActivationBits::Sixteen, ..Weights::default() };
        let sizes = BuildOptions { weights, ..BuildOptions::of(&golden) };
        let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
        let report = check_within(&golden, &subject, 5e-4).unwrap();
        let _ = writeln!(std::io::stderr(), "{name}: {report}");
        assert!(report.passes(), "{name}: {report}");
    }
}
