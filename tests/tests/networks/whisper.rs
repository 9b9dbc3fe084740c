//! A Whisper with random weights: the encoder's output and the transcripts are those of transformers
//! (`tests/oracle/speech.py`).
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use ops::{ElementType, TensorType, Value};
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};
use trace::Trace;
use tracewright::audio::{LogMel, MelConfig};
use tracewright::model::{SpeechSegment, TranscribeOptions, TuningSource};
use tracewright::models::{Architecture as _, ModelConfig, ModelKind};
use tracewright::targets::Tuning;
use tracewright::{Model, ModelError, OpenOptions};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::calls::{WeightValues, evaluate};
use tracewright_tests::level;

fn folder() -> PathBuf {
    repository().join("tests/fixtures/whisper")
}

fn golden() -> Json {
    serde_json::from_slice(&fs::read(folder().join("golden.json")).unwrap()).unwrap()
}

fn tensors(name: &str) -> WeightValues {
    let bytes = fs::read(folder().join(name)).unwrap();
    let found = SafeTensors::deserialize(&bytes).unwrap();
    let value = |(key, tensor): (String, safetensors::tensor::TensorView<'_>)| {
        let ty = TensorType::new(ElementType::F32, tensor.shape());
        let words = tensor.data().as_chunks().0.iter().copied();
        (key, Value::new(ty, words.map(|word| f64::from(f32::from_le_bytes(word)))))
    };
    found.tensors().into_iter().map(value).collect()
}

/// The samples of the script.
fn clip(golden: &Json) -> Vec<f32> {
    let [seed, count] = [0, 1].map(|i| golden["clip"][i].as_u64().unwrap() as u32);
    samples(seed, count)
}

fn samples(seed: u32, count: u32) -> Vec<f32> {
    let (mut state, mut phase) = (seed, 0i32);
    let sample = |i: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        phase = (phase + (200 + 37 * (i / 1600 % 23) * (seed % 7 + 1)) as i32) % 65536;
        ((phase - 32768).abs() / 2 - 8192 + (state >> 20) as i32 - 2048) as f32 / 32768.0
    };
    (0..count).map(sample).collect()
}

/// Loud and quiet parts in turn.
fn pieces(seed: u32, count: u32) -> Vec<f32> {
    let mut samples = samples(seed, count);
    samples.chunks_mut(20_000).for_each(|part| part.iter_mut().take(10_000).for_each(|x| *x *= 0.01));
    samples
}

fn trace(element: ElementType) -> Trace {
    let config = ModelConfig::read(folder(), &[]).unwrap();
    let ModelKind::Speech(speech) = config.kind() else { panic!("a Whisper takes speech") };
    assert_eq!((speech.frames, speech.bins), (100, 8));
    config.trace(element, &config.kind().entry_points(1, 8, 28)).unwrap().trace
}

/// The memory of the decoder's layers, computed from samples.
#[test]
fn the_encoder_fills_the_memory_of_transformers() {
    let (golden, expected) = (golden(), tensors("golden.safetensors"));
    let mel = LogMel::new(MelConfig::read(&folder()).unwrap().unwrap()).unwrap();
    let features = mel.compute(&clip(&golden)[..16_000]);
    let reference = &expected["mel"].data;
    let far = features.iter().zip(reference).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(features.len() == reference.len() && far < 2e-5, "{far}");

    let trace = trace(ElementType::F32);
    let signature = trace.entry("encode").unwrap().signature();
    let weights = tensors("model.safetensors");
    let features =
        Value::new(TensorType::new(ElementType::F32, [1, 100, 8]), features.into_iter().map(f64::from));
    let distances = |features: Value| -> Vec<f64> {
        let count = Value::new(TensorType::new(ElementType::I32, [1]), [100.0]);
        let results = evaluate(&trace, "encode", &[features, count], &weights);
        let distance = |(result, found): (&trace::Argument, &Value)| {
            let name = result.name.trim_end_matches(char::is_numeric);
            let expected = &expected[&format!("{name}.{}", &result.name[name.len()..])].data;
            assert_eq!(found.data.len(), expected.len());
            let scale = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            found.data.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f64::max)
        };
        signature.results.iter().zip(&results).map(distance).collect()
    };
    let found = distances(features.clone());
    assert!(found.len() == 6 && found.iter().all(|distance| *distance < 1e-4), "{found:?}");
    // Frames and bins in the other order are seen.
    let mut reversed = features;
    reversed.data.reverse();
    let found = distances(reversed);
    assert!(found.iter().all(|distance| *distance > 1e-2), "{found:?}");
}

