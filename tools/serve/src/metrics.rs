//! Counts requests and tokens, and formats these counts for the monitoring system Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use generate::Generated;

use crate::models::Models;
use crate::update::Usage;

/// The upper bounds of the buckets in the histogram of times to the first token, in seconds.
const BOUNDS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The counters that `GET /metrics` reports.
#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
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
}

impl Metrics {
    pub fn request(&self, path: &str, status: StatusCode) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((path.to_owned(), status.as_u16())).or_default() += 1;
    }

    pub fn began(&self, answers: usize) {
        self.open.fetch_add(answers, Relaxed);
    }

    pub fn ended(&self, answers: usize) {
        self.open.fetch_sub(answers, Relaxed);
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

    pub fn answered(&self, usage: &Usage, generated: &Generated) {
        self.prompt.fetch_add(usage.prompt as u64, Relaxed);
        self.cached.fetch_add(usage.cached as u64, Relaxed);
        self.drafted.fetch_add(generated.drafted as u64, Relaxed);
        self.accepted.fetch_add(generated.accepted as u64, Relaxed);
        self.prefill.fetch_add(generated.prefill.as_micros() as u64, Relaxed);
        self.decode.fetch_add(generated.decode.as_micros() as u64, Relaxed);
    }

    /// Formats the counters in Prometheus' text format.
    pub fn text(&self, models: &Models) -> String {
        let mut out = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, lines: &[(String, String)]| {
            let _ = writeln!(out, "# HELP tracewright_{name} {help}\n# TYPE tracewright_{name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(out, "tracewright_{name}{labels} {value}");
            }
        };
        let one = |value: &AtomicU64| vec![(String::new(), value.load(Relaxed).to_string())];
        let seconds =
            |value: &AtomicU64| vec![(String::new(), (value.load(Relaxed) as f64 / 1e6).to_string())];
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let requests: Vec<_> = requests
            .iter()
            .map(|((path, status), count)| {
                (format!("{{path=\"{path}\",status=\"{status}\"}}"), count.to_string())
            })
            .collect();
        metric("requests_total", "counter", "Requests by path and status.", &requests);
        metric("prompt_tokens_total", "counter", "Tokens of all prompts.", &one(&self.prompt));
        metric(
            "cached_tokens_total",
            "counter",
            "Tokens of prompts whose state a slot had.",
            &one(&self.cached),
        );
        metric("generated_tokens_total", "counter", "Tokens of all answers.", &one(&self.completion));
        metric("drafted_tokens_total", "counter", "Tokens that were drafted.", &one(&self.drafted));
        metric("accepted_tokens_total", "counter", "Drafted tokens that were right.", &one(&self.accepted));
        metric("prefill_seconds_total", "counter", "Time until first tokens.", &seconds(&self.prefill));
        metric("decode_seconds_total", "counter", "Time of all calls after prompts.", &seconds(&self.decode));
        let open = self.open.load(Relaxed);
        let slots: usize = models.loaded().map(|loaded| loaded.model.info().slots).sum();
        let gauge = |value: usize| vec![(String::new(), value.to_string())];
        metric("answers_open", "gauge", "Answers that are generated or wait for a slot.", &gauge(open));
        metric("slots", "gauge", "Answers that all loaded models generate in parallel.", &gauge(slots));
        let name = "time_to_first_token_seconds";
        metric(name, "histogram", "Time from a request's prompt to its first token.", &[]);
        for (bound, count) in BOUNDS.iter().zip(&self.first) {
            let _ = writeln!(out, "tracewright_{name}_bucket{{le=\"{bound}\"}} {}", count.load(Relaxed));
        }
        let (count, sum) = (self.firsts.load(Relaxed), self.first_sum.load(Relaxed) as f64 / 1e6);
        let _ = writeln!(
            out,
            "tracewright_{name}_bucket{{le=\"+Inf\"}} {count}\ntracewright_{name}_sum {sum}\n\
             tracewright_{name}_count {count}"
        );
        out
    }
}
