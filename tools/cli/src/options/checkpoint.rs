//! Opens the weights of a network.

use console::warn;
use tracewright::bake::Baked;
use tracewright::irpa::{Checkpoint, ModelFiles};
use tracewright::models::fit::{self, Fitted};
use tracewright::models::{Opened, ReadModel};

use super::arguments::LoraArguments;
use super::error::Error;

/// Opens a model folder or a GGUF file, and adds adapters. The returned weights have the names that the network declares.
pub fn open(
    read: ReadModel,
    model: impl Into<ModelFiles>,
    allowed_keys: &[String],
    adapters: &LoraArguments,
) -> Result<(Opened, Checkpoint), Error> {
    let files = model.into();
    let fitted = fit::open(read, &files, allowed_keys)?;
    let Fitted { network, checkpoint, warnings } = fitted.with_adapters(&files, &adapters.lora)?;
    warn(&warnings);
    Ok((network, checkpoint))
}

pub fn report_baked(baked: &Baked) {
    if let Some((_, from, to)) = baked.converted.first() {
        say!("converted {} tensors from {from} to {to}", baked.converted.len());
    }
    for (what, count) in &baked.blocks {
        say!("{count} tensors in {what}");
    }
    if !baked.ignored.is_empty() {
        say!("left out {}: {}", baked.ignored.len(), baked.ignored.join(", "));
    }
}
