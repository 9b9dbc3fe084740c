//! A checkpoint whose experts are four-bit floats, as gpt-oss is published: the archive keeps their bits, and
//! the kernel's logits are judged by transformers, which multiplies the dequantized floats.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;

use irpa::Archive;
use ops::format::{ActivationBits, PANEL};
use ops::ops::Pack;
use ops::{Op, WeightFormat};
use safetensors::SafeTensors;
use trace::{Parameter, Recipe};
use tracewright::bake::{BakeOptions, FromBlocks};
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::targets::Target;
use tracewright::{Plan, models};
use tracewright_tests::golden::{BuildOptions, Golden, STEPS, build, check_within};

const FIXTURE: &str = "gpt_oss-mxfp4";

fn packed_as(parameter: &Parameter) -> Option<WeightFormat> {
    match parameter.recipe.as_deref() {
        Some(Recipe::Op(Op::Pack(Pack { format }), _)) => Some(*format),
        _ => None,
    }
}

/// Returns the scale and the 32 codes of each group of a row, read from the bytes of a panel. A
/// chunk begins with a line of scales, for four groups. In the lines that follow, the lower halves
/// of the bytes contain four columns, and the upper halves contain the next four columns.
fn groups_of(panel: &[u8], lane: usize, groups: usize) -> Vec<(u8, Vec<u8>)> {
    let group = |group: usize| {
        let chunk = &panel[group / 4 * 1088..][..1088];
        let code = |column: usize| {
            let place = group % 4 * 32 + column;
            chunk[64 + place / 8 * 64 + 4 * lane + place % 4] >> (place / 4 % 2 * 4) & 15
        };
        (chunk[group % 4 * 16 + lane], (0..32).map(code).collect())
    };
    (0..groups).map(group).collect()
}

#[test]
fn published_floats_are_stored_bit_for_bit() {
    let golden = Golden::fixture(FIXTURE).unwrap();
    let plan = Plan::new(models::read(&golden.model, &[]).unwrap(), None, Some(32), Some(8)).unwrap();
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    let weights = Weights { quantize: plan.model.stored.clone(), ..Weights::default() };
    let plan = Plan { target, weights, ..plan };
    let lowered = plan.lower(&plan.trace().unwrap().trace).unwrap();
    let checkpoint = plan.named(Checkpoint::open(&golden.model).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.irpa");
    let baked = lowered.bake(&checkpoint, &path, BakeOptions::default()).unwrap();
    assert!(baked.blocks.keys().all(FromBlocks::is_exact), "{:?}", baked.blocks);
    let said: Vec<String> = baked.blocks.keys().map(FromBlocks::to_string).collect();
    assert_eq!(said, ["MXFP4 as mxfp4, exactly"]);

    let file = fs::read(golden.model.join("model.safetensors")).unwrap();
    let published = SafeTensors::deserialize(&file).unwrap();
    let archive = Archive::open(&path).unwrap();
    let mut compared = 0;
    for parameter in &lowered.module.parameters {
        let sources = parameter.sources();
        let Some((key, _)) = sources.first().filter(|(key, _)| key.contains("experts")) else {
            continue;
        };
        if packed_as(parameter) != Some(WeightFormat::Mxfp4) {
            assert!(key.ends_with("_bias"), "{key} is not stored as it is published");
            continue;
        }
        let blocks = published.tensor(&format!("{key}_blocks")).unwrap();
        let scales = published.tensor(&format!("{key}_scales")).unwrap();
        let &[experts, rows, groups, 16] = blocks.shape() else { panic!("{key}: {:?}", blocks.shape()) };
        let data = archive.data(&parameter.key).unwrap();
        let panel = data.len() / (experts * rows / PANEL);
        for expert in 0..experts {
            for row in 0..rows {
                let ours = expert * rows + row;
                let place = ours * groups;
                let expected = (place..place + groups).map(|group| {
                    let bytes = &blocks.data()[16 * group..][..16];
                    let codes = bytes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
                    (scales.data()[group], codes.collect())
                });
                let found = groups_of(&data[ours / PANEL * panel..][..panel], ours % PANEL, groups);
                assert_eq!(found, expected.collect::<Vec<(u8, Vec<u8>)>>(), "{key}: {expert}, {row}");
                compared += groups;
            }
        }
    }
    // Of four experts in two layers, 64 and 32 rows.
    assert_eq!(compared, 2 * 4 * (64 + 32));
}

/// Compares the logits of kernels that multiply the stored floats. With activations of 16 bits, the
/// error is slightly larger than the error of another order of sums.
#[test]
fn logits_are_those_of_transformers() {
    let golden = Golden::fixture(FIXTURE).unwrap();
    let stored = models::read(&golden.model, &[]).unwrap().stored;
    let formats = stored.formats();
    assert!(
        formats.values().all(|format| *format == WeightFormat::Mxfp4) && formats.len() == 2,
        "{formats:?}"
    );
    for (activations, bound) in [(ActivationBits::Sixteen, 1e-4), (ActivationBits::Eight, 3e-2)] {
        let name = format!("{} bits", activations.word());
        let weights = Weights { quantize: stored.clone(), activations, ..Weights::default() };
        let sizes = BuildOptions { weights, ..BuildOptions::of(&golden) };
        let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
        let report = check_within(&golden, &subject, bound).unwrap();
        let _ = writeln!(std::io::stderr(), "{name}: {report}");
        assert!(report.passes(), "{name}: {report}");
    }
}
