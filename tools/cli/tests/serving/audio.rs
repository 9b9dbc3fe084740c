//! `POST /v1/audio/transcriptions` and `/translations`, as raw requests.

use std::io::Write as _;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::client::*;
use crate::support::*;

static LISTENER: LazyLock<Serving> = LazyLock::new(|| Serving::until_the_end(&[text(&fixture("whisper"))]));

const PATH: &str = "/v1/audio/transcriptions";

/// 1.5 s of noise.
fn wav() -> Vec<u8> {
    let samples = (0..24_000u32).map(|i| (i.wrapping_mul(i) % 20_000) as i16 - 10_000);
    let bytes: Vec<u8> = samples.flat_map(i16::to_le_bytes).collect();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + bytes.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data");
    file.extend((bytes.len() as u32).to_le_bytes());
    file.extend(bytes);
    file
}

fn form(file: Option<&[u8]>, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, value) in fields {
        write!(body, "--XYZ\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").unwrap();
    }
    if let Some(file) = file {
        body.extend(b"--XYZ\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
        body.extend(file);
        body.extend(b"\r\n");
    }
    body.extend(b"--XYZ--\r\n");
    body
}

fn ask(path: &str, file: Option<&[u8]>, fields: &[(&str, &str)]) -> Response {
    let head = format!("POST {path} HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=XYZ");
    LISTENER.ask(&head, &form(file, fields))
}

#[test]
fn every_format_has_the_same_segments() {
    let wav = wav();
    let good = |path: &str, fields: &[(&str, &str)]| {
        let response = ask(path, Some(&wav), &[fields, &[("language", "de")]].concat());
        assert_eq!(response.status, 200, "{}", response.body);
        response
    };
    let verbose = good(PATH, &[("response_format", "verbose_json")]).json();
    let segments = verbose["segments"].as_array().unwrap();
    assert!(!segments.is_empty());
    assert_eq!((&verbose["task"], &verbose["language"]), (&json!("transcribe"), &json!("de")));
    assert_eq!((&verbose["duration"], &verbose["usage"]["seconds"]), (&json!(1.5), &json!(2)));
    let keys: Vec<&String> = segments[0].as_object().unwrap().keys().collect();
    let expected = "id seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob";
    assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
    let texts: String = segments.iter().map(|one| one["text"].as_str().unwrap()).collect();
    assert_eq!(verbose["text"], texts.trim());
    assert_eq!(good(PATH, &[]).json()["text"], verbose["text"]);
    assert_eq!(good(PATH, &[("response_format", "text")]).body.trim(), texts.trim());
    let cues = |format: &str| good(PATH, &[("response_format", format)]).body.matches(" --> ").count();
    assert_eq!([cues("srt"), cues("vtt")], [segments.len(); 2]);
    let events = good(PATH, &[("stream", "true")]).events();
    let (done, deltas) = events.split_last().unwrap();
    assert_eq!((&done["type"], &done["text"]), (&json!("transcript.text.done"), &verbose["text"]));
    let told: String = deltas.iter().map(|one| one["delta"].as_str().unwrap()).collect();
    assert_eq!((told.trim(), deltas.len()), (texts.trim(), segments.len()));
    let granularities = ["segment", "word"].map(|part| ("timestamp_granularities[]", part));
    let worded = good(PATH, &[&granularities[..], &[("response_format", "verbose_json")]].concat()).json();
    assert_eq!(worded["segments"], verbose["segments"]);
    let words = worded["words"].as_array().unwrap();
    let times = |word: &Value| ["start", "end"].map(|key| word[key].as_f64().unwrap());
    assert!(!words.is_empty() && words.is_sorted_by_key(times), "{words:?}");
    let translated = good("/v1/audio/translations", &[("response_format", "verbose_json")]).json();
    assert_eq!(translated["task"], "translate");
    let metrics = LISTENER.get("/metrics").body;
    assert!(metrics.contains("tracewright_audio_seconds_total{model=\"whisper\"} "), "{metrics}");
}

#[test]
fn wrong_forms_are_refused() {
    let wav = wav();
    let refuse = |file: Option<&[u8]>, fields: &[(&str, &str)], param: Value, words: &str| {
        let response = ask(PATH, file, fields);
        let error = response.error();
        assert_eq!((response.status, &error["param"]), (400, &param), "{}", response.body);
        assert!(error["message"].as_str().unwrap().contains(words), "{}", response.body);
    };
    let file = Some(wav.as_slice());
    refuse(None, &[], json!("file"), "`file` is missing");
    refuse(Some(b""), &[], json!("file"), "contains no audio");
    refuse(Some(b"Dear diary"), &[], json!("file"), "expected wav, flac, mp3, ogg or m4a");
    refuse(Some(&wav[..20_000]), &[], json!("file"), "is cut");
    refuse(file, &[("lang", "en")], json!("lang"), "`lang` is no field of this endpoint");
    refuse(file, &[("language", "klingon")], json!("language"), "expected one of");
    refuse(file, &[("response_format", "xml")], json!("response_format"), "expected `json`, `text`");
    refuse(file, &[("temperature", "hot")], json!("temperature"), "a number from 0 to 1");
    let granularities = "timestamp_granularities[]";
    refuse(file, &[(granularities, "letter")], json!(granularities), "`segment` or `word`");
    refuse(file, &[(granularities, "word")], json!(granularities), "only with `verbose_json`");
    refuse(file, &[("chunking_strategy", "vad")], json!("chunking_strategy"), "is not supported");
    refuse(
        file,
        &[("stream", "true"), ("response_format", "srt")],
        json!("response_format"),
        "with `stream`",
    );
    refuse(file, &[("model", "a"), ("model", "b")], json!("model"), "repeated");
    assert_eq!(ask(PATH, file, &[("model", "other")]).status, 404);
    assert_eq!(LISTENER.bad(PATH, &json!({}), 415)["code"], "unsupported_media_type");
    let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let error = LISTENER.bad("/v1/chat/completions", &chat, 400);
    assert!(error["message"].as_str().unwrap().contains("transcribes speech, and cannot"), "{error}");

    // The bytes of a large file are not read: none are sent here.
    let mut stream = LISTENER.connect();
    let head =
        "Content-Type: multipart/form-data; boundary=XYZ\r\nContent-Length: 80000000\r\nHost: 127.0.0.1";
    write!(stream, "POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
    let refused = read(stream);
    assert_eq!((refused.status, refused.error()["code"].clone()), (413, json!("body_too_large")));
    // A form without its end.
    let head = format!("POST {PATH} HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=XYZ");
    let cut = LISTENER.ask(&head, b"--XYZ\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nRIFF");
    assert_eq!((cut.status, cut.error()["code"].clone()), (400, json!("invalid_body")));
}
