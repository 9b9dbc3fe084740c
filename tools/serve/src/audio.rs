//! Implements `POST /v1/audio/transcriptions` and `POST /v1/audio/translations`.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracewright::audio;
use tracewright::model::{SpeechSegment, SpeechWord, TranscribeOptions, Transcript};

use crate::app::App;
use crate::body::{fields, response, schema, shown};
use crate::failure::Failure;
use crate::interface::{Interface, OF_AUDIO};
use crate::metrics::ModelMetrics;
use crate::models::Loaded;
use crate::multipart::{self, FILE, Form};
use crate::permit::Permit;
use crate::stream::{SILENCE, Sent, event, unbuffered};

/// The largest form, in bytes. OpenAI allows files of 25 MB.
const MOST: usize = 64 << 20;

pub static AUDIO: Interface = Interface::new(|| vec![schema::<AudioFields>()], &[OF_AUDIO]);

#[derive(Deserialize, JsonSchema)]
pub struct AudioFields {
    /// The audio file: wav, flac, mp3, ogg (Vorbis) or m4a (AAC or ALAC).
    #[schemars(extend("format" = "binary"))]
    #[expect(dead_code, reason = "the name of the file has no effect")]
    file: String,
    /// The name of the model that transcribes. The default model is the server's first model.
    model: Option<String>,
    /// The code of the spoken language, such as `en`. By default, the model detects it.
    language: Option<String>,
    /// A text that could stand before the transcript, with names in their spelling.
    prompt: Option<String>,
    /// The format of the answer: `json`, `text`, `srt`, `vtt` or `verbose_json`.
    response_format: Option<String>,
    /// The temperature. With 0, higher ones are tried for parts that the model transcribes badly.
    temperature: Option<String>,
    /// The parts of the text with times in `verbose_json`: `segment`, `word` or both.
    #[serde(rename = "timestamp_granularities[]")]
    granularities: Option<Vec<String>>,
    /// Whether the text arrives as server-sent events, segment by segment: `true` or `false`.
    stream: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

/// A message of the thread that transcribes.
enum Told {
    Segment(SpeechSegment),
    Done(Box<Transcript>),
    Failed(Failure),
}

/// Counts a running transcription, until the value is dropped.
struct OpenTranscript(Arc<ModelMetrics>);

impl OpenTranscript {
    fn new(metrics: Arc<ModelMetrics>) -> Self {
        metrics.began(1);
        Self(metrics)
    }
}

impl Drop for OpenTranscript {
    fn drop(&mut self) {
        self.0.ended(1);
    }
}

/// Answers `POST /v1/audio/transcriptions`.
pub async fn transcribe(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    answer(&app, &headers, body, false).await
}

/// Answers `POST /v1/audio/translations`.
pub async fn translate(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    answer(&app, &headers, body, true).await
}

async fn answer(
    app: &Arc<App>,
    headers: &HeaderMap,
    body: Body,
    translate: bool,
) -> Result<Response, Failure> {
    let mut permit = app.permit()?;
    let boundary = multipart::boundary(headers, MOST)?;
    // Before the form is read, so that waiting requests take no memory.
    let place = app.hearing().await?;
    let Form { fields: given, file } = multipart::read(boundary, body, &app.options, MOST).await?;
    AUDIO.check(&given)?;
    let request: AudioFields = fields(&given)?;
    let format = request.format()?;
    let options = request.options(format, translate)?;
    let is_streamed = request.is_streamed(format)?;
    let loaded = app.models.get(request.model.as_deref()).await?;
    if !loaded.transcribes() {
        let does = if loaded.embeds() { "computes embeddings" } else { "continues text" };
        return Err(loaded.kind(does, "transcribe speech"));
    }
    let (send, mut told) = unbounded_channel();
    let (of_thread, metrics) = (loaded.clone(), app.metrics.model(&loaded.name));
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let open = OpenTranscript::new(metrics.clone());
        let found = heard(&of_thread, file, &options, &send);
        drop(open);
        if let Ok(transcript) = &found {
            let tokens = transcript.segments.iter().map(|segment| segment.tokens.len()).sum();
            metrics.generated(tokens);
            metrics.transcribed(transcript.duration);
        }
        // Fails if the client has left.
        let _ = send.send(found.map_or_else(Told::Failed, |transcript| Told::Done(Box::new(transcript))));
    });
    if is_streamed {
        return Ok(streamed(told, permit));
    }
    loop {
        let next = tokio::select! {
            next = told.recv() => next,
            () = permit.closed() => Some(Told::Failed(Failure::Stopping)),
        };
        match next {
            Some(Told::Segment(_)) => {}
            Some(Told::Done(transcript)) => return Ok(format.response(&transcript, translate)),
            Some(Told::Failed(failure)) => return Err(failure),
            None => return Err(tracewright::ModelError::Gone.into()),
        }
    }
}

