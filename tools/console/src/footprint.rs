//! Reports the memory of a model.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tracewright::Plan;
use tracewright::footprint::{Footprint, Memory, WeightStorage, WeightTotal, readable};

/// The maximum number of unquantized weights whose names the report prints.
const NAMED: usize = 3;

pub fn patterns(stored: &WeightTotal) -> String {
    stored.patterns.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn named(keys: &[String]) -> String {
    let more = if keys.len() > NAMED { ", …" } else { "" };
    keys.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ") + more
}

/// The memory that a model needs, next to the memory of this machine, as text and as JSON.
pub struct FootprintReport<'a> {
    pub plan: &'a Plan,
    pub footprint: &'a Footprint,
    /// The memory of this machine, or `None` if the operating system does not report the memory.
    pub memory: Option<Memory>,
}

impl FootprintReport<'_> {
    /// For `tracewright plan --json`.
    pub fn json(&self) -> Value {
        let Self { plan, footprint, memory } = self;
        let weights = footprint.weights.iter().map(|(stored_as, stored)| {
        json!({ "stored": stored_as.to_string(), "keys": stored.keys, "patterns": stored.patterns, "bytes": stored.bytes })
    });
        json!({
            "context": plan.context,
            "chunk": plan.chunk,
            "batch": plan.batch,
            "weights": weights.collect::<Vec<_>>(),
            "weight_bytes": footprint.weight_bytes(),
            "streamed_bytes": footprint.streamed,
            "repacked_bytes": footprint.repacked,
            "state_bytes": footprint.state,
            "activation_bytes": footprint.activations,
            "constant_bytes": footprint.constants,
            "running_bytes": footprint.running(),
            "compiling_bytes": footprint.compile,
            "memory": memory.map(|memory| json!({ "total_bytes": memory.total, "available_bytes": memory.available })),
            "fits": memory.map(|memory| footprint.check(memory).is_ok()),
        })
    }

    pub fn table(&self) -> String {
        let Self { plan, footprint, memory } = self;
        let mut text = String::new();
        let mut line = |name: &str, bytes: usize, what: &str| {
            let bytes = readable(bytes as u64);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", format!("{name:<14}{bytes:>10}  {what}").trim_end());
        };
        line("weights", footprint.weight_bytes(), "in the archive, mapped");
        for (stored_as, stored) in &footprint.weights {
            let what = format!("{} of {stored_as}", stored.keys.len());
            let what = if matches!(stored_as, WeightStorage::Packed(_)) {
                what
            } else {
                format!("{what}: {}", named(&stored.keys))
            };
            line("", stored.bytes, &what);
        }
        for (format, stored) in footprint.mixture() {
            line("", stored.bytes, &format!("{}: {}", format.word(), patterns(stored)));
        }
        if footprint.repacked > 0 {
            line("packed copy", footprint.repacked, "made when the program is loaded");
        }
        let sizes = format!("context {}, batch {}", plan.context, plan.batch);
        let kinds = footprint.state.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        line("state", footprint.state_bytes(), &format!("{kinds}: {sizes}"));
        let largest = footprint.activations.iter().max_by_key(|(_, bytes)| **bytes);
        let entry = largest.map_or("", |(entry, _)| entry);
        line(
            "activations",
            footprint.activation_bytes(),
            &format!("largest in `{entry}`, chunk {}", plan.chunk),
        );
        line("constants", footprint.constants, "tables in the compiled module");
        line("running", footprint.running() as usize, "total, with the process itself");
        line("compiling", footprint.compile, "about, before that, in the compiler's process");
        if let Some(memory) = memory {
            line(
                "machine",
                memory.total as usize,
                &format!("of which {} are free", readable(memory.available)),
            );
        }
        text
    }
}