#[test]
fn an_encoder_takes_unrounded_features() {
    for element in [ElementType::Bf16, ElementType::F16] {
        let signature = trace(element).entry("encode").unwrap().signature();
        assert_eq!(signature.arguments[0].ty.element, ElementType::F32);
        assert_eq!(signature.results[0].ty.element, element);
    }
}

fn open() -> Model {
    let options = OpenOptions {
        compiler: Some(compiler().unwrap()),
        cache: Some(repository().join(".tracewright/cache")),
        target: Some(level::target()),
        tuning: Some(TuningSource::Given(Tuning::default())),
        ..OpenOptions::default()
    };
    Model::open_with(folder(), options).unwrap()
}

/// Without thresholds, which random weights fail.
fn greedy() -> TranscribeOptions {
    TranscribeOptions { temperatures: vec![0.0], no_speech_threshold: None, ..TranscribeOptions::default() }
}

/// Files of one to seven windows, with and without what the model wrote before.
fn segments_are_those_of_transformers(model: &Model) {
    let golden: Json = serde_json::from_slice(&fs::read(folder().join("segments.json")).unwrap()).unwrap();
    let wrong = |case: &Json, change: &dyn Fn(&mut TranscribeOptions)| {
        let (given, count) = (&case["options"], case["count"].as_u64().unwrap());
        let samples = pieces(golden["clip"].as_u64().unwrap() as u32, count as u32);
        let mut options = TranscribeOptions {
            language: given["language"].as_str().map(str::to_owned),
            translate: given["task"] == "translate",
            prompt: case["prompt"].as_str().map(str::to_owned),
            condition_on_prev_tokens: given["condition_on_prev_tokens"] == true,
            logprob_threshold: given["logprob_threshold"].as_f64(),
            no_speech_threshold: given["no_speech_threshold"].as_f64(),
            ..greedy()
        };
        change(&mut options);
        let found = model.transcribe_samples(&samples, &options, |_| ControlFlow::Continue(())).unwrap();
        let expected = case["segments"].as_array().unwrap();
        let differs = |(found, expected): (&SpeechSegment, &Json)| {
            let far = |found: f64, key: &str| {
                (found - expected[key].as_f64().unwrap().min(found_end(count))).abs() > 1e-6
            };
            json!(found.tokens) != expected["tokens"] || far(found.start, "start") || far(found.end, "end")
        };
        let wrong = found.segments.iter().zip(expected).filter(|&pair| differs(pair)).count();
        wrong + found.segments.len().abs_diff(expected.len())
    };
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        assert_eq!(wrong(case, &|_| {}), 0, "{case}");
    }
    // What each option changes is seen.
    assert!(wrong(&cases[3], &|options| options.condition_on_prev_tokens = false) > 0);
    assert!(wrong(&cases[4], &|options| options.prompt = None) > 0);
    assert!(wrong(&cases[6], &|options| options.no_speech_threshold = Some(0.0012)) > 0);
}

