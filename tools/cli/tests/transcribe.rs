//! `tracewright transcribe`: the text of audio files, and files without audio.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;

/// The clip of `tests/oracle/speech.py`, as a wav file.
fn wav(path: &Path, golden: &Value) {
    let [seed, count] = [0, 1].map(|i| golden["clip"][i].as_u64().unwrap() as u32);
    let (mut state, mut phase) = (seed, 0i32);
    let sample = |i: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        phase = (phase + (200 + 37 * (i / 1600 % 23) * (seed % 7 + 1)) as i32) % 65536;
        ((phase - 32768).abs() / 2 - 8192 + (state >> 20) as i32 - 2048) as i16
    };
    let bytes: Vec<u8> = (0..count).map(sample).flat_map(i16::to_le_bytes).collect();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
    file.extend((bytes.len() as u32).to_le_bytes());
    file.extend(bytes);
    fs::write(path, file).unwrap();
}

#[test]
fn files_become_text_and_json() {
    let model = fixture("whisper");
    let golden: Value = serde_json::from_slice(&fs::read(model.join("golden.json")).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let clip = folder.path().join("clip.wav");
    wav(&clip, &golden);
    let case = &golden["cases"][1];
    let given =
        ["transcribe", text(&model), text(&clip), "--language", "de", "--translate", "--dtype", "f32"];
    let given = [&given[..], &["--no-fallback", "--timestamps", "none"]].concat();
    let ran = succeed(tracewright(&given).args(["-o", "json"]));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["file", "language", "duration", "text", "segments", "timings", "peak_rss_bytes"]);
    assert_eq!((&object["language"], &object["duration"]), (&json!("de"), &json!(2.375)));
    for (found, expected) in
        object["segments"].as_array().unwrap().iter().zip(case["tokens"].as_array().unwrap())
    {
        assert_eq!(found["tokens"].as_array().unwrap()[..], expected.as_array().unwrap()[4..]);
    }
    assert!(ran.err.contains("2.4 s of audio in") && ran.err.contains("real-time factor"), "{}", ran.err);

    // A line for each window, and the name of each file before those of several.
    let ran = succeed(&mut tracewright(&given));
    let texts = object["segments"].as_array().unwrap().iter().map(|one| one["text"].as_str().unwrap());
    let lines: String = texts.map(|text| format!("{}\n", text.trim())).collect();
    assert_eq!(ran.out, lines);
    let ran = succeed(tracewright(&given).arg(text(&clip)));
    let named = format!("{}:\n{lines}", clip.display());
    assert_eq!(ran.out, format!("{named}{named}"));

    // With timestamps, windows overlap, and each segment is a cue.
    let given = ["transcribe", text(&model), text(&clip), "--no-fallback", "--dtype", "f32", "-o"];
    let ran = succeed(tracewright(&given).arg("json"));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(object["language"], golden["detected"]);
    let segments = object["segments"].as_array().unwrap();
    assert!(segments.len() > 3 && segments.iter().all(|one| one["avg_logprob"].as_f64() < Some(0.0)));
    let vtt = succeed(tracewright(&given).arg("vtt")).out;
    assert!(vtt.starts_with("WEBVTT\n\n00:00:00."), "{vtt}");
    assert_eq!(vtt.matches(" --> ").count(), segments.len());

    // Each word is a cue.
    let words = |format| succeed(tracewright(&given).args([format, "--timestamps", "word"])).out;
    let (vtt, object) = (words("vtt"), serde_json::from_str::<Value>(&words("json")).unwrap());
    let words = |segment: &Value| segment["words"].as_array().unwrap().len();
    let words: usize = object["segments"].as_array().unwrap().iter().map(words).sum();
    assert!(words >= segments.len());
    assert_eq!(vtt.matches(" --> ").count(), words);
}

#[test]
fn files_without_audio_and_other_models_are_errors() {
    let (model, folder) = (fixture("whisper"), tempfile::tempdir().unwrap());
    let path = folder.path().join("notes.wav");
    let refuse = |content: &[u8], more: &[&str], words: &[&str]| {
        fs::write(&path, content).unwrap();
        refused(tracewright(&["transcribe", text(&model), text(&path)]).args(more), 1, words);
    };
    refuse(b"", &[], &["error[TW0828]", "contains no audio"]);
    refuse(b"Dear diary,\n", &[], &["error[TW0828]", "the format of", "expected wav, flac, mp3, ogg or m4a"]);
    refuse(b"", &["-l", "klingon"], &["error[TW0829]", "the language is `klingon`, expected one of"]);
    let llama = fixture("llama-untied");
    refused(
        &mut tracewright(&["transcribe", text(&llama), text(&path)]),
        1,
        &["TW0111", "does not transcribe speech"],
    );
    let words = ["TW0111", "transcribes speech, and does nothing else", "help: use `tracewright transcribe`"];
    refused(&mut tracewright(&["generate", text(&model), "-p", "a"]), 1, &words);
    refused(&mut tracewright(&["embed", text(&model), "-p", "a"]), 1, &words);
}
