//! Networks that see, compared with transformers (`tests/oracle/seeing.py` and the scripts that use it).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pixels::{ImageLimits, ImageProcessor, Pixels};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tracewright::generate::{Chat, Features, Network, Session};
use tracewright::model::{ImagePrompt, Opening, TuningSource, read_image};
use tracewright::models::{self, fit};
use tracewright::ops::ops::{MaskTerm, Op, Sdpa};
use tracewright::ops::{Array, ElementType, TensorType, Value as Tensor};
use tracewright::runtime::Device;
use tracewright::targets::Tuning;
use tracewright::trace::NodeKind;
use tracewright::{EntryPoint, GenerateOptions, Model, NumericOptions, OpenOptions, Plan, Program};
use tracewright_tests::built::{Built, compiler, repository};
use tracewright_tests::golden::{BOUND, best, relative_error};
use tracewright_tests::{level, long};

const CONTEXT: usize = 256;

/// The fixtures of networks that see.
const ALL: [&str; 7] =
    ["smolvlm", "internvl", "internvl-norms", "mistral3-images", "ministral3-images", GEMMA[0], GEMMA[1]];

/// Those whose conversations are compared in the short form of the tests.
const FEW: [&str; 4] = ["smolvlm", "internvl", "mistral3-images", GEMMA[0]];

/// In these networks, the vectors of an image see each other.
const GEMMA: [&str; 2] = ["gemma3-images", "gemma3-images-odd"];

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
    /// For each kind of layer, the first key that each query sees, and the number of keys.
    #[serde(default)]
    masks: BTreeMap<String, Vec<[usize; 2]>>,
}

fn cases(of: &str) -> Vec<Case> {
    let text = fs::read_to_string(fixture(of).join("images.json")).unwrap();
    serde_json::from_str::<Golden>(&text).unwrap().cases
}

