//! Causes faults that tests ask for.

use std::hint::{black_box, spin_loop};
use std::panic::panic_any;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ALLOWED: AtomicBool = AtomicBool::new(false);

/// Lets schemas and grammars end this process, for tests. The text `crash stack prepare` in a schema
/// overflows the stack while the schema is prepared. Other times are `compile` and `step`.
pub fn allow_crashes() {
    IS_ALLOWED.store(true, Ordering::Relaxed);
}

/// Causes the fault that `text` names for this time, if [`allow_crashes`] was called.
pub fn as_told(text: &str, time: &str) {
    if !IS_ALLOWED.load(Ordering::Relaxed) {
        return;
    }
    for (name, fault) in [
        ("stack", (|| overflow(0)) as fn()),
        ("abort", || process::abort()),
        ("panic", || panic_any("a test asked for a panic")),
        ("loop", || {
            loop {
                spin_loop();
            }
        }),
        ("memory", exhaust),
    ] {
        if text.contains(&format!("crash {name} {time}")) {
            fault();
        }
    }
}

fn overflow(depth: u64) {
    let here = black_box([depth; 64]);
    if here[0] != u64::MAX {
        overflow(depth + 1);
    }
    black_box(here);
}

fn exhaust() {
    let mut all = Vec::new();
    loop {
        all.push(black_box(vec![1_u8; 16 << 20]));
    }
}
