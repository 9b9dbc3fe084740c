//! Which files Tracewright writes where you name one, and so which it replaces there: [`OUTPUTS`] has them all.

use tracewright::files::FileKind;

/// Parameter archives: `bake -o`.
pub use tracewright::irpa::ARCHIVE;

/// `generate --prompt-cache` and `chat --session`.
pub const SEQUENCE: FileKind = FileKind::SEQUENCE;

/// `generate --save-logits`.
pub const LOGITS: FileKind = FileKind { name: "a file of logits", is: is_logits };

/// `chat` with `/save`.
pub const MESSAGES: FileKind = FileKind {
    name: "a JSON list of messages",
    is: |head| opens(head, "[") && has(head, &["\"role\":"]) || is_empty_list(head),
};

/// `bench --json`.
pub const BENCHMARK: FileKind = FileKind {
    name: "a report of `bench`",
    is: |head| opens(head, "{") && has(head, &["\"schema\":", "\"tracewright\":"]),
};

/// `bench --plot`.
pub const PLOT: FileKind = FileKind {
    name: "a drawing of `bench`",
    is: |head| opens(head, "<svg ") && has(head, &["medians and quartiles of "]),
};

/// `bench --trace`.
pub const PROFILE: FileKind = FileKind {
    name: "a profile",
    is: |head| opens(head, "{\"displayTimeUnit\":") && has(head, &["\"tracewright "]),
};

/// `man -o`.
pub const PAGE: FileKind =
    FileKind { name: "a page of this manual", is: |head| has(head, &["\n.TH tracewright"]) };

/// `trace-dump -o` with `--emit text`.
pub const TRACE: FileKind = FileKind { name: "a trace", is: |head| opens(head, "function @") };

/// `trace-dump -o` with `--emit mlir`.
pub const MODULE: FileKind =
    FileKind { name: "a module of Tracewright", is: |head| opens(head, "module @tracewright") };

/// `trace-dump -o` with `--emit counts`.
pub const COUNTS: FileKind = FileKind {
    name: "a list of counts",
    is: |head| opens(head, "functions ") && has(head, &["\nparameter elements "]),
};

/// `trace-dump -o` with `--emit html`.
pub const HTML: FileKind = FileKind {
    name: "a page of `trace-dump`",
    is: |head| opens(head, "<!doctype html>") && has(head, &["--paper: light-dark("]),
};

/// `trace-dump -o` with `--emit json`.
pub const REPORT: FileKind = FileKind {
    name: "a report of `trace-dump`",
    is: |head| opens(head, "{\"label\":") && has(head, &["\"graphs\":[{\"id\":"]),
};

/// `trace-dump -o` with `--emit svg`.
pub const DRAWING: FileKind = FileKind {
    name: "a drawing of `trace-dump`",
    is: |head| opens(head, "<svg ") && has(head, &["class=\"graph\"", "--paper: light-dark("]),
};

/// `trace-dump -o` with `--emit dot`.
pub const GRAPH: FileKind = FileKind {
    name: "a graph of `trace-dump`",
    is: |head| {
        opens(head, "digraph \"") && has(head, &["  node [shape=box, fontname=\"monospace\", fontsize=10];"])
    },
};

/// `trace-dump -o` with `--explain`.
pub const EXPLANATION: FileKind =
    FileKind { name: "a chain of rules", is: |head| opens(head, "recorded  %") };

/// All of them, each once.
pub const OUTPUTS: &[FileKind] = &[
    ARCHIVE,
    SEQUENCE,
    LOGITS,
    MESSAGES,
    BENCHMARK,
    PLOT,
    PROFILE,
    PAGE,
    TRACE,
    MODULE,
    COUNTS,
    HTML,
    REPORT,
    DRAWING,
    GRAPH,
    EXPLANATION,
];

fn opens(head: &[u8], with: &str) -> bool {
    head.starts_with(with.as_bytes())
}

/// Whether all of these are in it.
fn has(head: &[u8], words: &[&str]) -> bool {
    words.iter().all(|word| head.windows(word.len()).any(|part| part == word.as_bytes()))
}

/// A chat in which nothing was said.
fn is_empty_list(head: &[u8]) -> bool {
    head.trim_ascii() == b"[]"
}

/// Whether it is a safetensors file that has logits and nothing else.
fn is_logits(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk() else { return false };
    let header = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|length| rest.get(..length));
    let header: Option<serde_json::Map<String, serde_json::Value>> =
        header.and_then(|header| serde_json::from_slice(header).ok());
    header.is_some_and(|tensors| {
        tensors.contains_key("logits")
            && tensors.keys().all(|name| ["logits", "prompt_logits"].contains(&name.as_str()))
    })
}
