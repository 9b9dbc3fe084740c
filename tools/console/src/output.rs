//! The kinds of files that Tracewright writes to paths that you name. An output file may replace
//! only a file of the same kind. [`OUTPUTS`] lists all kinds of output files.

use tracewright::files::FileKind;

/// For `bake -o`.
pub use tracewright::irpa::ARCHIVE;

/// Saved token sequences, which `generate --prompt-cache` and `chat --session` write.
pub const SEQUENCE: FileKind = FileKind::SEQUENCE;

/// For `generate --save-logits`.
pub const LOGITS: FileKind = FileKind { name: "a file of logits", is: is_logits };

/// For the chat command `/save`.
pub const MESSAGES: FileKind = FileKind {
    name: "a JSON list of messages",
    is: |head| opens(head, "[") && has(head, &["\"role\":"]) || is_empty_list(head),
};

/// For `bench --json`.
pub const BENCHMARK: FileKind = FileKind {
    name: "a report of `bench`",
    is: |head| opens(head, "{") && has(head, &["\"schema\":", "\"tracewright\":"]),
};

/// For `bench --plot`.
pub const PLOT: FileKind = FileKind {
    name: "a drawing of `bench`",
    is: |head| opens(head, "<svg ") && has(head, &["medians and quartiles of "]),
};

/// For `bench --trace`.
pub const PROFILE: FileKind = FileKind {
    name: "a profile",
    is: |head| opens(head, "{\"displayTimeUnit\":") && has(head, &["\"tracewright "]),
};

/// For `man -o`.
pub const PAGE: FileKind =
    FileKind { name: "a page of this manual", is: |head| has(head, &["\n.TH tracewright"]) };

/// A trace of a network, which `trace-dump -o` writes with `--emit text`.
pub const TRACE: FileKind = FileKind { name: "a trace", is: |head| opens(head, "function @") };

/// The StableHLO text of a module, which `trace-dump -o` writes with `--emit mlir`.
pub const MODULE: FileKind =
    FileKind { name: "a module of Tracewright", is: |head| opens(head, "module @tracewright") };

/// The number of operations of each kind, which `trace-dump -o` writes with `--emit counts`.
pub const COUNTS: FileKind = FileKind {
    name: "a list of counts",
    is: |head| opens(head, "functions ") && has(head, &["\nparameter elements "]),
};

/// A web page, which `trace-dump -o` writes with `--emit html`.
pub const HTML: FileKind = FileKind {
    name: "a page of `trace-dump`",
    is: |head| opens(head, "<!doctype html>") && has(head, &["--paper: light-dark("]),
};

/// A report, which `trace-dump -o` writes with `--emit json`.
pub const REPORT: FileKind = FileKind {
    name: "a report of `trace-dump`",
    is: |head| opens(head, "{\"label\":") && has(head, &["\"graphs\":[{\"id\":"]),
};

/// A picture, which `trace-dump -o` writes with `--emit svg`.
pub const DRAWING: FileKind = FileKind {
    name: "a drawing of `trace-dump`",
    is: |head| opens(head, "<svg ") && has(head, &["class=\"graph\"", "--paper: light-dark("]),
};

/// A graph, which `trace-dump -o` writes with `--emit dot`.
pub const GRAPH: FileKind = FileKind {
    name: "a graph of `trace-dump`",
    is: |head| {
        opens(head, "digraph \"") && has(head, &["  node [shape=box, fontname=\"monospace\", fontsize=10];"])
    },
};

/// An explanation of a value by a chain of rules, which `trace-dump -o` writes with `--explain`.
pub const EXPLANATION: FileKind =
    FileKind { name: "a chain of rules", is: |head| opens(head, "recorded  %") };

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

fn has(head: &[u8], words: &[&str]) -> bool {
    words.iter().all(|word| head.windows(word.len()).any(|part| part == word.as_bytes()))
}

fn is_empty_list(head: &[u8]) -> bool {
    head.trim_ascii() == b"[]"
}

/// Only logits, in safetensors.
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
