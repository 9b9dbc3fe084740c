//! Counts requests and tokens, and formats these counts for the monitoring system Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::StatusCode;
use generate::Generated;

use crate::models::Models;
use crate::sync::lock;
use crate::update::Usage;

/// The upper bounds of the buckets in the histogram of times to the first token, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The counters that `GET /metrics` reports.
#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    /// The counters of each model that has answered. They stay when the model is unloaded.
    models: Mutex<BTreeMap<String, Arc<ModelMetrics>>>,
}

/// The counters of one model.
#[derive(Default)]
pub struct ModelMetrics {
    prompt: AtomicU64,
    cached: AtomicU64,
    completion: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    /// The number of running answers, including answers that wait for a slot of the batch.
    open: AtomicUsize,
    /// For each bound in `BOUNDS`, the answers whose first token arrived within it.
    first: [AtomicU64; BOUNDS.len()],
    firsts: AtomicU64,
    first_sum: AtomicU64,
    prefill: AtomicU64,
    decode: AtomicU64,
    /// In microseconds.
    audio: AtomicU64,
}

impl ModelMetrics {
    pub fn began(&self, answers: usize) {
        self.open.fetch_add(answers, Relaxed);
    }

    pub fn ended(&self, answers: usize) {
        self.open.fetch_sub(answers, Relaxed);
    }

    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    pub fn first_token(&self, time: Duration) {
        for (bound, count) in BOUNDS.iter().zip(&self.first) {
            count.fetch_add(u64::from(time.as_secs_f64() <= *bound), Relaxed);
        }
        self.firsts.fetch_add(1, Relaxed);
        self.first_sum.fetch_add(time.as_micros() as u64, Relaxed);
    }

    pub fn generated(&self, tokens: usize) {
        self.completion.fetch_add(tokens as u64, Relaxed);
    }

    /// Counts an audio file with this length in seconds.
    pub fn transcribed(&self, seconds: f64) {
        self.audio.fetch_add((seconds * 1e6) as u64, Relaxed);
    }

    pub fn answered(&self, usage: &Usage, generated: &Generated) {
        self.prompt.fetch_add(usage.prompt as u64, Relaxed);
        self.cached.fetch_add(usage.cached as u64, Relaxed);
        self.drafted.fetch_add(generated.drafted as u64, Relaxed);
        self.accepted.fetch_add(generated.accepted as u64, Relaxed);
        self.prefill.fetch_add(generated.prefill.as_micros() as u64, Relaxed);
        self.decode.fetch_add(generated.decode.as_micros() as u64, Relaxed);
    }

    /// Adds the lines of the histogram of times to the first token.
    fn histogram(&self, model: &str, out: &mut String) {
        let name = "tracewright_time_to_first_token_seconds";
        let mut bucket = |bound: &str, count: u64| {
            let _ = writeln!(out, "{name}_bucket{{model=\"{model}\",le=\"{bound}\"}} {count}");
        };
        for (bound, count) in BOUNDS.iter().zip(&self.first) {
            bucket(&bound.to_string(), count.load(Relaxed));
        }
        let (count, sum) = (self.firsts.load(Relaxed), seconds(&self.first_sum));
        bucket("+Inf", count);
        let _ =
            writeln!(out, "{name}_sum{{model=\"{model}\"}} {sum}\n{name}_count{{model=\"{model}\"}} {count}");
    }
}

fn seconds(microseconds: &AtomicU64) -> f64 {
    microseconds.load(Relaxed) as f64 / 1e6
}

/// Escapes the value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Metrics {
    pub fn request(&self, path: &str, status: StatusCode) {
        *lock(&self.requests).entry((path.to_owned(), status.as_u16())).or_default() += 1;
    }

    /// Returns the counters of the model with this name.
    pub fn model(&self, name: &str) -> Arc<ModelMetrics> {
        lock(&self.models).entry(name.to_owned()).or_default().clone()
    }

    /// Formats the counters in Prometheus' text format.
    pub fn text(&self, models: &Models) -> String {
        let mut out = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, lines: &[(String, String)]| {
            let _ = writeln!(out, "# HELP tracewright_{name} {help}\n# TYPE tracewright_{name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(out, "tracewright_{name}{{{labels}}} {value}");
            }
        };
        let requests: Vec<_> = lock(&self.requests)
            .iter()
            .map(|((path, status), count)| {
                (format!("path=\"{path}\",status=\"{status}\""), count.to_string())
            })
            .collect();
        metric("requests_total", "counter", "Requests by path and status.", &requests);
        let all: Vec<_> =
            lock(&self.models).iter().map(|(name, counters)| (label(name), counters.clone())).collect();
        let each = |value: &dyn Fn(&ModelMetrics) -> String| -> Vec<_> {
            all.iter().map(|(name, counters)| (format!("model=\"{name}\""), value(counters))).collect()
        };
        let count =
            |value: fn(&ModelMetrics) -> &AtomicU64| each(&|one| value(one).load(Relaxed).to_string());
        let time = |value: fn(&ModelMetrics) -> &AtomicU64| each(&|one| seconds(value(one)).to_string());
        metric("prompt_tokens_total", "counter", "Tokens of all prompts.", &count(|one| &one.prompt));
        let help = "Tokens of prompts whose state a slot had.";
        metric("cached_tokens_total", "counter", help, &count(|one| &one.cached));
        metric("generated_tokens_total", "counter", "Tokens of all answers.", &count(|one| &one.completion));
        metric("drafted_tokens_total", "counter", "Tokens that were drafted.", &count(|one| &one.drafted));
        let help = "Drafted tokens that were right.";
        metric("accepted_tokens_total", "counter", help, &count(|one| &one.accepted));
        metric("prefill_seconds_total", "counter", "Time until first tokens.", &time(|one| &one.prefill));
        metric(
            "decode_seconds_total",
            "counter",
            "Time of all calls after prompts.",
            &time(|one| &one.decode),
        );
        let help = "Length of all audio files that were transcribed.";
        metric("audio_seconds_total", "counter", help, &time(|one| &one.audio));
        let help = "Answers that are generated or wait for a slot.";
        metric("answers_open", "gauge", help, &each(&|one| one.open().to_string()));
        let slots = models.loaded().map(|loaded| {
            (format!("model=\"{}\"", label(&loaded.name)), loaded.model.info().slots.to_string())
        });
        let slots: Vec<_> = slots.collect();
        metric("slots", "gauge", "Answers that a loaded model generates in parallel.", &slots);
        let help = "Time from a request's prompt to its first token.";
        metric("time_to_first_token_seconds", "histogram", help, &[]);
        all.iter().for_each(|(name, counters)| counters.histogram(name, &mut out));
        out
    }
}
