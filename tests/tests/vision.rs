//! Networks that see, compared with transformers (`tests/oracle/smolvlm.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::PathBuf;

use pixels::{ImageLimits, Pixels, SmolVlmProcessor};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};
use tracewright::generate::{Chat, Features, Network, Session};
use tracewright::model::{ImagePrompt, Opening, TuningSource, read_image};
use tracewright::models::{self, fit};
use tracewright::ops::{Array, ElementType};
use tracewright::runtime::Device;
use tracewright::targets::Tuning;
use tracewright::{EntryPoint, GenerateOptions, Model, NumericOptions, OpenOptions, Plan, Program};
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
    messages: Value,
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

fn opening(name: &str) -> Opening {
    let options = OpenOptions {
        numeric: NumericOptions { dtype: Some(ElementType::F32), ..NumericOptions::default() },
        context: Some(CONTEXT),
        chunk: Some(8),
        tuning: Some(TuningSource::Given(Tuning::default())),
        compiler: Some(compiler().unwrap()),
        cache: Some(repository().join(".tracewright/cache")),
        images: true,
        ..OpenOptions::default()
    };
    Opening::read(fixture(name), options).unwrap()
}

fn images(files: &[String]) -> Vec<Pixels> {
    files.iter().map(|file| read_image(&fixture("images").join(file)).unwrap()).collect()
}

fn chat(messages: &Value) -> Chat {
    let messages = messages.as_array().unwrap().clone();
    Chat { messages, add_generation_prompt: true, ..Chat::default() }
}

/// The first tokens of an answer, which begins with state of earlier prompts.
fn answer(model: &Model, prompt: ImagePrompt, reuses: bool) -> Vec<u32> {
    let options = GenerateOptions { max_tokens: 12, ignore_eos: true, ..GenerateOptions::default() };
    let request = model.continue_prompt(model.see(prompt).unwrap()).options(options);
    let request = if reuses { request.reuse() } else { request };
    request.complete().unwrap().generated.tokens
}

#[test]
fn conversations_with_images_give_the_tokens_of_transformers() {
    let opening = opening("smolvlm");
    let model = opening.clone().build().unwrap();
    let cases = cases();
    for case in &cases {
        let prompt = opening.chat_with_images(&chat(&case.messages), &images(&case.files)).unwrap();
        assert_eq!(prompt.tokens(), case.prompt_tokens, "{:?}", case.files);
        assert_eq!(answer(&model, prompt, false), case.tokens, "{:?}", case.files);
    }
    // The same placeholders with another image are another prompt.
    let with = |file: &str, reuses: bool| {
        let prompt =
            opening.chat_with_images(&chat(&cases[0].messages), &images(&[file.to_owned()])).unwrap();
        (prompt.tokens().len(), answer(&model, prompt, reuses))
    };
    let fresh = ["alpha.png", "alpha.webp", "gray_alpha.png"].map(|file| with(file, false));
    assert_eq!(fresh[0].1, cases[0].tokens);
    assert_ne!(fresh[0].1, fresh[2].1);
    assert_eq!(fresh[0].0, fresh[2].0);
    for _ in 0..2 {
        let reused = ["alpha.png", "alpha.webp", "gray_alpha.png"].map(|file| with(file, true));
        assert_eq!(reused, fresh);
    }
}

/// The name of the placeholder in a user's text is text.
#[test]
fn placeholders_of_users_take_no_image() {
    let opening = opening("smolvlm");
    let of = |text: &str, count: usize| {
        let content = json!([{ "type": "text", "text": text }, { "type": "image" }]);
        let messages = json!([{ "role": "user", "content": content }]);
        opening.chat_with_images(&chat(&messages), &images(&vec!["rgb.png".into(); count]))
    };
    let (plain, named) = (of("Is it ? or", 1).unwrap(), of("Is it <image> or", 1).unwrap());
    let token = opening.tokenizer().unwrap().special_token("<image>").unwrap();
    let count = |prompt: &ImagePrompt| prompt.tokens().iter().filter(|one| **one == token).count();
    assert_eq!(count(&named), count(&plain) + 1);
    let places = |prompt: &ImagePrompt| prompt.replaced().collect::<Vec<usize>>();
    assert_eq!(places(&named), places(&plain));
    for count in [0, 2] {
        let error = of("Is it <image> or", count).unwrap_err().to_string();
        assert!(error.starts_with("the conversation has 1 placeholders of images, expected"), "{error}");
    }
}

/// A text network reads no image, and a conversation without images stays as it is.
#[test]
fn other_models_and_conversations_are_unchanged() {
    let error = opening("gemma3-4b-tower").chat_with_images(&Chat::default(), &[]).unwrap_err().to_string();
    assert!(error.ends_with("reads only text, and cannot read images"), "{error}");
    let opening = opening("smolvlm");
    let text =
        |content: Value| opening.render(&chat(&json!([{ "role": "user", "content": content }]))).unwrap();
    let expected = "<|im_start|>User: Hello<end_of_utterance>\nAssistant:";
    assert_eq!(text("Hello".into()), expected);
    assert_eq!(text(json!([{ "type": "text", "text": "Hello" }])), expected);
    let image = read_image(&fixture("smolvlm/config.json")).unwrap_err();
    assert!(format!("{image:?}").contains("the data is no image in a known format"), "{image:?}");
}
