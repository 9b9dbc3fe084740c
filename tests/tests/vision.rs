//! Networks that see, compared with transformers (`tests/oracle/smolvlm.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::PathBuf;

use pixels::{ImageLimits, SmolVlmProcessor};
use safetensors::SafeTensors;
use serde::Deserialize;
use tracewright::generate::{Features, Network, Session};
use tracewright::models::{self, fit};
use tracewright::ops::{Array, ElementType};
use tracewright::runtime::Device;
use tracewright::{EntryPoint, Plan, Program};
use tracewright_tests::built::{Built, compiler, repository};
use tracewright_tests::golden::{BOUND, best, relative_error};
use tracewright_tests::level;

const CONTEXT: usize = 256;

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures").join(name)
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    files: Vec<String>,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
}

fn cases() -> Vec<Case> {
    let text = fs::read_to_string(fixture("smolvlm/images.json")).unwrap();
    serde_json::from_str::<Golden>(&text).unwrap().cases
}

fn golden(name: &str) -> Vec<f32> {
    let bytes = fs::read(fixture("smolvlm/images.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor(name).unwrap().data().to_vec();
    data.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// The compiled program of a plan's entry points.
fn compiled(plan: &Plan, entries: &[EntryPoint]) -> Built {
    let plan = Plan { target: compiler().unwrap().resolve(&level::target()).unwrap(), ..plan.clone() };
    let trace = plan.record(entries).unwrap().trace;
    let checkpoint = plan.model.weights(&fixture("smolvlm").into()).unwrap();
    Built::new(plan.lower(&trace).unwrap(), &trace, &checkpoint, Device::LocalSync).unwrap()
}

#[test]
fn a_smolvlm_gives_the_features_and_the_logits_of_transformers() {
    let network = fit::open(models::read, fixture("smolvlm"), &[]).unwrap().network;
    let vision = network.vision.clone().unwrap();
    let tower = Plan::new(network.tower().unwrap(), Some(ElementType::F32), None, None).unwrap();
    let tower = compiled(&tower, &tower.entry_points());
    let tower = Program::new(&tower.runtime, &tower.program, tower.module.signatures.clone()).unwrap();
    let plan = Plan::new(network, Some(ElementType::F32), Some(CONTEXT), Some(8)).unwrap();
    let entries: Vec<EntryPoint> = plan.steps().into_iter().chain(plan.features(vision.vectors())).collect();
    let text = compiled(&plan, &entries);
    let network = Network::new(&text.runtime, &text.program, &text.module.signatures).unwrap();

    let processor = SmolVlmProcessor::of_folder(&fixture("smolvlm"), &vision).unwrap();
    for (index, case) in cases().iter().enumerate() {
        let image = |file: &String| ImageLimits::default().read(&fixture("images").join(file)).unwrap();
        let tiles =
            case.files.iter().flat_map(|file| processor.tiles(&image(file), vision.patch_size).patches);
        let mut features = Vec::new();
        for patches in tiles {
            let shape = [1, vision.patches(), vision.numbers()];
            let found = tower.call("see", &[Array::from_slice(&patches, shape).unwrap()]).unwrap();
            features.extend(found[0].to_vec::<f32>().unwrap());
        }
        let expected = golden(&format!("cases.{index}.features"));
        let error = relative_error(&expected, &features);
        assert!(error <= BOUND, "{:?}: features differ by {error:.1e}", case.files);
        // The same numbers in another order are noticed.
        features.rotate_left(1);
        assert!(relative_error(&expected, &features) > 0.1);
        features.rotate_right(1);

        let mut session = Session::new(&network);
        let mut vectors = features.chunks(vision.features);
        let mut logits = Vec::new();
        for part in
            case.prompt_tokens.chunk_by(|a, b| (*a == vision.image_token) == (*b == vision.image_token))
        {
            logits = if part[0] == vision.image_token {
                let numbers = vectors.by_ref().take(part.len()).flatten().copied().collect();
                let features = Features { numbers, width: vision.features };
                session.feed_features(&features, vision.image_token).unwrap()
            } else {
                session.feed(part).unwrap()
            };
        }
        assert_eq!(vectors.next(), None);
        let expected = golden(&format!("cases.{index}.logits"));
        for (row, &token) in expected.chunks(logits.len()).zip(&case.tokens) {
            let error = relative_error(row, &logits);
            assert!(error <= BOUND, "{:?}: logits differ by {error:.1e}", case.files);
            assert_eq!(best(&logits) as u32, token);
            logits = session.feed(&[token]).unwrap();
        }
    }
}
