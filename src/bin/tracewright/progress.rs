//! Progress on stderr: bars where someone looks, lines where not.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tracewright::irpa;

use crate::Interrupt;

/// A bar over bytes.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what);
    let template = "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec}";
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A spinner for a step of unknown length.
#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "only the compiler takes an unknown time"))]
pub fn spinner(what: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.into());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A watcher for the archive writer that moves `bar` and stops on Ctrl-C.
pub fn watch(bar: &ProgressBar, interrupt: &Interrupt) -> impl FnMut(irpa::Progress) -> ControlFlow<()> {
    let (bar, interrupt) = (bar.clone(), interrupt.clone());
    move |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        match interrupt.load(Ordering::SeqCst) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