fn heard(
    loaded: &Loaded,
    file: Vec<u8>,
    options: &TranscribeOptions,
    send: &UnboundedSender<Told>,
) -> Result<Transcript, Failure> {
    let model = &loaded.model;
    let samples = audio::decode_bytes(Path::new(FILE), file, model.sampling_rate()?);
    let samples = samples.map_err(tracewright::ModelError::from)?;
    Ok(model.transcribe_samples(&samples, options, |progress| {
        let sent = |segment: &SpeechSegment| send.send(Told::Segment(segment.clone())).is_ok();
        if progress.segments.iter().all(sent) && !send.is_closed() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?)
}

/// The events of OpenAI's newer models.
fn streamed(told: UnboundedReceiver<Told>, permit: Permit) -> Response {
    let state = (Some((told, permit)), false);
    let events = unfold(Some(state), |state| async move {
        let (open, has_begun) = state?;
        let Some((mut told, mut permit)) = open else {
            return Some((Ok::<_, Infallible>(event(&Sent::Done)), None));
        };
        let next = tokio::select! {
            next = told.recv() => next,
            () = permit.closed() => Some(Told::Failed(Failure::Stopping)),
        };
        let (value, is_over) = match next {
            Some(Told::Segment(segment)) => {
                let text = if has_begun { &segment.text } else { segment.text.trim_start() };
                (json!({ "type": "transcript.text.delta", "delta": text }), false)
            }
            Some(Told::Done(transcript)) => {
                let (text, usage) = (transcript.text(), usage(&transcript));
                (json!({ "type": "transcript.text.done", "text": text, "usage": usage }), true)
            }
            Some(Told::Failed(failure)) => (failure.json(), true),
            None => (Failure::from(tracewright::ModelError::Gone).json(), true),
        };
        let open = (!is_over).then_some((told, permit));
        Some((Ok(event(&Sent::Data(value))), Some((open, true))))
    });
    unbuffered(Sse::new(events).keep_alive(KeepAlive::new().interval(SILENCE)).into_response())
}

impl AudioFields {
    fn format(&self) -> Result<Format, Failure> {
        Ok(match self.response_format.as_deref() {
            None | Some("json") => Format::Json,
            Some("text") => Format::Text,
            Some("srt") => Format::Srt,
            Some("vtt") => Format::Vtt,
            Some("verbose_json") => Format::Verbose,
            Some(other) => {
                let expected = "`json`, `text`, `srt`, `vtt` or `verbose_json`";
                return Err(Failure::field("response_format", shown(&json!(other)), expected));
            }
        })
    }

    fn is_streamed(&self, format: Format) -> Result<bool, Failure> {
        match self.stream.as_deref() {
            None | Some("false" | "False" | "0") => Ok(false),
            Some("true" | "True" | "1") if matches!(format, Format::Json | Format::Text) => Ok(true),
            Some("true" | "True" | "1") => {
                let found = shown(&json!(self.response_format));
                Err(Failure::field("response_format", found, "`json` or `text` with `stream`"))
            }
            Some(other) => Err(Failure::field("stream", shown(&json!(other)), "true or false")),
        }
    }

    fn options(&self, format: Format, translate: bool) -> Result<TranscribeOptions, Failure> {
        const GRANULARITIES: &str = "timestamp_granularities[]";
        let asked = || self.granularities.iter().flatten();
        if let Some(other) = asked().find(|one| !["segment", "word"].contains(&one.as_str())) {
            return Err(Failure::field(GRANULARITIES, shown(&json!(other)), "`segment` or `word`"));
        }
        let words = asked().any(|one| one == "word");
        if words && format != Format::Verbose {
            let found = shown(&json!("word"));
            return Err(Failure::field(GRANULARITIES, found, "`word` only with `verbose_json`"));
        }
        let mut options = TranscribeOptions {
            language: self.language.clone().filter(|code| !code.is_empty()),
            translate,
            words,
            prompt: self.prompt.clone(),
            ..TranscribeOptions::default()
        };
        if let Some(text) = &self.temperature {
            let number = text.trim().parse().ok().filter(|number| (0.0..=1.0).contains(number));
            let expected = "a number from 0 to 1";
            let first: f32 =
                number.ok_or_else(|| Failure::field("temperature", shown(&json!(text)), expected))?;
            if first > 0.0 {
                options.temperatures = vec![first];
            }
        }
        Ok(options)
    }
}

impl Format {
    fn response(self, transcript: &Transcript, translate: bool) -> Response {
        let text =
            |text: String| ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response();
        match self {
            Self::Text => text(transcript.text() + "\n"),
            Self::Srt => text(transcript.srt()),
            Self::Vtt => text(transcript.vtt()),
            Self::Json => response(&json!({ "text": transcript.text(), "usage": usage(transcript) })),
            Self::Verbose => response(&verbose(transcript, translate)),
        }
    }
}

fn usage(transcript: &Transcript) -> Value {
    json!({ "type": "duration", "seconds": transcript.duration.ceil() as u64 })
}

#[derive(Serialize)]
struct NumberedSegment {
    id: usize,
    #[serde(flatten)]
    segment: SpeechSegment,
}

fn verbose(transcript: &Transcript, translate: bool) -> Value {
    let words = transcript.segments.iter().flat_map(|segment| &segment.words);
    let word = |word: &SpeechWord| SpeechWord { word: word.word.trim().into(), ..word.clone() };
    let words: Vec<SpeechWord> = words.map(word).collect();
    let apart = |segment: &SpeechSegment| SpeechSegment { words: Vec::new(), ..segment.clone() };
    let segments = transcript.segments.iter().map(apart).enumerate();
    let segments: Vec<_> = segments.map(|(id, segment)| NumberedSegment { id, segment }).collect();
    let mut all = json!({
        "task": if translate { "translate" } else { "transcribe" },
        "language": transcript.language,
        "duration": transcript.duration,
        "text": transcript.text(),
        "segments": segments,
        "usage": usage(transcript),
    });
    if !words.is_empty() {
        all["words"] = json!(words);
    }
    all
}