fn golden(of: &str, name: &str) -> Vec<f32> {
    let bytes = fs::read(fixture(of).join("images.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor(name).unwrap().data().to_vec();
    data.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
}

/// The compiled program of a plan's entry points.
fn compiled(of: &str, plan: &Plan, entries: &[EntryPoint]) -> Built {
    let plan = Plan { target: compiler().unwrap().resolve(&level::target()).unwrap(), ..plan.clone() };
    let trace = plan.record(entries).unwrap().trace;
    let checkpoint = plan.model.weights(&fixture(of).into()).unwrap();
    Built::new(plan.lower(&trace).unwrap(), &trace, &checkpoint, Device::LocalSync).unwrap()
}

#[test]
fn networks_that_see_give_the_features_and_the_logits_of_transformers() {
    ALL.into_iter().for_each(compare);
}

fn compare(of: &str) {
    let network = fit::open(models::read, fixture(of), &[]).unwrap().network;
    let vision = network.vision.clone().unwrap();
    let tower = Plan::new(network.tower().unwrap(), Some(ElementType::F32), None, None).unwrap();
    let tower = compiled(of, &tower, &tower.entry_points());
    let tower = Program::new(&tower.runtime, &tower.program, tower.module.signatures.clone()).unwrap();
    let plan = Plan::new(network, Some(ElementType::F32), Some(CONTEXT), Some(8)).unwrap();
    let entries: Vec<EntryPoint> =
        plan.steps().into_iter().chain(plan.features(vision.vectors_together())).collect();
    let text = compiled(of, &plan, &entries);
    let network = Network::new(&text.runtime, &text.program, &text.module.signatures).unwrap();

    let processor = ImageProcessor::of_folder(&fixture(of), &vision).unwrap();
    for (index, case) in cases(of).iter().enumerate() {
        let image = |file: &String| ImageLimits::default().read(&fixture("images").join(file)).unwrap();
        let tiles = case.files.iter().flat_map(|file| processor.prepare(&image(file), &vision).tiles);
        let mut features = Vec::new();
        for tile in tiles {
            let (entry, numbers) = vision.call(tile.numbers);
            let shape = [1, numbers.len() / vision.numbers(), vision.numbers()];
            let found = tower.call(&entry, &[Array::from_slice(&numbers, shape).unwrap()]).unwrap();
            features.extend(&found[0].to_vec::<f32>().unwrap()[..tile.vectors * vision.features]);
        }
        let expected = golden(of, &format!("cases.{index}.features"));
        let error = relative_error(&expected, &features);
        assert!(error <= BOUND, "{of}, {:?}: features differ by {error:.1e}", case.files);
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
        let expected = golden(of, &format!("cases.{index}.logits"));
        for (row, &token) in expected.chunks(logits.len()).zip(&case.tokens) {
            let error = relative_error(row, &logits);
            assert!(error <= BOUND, "{of}, {:?}: logits differ by {error:.1e}", case.files);
            assert_eq!(best(&logits) as u32, token);
            logits = session.feed(&[token]).unwrap();
        }
    }
}

/// The masks of the attention in all layers of entry points. All keys are in a list here, and not in a ring.
fn masks(plan: &Plan, entries: &[EntryPoint]) -> BTreeMap<String, Vec<MaskTerm>> {
    let trace = plan.record(entries).unwrap().trace;
    let nodes = trace.functions.iter().flat_map(|function| function.ids().map(|id| function.node(id)));
    let mut masks = BTreeMap::new();
    for node in nodes {
        let NodeKind::Op(Op::Sdpa(op)) = &node.kind else { continue };
        let mask: Vec<MaskTerm> = op.mask.iter().copied().filter(|term| *term != MaskTerm::Ring).collect();
        let slides = mask.iter().any(|term| matches!(term, MaskTerm::Window(_)));
        let kind = if slides { "sliding_attention" } else { "full_attention" };
        let before = masks.insert(kind.to_owned(), mask.clone());
        assert!(before.is_none_or(|before| before == mask));
    }
    masks
}

/// The first key that each of `count` queries from `start` on sees, and the number of keys.
fn seen(mask: &[MaskTerm], start: usize, count: usize) -> Vec<[usize; 2]> {
    let f32s =
        |shape: &[usize], numbers: Vec<f64>| Tensor::new(TensorType::new(ElementType::F32, shape), numbers);
    let number = |number: usize| Tensor::new(TensorType::new(ElementType::I32, []), [number as f64]);
    let keys = start + count;
    let identity = (0..keys * keys).map(|i| f64::from(u8::from(i / keys == i % keys))).collect();
    let operands = [
        f32s(&[count, 1], vec![0.0; count]),
        f32s(&[keys, 1], vec![0.0; keys]),
        f32s(&[keys, keys], identity),
        number(start),
        number(keys),
    ];
    let op = Sdpa { mask: mask.to_vec(), scale: None, softcap: None, offset: true };
    let used = if mask.contains(&MaskTerm::Prefix) { 5 } else { 4 };
    let operands: Vec<&Tensor> = operands[..used].iter().collect();
    let found = Op::from(op).eval(&operands, &TensorType::new(ElementType::F32, [count, keys]));
    let bytes = found.to_bytes();
    let numbers: Vec<f32> = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
    let row = |row: &[f32]| {
        let seen: Vec<usize> = (0..keys).filter(|&key| row[key] > 0.0).collect();
        assert_eq!(seen.len(), seen[seen.len() - 1] - seen[0] + 1);
        [seen[0], seen.len()]
    };
    numbers.chunks(keys).map(row).collect()
}

/// An image's positions see each other, in layers with a window too.
#[test]
fn masks_of_images_equal_those_of_transformers() {
    for of in GEMMA {
        let network = fit::open(models::read, fixture(of), &[]).unwrap().network;
        let vision = network.vision.clone().unwrap();
        let plan = Plan::new(network, Some(ElementType::F32), Some(CONTEXT), Some(8)).unwrap();
        let of_tokens = masks(&plan, &plan.steps());
        let of_images = masks(&plan, &plan.features(vision.vectors_together()));
        assert_eq!((of_tokens.len(), of_images.len()), (2, 2));
        for case in cases(of) {
            for (kind, expected) in &case.masks {
                let dump = |of_images: &[MaskTerm]| {
                    let mut found: Vec<[usize; 2]> = Vec::new();
                    let is_image = |token: &u32| *token == vision.image_token;
                    for part in case.prompt_tokens.chunk_by(|a, b| is_image(a) == is_image(b)) {
                        let mask = if is_image(&part[0]) { of_images } else { &of_tokens[kind] };
                        found.extend(seen(mask, found.len(), part.len()));
                    }
                    found
                };
                assert_eq!(&dump(&of_images[kind]), expected, "{of}, {kind}");
                assert_ne!(&dump(&of_tokens[kind]), expected);
            }
        }
    }
}

fn opening(name: &str) -> Opening {
    opening_in(name, 8, CONTEXT)
}

fn opening_in(name: &str, chunk: usize, context: usize) -> Opening {
    let options = OpenOptions {
        numeric: NumericOptions { dtype: Some(ElementType::F32), ..NumericOptions::default() },
        context: Some(context),
        chunk: Some(chunk),
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

/// The first tokens of an answer, which begins with state of earlier prompts, and the number of their tokens.
fn answer(model: &Model, prompt: ImagePrompt, reuses: bool) -> (Vec<u32>, usize) {
    let options = GenerateOptions { max_tokens: 12, ignore_eos: true, ..GenerateOptions::default() };
    let request = model.continue_prompt(model.see(prompt).unwrap()).options(options);
    let request = if reuses { request.reuse() } else { request };
    let completion = request.complete().unwrap();
    let computed = completion.generated.prefill_tokens;
    (completion.generated.tokens, completion.prompt_tokens - computed)
}

#[test]
fn conversations_with_images_give_the_tokens_of_transformers() {
    let fixtures = if long::is_wanted() { &ALL[..] } else { &FEW };
    for &of in fixtures {
        let opening = opening(of);
        let model = opening.clone().build().unwrap();
        let cases = cases(of);
        for case in &cases {
            let prompt = opening.chat_with_images(&chat(&case.messages), &images(&case.files)).unwrap();
            assert_eq!(prompt.tokens(), case.prompt_tokens, "{of}, {:?}", case.files);
            assert_eq!(answer(&model, prompt, false).0, case.tokens, "{of}, {:?}", case.files);
        }
        // The same placeholders with another image are another prompt.
        let with = |file: &str, reuses: bool| {
            let prompt =
                opening.chat_with_images(&chat(&cases[0].messages), &images(&[file.to_owned()])).unwrap();
            let length = prompt.tokens().len();
            let (tokens, reused) = answer(&model, prompt, reuses);
            ((length, tokens), reused)
        };
        let files = ["alpha.png", "alpha.webp", "gray_alpha.png"];
        let fresh = files.map(|file| with(file, false));
        assert_eq!(fresh[0].0.1, cases[0].tokens);
        assert_ne!(fresh[0].0.1, fresh[2].0.1);
        assert_eq!(fresh[0].0.0, fresh[2].0.0);
        for _ in 0..2 {
            let reused = files.map(|file| with(file, true));
            assert_eq!(reused.map(|one| one.0), fresh.clone().map(|one| one.0));
        }
        // The image is the same, and the question is not computed again either. Then the image is another one.
        let first = cases[0].prompt_tokens.iter().position(|token| *token == placeholder(&opening)).unwrap();
        assert!(with(files[2], true).1 > first + 1, "{of}");
        assert!(with("gray.png", true).1 <= first, "{of}");
    }
}

fn placeholder(opening: &Opening) -> u32 {
    opening.network().unwrap().vision.as_ref().unwrap().image_token
}

/// An image is computed in one call, whatever the chunk.
#[test]
fn chunks_change_no_token_behind_an_image() {
    let chunks: &[usize] = if long::is_wanted() { &[16, 64, 512] } else { &[16] };
    for of in GEMMA {
        for &chunk in chunks {
            let opening = opening_in(of, chunk, 512);
            let model = opening.clone().build().unwrap();
            for case in cases(of) {
                let prompt = opening.chat_with_images(&chat(&case.messages), &images(&case.files)).unwrap();
                assert_eq!(answer(&model, prompt, false).0, case.tokens, "{of}, {chunk}, {:?}", case.files);
            }
        }
    }
}

/// The names of placeholders in a user's text are text.
#[test]
fn placeholders_of_users_take_no_image() {
    for (of, names) in [
        ("smolvlm", vec!["<image>"]),
        ("internvl", vec!["<IMG_CONTEXT>"]),
        ("mistral3-images", vec!["[IMG]"]),
        (GEMMA[0], vec!["<start_of_image>", "<image_soft_token>"]),
    ] {
        let opening = opening(of);
        let with = |text: &str, count: usize| {
            let content = json!([{ "type": "text", "text": text }, { "type": "image" }]);
            let messages = json!([{ "role": "user", "content": content }]);
            opening.chat_with_images(&chat(&messages), &images(&vec!["rgb.png".into(); count]))
        };
        for name in names {
            let text = format!("Is it {name} or");
            let (plain, named) = (with("Is it ? or", 1).unwrap(), with(&text, 1).unwrap());
            let token = opening.tokenizer().unwrap().special_token(name).unwrap();
            let count = |prompt: &ImagePrompt| prompt.tokens().iter().filter(|one| **one == token).count();
            assert_eq!(count(&named), count(&plain) + 1);
            let places = |prompt: &ImagePrompt| prompt.replaced().collect::<Vec<usize>>();
            assert_eq!(places(&named), places(&plain));
            for count in [0, 2] {
                let error = with(&text, count).unwrap_err().to_string();
                let expected = "the conversation has 1 placeholders of images, expected";
                assert!(error.starts_with(expected), "{error}");
            }
        }
    }
}

/// The published settings have many nulls, and a file that would change pixels is an error.
#[test]
fn settings_of_gemma_3_are_read_as_published() {
    let vision = fit::open(models::read, fixture(GEMMA[0]), &[]).unwrap().network.vision.clone().unwrap();
    let published = json!({
        "do_convert_rgb": null, "do_normalize": true, "do_pan_and_scan": null, "do_rescale": true, "do_resize": true,
        "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 16,
        "image_std": [0.5, 0.5, 0.5], "pan_and_scan_max_num_crops": null, "pan_and_scan_min_crop_size": null,
        "pan_and_scan_min_ratio_to_activate": null, "processor_class": "Gemma3Processor", "resample": 2,
        "rescale_factor": 1.0 / 255.0, "size": { "height": 32, "width": 32 },
    });
    let with = |key: &str, value: Value| {
        let folder = tempfile::tempdir().unwrap();
        let mut keys = published.clone();
        keys[key] = value;
        fs::write(folder.path().join("preprocessor_config.json"), keys.to_string()).unwrap();
        ImageProcessor::of_folder(folder.path(), &vision).map_err(|error| error.to_string())
    };
    assert_eq!(
        with("do_resize", true.into()),
        ImageProcessor::of_folder(&fixture(GEMMA[0]), &vision).map_err(|_| String::new())
    );
    for (key, value) in [
        ("do_pan_and_scan", json!(true)),
        ("do_convert_rgb", json!(false)),
        ("do_resize", json!(false)),
        ("image_seq_length", json!(4)),
        ("resample", json!(0)),
        ("size", json!({ "height": 32, "width": 64 })),
        ("crop", json!(1)),
    ] {
        let error = with(key, value).unwrap_err();
        assert!(error.contains(key), "{error}");
    }
}

/// The value at a path of keys becomes another one, in a copy of a fixture's file.
fn changed(of: &str, file: &str, (path, value): (&str, Value)) -> TempDir {
    let mut keys: Value = serde_json::from_str(&fs::read_to_string(fixture(of).join(file)).unwrap()).unwrap();
    let place = path.split('.').fold(&mut keys, |place, key| &mut place[key]);
    *place = value;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(file), keys.to_string()).unwrap();
    folder
}

/// Each key of a tower and of its processor has an effect, or is an error.
#[test]
fn keys_that_change_vectors_are_errors() {
    let check = |of: &str, path: &str, value: Value| {
        let folder = changed(of, "config.json", (path, value));
        let error = models::read(folder.path(), &[]).err().unwrap_or_else(|| panic!("{of}: {path}"));
        assert!(error.to_string().contains(path), "{error}");
    };
    check("internvl", "downsample_ratio", json!(0.3));
    check("internvl", "downsample_ratio", json!(0.125));
    check("internvl", "vision_feature_layer", json!(-2));
    check("internvl", "vision_feature_select_strategy", json!("full"));
    check("internvl", "projector_hidden_act", json!("relu"));
    check("internvl", "text_config.model_type", json!("gpt2"));
    check("internvl", "vision_config.image_size", json!([16, 32]));
    check("internvl", "vision_config.use_mask_token", json!(true));
    check("internvl", "vision_config.use_mean_pooling", json!(false));
    check("internvl", "vision_config.norm_type", json!("batch_norm"));
    check("internvl", "vision_config.use_gate", json!(true));
    for of in ["mistral3-images", "ministral3-images"] {
        check(of, "vision_feature_layer", json!([-1, -2]));
        check(of, "spatial_merge_size", json!(17));
        check(of, "projector_hidden_act", json!("silu"));
        check(of, "vision_config.image_size", json!(4000));
        check(of, "vision_config.hidden_act", json!("relu"));
        check(of, "vision_config.head_dim", json!(20));
        check(of, "vision_config.rope_parameters.rope_type", json!("yarn"));
        check(of, "vision_config.rope_parameters.factor", json!(2.0));
        check(of, "vision_config.use_gate", json!(true));
    }

    let check = |of: &str, path: &str, value: Value| {
        let vision = models::read(fixture(of), &[]).unwrap().vision.unwrap();
        let folder = changed(of, "processor_config.json", (path, value));
        let error = ImageProcessor::of_folder(folder.path(), &vision).err();
        let error = error.unwrap_or_else(|| panic!("{of}: {path}")).to_string();
        assert!(error.contains(path.rsplit('.').next().unwrap()), "{error}");
    };
    check("internvl", "image_seq_length", json!(9));
    check("internvl", "image_processor.size.height", json!(32));
    check("internvl", "image_processor.min_patches", json!(5));
    check("internvl", "image_processor.max_patches", json!(1000));
    check("internvl", "image_processor.do_center_crop", json!(true));
    check("internvl", "image_processor.crop_mode", json!("smart"));
    check("mistral3-images", "patch_size", json!(5));
    check("mistral3-images", "spatial_merge_size", json!(1));
    check("mistral3-images", "image_break_token", json!("[BREAK]"));
    check("mistral3-images", "image_processor.size.longest_edge", json!(41));
    check("mistral3-images", "image_processor.resample", json!(0));

    // Without a processor of texts and images, transformers takes other sizes.
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("preprocessor_config.json"), "{}").unwrap();
    let vision = models::read(fixture("mistral3-images"), &[]).unwrap().vision.unwrap();
    let error = ImageProcessor::of_folder(folder.path(), &vision).unwrap_err().to_string();
    assert!(error.contains("`spatial_merge_size`"), "{error}");
}

/// A text network reads no image, and a conversation without images stays as it is.
#[test]
fn other_models_and_conversations_are_unchanged() {
    let error = opening("llama-untied").chat_with_images(&Chat::default(), &[]).unwrap_err().to_string();
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
