//! `tracewright plan`

mod partition;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use console::{ModelArguments, print, read_network, warn_of_head};
use std::fmt::Write as _;

use serde_json::{Value, json};
use tracewright::footprint::{Footprint, Memory, readable};
use tracewright::targets::NamedMachine;
use tracewright::{Plan, PlanError};

use crate::Invocation;
use crate::arguments::{MeshArguments, batch};
use crate::checkpoint::fit_weights;
use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// A Hugging Face model directory, its config.json, a GGUF file, or a published size by name (`trace-dump presets` lists
    /// them)
    pub model: PathBuf,
    #[command(flatten)]
    pub mesh: MeshArguments,
    /// For XLA: what each device is, for how long a call takes at least: a name, or its bytes, its operations and its bytes
    /// over links in a second, as 3e12:200e12:300e9
    #[arg(long, value_name = NamedMachine::FORMS)]
    pub machine: Option<NamedMachine>,
    /// Sequences at once
    #[arg(long, value_name = "N", value_parser = batch, default_value = "1")]
    pub batch: NonZeroUsize,
    /// One JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
}

/// How many keys are named of weights that are not packed.
const NAMED: usize = 3;

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let read = invocation.read;
        let model = &self.model_arguments;
        let mut network = read_network(read, &self.model, &model.network.allow_config_key)?;
        warn_of_head(fit_weights(&mut *network, &self.model)?.as_ref());
        let plan = model.plan(network, model.context)?;
        let plan = Plan { batch: self.batch.get(), ..plan };
        if self.mesh.is_said() || self.machine.is_some() {
            return partition::run(self, plan);
        }
        let expanded = plan.expand(&plan.record(&plan.steps())?.trace)?;
        let footprint = Footprint::of(&expanded).map_err(PlanError::from)?;
        let memory = Memory::of_machine();
        let text = match self.json {
            true => format!("{}\n", json(&plan, &footprint, memory)),
            false => table(&plan, &footprint, memory),
        };
        let written = print(&text);
        memory.map_or(Ok(()), |memory| footprint.check(memory))?;
        Ok(written?)
    }
}

fn json(plan: &Plan, footprint: &Footprint, memory: Option<Memory>) -> Value {
    let weights = footprint.weights.iter().map(|(stored_as, stored)| {
        json!({ "stored": stored_as.to_string(), "keys": stored.keys, "bytes": stored.bytes })
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

fn table(plan: &Plan, footprint: &Footprint, memory: Option<Memory>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, bytes: usize, what: &str| {
        let bytes = readable(bytes as u64);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", format!("{name:<14}{bytes:>10}  {what}").trim_end());
    };
    line("weights", footprint.weight_bytes(), "in the archive, mapped");
    for (stored_as, stored) in &footprint.weights {
        let packed = matches!(stored_as, tracewright::footprint::StoredAs::Packed(_));
        let shown = if packed { 0 } else { NAMED };
        let mut keys = stored.keys.iter().take(shown).map(String::as_str).collect::<Vec<_>>().join(", ");
        if !packed && stored.keys.len() > shown {
            keys.push_str(", …");
        }
        let colon = if keys.is_empty() { "" } else { ": " };
        line("", stored.bytes, &format!("{} of {stored_as}{colon}{keys}", stored.keys.len()));
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
        &format!("at most, in `{entry}`, chunk {}", plan.chunk),
    );
    line("constants", footprint.constants, "tables in the compiled module");
    line("running", footprint.running() as usize, "all of it, and the process itself");
    line("compiling", footprint.compile, "before, in a process of its own; about");
    if let Some(memory) = memory {
        line("machine", memory.total as usize, &format!("of which {} are free", readable(memory.available)));
    }
    text
}
