//! Spectrograms, compared with those of transformers (`tests/oracle/speech.py`).
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;

use serde_json::Value;
use tracewright_audio::{LogMel, MelConfig};

/// The samples of the script.
fn clip(seed: u32, count: u32) -> Vec<f32> {
    let (mut state, mut phase) = (seed, 0i32);
    let sample = |i: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        phase = (phase + (200 + 37 * (i / 1600 % 23) * (seed % 7 + 1)) as i32) % 65536;
        let integer = (phase - 32768).abs() / 2 - 8192 + (state >> 20) as i32 - 2048;
        integer as f32 / 32768.0
    };
    (0..count).map(sample).collect()
}

const BOUND: f32 = 2e-5;

/// The largest distance from the goldens, for samples that `change` has changed.
fn worst(case: &Value, change: impl Fn(&mut Vec<f32>)) -> f32 {
    let number = |key: &str| case[key].as_u64().unwrap();
    let bins = number("bins") as usize;
    let mel = LogMel::new(MelConfig { feature_size: bins, ..MelConfig::default() }).unwrap();
    let mut samples = clip(number("seed") as u32, number("count") as u32);
    change(&mut samples);
    let found = mel.compute(&samples);
    assert_eq!(found.len(), 3000 * bins);
    let frames: BTreeMap<usize, Vec<f32>> = serde_json::from_value(case["frames"].clone()).unwrap();
    assert!(frames.len() >= 5);
    let of_frame = |(frame, expected): (&usize, &Vec<f32>)| {
        let found = &found[frame * bins..][..bins];
        found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    frames.iter().map(of_frame).fold(0.0, f32::max)
}

#[test]
fn spectrograms_are_those_of_transformers() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("goldens/mel.json")).unwrap();
    assert_eq!(cases.len(), 6);
    for case in &cases {
        let worst = worst(case, |_| {});
        println!("{} samples: {worst:.1e}", case["count"]);
        assert!(worst <= BOUND, "{} samples: {worst}", case["count"]);
    }
    // A sample too late, and a louder clip: each is seen.
    assert!(worst(&cases[2], |samples| samples.insert(0, 0.0)) > BOUND);
    assert!(worst(&cases[2], |samples| samples.iter_mut().for_each(|x| *x *= 1.001)) > BOUND);
}

#[test]
fn wrong_sizes_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("preprocessor_config.json");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        MelConfig::read(folder.path()).map_err(|error| error.to_string())
    };
    assert_eq!(read(r#"{"feature_size": 128}"#).unwrap().unwrap().feature_size, 128);
    let cases = [
        (r#"{"hop_length": 7}"#, "`hop_length` is 7, expected a divisor of the samples of a chunk"),
        (r#"{"hop_length": 0}"#, "`hop_length` is 0, expected an integer from 1 to 16384"),
        (r#"{"n_fft": "a"}"#, "`n_fft` is \"a\", expected an integer from 1 to 16384"),
        (r#"{"dither": 0.5}"#, "`dither` is 0.5, expected 0 or false"),
        (r#"{"feature_extractor_type": "X"}"#, "`feature_extractor_type` is \"X\", expected \"Whisper"),
        ("[]", "is not a JSON object: expected an object"),
    ];
    for (text, expected) in cases {
        let error = read(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(MelConfig::read(folder.path()).unwrap(), None);
}