/// The words of all segments, and their times in seconds.
fn words_are_those_of_transformers(model: &Model) {
    let golden: Json = serde_json::from_slice(&fs::read(folder().join("words.json")).unwrap()).unwrap();
    let (mut words, mut exact) = (0, 0);
    for case in golden["cases"].as_array().unwrap() {
        let (given, count) = (&case["options"], case["count"].as_u64().unwrap());
        let options = TranscribeOptions {
            language: given["language"].as_str().map(str::to_owned),
            translate: given["task"] == "translate",
            condition_on_prev_tokens: given["condition_on_prev_tokens"] == true,
            words: true,
            ..greedy()
        };
        let samples = pieces(golden["clip"].as_u64().unwrap() as u32, count as u32);
        let found = model.transcribe_samples(&samples, &options, |_| ControlFlow::Continue(())).unwrap();
        let expected = case["segments"].as_array().unwrap();
        assert_eq!(found.segments.len(), expected.len(), "{case}");
        for (segment, expected) in found.segments.iter().zip(expected) {
            let expected: Vec<(String, f64, f64)> = serde_json::from_value(expected.clone()).unwrap();
            let texts = segment.words.iter().map(|word| &word.word);
            assert!(texts.eq(expected.iter().map(|(word, ..)| word)), "{:?} {expected:?}", segment.words);
            for (word, (_, start, end)) in segment.words.iter().zip(&expected) {
                let far = (word.start - start).abs().max((word.end - end).abs());
                assert!(far < 0.021, "{word:?}, expected {start} to {end}");
                exact += usize::from(far < 1e-6);
                words += 1;
            }
        }
    }
    // Nearly equal costs of two paths are rounded otherwise.
    assert!(words > 25 && exact * 20 > words * 19, "{exact} of {words}");
}

/// No time is after the end of the file.
fn found_end(count: u64) -> f64 {
    count as f64 / 16_000.0
}

/// Two and a half windows.
#[test]
fn transcripts_have_the_tokens_of_transformers() {
    let (model, golden) = (open(), golden());
    assert!(model.info().warnings.is_empty(), "{:?}", model.info().warnings);
    segments_are_those_of_transformers(&model);
    words_are_those_of_transformers(&model);
    let samples = clip(&golden);
    let heard = |language: Option<&str>, translate: bool| {
        let language = language.map(str::to_owned);
        let options = TranscribeOptions { language, translate, timestamps: false, ..greedy() };
        model.transcribe_samples(&samples, &options, |_| ControlFlow::Continue(()))
    };
    for case in golden["cases"].as_array().unwrap() {
        let found = heard(case["language"].as_str(), case["task"] == "translate").unwrap();
        let expected: Vec<Vec<u32>> = serde_json::from_value(case["tokens"].clone()).unwrap();
        assert_eq!(found.segments.len(), expected.len());
        for (segment, expected) in found.segments.iter().zip(&expected) {
            let expected = expected[4..].split(|&token| token == 256).next().unwrap();
            assert_eq!(segment.tokens, expected, "{case}");
        }
        let times: Vec<(f64, f64)> = found.segments.iter().map(|one| (one.start, one.end)).collect();
        assert_eq!(times, [(0.0, 1.0), (1.0, 2.0), (2.0, 2.375)]);
    }
    assert_eq!(heard(None, false).unwrap().language, golden["detected"].as_str().unwrap());
    let mut count = 0;
    let stopped = model.transcribe_samples(&samples, &TranscribeOptions::default(), |_| {
        count += 1;
        ControlFlow::Break(())
    });
    let segments = stopped.unwrap().segments;
    assert!(count == 1 && !segments.is_empty() && segments.iter().all(|one| one.seek == 0));

    let refused = heard(Some("klingon"), false).unwrap_err();
    assert!(matches!(refused, ModelError::Language { .. }), "{refused}");
    let none = model.transcribe_samples(&[], &TranscribeOptions::default(), |_| ControlFlow::Continue(()));
    assert_eq!(none.unwrap().text(), "");
    assert!(matches!(model.embed(&["a"], None), Err(ModelError::Kind { .. })));
}
