//! Shows progress on stderr: progress bars if stderr is a terminal, and lines of text otherwise.

use std::ops::ControlFlow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
#[cfg(feature = "iree")]
use tracewright::build::BuildStep;
use tracewright::irpa;

use super::interrupt::Interrupt;

pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what);
    let template = "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec}";
    bar.with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Creates a spinner for a task whose duration is unknown.
pub fn spinner(what: impl Into<String>) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.into());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Creates a callback that moves `bar` while Tracewright writes random weights. Ctrl-C stops the writing.
pub fn count(bar: &ProgressBar, interrupt: &Interrupt) -> impl Fn(usize) -> ControlFlow<()> {
    let (bar, interrupt) = (bar.clone(), interrupt.clone());
    move |bytes| {
        bar.inc(bytes as u64);
        interrupt.go_on()
    }
}

/// Creates a callback that moves `bar` while Tracewright writes an archive. Ctrl-C stops the writing.
pub fn watch(bar: &ProgressBar, interrupt: &Interrupt) -> impl FnMut(irpa::Progress) -> ControlFlow<()> {
    let (bar, interrupt) = (bar.clone(), interrupt.clone());
    move |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
        interrupt.go_on()
    }
}

/// Shows a progress bar or a spinner for each step of building a network.
#[cfg(feature = "iree")]
pub struct Steps {
    interrupt: Interrupt,
    shown: Option<ProgressBar>,
}

#[cfg(feature = "iree")]
impl Steps {
    pub fn new(interrupt: &Interrupt) -> Self {
        Self { interrupt: interrupt.clone(), shown: None }
    }

    /// Shows the progress of a build step. After Ctrl-C, the function returns `ControlFlow::Break`,
    /// which stops the build.
    pub fn watch(&mut self, step: BuildStep) -> ControlFlow<()> {
        let (what, progress) = match step {
            BuildStep::Download(progress) => ("downloading", progress),
            BuildStep::Bake(progress) => ("baking", progress),
            BuildStep::Verify(progress) => ("verifying", progress),
            BuildStep::Compile | BuildStep::Load => {
                self.shown.take().iter().for_each(ProgressBar::finish_and_clear);
                self.shown = matches!(step, BuildStep::Compile).then(|| spinner("compiling"));
                return self.interrupt.go_on();
            }
        };
        // The bar belongs to another step, or is a spinner without a length.
        self.shown
            .take_if(|shown| shown.length().is_none() || shown.message() != what)
            .iter()
            .for_each(ProgressBar::finish_and_clear);
        let bar = self.shown.get_or_insert_with(|| bytes(what, progress.total));
        watch(bar, &self.interrupt)(progress)
    }
}
